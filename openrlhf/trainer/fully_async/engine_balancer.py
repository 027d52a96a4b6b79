"""Which engine rolls out the next group, and which one after it when that one dies.

Invariant: the engine with the fewest open groups among those that have not just failed; if all have, the one that
failed longest ago. An engine that is slow keeps its groups longer and so gets fewer. A group may move while it is
open, away from an engine with at least twice as many as another would have with it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from ray.exceptions import ActorUnavailableError, RayError

logger = logging.getLogger(__name__)
T = TypeVar("T")

COOLDOWN_S = 5.0  # after a failure; a restarted engine needs longer, but holds its callers until it serves
ENGINE_RETRY_S = 0.5
# A prompt at which engines die again and again must not take all of them down for ever.
ENGINE_DEATHS_PER_GROUP = 3


def _now() -> float:
    return asyncio.get_running_loop().time()


class EngineBalancer:
    """Counts open groups per engine, by index."""

    def __init__(self, n_engines: int, *, clock: Callable[[], float] = _now) -> None:
        self._open = [0] * n_engines
        self._failed_at = [float("-inf")] * n_engines
        self._clock = clock

    def take(self) -> int:
        """The engine for one more group."""
        ready, indices = self._ready(), range(len(self._open))
        index = min(ready, key=lambda i: self._open[i]) if ready else min(indices, key=lambda i: self._failed_at[i])
        self._open[index] += 1
        return index

    def lighter(self, index: int) -> int:
        """The engine for the rest of a group that is open at `index`: the same one unless it is overloaded."""
        other = min(self._ready(), key=lambda i: self._open[i], default=index)
        return other if 2 * (self._open[other] + 1) <= self._open[index] else index

    def move(self, index: int, other: int) -> None:
        """A group has gone from engine `index` to `other`."""
        self._open[index] -= 1
        self._open[other] += 1

    def give_back(self, index: int, *, failed: bool = False) -> None:
        """A group has left engine `index`, finished or because the engine failed."""
        self._open[index] -= 1
        if failed:
            self._failed_at[index] = self._clock()

    def _ready(self) -> list[int]:
        return [i for i, at in enumerate(self._failed_at) if self._clock() - at >= COOLDOWN_S]

    @property
    def open_groups(self) -> tuple[int, ...]:
        """Groups at each engine."""
        return tuple(self._open)


@dataclass
class Place:
    """Where a group is open; whoever moves it changes the index."""

    index: int


async def on_an_engine(balancer: EngineBalancer, group_id: str, call: Callable[[Place], Awaitable[T]]) -> T:
    """The result of `call(place)` for a group, of another engine when one dies.

    Waits for engines that are being started again. Raises the last RayError after ENGINE_DEATHS_PER_GROUP deaths.
    """
    deaths = 0
    while True:
        place = Place(balancer.take())
        failed = False
        try:
            return await call(place)
        except RayError as error:
            failed = True
            restarting = isinstance(error, ActorUnavailableError)
            deaths += not restarting
            if deaths == ENGINE_DEATHS_PER_GROUP:
                raise
            if not restarting:
                what = f"{error}".strip().splitlines()[-1]
                logger.warning("engine %d failed, group %s goes to another: %s", place.index, group_id, what)
        finally:
            balancer.give_back(place.index, failed=failed)
        await asyncio.sleep(ENGINE_RETRY_S)
