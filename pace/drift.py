"""Prefix drift: how far the policy has moved on a prefix it wrote before, and how unusual that is.

At a weight sync every unfinished trajectory with realised tokens y_1..y_p is rescored under the new weights by the
same engine that generated it. Invariants: a score is finite and >= 0 whatever the engine returns, or it is missing;
only scores from one engine are compared, since two implementations of one model differ by more than drift does.

    F = max(0, (1/p) sum_t phi(l_t - log pi_new(y_t | x, y_<t)) - floor)     phi(d) = |d|  or  max(0, d)
    u = mid-rank percentile of F among the recent scores,   w = u ** gamma

Source: the paper measures changes of prefix log-probs "relative to recent scores" and sharpens them; the formulas for
F, u and the floor are design.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pace.state import State, StateError, check_keys

# One token that the new policy makes impossible must not turn a mean into infinity. Real drift is far below this.
LOG_RATIO_BOUND = 200.0


class Phi(str, Enum):
    """What of a log-ratio counts as drift: any change, or only probability lost."""

    ABS = "abs"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class PrefixScore:
    """F in nats per token (None when no token could be scored), and how many tokens were used and dropped."""

    value: float | None
    n_scored: int
    n_dropped: int


def prefix_score(
    behaviour: Sequence[float], rescored: Sequence[float], *, phi: Phi = Phi.ABS, floor: float = 0.0
) -> PrefixScore:
    """The prefix forgetting score of one trajectory at one weight sync.

    `behaviour` and `rescored` are log-probs in nats of the same generated tokens, aligned; prompt and tool tokens are
    left out by the caller. `floor` is the engine's own noise (see `noise_floor`), in nats per token.
    A rescored -inf (the new policy excludes the token) counts as `LOG_RATIO_BOUND`, and so does any larger ratio. A
    token with another non-finite number is dropped: a sampled token's behaviour log-prob is finite by construction.
    Raises ValueError when the lengths differ or the floor is not a finite number >= 0.
    """
    if len(behaviour) != len(rescored):
        raise ValueError(f"{len(behaviour)} behaviour log-probs against {len(rescored)} rescored ones")
    if not 0.0 <= floor < math.inf:
        raise ValueError(f"the noise floor must be a finite number >= 0, got {floor}")
    ratios = [
        max(-LOG_RATIO_BOUND, min(LOG_RATIO_BOUND, old - new))
        for old, new in zip(behaviour, rescored, strict=True)
        if math.isfinite(old) and (math.isfinite(new) or new == -math.inf)
    ]
    dropped = len(behaviour) - len(ratios)
    if not ratios:
        return PrefixScore(None, 0, dropped)
    drift = math.fsum(abs(d) if phi is Phi.ABS else max(0.0, d) for d in ratios) / len(ratios)
    return PrefixScore(max(0.0, drift - floor), len(ratios), dropped)


def noise_floor(calibrations: Iterable[PrefixScore]) -> float:
    """The largest score seen when trajectories are rescored under unchanged weights; 0 without a calibration."""
    return max((score.value for score in calibrations if score.value is not None), default=0.0)


def sharpen(percentile: float, gamma: float) -> float:
    """w = u ** gamma, in [0, 1] (paper: "sharpened"; gamma in {1, 2, 4})."""
    return float(percentile**gamma)


class ScoreWindow:
    """The most recent prefix scores, and the percentile of a score among them.

    Only trajectories interrupted by a weight sync have scores, so those without generation lag never enter. Until
    `minimum` scores have been seen every percentile is 1: the ranking then falls back to raw staleness.
    """

    def __init__(self, *, capacity: int = 512, minimum: int = 32) -> None:
        if not 1 <= minimum <= capacity:
            raise ValueError(f"a window of {capacity} scores cannot need {minimum}")
        self.capacity = capacity
        self.minimum = minimum
        self.n_seen = 0
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._recent)

    @property
    def warm(self) -> bool:
        """Whether percentiles mean anything yet."""
        return len(self._recent) >= self.minimum

    def add(self, scores: Iterable[float]) -> None:
        """Appends scores in nats per token. Raises ValueError for one that is negative or not finite."""
        for score in scores:
            if not 0.0 <= score < math.inf:
                raise ValueError(f"a prefix score must be a finite number >= 0, got {score}")
            if len(self._recent) == self.capacity:
                self._sorted.pop(bisect_left(self._sorted, self._recent.popleft()))
            self._recent.append(score)
            insort(self._sorted, score)
            self.n_seen += 1

    def percentile(self, score: float) -> float:
        """Mid-rank percentile in [0, 1]: ties share the mean rank. 1 before the window is warm."""
        if not self.warm:
            return 1.0
        below, not_above = bisect_left(self._sorted, score), bisect_right(self._sorted, score)
        return (below + not_above) / (2 * len(self._sorted))

    def scores(self) -> list[float]:
        """The window in increasing order."""
        return list(self._sorted)

    def state_dict(self) -> State:
        """The scores in order of arrival."""
        return {"recent": list(self._recent), "n_seen": self.n_seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the window; a larger saved one keeps its newest scores. Raises StateError on foreign state."""
        check_keys(state, ("recent", "n_seen"), type(self).__name__)
        recent = [float(score) for score in state["recent"]]
        if any(not 0.0 <= score < math.inf for score in recent):
            raise StateError("state of ScoreWindow: a score is not a finite number >= 0")
        self._recent = deque(recent[-self.capacity :])
        self._sorted = sorted(self._recent)
        self.n_seen = int(state["n_seen"])

    def metrics(self) -> dict[str, float]:
        """Gauge `size`, counter `seen`."""
        return {"size": float(len(self._recent)), "seen": float(self.n_seen)}
