"""Ends a run whose engine has died. Upstream's weight sync waits in a collective for an engine that will never come.

Invariant: at most two PERIODs after a watched actor's death is known to Ray, the driver's main thread is interrupted
and `failure()` holds the cause. An engine that is busy or still starting is never taken for dead: only an exception
counts.
"""

import logging
import signal
import threading
from collections.abc import Mapping
from typing import Any

import ray

from openrlhf.launch.problem import cause

logger = logging.getLogger(__name__)

PERIOD = 3.0  # seconds between two questions to the same actor

_failure: Exception | None = None
_threads: list[threading.Thread] = []
_stopping = threading.Event()


def failure() -> Exception | None:
    """What killed the run, or None."""
    return _failure


def watch(checks: Mapping[str, Any]) -> None:
    """Watches actors, each by a remote method that raises when it is unhealthy, until `stop`."""
    _threads.append(threading.Thread(target=_watch, args=(dict(checks),), name="engine-watchdog", daemon=True))
    _threads[-1].start()


def stop() -> None:
    """Ends every watch. Must come before ray.shutdown: a call into Ray after it ends the whole process at once."""
    _stopping.set()
    while _threads:
        _threads.pop().join()
    _stopping.clear()


def _watch(checks: dict[str, Any]) -> None:
    global _failure
    pending = {check.remote(): name for name, check in checks.items()}
    while not _stopping.wait(PERIOD):
        answered, _ = ray.wait(list(pending), num_returns=len(pending), timeout=0)
        for answer in answered:
            name = pending.pop(answer)
            try:
                ray.get(answer)
            except Exception as error:
                logger.error("%s died; ending the run", name)
                _failure = RuntimeError(f"{name} died: {cause(error)}")
                signal.raise_signal(signal.SIGINT)
                return
            pending[checks[name].remote()] = name
