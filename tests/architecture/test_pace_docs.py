"""docs/pace.md says what the code does: every flag with its default and range, every logged key, and no others."""

import itertools
import re
from dataclasses import Field, fields
from pathlib import Path

import pytest

from pace.config import PaceConfig, flag
from pace.knobs import Knob
from pace.metrics import metric_keys

ROOT = Path(__file__).resolve().parents[2]
DOC = ROOT / "docs" / "pace.md"
# Where keys besides those of pace.metrics are made.
LOGGING = [ROOT / "openrlhf" / "trainer" / "fully_async" / name for name in ("training_actor.py", "weight_sync.py")]
KEY = re.compile(r"(?:pace|time|sync)/[\w/]+")


def rows(title: str) -> list[list[str]]:
    """The cells of the table under a heading, without its head."""
    section = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", DOC.read_text(), re.MULTILINE | re.DOTALL)
    assert section, f"docs/pace.md has no section {title!r}"
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


def documented_keys() -> set[str]:
    patterns = [pattern for cells in rows("What is logged") for pattern in re.findall(r"`([^`]+)`", cells[0])]
    return set().union(*map(expanded, patterns))


def written_keys() -> set[str]:
    """What the pipeline logs: the keys of pace.metrics, and those that its own files spell out."""
    literals = {key for path in LOGGING for key in re.findall(rf'"({KEY.pattern})"', path.read_text())}
    return literals | metric_keys()


def test_the_flag_table_has_every_field_in_order() -> None:
    assert [cells[0] for cells in rows("Flags")] == [f"`{flag(field.name)}`" for field in fields(PaceConfig)]


@pytest.mark.parametrize("field", fields(PaceConfig), ids=lambda field: field.name)
def test_defaults_and_ranges_are_the_codes(field: Field) -> None:
    (cells,) = [cells for cells in rows("Flags") if cells[0] == f"`{flag(field.name)}`"]
    assert cells[1:3] == [default_text(field), range_text(field)]
    assert len(cells) == 5 and all(cells)


def test_no_text_names_a_flag_that_is_not_there() -> None:
    texts = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {name for path in texts for name in re.findall(r"--pace\.(\w+)", path.read_text())}
    assert named <= {field.name for field in fields(PaceConfig)}


def test_every_loss_is_described() -> None:
    (loss,) = [field for field in fields(PaceConfig) if field.name == "loss"]
    assert tuple(cells[0].strip("`") for cells in rows("Losses")) == loss.metadata["knob"].choices


def test_every_key_is_described() -> None:
    assert sorted(written_keys() - documented_keys()) == []


def test_no_key_is_described_that_nothing_writes() -> None:
    assert sorted(documented_keys() - written_keys()) == []


def test_the_reading_of_patterns() -> None:
    assert expanded("a/{b,c}/{d,e}") == {"a/b/d", "a/b/e", "a/c/d", "a/c/e"}
    assert expanded("a/b") == {"a/b"}
