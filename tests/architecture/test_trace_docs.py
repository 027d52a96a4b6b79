"""docs/trace.md and metrics.md say what the code does: every flag, default, range and logged key, and no others."""

import re
from dataclasses import Field, fields

import pytest

from trace_alloc.config import TraceConfig, flag

from .doc_tables import ROOT, default_text, documented_keys, range_text, rows

DOC = ROOT / "docs" / "trace.md"
# Where keys are made; three of them with a variable part.
LOGGING = ("trace_alloc/metrics.py", "trace_alloc/calibration.py")
LOGGING += tuple(f"openrlhf/trainer/tree/{name}.py" for name in ("training_actor", "predictor_actor"))
COMPOSED = {
    f"trace/alloc/{kind}_activation_{when}" for kind in ("root", "prefix") for when in ("predicted", "observed")
}
COMPOSED |= {f"trace/time/{part}" for part in ("rollout", "scoring", "update", "predictor", "rest")}


def written_keys() -> set[str]:
    texts = [(ROOT / name).read_text() for name in LOGGING]
    return COMPOSED | {key for text in texts for key in re.findall(r'"(trace/[\w/]+)"', text)}


def test_the_flag_table_has_every_field_in_order() -> None:
    assert [cells[0] for cells in rows(DOC, "Flags")] == [f"`{flag(field.name)}`" for field in fields(TraceConfig)]


@pytest.mark.parametrize("field", fields(TraceConfig), ids=lambda field: field.name)
def test_defaults_and_ranges_are_the_codes(field: Field) -> None:
    (cells,) = [cells for cells in rows(DOC, "Flags") if cells[0] == f"`{flag(field.name)}`"]
    assert cells[1:3] == [default_text(field), range_text(field)]
    assert len(cells) == 5 and all(cells)


def test_no_text_names_a_flag_that_is_not_there() -> None:
    texts = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {name for path in texts for name in re.findall(r"--trace\.(\w+)", path.read_text())}
    assert named <= {field.name for field in fields(TraceConfig)}


def test_every_key_is_described_and_no_other() -> None:
    assert written_keys() == documented_keys("TRACE")
