"""The page in a real browser: every figure is there, nothing is said on the console, and a long run opens quickly."""

import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from pace.report.page import SECTIONS, page
from pace.report.reading import read_run

from .logs import DEMO, log_lines, write

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync") + (
    "--disable-background-networking",
    "--disable-component-update",
    "--enable-logging=stderr",
    "--v=0",
    "--dump-dom",
)
PATIENCE_S = 60.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason=f"no browser found: none of {', '.join(NAMES)}"),
]


def opened(path: Path, profile: Path) -> tuple[str, list[str], float]:
    """The page as the browser has it, what it said on the console, and seconds from start to end of the browser."""
    began = time.monotonic()
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={profile}", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line], time.monotonic() - began


def expected() -> set[str]:
    run = read_run(DEMO / "pace")
    return {make([run]).id for _, _, makers in SECTIONS for make in makers}


@pytest.mark.parametrize("name", ["pace", "trace"])
def test_the_recorded_runs(name, tmp_path):
    (tmp_path / "page.html").write_text(page([read_run(DEMO / name)]))
    text, said, _ = opened(tmp_path / "page.html", tmp_path / "profile")
    ids = set(re.findall(r'<figure id="([^"]+)"', text))
    trees = {"fig-tree", "fig-roots", "fig-continuations", "fig-effective-ratio", "fig-calibration", "fig-predictor"}
    assert ids == expected() | (trees if name == "trace" else set())
    assert said == []
    assert text.count("<svg") >= 12


def test_what_is_said_on_the_console_is_noticed(tmp_path):
    (tmp_path / "page.html").write_text("<!DOCTYPE html><script>console.error('planted')</script>")
    _, said, _ = opened(tmp_path / "page.html", tmp_path / "profile")
    assert len(said) == 1 and "planted" in said[0]


def test_a_run_of_a_thousand_steps_opens_quickly(tmp_path):
    """Measured against an empty page, because the browser's own start takes what it takes."""
    lines = log_lines(40)
    steps = [line for line in lines if line["kind"] == "step"]
    long = [steps[i % 40] | {"step": i + 1, "time": 1000.0 + 7 * i} for i in range(1000)]
    (tmp_path / "page.html").write_text(page([read_run(write(tmp_path / "run", [lines[0], *long]))]))
    (tmp_path / "empty.html").write_text("<!DOCTYPE html><title>empty</title>")
    _, _, start = opened(tmp_path / "empty.html", tmp_path / "profile")
    text, said, seconds = opened(tmp_path / "page.html", tmp_path / "profile")
    assert said == [] and "fig-reward-steps" in text
    assert seconds - start < 10.0  # a fraction of a second where nothing else runs
