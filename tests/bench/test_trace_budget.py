"""The arithmetic of bench/trace_budget.py, on made-up runs."""

import json

import pytest

from bench import trace_budget
from bench.trace_budget import ALLOCATIONS, COLUMNS, HELD_OUT, report, row, table
from examples.python import agent_func_calculator as calculator
from examples.tiny import tasks
from examples.tiny.recipe import Recipe
from trace_alloc.config import TraceConfig


def step(mixed: float, held_out: float, **more: float | None) -> dict:
    cost = {"generated_tokens": 100.0, "rows": 10.0, "scored": 5.0}
    counts = {f"trace/cost/{name}": count for name, count in cost.items()}
    counts |= {"total_length": 20.0, "trace/predictor/examples": 2.0}
    return counts | {"trace/effective_ratio/prompt": mixed, "held-out": held_out} | more


def test_the_first_updates_are_left_out_and_the_evaluation_is_that_of_the_end():
    runs = [
        [step(0.0, 0.0), step(0.4, 0.1), step(0.6, 0.2), step(0.8, 0.5)],
        [step(0.0, 0.0), step(0.2, 0.1), step(0.4, 0.2), step(0.6, 0.7)],
    ]
    cells = row(runs, skip=1)
    assert cells["mixed prompts"] == pytest.approx(0.5) and cells["reward held-out"] == pytest.approx(0.6)
    assert cells["mixed, spread"] == pytest.approx(0.2)
    assert cells["updates"] == 4 and cells[HELD_OUT] is None


def test_the_predictors_share_follows_from_counts_and_sizes():
    share = trace_budget.arithmetic_share(step(0.5, 0.5), ratio=0.1)
    assert share == pytest.approx(22.0 / (22.0 + 900.0))  # 0.1 * 20 * (5 + 3 * 2) and 100 + 4 * 10 * 20
    shares = [row([[step(0.5, 0.5)]], skip=0, allocation=name)[trace_budget.AT_RECIPES] for name in ("trace", "flat")]
    assert shares[0] > shares[1] == 0.0


def test_the_table_compares_with_uniform_allocation():
    rows = {name: row([[step(0.0, 0.0), step(m, 0.5)]], skip=1) for name, m in (("trace", 0.6), ("random", 0.3))}
    lines = table(rows).splitlines()
    assert lines[0].split()[-4:] == ["x", "flat", "x", "random"]
    assert lines[1].split()[-2:] == ["-", "2.000"] and lines[2].split()[-2:] == ["-", "1.000"]


def test_goals_are_judged_once_all_compared_runs_are_there():
    def states(**shares: float) -> dict[str, str]:
        runs = {name: [step(share, 0.5, **{HELD_OUT: 0.6})] for name, share in shares.items()}
        given = {"updates": 1, "seeds": [1], "beyond": 0.5, "skip": 0, "allocations": [*shares]}
        lines = report({"arguments": given, "runs": {"1": runs}}).splitlines()
        return {line.partition(": ")[2]: line.split(":")[0] for line in lines if "[goal]" in line}

    alone = ["Spearman at roots above 0.5, of held-out prompts [goal]"]
    assert [*states(trace=0.4)] == [*alone, "predictor at most 0.03 of a step's arithmetic, 0.6 B beside 8 B [goal]"]
    found = list(states(trace=0.4, flat=0.25, random=0.3).values())
    assert found == ["NOT HELD (0 of 1 seeds)", "held", "held", "held"]


def test_every_allocation_of_the_flag_is_run():
    choices = TraceConfig.__dataclass_fields__["allocation"].metadata["knob"].choices
    assert set(ALLOCATIONS) == set(choices)
    assert all(key.startswith("trace/") for key in COLUMNS.values())


def test_no_round_of_candidates_is_cut_by_the_end_of_an_episode():
    assert trace_budget.ROWS % 48 == 0 and trace_budget.ROWS % trace_budget.BATCH == 0


@pytest.mark.parametrize("beyond", [2 / 3, 0.9])
def test_so_many_of_the_games_can_be_won_as_it_says(tmp_path, beyond):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    games = tasks.all_games(Recipe())
    half = len(games) // 2
    for name, part in zip(trace_budget.GAMES, (games[:half], games[half:]), strict=True):
        (source / name).write_text("".join(json.dumps(tasks.game_row(game)) + "\n" for game in part))
    trace_budget.write_games(source, target, beyond=beyond)
    seen = []
    for name, size in trace_budget.GAMES.items():
        rows = [json.loads(line) for line in (target / name).read_text().splitlines()]
        states = [calculator.start_state(row["label"]) for row in rows]
        assert len(states) == size
        assert sum(map(calculator.winnable, states)) == round(size * (1 - beyond))
        assert all(
            calculator.winnable(s) == (r["datasource"] == tasks.GAMES) for s, r in zip(states, rows, strict=True)
        )
        seen += states
    assert len(set(seen)) == len(seen)
