"""Patches run around the execution of the module they name: not before it is imported, and before anyone sees it."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """openrlhf/platforms/import_hooks.py by itself: importing it by name would apply a platform to this process."""
    monkeypatch.setattr(sys, "meta_path", sys.meta_path.copy())
    monkeypatch.syspath_prepend(ROOT / "openrlhf" / "platforms")
    monkeypatch.delitem(sys.modules, "import_hooks", raising=False)
    return importlib.import_module("import_hooks")


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An importable module, `hooked`, and one that copies a name out of it."""
    (tmp_path / "hooked.py").write_text("VALUE = 'own'\nimport sys\nSEEN = getattr(sys, 'hook_was_here', None)\n")
    (tmp_path / "user.py").write_text("from hooked import VALUE\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "hooked"
    for name in ("hooked", "user"):
        sys.modules.pop(name, None)


def test_both_halves_of_a_patch_run_at_their_time(
    hooks: ModuleType, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = []

    def patch(module: ModuleType) -> Iterator[None]:
        order.append(("before", hasattr(module, "VALUE")))
        monkeypatch.setattr(sys, "hook_was_here", True, raising=False)
        yield
        order.append(("after", module.VALUE))
        module.VALUE = "patched"

    hooks.install({target: patch})
    assert order == []
    user = importlib.import_module("user")
    assert order == [("before", False), ("after", "own")]
    assert user.VALUE == "patched" and sys.modules[target].SEEN is True


def test_the_module_keeps_its_source_and_file(hooks: ModuleType, target: str, tmp_path: Path) -> None:
    def patch(module: ModuleType) -> Iterator[None]:
        yield

    hooks.install({target: patch})
    module = importlib.import_module(target)
    assert module.__file__ == str(tmp_path / "hooked.py")
    assert "VALUE = 'own'" in module.__spec__.loader.get_source(target)


def test_other_modules_are_found_as_ever(hooks: ModuleType, target: str) -> None:
    def patch(module: ModuleType) -> Iterator[None]:
        raise AssertionError("not this one")
        yield

    finder = hooks.PatchFinder({target: patch})
    assert finder.find_spec("json", None) is None
    assert hooks.PatchFinder({"no_such_module": patch}).find_spec("no_such_module", None) is None


def test_an_error_in_the_module_reaches_the_importer_through_the_patch(
    hooks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text("raise ValueError('its own error')\n")
    monkeypatch.syspath_prepend(tmp_path)
    cleaned = []

    def patch(module: ModuleType) -> Iterator[None]:
        try:
            yield
        finally:
            cleaned.append(module.__name__)

    hooks.install({"broken_module": patch})
    with pytest.raises(ValueError, match="its own error"):
        importlib.import_module("broken_module")
    assert cleaned == ["broken_module"]
