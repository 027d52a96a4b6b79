"""Long benchmarks write their numbers after every run; one that was stopped goes on where it was."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def kept_runs(path: Path | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The runs that an invocation with the same arguments has left in `path`; none if it came to its end, which is
    said by the key `finished`, or if there is no such file."""
    if path is None or not path.exists():
        return {}
    before = json.loads(path.read_text())
    return {} if before.get("finished") or before["arguments"] != arguments else before["runs"]
