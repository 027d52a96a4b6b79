"""The pool on disk: whole runs killed at every kind of point, and thrown back to checkpoints."""

import copy
import os
import random
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pace import durable
from pace.config import PaceConfig
from pace.durable import DurablePool
from pace.state import StateError
from pace.types import RejectReason


def make(folder: Path, clock: Any, *, fresh: bool = False, **arguments: Any) -> DurablePool:
    defaults = {"batch_groups": 3, "n_prompts": 9, "n_episodes": 2, "seed": 1, "snapshot_every": 11}
    config = arguments.pop("config", PaceConfig())
    return DurablePool(config, folder=folder, fresh=fresh, clock=clock, **{**defaults, **arguments})


class Killed(BaseException):
    """Stands for the end of the process."""


@dataclass
class Run:
    """A run with a fake rollout side and trainer. `records` are the fates they were told, `log` the decisions."""

    build: Any
    clock: Any
    folder: Path
    settings: dict[str, Any]
    kills: random.Random | None = None
    version: int = 0
    n_made: int = 0
    batch: Any = None
    flying: dict[str, Any] = field(default_factory=dict)
    payloads: dict[str, bytes] = field(default_factory=dict)
    records: list[tuple[str, str, str, bool]] = field(default_factory=list)  # group, prompt, fate, put back
    log: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool = make(self.folder, self.clock, fresh=True, **self.settings)

    def call(self, name: str, *args: Any, **fields: Any) -> Any:
        """Makes a call; with `kills`, the pool may die before, in the middle or after it, and it is repeated."""
        when = self.kills.choice(["never"] * 6 + ["before", "unwritten", "after"]) if self.kills else "never"
        if when == "before" or (when != "never" and name == "add_scores"):  # the one call that may not be repeated
            self._restart()
        elif when == "unwritten":
            self.pool._journal.append = self._die  # type: ignore[method-assign]
            try:
                return getattr(self.pool, name)(*args, **fields)  # it changed nothing, so it wasn't journaled
            except Killed:
                pass
            finally:
                self._restart()
        elif when == "after":
            first = getattr(self.pool, name)(*args, **fields)
            self._restart()
            if name == "lease":
                assert set(self.pool.core.in_flight) == {*self.flying, *(lease.group_id for lease in first)}
                return tuple(self.pool.core.in_flight[lease.group_id] for lease in first)
            again = getattr(self.pool, name)(*args, **fields)
            assert again == first if name == "draw" else not again
            return first
        return getattr(self.pool, name)(*args, **fields)

    def _restart(self) -> None:
        self.pool = make(self.folder, self.clock, **self.settings)
        for group_id in self.pool.core.held:
            assert self.pool.payload(group_id) == self.payloads[group_id]

    def _die(self, event: Any) -> None:
        raise Killed

    def step(self, rng: random.Random) -> None:
        self.clock.now += rng.randint(0, 2)
        action = rng.choice(["lease", "lease", "finish", "finish", "finish", "draw", "train", "scores"])
        if action == "lease":
            self.flying |= {lease.group_id: lease for lease in self._leases(rng)}
        elif action == "finish" and self.flying:
            self._finish(rng, self.flying.pop(rng.choice(sorted(self.flying))))
        elif action == "draw" and self.batch is None:
            self._draw()
        elif action == "train" and self.batch is not None:
            assert self.call("commit", self.version)
            self.batch, self.version = None, self.version + 1
            assert self.call("set_version", self.version)
        elif action == "scores":
            self.call("add_scores", [rng.random() for _ in range(rng.randint(1, 9))])
        self.pool.core.pool.ledger.check()

    def _leases(self, rng: random.Random) -> Any:
        return self.call("lease", rng.randint(1, 4), choice=rng.choice([1, 1, 3]), at_least=rng.choice([1, 2]))

    def _finish(self, rng: random.Random, lease: Any) -> None:
        if rng.random() < 0.2:
            fates = {RejectReason.FILTER: "filtered", RejectReason.FAILURE: "failed", RejectReason.SKIP: "skipped"}
            reason, again = rng.choice(list(fates)), rng.random() < 0.5
            n_tokens = rng.randint(0, 9)
            assert self.call("close", lease.group_id, reason=reason, n_tokens=n_tokens, put_back=again)
            fate = fates[reason]
            self.records.append((lease.group_id, lease.prompt_id, fate, again))
            return
        group = self.build.random_group(
            rng, lease.group_id, version=self.version, prompt_id=lease.prompt_id, attempt=lease.attempt
        )
        self.n_made += 1
        self.payloads[lease.group_id] = f"{lease.group_id} {self.n_made}".encode()
        assert self.call("put", group, self.payloads[lease.group_id])

    def _draw(self) -> None:
        self.batch = self.call("draw", self.version)
        if self.batch is not None:
            for group in self.batch.groups:
                assert self.pool.payload(group.group_id) == self.payloads[group.group_id]
            self._note(self.batch.all_decisions)

    def _note(self, decisions: Any) -> None:
        self.log += decisions
        for d in decisions:
            fate = "trained" if d.trained else d.outcome.value
            self.records.append((d.group_id, d.prompt_id, fate, d.requeued))

    def play(self, seed: int, *, save_at: random.Random | None = None) -> "Run":
        """To the end of the data; with `save_at`, saved at random steps and thrown back there at others."""
        rng, saved, n_back = random.Random(seed), None, 0
        for _ in range(4000):
            if self.pool.core.finished:
                self._note(self.pool.core.pool.evicted_since)
                return self
            self.step(rng)
            if save_at and save_at.random() < 0.1:
                saved = self.save()
            if save_at and saved and n_back < 3 and save_at.random() < 0.05:
                n_back += 1
                self.load(saved)
        raise AssertionError("the run did not come to its end")

    def save(self) -> dict[str, Any]:
        self.pool.save(self.folder.parent / "checkpoint")
        return {name: copy.copy(getattr(self, name)) for name in ("version", "records", "log", "payloads", "batch")}

    def load(self, saved: dict[str, Any]) -> None:
        self.pool = make(self.folder, self.clock, fresh=True, **self.settings)
        self.pool.load(self.folder.parent / "checkpoint")
        for name, value in saved.items():
            setattr(self, name, copy.copy(value))
        self.flying = {}  # the rollouts in flight are gone; their leases come again
        if self.batch is not None:
            assert self.pool.draw(self.version) == self.batch

    def check(self) -> None:
        """Every prompt of every episode has come to one end, each attempt once; the ledger and the disk agree."""
        assert max(Counter(group_id for group_id, *_ in self.records).values()) == 1
        ends = Counter(prompt for _, prompt, _, again in self.records if not again)
        assert ends == Counter(f"{episode}:{i}" for episode in range(2) for i in range(9))
        attempts = Counter(prompt for _, prompt, *_ in self.records)
        numbered = {f"{prompt}.{attempt}" for prompt, n in attempts.items() for attempt in range(n)}
        assert {group_id for group_id, *_ in self.records} == numbered
        groups = self.pool.core.pool.ledger.columns()["groups"]
        fates = Counter(fate for _, _, fate, _ in self.records)
        assert {name: n for name, n in groups.items() if n and name != "generated"} == fates
        assert not list((self.folder / "payloads").iterdir())
        assert (self.folder / "journal.jsonl").read_bytes().count(b"\n") < 11


POLICIES = st.fixed_dictionaries(
    {
        "rank": st.sampled_from(["effective", "random", "oldest"]),
        "admission": st.sampled_from(["none", "areal", "dora"]),
        "on_reject": st.sampled_from(["drop", "requeue"]),
        "k_max": st.sampled_from([-1, 2, 4]),
        "rate_smoothing": st.sampled_from([0.0, 0.8]),
        "pool_capacity_groups": st.sampled_from([0, 3, 6]),
        "pfs_window_min": st.just(4),
    }
)


def run_in(folder: str, build: Any, policies: dict[str, Any], **fields: Any) -> Run:
    return Run(build, build.clock(), Path(folder) / "pool", {"config": PaceConfig(**policies)}, **fields)


@settings(max_examples=25)
@given(seed=st.integers(0, 100_000), policies=POLICIES)
def test_a_run_killed_anywhere_decides_what_the_run_that_was_never_killed_does(build, seed, policies):
    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        whole = run_in(a, build, policies).play(seed)
        killed = run_in(b, build, policies, kills=random.Random(seed)).play(seed)
        whole.check()
        killed.check()
        assert killed.log == whole.log and killed.records == whole.records
        assert killed.pool.report() == whole.pool.report()


@settings(max_examples=25)
@given(seed=st.integers(0, 100_000), policies=POLICIES)
def test_a_run_thrown_back_to_its_checkpoints_trains_every_prompt_once(build, seed, policies):
    with tempfile.TemporaryDirectory() as folder, patch("pace.durable.sync_folder"):  # slow, and not about kills
        run_in(folder, build, policies).play(seed, save_at=random.Random(seed)).check()


@pytest.fixture
def started(tmp_path, build):
    """A pool with two ready groups and two in flight, and its clock."""
    clock = build.clock()
    pool = make(tmp_path / "pool", clock, fresh=True)
    leases = pool.lease(4)
    for lease in leases[:2]:
        group = build.group(lease.group_id, siblings=[(0,)], prompt_id=lease.prompt_id)
        assert pool.put(group, lease.group_id.encode())
    return pool, clock


def test_a_fresh_pool_forgets_what_was_in_its_folder(tmp_path, started):
    pool = make(tmp_path / "pool", started[1], fresh=True)
    assert not pool.core.prompts.outstanding and not list((tmp_path / "pool" / "payloads").iterdir())


def test_a_restored_pool_knows_its_times(tmp_path, started):
    pool, clock = started
    clock.now += 40
    pool.set_version(1)
    clock.now = 0.0  # a clock that was set back
    twin = make(tmp_path / "pool", clock)
    assert twin.report() == pool.report() and twin.report()["pace/pool/oldest_age_s"] == 40.0


def test_payloads_that_no_call_knows_of_go_at_a_restart(tmp_path, started):
    """Written by a `put` that was killed before it was journaled."""
    (tmp_path / "pool" / "payloads" / "orphan.bin").write_bytes(b"x")
    pool = make(tmp_path / "pool", started[1])
    assert {path.name for path in (tmp_path / "pool" / "payloads").iterdir()} == {
        f"{group_id.replace(':', '%3A')}.bin" for group_id in pool.core.held
    }


def test_calls_that_change_nothing_leave_no_trace(tmp_path, started, build):
    pool, _ = started
    journal = (tmp_path / "pool" / "journal.jsonl").read_bytes()
    assert not pool.put(build.group("x"), b"") and not pool.set_version(0)
    assert not pool.close("x", reason=RejectReason.FILTER, n_tokens=0, put_back=False)
    with pytest.raises(ValueError):
        pool.commit(0)
    with pytest.raises(ValueError):
        pool.add_scores([-1.0])
    assert (tmp_path / "pool" / "journal.jsonl").read_bytes() == journal


def test_a_checkpoint_replaces_the_one_of_its_name(tmp_path, started, build):
    pool, clock = started
    pool.save(tmp_path / "c" / "pool")
    pool.set_version(3)
    pool.save(tmp_path / "c" / "pool")
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["pool"]
    twin = make(tmp_path / "other", clock, fresh=True)
    twin.load(tmp_path / "c" / "pool")
    assert twin.core.version == 3 and {twin.payload(g) for g in twin.core.held} == {g.encode() for g in pool.core.held}
    again = make(tmp_path / "other", clock)
    assert again.core.state_dict() == twin.core.state_dict() and again.lease(2) == tuple(pool.core.in_flight.values())


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_save_that_was_cut_off_leaves_the_checkpoint_before(tmp_path, started, monkeypatch, at):
    """Before the first rename, before the second (where the name is free for a moment), and after it."""
    pool, clock = started
    pool.save(tmp_path / "checkpoint")
    pool.set_version(3)
    killed = iter([*[False] * at, True])
    whole = {tmp_path, tmp_path / "checkpoint", tmp_path / "checkpoint.partial"}  # not the files in them

    def step(call):
        def maybe(*args):
            if args[0] in whole and next(killed, False):
                raise Killed
            return call(*args)

        return maybe

    monkeypatch.setattr("pace.durable.sync_folder", step(durable.sync_folder))
    monkeypatch.setattr("pace.durable.os.replace", step(os.replace))
    with pytest.raises(Killed):
        pool.save(tmp_path / "checkpoint")
    monkeypatch.undo()
    twin = make(tmp_path / "other", clock, fresh=True)
    twin.load(tmp_path / "checkpoint")
    assert twin.core.version == (3 if at == 3 else 0)
    pool.save(tmp_path / "checkpoint")
    twin.load(tmp_path / "checkpoint")
    assert twin.core.version == 3
    assert not list(tmp_path.glob("checkpoint.*"))


@pytest.mark.parametrize(
    ("change", "named"), [({"n_prompts": 8}, "n_prompts was 9, is 8"), ({"batch_groups": 2}, "batches of 3 groups")]
)
def test_a_checkpoint_of_another_run_is_refused_and_changes_nothing(tmp_path, started, change, named):
    started[0].save(tmp_path / "checkpoint")
    twin = make(tmp_path / "other", started[1], fresh=True, **change)
    before = twin.core.state_dict()
    with pytest.raises(StateError, match=named):
        twin.load(tmp_path / "checkpoint")
    assert twin.core.state_dict() == before == make(tmp_path / "other", started[1], **change).core.state_dict()


def test_a_long_run_leaves_nothing_behind(tmp_path, build):
    """What memory and disk hold depends on what is open, not on how much was done."""
    clock = build.clock()
    pool = make(tmp_path / "pool", clock, fresh=True, batch_groups=10, n_prompts=100, n_episodes=9, snapshot_every=100)
    sizes = []
    for version in range(60):
        for lease in pool.lease(10):
            group = build.group(lease.group_id, siblings=[(version,)], prompt_id=lease.prompt_id)
            pool.put(group, b"x")
        pool.draw(version)
        pool.commit(version)
        pool.set_version(version + 1)
        sizes.append(len(str(pool.core.state_dict())))
        assert not list((tmp_path / "pool" / "payloads").iterdir())
    assert max(sizes[50:]) < max(sizes[:10]) * 1.1
    assert (tmp_path / "pool" / "journal.jsonl").read_bytes().count(b"\n") < 100
