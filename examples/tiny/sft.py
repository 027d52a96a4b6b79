"""The warm start: upstream's own `openrlhf.cli.train_sft` on the demonstrations, in one child process on the CPU.

Invariant: the child needs no launcher and no network, and never outlives the call. What it prints goes to a log file.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from examples.tiny.cache import REPOSITORY
from examples.tiny.recipe import Recipe

Report = Callable[[str], None]
MAX_THREADS = 2  # more don't help a model of this size
REPORTS = 5
_STEP = re.compile(r"Train step of epoch (\d+):.*?(\d+)/(\d+) \[.*?gpt_loss=([\d.]+)")


class WarmStartError(RuntimeError):
    """Upstream's trainer failed; the message ends with the last lines it printed."""


def command(recipe: Recipe, initial: Path, data: Path, output: Path) -> list[str]:
    """Upstream's command line."""
    flags = {
        "model.model_name_or_path": initial,
        "data.dataset": data,
        "data.input_key": "messages",
        "data.max_len": recipe.context,
        "ckpt.output_dir": output,
        "ckpt.path": output / "checkpoints",
        "ds.zero_stage": 0,
        "train.max_epochs": recipe.sft_epochs,
        "train.batch_size": recipe.sft_batch,
        "train.micro_batch_size": recipe.sft_batch,
        "train.seed": recipe.seed,
        "adam.lr": recipe.sft_learning_rate,
        "lr_warmup_ratio": 0.05,
    }
    switches = ["--data.multiturn", "--data.apply_chat_template"]
    values = [text for flag, value in flags.items() for text in (f"--{flag}", str(value))]
    return [sys.executable, "-m", "openrlhf.cli.train_sft", *values, *switches]


def environment(scratch: Path) -> dict[str, str]:
    """One rank of one: what a launcher would set. Port 0 lets the system choose a free one."""
    threads = min(MAX_THREADS, len(os.sched_getaffinity(0)))
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
    return os.environ | {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "PASSIVE",  # waiting threads that spin make it ten times slower on a busy machine
        "OPENRLHF_PLATFORM": "cpu",
        "HF_DATASETS_CACHE": str(scratch / "datasets"),
        "PYTHONPATH": path,
        "PYTHONWARNINGS": "ignore",
    }


def warm_start(recipe: Recipe, *, initial: Path, data: Path, scratch: Path, report: Report) -> Path:
    """Trains the model in `initial` on `data`; returns the folder with the trained model."""
    output, log = scratch / "sft", scratch / "sft.log"
    arguments = command(recipe, initial, data, output)
    with log.open("wb") as sink:
        child = subprocess.Popen(arguments, env=environment(scratch), stdout=sink, stderr=subprocess.STDOUT)
        try:
            _follow(child, log, report)
        finally:
            child.kill()
            child.wait()
    if child.returncode != 0:
        tail = log.read_text(errors="replace").replace("\r", "\n").strip()[-2000:]
        raise WarmStartError(f"train_sft ended with status {child.returncode}:\n{tail}")
    return output


def _follow(child: "subprocess.Popen[bytes]", log: Path, report: Report) -> None:
    """Waits for the child and reports its progress a few times."""
    reported = 0
    while True:
        try:
            child.wait(timeout=0.5)
            return
        except subprocess.TimeoutExpired:
            steps = _STEP.findall(log.read_text(errors="replace"))
        if steps:
            _, step, total, loss = steps[-1]
            part = int(step) * REPORTS // int(total)
            if part > reported:
                reported = part
                report(f"warm start: step {step} of {total}, loss {loss}")
