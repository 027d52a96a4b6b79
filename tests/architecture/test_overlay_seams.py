"""Everything of upstream, vLLM, DeepSpeed and Ray that the fork relies on by name is there, with the expected shape.

Invariant: bumping a pin cannot silently detach one of our patches or overrides. Each failure names the file of ours
that relies on what is missing. The sources are read, not imported, so this runs in a second on any machine.
"""

import ast
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from .seams import CPU, SEAMS, Seam

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT / "openrlhf"
UPSTREAM = OURS / "_upstream"

# The files that take the place of upstream's, exactly; docs/overlay.md says why for each.
SHADOWS = {
    "__init__.py",
    "cli/__init__.py",
    "cli/train_ppo_ray.py",
    "trainer/__init__.py",
    "trainer/ppo_trainer_async.py",
    "trainer/ray/__init__.py",
    "trainer/ray/vllm_engine.py",
    "trainer/ray/vllm_worker_wrap.py",
}
# What upstream calls of torch.cuda. A new name needs a look at the CPU platform.
TORCH_CUDA_PATCHED = {"current_device", "current_stream", "empty_cache", "set_device", "synchronize"}
TORCH_CUDA_UNUSED_ON_CPU = {
    "get_device_properties",  # physical GPU ids, for colocated engines only
    "is_available",
}


def module_file(module: str) -> Path:
    """The source of a module; for `openrlhf.*` upstream's own. Nothing is imported."""
    package, *parts = module.replace("openrlhf._upstream.", "openrlhf.").split(".")
    if package == "openrlhf":
        folder = UPSTREAM
    else:
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.submodule_search_locations, f"{package} is not installed"
        folder = Path(spec.submodule_search_locations[0])
    path = folder.joinpath(*parts)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def definitions(scope: ast.Module | ast.ClassDef) -> dict[str, ast.stmt]:
    """Everything that the body of a module or class binds: functions, classes, imports, assignments."""
    found: dict[str, ast.stmt] = {}
    for node in ast.walk(scope) if isinstance(scope, ast.Module) else scope.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.setdefault(node.name, node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name): node for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: node for target in targets if isinstance(target, ast.Name)}
    return found


def lookup(module: str, name: str) -> ast.stmt | None:
    scope: ast.stmt | ast.Module | None = tree(module_file(module)) if module_file(module).is_file() else None
    for part in name.split("."):
        if not isinstance(scope, (ast.Module, ast.ClassDef)):
            return None
        scope = definitions(scope).get(part)
    return scope if isinstance(scope, ast.stmt) else None


def parameters(function: ast.stmt) -> tuple[str, ...]:
    assert isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
    spec = function.args
    star, stars = ([part] if part else [] for part in (spec.vararg, spec.kwarg))
    return tuple(part.arg for part in [*spec.posonlyargs, *spec.args, *star, *spec.kwonlyargs, *stars])


def own_attributes(node: ast.stmt) -> set[str]:
    """What methods assign to `self`."""
    return {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute)
        and isinstance(part.ctx, ast.Store)
        and isinstance(part.value, ast.Name)
        and part.value.id == "self"
    }


@pytest.mark.parametrize("seam", SEAMS, ids=str)
def test_what_we_rely_on_is_there(seam: Seam) -> None:
    found = lookup(seam.module, seam.name)
    assert (ROOT / seam.relied_on_by).is_file(), f"{seam.relied_on_by} is gone: drop this seam"
    assert found is not None, f"{seam.relied_on_by} relies on {seam.name} of {seam.module}, which is gone"
    if seam.parameters is not None:
        have = parameters(found)[: len(seam.parameters)] if seam.parameters else parameters(found)
        assert have == seam.parameters, f"{seam.relied_on_by} relies on the parameters of {seam.name}, which changed"
    missing = set(seam.sets) - own_attributes(found)
    assert not missing, f"{seam.relied_on_by} relies on {seam.name} setting {missing}"


def taken_from(source: Path) -> Iterator[tuple[str, str]]:
    """Module and name of what a file of ours imports from upstream, vLLM and DeepSpeed, or reads of their modules."""
    modules: dict[str, str] = {}  # what the file calls them
    for node in ast.walk(tree(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names if _is_theirs(alias.name)}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if _is_theirs(whole):
                    modules[alias.asname or alias.name] = whole
                elif _is_theirs(node.module):
                    yield node.module, alias.name
    for node in ast.walk(tree(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in modules:
            yield modules[ast.unparse(node.value)], node.attr


def _is_theirs(module: str) -> bool:
    """Whether a module is upstream's, vLLM's or DeepSpeed's. Where ours hides upstream's, the plain name is ours."""
    package, *parts = module.split(".")
    if package not in ("openrlhf", "vllm", "deepspeed") or not module_file(module).is_file():
        return False
    hidden = OURS.joinpath(*parts)
    return (
        package != "openrlhf" or "_upstream" in parts or not (hidden.is_dir() or hidden.with_suffix(".py").is_file())
    )


def test_everything_that_is_taken_from_them_has_a_seam(code_files: list[Path]) -> None:
    plain = [(seam.module.replace("openrlhf._upstream.", "openrlhf."), seam.name.split(".")[0]) for seam in SEAMS]
    taken = {
        (module.replace("openrlhf._upstream.", "openrlhf."), name, f"{file}")
        for file in code_files
        for module, name in taken_from(ROOT / file)
    }
    assert len(taken) > len(SHADOWS)
    missing = sorted(f"{file}: {name} of {module}" for module, name, file in taken if (module, name) not in plain)
    assert not missing, "no seam in tests/architecture/seams.py for\n" + "\n".join(missing)


def test_the_shadow_list_is_exact(repo_files: list[Path]) -> None:
    inside = [name.relative_to("openrlhf") for name in repo_files if name.parts[0] == "openrlhf"]
    assert {name.as_posix() for name in inside if (UPSTREAM / name).exists()} == SHADOWS


def test_the_documented_shadow_list_is_exact() -> None:
    rows = re.findall(r"^\| `openrlhf/(\S+)` \|", (ROOT / "docs" / "overlay.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(SHADOWS)


def test_packages_that_upstream_has_as_well_let_its_modules_through(repo_files: list[Path]) -> None:
    """A folder of ours with upstream's name and no `overlay(...)` in its `__init__` would hide upstream's modules."""
    folders = {name.parent for name in repo_files if name.parts[0] == "openrlhf" and name.suffix == ".py"}
    shared = [folder for folder in folders if (UPSTREAM / folder.relative_to("openrlhf")).is_dir()]
    closed = [
        str(folder)
        for folder in shared
        if not (ROOT / folder / "__init__.py").is_file()
        or "overlay(__name__, __path__)" not in (ROOT / folder / "__init__.py").read_text()
    ]
    assert shared and not closed


def test_package_exports_are_upstreams() -> None:
    name = Path("trainer/ray/__init__.py")
    exported = [ast.literal_eval(definitions(tree(folder / name))["__all__"].value) for folder in (OURS, UPSTREAM)]
    assert sorted(exported[0]) == sorted(exported[1])


def _constant(name: str) -> ast.expr:
    node = definitions(tree(ROOT / CPU))[name]
    assert isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
    return node.value


def patches() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Module and patch function of each entry of PATCHES."""
    table, functions = _constant("PATCHES"), definitions(tree(ROOT / CPU))
    assert isinstance(table, ast.Dict)
    for key, value in zip(table.keys, table.values, strict=True):
        assert isinstance(key, ast.Constant) and isinstance(value, ast.Name)
        function = functions[value.id]
        assert isinstance(function, ast.FunctionDef)
        yield str(key.value), function


@pytest.mark.parametrize(("module", "patch"), [pytest.param(m, p, id=m) for m, p in patches()])
def test_every_patched_name_exists(module: str, patch: ast.FunctionDef) -> None:
    assert module_file(module).is_file(), f"{CPU} patches {module}, which is gone"
    stored = {
        ast.unparse(node).removeprefix("module.")
        for node in ast.walk(patch)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if ast.unparse(node).startswith("module.")
    }
    gone = {name for name in stored if lookup(module, name) is None}
    assert not gone, f"{CPU}:{patch.name} replaces {gone} of {module}, which is gone"


def test_the_flash_attn_stand_in_has_what_upstream_imports() -> None:
    """Module-level imports decide whether upstream starts without flash-attn; those inside functions don't."""
    imported = {
        (path.relative_to(UPSTREAM).as_posix(), node.module, alias.name)
        for path in UPSTREAM.rglob("*.py")
        for node in tree(path).body
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flash_attn"
        for alias in node.names
    }
    source = ast.unparse(definitions(tree(ROOT / CPU))["_flash_attn_stand_in"])
    assert {path for path, _, _ in imported} == {"models/ring_attn_utils.py"}
    assert all(f"'{module}'" in source and f"'{name}'" in source for _, module, name in imported)


def test_every_item_of_the_cpu_platform_has_its_code_its_row_and_its_test() -> None:
    code, docs = (ROOT / CPU).read_text(), (ROOT / "docs" / "overlay.md").read_text()
    tests = (ROOT / "tests" / "platforms" / "test_cpu_platform.py").read_text()
    in_code = {
        int(n) for numbers in re.findall(r"Items? (\d(?:(?:, | and )\d)*)", code) for n in re.findall(r"\d", numbers)
    }
    in_docs = {int(n) for n in re.findall(r"^\| (\d) \|", docs, re.MULTILINE)}
    tested = {int(n) for n in re.findall(r"def test_item_(\d)_", tests)}
    assert in_code == in_docs == tested == set(range(1, 10))


def test_upstream_calls_no_other_part_of_torch_cuda() -> None:
    called = {
        node.attr
        for path in UPSTREAM.rglob("*.py")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "torch.cuda"
    }
    assert called == TORCH_CUDA_PATCHED | TORCH_CUDA_UNUSED_ON_CPU
    patch = ast.unparse(definitions(tree(ROOT / CPU))["patch_torch_cuda"])
    assert all(f"torch.cuda.{name} = " in patch for name in TORCH_CUDA_PATCHED)


def test_upstream_names_the_cuda_device_in_four_files() -> None:
    """Each of these has a patch; a fifth needs one."""
    files = {
        path.relative_to(UPSTREAM).as_posix()
        for path in UPSTREAM.rglob("*.py")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"cuda(:.*)?", node.value)
    }
    assert files == {
        "trainer/ppo_utils/replay_buffer.py",
        "trainer/ray/ppo_actor.py",  # the device of the moving average, which the strategy's patch overrides
        "trainer/ray/vllm_worker_wrap.py",
        "utils/deepspeed/deepspeed.py",
    }


def flags(cli: Path) -> set[str]:
    """The flags that a command line of upstream adds; an optimizer's come once for the actor, once for the critic."""
    found = set()
    for node in ast.walk(tree(cli)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            for argument in node.args:
                text = ast.unparse(argument).removeprefix("f")[1:-1]
                found |= {text.replace("{prefix}", prefix) for prefix in ("actor", "critic")}
    return {name.removeprefix("--") for name in found}


def test_the_cpu_platforms_flags_are_upstreams() -> None:
    defaults = ast.literal_eval(_constant("CLI_DEFAULTS"))
    have = {cli.stem: flags(cli) for cli in (UPSTREAM / "cli").glob("train_*.py")}
    assert set(have) == {"train_dpo", "train_ppo_ray", "train_rm", "train_sft"}
    assert set(defaults) <= have["train_ppo_ray"], f"{CPU} sets defaults of flags that are gone"
    trained = {name for name in defaults if name.startswith("ds.")}
    assert all(trained <= names for names in have.values()), f"{CPU}: {trained} must be in every command line"


def test_the_launch_checks_read_upstreams_flags(repo_files: list[Path]) -> None:
    """Every `args.a.b` and every text `a.b` or `--a.b` in openrlhf/launch/ is a flag, or a group of flags."""
    upstreams = flags(UPSTREAM / "cli" / "train_ppo_ray.py")
    groups = {".".join(name.split(".")[:size]) for name in upstreams for size in range(1, name.count(".") + 1)}
    own = ("pace", "trace", "dry_run")
    unknown = set()
    for path in repo_files:
        if path.parts[:2] == ("openrlhf", "launch") and path.suffix == ".py":
            for name in _named_flags(tree(ROOT / path), {group.split(".")[0] for group in groups}):
                flag = any(name == known or name.startswith(f"{known}.") for known in upstreams)  # or a method of one
                if not flag and name not in groups and name.split(".")[0] not in own:
                    unknown.add(f"{path}: {name}")
    assert not unknown


def _named_flags(module: ast.Module, groups: set[str]) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and re.fullmatch(r"args(\.\w+)+", ast.unparse(node)):
            yield ast.unparse(node).removeprefix("args.")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = re.fullmatch(r"(?:--)?((\w+)(?:\.\w+)+)", node.value)
            if match and match.group(2) in groups:
                yield match.group(1)


def test_the_class_behind_a_ray_actor_is_where_we_look() -> None:
    ray = pytest.importorskip("ray")

    class Plain:
        async def method(self) -> int:
            return 1

    path = re.search(r"return actor_class\.(\S+)", (OURS / "trainer" / "ray" / "actor_class.py").read_text())
    assert path is not None
    found = ray.remote(Plain)
    for part in path.group(1).split("."):
        assert hasattr(found, part), f"openrlhf/trainer/ray/actor_class.py relies on Ray's private `{part}`"
        found = getattr(found, part)
    assert found.method is Plain.method and type("Sub", (found,), {})
