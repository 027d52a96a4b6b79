"""Control calls to a vLLM engine that end, whatever happens to the engine.

Invariant: a call returns, raises what the engine raised, or raises within POLL seconds of the engine's death or at its
time limit. vLLM itself never answers a call that is pending when its core process dies.
"""

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, TypeVar

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
