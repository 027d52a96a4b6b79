"""Shares of a round's prompts, and trees on engines that die."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import ActorDiedError

from openrlhf.trainer.fully_async import engine_balancer
from openrlhf.trainer.fully_async.engine_balancer import ENGINE_DEATHS_PER_GROUP
from openrlhf.trainer.fully_async.messages import BareReport, BareRollout, GroupReport, Prefix, Task
from openrlhf.trainer.tree.rollout_actor import TreeRollouts
from openrlhf.trainer.tree.root_allocator import RootAllocator
from pace.prompts import Lease
from trace_alloc.config import TraceConfig

TASK = Task(prompt="p", label="l", images=None, sampling={}, max_length=99, n_samples=2, predicted=0.3)


def lease(index: int = 0) -> Lease:
    return Lease(group_id=f"0:{index}.0", prompt_id=f"0:{index}", index=index, episode=0, attempt=0)


class FakePredictor:
    """An actor handle; scores by the anchor's turn, or is away."""

    def __init__(self, score: Any = lambda anchor: 0.5, *, away: bool = False) -> None:
        self.asked: list[list[Any]] = []
        self._score, self._away = score, away
        self.score = SimpleNamespace(remote=self._scored)

    async def _scored(self, anchors: list[Any]) -> list[float]:
        self.asked.append(anchors)
        if self._away:
            raise ActorDiedError()
        return [self._score(anchor) for anchor in anchors]


class FakeEngine:
    """An engine actor's handle. `deaths` holds the calls that it dies in, by name; `packs`: its trees can travel."""

    def __init__(self, bare: BareReport, *deaths: str, packs: bool = True) -> None:
        self._bare, self._deaths, self._packs = bare, list(deaths), packs
        self.packed: list[bytes | None] = []
        self.calls: list[str] = []
        self.expanded: list[tuple[list[list[int]], dict[str, Any]]] = []
        self.roll_out_bare = SimpleNamespace(remote=self._roll_out_bare)
        self.expand = SimpleNamespace(options=self._options)
        self.hand_over = SimpleNamespace(options=lambda num_returns: SimpleNamespace(remote=self._hand_over))

    async def _roll_out_bare(self, lease: Lease, task: Task, tokenizer: Any) -> BareReport:
        self._note("bare")
        assert tokenizer == "reference"
        return self._bare

    def _options(self, *, num_returns: int) -> Any:
        assert num_returns == 2
        return SimpleNamespace(remote=self._expand)

    def _hand_over(self, group_id: str) -> tuple[Any, bytes]:
        async def packs() -> bool:
            self._note("hand_over")
            return self._packs

        return asyncio.ensure_future(packs()), b"packed"

    def _expand(
        self, lease: Any, task: Any, tokenizer: Any, counts: Any, notes: Any, packed: bytes | None
    ) -> tuple[Any, Any]:
        self.expanded.append((counts, notes))
        self.packed.append(packed)

        async def report() -> GroupReport:
            self._note("expand")
            return GroupReport(group=None, n_tokens=7)

        async def content() -> bytes:
            return b"tree"

        return asyncio.ensure_future(report()), asyncio.ensure_future(content())

    def _note(self, name: str) -> None:
        self.calls.append(name)
        if name in self._deaths:
            raise ActorDiedError()


def bare_report(*n_prefixes: int, rewards: tuple[float, ...] = ()) -> BareReport:
    rollouts = tuple(
        BareRollout(
            reward=rewards[j] if rewards else float(j % 2),
            prefixes=tuple(Prefix(turn=t + 1, n_given=10 * (t + 1), text=f"{j}{t}") for t in range(n)),
        )
        for j, n in enumerate(n_prefixes)
    )
    return BareReport(rollouts=rollouts)


def tree(engines: list[FakeEngine], predictor: Any, *, task: Task = TASK, **knobs: Any) -> tuple[GroupReport, bytes]:
    actor = TreeRollouts(engines=engines, predictor=predictor, config=TraceConfig(**knobs), seed=1)
    return asyncio.run(actor.generate_group(lease(), task, ["reference"]))


def loaded_tree(holder: FakeEngine, other: FakeEngine, *, n_open: tuple[int, int], **knobs: Any) -> TreeRollouts:
    """A tree begun on `holder`, where `n_open` groups are open at the two engines when its bare rollouts are back."""
    actor = TreeRollouts(engines=[holder, other], predictor=FakePredictor(), config=TraceConfig(**knobs), seed=1)
    bare = holder.roll_out_bare.remote

    async def delayed(*args: Any) -> BareReport:
        report: BareReport = await bare(*args)
        actor._balancer._open[:] = list(n_open)
        return report

    holder.roll_out_bare.remote = delayed
    asyncio.run(actor.generate_group(lease(), TASK, ["reference"]))
    return actor


def test_continuations_leave_an_overloaded_engine_with_their_tree():
    holder, other = FakeEngine(bare_report(2, 1)), FakeEngine(bare_report(9))
    actor = loaded_tree(holder, other, n_open=(4, 1))
    assert holder.calls == ["bare", "hand_over"] and other.calls == ["expand"]
    assert other.packed == [b"packed"] and [len(row) for row in other.expanded[0][0]] == [2, 1]
    assert actor._balancer.open_groups == (3, 1), "it has left both engines"


@pytest.mark.parametrize(
    ("n_open", "packs", "knobs"),
    [((4, 2), True, {}), ((4, 1), False, {}), ((4, 1), True, {"continuations": 0})],
    ids=["not overloaded", "can't travel", "nothing to continue"],
)
def test_else_they_stay(n_open, packs, knobs):
    holder, other = FakeEngine(bare_report(2, 1), packs=packs), FakeEngine(bare_report(9))
    actor = loaded_tree(holder, other, n_open=n_open, **knobs)
    assert holder.calls[-1] == "expand" and holder.packed == [None] and not other.calls
    assert actor._balancer.open_groups == (n_open[0] - 1, n_open[1])


def test_when_the_other_engine_dies_the_tree_is_grown_again_and_that_engine_rests():
    holder, other = FakeEngine(bare_report(2, 1)), FakeEngine(bare_report(2, 1), "expand")
    actor = loaded_tree(holder, other, n_open=(4, 1))
    assert holder.calls == ["bare", "hand_over", "bare", "expand"] and other.calls == ["expand"]
    assert [at > float("-inf") for at in actor._balancer._failed_at] == [False, True]


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(engine_balancer, "ENGINE_RETRY_S", 0.0)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(0, 3), st.booleans())
def test_the_budget_is_that_many_continuations_per_bare_rollout(n_prefixes, continuations, uniform):
    engine = FakeEngine(bare_report(*n_prefixes))
    task = Task(**{**vars(TASK), "uniform": uniform})
    report, content = tree([engine], FakePredictor(), task=task, continuations=continuations)
    ((counts, notes),) = engine.expanded
    assert [len(row) for row in counts] == n_prefixes
    spent = sum(map(sum, counts))
    assert spent + notes["unspent"] == continuations * len(n_prefixes)
    assert notes["predicted"] == 0.3 and report.n_tokens == 7 and content == b"tree"
    chosen = {(j, 10 * (t + 1)) for j, row in enumerate(counts) for t, count in enumerate(row) if count}
    assert {(j, n) for j, n, _ in notes["anchors"]} == chosen


def test_continuations_go_where_they_may_turn_out_otherwise_once_the_predictor_has_learnt():
    """Behind its second turn every rollout is a sure success, as it was."""
    predictor = FakePredictor(lambda anchor: 0.5 if anchor.turn == 1 else 1.0)
    engine, uniform = (FakeEngine(bare_report(2, 2, rewards=(1.0, 1.0))) for _ in range(2))
    tree([engine], predictor, continuations=2)
    assert engine.expanded[0][0] == [[2, 0], [2, 0]]
    assert engine.expanded[0][1]["anchors"] == [[0, 10, 0.5], [1, 10, 0.5]]
    tree([uniform], predictor, task=Task(**{**vars(TASK), "uniform": True}), continuations=2)
    assert sum(map(sum, uniform.expanded[0][0])) == 4 and uniform.expanded[0][0] != engine.expanded[0][0]


def test_a_predictor_that_is_away_counts_every_prefix_as_even():
    engine = FakeEngine(bare_report(2, 1))
    tree([engine], FakePredictor(away=True))
    assert {score for _, _, score in engine.expanded[0][1]["anchors"]} == {0.5}


@pytest.mark.parametrize("knobs", [{"continuations": 0}, {"allocation": "flat"}])
def test_nobody_is_asked_where_nothing_is_continued(knobs):
    engine, predictor = FakeEngine(bare_report(2, 1)), FakePredictor()
    tree([engine], predictor, **knobs)
    assert engine.expanded[0][0] == [[0, 0], [0]] and not predictor.asked


@pytest.mark.parametrize("when", ["bare", "expand"])
def test_a_tree_whose_engine_dies_is_grown_again_elsewhere(when):
    bad, good = FakeEngine(bare_report(2), when), FakeEngine(bare_report(2))
    report, content = tree([bad, good], FakePredictor())
    assert content == b"tree" and bad.calls[-1] == when
    assert good.calls == ["bare", "expand"], "from the start"


def test_engines_that_keep_dying_end_the_group():
    engines = [FakeEngine(bare_report(2), "expand") for _ in range(2)]
    with pytest.raises(ActorDiedError):
        tree(engines, FakePredictor())
    assert sum(engine.calls.count("expand") for engine in engines) == ENGINE_DEATHS_PER_GROUP


def test_the_failure_of_the_bare_rollouts_is_passed_on():
    failure = GroupReport(group=None, n_tokens=5, failure="broken")
    engine = FakeEngine(BareReport(failure=failure))
    assert tree([engine], FakePredictor()) == (failure, b"") and not engine.expanded


# The root allocator


def shares(n: int, *, n_start: int, version: int = 5, predictor: Any = None, **knobs: Any) -> list[Task]:
    allocator = RootAllocator(
        config=TraceConfig(**knobs), predictor=predictor or FakePredictor(), batch_groups=8, flat_rollouts=64, seed=3
    )
    leases = tuple(map(lease, range(n)))
    return asyncio.run(allocator.shares(leases, [TASK] * n, n_start=n_start, version=version))


@given(st.integers(1, 8), st.integers(0, 16), st.integers(0, 3))
def test_a_round_spends_its_part_of_the_budget(n_start, more, version):
    tasks = shares(n_start + more, n_start=n_start, version=version, warmup_steps=2)
    counts = [task.n_samples for task in tasks]
    assert sum(counts) == 32 * n_start // 8  # M = 64 / (1 + 2 / 2)
    assert sum(map(bool, counts)) <= n_start and 1 not in counts
    assert {task.uniform for task in tasks} == {version < 2}
    if version < 2:
        assert sorted(counts)[-n_start:] == [4] * n_start


def test_sure_prompts_are_skipped_once_the_predictor_has_learnt():
    predictor = FakePredictor(lambda anchor: 0.5 if int(anchor.key) < 4 else 0.999)
    tasks = shares(16, n_start=8, predictor=predictor)
    assert all(task.n_samples for task in tasks[:4]) and sum(task.n_samples == 0 for task in tasks[4:]) >= 8
    assert [task.predicted for task in tasks] == [0.5] * 4 + [0.999] * 12


def test_a_predictor_that_is_away_counts_every_prompt_as_even():
    tasks = shares(8, n_start=4, predictor=FakePredictor(away=True))
    assert {task.predicted for task in tasks} == {0.5} and sum(task.n_samples for task in tasks) == 16
