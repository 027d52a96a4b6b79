"""Fresh processes for the platform tests, and tiny models for the engine."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).with_name("programs.py")
# Set by the platform with `setdefault`, so a value of the machine's would hide what is tested.
OURS = ("DS_ACCELERATOR", "OMP_NUM_THREADS", "HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM", "TORCHDYNAMO_DISABLE")
RANK_ZERO = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def start(program: str, *arguments: str, env: dict[str, str] | None = None, platform: str = "cpu") -> Any:
    """Starts a program of programs.py in a process that inherits no platform."""
    dropped = {*OURS, "OPENRLHF_PLATFORM", "OPENRLHF_CPU_KV_CACHE_MIB", "PYTHONPATH"}
    inherited = {k: v for k, v in os.environ.items() if k not in dropped and not k.startswith("VLLM_")}
    variables = inherited | {"OPENRLHF_PLATFORM": platform, "PYTHONWARNINGS": "ignore"} | (env or {})
    command = [sys.executable, str(PROGRAMS), program, *arguments]
    return subprocess.Popen(
        command,
        env=variables,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def result(process: "subprocess.Popen[str]", timeout: float = 250) -> dict[str, Any]:
    """The program's JSON object; fails with everything it said otherwise."""
    try:
        out, errors = process.communicate(timeout=timeout)
    finally:
        process.kill()
    assert process.returncode == 0, f"{process.args}\n{out[-3000:]}\n{errors[-6000:]}"
    return json.loads(next(line for line in reversed(out.splitlines()) if line.startswith("{")))


@pytest.fixture(scope="session")
def fresh() -> Callable[..., dict[str, Any]]:
    """Runs one program to its end."""
    return lambda *arguments, **options: result(start(*arguments, **options))


@pytest.fixture(scope="session")
def at_once() -> Callable[..., list[dict[str, Any]]]:
    """Runs several programs beside each other."""

    def run(*programs: tuple[str, ...]) -> list[dict[str, Any]]:
        started = [start(*program) for program in programs]
        return [result(process) for process in started]

    return run


@pytest.fixture
def port() -> str:
    return str(free_port())


@pytest.fixture(scope="session")
def one_rank() -> dict[str, str]:
    """The environment of a distributed job with one process."""
    return RANK_ZERO | {"MASTER_PORT": str(free_port())}


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Saves a tiny Qwen3 with random weights, once per (tied, seed); returns its folder."""
    made: dict[tuple[bool, int], str] = {}

    def make(*, tied: bool, seed: int = 0) -> str:
        if (tied, seed) not in made:
            made[tied, seed] = _save_model(tmp_path_factory.mktemp(f"qwen3-{seed}"), tied, seed)
        return made[tied, seed]

    return make


def _save_model(folder: Path, tied: bool, seed: int) -> str:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        initializer_range=0.2,  # so that the distributions are far from uniform
        eos_token_id=2,
        pad_token_id=0,
    )
    model = Qwen3ForCausalLM(config).float()
    with torch.no_grad():  # they start as ones: a weight that is never sent must show
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return str(folder)
