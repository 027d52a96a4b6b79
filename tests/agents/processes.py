"""What runs on this machine."""

import os
import time
from pathlib import Path


def running(mark: str) -> list[str]:
    """The processes, but this one, whose command line holds `mark`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if process.name != str(os.getpid()) and mark.encode() in (process / "cmdline").read_bytes():
                found.append(process.name)
        except OSError:
            continue
    return found


def gone(mark: str, within_s: float = 2.0) -> bool:
    """Whether there is no such process, or soon isn't: what was killed takes a moment to leave."""
    until = time.monotonic() + within_s
    while running(mark):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True
