"""Reading the tables of docs/*.md: flags with defaults and ranges, logged keys."""

import itertools
import re
from dataclasses import Field
from pathlib import Path

from pace.knobs import Knob

ROOT = Path(__file__).resolve().parents[2]


def rows(doc: Path, title: str) -> list[list[str]]:
    """The cells of the table under a heading, without its head."""
    section = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", doc.read_text(), re.MULTILINE | re.DOTALL)
    assert section, f"{doc} has no section {title!r}"
    lines = [line for line in section[1].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def default_text(field: Field) -> str:
    if isinstance(field.default, bool):
        return "on" if field.default else "off"
    return f"`{field.default}`" if field.default != "" else "empty"


def range_text(field: Field) -> str:
    knob: Knob = field.metadata["knob"]
    if isinstance(field.default, bool):
        return "on, off"
    if knob.choices:
        return ", ".join(f"`{choice}`" for choice in knob.choices)
    if isinstance(field.default, str):
        return "any folder"
    return f"{knob.low:g} or more" if knob.high == float("inf") else f"{knob.low:g} to {knob.high:g}"


def expanded(pattern: str) -> set[str]:
    """`a/{b,c}/d` as a/b/d and a/c/d."""
    parts = [part.split(",") for part in re.split(r"[{}]", pattern)]
    return {"".join(choice) for choice in itertools.product(*parts)}


def documented_keys(system: str) -> set[str]:
    """The keys of docs/metrics.md under the heading `system`."""
    table = rows(ROOT / "docs" / "metrics.md", system)
    patterns = [pattern for cells in table for pattern in re.findall(r"`([^`]+)`", cells[0])]
    return set().union(*map(expanded, patterns))
