"""Runs of `train_ppo_ray`, each in a child forked from this process, which has imported everything beforehand.

`python forked_runs.py` reads a run a line from stdin, as JSON: `arguments`, `environment` and `seconds`. Each answer
is a line of stdout: exit `code` (None: it took longer and was killed), `output`, `took`, and what it `left` running.
"""

import ctypes
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

PR_SET_CHILD_SUBREAPER = 36
PATIENCE_S = 5.0  # a killed process may take a moment to end


def import_everything() -> None:
    """Modules only: a library that is used has threads, and none of them would be in the forked child."""
    import datasets  # noqa: F401
    import torch.optim  # noqa: F401
    import transformers.trainer  # noqa: F401

    from openrlhf.cli import train_ppo_ray  # noqa: F401
    from openrlhf.datasets import prompts_dataset, utils  # noqa: F401
    from openrlhf.launch import arguments, cluster, dry_run, flags, inputs, resources  # noqa: F401

    flags.parse([])  # runs upstream's file as far as its parser


def train(arguments: Sequence[str], environment: dict[str, str], output: int) -> None:
    """In the child: what `python -m openrlhf.cli.train_ppo_ray` does."""
    from openrlhf.cli import train_ppo_ray

    for stream in (1, 2):
        os.dup2(output, stream)
    os.environ.update(environment)
    sys.argv = ["train_ppo_ray", *arguments]
    sys.exit(train_ppo_ray.main())


def run(arguments: Sequence[str], environment: dict[str, str], seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryFile("w+") as output:
        began = time.monotonic()
        # A forked child of multiprocessing's joins its threads, but does not take all those modules apart (seconds).
        child = multiprocessing.get_context("fork").Process(
            target=train, args=(arguments, environment, output.fileno())
        )
        child.start()
        child.join(seconds)
        took, code = time.monotonic() - began, child.exitcode
        if code is None:
            child.kill()
            child.join()
        left = left_behind()
        output.seek(0)
        return {"code": code, "output": output.read(), "took": took, "left": left}


def left_behind() -> list[str]:
    """Processes that outlive the run: all of its descendants, which become children of this process, its subreaper."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:  # none is left
            return []
        if not ended:
            time.sleep(0.02)
    left = {}
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            left[pid] = f"{pid} {Path('/proc', pid, 'cmdline').read_bytes()!r}"
            os.kill(int(pid), signal.SIGKILL)
    return list(left.values())


def serve(answers: IO[str]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    import_everything()
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print while they are imported
    serve(answers)
