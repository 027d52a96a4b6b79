"""Builds the tiny model, its tokenizer and its data, once for each recipe.

    python -m examples.tiny.build [--out DIR] [--cache DIR] [--seed N]

The model is a Qwen3 of about a million parameters. Upstream's SFT trainer brings it to where it solves a part of the
problems, so that there is something left to reinforce; the build fails if it ends up outside that part.

Invariant: what `build` returns is complete and within the recipe's bounds. Nothing is downloaded.
"""

import argparse
import json
import logging
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from examples.tiny.cache import cached, default_cache
from examples.tiny.recipe import Recipe

logger = logging.getLogger(__name__)
Report = Callable[[str], None]
SUMMARY = "summary.json"
WEIGHTS = "model.safetensors"


class BuildError(RuntimeError):
    """The built model isn't of use; the message says why."""


@dataclass(frozen=True, kw_only=True)
class TinyMaterial:
    """What a build gives: the policy's folder, the data files of examples/tiny/tasks.py, and what was measured."""

    model: Path
    train: Path
    eval: Path
    calculator_train: Path
    calculator_eval: Path
    sft: Path
    pairs_train: Path
    pairs_eval: Path
    parameters: int
    solve_rate: float
    game_rate: float
    build_seconds: float

    @classmethod
    def load(cls, folder: Path) -> "TinyMaterial":
        """The material in a folder that `build` has made."""
        data = {path.stem: path for path in folder.glob("*.jsonl")}
        return cls(model=folder / "model", **data, **json.loads((folder / SUMMARY).read_text()))


def build(
    cache: Path | None = None, *, out: Path | None = None, recipe: Recipe | None = None, report: Report = logger.info
) -> TinyMaterial:
    """The material for `recipe`, from the cache if it was built before. `out` also copies it to a folder of yours."""
    recipe = recipe or Recipe()
    folder = cached(cache or default_cache(), f"tiny-{recipe.key()}", lambda target: _fill(recipe, target, report))
    if out is not None:
        shutil.copytree(folder, out, dirs_exist_ok=True)
        folder = out
    return TinyMaterial.load(folder)


def _fill(recipe: Recipe, target: Path, report: Report) -> None:
    # Imported here: with a full cache nothing heavy is needed.
    from examples.tiny import model, sft, tasks

    begin = time.monotonic()
    report("data and untrained model")
    tasks.write_all(recipe, target)
    demonstrations, scratch = target / "sft.jsonl", target / "scratch"
    folder = target / "model"
    parameters = model.save_initial(recipe, tasks.texts(tasks.read(demonstrations)), folder)
    scratch.mkdir()
    trained = sft.warm_start(recipe, initial=folder, data=demonstrations, scratch=scratch, report=report)
    # Only the weights: upstream's copy of the config carries what training changed in it, such as `use_cache`.
    shutil.copy(trained / WEIGHTS, folder / WEIGHTS)
    shutil.rmtree(scratch)
    report("measuring")
    rates = measure_rates(recipe, target)
    check_rates(recipe, rates)
    summary = rates | {"parameters": parameters, "build_seconds": round(time.monotonic() - begin, 1)}
    (target / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")


def measure_rates(recipe: Recipe, folder: Path) -> dict[str, float]:
    """Both tasks' success rates on the evaluation files, sampled at temperature 1."""
    from examples.tiny import measure, tasks

    sampler = measure.Sampler(folder / "model", seed=recipe.seed)
    rates = {}
    for name, rate, file in (
        ("solve_rate", measure.solve_rate, "eval.jsonl"),
        ("game_rate", measure.game_rate, "calculator_eval.jsonl"),
    ):
        rows = tasks.read(folder / file)
        rates[name] = round(rate(sampler, [sampler.prompt(row) for row in rows], [row["label"] for row in rows]), 4)
    return rates


def check_rates(recipe: Recipe, rates: dict[str, float]) -> None:
    """Raises BuildError unless both rates leave room for reinforcement."""
    for name, (low, high) in (("solve_rate", recipe.solve_rate), ("game_rate", recipe.game_rate)):
        if not low <= rates[name] <= high:
            raise BuildError(
                f"the warm-started model's {name} is {rates[name]:.1%}, wanted {low:.0%} to {high:.0%}: "
                f"change sft_sums, sft_games, slip or random_call in examples/tiny/recipe.py, or seed {recipe.seed}"
            )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Builds a tiny warm-started model with its data.")
    parser.add_argument("--out", type=Path, help="also copy the result to this folder")
    parser.add_argument(
        "--cache", type=Path, help="where builds are kept (default: $OPENRLHF_TINY_CACHE, .cache/tiny)"
    )
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    args = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that every `finally` runs
    begin = time.monotonic()

    def report(text: str) -> None:
        print(f"[{time.monotonic() - begin:5.1f} s] {text}", file=sys.stderr, flush=True)

    try:
        material = build(args.cache, out=args.out, recipe=replace(Recipe(), seed=args.seed), report=report)
    except BuildError as error:
        parser.exit(1, f"error: {error}\n")
    print(f"model         {material.model} ({material.parameters / 1e6:.2f} M parameters)")
    print(f"data          {material.model.parent}/*.jsonl")
    print(f"solve rate    sums {material.solve_rate:.1%}, calculator game {material.game_rate:.1%} at temperature 1")
    print(f"seconds       {time.monotonic() - begin:.1f} (the build itself took {material.build_seconds:g})")


if __name__ == "__main__":
    main()
