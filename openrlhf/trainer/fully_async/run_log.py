"""The run's own log, `pace.jsonl`: settings, every step with every decision of the pool, evaluations.

Invariant: a line is one JSON object with `kind` and `time` (seconds since 1970), written whole and at once; NaN and
infinity are null. The lines of kind `step` are enough to decide every batch again (`pace.selection.replay`).
"""

import dataclasses
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pace.config import PaceConfig
from pace.state import pack, pack_draw
from pace.types import PoolDraw

NAME = "pace.jsonl"


class RunLog:
    """Appends to `folder/pace.jsonl`; a resumed run goes on in the same file, behind its last whole line."""

    def __init__(self, folder: str | Path) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.path = Path(folder) / NAME
        _cut_torn_line(self.path)
        self._file = self.path.open("a", buffering=1)

    def settings(self, config: PaceConfig, *, batch_groups: int, start_step: int, **more: Any) -> None:
        """Written when training begins."""
        self.write(
            "settings", pace=dataclasses.asdict(config), batch_groups=batch_groups, start_step=start_step, **more
        )

    def step(self, step: int, draw: PoolDraw, metrics: Mapping[str, Any]) -> None:
        """Written when update number `step` is done."""
        numbers = {key: value for key, value in metrics.items() if isinstance(value, int | float)}
        self.write("step", step=step, metrics=numbers, draw=pack_draw(draw, with_groups=False))

    def end(self, evicted: tuple[Any, ...], metrics: Mapping[str, float]) -> None:
        """Written when nothing more will come: groups evicted after the last batch, and the final accounts."""
        self.write("end", evicted=[pack(decision) for decision in evicted], metrics=metrics)

    def write(self, kind: str, **content: Any) -> None:
        """One line."""
        line = json.dumps(_plain({"kind": kind, "time": time.time(), **content}), allow_nan=False)
        self._file.write(line + "\n")

    def close(self) -> None:
        """Ends the file."""
        self._file.close()


def read(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a log; a last line that was not written to its end is left out."""
    lines = Path(path).read_text().split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


def _cut_torn_line(path: Path) -> None:
    """A process that died while writing left no line end; what follows would make one broken line with it."""
    if path.exists():
        with path.open("r+b") as file:
            file.truncate(file.read().rfind(b"\n") + 1)


def _plain(value: Any) -> Any:
    """As JSON takes it: tensors and arrays as numbers, what isn't finite as None, anything foreign as text."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, int | str) else str(value)
