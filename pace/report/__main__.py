"""`python -m pace.report RUN_DIR [RUN_DIR ...]`: a page about one run, or about several side by side.

In: folders with `pace.jsonl` or `pace.jsonl.gz`, or such files. Out: one HTML file. Exit code 2: a wrong argument.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pace.report.page import page
from pace.report.reading import ReportError, Run, read_run

MAX_RUNS = 6  # as many as have colours of their own


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads, writes, says where; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pace.report", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN_DIR", help="a run's log_dir, or its pace.jsonl[.gz]"
    )
    parser.add_argument("--out", type=Path, default=Path("report.html"), help="the page (default: report.html)")
    parser.add_argument(
        "--labels", default="", help="what to call the runs: a,b,... (default: names of their folders)"
    )
    given = parser.parse_args(arguments)
    try:
        content = page(_read(given.runs, given.labels))
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(content, encoding="utf-8")
    except ReportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: --out {given.out} can't be written ({error.strerror}): name another file", file=sys.stderr)
        return 2
    print(f"{given.out}: {given.out.stat().st_size / 1e6:.2f} MB")
    return 0


def _read(paths: Sequence[Path], labels: str) -> list[Run]:
    """The runs with distinct labels. Raises ReportError when there are too many, or when labels do not match."""
    if len(paths) > MAX_RUNS:
        raise ReportError(f"{len(paths)} runs are given, at most {MAX_RUNS} fit on a page: leave some out")
    names = [name.strip() for name in labels.split(",")] if labels else [""] * len(paths)
    if len(names) != len(paths):
        raise ReportError(
            f"--labels names {len(names)} runs, but {len(paths)} are given: one label for each, by commas"
        )
    runs = [read_run(path, name) for path, name in zip(paths, names, strict=True)]
    for i, run in enumerate(runs):
        same = [one for one in runs[:i] if one.label.split(" #")[0] == run.label]
        run.label += f" #{len(same) + 1}" if same else ""
    return runs


if __name__ == "__main__":
    sys.exit(main())
