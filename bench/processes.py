"""A measured run's processes: started together, kept on their cores, gone at the end."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STOP_S = 30.0  # a stopped run may take to end, and its Ray after it
MARK = "BENCH_RUN"
ENGINE = re.compile(rb"EngineCore|RolloutRayActor")  # in the command lines of what makes rollouts
PIN_S = 1.0
BEGUN = b"Global step 1:"  # until then a run may use all cores: it only starts


def _marked(mark: str) -> list[Path]:
    """The folders in /proc of a run's processes."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                found.append(process)
    return found


def pin(mark: str, cores: Sequence[int]) -> None:
    """Gives the engine's processes the first core and a run's other processes the rest."""
    for process in _marked(mark):
        with contextlib.suppress(OSError):  # it, or a thread, may be gone
            mine = cores[:1] if ENGINE.search((process / "cmdline").read_bytes()) else cores[1:]
            for thread in (process / "task").iterdir():
                os.sched_setaffinity(int(thread.name), mine)


@contextlib.contextmanager
def pinned(mark: str, log: Path, *, shared: bool) -> Iterator[None]:
    """Keeps a run's processes where they belong after its first update, also those that start later."""
    cores, over = sorted(os.sched_getaffinity(0)), threading.Event()

    def keep() -> None:
        while not over.wait(PIN_S):
            if BEGUN in log.read_bytes():
                pin(mark, cores)

    keeper = threading.Thread(target=keep, daemon=True)
    if not shared and len(cores) > 1:
        keeper.start()
    try:
        yield
    finally:
        over.set()
        if keeper.ident is not None:
            keeper.join()


@contextlib.contextmanager
def running(
    arguments: Sequence[str], log: Path, seed: int, *, shared: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """The run in a process group of its own; gone, and its Ray with it, when the block is left."""
    mark = uuid.uuid4().hex
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    environment = {"PATH": path, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": "local", "PYTHONUNBUFFERED": "1"}
    environment |= {MARK: mark, "BENCH_SEED": f"{seed}"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            arguments, env=os.environ | environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            with pinned(mark, log, shared=shared):
                yield process
        finally:
            for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
                if process.poll() is None:
                    os.killpg(process.pid, stop)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(STOP_S)
            deadline = time.monotonic() + STOP_S
            while _marked(mark) and time.monotonic() < deadline:  # Ray's processes end some seconds later
                time.sleep(0.2)
