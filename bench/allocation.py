"""Root and prefix allocation: as good as the dynamic programs, and how long they take.

    python bench/allocation.py [--instances 1000] [--n 100000] [--budget 200000] [--json FILE]

Both allocations are checked against the dynamic program on random instances: scores uniform, saturated, rounded (many
ties), nearly equal, or from a small grid; budgets and caps at random. An instance is a mismatch if the budget isn't
spent, a count isn't allowed, or the value differs by more than 1e-9. Then both are timed, and the dynamic program on a
size it can do in time.
"""

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pace.table import aligned  # noqa: E402
from trace_alloc.allocation import (  # noqa: E402
    SCORE_MARGIN,
    allocate_prefixes,
    allocate_prefixes_reference,
    allocate_roots,
    allocate_roots_reference,
    feasible_budget,
    prefix_utility,
    root_utility,
    same_outcome,
)

TOLERANCE = 1e-9
CAP, PREFIX_CAP = 16, 4  # the functions' own defaults
REFERENCE_SIZE = 300  # prompts that the dynamic program is timed with; the budget in proportion
GRID = (0.0, 1e-5, 2e-4, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
Scores = NDArray[np.float64]
SHAPES: dict[str, Callable[[np.random.Generator, int], Scores]] = {
    "uniform": lambda rng, n: rng.random(n),
    "saturated": lambda rng, n: rng.beta(0.15, 0.15, n),
    "rounded": lambda rng, n: np.round(rng.random(n), 1),
    "nearly equal": lambda rng, n: (0.5 + rng.normal(0, 1e-3, n)).clip(0, 1),
    "grid": lambda rng, n: rng.choice(GRID, n),
}


class Check(NamedTuple):
    """What a comparison found."""

    mismatches: int
    largest_difference: float


def root_value(values: Scores, counts: Sequence[int]) -> float:
    """What a split of bare rollouts is worth."""
    return math.fsum(root_utility(values.clip(SCORE_MARGIN, 1 - SCORE_MARGIN), counts))


def prefix_value(values: Scores, outcomes: NDArray[np.int64], counts: Sequence[int]) -> float:
    """What a split of continuations is worth."""
    return math.fsum(prefix_utility(same_outcome(values, outcomes), counts))


def check_roots(rng: np.random.Generator, values: Scores) -> float | None:
    """Difference in value to the dynamic program, None if the split is not allowed."""
    cap = int(rng.integers(2, 9))
    budget = feasible_budget(len(values), int(rng.integers(0, len(values) * cap + 1)), cap)
    seed = int(rng.integers(1 << 30))
    fast = allocate_roots(values, budget, cap, seed)
    if sum(fast) != budget or not all(count == 0 or 2 <= count <= cap for count in fast):
        return None
    return abs(root_value(values, fast) - root_value(values, allocate_roots_reference(values, budget, cap, seed)))


def check_prefixes(rng: np.random.Generator, values: Scores) -> float | None:
    """Difference in value to the dynamic program, None if the split is not allowed."""
    cap = int(rng.integers(1, 7))
    budget = int(rng.integers(0, len(values) * cap + 1))
    outcomes, seed = rng.integers(0, 2, len(values)), int(rng.integers(1 << 30))
    fast = allocate_prefixes(values, outcomes, budget, cap, seed)
    if sum(fast) != budget or not all(0 <= count <= cap for count in fast):
        return None
    exact = allocate_prefixes_reference(values, outcomes, budget, cap, seed)
    return abs(prefix_value(values, outcomes, fast) - prefix_value(values, outcomes, exact))


def compare(check: Callable[[np.random.Generator, Scores], float | None], *, instances: int, seed: int) -> Check:
    """Runs a check on that many random instances of 1 to 20 inputs, every shape of scores in turn."""
    rng = np.random.default_rng(seed)
    shapes = list(SHAPES.values())
    found = [
        check(rng, shapes[i % len(shapes)](rng, int(rng.integers(1, 21))))
        for i in tqdm(range(instances), desc=check.__name__, unit="instance")
    ]
    largest = max((difference for difference in found if difference is not None), default=0.0)
    return Check(sum(difference is None or difference > TOLERANCE for difference in found), largest)


def seconds(call: Callable[..., Any], *arguments: Any, rounds: int) -> float:
    """Median seconds of a call."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        call(*arguments)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def timings(*, n: int, budget: int, rounds: int, seed: int) -> dict[str, dict[str, float]]:
    """Seconds of both allocations at full size, and of both and the dynamic programs at a size for those."""
    rng = np.random.default_rng(seed)
    result: dict[str, dict[str, float]] = {}
    small = min(n, REFERENCE_SIZE)
    for kind, fast, reference, cap in (
        ("root", allocate_roots, allocate_roots_reference, CAP),
        ("prefix", allocate_prefixes, allocate_prefixes_reference, PREFIX_CAP),
    ):

        def arguments(size: int, spend: int, kind: str = kind, cap: int = cap) -> tuple[Any, ...]:
            outcomes = () if kind == "root" else (rng.integers(0, 2, size),)
            return (rng.random(size), *outcomes, spend, cap, seed)

        reduced = arguments(small, budget * small // n)
        result[kind] = {
            "full_s": seconds(fast, *arguments(n, budget), rounds=rounds),
            "small_s": seconds(fast, *reduced, rounds=rounds),
            "reference_s": seconds(reference, *reduced, rounds=min(rounds, 3)),
        }
    return result


def report(result: Mapping[str, Any]) -> str:
    """The numbers as a table."""
    given, times = result["arguments"], result["seconds"]
    small = min(given["n"], REFERENCE_SIZE)
    head = ["", "instances", "mismatches", "largest difference"]
    head += [f"n {given['n']}, s", f"n {small}, ms", "dynamic program, ms", "ratio"]
    rows = [head]
    for kind, check in result["checks"].items():
        took = times[kind]
        cells = [f"{given['instances']}", f"{check['mismatches']}", f"{check['largest_difference']:.1e}"]
        cells += [f"{took['full_s']:.3f}", f"{1e3 * took['small_s']:.2f}", f"{1e3 * took['reference_s']:.1f}"]
        rows.append([kind, *cells, f"{took['reference_s'] / took['small_s']:.0f}"])
    return f"budget {given['budget']}, medians of {given['rounds']}\n{aligned(rows)}"


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=1000, help="random instances of each (default %(default)s)")
    parser.add_argument(
        "--n", type=int, default=100_000, help="prompts, or prefixes, that are timed (default %(default)s)"
    )
    parser.add_argument("--budget", type=int, default=200_000, help="rollouts to spend on them (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="timed calls, of which the median counts (default 5)")
    parser.add_argument("--seed", type=int, default=0, help="seed of everything (default 0)")
    parser.add_argument("--json", type=Path, help="file for all numbers")
    args = parser.parse_args(argv)
    for name in ("instances", "n", "rounds"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(args, name)}: leave it out")
    if not 2 <= args.budget <= args.n * CAP:
        parser.error(f"--budget must be between 2 and {CAP} times --n, got {args.budget}: use 2 times --n")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Checks and times both; the exit code says whether an instance differed."""
    args = parse(argv)
    checks = {
        "root": compare(check_roots, instances=args.instances, seed=args.seed),
        "prefix": compare(check_prefixes, instances=args.instances, seed=args.seed),
    }
    times = timings(n=args.n, budget=args.budget, rounds=args.rounds, seed=args.seed)
    settings = {name: value for name, value in vars(args).items() if name != "json"}
    about = {"cpus": os.cpu_count(), "machine": platform.machine(), "load": os.getloadavg()}
    found = {"checks": {kind: check._asdict() for kind, check in checks.items()}, "seconds": times}
    result = {"arguments": settings, "machine": about, **found}
    print(report(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))
    return 1 if any(check.mismatches for check in checks.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
