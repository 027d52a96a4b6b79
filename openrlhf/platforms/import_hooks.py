"""Patches that wait for a module: each runs around the execution of the module it names, never before.

A patch is a generator function of the module: what it does before `yield` happens before the module's own code runs,
the rest right after it. So a name is replaced before any other module can import it, and nothing heavy is imported
for the sake of a patch.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

Patch = Callable[[ModuleType], Iterator[None]]


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: Any, patch: Patch) -> None:
        self._inner = inner
        self._patch = contextmanager(patch)

    def __getattr__(self, attribute: str) -> Any:  # get_code, get_source, is_package, ...
        return getattr(self._inner, attribute)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with self._patch(module):
            self._inner.exec_module(module)


class PatchFinder(importlib.abc.MetaPathFinder):
    """Finds the named modules as usual and runs their patch when they are executed."""

    def __init__(self, patches: Mapping[str, Patch]) -> None:
        self._patches = patches

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name not in self._patches:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._patches[name])
        return spec


def install(patches: Mapping[str, Patch]) -> None:
    """Registers the patches, once per process. A module that is already loaded is patched at once.

    Raises RuntimeError for a loaded module of vLLM, whose own modules import each other's names: that is too late.
    """
    loaded = sorted(set(patches) & set(sys.modules))
    if late := [name for name in loaded if name.startswith("vllm.")]:
        raise RuntimeError(f"import openrlhf before {', '.join(late)}: the CPU platform must patch them first")
    for name in loaded:
        with contextmanager(patches[name])(sys.modules[name]):
            pass
    sys.meta_path.insert(0, PatchFinder(patches))
