"""Import rules: pace <- trace_alloc <- openrlhf, never back, and heavy packages only at the edges.

Checked twice. By syntax, every import counts, also those inside functions. In fresh processes, what the core of a
package really loads is compared with what it may load.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

# What a core file may import besides the standard library and its own package.
CORE = {"pace": frozenset[str](), "trace_alloc": frozenset({"numpy", "pace.types", "pace.knobs"})}
# The files at the edge, and what each may import in addition; no core file imports them.
EDGES = {
    "pace/actor.py": frozenset({"ray"}),
    "trace_alloc/actor.py": frozenset({"ray"}),
    "trace_alloc/value_model.py": frozenset({"torch", "transformers"}),
}
NEVER = ("tests", "examples")
ENGINE_PACKAGES = ("vllm", "deepspeed")
ENGINE_FOLDERS = ("openrlhf/trainer/ray/", "openrlhf/platforms/")
# Actors that only direct others: each would spend seconds of two cores on these at the start of every run.
DIRECTING = ("openrlhf.trainer.fully_async.pool_trainer", "openrlhf.trainer.fully_async.rollout_manager", "pace.actor")
SLOW = {"vllm", "deepspeed", "transformers", "datasets", "peft"}


def imports(name: Path, source: str) -> dict[str, int]:
    """Every imported name, fully dotted (`from a import b` is `a.b`), with a line where it is imported."""
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name: node.lineno for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = list(name.parent.parts)[: len(name.parent.parts) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}": node.lineno for alias in node.names}
    return found


def within(dotted: str, allowed: str) -> bool:
    return dotted == allowed or dotted.startswith(f"{allowed}.")


def violations(name: Path, source: str) -> list[str]:
    """The imports of a file that its place in the tree forbids."""
    package, text = name.parts[0], name.as_posix()
    found = []
    for dotted, line in imports(name, source).items():
        if package in CORE:
            allowed = {package, *CORE[package], *EDGES.get(text, ())}
            edges = {edge.removesuffix(".py").replace("/", ".") for edge in EDGES if text != edge}
            wrong = not (_stdlib(dotted) or any(within(dotted, a) for a in allowed))
            wrong = wrong or any(within(dotted, edge) for edge in edges)
        else:
            engine = any(within(dotted, heavy) for heavy in ENGINE_PACKAGES)
            wrong = any(within(dotted, banned) for banned in NEVER) and package != "examples"
            wrong = wrong or (package == "openrlhf" and engine and not text.startswith(ENGINE_FOLDERS))
        if wrong:
            found.append(f"{text}:{line} imports {dotted}")
    return found


def _stdlib(dotted: str) -> bool:
    return dotted.split(".")[0] in sys.stdlib_module_names


def test_no_file_imports_what_its_place_forbids(root: Path, code_files: list[Path]) -> None:
    found = [line for name in code_files for line in violations(name, (root / name).read_text())]
    assert not found, "\n".join(found)


def test_original_modules_are_reached_only_where_ours_hides_them(
    root: Path, code_files: list[Path], upstream: Path
) -> None:
    """`openrlhf._upstream.x` next to a plain `openrlhf.x` that is upstream's as well would load one file twice."""
    wrong = []
    for name in code_files:
        for dotted, line in imports(name, (root / name).read_text()).items():
            if within(dotted, "openrlhf._upstream"):
                path = _module_file(upstream, dotted.split(".")[2:])
                if path is None or not (root / "openrlhf" / path).exists():
                    wrong.append(f"{name}:{line} imports {dotted}, which no file of ours hides: use the plain name")
    assert not wrong, "\n".join(wrong)


def _module_file(upstream: Path, parts: list[str]) -> Path | None:
    """The file of the longest prefix that is a module, relative to upstream's folder."""
    for length in range(len(parts), 0, -1):
        path = Path(*parts[:length]).with_suffix(".py")
        if (upstream / path).exists():
            return path
    return None


def loaded_by(root: Path, modules: list[str]) -> list[str]:
    """The modules with a file that a fresh process has loaded once it has imported these."""
    program = (
        "import importlib, json, sys\n"
        f"sys.path.insert(0, {str(root)!r})\n"
        "before = set(sys.modules)\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "new = {n for n, m in sys.modules.items() if n not in before and getattr(m, '__file__', None)}\n"
        "print(json.dumps(sorted(new)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    loaded: list[str] = json.loads(done.stdout.splitlines()[-1])
    return loaded


def test_actors_that_only_direct_come_up_quickly(root: Path) -> None:
    assert {name.split(".")[0] for name in loaded_by(root, list(DIRECTING))} & SLOW == set()


@pytest.mark.parametrize("package", sorted(CORE))
def test_core_loads_nothing_heavy(root: Path, code_files: list[Path], package: str) -> None:
    """One fresh process imports every core module of the package and lists what was loaded from where."""
    core = [name for name in code_files if name.parts[0] == package and name.as_posix() not in EDGES]
    modules = [".".join(name.with_suffix("").parts).removesuffix(".__init__") for name in core]
    loaded = loaded_by(root, modules)
    assert package in loaded and len(modules) >= 1
    allowed = {package, *CORE[package]} | ({"pace"} if package == "trace_alloc" else set())
    foreign = {
        name
        for name in loaded
        if not _stdlib(name)
        and not name.startswith("_sysconfigdata")  # the standard library's, named after the machine
        and name.split(".")[0] not in {part.split(".")[0] for part in allowed}
    }
    others = (
        {name for name in loaded if within(name, "pace")} - {"pace", "pace.types", "pace.knobs"}
        if package != "pace"
        else set()
    )
    assert foreign | others == set()


@pytest.mark.parametrize(
    ("name", "source", "wrong"),
    [
        ("pace/pool.py", "import asyncio\nfrom pace.types import Trajectory\n", 0),
        ("pace/pool.py", "def f():\n    import ray\n", 1),
        ("pace/pool.py", "import numpy as np\n", 1),
        ("pace/pool.py", "from pace.actor import TrajectoryPoolActor\n", 1),
        ("pace/pool.py", "from .actor import TrajectoryPoolActor\n", 1),
        ("pace/pool.py", "from . import types\nfrom .types import Trajectory\n", 0),
        ("pace/pool.py", "import trace_alloc.tree\n", 1),
        ("pace/pool.py", "import openrlhf\n", 1),
        ("pace/actor.py", "import ray\nfrom pace.pool import TrajectoryPool\n", 0),
        ("pace/actor.py", "import torch\n", 1),
        ("trace_alloc/allocation.py", "import numpy.linalg\nfrom pace import types\n", 0),
        ("trace_alloc/allocation.py", "from pace.pool import TrajectoryPool\n", 1),
        ("trace_alloc/allocation.py", "import torch\n", 1),
        ("trace_alloc/allocation.py", "from trace_alloc.value_model import ValueModel\n", 1),
        ("trace_alloc/value_model.py", "import torch, transformers\n", 0),
        ("trace_alloc/value_model.py", "import ray\n", 1),
        ("trace_alloc/actor.py", "import ray, vllm\n", 1),
        ("trace_alloc/actor.py", "import examples.tools\nimport tests.fakes\n", 2),
        ("openrlhf/launch/inputs.py", "def f():\n    import vllm\n", 1),
        ("openrlhf/launch/inputs.py", "import ray, torch, pace.pool\n", 0),
        ("openrlhf/launch/inputs.py", "from tests import fakes\n", 1),
        ("openrlhf/trainer/ray/vllm_engine.py", "import vllm, ray, deepspeed\n", 0),
    ],
)
def test_the_checker(name: str, source: str, wrong: int) -> None:
    assert len(violations(Path(name), source)) == wrong
