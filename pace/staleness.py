"""Staleness: lag in policy versions, and where it was accumulated.

Invariant (paper, Lemma 1; sibling part by design), for every trajectory consumed at step j:

    K = K_gen + K_sib + K_pool      K      = j - vbar            vbar: mean version of its generated tokens
                                    K_gen  = c - vbar            decode, until the trajectory completed
                                    K_sib  = c_group - c         until the group was ready: slowest sibling, reward
                                    K_pool = j - c_group         in the pool

The paper's waiting staleness is K_sib + K_pool when counted from the trajectory, K_pool when counted from the group.
Tokens of unknown version take no part in vbar and lower the coverage; a trajectory without any known version has
K_gen = K = None, never 0.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from pace.types import Trajectory, TrajectoryGroup


class WaitFrom(str, Enum):
    """Where waiting begins: at the group's readiness (design) or at each trajectory's completion (the paper)."""

    GROUP = "group"
    TRAJECTORY = "trajectory"


@dataclass(frozen=True, slots=True)
class Staleness:
    """The three parts of one trajectory's lag, in versions."""

    gen: float | None
    sib: int
    pool: int

    @property
    def total(self) -> float | None:
        """K, or None when no token's version is known."""
        return None if self.gen is None else self.gen + self.sib + self.pool

    def waiting(self, wait_from: WaitFrom) -> int:
        """K_wait under the given reading."""
        return self.pool if wait_from is WaitFrom.GROUP else self.sib + self.pool

    def generation(self, wait_from: WaitFrom) -> float | None:
        """The rest: K - K_wait under the given reading."""
        if self.gen is None:
            return None
        return self.gen + self.sib if wait_from is WaitFrom.GROUP else self.gen


def token_lags(trajectory: Trajectory, step: int) -> list[int | None]:
    """k_t = j - v_t of every generated token, in order; None where the version is not known."""
    lags: list[int | None] = []
    for span in trajectory.spans:
        lags += [None if span.version is None else step - span.version] * span.n_tokens
    return lags


def generation_lag(trajectory: Trajectory) -> float | None:
    """K_gen = c - vbar >= 0; one division of integers, so whole numbers come out exact."""
    known = trajectory.n_known
    return (trajectory.completed_version * known - trajectory.version_sum) / known if known else None


def trajectory_lag(trajectory: Trajectory, step: int) -> float | None:
    """K = j - vbar (paper, Eq. 1); one division, so that `K > cap` is exact at K == cap."""
    known = trajectory.n_known
    return (step * known - trajectory.version_sum) / known if known else None


def trajectory_staleness(trajectory: Trajectory, *, ready_version: int, step: int) -> Staleness:
    """The parts of K for a trajectory of a group ready at `ready_version` and consumed at step `step`.

    Raises ValueError when the order c <= ready_version <= step is broken: a part would be negative.
    """
    if not trajectory.completed_version <= ready_version <= step:
        raise ValueError(
            f"trajectory {trajectory.trajectory_id}: completed {trajectory.completed_version}, ready {ready_version}, "
            f"consumed {step} are out of order"
        )
    return Staleness(generation_lag(trajectory), ready_version - trajectory.completed_version, step - ready_version)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProfile:
    """What is fixed about a group once it is ready; of its lag only K_pool grows afterwards.

    `gens`, `sibs`, `scores` are aligned with the trajectories: K_gen, K_sib, F. `gen` is the mean over siblings with
    known versions (None without any), `sib` the mean over all. `worst_sum / worst_known` is the oldest sibling's vbar;
    a sibling without known versions stands in with its c, since v_t <= c makes j - c a lower bound of its lag.
    `length`, `reward`, `solve_rate`, `prefix_score` are means over the siblings that have one.
    """

    ready_version: int
    gens: tuple[float | None, ...]
    sibs: tuple[int, ...]
    scores: tuple[float | None, ...]
    gen: float | None
    sib: float
    worst_sum: int
    worst_known: int
    n_tokens: int
    n_unknown: int
    length: float
    reward: float | None
    solve_rate: float | None
    prefix_score: float | None

    def worst_lag(self, step: int) -> float:
        """The largest K among the siblings at step `step` (at least that much, where versions are not known)."""
        return (step * self.worst_known - self.worst_sum) / self.worst_known


def profile_of(group: TrajectoryGroup) -> GroupProfile:
    """Computes the fixed part of a group's staleness."""
    siblings = group.trajectories
    gens = tuple(generation_lag(t) for t in siblings)
    sibs = tuple(group.ready_version - t.completed_version for t in siblings)
    versions = [(t.version_sum, t.n_known) if t.n_known else (t.completed_version, 1) for t in siblings]
    worst_sum, worst_known = min(versions, key=lambda pair: pair[0] / pair[1])
    return GroupProfile(
        ready_version=group.ready_version,
        gens=gens,
        sibs=sibs,
        scores=tuple(t.prefix_score for t in siblings),
        gen=mean(gen for gen in gens if gen is not None),
        sib=sum(sibs) / len(sibs),
        worst_sum=worst_sum,
        worst_known=worst_known,
        n_tokens=group.n_tokens,
        n_unknown=sum(t.n_unknown for t in siblings),
        length=sum(t.response_length for t in siblings) / len(siblings),
        reward=mean(t.reward for t in siblings if t.reward is not None),
        solve_rate=mean(t.solved for t in siblings if t.solved is not None),
        prefix_score=mean(t.prefix_score for t in siblings if t.prefix_score is not None),
    )


def group_lag(group: TrajectoryGroup, step: int) -> float | None:
    """Mean K over the siblings with known versions; None when there is none."""
    return mean(lag for t in group.trajectories if (lag := trajectory_lag(t, step)) is not None)


def coverage(trajectories: Sequence[Trajectory]) -> float:
    """Share of generated tokens whose version is known; 1 for no tokens at all."""
    total = sum(t.n_tokens for t in trajectories)
    return sum(t.n_known for t in trajectories) / total if total else 1.0


def mean(values: Iterable[float]) -> float | None:
    """Mean that does not depend on the order of the values; None for no values."""
    numbers = list(values)
    return math.fsum(numbers) / len(numbers) if numbers else None
