"""Long benchmarks write their numbers after every run; one that was stopped goes on where it was."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm


def measure_all(
    result: dict[str, Any], ways: Sequence[str], measure: Callable[[str, int], Any], path: Path | None
) -> None:
    """Fills `result["runs"]`, by seed and way, with `measure(way, seed)`; the ways of one seed run in turn.

    `result["arguments"]` has the seeds. `path` gets everything after every run, and what it has is not measured again.
    """
    arguments = result["arguments"]
    runs = result["runs"] = {f"{seed}": {} for seed in arguments["seeds"]} | kept_runs(path, arguments)
    planned = [(seed, way) for seed in arguments["seeds"] for way in ways]
    for seed, way in tqdm([(seed, way) for seed, way in planned if way not in runs[f"{seed}"]], unit="run"):
        runs[f"{seed}"][way] = measure(way, seed)
        if path:
            path.write_text(json.dumps(result | {"finished": (seed, way) == planned[-1]}, indent=1))


def kept_runs(path: Path | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The runs that an invocation with the same arguments has left in `path`; none if it came to its end, which is
    said by the key `finished`, or if there is no such file."""
    if path is None or not path.exists():
        return {}
    before = json.loads(path.read_text())
    return {} if before.get("finished") or before["arguments"] != arguments else before["runs"]
