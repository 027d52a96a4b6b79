"""Whoever needs a reply of an actor that Ray starts again asks through `restarts`, so that its death is outlasted."""

import ast
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("openrlhf/trainer/fully_async", "openrlhf/trainer/tree")
ACTORS = {"pool", "_pool", "predictor", "_predictor"}


def impatient(source: str) -> Iterator[str]:
    """`ray.get(x.method.remote(...))`, with x one of ACTORS, and what that call looks like."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ray.get":
            for inner in ast.walk(node):
                if isinstance(inner, ast.Attribute) and inner.attr == "remote":
                    owner = ast.unparse(inner).split(".")[-3:-2]
                    if ACTORS.intersection(owner):
                        yield ast.unparse(node)


def test_nobody_calls_a_restarted_actor_without_patience(root: Path) -> None:
    found = [
        f"{path.relative_to(root)}: {call}"
        for folder in FOLDERS
        for path in (root / folder).glob("*.py")
        for call in impatient(path.read_text())
    ]
    assert not found, "use restarts.ask:\n" + "\n".join(found)


def test_the_check_sees_such_a_call() -> None:
    assert list(impatient("ray.get(self._pool.set_version.remote(3), timeout=30)"))
    assert not list(impatient("restarts.ask(lambda: self._pool.set_version.remote(3))\nray.get(engine.load.remote())"))
