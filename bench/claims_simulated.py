"""The paper's claims about staleness and step time, on the simulator: held or not, with numbers.

    python bench/claims_simulated.py [--seeds 11 12 13] [--steps 250] [--json FILE]

A simulator shows what follows from rates, lengths and the pool's rules: lags, idle time, waste, whose work is kept. It
says nothing about learning. The cluster below stands for the paper's; its numbers were set with seed 1 alone:

- fitted: an update and its sync take 26.19 s (the paper's asynchronous step), rescoring 1.72 s (its difference between
  the two PACE variants), and lengths such that the slowest of a batch takes 70.8 s (its synchronous step, 97.01 s);
- assumed, as the paper says neither: batches of 32 groups of 16, a load of 1.2, the shape of lengths, the drift model;
- predicted: everything else. The first fifth of every run counts nowhere.

A claim is judged for each seed on its own and held if it is for all of them. Thresholds were fixed before the first
run on these seeds; that kept length and kept generation lag are two claims, not one, came after it.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.claims import Claim, Numbers, judged, verdict_lines  # noqa: E402
from pace.simulation_cluster import Cluster  # noqa: E402
from pace.simulation_result import Result  # noqa: E402
from pace.simulator import simulate  # noqa: E402

PAPER_STEP_S = {"sync": 97.01, "unfiltered": 26.19, "pace-raw": 26.50, "pace-effective": 28.22}
PAPER = Cluster(
    slots=43,
    batch_groups=32,
    group_size=16,
    mean_tokens=1219.0,
    spread=0.5,
    prompt_spread=0.4,
    tokens_per_s=100.0,
    train_s=24.19,
    sync_s=2.0,
    rescore_s=1.72,
)
BELOW = PAPER.at_load(0.8)
STALE, ETAS, GAMMAS = (1, 2, 4, 8), (1, 2, 4, 8), (1, 2, 4)

Runs = Mapping[str, Result]


def settings() -> dict[str, tuple[Cluster, str, dict[str, Any]]]:
    """Every run by name: cluster, policy, settings beyond the policy's."""
    runs: dict[str, tuple[Cluster, str, dict[str, Any]]] = {
        name: (PAPER, name, {}) for name in ("unfiltered", "pace-raw", "sync")
    }
    runs |= {f"gamma {gamma}": (PAPER, "pace-effective", {"gamma": float(gamma)}) for gamma in GAMMAS}
    runs |= {f"eta {eta}": (PAPER, "areal", {"admission_eta": eta}) for eta in ETAS}
    # Nothing is rejected but what is above the cap.
    runs |= {f"stale {k}": (PAPER, "unfiltered", {"k_max": k}) for k in STALE}
    runs |= {f"below {name}": (BELOW, name, {}) for name in ("unfiltered", "pace-effective")}
    return runs


def _lag(result: Result, part: str) -> float:
    """A mean lag. Raises ValueError if nothing was trained."""
    value = result.lag(part)
    if value is None:
        raise ValueError(f"no group to take the lag {part} of")
    return value


def _step(result: Result) -> float:
    return result.step_s or float("inf")


def _grows(values: Sequence[float]) -> bool:
    return all(low < high for low, high in zip(values, values[1:], strict=False))


def stale_k(runs: Runs) -> tuple[bool, Numbers]:
    lags = {f"lag at k={k}": _lag(runs[f"stale {k}"], "total") for k in STALE}
    return _grows(list(lags.values())), lags


def lag_bound(runs: Runs) -> tuple[bool, Numbers]:
    lags = [_lag(runs[f"eta {eta}"], "total") for eta in ETAS]
    idle = [runs[f"eta {eta}"].trainer_idle for eta in ETAS]
    numbers = {f"lag at eta={eta}": lag for eta, lag in zip(ETAS, lags, strict=True)}
    numbers |= {f"trainer idle at eta={eta}": share for eta, share in zip(ETAS, idle, strict=True)}
    return _grows(lags) and _grows([-share for share in idle[:2]]) and idle[0] > idle[-1], numbers


def backlog(runs: Runs) -> tuple[bool, Numbers]:
    plain = runs["unfiltered"]
    numbers = {"waiting": _lag(plain, "pool"), "pool in batches": plain.pool_batches or 0.0}
    return numbers["waiting"] > 3 and numbers["pool in batches"] > 3, numbers


def waiting(runs: Runs) -> tuple[bool, Numbers]:
    plain, paced = runs["unfiltered"], runs["gamma 4"]
    apart = paced.trainer_idle - plain.trainer_idle
    ratio = _lag(plain, "pool") / _lag(paced, "pool")
    numbers = {
        "unfiltered": _lag(plain, "pool"),
        "pace": _lag(paced, "pool"),
        "times lower": ratio,
        "times lower, siblings' wait included": (_lag(plain, "pool") + _lag(plain, "sib"))
        / (_lag(paced, "pool") + _lag(paced, "sib")),
        "trainer idle, pace less unfiltered": apart,
    }
    return ratio >= 3 and apart <= 0.01, numbers


def effective(runs: Runs) -> tuple[bool, Numbers]:
    plain, paced = _lag(runs["unfiltered"], "effective"), _lag(runs["gamma 4"], "effective")
    return paced < plain / 2, {"unfiltered": plain, "pace": paced, "times lower": plain / paced}


def generation(runs: Runs) -> tuple[bool, Numbers]:
    plain, paced = (_lag(runs[name], "gen") for name in ("unfiltered", "gamma 4"))
    return paced > 0.9 * plain, {"unfiltered": plain, "pace": paced}


def rejected_staler(runs: Runs) -> tuple[bool, Numbers]:
    paced = runs["gamma 4"]
    numbers: Numbers = {}
    for part in ("pool", "gen", "effective"):
        numbers |= {f"{part} kept": _lag(paced, part), f"{part} rejected": _lag(paced, f"rejected/{part}")}
    return all(numbers[f"{p} rejected"] > numbers[f"{p} kept"] for p in ("pool", "gen", "effective")), numbers


def longer_work(runs: Runs) -> tuple[bool, Numbers]:
    numbers: Numbers = {}
    for name, run in (("raw", runs["pace-raw"]), ("effective", runs["gamma 4"])):
        numbers[f"length kept / all, {name}"] = (run.length_trained or 0.0) / (run.length_all or 1.0)
        numbers[f"tokens wasted, {name}"] = run.wasted
    return numbers["length kept / all, effective"] > numbers["length kept / all, raw"], numbers


def older_work(runs: Runs) -> tuple[bool, Numbers]:
    raw, effective = (_lag(runs[name], "gen") for name in ("pace-raw", "gamma 4"))
    return effective > raw, {"raw": raw, "effective": effective}


def gammas(runs: Runs) -> tuple[bool, Numbers]:
    numbers = {f"lag at gamma={gamma}": _lag(runs[f"gamma {gamma}"], "total") for gamma in GAMMAS}
    waits = [_lag(runs[f"gamma {gamma}"], "pool") for gamma in GAMMAS]
    steps = [_step(runs[f"gamma {gamma}"]) for gamma in GAMMAS]
    numbers |= {f"waiting at gamma={gamma}": wait for gamma, wait in zip(GAMMAS, waits, strict=True)}
    alike = all(max(values) <= 1.15 * min(values) for values in (list(numbers.values())[: len(GAMMAS)], waits))
    return alike and max(steps) <= 1.02 * min(steps), numbers


def inert(runs: Runs) -> tuple[bool, Numbers]:
    plain, paced = runs["below unfiltered"], runs["below pace-effective"]
    same = abs(_lag(plain, "total") - _lag(paced, "total"))
    numbers = {"load": paced.load, "rejected": paced.rejected, "trainer idle": paced.trainer_idle}
    return paced.rejected == 0.0 and same < 0.05, numbers | {"difference in lag": same}


def step_time(runs: Runs) -> tuple[bool, Numbers]:
    found = {name: _step(runs["gamma 4" if name == "pace-effective" else name]) for name in PAPER_STEP_S}
    close = all(abs(found[name] / seconds - 1) <= 0.03 for name, seconds in PAPER_STEP_S.items())
    return close, found


CLAIMS = (
    Claim("a larger k admits staler data", "Stale-k", stale_k),
    Claim("a tighter lag bound is fresher and makes the trainer wait", "introduction", lag_bound),
    Claim("unfiltered, a backlog persists and data wait", "introduction", backlog),
    Claim("PACE: waiting staleness at least 3 times lower at equal trainer idle", "figure 7; factor ours", waiting),
    Claim("PACE: effective staleness lower (here: by half)", "figure 7", effective),
    Claim("PACE: no comparable decrease of generation staleness (here: at most 10 %)", "figure 7", generation),
    Claim("rejected groups are staler by waiting, generation and effective lag", "figure 6", rejected_staler),
    Claim("effective ranking keeps longer work than raw ranking", "method", longer_work),
    Claim("effective ranking keeps groups of larger generation lag than raw ranking", "method", older_work),
    Claim("gamma 1, 2, 4 are alike (lags within 15 %, steps within 2 %)", "appendix", gammas),
    Claim("below load 1 PACE is inert", "design", inert),
    Claim("step times within 3 %: sync 97.01, async 26.19, raw 26.50, effective 28.22 s", "figure 8", step_time),
)


def run_one(name: str, seed: int, steps: int) -> Result:
    """One of `settings`, for about that many updates."""
    cluster, policy, changed = settings()[name]
    hours = steps * (cluster.train_s + cluster.sync_s) * max(1.0, 1 / cluster.load) / 3600
    hours *= 4 if policy == "sync" else 1  # its steps are as much longer
    return simulate(cluster, policy, changed=changed, hours=hours, seed=seed)


def report(result: Mapping[str, Any]) -> str:
    """The verdicts."""
    given = result["arguments"]
    loads = f"load {PAPER.load:.2f} and {BELOW.load:.2f}"
    what = f"{loads}; seeds {given['seeds']}, about {given['steps']} updates each"
    return "\n".join([what, *verdict_lines(result["claims"])])


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13], help="seeds (default 11 12 13)")
    parser.add_argument("--steps", type=int, default=250, help="updates of each run, about (default %(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: the CPUs)")
    parser.add_argument("--json", type=Path, help="file for all numbers")
    args = parser.parse_args(argv)
    for name, low in (("steps", 20), ("workers", 1)):
        if getattr(args, name) < low:
            parser.error(f"--{name} must be at least {low}, got {getattr(args, name)}: leave it out")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Runs everything and prints the verdicts; a claim that does not hold is a result, not an error."""
    args = parse(argv)
    with ProcessPoolExecutor(args.workers) as processes:
        tasks = {
            (seed, name): processes.submit(run_one, name, seed, args.steps)
            for seed in args.seeds
            for name in settings()
        }
        done = {key: task.result() for key, task in tqdm(tasks.items(), unit="run")}
    verdicts = judged(CLAIMS, {seed: {name: done[seed, name] for name in settings()} for seed in args.seeds})
    about = {"cpus": os.cpu_count(), "machine": platform.machine()}
    runs = [{"seed": seed, "run": name, **result.to_dict()} for (seed, name), result in done.items()]
    given = {"seeds": args.seeds, "steps": args.steps}
    result = {"arguments": given, "machine": about, "claims": verdicts, "runs": runs}
    print(report(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
