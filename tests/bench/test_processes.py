"""bench/processes.py: the engine on the first core, everything else on the others, nothing left."""

import os
import sys
import time
from pathlib import Path

import pytest

from bench import processes
from bench.processes import running

CORES = sorted(os.sched_getaffinity(0))
# Starts a second process that is named as the engine's are; both write the cores they may use until they are stopped.
SAY = """
import os, sys, time
with open(FILE, "a") as file:
    while True:
        print(*os.sched_getaffinity(0), file=file, flush=True)
        time.sleep(0.05)
"""
PROGRAM = f"""
import subprocess, sys
print("Global step 1:", flush=True)
subprocess.Popen([sys.executable, "-c", {SAY.replace("FILE", "sys.argv[1]")!r}, sys.argv[1], "Engine" + "Core"])
{SAY.replace("FILE", "sys.argv[2]")}
"""


def last(file: Path) -> list[int]:
    lines = file.read_text().splitlines() if file.exists() else []
    return sorted(map(int, lines[-1].split())) if lines else []


@pytest.mark.skipif(len(CORES) < 2, reason="one core")
@pytest.mark.parametrize("shared", [False, True])
def test_the_engine_has_the_first_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    monkeypatch.setattr(processes, "PIN_S", 0.05)
    engine, other = tmp_path / "engine", tmp_path / "other"
    wanted = (CORES, CORES) if shared else (CORES[:1], CORES[1:])
    deadline = time.monotonic() + 20
    with running([sys.executable, "-c", PROGRAM, str(engine), str(other)], tmp_path / "log", 0, shared=shared):
        while (last(engine), last(other)) != wanted and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (last(engine), last(other)) == wanted
    size = engine.stat().st_size
    time.sleep(0.2)
    assert engine.stat().st_size == size, "it has ended"
