"""What a benchmark claims: judged for each seed on its own, held if it is for all of them."""

import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pace.table import aligned

Numbers = dict[str, float]
Runs = Mapping[str, Any]  # one seed's, by name


@dataclass(frozen=True)
class Claim:
    """What is claimed, where, and how one seed's runs are judged: whether it holds, and the numbers.

    `ways` are the runs it is about; a seed that lacks one of them says nothing.
    """

    text: str
    source: str
    judge: Callable[[Any], tuple[bool, Numbers]]
    ways: tuple[str, ...] = ()


def judged(claims: Iterable[Claim], runs: Mapping[Hashable, Runs]) -> list[dict[str, Any]]:
    """Every claim over the seeds that have all of its ways: held or not, by seed, and its numbers by seed."""
    verdicts = []
    for claim in claims:
        found = {f"{seed}": claim.judge(ways) for seed, ways in runs.items() if set(claim.ways) <= ways.keys()}
        if not found:
            continue
        numbers: dict[str, list[float]] = {}
        for _, values in found.values():
            for key, value in values.items():
                numbers.setdefault(key, []).append(value)
        by_seed = {seed: held for seed, (held, _) in found.items()}
        verdict = {"claim": claim.text, "source": claim.source, "held": all(by_seed.values()), "by_seed": by_seed}
        verdicts.append(verdict | {"numbers": numbers})
    return verdicts


def verdict_lines(verdicts: Iterable[Mapping[str, Any]]) -> list[str]:
    """One line per claim, and one per number: mean, and the range over seeds."""
    lines = []
    for verdict in verdicts:
        by_seed = verdict["by_seed"]
        state = "held" if verdict["held"] else f"NOT HELD ({sum(by_seed.values())} of {len(by_seed)} seeds)"
        lines.append(f"{state}: {verdict['claim']} [{verdict['source']}]")
        lines.append(aligned([[f"    {name}", *spread(values)] for name, values in verdict["numbers"].items()]))
    return lines


def spread(values: Sequence[float]) -> tuple[str, str]:
    """Mean and range, as text."""
    return f"{statistics.fmean(values):.3f}", f"{min(values):.3f} to {max(values):.3f}"
