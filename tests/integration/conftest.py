"""Runs of the real scripts, each in processes that can be told apart from every other on the machine."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.tiny import build

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "examples" / "scripts"
MARK = "OPENRLHF_TEST_RUN"
PATIENCE = 20.0  # Ray's processes end some seconds after their driver
SILENCE = 30.0  # no run waits longer without a line that says for what


@dataclass(frozen=True)
class Finished:
    """A run that has ended: its exit code, everything it printed, its seconds, and its folder."""

    code: int
    output: str
    seconds: float
    folder: Path

    def tail(self) -> str:
        return self.output[-3000:]


def marked(mark: str) -> list[str]:
    """Processes that carry `mark` in their environment, i.e. everything a run has started and not ended."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                found.append(f"{process.name} {(process / 'cmdline').read_bytes()[:120]!r}")
        except (OSError, ValueError):
            continue
    return found


def none_left(mark: str, patience: float) -> list[str]:
    """What is still there after `patience` seconds: Ray's processes may take some to end after their driver."""
    deadline = time.monotonic() + patience
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.5)
    return left


class Run:
    """One command, started at once. `finish` waits for it and checks that no process is left, and that it was never
    silent for long."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.mark, self.folder, self._log = uuid.uuid4().hex, folder, folder / "output.log"
        base = {
            name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "OPENRLHF_PLATFORM"))
        }
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        self._started = time.monotonic()
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=base | {"PATH": path, MARK: self.mark, "RUN_DIR": str(folder)} | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._silence = (0.0, "")  # the longest one, and what was said before it
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        size, since = -1, time.monotonic()
        while self.process.poll() is None:
            if (now := self._log.stat().st_size) != size:
                size, since = now, time.monotonic()
            elif (silence := time.monotonic() - since) > self._silence[0]:
                self._silence = (silence, self.output()[-300:])
            time.sleep(0.5)

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, text: str, limit: float = 240.0, *, after: int = 0) -> None:
        """Until the run has printed `text`, behind its first `after` characters. Fails when it ends or `limit` seconds
        pass before."""
        deadline = time.monotonic() + limit
        while text not in self.output()[after:]:
            assert self.process.poll() is None, f"ended before {text!r}:\n{self.output()[-3000:]}"
            assert time.monotonic() < deadline, f"no {text!r} within {limit} s:\n{self.output()[-3000:]}"
            time.sleep(0.2)

    def finish(self, limit: float = 300.0) -> Finished:
        """Waits for the end; fails after `limit` seconds or when a process outlives the run by PATIENCE seconds."""
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"still running after {limit} s:\n{self.output()[-3000:]}")
        done = Finished(code, self.output(), time.monotonic() - self._started, self.folder)
        assert none_left(self.mark, PATIENCE) == [], done.tail()
        silence, after = self._silence
        assert silence < SILENCE, f"{silence:.0f} s without a line after: {after}"
        return done

    def pids(self) -> list[int]:
        return [int(line.split()[0]) for line in marked(self.mark)]

    def kill(self) -> None:
        """Ends whatever the run has left, by process id."""
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


@pytest.fixture(scope="session")
def material() -> build.TinyMaterial:
    """The small model and its data, from the cache or built once."""
    return build.build()


@pytest.fixture
def start(tmp_path: Path, material: build.TinyMaterial) -> Iterator[Callable[..., Run]]:
    """`start(script, *flags, **environment)`: a script of examples/scripts on the small model, from another folder."""
    runs: list[Run] = []

    def begin(script: str, *flags: str, **environment: str) -> Run:
        folder = tmp_path / f"run{len(runs)}"
        folder.mkdir()
        environment = {
            "MODEL": str(material.model),
            "DATA": str(material.model.parent),
            "RAY_ADDRESS": "local",
        } | environment
        runs.append(Run(["bash", str(SCRIPTS / script), *flags], folder, environment))
        return runs[-1]

    yield begin
    for run in runs:
        run.kill()
