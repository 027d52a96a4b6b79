"""Seconds a training step, side by side: synchronous, upstream's asynchronous ways, the pool without and with PACE.

    python bench/step_time.py [--updates N] [--rounds R] [--settings uniform tool] [--ways sync ...] [--json FILE]

sync, async and async-partial are upstream's; unfiltered is the pool that rejects nothing; pace-raw and pace-effective
reject by age, and by age weighted with drift.

Every run is an ordinary `python -m openrlhf.cli.train_ppo_ray` on the small model with the quickstart's settings and a
Ray of its own; all ways run in turns, once a round. A run gets more prompts than it needs and is stopped after N
updates, so that it never ends on an emptying pool. The first updates are dropped (start, a pool that fills up).

On a cluster rollouts and training have devices of their own. So here the engine has the machine's first core, and all
else the others (`--shared`: nobody has any).

A step is the time between two updates as their lines reach the console, which is late by 0.1 s at most. "idle" is the
share of it in which the trainer neither made experience nor trained: waiting for rollouts and the weight sync. Lag,
rejections and load are those of the pool's own log. The load is groups that got ready over groups trained; where the
pool was full, nothing new was started, so that the load was higher than it shows.
"""

import argparse
import ast
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.processes import running  # noqa: E402
from pace.table import aligned  # noqa: E402

POOL = ("--train.async_enable", "--pace.enable")
ASYNC = ("--train.async_enable", "--train.async_queue_size", "1")
UNFILTERED, QUEUE = "unfiltered", "async"  # what the others are compared with
WAYS = {
    "sync": (),
    QUEUE: ASYNC,
    "async-partial": (*ASYNC, "--train.partial_rollout_enable"),
    # Ranked raw: the default ranking would rescore prefixes for nothing.
    UNFILTERED: (*POOL, "--pace.max_reject_rate", "0", "--pace.k_max", "-1", "--pace.rank", "raw"),
    "pace-raw": (*POOL, "--pace.rank", "raw"),
    "pace-effective": (*POOL, "--pace.rank", "effective"),
}
BATCH, SAMPLES = 16, 16  # prompts an update, rollouts a prompt
SETTINGS: dict[str, tuple[str, tuple[str, ...]]] = {  # data, flags
    "uniform": (
        "train.jsonl",
        (
            *("--data.max_len", "128", "--rollout.max_new_tokens", "32"),
            *("--reward.remote_url", str(ROOT / "examples" / "python" / "reward_func_math.py")),
        ),
    ),
    "tool": (
        "calculator_train.jsonl",
        (
            *("--data.max_len", "256", "--vllm.enable_prefix_caching"),
            *("--train.agent_func_path", str(ROOT / "bench" / "slow_calculator_agent.py")),
        ),
    ),
}
# The quickstart's.
FLAGS = (
    *("--actor.num_nodes", "1", "--actor.num_gpus_per_node", "2", "--ds.zero_stage", "3"),
    *("--data.input_key", "prompt", "--data.label_key", "label", "--data.apply_chat_template"),
    *("--rollout.batch_size", f"{BATCH}", "--rollout.n_samples_per_prompt", f"{SAMPLES}"),
    *("--rollout.micro_batch_size", "32", "--train.batch_size", f"{BATCH * SAMPLES}"),
    *("--train.micro_batch_size", "32", "--algo.advantage.estimator", "group_norm", "--algo.kl.init_coef", "0"),
    *("--actor.adam.lr", "3e-4", "--actor.lr_scheduler", "constant_with_warmup"),
    *("--vllm.num_engines", "1", "--vllm.tensor_parallel_size", "1", "--ckpt.save_steps", "-1"),
)
STEP_LINE = re.compile(r"Global step (\d+): (\{.*\})")
POLL_S = 0.05
TAIL = 25


class Update(NamedTuple):
    """What the console said about an update, and when."""

    step: int
    at: float
    metrics: dict[str, Any]


def updates_in(lines: Sequence[str], at: float) -> list[Update]:
    """The updates that lines of a run report; `at` is when they were read."""
    found = []
    for match in filter(None, map(STEP_LINE.search, lines)):
        # A dict's repr: NaN and infinity are no literals, and only a gap in a metric.
        text = re.sub(r"\b(nan|inf)\b", "None", match[2])
        found.append(Update(int(match[1]), at, ast.literal_eval(text)))
    return found


def numbers(updates: Sequence[Update], log: Sequence[Mapping[str, Any]], drop: int) -> dict[str, float | None]:
    """One run's result after its first `drop` updates; `log` are the metrics of the pool's log, by update.

    Raises ValueError when nothing is left to measure.
    """
    updates = [update for update in updates if update.step >= drop]
    if len(updates) < 2:
        raise ValueError(f"{len(updates)} updates after the first {drop - 1}: nothing to measure")
    seconds = [after.at - before.at for before, after in zip(updates, updates[1:], strict=False)]
    kept = [update.metrics for update in updates[1:]]
    worked = sum(metrics["timing/make_experience"] + metrics["timing/ppo_train"] for metrics in kept)
    result = {
        "step_s": statistics.median(seconds),
        "trajectories_per_s": sum(metrics["rollout/num_samples"] for metrics in kept) / sum(seconds),
        "idle": max(0.0, 1 - worked / sum(seconds)),
        "steps": float(len(seconds)),
    }
    return result | pool_numbers(log[drop - 1 : updates[-1].step])


def pool_numbers(log: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Lag, rejections and load from the pool's log; the first entry is the state before. None without a log."""
    if len(log) < 2:
        return dict.fromkeys(("lag", "rejected", "evicted", "load", "full"))
    kept = log[1:]
    lags = [entry["pace/staleness/total/mean"] for entry in kept if "pace/staleness/total/mean" in entry]
    left = {name: sum(entry[f"pace/pool/{name}"] for entry in kept) for name in ("batch", "rejected", "evicted")}

    def ready(entry: Mapping[str, Any]) -> float:
        """Groups that have ever been ready."""
        return sum(entry[f"pace/ledger/groups/{name}"] for name in ("trained", "rejected", "evicted", "in_pool"))

    return {
        "lag": statistics.mean(lags) if lags else None,
        "rejected": left["rejected"] / sum(left.values()),
        "evicted": left["evicted"] / sum(left.values()),
        "load": (ready(log[-1]) - ready(log[0])) / left["batch"],
        "full": statistics.mean(entry["pace/pool/accepting"] == 0 for entry in kept),
    }


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Per setting and way: the median over rounds of every number, and step times against the two references."""
    result: dict[str, dict[str, dict[str, float | None]]] = {}
    for run in runs:
        ways = result.setdefault(run["setting"], {})
        if run["way"] not in ways:
            same = [r["numbers"] for r in runs if (r["setting"], r["way"]) == (run["setting"], run["way"])]
            ways[run["way"]] = {name: _median([one[name] for one in same]) for name in same[0]}
    for ways in result.values():
        for name, reference in (("against_unfiltered", UNFILTERED), ("against_async", QUEUE)):
            base = ways.get(reference, {}).get("step_s")
            for found in ways.values():
                found[name] = found["step_s"] / base if base and found["step_s"] is not None else None
    return result


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


COLUMNS = {  # heading: key, how it is written
    "step s": ("step_s", "{:.2f}"),
    "traj/s": ("trajectories_per_s", "{:.1f}"),
    "/ unfiltered": ("against_unfiltered", "{:.2f}"),
    "/ async": ("against_async", "{:.2f}"),
    "idle": ("idle", "{:.0%}"),
    "lag": ("lag", "{:.2f}"),
    "rejected": ("rejected", "{:.0%}"),
    "evicted": ("evicted", "{:.0%}"),
    "load": ("load", "{:.2f}"),
    "pool full": ("full", "{:.0%}"),
}


def table(ways: Mapping[str, Mapping[str, float | None]]) -> str:
    """One setting's numbers; a dash where a way has none."""
    rows = [["", *COLUMNS]]
    for way, found in ways.items():
        cells = [(found.get(key), form) for key, form in COLUMNS.values()]
        rows.append([way, *("-" if value is None else form.format(value) for value, form in cells)])
    return aligned(rows)


def regime(ways: Mapping[str, Mapping[str, float | None]]) -> str:
    """Whether rollout or training was faster, by the pool that saw most of it."""
    loads = {way: found["load"] for way, found in ways.items() if found.get("load") is not None}
    if not loads:
        return "load: not measured (no way with a pool)"
    way = max(loads, key=lambda name: loads[name] or 0.0)
    load, full = loads[way] or 0.0, (ways[way].get("full") or 0.0) > 0
    if load > 1.05:
        what = "rollout outruns training: PACE has a surplus to choose from"
    elif full:
        what = "the pool was full, so rollout outruns training by an unknown factor"
    elif load > 0.95:
        what = "balanced: little to choose from"
    else:
        what = "training waits for rollout: PACE is inert by design"
    return f"load: {'at least ' if full else ''}{load:.2f} groups ready per trained one ({way}); {what}"


def report(result: Mapping[str, Any]) -> str:
    """Every setting's table and load."""
    given = result["arguments"]
    of = f"{given['updates'] - given['drop']} steps of {BATCH} x {SAMPLES} rollouts, rounds: {given['rounds']}"
    return "\n\n".join(
        f"{setting}: {of}\n{table(ways)}\n{regime(ways)}" for setting, ways in result["summary"].items()
    )


class Failed(RuntimeError):
    """A run that ended or stood still before its last update; the message has the end of its log."""


def command(setting: str, way: Sequence[str], folder: Path, *, n_updates: int, material: Any) -> list[str]:
    """The command line of a run with the flags `way`; half its groups may be rejected, a pool be full in the end."""
    data, flags = SETTINGS[setting]
    rows = (material.model.parent / data).read_text().count("\n") // BATCH * BATCH  # no short batch between episodes
    episodes = math.ceil((2 * n_updates + 12) * BATCH / rows)
    files = ("--ckpt.output_dir", f"{folder / 'model'}", "--ckpt.path", f"{folder / 'checkpoints'}")
    log = ("--pace.log_dir", f"{folder}") if "--pace.enable" in way else ()
    source = ("--actor.model_name_or_path", f"{material.model}")
    prompts = ("--data.prompt_dataset", f"{material.model.parent / data}", "--data.max_samples", f"{rows}")
    passes = ("--train.num_episodes", f"{episodes}")
    program = [sys.executable, "-m", "openrlhf.cli.train_ppo_ray"]
    return [*program, *source, *FLAGS, *prompts, *passes, *flags, *files, *way, *log]


def follow(process: subprocess.Popen[bytes], log: Path, *, n_updates: int, limit_s: float) -> Iterator[Update]:
    """The updates of a run as they are printed, up to the last one wanted. Raises Failed."""
    read, seen = 0, time.monotonic()
    while True:
        ended = process.poll() is not None
        with log.open("rb") as file:
            file.seek(read)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        read += len(whole)
        now = time.monotonic()
        for update in updates_in(whole.decode(errors="replace").splitlines(), now):
            seen = now
            yield update
            if update.step >= n_updates:
                return
        if ended or now - seen > limit_s:
            why = f"ended with exit code {process.returncode}" if ended else f"made no update for {limit_s:.0f} s"
            tail = log.read_text(errors="replace").splitlines()[-TAIL:]
            raise Failed("\n".join([*tail, why]))
        time.sleep(POLL_S)


def logged_steps(folder: Path) -> list[dict[str, Any]]:
    """The metrics of every step in the pool's log; empty for a run without a pool."""
    log = folder / "pace.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    return [entry["metrics"] for entry in map(json.loads, lines) if entry["kind"] == "step"]


def measure(setting: str, way: str, args: argparse.Namespace, material: Any, label: str) -> dict[str, Any]:
    """One run. Raises Failed."""
    with tempfile.TemporaryDirectory(prefix="step-time-") as name:
        folder = Path(name)
        arguments = command(setting, WAYS[way], folder, n_updates=args.updates, material=material)
        updates: list[Update] = []
        log = folder / "run.log"
        with (
            running(arguments, log, args.seed, shared=args.shared) as process,
            tqdm(total=args.updates, desc=label, unit="update") as bar,
        ):
            for update in follow(process, log, n_updates=args.updates, limit_s=args.limit):
                updates.append(update)
                bar.update()
        found = numbers(updates, logged_steps(folder), args.drop)
        return {"setting": setting, "way": way, "numbers": found, "at": [update.at for update in updates]}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=14, help="updates of each run (default 14)")
    parser.add_argument("--drop", type=int, default=4, help="updates at the start that don't count (default 4)")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each way and setting (default 1)")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=[*SETTINGS])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    parser.add_argument("--shared", action="store_true", help="engine and training share all cores")
    parser.add_argument("--seed", type=int, default=0, help="seed of the tool's waits")
    parser.add_argument(
        "--limit", type=float, default=300.0, help="seconds without an update that end a run as failed"
    )
    parser.add_argument("--json", type=Path, help="file for all numbers")
    args = parser.parse_args()
    if not 1 <= args.drop < args.updates:
        parser.error("--drop must be at least 1 and less than --updates")
    return args


def main() -> int:
    args = parse()
    from examples.tiny import build

    material = build.build(report=lambda text: print(f"small model: {text}", flush=True))
    runs: list[dict[str, Any]] = []
    failed: list[str] = []
    for number in range(args.rounds):
        for setting in args.settings:
            for way in args.ways:
                label = f"round {number + 1}/{args.rounds}, {setting}, {way}"
                try:
                    runs.append(measure(setting, way, args, material, label) | {"round": number + 1})
                except (Failed, ValueError) as error:
                    failed.append(label)
                    print(f"{label} FAILED:\n{error}", file=sys.stderr, flush=True)
                    continue
                step = runs[-1]["numbers"]["step_s"]
                print(f"{label}: {step:.2f} s a step (median of {args.updates - args.drop})", flush=True)
    about = {"cpus": os.cpu_count(), "machine": platform.machine(), "load": os.getloadavg()}
    settings = {name: value for name, value in vars(args).items() if name != "json"}
    result = {"arguments": settings, "machine": about, "runs": runs, "summary": summary(runs), "failed": failed}
    print(f"\n{report(result)}")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
