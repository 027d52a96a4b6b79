"""What the writers of task data share: their flags, and files that upstream's data loader reads."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]  # `prompt` (plain text), `label` (text), `datasource`


def parser(description: str | None, *, train: int, evaluation: int) -> argparse.ArgumentParser:
    """The flags that every task has."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--out", type=Path, required=True, help="folder for the files; made if it is missing")
    made.add_argument("--seed", type=int, default=0, help="same seed, same bytes (default %(default)s)")
    made.add_argument("--train", type=int, default=train, help="rows of train.jsonl (default %(default)s)")
    made.add_argument("--eval", type=int, default=evaluation, help="rows of eval.jsonl (default %(default)s)")
    return made


def check(parsed: argparse.Namespace, made: argparse.ArgumentParser) -> None:
    """Ends the program with the flag to change."""
    for flag, count in (("--train", parsed.train), ("--eval", parsed.eval)):
        if count < 0:
            made.error(f"{flag}: must be at least 0")
    if parsed.out.exists() and not parsed.out.is_dir():
        made.error(f"--out: {parsed.out} is a file; name a folder")


def write(folder: Path, files: Mapping[str, Sequence[Row]]) -> None:
    """Writes `<name>.jsonl` for every name and says so."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        print(f"{path}: {len(rows)} rows")
