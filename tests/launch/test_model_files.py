"""Model folders and tokenizers, damaged in the ways that stop a run."""

import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from openrlhf.launch import model_files
from openrlhf.launch.problem import Problem

Run = Callable[..., SimpleNamespace]
ACTOR = "--actor.model_name_or_path"


def problems_of(args: SimpleNamespace) -> list[Problem]:
    found = [*model_files.check(args)]
    return found or model_files.load_tokenizer(args)[1]


def test_a_whole_folder_passes(run: Run, model_folder: Path) -> None:
    assert problems_of(run(actor__model_name_or_path=str(model_folder))) == []


def test_the_predictors_model_is_looked_at_as_well(run: Run, model_folder: Path) -> None:
    trees = {"actor__model_name_or_path": str(model_folder), "trace__enable": True}
    (problem,) = problems_of(run(**trees, trace__predictor_model="/nowhere"))
    assert problem.flag == "--trace.predictor_model" and "doesn't exist" in problem.what
    assert problems_of(run(**trees, trace__predictor_model=str(model_folder))) == []


def rewrite(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def remove(*names: str) -> Callable[[Path], None]:
    return lambda folder: [(folder / name).unlink(missing_ok=True) for name in names]  # type: ignore[return-value]


def index(folder: Path) -> None:
    """Two shards by the index, one of them there."""
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    shards = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("data.pkl", b"0" * 1000)
    rewrite("pytorch_model.bin", lambda data: data[:-100])(folder)


TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
DAMAGE: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "no config": (remove("config.json"), "no config.json", "save_pretrained"),
    "an adapter only": (
        lambda folder: (folder / "config.json").rename(folder / "adapter_config.json"),
        "LoRA adapter",
        "lora_combiner",
    ),
    "config not JSON": (rewrite("config.json", lambda data: data[:-20]), "can't be read", "again"),
    "unknown model": (
        rewrite("config.json", lambda data: data.replace(b'"qwen3"', b'"qwen99"')),
        "qwen99",
        "again",
    ),
    "no weights": (remove("model.safetensors"), "no weights", "copy"),
    "weights cut short": (rewrite("model.safetensors", lambda data: data[:-8]), "cut short", "again"),
    "weights without header": (rewrite("model.safetensors", lambda data: b"\0" * 64), "cut short", "again"),
    "empty weights": (rewrite("model.safetensors", lambda data: b""), "cut short", "again"),
    "huge header": (
        rewrite("model.safetensors", lambda data: struct.pack("<Q", 1 << 40) + data[8:]),
        "cut short",
        "again",
    ),
    "LFS pointer": (
        rewrite("model.safetensors", lambda data: b"version https://git-lfs.github.com/spec/v1\n"),
        "Git LFS",
        "git lfs pull",
    ),
    "shard missing": (index, "model-2.safetensors is missing", "again"),
    "index damaged": (
        lambda folder: (
            remove("model.safetensors")(folder),
            (folder / "model.safetensors.index.json").write_text("{}"),
        ),
        "index",
        "again",
    ),
    "torch file cut short": (pickled, "cut short", "again"),
    "no tokenizer": (remove(*TOKENIZER, "chat_template.jinja"), "no tokenizer", "tokenizer's files"),
    "tokenizer not JSON": (rewrite("tokenizer.json", lambda data: data[:-20]), "can't be loaded", "again"),
    "no token to pad with": (
        rewrite(
            "tokenizer_config.json",
            lambda data: json.dumps(
                {k: v for k, v in json.loads(data).items() if k not in ("eos_token", "pad_token")}
            ).encode(),
        ),
        "neither a padding nor an end token",
        "pad_token",
    ),
}


@pytest.mark.parametrize(("damage", "what", "fix"), DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_folder_is_named_with_a_fix(
    run: Run, model_folder: Path, damage: Callable[[Path], Any], what: str, fix: str
) -> None:
    damage(model_folder)
    (problem,) = problems_of(run(actor__model_name_or_path=str(model_folder)))
    assert problem.flag == ACTOR
    assert str(model_folder) in problem.what and what in problem.what and fix in problem.fix


@pytest.mark.parametrize("path", ["/nowhere/model", "./model", "../model", "~/model", "a/b/c"])
def test_a_path_that_is_not_there(run: Run, path: str) -> None:
    (problem,) = problems_of(run(actor__model_name_or_path=path))
    assert problem.flag == ACTOR and path in problem.what and "doesn't exist" in problem.what


def test_a_file_in_place_of_a_folder(run: Run, model_folder: Path) -> None:
    (problem,) = problems_of(run(actor__model_name_or_path=str(model_folder / "model.safetensors")))
    assert "is a file" in problem.what and "folder" in problem.fix


def test_hub_names_need_a_cache_offline_and_nothing_online(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (problem,) = problems_of(run(actor__model_name_or_path="org/never-downloaded"))
    assert "cache" in problem.what and "HF_HUB_OFFLINE=0" in problem.fix
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    assert problems_of(run(actor__model_name_or_path="org/never-downloaded")) == []


def test_a_cached_hub_model_is_looked_at(run: Run, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    cached = str(model_folder / "config.json")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda name, file: cached)
    remove("model.safetensors")(model_folder)
    (problem,) = [*model_files.check(run(actor__model_name_or_path="org/cached"))]
    assert "no weights" in problem.what


def test_every_role_is_looked_at_under_its_own_flag(run: Run) -> None:
    apart = {"algo__advantage__estimator": "gae", "critic__model_name_or_path": "/no/critic"}
    apart |= {"reward__remote_url": None, "reward__model_name_or_path": "/no/reward"}
    flags = [problem.flag for problem in model_files.check(run(**apart))]
    assert flags == ["--critic.model_name_or_path", "--reward.model_name_or_path"]
    unused = {"critic__model_name_or_path": "/no/critic", "reward__model_name_or_path": "/no/reward"}
    assert [*model_files.check(run(**unused))] == []


def test_a_reward_model_needs_its_head(run: Run, model_folder: Path) -> None:
    from safetensors.numpy import save_file

    changes = {"reward__remote_url": None, "reward__model_name_or_path": str(model_folder)}
    (problem,) = [*model_files.check(run(**changes))]
    assert problem.flag == "--reward.model_name_or_path"
    assert "score.weight" in problem.what and "--ds.value_head_prefix" in problem.fix
    save_file({"score.weight": numpy.zeros((1, 16), numpy.float32)}, model_folder / "model.safetensors")
    assert [*model_files.check(run(**changes))] == []
    assert [*model_files.check(run(**changes, ds__value_head_prefix="value"))] != []


def test_the_context_and_the_heads_of_the_model_limit_the_engine(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = [*model_files.check(run(data__max_len=257))]
    assert problem.flag == "--data.max_len" and "256" in problem.what and "256 or less" in problem.fix
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    assert [*model_files.check(run(data__max_len=257))] == []
    (problem,) = [*model_files.check(run(vllm__tensor_parallel_size=3))]
    assert problem.flag == "--vllm.tensor_parallel_size" and "divisor of 4" in problem.fix
