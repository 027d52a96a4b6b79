"""Control calls to a vLLM engine that end, whatever happens to the engine.

Invariant: a call returns, raises what the engine raised, or raises within POLL seconds of the engine's death or at its
time limit. vLLM itself never answers a call that is pending when its core process dies.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

POLL = 0.05  # seconds between two looks at the engine


class EngineTimeout(TimeoutError):
    """The engine is alive and did not answer in time."""


async def control(llm: Any, call: Awaitable[Answer], *, what: str, timeout_s: float) -> Answer:
    """Awaits `call`. Raises vLLM's EngineDeadError if the engine dies, EngineTimeout after `timeout_s` seconds."""
    task = asyncio.ensure_future(call)
    deadline = time.monotonic() + timeout_s
    try:
        while True:
            done, _ = await asyncio.wait({task}, timeout=POLL)
            if done:
                return task.result()
            if llm.errored:
                raise llm.dead_error
            if time.monotonic() > deadline:
                raise EngineTimeout(f"the engine did not answer {what} within {timeout_s:g} s")
    finally:
        task.cancel()


def end_when_blocked(loop: asyncio.AbstractEventLoop, limit_s: float, *, end: Callable[[], Any]) -> None:
    """Calls `end`, from a thread, when the loop has run nothing for `limit_s` seconds.

    An agent's step that sleeps or computes without awaiting stops everything in its actor, weight syncs included, and
    nothing in the loop could notice.
    """
    beats = [time.monotonic()]

    def beat() -> None:
        beats[0] = time.monotonic()

    def watch() -> None:
        while not loop.is_closed():
            time.sleep(min(1.0, limit_s / 4))
            if time.monotonic() - beats[0] > limit_s:
                logger.error("an agent or reward function has blocked this process for %g s; it ends", limit_s)
                end()
                return
            with suppress(RuntimeError):  # closed in between
                loop.call_soon_threadsafe(beat)

    threading.Thread(target=watch, name="loop watch", daemon=True).start()
