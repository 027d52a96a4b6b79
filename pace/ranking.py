"""Which groups to reject: the score that candidates are ordered by.

Invariant: the order is total and depends on recorded numbers only. Groups are ordered by score, largest first; a group
whose score is not known comes before all others; ties go to the older group-ready version, then to the smaller id.

    S(tau; j) = K_wait(tau; j) + w(tau) (K - K_wait),   K_wait <= S <= K        (paper: effective staleness)
    w = u ** gamma, u the percentile of the prefix score F (pace.drift)         (digest; formulas by design)

Whose score stands in when a trajectory has none (design): one interrupted without a score counts in full (u = 1) and
is counted as missing; one never interrupted, which only waited for its siblings, takes the mean u of the scored
siblings, and u = 1 without any.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from pace.drift import ScoreWindow, sharpen
from pace.staleness import GroupProfile, WaitFrom, mean, profile_of
from pace.state import State, StateError, Stateful, Stateless, check_keys
from pace.types import TrajectoryGroup


class RankBy(str, Enum):
    """What the most rejectable group has most of."""

    EFFECTIVE = "effective"  # S: waiting in full, generation weighted by relative drift
    RAW = "raw"  # K
    GENERATION = "generation"  # K - K_wait
    WAITING = "waiting"  # K_wait
    RANDOM = "random"  # nothing: a baseline without selection
    OLDEST = "oldest"  # time in the pool, by order of arrival: the drop-oldest baseline


class GroupScore(str, Enum):
    """How sibling scores become one."""

    MEAN = "mean"
    MAX = "max"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """A group's numbers at one step, in versions. None: no sibling has a known version, or none a score.

    `gen`, `sib`, `pool` are means over siblings. `raw`, `generation`, `waiting`, `effective` are aggregated over the
    siblings by `GroupScore` under the chosen reading of waiting. `percentile` is the mean u of the scored siblings,
    `weight` the mean w of those with a generation part. `arrivals_since` counts groups that arrived later.
    """

    gen: float | None
    sib: float
    pool: float
    raw: float | None
    generation: float | None
    waiting: float
    effective: float | None
    worst_lag: float
    percentile: float | None
    weight: float | None
    n_missing_scores: int
    arrivals_since: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A group as prepared for measuring: what depends on neither the step nor the recent scores.

    Siblings with known versions, each as (waiting before the pool, generation part), by where their weight comes from:
    `scored` aligned with `scores`, `waited` (never interrupted), and `fixed`, whose effective lag is already known
    because the generation part is 0 or the score is missing. Totals are aggregates without the time in the pool.
    """

    profile: GroupProfile
    scored: tuple[tuple[float, float], ...]
    scores: tuple[float, ...]
    waited: tuple[tuple[float, float], ...]
    fixed: tuple[float, ...]
    n_missing: int
    raw: float | None
    generation: float | None
    waiting: float


class LagMeter:
    """Measures groups at a step, against the recent prefix scores. Holds no state of its own."""

    def __init__(
        self,
        window: ScoreWindow,
        *,
        gamma: float = 4.0,
        wait_from: WaitFrom = WaitFrom.GROUP,
        group_score: GroupScore = GroupScore.MEAN,
    ) -> None:
        self._window = window
        self._gamma = gamma
        self._from_group = wait_from is WaitFrom.GROUP
        self._aggregate: Callable[[list[float]], float | None] = _largest if group_score is GroupScore.MAX else mean

    def prepare(self, group: TrajectoryGroup) -> Standing:
        """Sorts the siblings by what their weight depends on; done once per group."""
        profile = profile_of(group)
        known: list[tuple[float, float]] = []
        scored: list[tuple[float, float]] = []
        scores: list[float] = []
        waited: list[tuple[float, float]] = []
        fixed: list[float] = []
        n_missing = 0
        for gen, sib, score in zip(profile.gens, profile.sibs, profile.scores, strict=True):
            if gen is None:
                continue
            wait, rest = (0.0, gen + sib) if self._from_group else (float(sib), gen)
            known.append((wait, rest))
            if rest > 0 and score is not None:
                scored.append((wait, rest))
                scores.append(score)
            elif rest > 0 and not gen:
                waited.append((wait, rest))
            else:
                n_missing += rest > 0
                fixed.append(wait + rest)
        waits = [0.0] if self._from_group else [float(sib) for sib in profile.sibs]
        return Standing(
            profile=profile,
            scored=tuple(scored),
            scores=tuple(scores),
            waited=tuple(waited),
            fixed=tuple(fixed),
            n_missing=n_missing,
            raw=self._aggregate([wait + rest for wait, rest in known]),
            generation=self._aggregate([rest for _, rest in known]),
            waiting=self._aggregate(waits) or 0.0,
        )

    def measure(self, standing: Standing, *, step: int, arrivals_since: int = 0) -> GroupLag:
        """The group's numbers at step `step` (>= its ready version)."""
        profile, gamma = standing.profile, self._gamma
        in_pool = step - profile.ready_version
        percentiles = [self._window.percentile(score) for score in standing.scores]
        mean_percentile = mean(percentiles)
        stand_in = sharpen(1.0 if mean_percentile is None else mean_percentile, gamma)
        weights = [sharpen(u, gamma) for u in percentiles]
        effective = [wait + w * rest for (wait, rest), w in zip(standing.scored, weights, strict=True)]
        effective += [wait + stand_in * rest for wait, rest in standing.waited]
        effective += standing.fixed
        weights += [stand_in] * len(standing.waited) + [1.0] * standing.n_missing
        return GroupLag(
            gen=profile.gen,
            sib=profile.sib,
            pool=float(in_pool),
            raw=_plus(standing.raw, in_pool),
            generation=standing.generation,
            waiting=standing.waiting + in_pool,
            effective=_plus(self._aggregate(effective), in_pool),
            worst_lag=profile.worst_lag(step),
            percentile=mean_percentile,
            weight=mean(weights),
            n_missing_scores=standing.n_missing,
            arrivals_since=arrivals_since,
        )


class Ranking(Stateful, Protocol):
    """Orders candidates; the largest score is rejected first."""

    def score(self, lag: GroupLag) -> float | None:
        """The number a group is ordered by; None when it cannot be known, which ranks before all others."""


class FieldRanking(Stateless, Ranking):
    """Orders by one of the measured numbers."""

    def __init__(self, read: Callable[[GroupLag], float | None]) -> None:
        self._read = read

    def score(self, lag: GroupLag) -> float | None:
        """The number itself."""
        return self._read(lag)


class RandomRanking(Ranking):
    """Orders by chance; the generator is part of the state, so a resumed run makes the same choices."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def score(self, lag: GroupLag) -> float:
        """Uniform in [0, 1), whatever the group."""
        return self._rng.random()

    def state_dict(self) -> State:
        """The generator's state, as lists."""
        kind, words, gauss = self._rng.getstate()
        return {"rng": [kind, list(words), gauss]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises StateError on a state that is no generator's."""
        check_keys(state, ("rng",), type(self).__name__)
        try:
            kind, words, gauss = state["rng"]
            self._rng.setstate((kind, tuple(words), gauss))
        except (TypeError, ValueError) as error:
            raise StateError(f"state of RandomRanking: {error}") from error

    def metrics(self) -> dict[str, float]:
        """Nothing to report."""
        return {}


_FIELDS: dict[RankBy, Callable[[GroupLag], float | None]] = {
    RankBy.EFFECTIVE: lambda lag: lag.effective,
    RankBy.RAW: lambda lag: lag.raw,
    RankBy.GENERATION: lambda lag: lag.generation,
    RankBy.WAITING: lambda lag: lag.waiting,
    RankBy.OLDEST: lambda lag: float(lag.arrivals_since),
}


def make_ranking(rank_by: RankBy, *, rng: random.Random) -> Ranking:
    """The policy of that name; only `random` uses the generator."""
    return RandomRanking(rng) if rank_by is RankBy.RANDOM else FieldRanking(_FIELDS[rank_by])


def rejection_key(score: float | None, ready_version: int, group_id: str) -> tuple[bool, float, int, str]:
    """Sort key under which the group to be rejected first comes first."""
    return (score is not None, 0.0 if score is None else -score, ready_version, group_id)


def _plus(lag: float | None, in_pool: int) -> float | None:
    return None if lag is None else lag + in_pool


def _largest(values: list[float]) -> float | None:
    return max(values, default=None)
