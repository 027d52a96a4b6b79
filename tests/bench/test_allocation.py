"""bench/allocation.py finds mismatches where there are some, and none in the code."""

import json

import numpy as np
import pytest

from bench import allocation
from bench.allocation import check_prefixes, check_roots, compare, main


@pytest.mark.parametrize("check", [check_roots, check_prefixes])
def test_no_mismatch_on_random_instances(check):
    found = compare(check, instances=60, seed=1)
    assert found.mismatches == 0 and found.largest_difference < 1e-9


def first_gets_all(values, budget, cap, seed=None):
    return [min(cap, budget), *[0] * (len(values) - 1)]


def worst_first(values, outcomes, budget, cap, seed=None):
    """Allowed, but for the wrong prefixes."""
    return allocation.allocate_prefixes_reference(1 - np.asarray(values), outcomes, budget, cap, seed)


def test_a_split_that_does_not_spend_the_budget_or_is_worth_less_is_a_mismatch(monkeypatch):
    monkeypatch.setattr(allocation, "allocate_roots", first_gets_all)
    assert compare(check_roots, instances=40, seed=1).mismatches > 10
    monkeypatch.setattr(allocation, "allocate_prefixes", worst_first)
    found = compare(check_prefixes, instances=40, seed=1)
    assert found.mismatches > 10 and found.largest_difference > 0.01


def test_the_table_and_the_file(tmp_path, capsys):
    file = tmp_path / "allocation.json"
    small = ["--instances", "10", "--n", "400", "--budget", "800", "--rounds", "1"]
    assert main([*small, "--json", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[-2:]] == [["root", "10", "0"], ["prefix", "10", "0"]]
    content = json.loads(file.read_text())
    assert content["checks"]["root"]["mismatches"] == 0
    assert set(content["seconds"]["prefix"]) == {"full_s", "small_s", "reference_s"}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--instances", "0"], "--instances must be at least 1, got 0"),
        (["--n", "10", "--budget", "161"], "--budget must be between 2 and 16 times --n, got 161"),
    ],
)
def test_a_wrong_flag_is_named(argv, message, capsys):
    with pytest.raises(SystemExit):
        main(argv)
    assert message in capsys.readouterr().err
