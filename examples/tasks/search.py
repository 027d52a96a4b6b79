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
from dataclasses import dataclass, field
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
BOOK = (
    "Winter Paper Copper Summer Hollow Velvet Northern Wandering".split(),
    "Atlas Orchard Lantern Voyage Clock Island".split(),
)
RIVERS = "Arven Brisk Cauda Delme Ister Lorn Mavra Ondra Pelin Rusk Sarn Tavel".split()
TRADES = "chemist painter sailor teacher surgeon botanist printer weaver".split()
PEOPLE = 120

BIRTH = (
    "{name} was born in {town} in {year}.",
    "A native of {town}, {name} came into the world in {year}.",
    "The birthplace of {name}, born in {year}, is {town}.",
)
TRADE = (
    "Before becoming known, {name} worked as a {trade}.",
    "{name} made a living as a {trade} at first.",
    "Trained as a {trade}, {name} stayed in that trade for years.",
)
SITE = (
    "{name} is a town of {n},000 people on the river {river}.",
    "The river {river} flows through {name}, a town of {n},000.",
    "{name}, with {n},000 inhabitants, lies on the banks of the {river}.",
)
SEAT = ("It has its seat in {town}.", "Its head office is in {town}.", "The company is run from {town}.")
# kind of thing: (what its maker is called, sentences)
WORKS = {
    "company": ("founder", ("{name} is a company founded by {maker}.", "The company {name} was set up by {maker}.")),
    "film": ("director", ("{name} is a film directed by {maker}.", "The film {name} was shot by {maker}.")),
    "book": ("author", ("{name} is a novel by {maker}.", "{maker} wrote the novel {name}.")),
}


@dataclass(frozen=True)
class World:
    """Passages, and the questions about them."""

    passages: list[dict[str, str]] = field(default_factory=list)
    questions: list[files.Row] = field(default_factory=list)

    def tell(self, title: str, *sentences: str) -> str:
        """A new passage; its id."""
        self.passages.append({"id": f"p{len(self.passages):04d}", "title": title, "text": " ".join(sentences)})
        return self.passages[-1]["id"]

    def ask(self, question: str, answer: str, *supporting: str) -> None:
        """A new question."""
        label = json.dumps({"answers": [answer], "supporting": list(supporting)})
        self.questions.append({"prompt": question, "label": label, "datasource": "two_hop"})


@dataclass(frozen=True)
class Town:
    """A place, and its passage."""

    passage: str
    name: str
    river: str


@dataclass(frozen=True)
class Person:
    """A person, and the passage about the person."""

    passage: str
    name: str
    town: Town
    year: int
    trade: str


def _names(parts: tuple[list[str], list[str]], joint: str = "") -> list[str]:
    return [f"{first}{joint}{last}" for first in parts[0] for last in parts[1]]


def generate(seed: int) -> World:
    """A small world: towns, people who were born there, and companies, films and books that they made."""
    rng, world = random.Random(f"{seed} world"), World()
    towns = _towns(world, rng)
    people = _people(world, rng, towns)
    for kind, names in (("company", _names(COMPANY)), ("film", _names(FILM, " ")), ("book", _names(BOOK, " "))):
        _works(world, rng, kind, names, people, towns)
    _comparisons(world, rng, people)
    rng.shuffle(world.questions)
    return world


def _towns(world: World, rng: random.Random) -> list[Town]:
    towns = []
    for name in _names(TOWN):
        river = rng.choice(RIVERS)
        passage = world.tell(name, rng.choice(SITE).format(name=name, n=rng.randrange(3, 90), river=river))
        towns.append(Town(passage, name, river))
    return towns


def _people(world: World, rng: random.Random, towns: Sequence[Town]) -> list[Person]:
    people = []
    for name in rng.sample(_names((FIRST, LAST), " "), PEOPLE):
        town, year, trade = rng.choice(towns), rng.randrange(1850, 1990), rng.choice(TRADES)
        born = rng.choice(BIRTH).format(name=name, town=town.name, year=year)
        passage = world.tell(name, born, rng.choice(TRADE).format(name=name, trade=trade))
        people.append(Person(passage, name, town, year, trade))
        question = f"On which river is the town where {name} was born?"
        world.ask(question, town.river, passage, town.passage)
    return people


def _works(
    world: World, rng: random.Random, kind: str, names: Sequence[str], people: Sequence[Person], towns: Sequence[Town]
) -> None:
    role, made = WORKS[kind]
    for name in names:
        maker, seat = rng.choice(people), rng.choice(towns)
        sentences = [rng.choice(made).format(name=name, maker=maker.name)]
        if kind == "company":
            sentences.append(rng.choice(SEAT).format(town=seat.name))
        about = world.tell(name, *sentences)
        world.ask(f"In which town was the {role} of {name} born?", maker.town.name, about, maker.passage)
        world.ask(f"What trade did the {role} of {name} have at first?", maker.trade, about, maker.passage)
        if kind == "company":
            world.ask(f"On which river is the town where {name} has its seat?", seat.river, about, seat.passage)


def _comparisons(world: World, rng: random.Random, people: Sequence[Person]) -> None:
    """Every pair of neighbours in a random order, so none occurs twice."""
    order = rng.sample(people, len(people))
    for number, (left, right) in enumerate(zip(order, order[1:], strict=False)):
        if left.year == right.year:
            continue
        older = left.name if left.year < right.year else right.name
        if number % 2:
            question, answer = f"Was {left.name} born before {right.name}?", "yes" if older == left.name else "no"
        else:
            question, answer = f"Who was born first, {left.name} or {right.name}?", older
        world.ask(question, answer, left.passage, right.passage)


def from_hotpot(rows: Sequence[dict[str, Any]]) -> World:
    """Questions with their contexts, a passage for every title; what occurs again is left out.

    Raises ValueError for a row in another format.
    """
    passages: dict[str, dict[str, str]] = {}
    questions: dict[str, files.Row] = {}
    for number, row in enumerate(rows):
        try:
            for title, sentences in row["context"]:
                passages.setdefault(title, {"id": title, "title": title, "text": "".join(sentences)})
            supporting = list(dict.fromkeys(title for title, _ in row["supporting_facts"]))
            label = json.dumps({"answers": [row["answer"]], "supporting": supporting})
            found = {"prompt": row["question"], "label": label, "datasource": "hotpotqa"}
            questions.setdefault(row["question"], found)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"question {number} is not in HotpotQA's format: {error!r}") from error
    return World(list(passages.values()), list(questions.values()))


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
    if args.train + args.eval > len(world.questions):
        made.error(f"--train, --eval: together at most {len(world.questions)}, the number of questions")
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
