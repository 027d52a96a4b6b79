"""The records that flow through PACE: trajectory, trajectory group, decision, draw.

Invariant: records are frozen and carry no tokens. Token arrays stay in the object store; the pool decides on these
small numbers alone, so that a log of them replays to the same choices. A token whose policy version is not known is
counted as unknown (`VersionSpan.version is None`), never as fresh.

In: what the rollout side knows when a group is ready. Out: what left the pool, with the numbers and the reason.
Source: versions v_t and completion version c as in the paper's section 2 ("Trajectory Lifecycle"); the rest is design.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum


class Outcome(str, Enum):
    """How a group left the pool."""

    KEPT = "kept"  # a candidate that survived the ranking; trained
    REFILLED = "refilled"  # taken behind the candidate window, unranked; trained
    REJECTED = "rejected"  # the pool's budgeted choice
    EVICTED = "evicted"  # the hard cap


class RejectReason(str, Enum):
    """Why a group was not trained."""

    BUDGET = "budget"  # ranked out under the rejection budget
    CAP = "cap"  # a trajectory's lag is above the hard cap
    UNKNOWN = "unknown"  # a trajectory has tokens of unknown version, and the run evicts those
    FILTER = "filter"  # group-level filter before the pool (e.g. all rewards equal)
    FAILURE = "failure"  # a request failed beyond its retries
    SKIP = "skip"  # the allocator gave its prompt no rollout


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """A run of consecutive generated tokens that share one policy version (`None`: not known)."""

    version: int | None
    n_tokens: int

    def __post_init__(self) -> None:
        if self.n_tokens < 1:
            raise ValueError(f"a version span holds at least one token, got {self.n_tokens}")
        if self.version is not None and self.version < 0:
            raise ValueError(f"policy versions count from 0, got {self.version}")


def spans_of(versions: Iterable[int | None]) -> tuple[VersionSpan, ...]:
    """Run-length form of per-token policy versions, in token order."""
    spans: list[VersionSpan] = []
    current: int | None = None
    length = 0
    for version in versions:
        if length and version != current:
            spans.append(VersionSpan(current, length))
            length = 0
        current, length = version, length + 1
    if length:
        spans.append(VersionSpan(current, length))
    return tuple(spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One finished rollout of a prompt, without its tokens.

    `spans` covers the generated tokens only, in order: prompt, tool and observation tokens have no policy version.
    `completed_version` is c: the trainer's version when generation ended (not the engine's).
    `length` is the response in tokens, observations included (default: the generated tokens).
    `prefix_score` is F, in nats per token, at the last weight sync that interrupted it; `None` when not measured.
    `n_shared_tokens` counts generated tokens that a sibling's record already holds (a shared prefix in a tree).
    Raises ValueError for impossible numbers: no tokens, a version above c, a NaN reward, a negative score.
    """

    trajectory_id: str
    group_id: str
    prompt_id: str
    spans: tuple[VersionSpan, ...]
    completed_version: int
    reward: float | None = None
    solved: bool | None = None
    length: int | None = None
    prefix_score: float | None = None
    n_shared_tokens: int = 0
    n_tokens: int = field(init=False, compare=False)
    n_unknown: int = field(init=False, compare=False)
    version_sum: int = field(init=False, compare=False)  # over tokens of known version

    def __post_init__(self) -> None:
        known = [span for span in self.spans if span.version is not None]
        n_tokens = sum(span.n_tokens for span in self.spans)
        object.__setattr__(self, "n_tokens", n_tokens)
        object.__setattr__(self, "n_unknown", n_tokens - sum(span.n_tokens for span in known))
        object.__setattr__(self, "version_sum", sum((span.version or 0) * span.n_tokens for span in known))
        newest = max((span.version or 0 for span in known), default=0)
        if not n_tokens:
            raise ValueError(f"trajectory {self.trajectory_id} has no generated token")
        if newest > self.completed_version:
            raise ValueError(
                f"trajectory {self.trajectory_id} completed at version {self.completed_version}, before {newest}"
            )
        if self.reward is not None and not math.isfinite(self.reward):
            raise ValueError(f"trajectory {self.trajectory_id} has reward {self.reward}")
        if self.prefix_score is not None and not 0.0 <= self.prefix_score < math.inf:
            raise ValueError(f"trajectory {self.trajectory_id} has prefix score {self.prefix_score}")
        if not 0 <= self.n_shared_tokens <= n_tokens:
            raise ValueError(f"trajectory {self.trajectory_id} shares {self.n_shared_tokens} of {n_tokens} tokens")

    @property
    def n_known(self) -> int:
        """Generated tokens of known version."""
        return self.n_tokens - self.n_unknown

    @property
    def response_length(self) -> int:
        """Tokens of the response, observations included."""
        return self.n_tokens if self.length is None else self.length


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryGroup:
    """All rollouts of one prompt, ready together; never split.

    `ready_version` is the trainer's version when the last sibling was complete and scored. `attempt` counts how often
    the prompt was put back after a rejection or an eviction.
    Raises ValueError when siblings disagree about ids, repeat one, or completed after `ready_version`.
    """

    group_id: str
    prompt_id: str
    trajectories: tuple[Trajectory, ...]
    ready_version: int
    attempt: int = 0

    def __post_init__(self) -> None:
        if not self.trajectories:
            raise ValueError(f"group {self.group_id} is empty")
        if len({t.trajectory_id for t in self.trajectories}) < len(self.trajectories):
            raise ValueError(f"group {self.group_id} holds a trajectory twice")
        for t in self.trajectories:
            if (t.group_id, t.prompt_id) != (self.group_id, self.prompt_id):
                raise ValueError(f"trajectory {t.trajectory_id} does not belong to group {self.group_id}")
            if t.completed_version > self.ready_version:
                raise ValueError(
                    f"group {self.group_id} is ready at version {self.ready_version}, before {t.trajectory_id} is"
                )

    @property
    def n_tokens(self) -> int:
        """Tokens the engines generated for this group, each counted once."""
        return sum(t.n_tokens - t.n_shared_tokens for t in self.trajectories)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPlan:
    """Rejection budget of one step with everything it was computed from. Rates in [0, 1), the rest in groups."""

    occupancy: int  # Q_j
    target: float  # Q*
    excess: float  # e_j
    scarce: bool
    rate_before: float  # r_{j-1}
    rate: float  # r_j as applied (0 when scarce)
    rate_after: float  # state for the next step
    carry_before: float
    carry_after: float
    candidates: int  # M_j
    rejections: int  # R_j


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One group that left the pool: the numbers it was judged by, what happened and why.

    Lags are in versions, means over the siblings with known versions, `None` when none is known. `worst_lag` is the
    largest sibling lag, or what is known to be exceeded (the hard cap's number). `score` is what the ranking ordered
    by; a missing one ranks stalest. `percentile` and `weight` are u and w, means over the siblings with generation
    lag. `age_s` is seconds in the pool.
    """

    group_id: str
    prompt_id: str
    attempt: int
    outcome: Outcome
    reason: RejectReason | None
    requeued: bool
    ready_version: int
    gen: float | None
    sib: float
    pool: float
    effective: float | None
    worst_lag: float
    score: float | None
    prefix_score: float | None
    percentile: float | None
    weight: float | None
    n_missing_scores: int
    n_trajectories: int
    n_tokens: int
    n_unknown: int
    length: float
    reward: float | None
    solve_rate: float | None
    age_s: float

    @property
    def total(self) -> float | None:
        """K = K_gen + K_sib + K_pool, in versions (paper, Eq. 1 and Lemma 1)."""
        return None if self.gen is None else self.gen + self.sib + self.pool

    @property
    def trained(self) -> bool:
        """Whether the group is in the batch."""
        return self.outcome in (Outcome.KEPT, Outcome.REFILLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDraw:
    """One training batch and every decision since the batch before.

    `version` is j: the batch is for the update from theta_j to theta_{j+1}. `decisions` lists the groups examined when
    the batch was formed, in that order: first `n_window` candidates, then what was looked at behind them.
    `evicted_before` lists evictions since the previous batch, while waiting. `batch_groups` is B; `groups` is shorter
    only for the last batch of the data.
    """

    version: int
    batch_groups: int
    groups: tuple[TrajectoryGroup, ...]
    plan: BudgetPlan
    n_window: int
    decisions: tuple[Decision, ...]
    evicted_before: tuple[Decision, ...] = ()

    @property
    def all_decisions(self) -> tuple[Decision, ...]:
        """Every group that left the pool since the batch before."""
        return self.evicted_before + self.decisions


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue:
    """A prompt to roll out again, as attempt number `attempt`."""

    prompt_id: str
    group_id: str  # the group that was given up
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGauges:
    """The pool as it stands: groups, versions, seconds."""

    groups: int
    capacity: int
    target: float
    in_flight: int
    pending_draws: int
    oldest_lag: int  # K_pool of the oldest ready group
    oldest_age_s: float
    accepting: bool
