"""The arithmetic of bench/tree_allocation.py, on made-up runs."""

import pytest

from bench import tree_allocation
from bench.tree_allocation import ALLOCATIONS, COLUMNS, row, table
from trace_alloc.config import TraceConfig


def step(mixed: float, reward: float, **more: float | None) -> dict:
    return {"trace/effective_ratio/prompt": mixed, "rollout/reward_mean": reward} | more


def test_the_warm_up_is_left_out_and_the_reward_is_that_of_the_end():
    runs = [
        [step(0.0, 0.0), step(0.4, 0.1), step(0.6, 0.2), step(0.8, 0.5)],
        [step(0.0, 0.0), step(0.2, 0.1), step(0.4, 0.2), step(0.6, 0.7)],
    ]
    cells = row(runs)
    assert cells["mixed prompts"] == pytest.approx(0.5) and cells["reward"] == pytest.approx(0.6)
    assert cells["updates"] == 4 and cells["spearman root"] is None


def test_the_table_compares_with_uniform_allocation():
    rows = {name: row([[step(0.0, 0.0), step(mixed, 0.5)]]) for name, mixed in (("trace", 0.6), ("random", 0.3))}
    lines = table(rows).splitlines()
    assert lines[0].split()[-2:] == ["x", "random"]
    assert lines[1].split()[-1] == "2.000" and lines[2].split()[-1] == "1.000"


def test_every_allocation_of_the_flag_is_run():
    choices = TraceConfig.__dataclass_fields__["allocation"].metadata["knob"].choices
    assert set(ALLOCATIONS) == set(choices)
    assert all(key.startswith("trace/") for key in COLUMNS.values())


def test_no_round_of_candidates_is_cut_by_the_end_of_an_episode():
    assert tree_allocation.ROWS % 48 == 0 and tree_allocation.ROWS % tree_allocation.BATCH == 0
