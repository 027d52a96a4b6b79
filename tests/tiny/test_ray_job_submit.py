"""`ray_job_submit.sh` with the dashboard of a running cluster (RAY_API), between a fake `ray` and a fake `python`.

With a cluster of its own it runs on the real Ray: tests/integration/test_runs.py.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "scripts" / "ray_job_submit.sh"
API = "http://127.0.0.1:8265"
FAKE_RAY = """#!/usr/bin/env bash
echo "ray $*" >> "$CALLS"
[ "$2" != submit ] || { [ -z "$FAKE_FOLLOWS" ] || sleep 60; exit "$FAKE_SUBMIT"; }
"""
# Its standard input is the program that asks for the job's record.
FAKE_PYTHON = """#!/usr/bin/env bash
echo "python $*" >> "$CALLS"
[ "$1" != - ] || { echo "$FAKE_RECORD"; exit 0; }
exit "$FAKE_PREFLIGHT"
"""
Submit = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    return tmp_path / "calls"


@pytest.fixture
def submit(tmp_path: Path, calls: Path) -> Submit:
    """Starts the script; the fakes take their part in it from the environment."""
    for name, text in (("ray", FAKE_RAY), ("python", FAKE_PYTHON)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    fakes = {"FAKE_SUBMIT": "0", "FAKE_RECORD": "0", "FAKE_PREFLIGHT": "0", "FAKE_FOLLOWS": ""}
    environment = os.environ | fakes | {"CALLS": str(calls), "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def start(*command: str, **changes: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            ["env", "--default-signal=INT", "bash", str(SCRIPT), *command],  # a shell's background jobs ignore it
            env=environment | {"RAY_API": API} | changes,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


def said(calls: Path) -> list[str]:
    return calls.read_text().splitlines() if calls.exists() else []


def test_the_running_cluster_is_asked_and_gets_the_job(submit: Submit, calls: Path, tmp_path: Path) -> None:
    done = submit("bash", "train.sh", "--a b", WORKING_DIR=str(tmp_path))
    assert done.communicate(timeout=30) is not None and done.returncode == 0
    ready, job = said(calls)  # and no `ray start`
    assert ready == f"python -m openrlhf.cli.preflight --ray-address {API} --wait 120"
    pattern = (
        rf"ray job submit --address {API} --submission-id orlhf-\S+ --working-dir {tmp_path} -- bash train.sh --a b"
    )
    assert re.fullmatch(pattern, job)


def test_the_exit_code_is_the_commands_own(submit: Submit, calls: Path) -> None:
    """`ray job submit` says 1 whatever the command said."""
    done = submit("false", FAKE_SUBMIT="1", FAKE_RECORD="7")
    done.communicate(timeout=30)
    assert done.returncode == 7
    _, job, record = said(calls)
    assert record == f"python - {API} {job.split()[job.split().index('--submission-id') + 1]}"


def test_nothing_is_submitted_to_a_cluster_that_takes_no_jobs(submit: Submit, calls: Path) -> None:
    done = submit("true", FAKE_PREFLIGHT="1")
    done.communicate(timeout=30)
    assert done.returncode == 1 and len(said(calls)) == 1


def test_a_command_is_needed(submit: Submit, calls: Path) -> None:
    done = submit()
    assert "usage: ray_job_submit.sh COMMAND" in done.communicate(timeout=30)[1]
    assert done.returncode == 2 and not said(calls)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_end_from_outside_stops_the_job_and_not_the_cluster(
    submit: Submit, calls: Path, sent: signal.Signals, code: int
) -> None:
    done = submit("true", FAKE_FOLLOWS="1")
    deadline = time.monotonic() + 30
    while len(said(calls)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(done.pid, sent)
    done.communicate(timeout=30)
    assert done.returncode == code
    _, job, stop, *more = said(calls)
    assert stop == f"ray job stop --address {API} --no-wait {re.findall(r'orlhf-[0-9-]+', job)[0]}" and not more
