"""Admission: may a rollout start; and the hard cap: may a finished group still be trained.

Invariant: these are pure functions of counts and versions. Admission throttles starts and throws nothing away; the cap
throws away and throttles nothing. No admission policy can leave the trainer waiting for ever: with a batch B, at least
B groups may be open (in flight or ready) whenever the trainer waits.

Sources: AReaL's bound floor((N - 1) / B) <= i + eta on the N-th started rollout at trainer version i; DORA's window of
policy versions; Stale-k as in the paper's section 2.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from pace.state import Stateful, Stateless
from pace.types import RejectReason

UNLIMITED = 1 << 62


class AdmissionKind(str, Enum):
    """The policies by name."""

    NONE = "none"
    AREAL = "areal"
    DORA = "dora"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionView:
    """What an admission policy sees; all counts in groups.

    `version` is the trainer's, `next_step` the step the next batch will be for: equal while the trainer waits, one
    more while it trains. `oldest_open` is the smallest trainer version at which an open (in flight or ready) group
    started.
    """

    version: int
    next_step: int
    batch_groups: int
    in_pool: int
    in_flight: int
    oldest_open: int | None

    @property
    def n_open(self) -> int:
        """Groups started and neither trained nor given up."""
        return self.in_pool + self.in_flight


class Admission(Stateful, Protocol):
    """How many more groups may start now."""

    def slots(self, view: AdmissionView) -> int:
        """Groups that may start, >= 0."""


class OpenAdmission(Stateless, Admission):
    """No bound: staleness is left to the pool."""

    def slots(self, view: AdmissionView) -> int:
        """Any number."""
        return UNLIMITED


class ArealAdmission(Stateless, Admission):
    """AReaL's bound: what is open or was handed to the trainer never exceeds (i + eta + 1) B.

    Groups that were thrown away do not count, otherwise rejections would use the bound up and stop the run. eta = 0 is
    synchronous training. Raises ValueError for a negative `eta`.
    """

    def __init__(self, eta: int) -> None:
        if eta < 0:
            raise ValueError(f"eta counts versions ahead, from 0, got {eta}")
        self.eta = eta

    def slots(self, view: AdmissionView) -> int:
        """What is left of the bound."""
        return max(0, (view.version + self.eta + 1 - view.next_step) * view.batch_groups - view.n_open)


class DoraAdmission(Stateless, Admission):
    """DORA's window: new work may start only within `window` versions of the oldest open group.

    When the window is shut, only what the next batch lacks may start (design): DORA itself makes the trainer wait for
    the oldest version instead, which would never end where that group is ready but its batch is not full.
    Raises ValueError for a window below 1.
    """

    def __init__(self, window: int) -> None:
        if window < 1:
            raise ValueError(f"the window holds at least the current version, got {window}")
        self.window = window

    def slots(self, view: AdmissionView) -> int:
        """Any number while the window is open, then the rest of one batch."""
        if view.oldest_open is None or view.version - view.oldest_open < self.window:
            return UNLIMITED
        return max(0, view.batch_groups - view.n_open)


def make_admission(kind: AdmissionKind, *, eta: int, window: int) -> Admission:
    """The policy of that name."""
    if kind is AdmissionKind.AREAL:
        return ArealAdmission(eta)
    return DoraAdmission(window) if kind is AdmissionKind.DORA else OpenAdmission()


@dataclass(frozen=True, slots=True)
class StaleCap:
    """The hard cap Stale-k: no trajectory with K > `k_max` is trained; K == k_max is. None: no cap.

    Lags are those of the step the batch is for, so the bound holds at training and not just when the batch is drawn.
    A group goes as soon as one sibling is above: groups are never split. Tokens of unknown version cannot be shown to
    be fresh: with `evict_unknown` their group goes too, without it they are only ranked as the stalest.
    """

    k_max: int | None
    evict_unknown: bool = False

    def reason(self, worst_lag: float, n_unknown: int) -> RejectReason | None:
        """Why the group may not be trained; None if it may."""
        if self.k_max is not None and worst_lag > self.k_max:
            return RejectReason.CAP
        return RejectReason.UNKNOWN if self.evict_unknown and n_unknown else None
