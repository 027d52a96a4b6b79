"""Multi-hop questions with a search tool: data, and episodes played by a script."""

import asyncio
import copy
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.python import agent_func_search
from examples.python.agent_func_search import SearchAgent
from examples.tasks import search as task
from openrlhf.agents import retrieval
from openrlhf.agents.retrieval import Passage, RetrievalError, Retriever, build_index

from .episodes import CHAT, call, check_branching, episode, play
from .fake_encoder import fake_encoder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The task's files, with an index of the fake encoder."""
    monkeypatch.setattr(retrieval, "sentence_encoder", lambda name, **_: fake_encoder)
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
    assert (len(train), len(evaluation)) == (64, 32) and 300 <= len(passages) <= 600
    assert len({row["prompt"] for row in train + evaluation}) == 96
    texts = {passage["id"]: f"{passage['title']} {passage['text']}" for passage in passages}
    for row in train + evaluation:
        label = json.loads(row["label"])
        (answer,) = label["answers"]
        assert len(label["supporting"]) == 2
        first, second = (texts[key] for key in label["supporting"])
        assert answer in ("yes", "no") or answer in second or " first, " in row["prompt"] and answer in first


def test_the_way_of_two_searches(folder: Path) -> None:
    """What the first search finds names what to look for next."""
    row = next(row for row in rows(folder / "eval.jsonl") if row["prompt"].startswith("In which town"))
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
        ("\\boxed{}", 0.0, 0.0),
        ("<think>\\boxed{New York}</think> done", 0.0, 0.0),
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


def test_turns_run_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_MAX_TURNS", "2")
    *_, end = episode(SearchAgent, "?", json.dumps({"answers": ["x"]}), *[call("search", query="town")] * 2)
    assert end["done"] and end["scores"] == 0.0 and end["extra_logs"] == {"em": 0.0, "f1": 0.0, "turns": 2.0}


def test_a_passage_is_cut(folder: Path) -> None:
    corpus = folder / "corpus"
    (corpus / "long.jsonl").write_text(json.dumps({"id": "z", "title": "Zebra", "text": "zebra " * 9999}))
    build_index(corpus, "fake")
    reply = episode(SearchAgent, "?", json.dumps({"answers": ["x"]}), call("search", query="zebra"))[1]
    assert "Zebra" in reply["environment_feedback"] and len(reply["environment_feedback"]) < 3000


@pytest.mark.parametrize("label", ["x", "[]", "{}", '{"answers": "x"}', '{"answers": []}', '{"answers": [3]}'])
def test_a_label_without_answers_is_refused(folder: Path, label: str) -> None:
    """A text in place of the list would be taken for a list of letters."""
    with pytest.raises(ValueError, match="answers"):
        episode(SearchAgent, "?", label, "\\boxed{x}")


@pytest.mark.parametrize("name", ["SEARCH_TOP_K", "SEARCH_MAX_TURNS"])
@pytest.mark.parametrize("value", ["0", "three", "-1", "100000"])
def test_a_wrong_setting_is_not_the_model_s_to_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=f"{name}={value}: set it to"):
        episode(SearchAgent, "?", json.dumps({"answers": ["x"]}), call("search", query="town"))


def test_episodes_go_on_while_the_index_opens_and_it_opens_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[str] = []
    go = threading.Event()

    def slow(name: str) -> Any:
        began.append(name)
        assert go.wait(20), "the event loop waits for the index"
        return fake_encoder

    monkeypatch.setattr(retrieval, "sentence_encoder", slow)
    retrieval._opened.cache_clear()

    async def scenario() -> None:
        start = {"observation": "?", "label": json.dumps({"answers": ["x"]})}
        resets = [asyncio.create_task(SearchAgent(CHAT).reset(start)) for _ in range(4)]
        while not began:
            await asyncio.sleep(0.001)
        go.set()
        await asyncio.gather(*resets)

    asyncio.run(scenario())
    assert began == ["fake"]


def test_a_copied_episode_holds_no_index(folder: Path) -> None:
    agent = SearchAgent(CHAT)
    asyncio.run(play(agent, "?", json.dumps({"answers": ["x"]}), [call("search", query="town")]))
    copied: dict[int, Any] = {}
    copy.deepcopy(agent, copied)
    assert copied and not any(isinstance(part, np.ndarray | Retriever | Passage) for part in copied.values())


@pytest.mark.parametrize("seed", [0, 22])
def test_no_question_occurs_twice(seed: int) -> None:
    questions = [row["prompt"] for row in task.generate(seed).questions]
    assert len(set(questions)) == len(questions) >= 320


def test_more_questions_than_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        task.main(["--out", str(tmp_path), "--train", "9999"])
    assert "--train, --eval: together at most" in capsys.readouterr().err


def test_questions_in_hotpot_s_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "question": "Who?",
        "answer": "Ada",
        "context": [["A", ["one. ", "two."]], ["B", ["three."]]],
        "supporting_facts": [["B", 0], ["B", 1]],
    }
    source = tmp_path / "hotpot.json"
    source.write_text(json.dumps([row, row | {"question": "What?"}, row]))
    assert task.main(["--out", str(tmp_path / "out"), "--hotpot", str(source), "--eval", "1", "--train", "1"]) == 0
    assert len(rows(tmp_path / "out" / "train.jsonl")) == len(rows(tmp_path / "out" / "eval.jsonl")) == 1
    assert json.loads(rows(tmp_path / "out" / "train.jsonl")[0]["label"]) == {"answers": ["Ada"], "supporting": ["B"]}
    assert [p["text"] for p in rows(tmp_path / "out" / "corpus" / "passages.jsonl")] == ["one. two.", "three."]
    source.write_text('[{"question": 3}]')
    with pytest.raises(SystemExit):
        task.main(["--out", str(tmp_path / "out"), "--hotpot", str(source)])
    assert "--hotpot" in capsys.readouterr().err


def test_the_executor_loads() -> None:
    assert agent_func_search.AgentExecutor().agent_instance_cls
