"""`python -m openrlhf.cli.preflight [flags of train_ppo_ray]`: would this run start here?

Prints one table (check, found, wanted, ok or FAIL) and a fix for every failure. Exit code 0 only when nothing failed.
Without flags the machine alone is looked at. Nothing is started but two processes: one tries the user's own file, one
asks Ray.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

from openrlhf import platforms
from openrlhf.launch import arguments, inputs, machine, ray_probe, resources
from openrlhf.launch.machine import Finding
from openrlhf.launch.problem import Problem
from openrlhf.launch.ray_probe import Cluster, Probe

# Longer texts are cut in the table; the fixes below it are whole.
CELL = 64


def main(argv: Sequence[str] | None = None) -> int:
    own, rest = _parser().parse_known_args(argv)
    if own.wait and own.ray_address:
        ray_probe.wait_for(own.ray_address, own.wait)
    probe = _probe(own.ray_address)
    findings = [*examine(_parse(rest), probe)]
    print(table(findings))
    problems = list(dict.fromkeys(finding.problem for finding in findings if finding.problem is not None))
    for number, problem in enumerate(problems, start=1):
        print(f"\n{number}. {problem.flag}: {problem.what}.\n   Fix: {problem.fix}.")
    plural = "s" if len(problems) > 1 else ""
    print(f"\n{len(problems)} problem{plural} found." if problems else "\nReady.")
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m openrlhf.cli.preflight",
        usage="%(prog)s [-h] [--ray-address ADDRESS [--wait SECONDS]] [any flags of train_ppo_ray]",
        description="Checks versions, devices, memory, disks, Ray and, with the flags of a run, the run's own inputs.",
        allow_abbrev=False,
    )
    parser.add_argument("--ray-address", help="cluster to look at (default: RAY_ADDRESS, or one that runs here)")
    parser.add_argument(
        "--wait", type=float, default=0.0, help="seconds that the cluster at --ray-address has to come up"
    )
    return parser


def _parse(argv: Sequence[str]) -> SimpleNamespace | None:
    if not argv:
        return None
    from openrlhf.launch import flags  # runs upstream's file, which imports everything

    return flags.parse(argv)


def _probe(address: str | None) -> Probe | None:
    """Asks the cluster that a run would join; None when it would start its own."""
    address = address or os.environ.get("RAY_ADDRESS")
    if address:
        return None if address == "local" else ray_probe.start(address)
    if ray_probe.running_here() is None:
        return None
    probe = ray_probe.start("auto")
    return None if probe.error else probe  # a note that a dead cluster left behind


def examine(args: SimpleNamespace | None, probe: Probe | None) -> Iterator[Finding]:
    """Every line of the report."""
    yield from machine.examine(args)
    flag_problems: list[Problem] = []
    if args is not None:
        flag_problems = arguments.check(args)
        yield from _findings("flags", "all in range, none in conflict", "valid flags", flag_problems)
        for section in inputs.examine(args):
            yield from _findings(section.name, section.subject, "readable, complete", section.problems)
    state = probe.result() if probe is not None else None
    yield from machine.cluster(state)
    if args is not None and not flag_problems and (state is None or state.reached):
        yield _resources(resources.plan(args), state)


def _findings(check: str, found: str, wanted: str, problems: Sequence[Problem]) -> Iterator[Finding]:
    """One line when all is well, else one for each problem."""
    if not problems:
        yield Finding(check, found, wanted)
    for problem in problems:
        yield Finding(check, f"{problem.flag} {problem.what}", wanted, problem)


def _resources(plan: resources.Plan, state: Cluster | None) -> Finding:
    if state is not None:
        total, nodes = state.totals(), state.nodes
    elif platforms.name() == "cpu":
        return Finding("resources", "its own Ray, with as many logical GPUs", str(plan))
    else:
        import torch

        total = {"GPU": float(torch.cuda.device_count()), "CPU": float(os.cpu_count() or 1)}
        nodes = [total]
    found = f"{total.get('GPU', 0):g} GPUs, {total.get('CPU', 0):g} CPUs on {len(nodes)} nodes"
    problems = resources.check(plan, total, nodes)
    return Finding("resources", found, str(plan), problems[0] if problems else None)


def table(findings: Sequence[Finding]) -> str:
    """The findings as aligned plain text."""
    rows = [(item.check, _cut(item.found), _cut(item.wanted), "FAIL" if item.problem else "ok") for item in findings]
    rows.insert(0, ("check", "found", "wanted", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "-+-".join("-" * width for width in widths))
    return "\n".join(lines)


def _cut(text: str) -> str:
    return text if len(text) <= CELL else f"{text[: CELL - 3]}..."


if __name__ == "__main__":
    sys.exit(main())
