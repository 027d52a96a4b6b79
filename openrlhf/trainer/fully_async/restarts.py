"""Calls of actors that Ray starts again when they die: the trajectory pool, TRACE's predictor.

Invariant: their methods may be called again after a lost reply (pace/actor.py), so a call is repeated until the actor
is back; nobody who can't do without the reply calls them without this patience.

In: a function that calls the actor. Out: the reply. Source: pipeline.md, "failure".
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError

logger = logging.getLogger(__name__)

PATIENCE_S = 30.0
RETRY_S = 0.5
POOL = "the trajectory pool"


def ask(call: Callable[[], Any], *, what: str = POOL, timeout_s: float = PATIENCE_S) -> Any:
    """The reply to `call()`, a reference. Raises RayActorError or GetTimeoutError when the actor stays away."""
    deadline = time.monotonic() + max(PATIENCE_S, timeout_s)
    while True:
        try:
            return ray.get(call(), timeout=timeout_s)
        except (RayActorError, GetTimeoutError):
            if time.monotonic() > deadline:
                raise
            logger.warning("%s is away; waiting for its restart", what)
            time.sleep(RETRY_S)


async def ask_async(call: Callable[[], Awaitable[Any]], *, what: str = POOL) -> Any:
    """As `ask`, of an asynchronous caller. Raises RayActorError when the actor stays away."""
    now = asyncio.get_running_loop().time
    deadline = now() + PATIENCE_S
    while True:
        try:
            return await call()
        except RayActorError:
            if now() > deadline:
                raise
            logger.warning("%s is away; waiting for its restart", what)
            await asyncio.sleep(RETRY_S)
