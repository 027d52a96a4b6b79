"""The tiny tasks as upstream's data files: prompts with labels, demonstrations, and preference pairs.

Invariant: the same recipe gives the same bytes, and no problem of an evaluation file occurs in a training file.

| file | rows | upstream flags |
|---|---|---|
| `{,calculator_}{train,eval}.jsonl` | `prompt` (messages), `label`, `datasource` | `--data.input_key prompt` |
| `sft.jsonl` | both tasks: `messages` | `--data.input_key messages --data.multiturn` |
| `pairs_{train,eval}.jsonl` | sums: `chosen`, `rejected` (messages) | `--data.chosen_key chosen`, `rejected_key` |

All of them with `--data.apply_chat_template`.
"""

import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from examples.python import agent_func_calculator as calculator
from examples.tiny.recipe import Recipe

SUMS, GAMES = "chain_sum", "calculator"
FILES = ("train", "eval", "calculator_train", "calculator_eval", "sft", "pairs_train", "pairs_eval")
Message = dict[str, str]
Row = dict[str, Any]
START_VALUES = range(1, 20)
GAME_CALLS = (2, 3, 4)


def message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def write_all(recipe: Recipe, folder: Path) -> None:
    """Writes every data file into `folder`."""
    for name, rows in build_all(recipe).items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def build_all(recipe: Recipe) -> dict[str, list[Row]]:
    """Every data file's rows by file name. Evaluation problems are drawn first and kept out of the rest."""
    problems = all_sums(recipe)
    held_out, train = problems[: recipe.eval_problems], problems[recipe.eval_problems :]
    rng = random.Random(f"{recipe.seed} demonstrations")
    games = all_games(recipe)
    eval_games = games[: min(recipe.eval_problems, len(games) // 4)]
    other_games = games[len(eval_games) :]
    demonstrations = [sum_demonstration(rng.choice(train), rng, recipe.slip) for _ in range(recipe.sft_sums)]
    demonstrations += [game_demonstration(rng.choice(other_games), rng, recipe) for _ in range(recipe.sft_games)]
    rng.shuffle(demonstrations)
    return {
        "train": [sum_row(problem) for problem in train],
        "eval": [sum_row(problem) for problem in held_out],
        "calculator_train": [game_row(game) for game in other_games],
        "calculator_eval": [game_row(game) for game in eval_games],
        "sft": demonstrations,
        "pairs_train": [pair(problem, rng) for problem in train[: recipe.pairs]],
        "pairs_eval": [pair(problem, rng) for problem in held_out[: recipe.pairs // 4]],
    }


# Sums.


def all_sums(recipe: Recipe) -> list[Row]:
    """reasoning-gym's problems in its own order, each expression once, without those that pass below zero."""
    from reasoning_gym.arithmetic.chain_sum import ChainSumConfig, ChainSumDataset

    low, high = recipe.terms
    config = ChainSumConfig(
        min_terms=low, max_terms=high, max_digits=recipe.digits, seed=recipe.seed << 32, size=recipe.draws
    )
    dataset, problems = ChainSumDataset(config), {}
    for index in range(config.size):
        problem = dataset[index]
        expression = problem["metadata"]["expression"]
        if min(partial_sums(expression)) >= 0:
            problems.setdefault(expression, problem)
    return list(problems.values())


def partial_sums(expression: str) -> list[int]:
    """The values on the way from left to right."""
    first, *rest = expression.split()
    values = [int(first)]
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        values.append(values[-1] + int(term) if sign == "+" else values[-1] - int(term))
    return values


def sum_row(problem: Row) -> Row:
    return {"prompt": [message("user", problem["question"])], "label": problem["answer"], "datasource": SUMS}


def worked_answer(expression: str, rng: random.Random, slip: float) -> str:
    """The sum worked from left to right. Each step is wrong with probability `slip`; the rest follows from it."""
    total, *rest = expression.split()
    steps, value = [], int(total)
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        result = value + int(term) if sign == "+" else value - int(term)
        if rng.random() < slip:
            result += rng.choice((-10, -2, -1, 1, 2, 10))
        steps.append(f"{value} {sign} {term} = {result}")
        value = result
    return f"{', '.join(steps)}. \\boxed{{{value}}}"


def sum_demonstration(problem: Row, rng: random.Random, slip: float) -> Row:
    answer = worked_answer(problem["metadata"]["expression"], rng, slip)
    return {"messages": [message("user", problem["question"]), message("assistant", answer)]}


def pair(problem: Row, rng: random.Random) -> Row:
    """A right and a wrong answer to the same problem."""
    question, expression = message("user", problem["question"]), problem["metadata"]["expression"]
    right = worked_answer(expression, rng, slip=0.0)
    wrong = next(answer for answer in _slips(expression, rng) if not answer.endswith(right[right.index("\\") :]))
    return {
        "chosen": [question, message("assistant", right)],
        "rejected": [question, message("assistant", wrong)],
    }


def _slips(expression: str, rng: random.Random) -> Iterator[str]:
    while True:
        yield worked_answer(expression, rng, slip=0.5)


# The calculator game.


def all_games(recipe: Recipe) -> list[calculator.State]:
    """Every game that can be won with its calls but not with one fewer, in random order."""
    games = [
        calculator.State(value, target, calls)
        for value in START_VALUES
        for target in range(1, calculator.LIMIT + 1)
        for calls in GAME_CALLS
        if calculator.winnable(calculator.State(value, target, calls))
        and not calculator.winnable(calculator.State(value, target, calls - 1))
    ]
    random.Random(f"{recipe.seed} games").shuffle(games)
    return games


def game_row(game: calculator.State) -> Row:
    label = json.dumps({"start": game.value, "target": game.target, "calls": game.left})
    return {"prompt": [message("user", calculator.instruction(game))], "label": label, "datasource": GAMES}


def game_demonstration(game: calculator.State, rng: random.Random, recipe: Recipe) -> Row:
    """One episode of a player who often calls at random. It ends with the last call, won or lost."""
    messages, state = [message("user", calculator.instruction(game))], game
    while True:
        good = calculator.winning_operations(state)
        careless = not good or rng.random() < recipe.random_call
        operation = rng.choice(calculator.OPERATIONS if careless else good)
        messages.append(message("assistant", f"<call>{operation}</call>"))
        before, state = state, calculator.play(state, operation)
        if calculator.won(state) or state.left == 0:
            return {"messages": messages}
        messages.append(message("tool", calculator.reply(before, operation)))


def texts(rows: Iterable[Row]) -> Iterator[str]:
    """Every message text of rows that hold conversations, for training the tokenizer."""
    for row in rows:
        for entry in row["messages"]:
            yield entry["content"]
