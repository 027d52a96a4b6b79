"""What the scripts take from a Python process is its last line: libraries print lines of their own before it."""

import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "examples" / "scripts"

FAKE_PYTHON = """#!/usr/bin/env bash
if [ "$1" = -c ]; then echo "[WARNING] a library's own line"; echo "$BUILT"; else printf '%s\\n' "$@" >> "$CALLS"; fi
"""


@pytest.mark.parametrize("script", ["quickstart_cpu.sh", "train_trace_tree.sh", "train_smollm2.sh"])
def test_the_model_is_what_the_builder_prints_last(script, tmp_path, monkeypatch):
    python, calls, built = tmp_path / "python", tmp_path / "calls", tmp_path / "built"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    for name in ("MODEL", "DATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("BUILT", built), ("CALLS", calls), ("RUN_DIR", tmp_path / "run")):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    subprocess.run(["bash", str(SCRIPTS / script)], check=True, capture_output=True, timeout=60)
    said = calls.read_text().splitlines()
    flag = next(place for place, word in enumerate(said) if word.endswith("model_name_or_path"))
    assert said[flag + 1] in (str(built), str(built / "model"))
