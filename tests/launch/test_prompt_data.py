"""Datasets as upstream loads them, and the bad ones."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from openrlhf.launch import model_files, prompt_data
from openrlhf.launch.problem import Problem

Run = Callable[..., SimpleNamespace]
Rows = Callable[..., str]
DATA = "--data.prompt_dataset"


def problems_of(args: SimpleNamespace) -> list[Problem]:
    return [*prompt_data.check(args, model_files.load_tokenizer(args)[0])]


@pytest.fixture
def single(run: Run) -> Callable[..., SimpleNamespace]:
    """The run with one sample a prompt, where rows count as they are."""
    small = {"algo__advantage__estimator": "reinforce", "rollout__n_samples_per_prompt": 1}
    return lambda **changes: run(**small | {"train__batch_size": 4} | changes)


def test_the_valid_dataset_passes(run: Run) -> None:
    assert problems_of(run()) == []


def test_messages_and_templates_pass(run: Run, rows_file: Rows) -> None:
    chat = [{"prompt": [{"role": "user", "content": f"{i}?"}], "label": None} for i in range(8)]
    assert problems_of(run(data__prompt_dataset=rows_file(rows=chat), data__apply_chat_template=True)) == []
    assert problems_of(run(data__apply_chat_template=True)) == []
    assert problems_of(run(data__input_template="Q: {}\nA:")) == []
    assert problems_of(run(data__input_template="{broken} is dropped by upstream")) == []


def test_several_datasets_pass(run: Run, rows_file: Rows) -> None:
    both = f"{run().data.prompt_dataset}, {rows_file(8)}"
    assert problems_of(run(data__prompt_dataset=both)) == []
    assert problems_of(run(data__prompt_dataset=both, data__prompt_probs="0.5,0.5", data__max_samples=16)) == []


def test_saved_datasets_pass_and_their_splits_are_known(run: Run, tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    rows = Dataset.from_list([{"prompt": f"{i}", "label": "x"} for i in range(8)])
    rows.save_to_disk(tmp_path / "plain")
    DatasetDict(train=rows, test=rows).save_to_disk(tmp_path / "split")
    assert problems_of(run(data__prompt_dataset=str(tmp_path / "plain"), data__prompt_split="any")) == []
    assert problems_of(run(data__prompt_dataset=str(tmp_path / "split"), data__prompt_split="test")) == []
    (problem,) = problems_of(run(data__prompt_dataset=str(tmp_path / "split"), data__prompt_split="validation"))
    assert problem.flag == "--data.prompt_split" and "train, test" in problem.what
    assert "--data.prompt_split train" in problem.fix


def test_a_split_that_a_file_has_not(run: Run) -> None:
    (problem,) = problems_of(run(data__prompt_split="test"))
    assert problem.flag == "--data.prompt_split" and "--data.prompt_split train" in problem.fix
    args = run(eval__dataset=run().data.prompt_dataset, eval__split="test")
    assert [problem.flag for problem in problems_of(args)] == ["--eval.split"]


@pytest.mark.parametrize("path", ["/nowhere/prompts.jsonl", "nowhere.parquet", "./folder", "~/prompts"])
def test_a_missing_file(run: Run, path: str) -> None:
    (problem,) = problems_of(run(data__prompt_dataset=path))
    assert problem.flag == DATA and path in problem.what and "spelling" in problem.fix


def test_a_hub_dataset_offline(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    (problem,) = problems_of(run(data__prompt_dataset="org/never-downloaded"))
    assert problem.flag == DATA and "HF_HUB_OFFLINE" in problem.what and "local" in problem.fix


def test_a_malformed_line_is_given_by_number(run: Run, tmp_path: Path) -> None:
    good = json.dumps({"prompt": "1?", "label": "1"})
    (tmp_path / "bad.jsonl").write_text(f"{good}\n\n{good}\n{good[:-3]}\n{good}\n")
    (problem,) = problems_of(run(data__prompt_dataset=str(tmp_path / "bad.jsonl")))
    assert problem.flag == DATA and "line 4" in problem.what and "line" in problem.fix


@pytest.mark.parametrize("name", ["empty.jsonl", "empty.json"])
def test_an_empty_file(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    (problem,) = problems_of(run(data__prompt_dataset=str(tmp_path / name)))
    assert problem.flag == DATA and "empty" in problem.what and problem.fix


def test_lines_that_are_no_objects(run: Run, rows_file: Rows) -> None:
    (problem,) = problems_of(run(data__prompt_dataset=rows_file(rows=[1, 2, 3])))
    assert problem.flag == DATA and "can't be loaded" in problem.what and "keys" in problem.fix


@pytest.mark.parametrize(("flag", "change"), [("input", "question"), ("label", "answer")])
def test_a_key_that_is_no_column(run: Run, flag: str, change: str) -> None:
    (problem,) = problems_of(run(**{f"data__{flag}_key": change}))
    assert problem.flag == f"--data.{flag}_key" and change in problem.what and "prompt, label" in problem.what
    assert f"--data.{flag}_key" in problem.fix


def test_an_evaluation_set_without_the_key(run: Run, rows_file: Rows) -> None:
    (problem,) = problems_of(run(eval__dataset=rows_file(rows=[{"question": "1?", "label": "1"}])))
    assert problem.flag == "--data.input_key" and "question, label" in problem.what


BAD_ROWS: dict[str, tuple[Any, dict[str, Any], str, str]] = {
    "messages without a template": ([{"role": "user", "content": "1?"}], {}, "--data.apply_chat_template", "add"),
    "a number": (1, {}, "--data.input_key", "another column"),
    "no messages": (
        5,
        {"data__apply_chat_template": True},
        "--data.apply_chat_template",
        "`role` and `content`",
    ),
    "braces": ("1?", {"data__input_template": "{} {x}"}, "--data.input_template", "{{ }}"),
}


@pytest.mark.parametrize(("prompt", "changes", "flag", "fix"), BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_rows_that_make_no_prompt(
    run: Run, rows_file: Rows, prompt: Any, changes: dict[str, Any], flag: str, fix: str
) -> None:
    rows = rows_file(rows=[{"prompt": prompt, "label": "1"}] * 8)
    (problem,) = problems_of(run(data__prompt_dataset=rows, **changes))
    assert problem.flag == flag and fix in problem.fix


def test_one_empty_prompt_far_down_is_found(run: Run, rows_file: Rows) -> None:
    rows: list[dict[str, Any]] = [{"prompt": f"{i}?", "label": "1"} for i in range(200)]
    rows[150]["prompt"], rows[151]["prompt"] = "", None
    (problem,) = problems_of(run(data__prompt_dataset=rows_file(rows=rows)))
    assert problem.flag == "--data.input_key" and "2 empty values" in problem.what and "remove" in problem.fix


def test_a_tokenizer_without_chat_template(run: Run, model_folder: Path) -> None:
    (model_folder / "chat_template.jinja").unlink()
    args = run(actor__model_name_or_path=str(model_folder), data__apply_chat_template=True)
    (problem,) = problems_of(args)
    assert problem.flag == "--data.apply_chat_template" and "--data.input_template" in problem.fix


def test_prompts_without_room(run: Run, rows_file: Rows, caplog: pytest.LogCaptureFixture) -> None:
    long, short = {"prompt": "x" * 120, "label": "1"}, {"prompt": "x", "label": "1"}
    (problem,) = problems_of(run(data__prompt_dataset=rows_file(rows=[long] * 8)))
    assert problem.flag == "--data.max_len" and "120" in problem.what and "--data.max_len 136" in problem.fix
    assert problems_of(run(data__prompt_dataset=rows_file(rows=[long, short] * 4))) == []
    assert "4 of the first 8 prompts" in caplog.text
    assert problems_of(run(data__prompt_dataset=rows_file(rows=[long] * 8), rollout__max_new_tokens=None)) == []


def test_prompts_that_upstream_wouldnt_cut(run: Run, rows_file: Rows) -> None:
    """With a response as long as the context upstream cuts nothing, and vLLM refuses the prompt."""
    rows = [{"prompt": "x" * 128, "label": "1"}, {"prompt": "x", "label": "1"}] * 4
    args = run(data__prompt_dataset=rows_file(rows=rows), rollout__max_new_tokens=128)
    (problem,) = problems_of(args)
    assert problem.flag == "--data.max_len" and "--data.max_len 129" in problem.fix


def test_a_tokenizer_of_another_model(run: Run, model_folder: Path) -> None:
    config = model_folder / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": 257', '"vocab_size": 20'))
    (problem,) = problems_of(run(actor__model_name_or_path=str(model_folder)))
    assert problem.flag == "--actor.model_name_or_path" and "20 tokens" in problem.what and "own" in problem.fix


def test_too_few_samples_for_one_update(single: Run, rows_file: Rows) -> None:
    (problem,) = problems_of(single(data__prompt_dataset=rows_file(3)))
    assert problem.flag == "--train.batch_size" and "3 prompts" in problem.what and "batch_size 3" in problem.fix
    (problem,) = problems_of(single(data__max_samples=3))
    assert problem.flag == "--train.batch_size"


def test_fewer_prompts_than_a_rollout_batch_are_enough(run: Run, rows_file: Rows) -> None:
    assert problems_of(run(data__prompt_dataset=rows_file(3), train__batch_size=4)) == []


def test_a_last_step_that_would_hang_or_crash(single: Run, rows_file: Rows) -> None:
    two = {"actor__num_gpus_per_node": 2, "algo__kl__init_coef": 0.0, "rollout__micro_batch_size": 1}
    two |= {"train__micro_batch_size": 1}
    (problem,) = problems_of(single(**two, data__prompt_dataset=rows_file(7)))  # the last 3 go 2 and 1
    assert problem.flag == "--data.max_samples" and "wait for ever" in problem.what
    assert "--data.max_samples 4" in problem.fix
    (problem,) = problems_of(single(**two, data__prompt_dataset=rows_file(5)))  # 1 for 2 processes
    assert "Insufficient batch size" in problem.what and "--data.max_samples 4" in problem.fix
    assert problems_of(single(**two, data__prompt_dataset=rows_file(6))) == []  # 1 and 1
    assert problems_of(single(**two, data__prompt_dataset=rows_file(7), data__max_samples=4)) == []
    assert problems_of(single(**two, data__prompt_dataset=rows_file(7), pace__enable=True)) == []


def test_an_actor_frozen_for_the_whole_run(run: Run, rows_file: Rows) -> None:
    rows = rows_file(16)
    assert problems_of(run(data__prompt_dataset=rows, critic__freezing_steps=2)) == []
    (problem,) = problems_of(run(data__prompt_dataset=rows, critic__freezing_steps=3))
    assert problem.flag == "--critic.freezing_steps" and "4 steps" in problem.what and "2 or less" in problem.fix


def test_flags_out_of_range_dont_stop_the_look_at_the_data(run: Run) -> None:
    args = run(rollout__batch_size=0, rollout__vllm_generate_batch_size=0, data__input_key="question")
    assert [problem.flag for problem in problems_of(args)] == ["--data.input_key"]
