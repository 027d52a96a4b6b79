"""Size caps of the code (a file, a function, a class), and `__init__` files that don't pull in their package.

An `__init__` that re-exports makes every import of the package load all of it: the pure parts must stay loadable
without Ray, torch or vLLM.
"""

import ast
from pathlib import Path

import pytest

FILE_LINES = 400
FUNCTION_LINES = 60
CLASS_METHODS = 15
# `__init__` files that must import from their own package, and why.
WIRING = {
    "openrlhf/__init__.py": "applies the platform before anything heavy is imported",
    "openrlhf/trainer/ray/__init__.py": "upstream's own `__init__` exports the same two names",
}
OVERLAY_IMPORT = ("openrlhf", ["overlay"])


def over_budget(name: str, source: str) -> list[str]:
    """What in the file exceeds a cap."""
    lines = source.count("\n")
    found = [f"{name}: {lines} lines, the cap is {FILE_LINES}"] if lines > FILE_LINES else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            if length > FUNCTION_LINES:
                found.append(f"{name}:{node.lineno} {node.name}: {length} lines, the cap is {FUNCTION_LINES}")
        elif isinstance(node, ast.ClassDef):
            methods = sum(isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)) for part in node.body)
            if methods > CLASS_METHODS:
                found.append(f"{name}:{node.lineno} {node.name}: {methods} methods, the cap is {CLASS_METHODS}")
    return found


def own_imports(source: str) -> list[tuple[str, list[str]]]:
    """Module-level `from PACKAGE import names` of the project's own packages, the overlay helper aside."""
    found = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import):
            found += [(alias.name, []) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(("." * node.level + (node.module or ""), [alias.name for alias in node.names]))
    own = ("openrlhf", "pace", "trace_alloc")
    return [pair for pair in found if pair != OVERLAY_IMPORT and (pair[0][:1] == "." or pair[0].split(".")[0] in own)]


def test_sizes(root: Path, code_files: list[Path]) -> None:
    found = [line for name in code_files for line in over_budget(str(name), (root / name).read_text())]
    assert not found, "\n".join(found)


def test_no_init_re_exports(root: Path, code_files: list[Path]) -> None:
    inits = [name for name in code_files if name.name == "__init__.py"]
    found = {str(name): own_imports((root / name).read_text()) for name in inits}
    assert {name: imports for name, imports in found.items() if imports and name not in WIRING} == {}


@pytest.mark.parametrize("package", ["pace", "trace_alloc"])
def test_core_init_is_a_docstring(root: Path, package: str) -> None:
    body = ast.parse((root / package / "__init__.py").read_text()).body
    assert len(body) == 1 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("value = 1\n" * (FILE_LINES + 1), "lines, the cap is 400"),
        ("def f():\n" + "    value = 1\n" * FUNCTION_LINES, "f: 61 lines"),
        ("class C:\n" + "".join(f"    def m{i}(self): ...\n" for i in range(CLASS_METHODS + 1)), "C: 16 methods"),
        ("async def f():\n" + "    value = 1\n" * FUNCTION_LINES, "f: 61 lines"),
    ],
)
def test_the_checker_finds_what_is_too_large(source: str, what: str) -> None:
    (found,) = over_budget("planted.py", source)
    assert what in found


def test_the_checker_lets_full_budgets_pass() -> None:
    assert over_budget("planted.py", "def f():\n" + "    value = 1\n" * (FUNCTION_LINES - 1)) == []
    assert over_budget("planted.py", "value = 1\n" * FILE_LINES) == []


def test_the_checker_finds_re_exports() -> None:
    source = "import os\nfrom openrlhf import overlay\nfrom .pool import Pool\nfrom pace.types import Trajectory\n"
    assert own_imports(source) == [(".pool", ["Pool"]), ("pace.types", ["Trajectory"])]
