"""Each figure from small logs: the numbers in its caption and marks, and why it is not there."""

import re
from pathlib import Path

import pytest

from pace.metrics import metric_keys
from pace.report import accounts, keys, overview, progress, staleness
from pace.report.frame import Size
from pace.report.page import SECTIONS
from pace.report.reading import read_run
from pace.report.trees import tree_figures

from .logs import DEMO, log_lines, tree_node, with_trees, write

SIZE = Size(500, 260)
MAKERS = [make for _, _, makers in SECTIONS for make in makers]


@pytest.fixture
def run(tmp_path):
    return lambda lines, label="run": read_run(write(tmp_path / label, lines), label)


def texts(figure):
    """All text in a figure's panels."""
    return [re.sub(r"<[^>]+>", "", part) for panel in figure.panels for part in re.findall(r"<text.*?</text>",
            panel.draw(size=SIZE))]  # fmt: skip


def test_keys_are_those_that_pace_writes():
    assert keys.PACE <= metric_keys()


def test_the_other_keys_are_still_spelled_where_they_are_written():
    root = Path(__file__).resolve().parents[3]
    files = [*(root / "openrlhf" / "trainer").rglob("*.py"), *(root / "trace_alloc").glob("*.py")]
    source = "\n".join(file.read_text() for file in files)
    assert [key for key in keys.TRAINER | keys.TRACE if key not in source] == []


def test_all_keys_are_in_the_recorded_runs():
    written = {key for name in ("pace", "trace") for step in read_run(DEMO / name).steps for key in step.metrics}
    assert keys.PACE | keys.TRAINER | keys.TRACE <= written
    assert all(log.stat().st_size < 300_000 for log in DEMO.rglob("*.gz"))


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_a_figure_has_panels_or_a_reason(make, run):
    """For a whole run, for two, and for one that logged nothing but the decisions."""
    bare = log_lines(3)
    for line in bare[1:]:
        line["metrics"] = {}
    whole, empty = run(log_lines(8), "whole"), run(bare[:-1], "empty")
    for runs in ([whole], [whole, empty], [empty], [empty, whole]):
        figure = make(runs)
        assert bool(figure.panels) != bool(figure.missing) and figure.id.startswith("fig-")
        for panel in figure.panels:
            drawn = panel.draw(size=SIZE)
            assert drawn.startswith("<svg") and "nan" not in drawn and "inf" not in drawn
    assert not make([whole]).missing or make in (progress.evaluations, staleness.trained_between_runs)


def test_reward_is_compared_at_the_ends(run):
    figure = progress.reward_over_steps([run(log_lines(40, surplus=0))])
    assert "0.138 over the first 10 steps, 0.887 over the last 10." in figure.caption
    assert "40 updates in 4 min 40 s." in progress.reward_over_time([run(log_lines(40, surplus=0))]).caption


def test_every_metric_of_an_evaluation_is_shown_success_first(run):
    metrics = {f"eval_{name}_{what}": 0.5 for name in ("a", "b", "c") for what in ("response_length_mean", "pass4")}
    metrics |= {f"eval_{name}_pass1": 0.25 for name in ("a", "b", "c")} | {"eval_predictor_mse": 0.1}
    lines = [*log_lines(2), {"kind": "evaluation", "time": 2000.0, "version": 2, "metrics": metrics}]
    figure = progress.evaluations([run(lines)])
    titles = [panel.title for panel in figure.panels]
    assert set(titles) == set(metrics) and titles[:3] == ["eval_a_pass1", "eval_b_pass1", "eval_c_pass1"]
    assert "from 0.25 to 0.25 in eval_a_pass1" in figure.caption.lower()


def test_lag_is_the_sum_of_its_parts(run):
    made = run(log_lines(8))
    lags = [d.total for d in made.decisions if d.trained]
    caption = staleness.lag_split([made]).caption
    found = [float(text) for text in re.findall(r"[\d.]*\d", caption.split("Mean lag")[1])]
    assert found[0] == pytest.approx(sum(lags) / len(lags), rel=0.01) == pytest.approx(sum(found[1:]), rel=0.02)


def test_kept_and_rejected_are_counted_apart(run):
    made = run(log_lines(8))
    n = {name: sum(d.outcome.value == name for d in made.decisions) for name in ("kept", "rejected")}
    assert n["rejected"] > 5
    legend = set(texts(staleness.kept_against_rejected([made])))
    assert {f"kept ({n['kept']})", f"rejected ({n['rejected']})"} <= legend
    evicting = run(log_lines(8, surplus=9, k_max=2), "evicting").decisions
    assert {d.outcome.value for d in evicting} >= {"evicted", "rejected", "kept"}
    assert all(d.outcome.value == "rejected" for d in filter(staleness.rejected, evicting))
    assert "nothing to compare" in staleness.kept_against_rejected([run(log_lines(4, surplus=0))]).missing
    both = staleness.bias([made, run(log_lines(4, surplus=0), "calm")]).caption
    assert "run: kept against rejected: length" in both and "calm: nothing was rejected." in both


def test_waiting_begins_where_the_run_says(run):
    late = run(log_lines(2, wait_from="trajectory"))
    d = next(d for d in late.decisions if d.sib > 0)
    assert staleness.measures(late)["waiting"](d) == d.sib + d.pool
    assert staleness.measures(run(log_lines(2)))["waiting"](d) == d.pool


def test_time_parts_fill_the_step(run):
    step = run(log_lines(2)).steps[0]
    assert progress.time_parts(step) == {
        "waiting for rollouts": 2.0,
        "experience": 1.0,
        "update": 3.0,
        "weight sync": 0.5,
        "rest": 0.5,
    }
    figure = progress.time_per_step([run(log_lines(2))])
    assert "Median 7 s a step; 29% of the time is spent waiting" in figure.caption and "7 s" in texts(figure)


def test_the_account_closes_or_is_said_not_to(run):
    lines = log_lines(4)
    assert "; it closes." in accounts.ledger([run(lines)]).caption
    lines[-1]["metrics"]["pace/ledger/tokens/trained"] -= 7
    broken = run(lines)
    assert "does NOT close, 7 tokens are lost" in accounts.ledger([broken]).caption
    assert any("7 tokens are not accounted for" in text for text in overview.warnings(broken))


@pytest.mark.parametrize(
    ("settings", "surplus", "said"),
    [
        ({}, 0, "occupancy never exceeded the target; rollout does not outrun training (inert by design)"),
        ({"max_reject_rate": 0.0}, 4, "rejection is off (--pace.max_reject_rate 0)"),
        ({"rate_smoothing": 0.999}, 1, "although occupancy exceeded the target at 3 of 4 steps"),
    ],
)
def test_why_nothing_was_rejected(run, settings, surplus, said):
    lines = log_lines(4, surplus=surplus, max_reject_rate=settings.get("max_reject_rate", 0.0))
    lines[0]["pace"] |= {"max_reject_rate": 0.5} | settings
    if surplus == 1:
        lines[1]["metrics"]["pace/pool/target"] = 9.0
    found = overview.warnings(run(lines))
    assert any(text.startswith("PACE rejected nothing") and said in text for text in found)
    assert not any(text.startswith("PACE rejected nothing") for text in overview.warnings(run(log_lines(6), "busy")))


def test_what_is_wrong_with_the_log_is_said(run):
    lines = log_lines(3)[:-1]
    lines[1]["metrics"] |= {"pace/staleness/coverage": 0.9, "x": None, "pace/ledger/wasted_token_share": 0.1}
    lines[-1]["metrics"]["pace/ledger/wasted_token_share"] = 0.45
    found = "\n".join(overview.warnings(run(lines)))
    said = ("no last line", "1 numbers in the log are not finite", "Up to 10.0% of a batch", "45% of all generated")
    assert all(text in found for text in said)


def test_the_table(run):
    found = {name: texts[0] for name, texts in overview.rows([run(log_lines(6, k_max=3))])}
    assert found["State"] == "finished" and found["Seconds per step (median)"] == "7 s"
    assert "--pace.k_max 3" in found["Settings that differ from the defaults"].split("  ")
    made = run(log_lines(6, surplus=9, k_max=2, max_reject_rate=0.2))
    assert accounts.account(made, "groups")["in_pool"] > 0 < accounts.account(made, "groups")["evicted"]
    ready = accounts.account(made, "groups")
    assert overview.load(made) == (ready["generated"] - ready["in_flight"]) / ready["trained"] > 1


def test_trees_are_shown_where_there_are_some(run):
    assert tree_figures([run(log_lines(3))]) == []
    figures = {figure.id: figure for figure in tree_figures([run(with_trees(log_lines(3)))])}
    assert set(figures) == {
        "fig-tree", "fig-roots", "fig-continuations", "fig-effective-ratio", "fig-calibration", "fig-predictor"
    }  # fmt: skip
    assert all(figure.panels for figure in figures.values())
    assert {"reward 1", "p 0.7", "A +1.5", "A \N{MINUS SIGN}1.5", "turn 2"} <= set(texts(figures["fig-tree"]))
    assert "3 on average over 6 prompts, at most 4" in figures["fig-roots"].caption.lower()
    assert "3 continuations of 3 prefixes, on average after 50%" in figures["fig-continuations"].caption
    assert "at prompts 0.5, at continued prefixes 0.25" in figures["fig-effective-ratio"].caption
    assert "mean squared error 0.15" in figures["fig-calibration"].caption.lower()


def test_a_log_without_tree_lines_says_so(run):
    lines = [line for line in with_trees(log_lines(3)) if line["kind"] != "trees"]
    figures = {figure.id: figure for figure in tree_figures([run(lines)])}
    assert "no lines of kind 'trees'" in figures["fig-tree"].missing and figures["fig-effective-ratio"].panels


@pytest.mark.parametrize(
    "tree",
    [
        None,
        "oak",
        {},
        {"nodes": [1]},
        {"nodes": [tree_node(3)]},
        {"nodes": [tree_node(-1, value="high")]},
        {"nodes": [tree_node(-1, reward=1.0) for _ in range(80)]},
    ],
)
def test_a_tree_that_can_not_be_drawn_is_left_out(run, tree):
    lines = with_trees(log_lines(2))
    for line in lines:
        if line["kind"] == "trees":
            line |= {"tree": tree, "prompts": ["x", [None, 1, 2], [1]], "prefixes": None}
    figures = {figure.id: figure for figure in tree_figures([run(lines)])}
    assert figures["fig-tree"].missing and figures["fig-roots"].missing
