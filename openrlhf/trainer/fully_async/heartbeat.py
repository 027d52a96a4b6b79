"""Says what is waited for. Invariant: no phase goes on for longer than `period_s` without a line that names it."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger("openrlhf.pace")

PERIOD_S = 15.0


@contextmanager
def during(what: str, *, period_s: float = PERIOD_S, say: Callable[[str], None] = logger.info) -> Iterator[None]:
    """Within it, one line every `period_s` seconds: what is going on, and since when."""
    over = threading.Event()
    began = time.monotonic()

    def beat() -> None:
        while not over.wait(period_s):
            say(f"{what}: {time.monotonic() - began:.0f} s")

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
