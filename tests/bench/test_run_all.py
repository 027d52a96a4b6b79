"""bench/run_all.py: every benchmark has its place in the docs, and its table is made from its own numbers."""

import json
import re
from pathlib import Path

import pytest

from bench import run_all
from bench.run_all import BENCHMARKS, DOCS, ROOT, main, with_table

ALLOCATION = {
    "arguments": {"n": 400, "instances": 7, "budget": 800, "rounds": 1},
    "checks": {"root": {"mismatches": 0, "largest_difference": 0.0}},
    "seconds": {"root": {"full_s": 0.25, "small_s": 0.001, "reference_s": 0.1}},
}


def test_every_benchmark_is_one_of_these_and_has_a_place_in_its_page() -> None:
    programs = {path.stem for path in (ROOT / "bench").glob("*.py") if "__main__" in path.read_text()}
    assert programs == {*BENCHMARKS, "run_all"}
    places = [(page, name) for page in DOCS.glob("*.md") for name in re.findall(r"<!-- (\w+) -->\n", page.read_text())]
    wanted = {(DOCS / benchmark.page, name) for name, benchmark in BENCHMARKS.items()}
    assert wanted == {(page, name) for page, name in places if name != "end"}


def test_a_table_takes_the_place_of_the_old_one() -> None:
    page = "before\n<!-- allocation -->\nold 1\nold 2\n<!-- end -->\nbetween\n<!-- pool -->\nkept\n<!-- end -->\n"
    once = with_table(page, "allocation", ALLOCATION)
    assert "old" not in once and "kept" in once and "$ python bench/allocation.py --instances 5000" in once
    assert re.search(r"root +7 +0 +0\.0e\+00 +0\.250 .* 100\n", once)
    assert with_table(once, "allocation", ALLOCATION) == once
    with pytest.raises(ValueError, match="0 places `<!-- pool -->`"):
        with_table("nothing", "pool", {"latency": {"put": {"p50": 1, "p99": 1}, "draw": {"p50": 1, "p99": 1}}} | POOL)


POOL = {"memory": {"groups": 1.0, "seconds": 1.0, "early_mib": 1.0, "late_mib": 1.0}, "steps_ms": {"1": 1.0}}


def test_tables_of_what_there_is_and_a_failure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "benchmarks.md").write_text(
        "<!-- allocation -->\nold\n<!-- end -->\n<!-- pool -->\nold\n<!-- end -->\n"
    )
    (tmp_path / "allocation.json").write_text(json.dumps(ALLOCATION))
    monkeypatch.setattr(run_all, "DOCS", tmp_path)
    assert main(["--tables", "--folder", str(tmp_path)]) == 0
    assert (tmp_path / "benchmarks.md").read_text().count("old") == 1
    assert capsys.readouterr().out == "tables: allocation\n"
    monkeypatch.setattr(run_all, "command", lambda name: ["python", "-c", "raise SystemExit(3)"])
    assert main(["--only", "allocation", "--folder", str(tmp_path)]) == 1
    assert "exit code 3" in (said := capsys.readouterr().out) and said.endswith("tables: none; failed: allocation\n")
