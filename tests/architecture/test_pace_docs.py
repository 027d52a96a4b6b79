"""docs/pace.md and metrics.md say what the code does: every flag, default, range and logged key, and no others."""

import re
from dataclasses import Field, fields

import pytest

from pace.config import PaceConfig, flag
from pace.metrics import metric_keys

from .doc_tables import ROOT, default_text, documented_keys, expanded, range_text, rows

DOC = ROOT / "docs" / "pace.md"
# Where keys besides those of pace.metrics are made.
LOGGING = [ROOT / "openrlhf" / "trainer" / "fully_async" / name for name in ("training_actor.py", "weight_sync.py")]
KEY = re.compile(r"(?:pace|time|sync)/[\w/]+")


def written_keys() -> set[str]:
    """What the pipeline logs: the keys of pace.metrics, and those that its own files spell out."""
    literals = {key for path in LOGGING for key in re.findall(rf'"({KEY.pattern})"', path.read_text())}
    return literals | metric_keys()


def test_the_flag_table_has_every_field_in_order() -> None:
    assert [cells[0] for cells in rows(DOC, "Flags")] == [f"`{flag(field.name)}`" for field in fields(PaceConfig)]


@pytest.mark.parametrize("field", fields(PaceConfig), ids=lambda field: field.name)
def test_defaults_and_ranges_are_the_codes(field: Field) -> None:
    (cells,) = [cells for cells in rows(DOC, "Flags") if cells[0] == f"`{flag(field.name)}`"]
    assert cells[1:3] == [default_text(field), range_text(field)]
    assert len(cells) == 5 and all(cells)


def test_no_text_names_a_flag_that_is_not_there() -> None:
    texts = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {name for path in texts for name in re.findall(r"--pace\.(\w+)", path.read_text())}
    assert named <= {field.name for field in fields(PaceConfig)}


def test_every_loss_is_described() -> None:
    (loss,) = [field for field in fields(PaceConfig) if field.name == "loss"]
    assert tuple(cells[0].strip("`") for cells in rows(DOC, "Losses")) == loss.metadata["knob"].choices


def test_every_key_is_described() -> None:
    assert sorted(written_keys() - documented_keys("PACE")) == []


def test_no_key_is_described_that_nothing_writes() -> None:
    assert sorted(documented_keys("PACE") - written_keys()) == []


def test_the_reading_of_patterns() -> None:
    assert expanded("a/{b,c}/{d,e}") == {"a/b/d", "a/b/e", "a/c/d", "a/c/e"}
    assert expanded("a/b") == {"a/b"}
