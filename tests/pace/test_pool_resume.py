"""Restarts of the pool: every state it can be in, every policy, and whole runs killed at random points."""

import copy
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace.ledger import Fate
from pace.pool import TrajectoryPool
from pace.ranking import RankBy
from pace.selection import replay
from pace.state import StateError


def restored(pool: TrajectoryPool, twin: TrajectoryPool) -> TrajectoryPool:
    """`twin` with the state of `pool`, through JSON as a checkpoint would."""
    twin.load_state_dict(json.loads(json.dumps(pool.state_dict(), allow_nan=False)))
    return twin


def grown(build: Any, rng: random.Random, pool: TrajectoryPool, *, version: int, serial: int) -> None:
    for i in range(rng.randint(0, 8)):
        build.feed(pool, build.random_group(rng, f"g{serial}-{i}", version=version))
    pool.window.add(rng.random() for _ in range(rng.randint(0, 20)))


STATES = ["empty", "ready", "waiting", "drawn", "prefetched", "committed", "evicted", "requeued", "in flight"]


def bring_to(build: Any, pool: TrajectoryPool, state: str) -> None:
    if state == "empty":
        return
    build.feed(pool, *(build.group(f"g{v}", siblings=[(v,), (v,)], scores=[None, None]) for v in range(7)))
    pool.window.add(i / 40 for i in range(40))
    if state == "in flight":
        pool.ledger.start("flying", version=2)
        pool.ledger.generate("flying", 9)
    elif state == "waiting":
        assert pool.draw(14) is None
    elif state in ("evicted", "requeued"):
        assert pool.evict(9)
    elif state != "ready":
        assert pool.draw(7)
        if state == "prefetched":
            build.feed(pool, build.group("late1", siblings=[(7,)]), build.group("late2", siblings=[(7,)]))
            assert pool.draw(8)
        if state == "committed":
            pool.commit(7)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("rank", [rank.value for rank in RankBy])
@pytest.mark.parametrize("admission", ["none", "areal", "dora"])
def test_every_state_under_every_policy_goes_on_as_if_nothing_had_happened(build, state, rank, admission):
    settings = {"rank": rank, "admission": admission, "k_max": 6, "rate_smoothing": 0.5, "on_reject": "requeue"}
    pool = build.pool(**settings)
    bring_to(build, pool, state)
    twin = restored(pool, build.pool(seed=99, **settings))
    assert twin.state_dict() == pool.state_dict()
    assert twin.gauges() == pool.gauges() and twin.metrics() == pool.metrics()
    for version in range(14, 18):
        for each in (pool, twin):
            grown(build, random.Random(version), each, version=version, serial=version)
        assert twin.may_start(version) == pool.may_start(version)
        assert twin.draw(version) == pool.draw(version)
    assert twin.take_requeues() == pool.take_requeues()
    assert twin.state_dict() == pool.state_dict()


def test_a_drawn_batch_is_returned_again_after_a_restart_and_not_after_its_commit(build):
    pool = build.pool()
    build.feed(pool, *(build.group(f"g{i}") for i in range(4)))
    draw = pool.draw(0)
    twin = restored(pool, build.pool())
    assert twin.draw(0) == draw
    twin.commit(0)
    with pytest.raises(ValueError, match="step 0 has had its batch"):
        restored(twin, build.pool()).draw(0)


def test_steps_are_numbered_on_across_a_restart(build):
    """Labels off by one after a resume train a step twice or skip one."""
    pool, steps = build.pool(batch_groups=1), []
    for version in range(6):
        build.feed(pool, build.group(f"g{version}", siblings=[(version,)]))
        steps.append(pool.draw(version).version)
        pool.commit(version)
        pool = restored(pool, build.pool(batch_groups=1))
    assert steps == list(range(6))


def test_ages_continue_on_a_clock_that_started_anew(build):
    clock, other = build.clock(), build.clock()
    pool = build.pool(clock=clock)
    build.feed(pool, build.group("a"))
    clock.now, other.now = 160.0, 5.0
    twin = restored(pool, build.pool(clock=other))
    other.now += 1.0
    assert twin.gauges().oldest_age_s == 61.0


@pytest.mark.parametrize("change", ["missing", "unknown", "part", "batch", "policy", "lost group", "draw"])
def test_foreign_state_is_refused(build, change):
    pool = build.pool(rank="random")
    build.feed(pool, *(build.group(f"g{i}") for i in range(5)))
    pool.draw(0)
    state = copy.deepcopy(pool.state_dict())
    if change == "missing":
        del state["next_step"]
    elif change == "unknown":
        state["colour"] = "red"
    elif change == "part":
        del state["parts"]["window"]
    elif change == "batch":
        state["batch_groups"] = 3
    elif change == "policy":
        state["parts"]["ranking"] = {}
    elif change == "lost group":
        del state["entries"][0]
    else:
        del state["pending"][0]["decisions"][0]["reason"]
    with pytest.raises(StateError):
        build.pool(rank="random").load_state_dict(state)


def test_surplus_rollouts_survive_a_checkpoint(build):
    """Four prompts generated, two trained, then a resume: the other two are trained, none twice and none lost."""
    pool = build.pool(batch_groups=2, max_reject_rate=0.0)
    trained: list[str] = []
    prompts = iter(range(8))
    for version in range(4):
        for prompt in [next(prompts, None) for _ in range(4)]:
            if prompt is not None:
                build.feed(pool, build.group(f"g{prompt}", siblings=[(version,)], prompt_id=str(prompt)))
        trained += [group.prompt_id for group in pool.draw(version).groups]
        pool.commit(version)
        if version == 0:
            assert pool.gauges().groups == 2
        pool = restored(pool, build.pool(batch_groups=2, max_reject_rate=0.0))
    assert sorted(trained) == [str(i) for i in range(8)]


@dataclass
class Run:
    """A whole run with fakes: manager (prompt cursor, groups in flight, requeues), pool, trainer.

    Everything is saved together, but for the batch in the trainer's hands: that one the pool has to give again.
    """

    pool: TrajectoryPool
    n_prompts: int
    cursor: int = 0
    version: int = 0
    flying: dict[str, tuple[str, int]] = field(default_factory=dict)  # group id -> prompt, attempt
    queue: list[tuple[str, int]] = field(default_factory=list)
    trained: list[str] = field(default_factory=list)  # prompts, in training order
    given_up: list[str] = field(default_factory=list)
    batch: Any = None

    def save(self) -> dict[str, Any]:
        rest = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("pool", "batch")}
        return json.loads(json.dumps({"pool": self.pool.state_dict(), "rest": rest}))

    def load(self, state: dict[str, Any]) -> None:
        self.pool.load_state_dict(state["pool"])
        for name, value in copy.deepcopy(state["rest"]).items():
            setattr(self, name, value)
        assert sorted(self.pool.ledger.restart_in_flight()) == sorted(self.flying), "leases and ledger agree"

    def start(self) -> None:
        if self.pool.may_start(self.version) < 1:
            return
        if self.queue:
            prompt, attempt = self.queue.pop(0)
        elif self.cursor < self.n_prompts:
            prompt, attempt, self.cursor = f"p{self.cursor}", 0, self.cursor + 1
        else:
            return
        group_id = f"{prompt}.{attempt}"
        self.pool.ledger.start(group_id, version=self.version)
        self.flying[group_id] = (prompt, attempt)

    def finish(self, build: Any, rng: random.Random) -> None:
        if not self.flying:
            return
        group_id = rng.choice(sorted(self.flying))
        prompt, attempt = self.flying[group_id]
        if rng.random() < 0.3:
            self.pool.ledger.generate(group_id, rng.randint(0, 30))
            return
        del self.flying[group_id]
        if rng.random() < 0.1:
            self.pool.ledger.close(group_id, rng.choice([Fate.FAILED, Fate.FILTERED]), n_tokens=rng.randint(0, 9))
            self.given_up.append(prompt)
        else:
            self.pool.put(build.random_group(rng, group_id, version=self.version, prompt_id=prompt, attempt=attempt))

    @property
    def generating(self) -> bool:
        return bool(self.flying or self.queue) or self.cursor < self.n_prompts

    def draw(self) -> bool:
        """Asks for the next batch; False when the data is finished."""
        self.batch = self.pool.draw(self.version, final=not self.generating)
        self.queue += [(requeue.prompt_id, requeue.attempt) for requeue in self.pool.take_requeues()]
        return self.batch is not None or self.generating

    def update(self) -> None:
        if self.batch is None:
            return
        assert replay(self.batch, budget=self.pool.budget, cap=self.pool.cap) == []
        self.trained += [group.prompt_id for group in self.batch.groups]
        self.given_up += [d.prompt_id for d in self.batch.all_decisions if not d.trained and not d.requeued]
        self.pool.commit(self.version)
        self.version, self.batch = self.version + 1, None


def play(build: Any, seed: int, *, kill: bool, **settings: Any) -> Run:
    """A run to the end of the data; with `kill`, saved at random points and thrown back to the last save at others."""
    rng = random.Random(seed)
    n_prompts = rng.randint(6, 30)
    run = Run(build.pool(batch_groups=3, seed=seed, **settings), n_prompts)
    saved, kills = run.save(), 0
    for _ in range(5000):
        action = rng.choice(["start", "start", "finish", "finish", "draw", "update", "save", "kill"])
        if action == "start":
            run.start()
        elif action == "finish":
            run.finish(build, rng)
        elif action == "draw":
            if not run.draw():
                run.given_up += [d.prompt_id for d in run.pool.evicted_since if not d.requeued]
                return run
        elif action == "update":
            run.update()
        elif action == "save":
            saved = run.save()
        elif action == "kill" and kill and kills < 4 and rng.random() < 0.5:
            kills += 1
            run = Run(build.pool(batch_groups=3, seed=seed + kills, **settings), n_prompts)
            run.load(saved)
        run.pool.ledger.check()
    raise AssertionError("the run did not come to its end")


POLICIES = st.fixed_dictionaries(
    {
        "rank": st.sampled_from([rank.value for rank in RankBy]),
        "admission": st.sampled_from(["none", "areal", "dora"]),
        "on_reject": st.sampled_from(["drop", "requeue"]),
        "k_max": st.sampled_from([-1, 1, 4]),
        "rate_smoothing": st.sampled_from([0.0, 0.8]),
        "pool_capacity_groups": st.sampled_from([0, 3, 5]),
    }
)


@given(seed=st.integers(0, 100_000), policies=POLICIES, kill=st.booleans())
def test_every_prompt_is_trained_or_given_up_exactly_once_wherever_the_run_is_killed(build, seed, policies, kill):
    run = play(build, seed, kill=kill, **policies)
    fates = Counter(run.trained) + Counter(run.given_up)
    assert fates == Counter(f"p{i}" for i in range(run.n_prompts))
    groups = run.pool.ledger.columns()["groups"]
    assert groups["trained"] == len(run.trained) and groups["in_pool"] == groups["in_flight"] == 0


@given(seed=st.integers(0, 100_000))
def test_with_nothing_thrown_away_a_killed_run_trains_what_an_uninterrupted_one_does(build, seed):
    settings = {"max_reject_rate": 0.0, "k_max": -1}
    run = play(build, seed, kill=True, **settings)
    assert Counter(run.trained + run.given_up) == Counter(f"p{i}" for i in range(run.n_prompts))
    assert run.pool.ledger.columns()["groups"]["rejected"] == 0
