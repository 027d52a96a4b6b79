"""Strict, plain-data state of everything that is saved.

Invariant: a state is made of dicts, lists, strings, numbers, booleans and None, survives JSON, and loads only if it
has exactly the keys that were saved: a missing or unknown key raises `StateError` instead of leaving a default behind.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, Protocol, TypeVar

from pace.types import BudgetPlan, Decision, Outcome, PoolDraw, RejectReason, Trajectory, TrajectoryGroup, VersionSpan

Record = TypeVar("Record")
State = dict[str, Any]


class StateError(ValueError):
    """A saved state that does not belong to the object it is loaded into."""


def check_keys(state: Mapping[str, Any], expected: Iterable[str], owner: str) -> None:
    """Raises StateError unless `state` has exactly the `expected` keys."""
    if not isinstance(state, Mapping):
        raise StateError(f"state of {owner} is a {type(state).__name__}, not a mapping")
    wanted = set(expected)
    missing, unknown = sorted(wanted - state.keys()), sorted(state.keys() - wanted)
    if missing or unknown:
        raise StateError(f"state of {owner}: missing {missing}, unknown {unknown}")


def pack(record: Any) -> State:
    """The constructor arguments of a flat dataclass; enum members as their values."""
    state = {f.name: getattr(record, f.name) for f in fields(record) if f.init}
    return {name: getattr(value, "value", value) for name, value in state.items()}


def unpack(cls: type[Record], state: Mapping[str, Any], **convert: Callable[[Any], Any]) -> Record:
    """Inverse of `pack`, strict; `convert` maps a field to what turns its plain value into the real one."""
    check_keys(state, (f.name for f in fields(cls) if f.init), cls.__name__)  # type: ignore[arg-type]
    try:
        return cls(**{name: convert[name](value) if name in convert else value for name, value in state.items()})
    except (TypeError, ValueError) as error:
        raise StateError(f"state of {cls.__name__}: {error}") from error


def pack_group(group: TrajectoryGroup) -> State:
    """A trajectory group as plain data; spans as [version, n_tokens] pairs."""
    return {**pack(group), "trajectories": [_pack_trajectory(t) for t in group.trajectories]}


def unpack_group(state: Mapping[str, Any]) -> TrajectoryGroup:
    """Inverse of `pack_group`."""
    return unpack(TrajectoryGroup, state, trajectories=lambda ts: tuple(map(_unpack_trajectory, ts)))


def pack_draw(draw: PoolDraw, *, with_groups: bool = True) -> State:
    """A draw as plain data: the line of the decision log when `with_groups` is off (ids are in the decisions)."""
    return {
        **pack(draw),
        "groups": [pack_group(group) for group in draw.groups] if with_groups else [],
        "plan": pack(draw.plan),
        "decisions": [pack(decision) for decision in draw.decisions],
        "evicted_before": [pack(decision) for decision in draw.evicted_before],
    }


def unpack_draw(state: Mapping[str, Any]) -> PoolDraw:
    """Inverse of `pack_draw`; a line of the log gives a draw without its groups."""
    return unpack(
        PoolDraw,
        state,
        groups=lambda groups: tuple(map(unpack_group, groups)),
        plan=lambda plan: unpack(BudgetPlan, plan),
        decisions=unpack_decisions,
        evicted_before=unpack_decisions,
    )


def unpack_decisions(states: Iterable[Mapping[str, Any]]) -> tuple[Decision, ...]:
    """Inverse of `pack` on each decision."""
    return tuple(unpack(Decision, state, outcome=Outcome, reason=_reason) for state in states)


class Stateful(Protocol):
    """What every policy offers, so that the whole can be saved, restored and reported."""

    def state_dict(self) -> State:
        """What it remembers, as plain data."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Strict inverse of `state_dict`; raises StateError on foreign state."""

    def metrics(self) -> dict[str, float]:
        """Its own numbers under short names; `pace.metrics` gives them their keys."""


class Stateless:
    """For policies that remember nothing: an empty state, loaded as strictly as any other."""

    def state_dict(self) -> State:
        """Nothing to save."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises StateError unless `state` is empty."""
        check_keys(state, (), type(self).__name__)

    def metrics(self) -> dict[str, float]:
        """Nothing to report."""
        return {}


def _reason(value: str | None) -> RejectReason | None:
    return None if value is None else RejectReason(value)


def _pack_trajectory(trajectory: Trajectory) -> State:
    return {**pack(trajectory), "spans": [[span.version, span.n_tokens] for span in trajectory.spans]}


def _unpack_trajectory(state: Mapping[str, Any]) -> Trajectory:
    return unpack(Trajectory, state, spans=lambda spans: tuple(VersionSpan(*span) for span in spans))
