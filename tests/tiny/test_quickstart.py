"""What `make quickstart` shows, from the decision log of a run, without running one."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples.tiny import quickstart
from openrlhf.trainer.fully_async import run_log
from pace.metrics import metric_keys


def metrics(number: int, **more: float) -> dict[str, float]:
    return {
        "rollout/reward_mean": number / 10,
        "timing/step_total": 1.0 + number,
        "pace/pool/batch": 16.0,
        "pace/pool/rejected": 4.0,
        "pace/pool/evicted": 0.0,
        "pace/staleness/total/mean": float(number),
    } | more


def entry(kind: str, **content: object) -> str:
    return json.dumps({"kind": kind, "time": 0.0, **content}) + "\n"


def test_steps_are_read_while_they_are_written(tmp_path):
    """A line comes once, whole, and only if it is an update; the last ones after the run has ended."""
    log = tmp_path / quickstart.LOG
    line = entry("step", step=3, metrics=metrics(3))
    parts = [
        None,
        entry("settings", pace={}) + entry("step", step=1, metrics=metrics(1)) + line[:20],
        line[20:] + entry("evaluation", version=1, metrics={}),
        entry("step", step=4, metrics=metrics(4)) + '{"kind": "st',
    ]

    def running() -> bool:
        if part := parts.pop(0):
            with log.open("a") as file:
                file.write(part)
        return bool(parts)

    found = list(quickstart.steps(log, running, poll=0))
    assert [step["rollout/reward_mean"] for step in found] == [0.1, 0.3, 0.4]


def test_a_run_that_writes_nothing(tmp_path):
    assert list(quickstart.steps(tmp_path / quickstart.LOG, lambda: False, poll=0)) == []


def test_the_table():
    history = [metrics(number) for number in range(1, 21)]
    table = quickstart.summary(history, 99.6, Path("runs/x"))
    found = dict(re.findall(r"^  (\S.*?)  +(.*)$", table, re.MULTILINE))
    assert found["updates"] == "20"
    assert found["reward, first 10 steps"] == "0.550"
    assert found["reward, last 10 steps"] == "1.550"
    assert found["lag of trained data, last 10 steps"] == "15.50 updates"
    assert found["groups rejected as too stale"] == "20%"
    assert found["seconds a step (median)"] == "12.00"
    assert found["seconds in all"] == "100"
    assert found["every step and decision"] == "runs/x/pace.jsonl"


def test_an_unknown_lag_is_not_shown_as_none():
    history = [{key: value for key, value in metrics(1).items() if "staleness" not in key}]
    assert "not known" in quickstart.summary(history, 1.0, Path("x"))


def test_the_names_are_the_runs_own():
    assert quickstart.LOG == run_log.NAME
    assert {key for key in metrics(1) if key.startswith("pace/")} <= metric_keys()
    script = quickstart.SCRIPT.read_text()
    assert f"--rollout.batch_size {quickstart.BATCH}\n" in script
    assert '--pace.log_dir "$RUN_DIR"' in script and "--pace.enable" in script


@pytest.mark.parametrize(("code", "expected"), [(3, 3), (0, 1)])
def test_a_failed_run_and_one_without_updates_fail(tmp_path, monkeypatch, capsys, code, expected):
    script = tmp_path / "run.sh"
    script.write_text(f"echo the cause\nexit {code}\n")
    monkeypatch.setattr(quickstart, "SCRIPT", script)
    material = type("Material", (), {"model": tmp_path / "model"})()
    with pytest.raises(SystemExit) as stopped:
        quickstart.train(material, tmp_path, 16, [])
    assert stopped.value.code == expected
    assert "the cause" in capsys.readouterr().err


def test_a_group_of_processes_is_gone_when_the_block_is_left(tmp_path):
    command = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
    with quickstart.running(command, {}, tmp_path / "log") as process:
        assert process.poll() is None
    assert isinstance(process, subprocess.Popen) and process.returncode != 0
