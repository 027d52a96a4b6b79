"""bench/pool.py on a few groups, and the arithmetic of its tables."""

import json

import pytest

from bench import pool
from bench.pool import ENGINES, Stopwatch, latency, main, memory, report, step_overhead

FOUND = {
    "latency": {"put": {"p50": 0.1, "p99": 0.2}, "draw": {"p50": 4.0, "p99": 6.0}},
    "memory": {"groups": 100, "early_mib": 20.0, "late_mib": 20.5, "seconds": 3.0},
    "steps_ms": {"1": 4.0, "64": 6.0},
}


def test_a_stopwatch_counts_calls_and_passes_results_and_errors_on():
    watch = Stopwatch()
    assert watch(sorted, [2, 1], reverse=True) == [2, 1]
    with pytest.raises(ZeroDivisionError):
        watch(divmod, 1, 0)
    assert len(watch.seconds) == 2
    watch.seconds = [n / 1e3 for n in range(101)]
    assert watch.milliseconds() == pytest.approx({"p50": 50, "p99": 99})


@pytest.mark.parametrize(("p99", "word"), [(6.0, "held"), (10.5, "missed")])
def test_the_report_judges_the_goal_and_compares_engines(p99, word):
    found = FOUND | {"latency": FOUND["latency"] | {"draw": {"p50": 4.0, "p99": p99}}}
    text = report(found)
    assert f"at most 10 ms: {word}" in text and "(+0.5)" in text
    assert text.splitlines()[-1].split() == ["64", "6.00", "1.50"]


def test_the_pool_stays_as_full_as_asked_and_half_of_each_draw_is_rejected():
    found = latency(groups=80, size=2, batch=4, rounds=12)
    assert found["draws"] == 12 and 4 * 12 < found["puts"] <= 8 * 12
    assert 0 < found["put"]["p50"] <= found["put"]["p99"]


def test_groups_pass_through_a_process_of_its_own():
    found = memory(200, batch=4)
    assert found["groups"] >= 200 and found["late_mib"] > 5


@pytest.mark.parametrize("n_engines", [ENGINES[0], ENGINES[-1]])
def test_engines_feed_the_trainer(n_engines):
    assert step_overhead(n_engines, steps=5, batch=4, size=2) > 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--groups", "10"], "--groups must be at least 64, got 10"),
        (["--batch", "9000"], "--batch must be at most half of --groups (10000), got 9000"),
    ],
)
def test_a_wrong_flag_is_named(argv, message, capsys):
    with pytest.raises(SystemExit):
        main(argv)
    assert message in capsys.readouterr().err


def test_quick_is_a_tenth_and_everything_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pool, "memory", lambda total, batch: {**FOUND["memory"], "groups": total})
    file = tmp_path / "pool.json"
    small = ["--groups", "64", "--size", "1", "--batch", "4", "--rounds", "9", "--steps", "5"]
    assert main([*small, "--quick", "--through", "1000", "--json", str(file)]) == 0
    content = json.loads(file.read_text())
    assert content["memory"]["groups"] == 100 and content["arguments"]["rounds"] == 3
    assert "groups of 1, batches of 4" in capsys.readouterr().out
