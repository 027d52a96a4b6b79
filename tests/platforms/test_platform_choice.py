"""Which platform a process gets, and that on CUDA nothing of the CPU platform is touched."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def platforms() -> ModuleType:
    """openrlhf/platforms/__init__.py alone: importing it by name would apply a platform to this process."""
    path = ROOT / "openrlhf" / "platforms" / "__init__.py"
    spec = importlib.util.spec_from_file_location("platforms_under_test", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("variable", "cuda_vllm", "device", "chosen"),
    [
        (None, False, False, "cpu"),
        (None, False, True, "cuda"),
        (None, True, True, "cuda"),
        (None, True, False, "cuda"),  # an actor without a GPU on a GPU machine: Ray hides the devices from it
        ("auto", False, False, "cpu"),
        ("auto", True, False, "cuda"),
        ("cpu", True, True, "cpu"),
        ("cuda", False, False, "cuda"),
    ],
)
def test_choice(
    platforms: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    variable: str | None,
    cuda_vllm: bool,
    device: bool,
    chosen: str,
) -> None:
    if variable is None:
        monkeypatch.delenv(platforms.VARIABLE, raising=False)
    else:
        monkeypatch.setenv(platforms.VARIABLE, variable)
    monkeypatch.setattr(platforms, "_installed", lambda name: name == "vllm" and cuda_vllm)
    monkeypatch.setattr(platforms, "_cuda_visible", lambda: device)
    assert platforms.name() == chosen


def test_another_value_is_refused_with_the_choices(platforms: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(platforms.VARIABLE, "tpu")
    with pytest.raises(ValueError, match="OPENRLHF_PLATFORM='tpu': choose auto, cpu or cuda"):
        platforms.name()


def test_on_cuda_nothing_of_the_cpu_platform_is_applied(fresh: Callable[..., dict[str, Any]]) -> None:
    seen = fresh("applied", platform="cuda")
    assert not seen["cpu_module"] and not seen["torch"] and not seen["argparse_changed"]
    assert seen["finders"] == [] and seen["environment"] == {}


def test_the_cpu_platform_is_applied_by_the_import(fresh: Callable[..., dict[str, Any]]) -> None:
    seen = fresh("applied")
    assert seen["cpu_module"] and seen["argparse_changed"] and seen["finders"] == ["PatchFinder"]
