"""Which engine rolls out the next group.

Invariant: the engine with the fewest open groups among those that have not just failed; if all have, the one that
failed longest ago. An engine that is slow keeps its groups longer and so gets fewer.
"""

import time
from collections.abc import Callable

COOLDOWN_S = 5.0  # after a failure; a restarted engine needs longer, but holds its callers until it serves


class EngineBalancer:
    """Counts open groups per engine, by index."""

    def __init__(self, n_engines: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._open = [0] * n_engines
        self._failed_at = [float("-inf")] * n_engines
        self._clock = clock

    def take(self) -> int:
        """The engine for one more group."""
        resting = {i for i, at in enumerate(self._failed_at) if self._clock() - at < COOLDOWN_S}
        indices = range(len(self._open))
        ready = [i for i in indices if i not in resting]
        index = min(ready, key=lambda i: self._open[i]) if ready else min(indices, key=lambda i: self._failed_at[i])
        self._open[index] += 1
        return index

    def give_back(self, index: int, *, failed: bool = False) -> None:
        """A group has left engine `index`, finished or because the engine failed."""
        self._open[index] -= 1
        if failed:
            self._failed_at[index] = self._clock()

    @property
    def open_groups(self) -> tuple[int, ...]:
        """Groups at each engine."""
        return tuple(self._open)
