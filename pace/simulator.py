"""What staleness and idle time a cluster will have, under each policy, before it is rented.

    python -m pace.simulator --cluster.slots 64 --cluster.train_s 120 [--pace.gamma 2] [--hours 10] [--json FILE]

Simulates the cluster (`pace.simulation_cluster`) around the pool that real runs use (`pace.simulation_run`), once per
policy and with the same work for each, and prints a table with advice. Invariant: the same flags give the same
numbers. In: numbers of a cluster, and any `--pace.*` flags of a run. Out: `Result` per policy.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pace import config as pace_config
from pace import simulation_cluster
from pace.config import PaceConfig, add_pace_args
from pace.knobs import add_args, read_args
from pace.simulation_cluster import Cluster
from pace.simulation_result import Result
from pace.simulation_run import Simulation, Stalled
from pace.table import aligned

# Nothing is thrown away: a full pool lets nothing start, and that is all.
_KEEP_ALL: dict[str, Any] = {"strict": False, "rank": "raw", "max_reject_rate": 0.0, "k_max": -1, "admission": "none"}
POLICIES: dict[str, dict[str, Any]] = {  # what each changes about the given --pace.* flags
    "unfiltered": _KEEP_ALL,
    "pace-raw": {"strict": False, "rank": "raw"},
    "pace-effective": {"strict": False, "rank": "effective"},
    "areal": _KEEP_ALL | {"admission": "areal"},
    "dora": _KEEP_ALL | {"admission": "dora"},
    "drop-oldest": _KEEP_ALL | {"rank": "oldest", "pool_capacity_groups": 1 << 30},
    "sync": {"strict": True, "rank": "raw"},
}
SHOWN = ("unfiltered", "pace-raw", "pace-effective", "areal", "sync")
COLUMNS: dict[str, Callable[[Result], str]] = {  # heading: how a result is written
    "step s": lambda r: _text(r.step_s, "{:.1f}"),
    "traj/s": lambda r: _text(r.trajectories_per_s, "{:.2f}"),
    "trainer idle": lambda r: _text(r.trainer_idle, "{:.1%}"),
    "rollout idle": lambda r: _text(r.rollout_idle, "{:.1%}"),
    "rejected": lambda r: _text(r.rejected, "{:.1%}"),
    "evicted": lambda r: _text(r.evicted, "{:.1%}"),
    "wasted": lambda r: _text(r.wasted, "{:.1%}"),
    "lag": lambda r: _text(r.lag("total"), "{:.2f}"),
    "p90": lambda r: _text(r.lag("total", "p90"), "{:.2f}"),
    "gen": lambda r: _text(r.lag("gen"), "{:.2f}"),
    "sib": lambda r: _text(r.lag("sib"), "{:.2f}"),
    "pool": lambda r: _text(r.lag("pool"), "{:.2f}"),
    "effective": lambda r: _text(r.lag("effective"), "{:.2f}"),
    "length": lambda r: _text(_ratio(r.length_trained, r.length_all), "{:.2f}"),
}
LEGEND = """\
lag: versions between a token and the update it trains, in trained groups (mean, p90) = gen (while generated) + sib
(until the group was ready) + pool; effective: as PACE weighs it. idle: of the trainer waiting for a batch, of slots
empty. rejected, evicted: of groups. wasted: of tokens. length: trained groups against all that left the pool."""


def simulate(
    cluster: Cluster,
    policy: str,
    *,
    base: PaceConfig | None = None,
    changed: Mapping[str, Any] | None = None,
    hours: float = 10.0,
    seed: int = 0,
    queue_batches: float = 1.0,
) -> Result:
    """One run of a policy of `POLICIES`, with the settings of `base` where the policy leaves them open.

    `changed` overrides both, for a variant of the policy.
    `queue_batches` is the queue of `drop-oldest`. Raises KeyError for another policy, Stalled when a run stands still.
    """
    config = replace(base or PaceConfig(), **POLICIES[policy] | dict(changed or {}))
    queue = queue_batches if policy == "drop-oldest" else None
    return Simulation(cluster, config, seed=seed, queue_batches=queue).run(hours)


def closed_form(load: float, *, slots_per_batch: float, queue_batches: float = 1.0) -> float:
    """Versions from a group's start to its training, where a queue drops its oldest; groups hold the slots.

    `load` is rho, `slots_per_batch` C / B, `queue_batches` q. First term: until ready; second: in the queue. Source:
    the form that Applied Compute published, with a slot per group (design: the tail of its slowest rollout cancels).
    """
    in_queue = load if load <= 1 else (2 * queue_batches + load - 1) / (2 * load)
    return slots_per_batch / max(1.0, load) + in_queue


def table(results: Mapping[str, Result]) -> str:
    """One line per policy."""
    lines = [[name, *(write(result) for write in COLUMNS.values())] for name, result in results.items()]
    return aligned([["", *COLUMNS], *lines])


def advice(cluster: Cluster, results: Mapping[str, Result]) -> list[str]:
    """What the numbers say about this cluster, one sentence a line."""
    lines = [_about_load(cluster.load)]
    ran = {name: result for name, result in results.items() if result.step_s}
    for name in results.keys() - ran.keys():
        lines.append(f"{name} trained nothing: its bounds are too narrow for rollouts this long")
    if not ran:
        return lines
    fastest = min(result.step_s or 0.0 for result in ran.values())
    quick = [name for name, result in ran.items() if (result.step_s or 0.0) <= 1.02 * fastest]
    best = min(quick, key=lambda name: ran[name].lag("total") or 0.0)
    lag = ran[best].lag("total") or 0.0
    lines.append(f"freshest within 2 % of the fastest step: {best} (lag {lag:.2f}, {ran[best].wasted:.0%} wasted)")
    inside = ran[best].lag("pool") or 0.0
    if lag > 0.5 and inside < 0.3 * lag:
        lines.append(
            f"{1 - inside / lag:.0%} of that lag is made before the pool, where no rejection reaches it: only fewer "
            "slots, shorter responses or smaller groups lower it"
        )
    if "sync" in ran:
        lines.append(f"synchronous training takes {(ran['sync'].step_s or 0.0) / fastest:.1f} times as long a step")
    return lines


def _about_load(load: float) -> str:
    if load > 1.03:
        return f"load {load:.2f}: rollout outruns training, so PACE has a surplus of {1 - 1 / load:.0%} to choose from"
    if load >= 0.97:
        return f"load {load:.2f}: balanced; chance alone makes a surplus, and PACE does little"
    return f"load {load:.2f}: training waits for rollout, so PACE is inert: more slots, or a smaller trainer"


def parser() -> argparse.ArgumentParser:
    """All flags."""
    made = argparse.ArgumentParser(
        prog="python -m pace.simulator",
        usage="%(prog)s [--cluster.<number> ...] [--pace.<setting> ...] [--policies ...] [--json FILE]",
        description="What staleness and idle time will my cluster have? Simulates it in virtual time, per policy.",
        epilog=LEGEND,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--policies", nargs="+", choices=POLICIES, default=[*SHOWN], help="what to compare")
    made.add_argument("--hours", type=float, default=10.0, help="virtual hours of each run, 0.01 to 1000 (default 10)")
    made.add_argument("--seed", type=int, default=0, help="seed of lengths, waits and drift (default 0)")
    made.add_argument(
        "--queue_batches", type=float, default=1.0, help="queue of drop-oldest in batches, 1 to 1000 (default 1)"
    )
    made.add_argument("--workers", type=int, default=0, help="processes, up to 256 (default 0: the CPUs)")
    made.add_argument("--json", type=Path, help="file for all numbers; - writes them in place of the table")
    title = "numbers of the cluster"
    add_args(made, Cluster, prefix=simulation_cluster.PREFIX, title=title, about="what the simulated machine is like")
    add_pace_args(made)
    return made


def settings(argv: Sequence[str] | None = None) -> tuple[argparse.Namespace, Cluster, PaceConfig]:
    """The flags, checked; one out of range ends the program, naming it and the fix."""
    made = parser()
    args = made.parse_args(argv)
    for name, low, high in (("hours", 0.01, 1000), ("queue_batches", 1, 1000), ("workers", 0, 256)):
        if not low <= getattr(args, name) <= high:
            made.error(f"--{name} must be between {low:g} and {high:g}, got {getattr(args, name)}: leave it out")
    try:
        nested = SimpleNamespace(cluster=_under(args, "cluster"), pace=_under(args, "pace"))
        cluster = Cluster(**read_args(nested, Cluster, prefix=simulation_cluster.PREFIX))
        config = pace_config.from_args(nested)
        config.capacity(cluster.batch_groups)
    except ValueError as error:
        made.error(str(error))
    return args, cluster, config


def main(argv: Sequence[str] | None = None) -> int:
    """Simulates every policy and prints the table."""
    args, cluster, base = settings(argv)
    fixed = {"base": base, "hours": args.hours, "seed": args.seed, "queue_batches": args.queue_batches}
    results: dict[str, Result] = {}
    with ProcessPoolExecutor(args.workers or min(len(args.policies), os.cpu_count() or 1)) as processes:
        runs = {name: processes.submit(simulate, cluster, name, **fixed) for name in args.policies}
        for name, run in runs.items():
            try:
                results[name] = run.result()
            except Stalled as error:
                print(f"{name}: {error}", file=sys.stderr)
    said = advice(cluster, results)
    if args.json:
        policies = {name: result.to_dict() for name, result in results.items()}
        content = {
            "seed": args.seed,
            "hours": args.hours,
            "cluster": asdict(cluster) | {"load": cluster.load},
            "policies": policies,
            "advice": said,
        }
        text = json.dumps(content, indent=1)
        if str(args.json) == "-":
            print(text)
        else:
            args.json.write_text(text)
    if str(args.json) != "-":
        print(table(results), f"\n{LEGEND}\n", *said, sep="\n")
    return 0 if len(results) == len(args.policies) else 1


def _under(args: argparse.Namespace, prefix: str) -> SimpleNamespace:
    """The dotted flags of one prefix as a namespace of their own."""
    names = {name: name.removeprefix(f"{prefix}.") for name in vars(args)}
    return SimpleNamespace(**{bare: getattr(args, name) for name, bare in names.items() if bare != name})


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


if __name__ == "__main__":
    sys.exit(main())
