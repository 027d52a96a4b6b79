"""`make quickstart`: builds the small model, trains it with asynchronous RL and PACE, and shows how the run goes.

The run itself is examples/scripts/quickstart_cpu.sh, an ordinary training script. This module only watches: it follows
the run's decision log, shows it as a progress bar, passes Ctrl-C on, and prints a table at the end.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

from tqdm import tqdm

from examples.tiny import build

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "scripts" / "quickstart_cpu.sh"
BATCH = 16  # the script's --rollout.batch_size
LOG = "pace.jsonl"
POLL = 0.5  # seconds between two looks at the log
WINDOW = 10  # steps averaged at either end of the run
STOP_LIMIT = 30.0  # seconds for the run to end itself after Ctrl-C


def steps(log: Path, running: Callable[[], bool], poll: float = POLL) -> Iterator[dict[str, float]]:
    """The metrics of each update as the run writes them, until it has ended and all is read."""
    read = 0
    while True:
        last = not running()  # asked before the look: what was written before the end is still read
        content = log.read_bytes()[read:] if log.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        read += len(whole)
        for entry in map(json.loads, whole.splitlines()):
            if entry["kind"] == "step":
                yield entry["metrics"]
        if last:
            return
        time.sleep(poll)


def left(step: dict[str, float]) -> int:
    """Groups that left the pool with this update."""
    return int(sum(step[f"pace/pool/{name}"] for name in ("batch", "rejected", "evicted")))


def summary(history: Sequence[dict[str, float]], seconds: float, run: Path) -> str:
    """The closing table; an update's lag is left out of the mean where it isn't known."""
    rewards = [step["rollout/reward_mean"] for step in history]
    times = sorted(step["timing/step_total"] for step in history)
    first, last = rewards[:WINDOW], rewards[-WINDOW:]
    lags = [step["pace/staleness/total/mean"] for step in history[-WINDOW:] if "pace/staleness/total/mean" in step]
    lag = f"{sum(lags) / len(lags):.2f} updates" if lags else "not known"
    rejected = sum(step["pace/pool/rejected"] for step in history) / sum(map(left, history))
    rows = {
        "updates": f"{len(history)}",
        f"reward, first {len(first)} steps": f"{sum(first) / len(first):.3f}",
        f"reward, last {len(last)} steps": f"{sum(last) / len(last):.3f}",
        f"lag of trained data, last {len(last)} steps": lag,
        "groups rejected as too stale": f"{rejected:.0%}",
        "seconds a step (median)": f"{times[len(times) // 2]:.2f}",
        "seconds in all": f"{seconds:.0f}",
        "trained model": f"{run / 'model'}",
        "checkpoints": f"{run / 'checkpoints'}",
        "every step and decision": f"{run / LOG}",
        "log": f"{run / 'train.log'}",
        "TensorBoard": f"tensorboard --logdir {run / 'tensorboard'}",
    }
    width = max(map(len, rows))
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows.items())


@contextlib.contextmanager
def running(command: Sequence[str], environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command in a process group of its own, which is gone when the block is left. `log` gets what it prints."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
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


def train(material: build.TinyMaterial, run: Path, prompts: int, extra: Sequence[str]) -> list[dict[str, float]]:
    """Runs the training script to its end; the metrics of every update. Raises SystemExit with its code on failure."""
    environment = os.environ | {
        "MODEL": str(material.model),
        "DATA": str(material.model.parent),
        "RUN_DIR": str(run),
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))),
    }
    command = ["bash", str(SCRIPT), *extra, "--data.max_samples", str(prompts)]
    history: list[dict[str, float]] = []
    with (
        running(command, environment, run / "train.log") as process,
        tqdm(total=prompts, desc="starting Ray, ZeRO-3 and vLLM", unit="prompt") as bar,
    ):
        for step in steps(run / LOG, lambda: process.poll() is None):
            history.append(step)
            bar.set_description(f"update {len(history)}")
            bar.set_postfix(
                reward=f"{step['rollout/reward_mean']:.3f}",
                lag=f"{step.get('pace/staleness/total/mean', 0.0):.1f}",
                rejected=f"{step['pace/pool/rejected']:.0f}",
            )
            bar.update(left(step))
        code = process.wait()
    if code != 0 or not history:
        tail = (run / "train.log").read_text(errors="replace").splitlines()[-15:]
        what = f"the run failed with exit code {code}" if code else "the run ended without an update"
        print(*tail, f"\n{what}; its log: {run / 'train.log'}", sep="\n", file=sys.stderr)
        raise SystemExit(code or 1)
    return history


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--updates",
        type=int,
        default=40,
        help="prompts for this many updates; groups that the pool rejects make them fewer (at least 1; default 40)",
    )
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="folder for the run's files")
    args, extra = parser.parse_known_args()
    if args.updates < 1:
        parser.error("--updates: must be at least 1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    material = build.build(report=lambda text: print(f"small model: {text}", flush=True))
    run = args.runs.resolve() / f"quickstart-{datetime.now():%Y%m%d-%H%M%S}"
    run.mkdir(parents=True)
    started = time.monotonic()
    try:
        history = train(material, run, args.updates * BATCH, extra)
    except KeyboardInterrupt:
        print(f"\ninterrupted; the log is {run / 'train.log'}", file=sys.stderr)
        return 130
    print(summary(history, time.monotonic() - started, run))
    return 0


if __name__ == "__main__":
    sys.exit(main())
