"""The six ways to spend one rollout budget on the calculator task, side by side: mixed groups, reward, tokens.

    python bench/trace_budget.py [--updates N] [--seeds S ...] [--allocations trace random ...] [--json FILE]

Every run is `examples/scripts/train_trace_tree.sh` with another `--trace.allocation`: the same small model, the same
number of updates of 16 prompts each, the same budget M (1 + N / 2) = 128 rollouts an update. Runs take turns. A run is
given as many prompts as it looks at: those that choose get more candidates, which is what they are for.

The games are those of the tiny data set, among as many others that can't be won that they are `--beyond` of all: real
data sets hold many problems that a model never solves, or always. What is beyond reach is written in the prompt (the
target is more than 9 a call away), so a predictor can learn it from outcomes. The policy's learning rate is low enough
that outcomes stay uncertain to the end: at the script's 3e-4 every game is soon always or never won, whoever chooses.

Effective ratio: share of trained prompts with both outcomes (prompt), share of continued prefixes' leaves below mixed
ones (anchor). All numbers are means over the updates after the first `--skip` and over the seeds; `predictor` is the
share of the step that scoring and learning take here, where it is as large as the policy, `predictor 0.6:8 B` that of
the arithmetic for models of these sizes. After the last update, on games that no run trains on: mean reward of those
that can be won, and Spearman of predicted and observed success of all. Spearman of the chosen prompts is lower because
their predicted values are alike: that is what they were chosen for.
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.claims import Claim, Numbers, judged, verdict_lines  # noqa: E402
from bench.kept import measure_all  # noqa: E402
from examples.python import agent_func_calculator as calculator  # noqa: E402
from examples.tiny import tasks  # noqa: E402
from examples.tiny.build import build  # noqa: E402
from pace.table import aligned  # noqa: E402
from trace_alloc.config import TraceConfig  # noqa: E402

BATCH = 16
ROWS = 480  # ten rounds of 48 candidates
GAMES = {"calculator_train.jsonl": ROWS, "calculator_eval.jsonl": 180}
ALLOCATIONS = ("trace", "root_only", "prefix_only", "random", "pcl", "flat")
COLUMNS = {
    "mixed prompts": "trace/effective_ratio/prompt",
    "mixed anchors": "trace/effective_ratio/anchor",
    "units": "trace/cost/units",
    "tokens": "trace/cost/generated_tokens",
    "spearman chosen": "trace/predictor/spearman_root",
    "spearman prefix": "trace/predictor/spearman_prefix",
    "predictor": "trace/cost/predictor_share",
}

HELD_OUT = "spearman held-out"
AT_RECIPES = "predictor 0.6:8 B"  # parameters of predictor and policy

Rows = Mapping[str, Mapping[str, float | None]]  # by allocation: its columns


def write_games(source: Path, target: Path, *, beyond: float, seed: int = 0) -> None:
    """The games of the folder `source` among such that can't be won, in random order; none is in both files."""
    rng = random.Random(f"{seed} beyond")
    starts, calls = tasks.START_VALUES, tasks.GAME_CALLS
    lost = [
        calculator.State(v, t, n) for v in starts for n in calls for t in range(v + 9 * n + 1, calculator.LIMIT + 1)
    ]
    rng.shuffle(lost)
    for name, size in GAMES.items():
        rows = tasks.read(source / name)[: round(size * (1 - beyond))]
        rows += [tasks.game_row(lost.pop()) | {"datasource": "beyond"} for _ in range(round(size * beyond))]
        rng.shuffle(rows)
        (target / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(allocation: str, seed: int, given: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """The metrics of every update of one run. Raises RuntimeError with the end of its output when it fails."""
    material = build()
    write_games(material.model.parent, folder, beyond=given.beyond)
    looked_at = given.updates * (BATCH if allocation in ("random", "prefix_only", "flat") else given.candidates)
    settings = {
        "--trace.allocation": allocation,
        "--trace.candidates": given.candidates,
        "--trace.predictor_lr": given.lr,
        "--trace.warmup_steps": 4,
        "--train.seed": seed,
        "--train.num_episodes": math.ceil(looked_at / ROWS),
        "--actor.adam.lr": given.policy_lr,
        "--actor.num_gpus_per_node": 1,
        "--pace.log_dir": folder,
        "--eval.dataset": folder / "calculator_eval.jsonl",
        "--eval.steps": given.updates,
        "--eval.n_samples_per_prompt": 4,
    }
    flags = [str(part) for setting in settings.items() for part in setting]
    environment = {
        "MODEL": str(material.model),
        "DATA": str(folder),
        "RUN_DIR": str(folder),
        "RAY_ADDRESS": "local",
        "MAX_SAMPLES": str(min(ROWS, looked_at)),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    command = ["bash", str(ROOT / "examples" / "scripts" / "train_trace_tree.sh"), *flags]
    with (folder / "output.log").open("w") as log:
        code = subprocess.run(command, env=os.environ | environment, stdout=log, stderr=log, check=False).returncode
    if code:
        raise RuntimeError(f"{allocation} ended with {code}:\n{(folder / 'output.log').read_text()[-2000:]}")
    lines = [json.loads(line) for line in (folder / "pace.jsonl").read_text().splitlines()]
    steps = [line["metrics"] for line in lines if line["kind"] == "step"][: given.updates]
    (end,) = [line["metrics"] for line in lines if line["kind"] == "evaluation"][-1:]
    held_out = {"held-out": end[f"eval_{tasks.GAMES}_pass1"], HELD_OUT: end.get("eval_predictor_spearman_root")}
    return [*steps[:-1], steps[-1] | held_out]


def arithmetic_share(step: Mapping[str, Any], ratio: float = 0.6 / 8) -> float:
    """The predictor's share of a step's arithmetic, with `ratio` times the policy's parameters.

    From the step's own counts, every text as long as a whole episode: a forward pass over each scored prefix and three
    over each example; for the policy one over each generated token, one over each row (its log-probs) and three more.
    """
    length, generated = step["total_length"], step["trace/cost/generated_tokens"]
    policy = generated + 4 * step["trace/cost/rows"] * length
    predictor = ratio * length * (step["trace/cost/scored"] + 3 * step["trace/predictor/examples"])
    return float(predictor / (predictor + policy))


def row(runs: Sequence[Sequence[dict[str, Any]]], *, skip: int, allocation: str = "trace") -> dict[str, float | None]:
    """The columns of one allocation over the runs of all seeds, without the first `skip` updates."""
    steps = [metrics for run in runs for metrics in run[skip:]]
    found = {name: [m[key] for m in steps if m.get(key) is not None] for name, key in COLUMNS.items()}
    cells = {name: statistics.fmean(values) if values else None for name, values in found.items()}
    mixed = [statistics.fmean(m["trace/effective_ratio/prompt"] for m in run[skip:]) for run in runs]
    spread = max(mixed) - min(mixed) if len(runs) > 1 else None
    ordered = [run[-1][HELD_OUT] for run in runs if run[-1].get(HELD_OUT) is not None]
    cells |= {
        AT_RECIPES: statistics.fmean(map(arithmetic_share, steps))
        if TraceConfig(allocation=allocation).predicts
        else 0.0,
        HELD_OUT: statistics.fmean(ordered) if ordered else None,
        "reward held-out": statistics.fmean(run[-1]["held-out"] for run in runs),
        "mixed, spread": spread,
    }
    return {"updates": statistics.fmean(map(len, runs)), **cells}


def table(rows: Rows) -> str:
    """The rows as text; `x flat` and `x random` are the share of mixed prompts against GRPO and uniform trees."""
    lines = [["allocation", *next(iter(rows.values())), "x flat", "x random"]]
    for allocation, cells in rows.items():
        ratios = (ratio(cells["mixed prompts"], rows.get(base)) for base in ("flat", "random"))
        texts = (
            "-" if value is None else f"{value:.3f}" if abs(value) < 10 else f"{value:.0f}"
            for value in (*cells.values(), *ratios)
        )
        lines.append([allocation, *texts])
    return aligned(lines)


def ratio(mixed: float | None, base: Mapping[str, float | None] | None) -> float | None:
    """`mixed` as a multiple of another row's share of mixed prompts, where there is one."""
    compared = (base or {}).get("mixed prompts")
    return mixed / compared if compared and mixed is not None else None


def above_flat(rows: Rows) -> tuple[bool, Numbers]:
    mixed = {name: rows[name]["mixed prompts"] or 0.0 for name in ("trace", "flat")}
    return mixed["trace"] >= 2 * mixed["flat"], mixed


def above_random(rows: Rows) -> tuple[bool, Numbers]:
    mixed = {name: rows[name]["mixed prompts"] or 0.0 for name in ("trace", "random")}
    return mixed["trace"] >= mixed["random"] + 0.095, mixed


def ordered(rows: Rows) -> tuple[bool, Numbers]:
    found = {name: rows["trace"][name] or 0.0 for name in (HELD_OUT, "spearman chosen")}
    return found[HELD_OUT] > 0.5, found


def cheap(rows: Rows) -> tuple[bool, Numbers]:
    share = rows["trace"][AT_RECIPES] or 0.0
    return share <= 0.03, {"trace": share}


CLAIMS = (
    Claim("mixed prompts of trace at least 2 times flat's", "goal", above_flat, ("trace", "flat")),
    Claim("mixed prompts of trace at least 0.095 above random's", "goal", above_random, ("trace", "random")),
    Claim("Spearman at roots above 0.5, of held-out prompts", "goal", ordered, ("trace",)),
    Claim("predictor at most 0.03 of a step's arithmetic, 0.6 B beside 8 B", "goal", cheap, ("trace",)),
)


def report(result: Mapping[str, Any]) -> str:
    """The table of all runs so far, and the goals."""
    given, runs = result["arguments"], result["runs"]
    found = {name: [ways[name] for ways in runs.values() if name in ways] for name in given["allocations"]}
    rows = {name: row(of_seeds, skip=given["skip"], allocation=name) for name, of_seeds in found.items() if of_seeds}
    by_seed = {
        seed: {name: row([run], skip=given["skip"]) for name, run in ways.items()} for seed, ways in runs.items()
    }
    what = f"{given['updates']} updates, seeds {given['seeds']}, {given['beyond']:.0%} beyond reach"
    return "\n".join([what, table(rows), *verdict_lines(judged(CLAIMS, by_seed))])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs everything and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=30, help="updates of each run (default %(default)s)")
    parser.add_argument("--beyond", type=float, default=2 / 3, help="share of games beyond reach (default 2/3)")
    parser.add_argument("--policy_lr", type=float, default=5e-5, help="learning rate of the policy (default 5e-5)")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate of the predictor (default %(default)s)")
    parser.add_argument("--skip", type=int, default=20, help="updates that no mean counts (default %(default)s)")
    parser.add_argument("--candidates", type=int, default=48, help="prompts to choose 16 from (default %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="seeds (default 1 2 3)")
    parser.add_argument("--allocations", nargs="+", choices=ALLOCATIONS, default=[*ALLOCATIONS])
    parser.add_argument("--json", type=Path, help="file for all numbers; one that was stopped goes on there")
    args = parser.parse_args(argv)
    given = {name: value for name, value in vars(args).items() if name != "json"}
    result = {"arguments": given}

    def measure(allocation: str, seed: int) -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory(prefix="trees-") as folder:
            return run(allocation, seed, args, Path(folder))

    measure_all(result, args.allocations, measure, args.json)
    print(report(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
