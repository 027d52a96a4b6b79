"""Which engine rolls out the next group, and which one after it when that one dies.

Invariant: the engine with the fewest open groups among those that have not just failed; if all have, the one that
failed longest ago. An engine that is slow keeps its groups longer and so gets fewer.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from ray.exceptions import ActorUnavailableError, RayError

logger = logging.getLogger(__name__)
T = TypeVar("T")

COOLDOWN_S = 5.0  # after a failure; a restarted engine needs longer, but holds its callers until it serves
ENGINE_RETRY_S = 0.5
# A prompt at which engines die again and again must not take all of them down for ever.
ENGINE_DEATHS_PER_GROUP = 3


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


async def on_an_engine(
    engines: Sequence[Any], balancer: EngineBalancer, group_id: str, call: Callable[[Any], Awaitable[T]]
) -> T:
    """The result of `call(engine)` for a group, of another engine when one dies.

    Waits for engines that are being started again. Raises the last RayError after ENGINE_DEATHS_PER_GROUP deaths.
    """
    deaths = 0
    while True:
        index = balancer.take()
        failed = False
        try:
            return await call(engines[index])
        except RayError as error:
            failed = True
            restarting = isinstance(error, ActorUnavailableError)
            deaths += not restarting
            if deaths == ENGINE_DEATHS_PER_GROUP:
                raise
            if not restarting:
                what = f"{error}".strip().splitlines()[-1]
                logger.warning("engine %d failed, group %s goes to another: %s", index, group_id, what)
        finally:
            balancer.give_back(index, failed=failed)
        await asyncio.sleep(ENGINE_RETRY_S)
