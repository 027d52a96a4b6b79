"""`python -m openrlhf.cli.preflight`: its table, fixes and exit code."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest

from openrlhf.cli import preflight
from openrlhf.launch import cluster, machine, ray_probe
from openrlhf.launch.machine import Finding
from openrlhf.launch.problem import LaunchError, Problem

Run = Callable[..., SimpleNamespace]


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another cluster on this machine is none of these tests' business."""
    monkeypatch.setenv("RAY_ADDRESS", "local")


def test_the_machine_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert preflight.main([]) == 0
    printed = capsys.readouterr().out
    assert "would start its own" in printed and printed.endswith("Ready.\n") and "models" not in printed
    for name in (*machine.PINS, "python", "devices", "shared memory", "disk"):
        assert name in printed


def test_a_failure_sets_the_exit_code_and_has_a_fix(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "PINS", MappingProxyType(dict(machine.PINS) | {"torch": "9.9.9"}))
    assert preflight.main([]) == 1
    printed = capsys.readouterr().out
    (line,) = [line for line in printed.splitlines() if line.startswith("torch")]
    assert line.endswith("FAIL") and "9.9.9" in line
    assert "Fix: pip install torch==9.9.9." in printed and "1 problem found." in printed


def test_a_run_that_would_start(run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_parse", lambda argv: run())
    assert preflight.main(["--any", "flag"]) == 0
    printed = capsys.readouterr().out
    for name in (
        "flags",
        "models",
        "tokenizer",
        "datasets",
        "checkpoint",
        "output folders",
        "reward file",
        "resources",
    ):
        assert f"\n{name} " in printed
    assert "3 GPUs and 3 CPUs (vllm 1, actor 1, ref 1)" in printed


def test_a_run_that_wouldnt(run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    bad = {"rollout__top_p": 2.0, "data__input_key": "question", "reward__remote_url": "/no/reward.py"}
    monkeypatch.setattr(preflight, "_parse", lambda argv: run(**bad))
    assert preflight.main(["--any", "flag"]) == 1
    printed = capsys.readouterr().out
    for flag in ("--rollout.top_p", "--data.input_key", "--reward.remote_url"):
        assert f". {flag}: " in printed
    assert "3 problems found." in printed and "\nresources" not in printed


def test_a_cluster_out_of_reach(capsys: pytest.CaptureFixture[str]) -> None:
    assert preflight.main(["--ray-address", "127.0.0.1:1"]) == 1
    assert "can't be reached" in capsys.readouterr().out


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["silent", "http"])
def test_the_ports_owner_is_another_program(monkeypatch: pytest.MonkeyPatch, says: bytes) -> None:
    """Ray's own client would wait for minutes."""

    def answer() -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(says)
            time.sleep(5)

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        threading.Thread(target=answer, daemon=True).start()
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        began = time.monotonic()
        with pytest.raises(LaunchError, match=f"RAY_ADDRESS: another program than Ray listens at 127.0.0.1:{port}"):
            cluster._joined({})
    assert time.monotonic() - began < 10


def test_a_cluster_too_small(run: Run) -> None:
    state = ray_probe.Cluster("h:1", reached=True, nodes=[{"CPU": 8.0, "GPU": 2.0}])
    probe = ray_probe.Probe("h:1", None)
    probe.result = lambda: state  # type: ignore[method-assign]
    findings = [finding for finding in preflight.examine(run(), probe) if finding.check == "resources"]
    assert [finding.problem is not None and "2 GPUs" in finding.problem.what for finding in findings] == [True]


def test_the_table_is_aligned() -> None:
    problem = Problem("x", "is wrong", "mend it")
    text = preflight.table([Finding("a", "b" * 100, "c"), Finding("longer", "d", "e", problem)])
    lines = text.splitlines()
    bars = [[at for at, letter in enumerate(line) if letter in "|+"] for line in lines]
    assert all(found == bars[1] for found in bars)
    assert lines[2].endswith("ok") and lines[3].endswith("FAIL") and "..." in lines[2]


def test_help_needs_no_imports_of_upstream(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        preflight.main(["--help"])
    assert ended.value.code == 0 and "any flags of train_ppo_ray" in capsys.readouterr().out


# With a real cluster.


def free_ports(count: int) -> list[int]:
    with_sockets = [socket.socket() for _ in range(count)]
    for opened in with_sockets:
        opened.bind(("127.0.0.1", 0))
    ports = [opened.getsockname()[1] for opened in with_sockets]
    for opened in with_sockets:
        opened.close()
    return ports


@contextmanager
def ray_head(folder: Path, agent_port: int) -> Iterator[tuple[str, str]]:
    """A cluster on 127.0.0.1 with 2 logical GPUs; its address and its dashboard's URL."""
    port, client, dashboard = free_ports(3)
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
    command += ["--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", f"--temp-dir={folder}"]
    command += [f"--port={port}", f"--ray-client-server-port={client}", f"--dashboard-port={dashboard}"]
    command += [f"--dashboard-agent-listen-port={agent_port}", "--num-cpus=4", "--num-gpus=2"]
    command += ["--object-store-memory=100000000"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    log = (folder / "start.log").open("wb")
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 90
        while "Ray runtime started" not in (folder / "start.log").read_text(errors="replace"):
            assert process.poll() is None and time.monotonic() < deadline, (folder / "start.log").read_text()
            time.sleep(0.5)
        yield f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        log.close()


@pytest.fixture
def short_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of a cluster that keeps to the loopback address; pytest's own are too deep for Ray's sockets."""
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="pf-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_a_healthy_cluster(short_folder: Path) -> None:
    with ray_head(short_folder, free_ports(1)[0]) as (address, dashboard):
        for asked in (address, dashboard):
            state = ray_probe.start(asked).result()
            assert (state.error, state.job_error) == (None, None)
            assert state.totals() == {"CPU": 4.0, "GPU": 2.0}


@pytest.mark.slow
def test_a_cluster_without_job_agent(short_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ray 2.55 goes on without its agent when its port is taken, and every job submission then fails."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with ray_head(short_folder, taken.getsockname()[1]) as (address, _):
            assert preflight.main(["--ray-address", address]) == 1
    printed = capsys.readouterr().out
    assert "No available agent to submit job" in printed and "--dashboard-agent-listen-port" in printed
