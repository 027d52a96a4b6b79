"""A small model for the engine, and fresh processes for it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import ranges  # noqa: E402


@pytest.fixture(scope="session")
def first_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weight set 0 as a model folder."""
    folder = tmp_path_factory.mktemp("ranges")
    ranges.save(folder)
    return folder


@pytest.fixture(scope="session")
def run_program() -> Callable[..., dict[str, Any]]:
    """Runs a program of programs.py to its end; its JSON object, or everything it said."""

    def run(*arguments: str, timeout: float = 400) -> dict[str, Any]:
        dropped = {"OPENRLHF_PLATFORM", "PYTHONPATH"}
        environment = {name: value for name, value in os.environ.items() if name not in dropped}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(HERE / "programs.py"), *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=environment,
            cwd="/",
        )
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        return json.loads(next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{")))

    return run
