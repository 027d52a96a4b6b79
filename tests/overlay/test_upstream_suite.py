"""Upstream's own tests pass on the fork: 221, none failed, none skipped.

They run in a merged tree as upstream's repository has it: upstream's package folder with the fork's files copied over
it, the untouched original inside it as `_upstream`, and upstream's `tests/` beside it.
"""

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import upstream

ROOT = Path(__file__).resolve().parents[2]
UPSTREAM_TESTS = 221
PACKAGES = ("openrlhf", "pace", "trace_alloc")
LEAVE_OUT = shutil.ignore_patterns("__pycache__")


@pytest.fixture
def merged(tmp_path: Path) -> Path:
    """The merged tree; upstream's tests come out of the pinned wheel, which is fetched when no local copy is named."""
    original = tmp_path / "original"
    original.mkdir()
    upstream.fill(target=original / "_upstream", tests=tmp_path / "merged")
    shutil.copytree(original / "_upstream", tmp_path / "merged" / "openrlhf")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / "merged" / package, dirs_exist_ok=True, ignore=LEAVE_OUT)
    return tmp_path / "merged"


@pytest.mark.slow
def test_upstreams_own_tests_pass(merged: Path) -> None:
    report = merged / "report.xml"
    command = [sys.executable, "-m", "pytest", "tests", "-q", "-p", "no:cacheprovider", "-W", "ignore"]
    done = subprocess.run(
        [*command, f"--rootdir={merged}", f"--junitxml={report}"],
        cwd=merged,
        env=os.environ | {"PYTHONPATH": str(merged)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert report.exists(), done.stdout + done.stderr
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    counts = {key: int(suite.attrib[key]) for key in ("tests", "failures", "errors", "skipped")}
    expected = {"tests": UPSTREAM_TESTS, "failures": 0, "errors": 0, "skipped": 0}
    assert counts == expected, done.stdout[-4000:] + done.stderr[-2000:]
    assert done.returncode == 0
