"""Two-hop questions over a generated world, or questions in HotpotQA's format, for `agent_func_search.py`.

    python -m examples.tasks.search --out DIR [--seed 0] [--train 256] [--eval 64] [--encoder minilm]
    python -m examples.tasks.search --out DIR --hotpot hotpot_train_v1.1.json

Writes train.jsonl, eval.jsonl and `corpus/`; with `--encoder` also the corpus's index. A label is a JSON object with
`answers` and `supporting`, the ids of the passages that are needed. Both files are about one corpus and share no
question. Same seed, same bytes.
"""

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.tasks import files
from openrlhf.agents.retrieval import RetrievalError, build_index

FIRST = (
    "Ada Bruno Clara Dario Elsa Felix Greta Hugo Ines Jonas Karin Leo Mira Nils Olga Pavel Rosa Silas Tilda".split()
)
LAST = (
    "Abel Brandt Castor Dorn Ekberg Falk Gruber Hallas Iversen Jarvi Kessler Lindt Moreau Novak Ortega Pravec".split()
)
TOWN = ("Al Bel Cor Dun El Fer Gal Hol".split(), "dora mont ville stead mark haven brook field".split())
COMPANY = (
    "Nova Terra Aqua Ferro Lumen Vento Sola Kryo".split(),
    "works tech mills labs line craft power foods".split(),
)
FILM = (
    "Silent Golden Broken Hidden Last Distant Crimson Frozen".split(),
    "River Mirror Harvest Signal Garden Letter".split(),
)
TRADES = "chemist engineer painter sailor teacher surgeon botanist architect".split()
PEOPLE = 120


@dataclass(frozen=True)
class World:
    """Passages by id, and the questions about them."""

    passages: list[dict[str, str]]
    questions: list[files.Row]


def _names(parts: tuple[list[str], list[str]], joint: str = "") -> list[str]:
    return [f"{first}{joint}{last}" for first in parts[0] for last in parts[1]]


def generate(seed: int) -> World:
    """A small world: people with a town of birth and a trade, companies with a founder, films with a director."""
    rng = random.Random(f"{seed} world")
    people = rng.sample(_names((FIRST, LAST), " "), PEOPLE)
    towns, companies, films = _names(TOWN), _names(COMPANY), _names(FILM, " ")
    passages: list[dict[str, str]] = []
    questions: list[files.Row] = []

    def passage(title: str, *sentences: str) -> str:
        passages.append({"id": f"p{len(passages):04d}", "title": title, "text": " ".join(sentences)})
        return passages[-1]["id"]

    def ask(question: str, answer: str, *supporting: str) -> None:
        label = json.dumps({"answers": [answer], "supporting": list(supporting)})
        questions.append({"prompt": question, "label": label, "datasource": "two_hop"})

    for town in towns:
        river = rng.choice(LAST)
        passage(town, f"{town} is a town of {rng.randrange(3, 90)},000 people on the river {river}.")
    born = {person: rng.choice(towns) for person in people}
    year = {person: rng.randrange(1850, 1990) for person in people}
    trade = {person: rng.choice(TRADES) for person in people}
    lives = {
        person: passage(
            person,
            rng.choice(
                (f"{person} was born in {born[person]}", f"A native of {born[person]}, {person} came to the world")
            )
            + f" in {year[person]}.",
            f"Before becoming known, {person} worked as a {trade[person]}.",
        )
        for person in people
    }
    for kind, things, role, verb in (
        ("company", companies, "founder", "founded"),
        ("film", films, "director", "directed"),
    ):
        for thing in things:
            person = rng.choice(people)
            about = passage(thing, f"{thing} is a {kind}.", f"It was {verb} by {person}.")
            ask(f"In which town was the {role} of {thing} born?", born[person], about, lives[person])
            ask(f"What did the {role} of {thing} work as before becoming known?", trade[person], about, lives[person])
    for _ in range(len(companies) // 2):
        left, right = rng.sample(people, 2)
        if year[left] != year[right]:
            answer = "yes" if year[left] < year[right] else "no"
            ask(f"Was {left} born before {right}?", answer, lives[left], lives[right])
    rng.shuffle(questions)
    return World(passages, questions)


def from_hotpot(rows: Sequence[dict[str, Any]]) -> World:
    """Questions with their contexts, a passage for every title. Raises ValueError for a row in another format."""
    passages: dict[str, dict[str, str]] = {}
    questions: list[files.Row] = []
    for number, row in enumerate(rows):
        try:
            for title, sentences in row["context"]:
                passages.setdefault(title, {"id": title, "title": title, "text": "".join(sentences)})
            supporting = list(dict.fromkeys(title for title, _ in row["supporting_facts"]))
            label = json.dumps({"answers": [row["answer"]], "supporting": supporting})
            questions.append({"prompt": row["question"], "label": label, "datasource": "hotpotqa"})
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"question {number} is not in HotpotQA's format: {error!r}") from error
    return World(list(passages.values()), questions)


def main(argv: Sequence[str] | None = None) -> int:
    """Writes questions, corpus and, if asked for, the index."""
    made = files.parser(__doc__, train=256, evaluation=64)
    made.add_argument("--hotpot", type=Path, help="JSON file in HotpotQA's format, instead of the generated world")
    made.add_argument("--encoder", default="", help="also build the index: minilm, or a sentence-transformers model")
    args = made.parse_args(argv)
    files.check(args, made)
    try:
        world = from_hotpot(json.loads(args.hotpot.read_text())) if args.hotpot else generate(args.seed)
    except (OSError, ValueError) as error:
        made.error(f"--hotpot: {args.hotpot} can't be used ({error}); name a file in HotpotQA's format")
    questions = {"eval": world.questions[: args.eval], "train": world.questions[args.eval :][: args.train]}
    files.write(args.out, questions)
    files.write(args.out / "corpus", {"passages": world.passages})
    if args.encoder:
        try:
            build_index(args.out / "corpus", args.encoder)
        except RetrievalError as error:
            made.error(f"--encoder: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
