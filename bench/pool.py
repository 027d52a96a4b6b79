"""What the trajectory pool costs: a put, a draw, memory over a long run, and a step with 1 to 64 engines.

    python bench/pool.py [--groups 10000] [--size 16] [--batch 32] [--rounds N] [--quick] [--json FILE]

Latency: the pool holds that many ready groups; each round draws a batch (PACE's default settings, so twice as many are
measured and half of them rejected) and puts as many new groups as have left. Memory: a process of its own lets groups
of one trajectory pass through a leased pool; resident memory is read after a tenth of them and at the end. Engines:
named fakes on one event loop lease, roll out for a moment and put; the cost is the time inside calls of the pool,
per step, so that the fakes' own waiting does not count.
"""

import argparse
import asyncio
import gc
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pace.config import PaceConfig  # noqa: E402
from pace.leased_pool import LeasedPool  # noqa: E402
from pace.pool import TrajectoryPool  # noqa: E402
from pace.table import aligned  # noqa: E402
from pace.types import Trajectory, TrajectoryGroup, VersionSpan  # noqa: E402

ENGINES = (1, 4, 16, 64)
GOAL_DRAW_MS = 10.0
PAGE = os.sysconf("SC_PAGE_SIZE")
Value = TypeVar("Value")


def group(rng: random.Random, group_id: str, prompt_id: str, *, version: int, size: int) -> TrajectoryGroup:
    """A group ready at `version`, whose trajectories saw up to three versions and have scores."""
    trajectories = []
    for i in range(size):
        first = rng.randint(max(0, version - 2), version)
        trajectories.append(
            Trajectory(
                trajectory_id=f"{group_id}/{i}",
                group_id=group_id,
                prompt_id=prompt_id,
                spans=tuple(VersionSpan(v, rng.randint(1, 4000)) for v in range(first, version + 1)),
                completed_version=version,
                reward=rng.choice((0.0, 1.0)),
                prefix_score=rng.random() if first < version else None,
            )
        )
    return TrajectoryGroup(
        group_id=group_id, prompt_id=prompt_id, trajectories=tuple(trajectories), ready_version=version
    )


class Stopwatch:
    """Seconds of the calls made through it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, call: Callable[..., Value], *arguments: Any, **named: Any) -> Value:
        started = time.perf_counter()
        try:
            return call(*arguments, **named)
        finally:
            self.seconds.append(time.perf_counter() - started)

    def milliseconds(self) -> dict[str, float]:
        """Median and 99th percentile."""
        ordered = sorted(self.seconds)
        return {"p50": 1e3 * statistics.median(ordered), "p99": 1e3 * ordered[int(0.99 * (len(ordered) - 1))]}


def latency(*, groups: int, size: int, batch: int, rounds: int, seed: int = 0) -> dict[str, Any]:
    """Milliseconds of a put and of a draw with so many groups in the pool."""
    rng = random.Random(seed)
    config = PaceConfig(pool_capacity_groups=2 * groups, k_max=-1)
    pool = TrajectoryPool(config, batch_groups=batch, clock=time.monotonic, rng=rng)
    pool.window.add(rng.random() for _ in range(config.pfs_window))
    puts, draws = Stopwatch(), Stopwatch()
    n_made = 0

    def fill(n: int, version: int, put: Callable[..., Any]) -> None:
        nonlocal n_made
        for _ in range(n):
            made = group(rng, f"{rng.getrandbits(32):08x}-{n_made}", f"{n_made}", version=version, size=size)
            n_made += 1
            pool.ledger.start(made.group_id, version=version)
            put(pool.put, made)

    n_versions = 64
    for version in tqdm(range(n_versions), desc="filling the pool", unit="version"):
        fill(groups * (version + 1) // n_versions - n_made, version, lambda call, made: call(made))
    for version in tqdm(range(n_versions, n_versions + rounds), desc="put and draw", unit="step"):
        drawn = draws(pool.draw, version)
        assert drawn is not None
        pool.commit(version)
        fill(len(drawn.decisions), version, puts)
    return {"put": puts.milliseconds(), "draw": draws.milliseconds(), "puts": n_made - groups, "draws": rounds}


def resident_mib() -> float:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 2**20


def pass_through(total: int, *, batch: int) -> dict[str, float]:
    """Resident memory in MiB after a tenth of `total` groups and after all of them, and the seconds it took."""
    pool = LeasedPool(
        PaceConfig(), batch_groups=batch, n_prompts=10_000, n_episodes=1 << 30, seed=0, clock=time.monotonic
    )
    rng = random.Random(0)
    marks: list[float] = []
    started = time.perf_counter()
    version = n_made = 0
    for share in (0.1, 1.0):
        while n_made < total * share:
            for lease in pool.lease(batch + batch // 4):  # a load of 1.25
                pool.put(group(rng, lease.group_id, lease.prompt_id, version=version, size=1))
                n_made += 1
            if pool.draw(version) is not None:
                pool.commit(version)
                version += 1
                pool.set_version(version)
                pool.add_scores([rng.random()])
        gc.collect()
        marks.append(resident_mib())
    return {"groups": n_made, "early_mib": marks[0], "late_mib": marks[1], "seconds": time.perf_counter() - started}


def memory(total: int, *, batch: int) -> dict[str, float]:
    """`pass_through` in a fresh process, which holds nothing else."""
    program = (
        f"import json; from bench.pool import pass_through; print(json.dumps(pass_through({total}, batch={batch})))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def step_overhead(n_engines: int, *, steps: int, batch: int, size: int) -> float:
    """Milliseconds that calls of the pool take per step, median over steps, with so many engines."""
    spent: list[float] = asyncio.run(_engines(n_engines, steps=steps, batch=batch, size=size))
    return 1e3 * statistics.median(spent)


async def _engines(n_engines: int, *, steps: int, batch: int, size: int) -> list[float]:
    pool = LeasedPool(
        PaceConfig(), batch_groups=batch, n_prompts=1000, n_episodes=1 << 20, seed=0, clock=time.monotonic
    )
    watch = Stopwatch()
    share = max(1, 2 * batch // n_engines)  # together they keep two batches in flight

    async def engine(name: str) -> None:
        rng = random.Random(name)
        while True:
            leases = watch(pool.lease, share)
            await asyncio.sleep(rng.uniform(0.0, 1e-3))
            for lease in leases:
                made = group(rng, lease.group_id, lease.prompt_id, version=pool.version, size=size)
                watch(pool.put, made)

    tasks = [asyncio.create_task(engine(f"engine-{i}")) for i in range(n_engines)]
    spent: list[float] = []
    for version in range(steps):
        while watch(pool.draw, version) is None:
            await asyncio.sleep(1e-3)
        pool.commit(version)
        pool.set_version(version + 1)
        spent.append(sum(watch.seconds))
        watch.seconds.clear()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return spent[steps // 5 :]


def report(found: Mapping[str, Any]) -> str:
    """The numbers as tables."""
    latencies, used, steps = found["latency"], found["memory"], found["steps_ms"]
    rows = [["", "p50 ms", "p99 ms"]]
    rows += [[name, f"{latencies[name]['p50']:.3f}", f"{latencies[name]['p99']:.3f}"] for name in ("put", "draw")]
    held = "held" if latencies["draw"]["p99"] <= GOAL_DRAW_MS else "missed"
    grown = used["late_mib"] - used["early_mib"]
    lines = [aligned(rows), f"goal: p99 of a draw at most {GOAL_DRAW_MS:g} ms: {held}", ""]
    lines += [
        f"{used['groups']:.0f} groups in {used['seconds']:.0f} s: {used['early_mib']:.1f} MiB after a tenth of them, "
    ]
    lines[-1] += f"{used['late_mib']:.1f} at the end ({grown:+.1f})"
    first = next(iter(steps.values()))
    lines += [
        "",
        aligned(
            [["engines", "ms a step", "ratio"], *([n, f"{ms:.2f}", f"{ms / first:.2f}"] for n, ms in steps.items())]
        ),
    ]
    return "\n".join(lines)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=10_000, help="ready groups in the pool (default %(default)s)")
    parser.add_argument("--size", type=int, default=16, help="trajectories in a group (default %(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="groups in a batch (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=200, help="draws that are timed (default %(default)s)")
    parser.add_argument(
        "--through", type=int, default=1_000_000, help="groups of the memory run (default %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=50, help="steps per number of engines (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the memory run and a third of the rounds")
    parser.add_argument("--json", type=Path, help="file for all numbers")
    args = parser.parse_args(argv)
    for name, low in (("groups", 64), ("size", 1), ("batch", 1), ("rounds", 3), ("through", 10), ("steps", 5)):
        if getattr(args, name) < low:
            parser.error(f"--{name} must be at least {low}, got {getattr(args, name)}: leave it out")
    if 2 * args.batch > args.groups:
        parser.error(f"--batch must be at most half of --groups ({args.groups}), got {args.batch}: lower it")
    if args.quick:
        args.through, args.rounds = max(10, args.through // 10), max(3, args.rounds // 3)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Measures everything and prints it."""
    args = parse(argv)
    found: dict[str, Any] = {
        "latency": latency(groups=args.groups, size=args.size, batch=args.batch, rounds=args.rounds),
        "steps_ms": {
            f"{n}": step_overhead(n, steps=args.steps, batch=args.batch, size=args.size)
            for n in tqdm(ENGINES, desc="engines")
        },
        "memory": memory(args.through, batch=args.batch),
    }
    print(f"{args.groups} groups of {args.size}, batches of {args.batch}; machine load {os.getloadavg()[0]:.1f}\n")
    print(report(found))
    if args.json:
        settings = {name: value for name, value in vars(args).items() if name != "json"}
        about = {"cpus": os.cpu_count(), "machine": platform.machine(), "load": os.getloadavg()}
        args.json.write_text(json.dumps({"arguments": settings, "machine": about, **found}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
