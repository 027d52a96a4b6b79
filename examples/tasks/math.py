"""Problems of reasoning-gym whose answers math-verify can check, for `examples/python/agent_func_math.py`.

    python -m examples.tasks.math --out DIR [--seed 0] [--train 512] [--eval 64]

Any other set with a question and an answer column does as well: name it with `--data.prompt_dataset`, its columns with
`--data.input_key` and `--data.label_key`. Same seed, same bytes; no problem is in both files.
"""

import sys
from collections.abc import Iterator, Sequence

from examples.tasks import files

# Hard for a small model in its head, easy with a program.
SOURCES = (
    "chain_sum",
    "products",
    "gcd",
    "lcm",
    "simple_equations",
    "basic_arithmetic",
    "count_primes",
    "number_sequence",
)


def problems(count: int, seed: int) -> list[files.Row]:
    """So many different problems, of all sources in turn."""
    found: dict[str, files.Row] = {}
    streams = [_stream(name, seed) for name in SOURCES]
    while len(found) < count:
        for stream in streams:
            row = next(stream)
            found.setdefault(row["prompt"], row)
    return list(found.values())[:count]


def _stream(source: str, seed: int, size: int = 1 << 20) -> Iterator[files.Row]:
    import reasoning_gym

    dataset = reasoning_gym.create_dataset(source, size=size, seed=seed)
    for index in range(size):
        problem = dataset[index]
        yield {"prompt": problem["question"].strip(), "label": str(problem["answer"]), "datasource": source}


def main(argv: Sequence[str] | None = None) -> int:
    """Writes both files."""
    made = files.parser(__doc__, train=512, evaluation=64)
    args = made.parse_args(argv)
    files.check(args, made)
    rows = problems(args.train + args.eval, args.seed)
    files.write(args.out, {"train": rows[args.eval :], "eval": rows[: args.eval]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
