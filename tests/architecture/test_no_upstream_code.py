"""The repository holds none of upstream's code: no run of six or more non-trivial lines stands in upstream as well.

Lines are compared by their tokens, so white space, comments and blank lines hide nothing. Lines that any program may
share (imports, lone brackets, bare keywords, docstring quotes) are left out before the runs are counted.
"""

import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

RUN = 6
TRIVIAL = re.compile(
    r"""(import\ .*|from\ \S+\ import\ .*      # what a module needs says nothing about who wrote it
        |[\W_]*                              # brackets, quotes, ellipses
        |(pass|return|break|continue|raise|else|try|finally|self|yield|True|False|None)[\s:,]*
        |@(staticmethod|classmethod|property)
        |return\ (self|None|True|False|args|result))$""",
    re.VERBOSE,
)
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


@dataclass(frozen=True)
class Line:
    number: int
    text: str


@dataclass(frozen=True)
class Copy:
    """`count` lines of `ours`, from line `first` on, that stand in `theirs` from line `there` on."""

    ours: str
    first: int
    last: int
    theirs: str
    there: int
    count: int

    def __str__(self) -> str:
        return f"{self.ours}:{self.first}-{self.last} repeats {self.count} lines of {self.theirs}:{self.there}"


def python_lines(source: str) -> dict[int, str]:
    """Physical lines as their tokens joined by one space; a string over several lines counts line by line."""
    lines: dict[int, list[str]] = defaultdict(list)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            for offset, part in enumerate(token.string.splitlines()):
                lines[token.start[0] + offset].append(" ".join(part.split()))
    return {number: " ".join(parts) for number, parts in lines.items()}


def plain_lines(source: str) -> dict[int, str]:
    """For shell, and for Python that doesn't parse."""
    return {n: " ".join(line.split("#")[0].split()) for n, line in enumerate(source.splitlines(), 1)}


def code_lines(path: Path) -> list[Line]:
    """The non-trivial lines of a file, in order."""
    source = path.read_text(errors="replace")
    try:
        lines = python_lines(source) if path.suffix == ".py" else plain_lines(source)
    except (tokenize.TokenError, IndentationError):
        lines = plain_lines(source)
    return [Line(number, text) for number, text in sorted(lines.items()) if not TRIVIAL.match(text)]


def copies(ours: Iterable[Path], theirs: Iterable[Path], run: int = RUN) -> list[Copy]:
    """The longest common runs of at least `run` lines, one after another through each of our files."""
    starts: dict[tuple[str, ...], tuple[Path, list[Line], int]] = {}
    for path in theirs:
        lines = code_lines(path)
        for index in range(len(lines) - run + 1):
            starts.setdefault(tuple(line.text for line in lines[index : index + run]), (path, lines, index))
    found = []
    for path in ours:
        lines, index = code_lines(path), 0
        while index <= len(lines) - run:
            match = starts.get(tuple(line.text for line in lines[index : index + run]))
            if match is None:
                index += 1
                continue
            other, their_lines, at = match
            count = _common(lines[index:], their_lines[at:])
            last = lines[index + count - 1].number
            found.append(Copy(str(path), lines[index].number, last, str(other), their_lines[at].number, count))
            index += count
    return found


def _common(left: list[Line], right: list[Line]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a.text != b.text), min(len(left), len(right))
    )


def test_the_repository_holds_no_upstream_code(root: Path, repo_files: list[Path], upstream: Path) -> None:
    ours = [root / name for name in repo_files if name.suffix in (".py", ".sh")]
    found = copies(ours, sorted(upstream.rglob("*.py")))
    assert len(ours) > 5 and not found, "import, subclass or write your own:\n" + "\n".join(map(str, found))


def test_the_checker_sees_upstream(upstream: Path) -> None:
    files = sorted(upstream.rglob("*.py"))
    with_runs = {path for path in files if len(code_lines(path)) >= RUN}
    assert len(with_runs) > 30
    assert {Path(copy.ours) for copy in copies(files, files)} == with_runs


def test_a_planted_copy_is_found_behind_new_layout_and_comments(tmp_path: Path, upstream: Path) -> None:
    source = (upstream / "trainer" / "ray" / "utils.py").read_text().splitlines()
    body = next(i for i, line in enumerate(source) if line.startswith("def "))
    planted = tmp_path / "planted.py"
    text = ["value = 1", "if value:"]
    for line in source[body : body + 20]:
        text += [f"    {line}  # ours now" if line.strip() else "", "", "    # said differently"]
    planted.write_text("\n".join([*text, "value = 2"]))
    found = copies([planted], sorted(upstream.rglob("*.py")))
    assert [copy.ours for copy in found] == [str(planted)]
    assert found[0].count >= RUN and found[0].theirs.endswith("trainer/ray/utils.py")


def test_a_copy_in_a_script_is_found(tmp_path: Path) -> None:
    lines = [f"run --flag_{i} value_{i}" for i in range(RUN)]
    theirs, ours = tmp_path / "theirs.sh", tmp_path / "ours.sh"
    theirs.write_text("\n".join(lines))
    ours.write_text("#!/bin/sh\n" + "\n\n".join(f"  {line}   # same" for line in lines))
    assert [copy.count for copy in copies([ours], [theirs])] == [RUN]


def test_five_equal_lines_and_shared_trivia_are_no_copy(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs.py", tmp_path / "ours.py"
    imports = "\n".join(f"import module_{i}" for i in range(RUN))
    same = "\n".join(f"value_{i} = {i}" for i in range(RUN - 1))
    theirs.write_text(f"{imports}\n{same}\ntheirs = 1\n")
    ours.write_text(f"{imports}\n{same}\nours = 1\n")
    assert copies([ours], [theirs]) == []
