"""BFCL v4's multi-turn tasks, split for training, for `examples/python/agent_func_bfcl.py`.

    python -m examples.tasks.bfcl --out DIR [--seed 0] [--subsets multi_turn_base ...] [--train 640] [--eval 160]

The benchmark publishes no split. Here 160 of the 200 scenarios are for training and 40 for evaluation, 10 of each main
service (files, car, trading, travel); all variants of a scenario stay on one side. Fewer rows are taken evenly from
the subsets. A row's `datasource` is its subset. Same seed, same bytes.
"""

import json
import random
import sys
from collections.abc import Sequence

from examples.tasks import files
from openrlhf.agents.bfcl_data import SUBSETS, MissingPackage, Task, tasks

SERVICES = ("GorillaFileSystem", "VehicleControlAPI", "TradingBot", "TravelAPI")  # every scenario has exactly one
EVAL_SHARE = 0.2


def split(subsets: Sequence[str], seed: int) -> tuple[list[files.Row], list[files.Row]]:
    """All rows for training, and all for evaluation; any first so many hold the subsets evenly."""
    train: list[int] = []
    evaluation: list[int] = []
    draw = random.Random(seed)
    scenarios = list(tasks("multi_turn_base").values())
    for service in SERVICES:
        numbers = [number for number, task in enumerate(scenarios) if service in task.classes]
        draw.shuffle(numbers)
        n_eval = round(EVAL_SHARE * len(numbers))
        evaluation += numbers[:n_eval]
        train += numbers[n_eval:]
    for side in (train, evaluation):
        draw.shuffle(side)
    return _rows(train, subsets), _rows(evaluation, subsets)


def _rows(numbers: Sequence[int], subsets: Sequence[str]) -> list[files.Row]:
    return [_row(tasks(subset)[f"{subset}_{number}"]) for number in numbers for subset in subsets]


def _row(task: Task) -> files.Row:
    return {"prompt": task.message(0), "label": json.dumps({"id": task.id}), "datasource": task.subset}


def main(argv: Sequence[str] | None = None) -> int:
    """Writes both files."""
    made = files.parser(__doc__, train=640, evaluation=160)
    made.add_argument("--subsets", nargs="+", choices=SUBSETS, default=list(SUBSETS), help="default: all four")
    args = made.parse_args(argv)
    files.check(args, made)
    try:
        train, evaluation = split(list(dict.fromkeys(args.subsets)), args.seed)
    except MissingPackage as error:
        made.error(str(error))
    files.write(args.out, {"train": train[: args.train], "eval": evaluation[: args.eval]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
