"""Ready groups as the pool holds them, and the record of a decision about one.

Invariant: looking at entries changes nothing; every number of a `Decision` is computed here, once, from the group, its
measured lag and what was decided.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pace.admission import StaleCap
from pace.ranking import GroupLag, Standing
from pace.selection import Candidate
from pace.state import State, check_keys, pack, pack_group, unpack, unpack_group
from pace.types import BudgetPlan, Decision, Outcome, RejectReason, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class Entry:
    """A ready group in the pool, prepared for measuring, and when it arrived: clock (seconds) and running number."""

    group: TrajectoryGroup
    standing: Standing
    arrived_at: float
    arrival: int

    @property
    def key(self) -> tuple[int, str]:
        """Oldest group-ready version first, then id: the order does not depend on timing."""
        return (self.group.ready_version, self.group.group_id)


@dataclass(frozen=True, slots=True)
class Look:
    """An examined entry, and why it may not be trained (None: it may)."""

    entry: Entry
    reason: RejectReason | None

    def candidate(self, score: float | None) -> Candidate:
        """What the selection sees of it."""
        return Candidate(self.entry.group.group_id, self.entry.group.ready_version, score, self.reason is not None)


@dataclass(frozen=True, slots=True)
class OpenStep:
    """The budget of a step whose batch is not complete yet. After the first look nothing more is rejected."""

    version: int
    plan: BudgetPlan
    looked: bool = False


def look(entries: Sequence[Entry], cap: StaleCap, *, step: int, enough: int | None = None) -> list[Look]:
    """Examines entries in order against the hard cap at step `step`, until `enough` may be trained (None: all)."""
    looks: list[Look] = []
    found = 0
    for entry in entries:
        if found == enough:
            break
        profile = entry.standing.profile
        reason = cap.reason(profile.worst_lag(step), profile.n_unknown)
        found += reason is None
        looks.append(Look(entry, reason))
    return looks


def decision_of(
    entry: Entry,
    lag: GroupLag,
    outcome: Outcome,
    *,
    reason: RejectReason | None,
    score: float | None,
    requeued: bool,
    now: float,
) -> Decision:
    """The record of a group that leaves the pool at clock time `now` (seconds)."""
    profile = entry.standing.profile
    return Decision(
        group_id=entry.group.group_id,
        prompt_id=entry.group.prompt_id,
        attempt=entry.group.attempt,
        outcome=outcome,
        reason=reason,
        requeued=requeued,
        ready_version=entry.group.ready_version,
        gen=lag.gen,
        sib=lag.sib,
        pool=lag.pool,
        effective=lag.effective,
        worst_lag=lag.worst_lag,
        score=score,
        prefix_score=profile.prefix_score,
        percentile=lag.percentile,
        weight=lag.weight,
        n_missing_scores=lag.n_missing_scores,
        n_trajectories=len(entry.group.trajectories),
        n_tokens=profile.n_tokens,
        n_unknown=profile.n_unknown,
        length=profile.length,
        reward=profile.reward,
        solve_rate=profile.solve_rate,
        age_s=now - entry.arrived_at,
    )


def pack_entry(entry: Entry, now: float) -> State:
    """An entry as plain data; its arrival as an age, since clocks do not survive a restart."""
    return {"group": pack_group(entry.group), "age_s": now - entry.arrived_at, "arrival": entry.arrival}


def unpack_entry(state: Mapping[str, Any], now: float, prepare: Callable[[TrajectoryGroup], Standing]) -> Entry:
    """Inverse of `pack_entry` at clock time `now`."""
    check_keys(state, ("group", "age_s", "arrival"), "Entry")
    group = unpack_group(state["group"])
    return Entry(group, prepare(group), now - float(state["age_s"]), int(state["arrival"]))


def pack_step(step: OpenStep | None) -> State | None:
    """An open step as plain data."""
    return None if step is None else {**pack(step), "plan": pack(step.plan)}


def unpack_step(state: Mapping[str, Any] | None) -> OpenStep | None:
    """Inverse of `pack_step`."""
    return None if state is None else unpack(OpenStep, state, plan=lambda plan: unpack(BudgetPlan, plan))
