"""A module of ours run as a program of its own, for work that may hang, crash or leave things behind.

Invariant: `Child.answer` returns within its seconds, and afterwards nothing of the child's session is left.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openrlhf


@dataclass
class Child:
    """A running child. What it last wrote with `reply` is its answer, also when it is killed after that."""

    process: subprocess.Popen[bytes]
    folder: tempfile.TemporaryDirectory[str]

    def answer(self, seconds: float) -> tuple[Any, int | None]:
        """What the child said (None: nothing) and its exit code (None: it took longer and was killed)."""
        code: int | None = None
        try:
            code = self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._kill()
        with self.folder:
            reply = Path(self.folder.name, "reply")
            return (json.loads(reply.read_text()) if reply.exists() else None), code

    def _kill(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def start(module: str, *arguments: str) -> Child:
    """Runs `python -m module REPLY arguments`, in this working directory, with our checkout importable."""
    folder = tempfile.TemporaryDirectory(prefix="orlhf-child-")
    checkout = str(Path(openrlhf.__file__).resolve().parents[1])
    path = [checkout, *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.Popen(
        [sys.executable, "-m", module, os.path.join(folder.name, "reply"), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
        start_new_session=True,
    )
    return Child(process, folder)


def reply(path: str, said: Any) -> None:
    """In the child: answers. A later answer replaces an earlier one, in one go."""
    Path(f"{path}.new").write_text(json.dumps(said))
    os.replace(f"{path}.new", path)
