"""`make quickstart`: builds the small model, trains it with asynchronous RL, and shows how the run goes.

The run itself is examples/scripts/quickstart_cpu.sh, an ordinary training script. This module only watches: it shows
the steps as a progress bar, passes Ctrl-C on, and prints a table at the end. Everything the run says is in its log.
"""

import argparse
import ast
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from tqdm import tqdm

from examples.tiny import build

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "scripts" / "quickstart_cpu.sh"
# What upstream's training actor logs after each update.
STEP_LINE = re.compile(r"Global step (\d+): (\{.*\})")
WINDOW = 10  # steps averaged at either end of the run
STOP_LIMIT = 30.0  # seconds for the run to end itself after Ctrl-C


def steps(lines: Iterator[str]) -> Iterator[dict[str, float]]:
    """The metrics of each update, in order, out of the run's log lines."""
    for line in lines:
        if match := STEP_LINE.search(line):
            # Upstream prints the dict's repr; NaN and inf are no literals and would only be a metric's gap.
            text = re.sub(r"\b(nan|inf)\b", "None", match[2])
            yield ast.literal_eval(text) | {"step": float(match[1])}


def summary(history: Sequence[dict[str, float]], seconds: float, run: Path) -> str:
    """The closing table."""
    rewards = [step["rollout/reward_mean"] for step in history]
    times = sorted(step["timing/step_total"] for step in history)
    first, last = rewards[:WINDOW], rewards[-WINDOW:]
    rows = {
        "updates": f"{len(history)}",
        f"reward, first {len(first)} steps": f"{sum(first) / len(first):.3f}",
        f"reward, last {len(last)} steps": f"{sum(last) / len(last):.3f}",
        "seconds a step (median)": f"{times[len(times) // 2]:.2f}",
        "seconds in all": f"{seconds:.0f}",
        "trained model": f"{run / 'model'}",
        "checkpoints": f"{run / 'checkpoints'}",
        "log": f"{run / 'train.log'}",
        "TensorBoard": f"tensorboard --logdir {run / 'tensorboard'}",
    }
    width = max(map(len, rows))
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows.items())


@contextlib.contextmanager
def running(command: Sequence[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """The command in a process group of its own, which is gone when the block is left."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            if process.poll() is not None:
                break
            os.killpg(process.pid, stop)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_LIMIT)


def train(material: build.TinyMaterial, run: Path, updates: int, extra: Sequence[str]) -> list[dict[str, float]]:
    """Runs the training script to its end; the metrics of every update. Raises SystemExit with its code on failure."""
    environment = os.environ | {
        "MODEL": str(material.model),
        "DATA": str(material.model.parent),
        "RUN_DIR": str(run),
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))),
    }
    history: list[dict[str, float]] = []
    with (run / "train.log").open("w") as log, running(["bash", str(SCRIPT), *extra], environment) as process:

        def lines() -> Iterator[str]:
            for line in process.stdout or ():
                log.write(line)
                log.flush()
                yield line

        with tqdm(total=updates, desc="starting Ray, ZeRO-3 and vLLM", unit="update") as bar:
            for step in steps(lines()):
                history.append(step)
                bar.set_description("training")
                bar.set_postfix(reward=f"{step['rollout/reward_mean']:.3f}")
                bar.update()
        code = process.wait()
    if code != 0:
        tail = (run / "train.log").read_text().splitlines()[-15:]
        print(
            *tail, f"\nthe run failed with exit code {code}; its log: {run / 'train.log'}", sep="\n", file=sys.stderr
        )
        raise SystemExit(code)
    return history


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=40, help="updates to train for (at least 1; default 40)")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="folder for the run's files")
    args, extra = parser.parse_known_args()
    if args.updates < 1:
        parser.error("--updates: must be at least 1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    material = build.build(report=lambda text: print(f"small model: {text}", flush=True))
    run = args.runs.resolve() / f"quickstart-{datetime.now():%Y%m%d-%H%M%S}"
    run.mkdir(parents=True)
    started = time.monotonic()
    prompts = args.updates * 16
    try:
        history = train(material, run, args.updates, [*extra, "--data.max_samples", str(prompts)])
    except KeyboardInterrupt:
        print(f"\ninterrupted; the log is {run / 'train.log'}", file=sys.stderr)
        return 130
    print(summary(history, time.monotonic() - started, run))
    return 0


if __name__ == "__main__":
    sys.exit(main())
