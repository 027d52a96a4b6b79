"""The CPU platform, one test per item of docs/overlay.md, on the real torch, DeepSpeed, transformers and vLLM.

Every test runs its program in a fresh process (programs.py), since the platform has to come before their import.
"""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Fresh = Callable[..., dict[str, Any]]
FLASH_ATTN = importlib.util.find_spec("flash_attn") is not None
EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def light(fresh: Fresh) -> dict[str, Any]:
    """One process for what needs no distributed set-up and no vLLM engine."""
    names = ("applied", "torch_cuda", "flash_attn", "replay_buffer", "dtypes", "flags")
    return fresh("several", *names)


@pytest.fixture(scope="module")
def training(fresh: Fresh, one_rank: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One process that trains on one gloo rank; its compiler is a program that always fails."""
    extensions = str(tmp_path_factory.mktemp("extensions"))
    no_compiler = {"CXX": "/bin/false", "CC": "/bin/false", "TORCH_EXTENSIONS_DIR": extensions}
    return fresh("several", "strategy", "optimizer", env=one_rank | no_compiler)


@pytest.fixture(scope="module")
def engine(fresh: Fresh, make_model: Callable[..., str]) -> dict[str, Any]:
    """vLLM's configurations, in a process that starts with the variable that would win over the KV cache's size."""
    given = json.dumps({"block_size": 64, "kv_cache_memory_bytes": 32 << 20})
    return fresh("engine_config", make_model(tied=True), given, env={"VLLM_CPU_KVCACHE_SPACE": "1"})


@pytest.mark.skipif(FLASH_ATTN, reason="flash-attn is installed here")
def test_item_1_upstream_imports_without_flash_attn_and_nobody_else_sees_a_stand_in(light: dict[str, Any]) -> None:
    seen = light["flash_attn"]
    assert "--ds.packing_samples" in seen["error"] and "--ds.ring_attn_size" in seen["error"]
    assert seen["left_behind"] == [] and not seen["findable"] and not seen["transformers_would_use_it"]


def test_item_1_a_real_flash_attn_is_left_alone(fresh: Fresh, tmp_path: Path) -> None:
    package = tmp_path / "flash_attn"
    (package / "utils").mkdir(parents=True)
    for name in ("__init__.py", "utils/__init__.py"):
        (package / name).write_text("")
    functions = "".join(
        f"def {name}(*_): raise RuntimeError('--ds.packing_samples --ds.ring_attn_size: the real one')\n"
        for name in ("index_first_axis", "pad_input", "rearrange", "unpad_input")
    )
    (package / "bert_padding.py").write_text(functions)
    (package / "utils" / "distributed.py").write_text("def all_gather(*_): ...\n")
    seen = fresh("flash_attn", env={"PYTHONPATH": str(tmp_path)})
    assert seen["error"].endswith("the real one") and seen["file"] == "flash_attn.bert_padding"


def test_item_2_torch_cuda_calls_are_harmless(light: dict[str, Any]) -> None:
    assert light["torch_cuda"] == {
        "current_device": "cpu",
        "set_device": None,
        "synchronize": None,
        "current_stream": None,
        "empty_cache": None,
        "is_available": False,
    }


def test_item_2_they_fail_without_the_platform(fresh: Fresh) -> None:
    seen = fresh("torch_cuda", platform="cuda")
    if seen["is_available"]:
        pytest.skip("there is a CUDA device here")
    failed = {name for name, value in seen.items() if str(value).startswith("failed")}
    assert {"current_device", "synchronize", "current_stream"} <= failed


def test_item_3_the_replay_buffer_lives_on_the_cpu(light: dict[str, Any]) -> None:
    seen = light["replay_buffer"]
    assert (seen["target"], seen["sampled"]) == ("cpu", "cpu")
    assert seen["rows"] == [[5, 6, 7, 0], [5, 6, 7, 8]]


def test_item_4_the_strategys_mesh_and_moving_average(training: dict[str, Any]) -> None:
    assert training["strategy"] == {"backend": "gloo", "mesh": "cpu", "average": True}


def test_item_5_two_processes_exchange_a_weight(at_once: Callable[..., list[dict[str, Any]]], port: str) -> None:
    trainer, engine = at_once(("sync_group", "0", port), ("sync_group", "1", port))
    assert engine["received"] == trainer["sent"] == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert engine["name"] == "layer.weight"
    assert engine["refused"] == "layer.weight: trainer sends torch.bfloat16, engine holds torch.float32"


def test_item_6_environment(light: dict[str, Any]) -> None:
    seen = light["applied"]["environment"]
    expected = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TORCHDYNAMO_DISABLE": "1"}
    assert expected.items() <= seen.items()


def test_item_6_the_users_environment_wins(fresh: Fresh) -> None:
    seen = fresh("applied", env={"OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "0"})["environment"]
    assert "OMP_NUM_THREADS" not in seen and "HF_HUB_OFFLINE" not in seen and seen["DS_ACCELERATOR"] == "cpu"


def test_item_6_defaults_of_upstreams_command_line(light: dict[str, Any]) -> None:
    assert light["flags"]["none"] == {
        "param_dtype": "fp32",
        "attn_implementation": "sdpa",
        "enforce_eager": True,
        "sync_backend": "gloo",
    }


def test_item_6_a_users_flag_wins(light: dict[str, Any]) -> None:
    seen = light["flags"]["given"]
    assert (seen["attn_implementation"], seen["param_dtype"]) == ("eager", "bf16")


def test_item_6_training_needs_no_compiler(training: dict[str, Any]) -> None:
    seen = training["optimizer"]
    assert seen["optimizer"] == "torch.optim.adamw.AdamW"
    assert (seen["device"], seen["dtype"], seen["compiled"]) == ("cpu", "torch.float32", [])
    assert seen["losses"][1] < 0.5 * seen["losses"][0]


def test_item_7_float32_in_training(light: dict[str, Any]) -> None:
    assert light["dtypes"] == {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16"}


def test_item_7_float32_in_the_engine(engine: dict[str, Any]) -> None:
    """Upstream asks for bfloat16."""
    assert (engine["plain"]["dtype"], engine["plain"]["eager"]) == ("torch.float32", True)


def test_item_9_a_small_engine_in_one_forked_process(engine: dict[str, Any]) -> None:
    seen = engine["plain"]
    assert (seen["executor"], seen["start_method"]) == (EXECUTOR, "fork")
    assert (seen["block_size"], seen["kv_cache_memory_bytes"]) == (32, 256 << 20)
    assert seen["whole_gib_variable"] is None


def test_item_9_sizes_can_be_chosen(engine: dict[str, Any]) -> None:
    assert engine["variable"]["kv_cache_memory_bytes"] == 64 << 20
    assert (engine["given"]["block_size"], engine["given"]["kv_cache_memory_bytes"]) == (64, 32 << 20)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_item_8_a_running_engine_takes_new_weights(
    fresh: Fresh, make_model: Callable[..., str], port: str, tied: bool
) -> None:
    seen = fresh("engine_weights", make_model(tied=tied), make_model(tied=tied, seed=1), port)
    assert seen["tensors"] == (24 if tied else 25)
    assert seen["before"] < 1e-4, "the engine does not start with the model's own weights"
    assert seen["after"] < 1e-4, "the engine kept part of its old weights"
