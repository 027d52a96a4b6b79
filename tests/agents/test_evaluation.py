"""Episodes of a dataset are all played and counted, whatever becomes of some; the command says how they went."""

import asyncio
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from openrlhf.agents.evaluation import Episode, Row, play_all, summary
from openrlhf.cli import evaluate_agent

ROOT = Path(__file__).resolve().parents[2]
ROWS = [Row(i, f"p{i}", "1", "even" if i % 2 == 0 else "odd") for i in range(6)]


def response(score: float | None, **more: Any) -> dict[str, Any]:
    return {"scores": score, "reward": 0.5, "action_ranges": [(2, 5), (7, 9)], "truncated": False} | more


def episodes(play: Any, repeats: int = 2, concurrency: int = 3) -> list[Episode]:
    async def collect() -> list[Episode]:
        settings = {"repeats": repeats, "concurrency": concurrency, "timeout_s": 0.2}
        return [episode async for episode, _ in play_all(ROWS, play, **settings)]

    return asyncio.run(collect())


def test_every_row_is_played_as_often_as_asked() -> None:
    async def play(row: Row) -> dict[str, Any]:
        return response(float(row.number == 4), extra_logs={"f1": 0.5})

    found = episodes(play)
    assert sorted(e.row for e in found) == sorted([*range(6)] * 2)
    assert all((e.turns, e.tokens, e.logs, e.error) == (2, 5, {"f1": 0.5}, "") for e in found)
    means = summary(found)
    assert means["even"]["avg"] == pytest.approx(1 / 3) and means["odd"]["avg"] == 0.0
    assert means["all"]["avg"] == pytest.approx(1 / 6) and means["all"]["f1"] == 0.5


def test_failures_score_0_and_stop_nobody() -> None:
    async def play(row: Row) -> dict[str, Any]:
        if row.number == 0:
            raise KeyError("no such task")
        if row.number == 1:
            await asyncio.sleep(3600)
        return response({2: math.nan, 3: None}.get(row.number, 1.0), reward=None)

    found = {e.row: e for e in episodes(play, repeats=1)}
    assert {row: e.score for row, e in found.items()} == {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 1}
    assert "no such task" in found[0].error and "longer than 0.2 s" in found[1].error
    assert found[2].error == "its score is nan" and found[3].error == "its score is None"
    assert summary(list(found.values()))["all"]["failed"] == pytest.approx(4 / 6)


def test_no_more_episodes_at_a_time_than_asked() -> None:
    running, most = 0, 0

    async def play(row: Row) -> dict[str, Any]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return response(1.0)

    episodes(play)
    assert most == 3


def test_pass_counts_rows_and_avg_counts_episodes() -> None:
    means = summary([Episode(0, "a", 1.0), Episode(0, "a", 0.0), Episode(1, "a", 0.0), Episode(1, "a", 0.0)])
    assert means["a"]["avg"] == 0.25 and means["a"]["pass"] == 0.5


def test_the_table_has_a_line_for_every_source_and_one_for_all() -> None:
    lines = evaluate_agent.table(summary([Episode(0, "a", 1.0, logs={"em": 1.0}), Episode(1, "b", 0.0)]), 4)
    assert [line.split()[0] for line in lines.splitlines()[1:]] == ["a", "b", "all"]
    assert "avg@4" in lines and len({len(line) for line in lines.splitlines()}) == 1


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "data.jsonl").write_text('{"prompt": "?", "label": 1, "datasource": "x"}\n')
    (tmp_path / "chat.jsonl").write_text('{"prompt": [{"role": "user", "content": "?"}], "label": "1"}\n')
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "agent.py").write_text("import nothing_of_this_name\n")
    return {
        "--actor.model_name_or_path": str(tmp_path / "model"),
        "--train.agent_func_path": str(ROOT / "examples/python/agent_func_calculator.py"),
        "--eval.dataset": str(tmp_path / "data.jsonl"),
    }


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"--actor.model_name_or_path": "/no/where"}, "--actor.model_name_or_path: /no/where holds no model"),
        ({"--eval.dataset": "{folder}/none.jsonl"}, "--eval.dataset"),
        ({"--eval.dataset": "{folder}/empty.jsonl"}, "--eval.dataset"),
        ({"--eval.dataset": "{folder}/chat.jsonl"}, "add --data.apply_chat_template"),
        ({"--data.input_key": "question"}, "--data.input_key: there is no column 'question'"),
        ({"--data.label_key": "answer"}, "--data.label_key"),
        ({"--train.agent_func_path": "{folder}/agent.py"}, "nothing_of_this_name"),
        ({"--train.agent_func_path": "/no/agent.py"}, "doesn't exist"),
        ({"--eval.n_samples_per_prompt": "0"}, "--eval.n_samples_per_prompt: must be at least 1"),
        ({"--eval.temperature": "nan"}, "--eval.temperature: must be at least 0"),
        ({"--rollout.top_p": "0"}, "--rollout.top_p"),
        ({"--concurrency": "-1"}, "--concurrency"),
        ({"--episode_timeout_s": "0"}, "--episode_timeout_s"),
        ({"--output": "/no/where/out.jsonl"}, "--output"),
    ],
)
def test_bad_input_names_flag_and_fix(
    changed: dict[str, str], said: str, inputs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = inputs | {flag: value.format(folder=tmp_path) for flag, value in changed.items()}
    with pytest.raises(SystemExit) as ended:
        evaluate_agent.main([part for pair in flags.items() for part in pair])
    assert ended.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_plays_the_calculator_task(tmp_path: Path) -> None:
    from examples.tiny import build

    material = build.build()
    output = tmp_path / "episodes.jsonl"
    flags = {
        "--actor.model_name_or_path": material.model,
        "--train.agent_func_path": ROOT / "examples/python/agent_func_calculator.py",
        "--eval.dataset": material.model.parent / "calculator_eval.jsonl",
        "--data.max_len": 256,
        "--data.max_samples": 20,
        "--eval.n_samples_per_prompt": 2,
        "--output": output,
    }
    command = [sys.executable, "-m", "openrlhf.cli.evaluate_agent", "--data.apply_chat_template"]
    command += [str(part) for pair in flags.items() for part in pair]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    played = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(played) == 40 and {e["error"] for e in played} == {""}
    mean = sum(e["score"] for e in played) / 40
    assert f"{mean:.3f}" in done.stdout.splitlines()[-1] and 0 < mean < 1
    assert "Traceback" not in done.stderr
