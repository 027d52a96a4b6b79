"""Builds the distribution `openrlhf`: the fork's own files and, inside the package, the pinned upstream.

Invariant: whatever is built or installed holds `openrlhf/_upstream` of the pinned version, or the build stops with one
message. Everything static is in pyproject.toml; here is what depends on upstream having been put in place first.
"""

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
# Commands whose result holds the package or its metadata. `sdist` and `egg_info` carry upstream.txt instead.
NEED_UPSTREAM = frozenset({"bdist_wheel", "build", "build_py", "develop", "dist_info", "editable_wheel", "install"})
UPSTREAM_LICENSE = "openrlhf/_upstream/LICENSE"


def load_upstream() -> ModuleType:
    """upstream.py, by path: build front ends run this file without its folder on `sys.path`."""
    spec = importlib.util.spec_from_file_location("upstream", ROOT / "upstream.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fork_version() -> str:
    """`openrlhf.__version__`, from the assignments alone: the package can't be imported before upstream is there."""
    tree = ast.parse((ROOT / "openrlhf" / "__init__.py").read_text())
    wanted = {"UPSTREAM_VERSION", "__version__"}
    tree.body = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in wanted]
    scope: dict[str, str] = {}
    exec(compile(tree, "openrlhf/__init__.py", "exec"), scope)
    return scope["__version__"]


def fill_upstream() -> None:
    """Puts the pinned upstream in place; a build that cannot have it ends here, with the reason as its last line."""
    upstream = load_upstream()
    try:
        upstream.fill()
    except upstream.UpstreamError as error:
        sys.exit(f"upstream.py: {error}")


if NEED_UPSTREAM.intersection(sys.argv[1:]):
    fill_upstream()

setup(
    version=fork_version(),
    packages=find_packages(include=["openrlhf*", "pace*", "trace_alloc*"]),
    package_data={"openrlhf._upstream": ["LICENSE", "PIN"]},
    include_package_data=False,
    license_files=["LICENSE", "NOTICE", *([UPSTREAM_LICENSE] if (ROOT / UPSTREAM_LICENSE).exists() else [])],
)
