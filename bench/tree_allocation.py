"""The six ways to spend one rollout budget on the calculator task, side by side: mixed groups, reward, tokens.

    python bench/tree_allocation.py [--updates N] [--seeds S ...] [--allocations trace random ...] [--json FILE]

Every run is `examples/scripts/train_trace_tree.sh` with another `--trace.allocation`: the same small model, the same
number of updates of 16 prompts each, the same budget M (1 + N / 2) = 128 rollouts an update. Runs take turns. A run is
given as many prompts as it looks at: those that choose get more candidates, which is what they are for.

Effective ratio: share of trained prompts with both outcomes (prompt), share of continued prefixes' leaves below mixed
ones (anchor). All numbers are means over the updates after the warm-up and over the seeds; reward is that of the last
quarter. `predictor` is the share of the step that scoring and learning take.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

BATCH = 16
ROWS = 336  # of the data set's 357: seven rounds of 48 candidates
ALLOCATIONS = ("trace", "root_only", "prefix_only", "random", "pcl", "flat")
COLUMNS = {
    "mixed prompts": "trace/effective_ratio/prompt",
    "mixed anchors": "trace/effective_ratio/anchor",
    "units": "trace/cost/units",
    "tokens": "trace/cost/generated_tokens",
    "spearman root": "trace/predictor/spearman_root",
    "spearman prefix": "trace/predictor/spearman_prefix",
    "predictor": "trace/cost/predictor_share",
}


def run(allocation: str, *, updates: int, candidates: int, seed: int, folder: Path) -> list[dict[str, Any]]:
    """The metrics of every update of one run. Raises RuntimeError with the end of its output when it fails."""
    from examples.tiny.build import build

    material = build()
    looked_at = updates * (BATCH if allocation in ("random", "prefix_only", "flat") else candidates)
    episodes = math.ceil(looked_at / ROWS)
    flags = ["--trace.allocation", allocation, "--trace.candidates", str(candidates), "--train.seed", str(seed)]
    flags += ["--actor.num_gpus_per_node", "1", "--pace.log_dir", str(folder)]
    flags += ["--train.num_episodes", str(episodes)]
    environment = {
        "MODEL": str(material.model),
        "DATA": str(material.model.parent),
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
    return [line["metrics"] for line in lines if line["kind"] == "step"][:updates]


def row(runs: Sequence[Sequence[dict[str, Any]]]) -> dict[str, float | None]:
    """The columns of one allocation over the runs of all seeds, without the first update (warm-up)."""
    steps = [metrics for run in runs for metrics in run[1:]]
    last = [metrics for run in runs for metrics in run[-max(1, len(run) // 4) :]]
    found = {name: [m[key] for m in steps if m.get(key) is not None] for name, key in COLUMNS.items()}
    cells = {name: statistics.fmean(values) if values else None for name, values in found.items()}
    return {"updates": statistics.fmean(map(len, runs)), **cells, "reward": mean_of(last, "rollout/reward_mean")}


def mean_of(steps: Sequence[dict[str, Any]], key: str) -> float:
    return statistics.fmean(step[key] for step in steps)


def table(rows: dict[str, dict[str, float | None]]) -> str:
    """The rows as text; `x random` is the share of mixed prompts against uniform allocation."""
    base = (rows.get("random") or {}).get("mixed prompts")
    names = [*next(iter(rows.values())), "x random"]
    lines = ["  ".join(["allocation".ljust(12), *(name.rjust(15) for name in names)])]
    for allocation, cells in rows.items():
        mixed = cells["mixed prompts"]
        shown = {**cells, "x random": mixed / base if base and mixed is not None else None}
        texts = (
            "-" if value is None else f"{value:.3f}" if abs(value) < 10 else f"{value:.0f}" for value in shown.values()
        )
        lines.append("  ".join([allocation.ljust(12), *(text.rjust(15) for text in texts)]))
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs everything and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=14, help="updates of each run (default %(default)s)")
    parser.add_argument("--candidates", type=int, default=48, help="prompts to choose 16 from (default %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="one run of each allocation per seed")
    parser.add_argument("--allocations", nargs="+", choices=ALLOCATIONS, default=ALLOCATIONS)
    parser.add_argument("--json", type=Path, help="file for all numbers")
    args = parser.parse_args(argv)
    runs: dict[str, list[list[dict[str, Any]]]] = {allocation: [] for allocation in args.allocations}
    for seed, allocation in tqdm([(s, a) for s in args.seeds for a in args.allocations], unit="run"):
        with tempfile.TemporaryDirectory(prefix="trees-") as folder:
            found = run(allocation, updates=args.updates, candidates=args.candidates, seed=seed, folder=Path(folder))
        runs[allocation].append(found)
        if args.json:
            args.json.write_text(json.dumps(runs))
    print(table({allocation: row(found) for allocation, found in runs.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
