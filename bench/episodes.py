"""Episodes a second of the tasks with tools, with a scripted policy: what an environment costs beside an engine.

    python bench/episodes.py [--seconds S] [--concurrent N] [--encoder minilm] [--json FILE]

math: one call of the Python tool, in the sandbox, and a boxed answer. bfcl: the benchmark's own calls of every user
turn, checked by its checker. search: the two searches that a question needs, and the answer; only with an encoder
installed. As many episodes at once as asked for, in one process; the first one of each task is not counted.
"""

import argparse
import asyncio
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from examples.python.agent_func_math import MathAgent  # noqa: E402
from examples.python.agent_func_search import SearchAgent  # noqa: E402
from examples.tasks import math, search  # noqa: E402
from openrlhf.agents.function_calling import FunctionCallingAgent  # noqa: E402
from openrlhf.agents.retrieval import RetrievalError  # noqa: E402
from pace.table import aligned  # noqa: E402
from tests.agents.bfcl_answers import answer, every_task, label, spoken  # noqa: E402
from tests.agents.episodes import CHAT, call, play  # noqa: E402

Episode = tuple[type[Any], str, str, list[str]]  # agent, prompt, label, turns


def math_episodes(_: argparse.Namespace, __: Path) -> list[Episode]:
    rows = math.problems(64, seed=0)
    program = call("python", code="print(sum(n * n for n in range(100)))")
    return [(MathAgent, r["prompt"], r["label"], [program, f"\\boxed{{{r['label']}}}"]) for r in rows]


def bfcl_episodes(_: argparse.Namespace, __: Path) -> list[Episode]:
    return [
        (FunctionCallingAgent, task.message(0), label(task), spoken(answer(task), per_turn=1))
        for task in every_task(step=8)
    ]


def search_episodes(given: argparse.Namespace, folder: Path) -> list[Episode]:
    search.main(["--out", str(folder), "--train", "64", "--eval", "1", "--encoder", given.encoder])
    os.environ["SEARCH_CORPUS"] = str(folder / "corpus")
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    titles = {
        row["id"]: row["title"]
        for row in map(json.loads, (folder / "corpus" / "passages.jsonl").read_text().splitlines())
    }
    found = []
    for row in rows:
        known = json.loads(row["label"])
        turns = [call("search", query=titles[key]) for key in known["supporting"]]
        found.append((SearchAgent, row["prompt"], row["label"], [*turns, f"\\boxed{{{known['answers'][0]}}}"]))
    return found


TASKS: dict[str, Callable[[argparse.Namespace, Path], list[Episode]]] = {
    "math": math_episodes,
    "bfcl": bfcl_episodes,
    "search": search_episodes,
}


async def measured(episodes: Sequence[Episode], *, seconds: float, concurrent: int) -> dict[str, float]:
    """Episodes a second, turns of one, and the share with reward 1."""
    await _one(episodes[0])
    waiting: Iterator[Episode] = itertools.cycle(episodes)
    ends: list[tuple[int, float]] = []
    began = time.monotonic()

    async def player() -> None:
        while time.monotonic() - began < seconds:
            ends.append(await _one(next(waiting)))

    await asyncio.gather(*(player() for _ in range(concurrent)))
    took = time.monotonic() - began
    turns, rewards = zip(*ends, strict=True)
    return {"a second": len(ends) / took, "turns": sum(turns) / len(ends), "right": sum(rewards) / len(ends)}


async def _one(episode: Episode) -> tuple[int, float]:
    kind, prompt, wanted, turns = episode
    _, *replies = await play(kind(CHAT), prompt, wanted, turns)
    return len(replies), float(replies[-1]["scores"])


def report(result: dict[str, Any]) -> str:
    """The table, and what was left out."""
    rows = [["task", "episodes a second", "turns each", "reward"]]
    rows += [
        [name, f"{cells['a second']:.1f}", f"{cells['turns']:.1f}", f"{cells['right']:.2f}"]
        for name, cells in result["tasks"].items()
    ]
    given = result["arguments"]
    what = f"{given['concurrent']} episodes at once, {given['seconds']:g} s each, {result['cores']} cores"
    return "\n".join([what, aligned(rows), *result["left out"]])


def main(argv: Sequence[str] | None = None) -> int:
    """Runs every task and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="time for each task (default %(default)s)")
    parser.add_argument("--concurrent", type=int, default=4, help="episodes at once (default %(default)s)")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    parser.add_argument("--encoder", default="minilm", help="encoder of the search task (default %(default)s)")
    parser.add_argument("--json", type=Path, help="file for all numbers")
    args = parser.parse_args(argv)
    given = {name: value for name, value in vars(args).items() if name != "json"}
    result: dict[str, Any] = {"arguments": given, "cores": os.cpu_count(), "tasks": {}, "left out": []}
    for name in args.tasks:
        with tempfile.TemporaryDirectory(prefix="episodes-") as folder:
            try:
                episodes = TASKS[name](args, Path(folder))
            except (SystemExit, RetrievalError) as error:
                result["left out"].append(f"{name}: left out, its encoder can't be used ({error})")
                continue
            print(f"{name}: {args.seconds:g} s", file=sys.stderr, flush=True)
            playing = measured(episodes, seconds=args.seconds, concurrent=args.concurrent)
            result["tasks"][name] = asyncio.run(playing)
    print(report(result))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
