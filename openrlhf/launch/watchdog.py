"""What the driver's own threads see to while its main thread waits in Ray: dead engines, and lines while a run starts.

Upstream's weight sync waits in a collective for an engine that will never come. Invariant: at most two PERIODs after
a watched actor's death is known to Ray, the driver's main thread is interrupted and `failure()` holds the cause. An
engine that is busy or still starting is never taken for dead: only an exception counts.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import ray

from openrlhf.launch.problem import cause

logger = logging.getLogger(__name__)

PERIOD = 3.0  # seconds between two questions to the same actor

SILENCE = 15.0  # seconds without a line, at most, while a run starts

_failure: Exception | None = None
_threads: list[threading.Thread] = []
_stopping = threading.Event()


def failure() -> Exception | None:
    """What killed the run, or None."""
    return _failure


def watch(checks: Mapping[str, Any]) -> None:
    """Watches actors, each by a remote method that raises when it is unhealthy, until `stop`."""
    _start(_watch, dict(checks))


def announce(what: str, done: Any) -> None:
    """Prints every SILENCE seconds that `what` goes on, until the reference `done` is answered or `stop`."""
    _start(_announce, what, done)


def stop() -> None:
    """Ends every watch. Must come before ray.shutdown: a call into Ray after it ends the whole process at once."""
    _stopping.set()
    while _threads:
        _threads.pop().join()
    _stopping.clear()


def _start(target: Callable[..., None], *args: Any) -> None:
    _threads.append(threading.Thread(target=target, args=args, name=target.__name__, daemon=True))
    _threads[-1].start()


def _announce(what: str, done: Any) -> None:
    began = said = time.monotonic()
    while not _stopping.wait(PERIOD) and not ray.wait([done], timeout=0)[0]:
        if (now := time.monotonic()) - said > SILENCE - PERIOD:
            said = now
            print(f"{what}: {now - began:.0f} s", flush=True)


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
