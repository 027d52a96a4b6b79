"""The command and its page: one file that needs nothing else, with nothing of a log as markup."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pace.report import svg
from pace.report.__main__ import main
from pace.report.page import SECTIONS, page
from pace.report.reading import read_run

from .logs import log_lines, tree_node, with_trees, write

EVIL = '<script>alert("x")</script>&\'"'
VOID = {"meta"}


class Tags(HTMLParser):
    """Start tags with their attributes, and that every one is closed in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def tags(text: str) -> Tags:
    parser = Tags()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return parser


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "first", with_trees(log_lines(6)))


def test_one_file_with_all_figures_and_nothing_from_elsewhere(folder, tmp_path, capsys):
    out = tmp_path / "new" / "page.html"
    assert main([str(folder), "--out", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    text = out.read_text()
    found = tags(text).found
    ids = [attributes["id"] for _, attributes in found if "id" in attributes]
    made = {make([read_run(folder)]).id for _, _, makers in SECTIONS for make in makers}
    assert made | {"fig-tree", "overview", "trees"} <= set(ids) and len(ids) == len(set(ids))
    names = {tag for tag, _ in found}
    assert not names & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    assert not re.search(r"https?:|@import|url\((?!#hatch)|\son\w+=", text)
    linked = {attributes["href"] for tag, attributes in found if tag == "a"}
    assert linked == {f"#{anchor}" for anchor in ("training", "staleness", "pool", "time", "trees")}


def test_nothing_of_a_log_becomes_markup(tmp_path):
    lines = with_trees(log_lines(6))
    lines[0]["pace"] |= {"admission": EVIL, "rank": EVIL}
    lines[0] |= {"batch_groups": EVIL, "n_samples": EVIL}
    lines.append({"kind": "evaluation", "time": 2000.0, "version": 4, "metrics": {EVIL: 0.5}})
    for line in lines:
        if line["kind"] == "trees":
            line["tree"] |= {"prompt_id": EVIL, "nodes": [tree_node(-1, reward=1.0, text=EVIL, n_tokens=EVIL)]}
        for decision in line.get("draw", {}).get("decisions", ()):
            decision["prompt_id"] = decision["group_id"] = EVIL
    run = read_run(write(tmp_path / "<b>run", lines), EVIL)
    text = page([run, read_run(run.path, EVIL + "2")])
    assert "script" not in {tag for tag, _ in tags(text).found} and "<b>" not in text
    assert "&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;&amp;" in text


def test_attributes_are_escaped():
    assert svg.element("g", id='a"><b', class_="x", stroke_width=1.0) == (
        '<g id="a&quot;&gt;&lt;b" class="x" stroke-width="1"/>'
    )
    assert svg.element("text", "<", svg.Markup("<b/>")) == "<text>&lt;<b/></text>"


def test_runs_side_by_side(folder, tmp_path):
    second = write(tmp_path / "second", log_lines(6, seed=3, max_reject_rate=0.0), zipped=True)
    out = tmp_path / "both.html"
    assert main([str(folder), str(second), "--out", str(out), "--labels", "with PACE, without"]) == 0
    text = out.read_text()
    assert "Report on 2 runs" in text and "with PACE: " in text and "<b" not in text.split("<body>")[0]
    assert re.search(r'<figure id="fig-staleness-runs"><h3>[^<]*</h3><figcaption>', text)


def test_runs_of_one_name_can_be_told_apart(tmp_path):
    first, second = (write(tmp_path / part / "log", log_lines(2)) for part in "ab")
    out = tmp_path / "page.html"
    assert main([str(first), str(second), "--out", str(out)]) == 0
    assert "log, log #2" in out.read_text()


def test_the_same_log_makes_the_same_page(folder):
    assert page([read_run(folder)]) == page([read_run(folder)])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{tmp}/nowhere"], "nowhere does not exist: give the run's log_dir (--pace.log_dir, or --ckpt.path)"),
        (["{tmp}"], "holds no pace.jsonl: give the run's log_dir"),
        (["{run}", "--labels", "a,b"], "--labels names 2 runs, but 1 are given: one label for each"),
        (["{run}"] * 7, "7 runs are given, at most 6 fit"),
        (["{run}", "--out", "{run}"], "can't be written"),
    ],
)
def test_wrong_arguments_end_with_2_and_say_what_to_do(folder, tmp_path, capsys, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    assert main([part.format(tmp=tmp_path, run=folder) for part in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and said in captured.err and captured.out == ""
    assert not (tmp_path / "report.html").exists()


def test_it_runs_as_a_module_from_anywhere(folder, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    command = [sys.executable, "-m", "pace.report", str(folder)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_a_long_run_makes_a_small_page(tmp_path):
    lines = log_lines(40)
    steps = [line for line in lines if line["kind"] == "step"]
    long = [steps[i % 40] | {"step": i + 1, "time": 1000.0 + 7 * i} for i in range(1000)]
    text = page([read_run(write(tmp_path, [lines[0], *long]))])
    assert len(text) < 1_000_000
