"""What a log becomes: each step once, whole lines only, the clock without pauses, and errors that say what to do."""

import json

import pytest

from pace.report.reading import ReportError, read_run

from .logs import log_lines, with_trees, write


def test_a_run_as_it_was_logged(tmp_path):
    run = read_run(write(tmp_path / "one", log_lines(3)))
    assert run.label == "one" and [step.number for step in run.steps] == [1, 2, 3]
    assert [step.seconds for step in run.steps] == [7.0, 14.0, 21.0]
    assert run.series("rollout/reward_mean") == [(1, 1 / 3), (2, 2 / 3), (3, 1.0)]
    assert run.settings["rate_smoothing"] == 0.0 and run.about == {"batch_groups": 4, "start_step": 0, "n_samples": 2}
    assert len(run.decisions) > 12 and run.end is not None and not run.torn
    assert run.latest("pace/ledger/groups/generated") == 24


def test_a_packed_log_is_the_same_run(tmp_path):
    lines = with_trees(log_lines(3))
    plain, packed = write(tmp_path / "a", lines), write(tmp_path / "b", lines, zipped=True)
    assert read_run(plain, "x").steps == read_run(packed, "x").steps == read_run(packed / "pace.jsonl.gz").steps
    assert [line.step for line in read_run(packed).trees] == [1, 2, 3]


def test_a_resumed_run_keeps_what_it_logged_last_and_does_not_count_the_pause(tmp_path):
    first, second = log_lines(4)[:-1], log_lines(4, seed=1)
    for line in second:
        line["time"] += 5000
    resumed = [second[0] | {"start_step": 2}, *second[3:]]
    run = read_run(write(tmp_path, [*first, *resumed]))
    assert [step.number for step in run.steps] == [1, 2, 3, 4] and run.n_starts == 2
    assert run.steps[2].decisions[0].n_tokens == second[3]["draw"]["decisions"][0]["n_tokens"]
    assert run.steps[3].seconds == 28 + 28 - 0  # 28 s before, and 28 s from the second start to its fourth step
    assert run.end is not None


def test_a_run_that_goes_on_after_its_end_has_not_ended(tmp_path):
    lines = log_lines(2)
    assert read_run(write(tmp_path, [*lines, lines[0]])).end is None


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path):
    run = read_run(write(tmp_path, log_lines(3)[:-1], end='{"kind": "step", "time": 1, "st'))
    assert run.torn and run.end is None and len(run.steps) == 3
    packed = write(tmp_path / "packed", log_lines(30), zipped=True) / "pace.jsonl.gz"
    packed.write_bytes(packed.read_bytes()[:-200])
    cut = read_run(packed)
    assert cut.torn and 0 < len(cut.steps) <= 30


def test_numbers_that_are_not_finite_are_missing_and_counted(tmp_path):
    lines = log_lines(3)
    lines[1]["metrics"]["rollout/reward_mean"] = float("nan")
    lines[2]["metrics"]["rollout/reward_mean"] = float("inf")
    folder = write(tmp_path, lines)
    text = (folder / "pace.jsonl").read_text().replace('"actor_lr"', '"x"')
    (folder / "pace.jsonl").write_text(text.replace('"pace/pool/target": 4.0', '"pace/pool/target": 1e999'))
    run = read_run(folder)
    assert run.series("rollout/reward_mean") == [(3, 1.0)] and run.series("pace/pool/target") == []
    assert run.n_not_finite == 5


def test_unknown_lines_and_keys_are_ignored(tmp_path):
    lines = log_lines(2)
    lines[1]["draw"]["decisions"][0]["colour"] = "red"
    lines[1]["draw"]["mood"] = lines[0]["pace"]["new_flag"] = 1
    lines.insert(1, {"kind": "weather", "time": 1001.0})
    lines.insert(1, {"time": 1001.0})
    assert len(read_run(write(tmp_path, lines)).steps) == 2


def broken(lines, what):
    decision = lines[1]["draw"]["decisions"][0]
    if what == "no such outcome":
        decision["outcome"] = "eaten"
    elif what == "a number is missing":
        decision["pool"] = float("nan")
    elif what == "a field is missing":
        del decision["gen"]
    elif what == "no draw":
        del lines[1]["draw"]
    elif what == "metrics are a list":
        lines[1]["metrics"] = [1]
    elif what == "settings are text":
        lines[0]["pace"] = "all"
    return lines


@pytest.mark.parametrize(
    ("what", "line", "named"),
    [
        ("no such outcome", 2, "eaten"),
        ("a number is missing", 2, "no number for pool"),
        ("a field is missing", 2, "gen"),
        ("no draw", 2, "draw"),
        ("metrics are a list", 2, "items"),
        ("settings are text", 1, ""),
    ],
)
def test_a_line_that_is_none_of_a_run_log_is_named(tmp_path, what, line, named):
    with pytest.raises(ReportError, match=f"pace.jsonl, line {line}: not a line of a run log.*{named}.*log_dir"):
        read_run(write(tmp_path, broken(log_lines(2), what)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist: give the run's log_dir"),
        ("folder", "holds no pace.jsonl: give the run's log_dir"),
        ("", "no line of kind 'settings' or 'step'"),
        ("{}\n", "no line of kind 'settings' or 'step'"),
        ("loss 0.1\nloss 0.2\n", "is not the log of a run"),
        ("[1, 2]\n", "is not the log of a run"),
        (b"\x00\xff\x80\n", "is not the log of a run"),
        (json.dumps({"kind": "settings", "pace": {}}) + "\n", "holds no step yet: wait for the first update"),
    ],
)
def test_what_is_no_log_of_a_run_is_said_so(tmp_path, content, message):
    folder = tmp_path / "run"
    if content is not None:
        folder.mkdir()
    if isinstance(content, str) and content != "folder":
        (folder / "pace.jsonl").write_text(content)
    elif isinstance(content, bytes):
        (folder / "pace.jsonl").write_bytes(content)
    with pytest.raises(ReportError, match=message):
        read_run(folder)


def test_a_file_that_only_says_gz_is_no_log(tmp_path):
    (tmp_path / "pace.jsonl.gz").write_text("not packed\n")
    with pytest.raises(ReportError, match="is not the log of a run"):
        read_run(tmp_path)
