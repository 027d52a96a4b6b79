"""The paper's claims about learning, on the small model: held or not, with numbers.

    python bench/claims_learnt.py [--updates N] [--seeds S ...] [--ways sync async ...] [--json FILE]

Every run is as those of bench/step_time.py in its `uniform` setting: arithmetic, batches of 16 prompts with 16
rollouts, the engine on a core of its own, where rollouts outrun training. Only the flags of its way and the seed
differ; all ways of one seed run in turn. sync, async and unfiltered are what they are there; stale-k evicts what is
more than k versions old and rejects nothing else; m2po is unfiltered with that loss; gamma-g is PACE with effective
ranking; generation ranks by generation lag alone.

Reward is the mean of a batch, smoothed over SMOOTH updates; early is the mean over the first third of the updates.
Time counts from the first update of a run. A claim is judged for each seed on its own and held if it is for all of
them; the thresholds were fixed before the first run on these seeds. A claim whose ways were not all run is left out.
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench import step_time  # noqa: E402
from bench.claims import Claim, Numbers, judged, spread, verdict_lines  # noqa: E402
from bench.kept import measure_all  # noqa: E402
from bench.processes import running  # noqa: E402
from bench.step_time import POOL, Update, command, follow, logged_steps  # noqa: E402
from pace.table import aligned  # noqa: E402

UNFILTERED = step_time.WAYS["unfiltered"]
GAMMAS, STALE = (1, 2, 4), (1, 4, 8)
WAYS: dict[str, tuple[str, ...]] = {
    **{way: step_time.WAYS[way] for way in ("sync", "async", "unfiltered")},
    **{f"stale-{k}": (*UNFILTERED, "--pace.k_max", f"{k}") for k in STALE},
    "m2po": (*UNFILTERED, "--pace.loss", "m2po"),
    "pace-raw": step_time.WAYS["pace-raw"],
    **{f"gamma-{g}": (*POOL, "--pace.rank", "effective", "--pace.gamma", f"{g}") for g in GAMMAS},
    "generation": (*POOL, "--pace.rank", "generation"),
}
PACE = "gamma-4"
SMOOTH = 5
LIMIT_S = 300.0
LAGS = ("pool", "gen", "effective", "total")

Runs = Mapping[str, dict[str, Any]]  # by way: at (seconds of every update), reward, lags


def smoothed(values: Sequence[float]) -> list[float]:
    """Trailing means over up to SMOOTH values."""
    return [statistics.fmean(values[max(0, i + 1 - SMOOTH) : i + 1]) for i in range(len(values))]


def early(run: Mapping[str, Any]) -> float:
    """Mean reward of the first third of the updates."""
    rewards = run["reward"]
    return statistics.fmean(rewards[: max(1, len(rewards) // 3)])


def best(run: Mapping[str, Any]) -> float:
    """The highest smoothed reward."""
    return max(smoothed(run["reward"]))


def reached(run: Mapping[str, Any], reward: float) -> float:
    """Seconds until the smoothed reward is that high; infinite if it never is."""
    steps = zip(run["at"], smoothed(run["reward"]), strict=True)
    return next((at for at, value in steps if value >= reward), float("inf"))


def stale_k(runs: Runs) -> tuple[bool, Numbers]:
    found = {f"early reward, k={k}": early(runs[f"stale-{k}"]) for k in STALE}
    values = list(found.values())
    return all(low >= high for low, high in zip(values, values[1:], strict=False)), found


def staleness(runs: Runs) -> tuple[bool, Numbers]:
    found = {f"{part}, {way}": runs[way]["lags"][part] for part in LAGS[:3] for way in ("unfiltered", PACE)}
    lower = all(found[f"{part}, {PACE}"] < found[f"{part}, unfiltered"] / 2 for part in ("pool", "effective"))
    return lower and found[f"gen, {PACE}"] > 0.9 * found["gen, unfiltered"], found


def time_to_best(runs: Runs) -> tuple[bool, Numbers]:
    wanted = best(runs["unfiltered"])
    times = {way: reached(runs[way], wanted) for way in ("unfiltered", PACE)}
    share = times[PACE] / times["unfiltered"] if times["unfiltered"] else float("inf")
    return share <= 0.82, {"best reward, unfiltered": wanted, "share of unfiltered's time": share}


def peak(runs: Runs) -> tuple[bool, Numbers]:
    ways = [way for way in ("sync", "async", "unfiltered", "m2po", "pace-raw", "generation", PACE) if way in runs]
    found = {f"peak, {way}": best(runs[way]) for way in ways}
    return found[f"peak, {PACE}"] >= max(found[f"peak, {way}"] for way in ways if way != "sync"), found


def gammas(runs: Runs) -> tuple[bool, Numbers]:
    found = {f"mean reward, gamma={g}": statistics.fmean(runs[f"gamma-{g}"]["reward"]) for g in GAMMAS}
    return max(found.values()) - min(found.values()) <= 0.05, found


CLAIMS = (
    Claim("a larger k slows early learning", "Stale-k", stale_k, tuple(f"stale-{k}" for k in STALE)),
    Claim(
        "PACE halves waiting and effective staleness and leaves generation staleness (within 10 %)",
        "figure 7; factors ours",
        staleness,
        ("unfiltered", PACE),
    ),
    Claim(
        "PACE takes at most 0.82 of unfiltered's time to its best reward", "text", time_to_best, ("unfiltered", PACE)
    ),
    Claim("PACE's peak reward is the highest of the asynchronous ways", "table", peak, ("async", "unfiltered", PACE)),
    Claim(
        "gamma 1, 2, 4 are alike (mean rewards within 0.05)", "appendix", gammas, tuple(f"gamma-{g}" for g in GAMMAS)
    ),
)


def curve(updates: Sequence[Update], log: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is kept of a run. Raises ValueError when a line lacks the reward."""
    rewards = [update.metrics.get("rollout/reward_mean") for update in updates]
    if None in rewards:
        raise ValueError(f"no reward at update {updates[rewards.index(None)].step}")
    lags = {part: [entry.get(f"pace/staleness/{part}/mean") for entry in log] for part in LAGS}
    means = {part: [value for value in values if value is not None] for part, values in lags.items()}
    return {
        "at": [update.at - updates[0].at for update in updates],
        "reward": rewards,
        "lags": {part: statistics.fmean(values) if values else None for part, values in means.items()},
    }


def measure(way: str, seed: int, args: argparse.Namespace, material: Any) -> dict[str, Any]:
    """One run. Raises step_time.Failed."""
    with tempfile.TemporaryDirectory(prefix="claims-") as name:
        folder, log = Path(name), Path(name) / "run.log"
        flags = (*WAYS[way], "--train.seed", f"{seed}")
        arguments = command("uniform", flags, folder, n_updates=args.updates, material=material)
        with running(arguments, log, seed, shared=args.shared) as process:
            updates = list(follow(process, log, n_updates=args.updates, limit_s=LIMIT_S))
        return curve(updates, logged_steps(folder)[: args.updates])


def report(result: Mapping[str, Any]) -> str:
    """Verdicts, and the rewards and speeds of all ways: means, and the range over seeds."""
    lines = [f"{result['arguments']['updates']} updates, seeds {', '.join(result['runs'])}"]
    lines += verdict_lines(judged(CLAIMS, result["runs"]))
    rows = [["", "mean reward", "range", "peak", "range", "s an update", "range"]]
    for way in WAYS:
        runs = [ways[way] for ways in result["runs"].values() if way in ways]
        if runs:
            means = [statistics.fmean(run["reward"]) for run in runs]
            pace = [run["at"][-1] / (len(run["at"]) - 1) for run in runs]
            rows.append([way, *spread(means), *spread([best(run) for run in runs]), *spread(pace)])
    return "\n".join([*lines, "", aligned(rows)])


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=40, help="updates of each run (default %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13], help="seeds (default 11 12 13)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS], help="ways (default all)")
    parser.add_argument("--shared", action="store_true", help="engine and training share all cores")
    parser.add_argument("--json", type=Path, help="file for all numbers; one that was stopped goes on there")
    args = parser.parse_args(argv)
    if args.updates < 2 * SMOOTH:
        parser.error(f"--updates must be at least {2 * SMOOTH}, got {args.updates}: leave it out")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Runs everything and prints the verdicts; a claim that does not hold is a result, not an error."""
    args = parse(argv)
    from examples.tiny import build

    material = build.build(report=lambda text: print(f"small model: {text}", flush=True))
    given = {name: value for name, value in vars(args).items() if name != "json"}
    result: dict[str, Any] = {"arguments": given, "machine": {"cpus": os.cpu_count(), "machine": platform.machine()}}
    measure_all(result, args.ways, lambda way, seed: measure(way, seed, args, material), args.json)
    print(report(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
