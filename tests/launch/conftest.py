"""A run that passes every check, from upstream's real defaults, and what it names on the disk.

`run(**changes)` gives its arguments with flags changed (dots written as `__`); the files are real but tiny.
"""

import copy
import json
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

REWARD_FILE = "def reward_func(queries, prompts, labels):\n    return {'rewards': 0.0, 'scores': 0.0}\n"
CHAT_TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
ROWS = 32
CONTEXT = 256


def changed(args: SimpleNamespace, changes: dict[str, Any]) -> SimpleNamespace:
    """A copy of `args` with flags set."""
    args = copy.deepcopy(args)
    for name, value in changes.items():
        *groups, last = name.split("__")
        parent = reduce(getattr, groups, args)
        assert hasattr(parent, last), f"no flag --{name.replace('__', '.')}"
        setattr(parent, last, value)
    return args


@pytest.fixture(scope="session")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The flags of a small run that is synchronous and good, as typed; the folder's files are what they name."""
    folder = tmp_path_factory.mktemp("run")
    save_model(folder / "model")
    write_rows(folder / "prompts.jsonl")
    (folder / "reward.py").write_text(REWARD_FILE)
    words = (
        f"--actor.model_name_or_path {folder / 'model'} --reward.remote_url {folder / 'reward.py'} "
        f"--data.prompt_dataset {folder / 'prompts.jsonl'} --data.input_key prompt --data.label_key label "
        f"--ckpt.path {folder / 'checkpoints'} --ckpt.output_dir {folder / 'output'} "
        "--algo.advantage.estimator group_norm --rollout.n_samples_per_prompt 4 --rollout.batch_size 4 "
        "--rollout.micro_batch_size 2 --train.batch_size 8 --train.micro_batch_size 2 --data.max_len 128 "
        "--rollout.max_new_tokens 16 --vllm.num_engines 1 --actor.num_gpus_per_node 1 --ref.num_gpus_per_node 1"
    ).split()
    return dict(zip(words[::2], words[1::2], strict=True))


@pytest.fixture(scope="session")
def parsed(given: dict[str, str]) -> SimpleNamespace:
    """That run, parsed once: the parser comes with all of upstream's imports."""
    from openrlhf.launch import flags

    return flags.parse([word for pair in given.items() for word in pair])


@pytest.fixture
def run(parsed: SimpleNamespace, datasets_cache: None) -> Callable[..., SimpleNamespace]:
    """Makes the arguments of the run, with changes."""
    return lambda **changes: changed(parsed, changes)


@pytest.fixture(scope="session")
def datasets_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Loaded data files go to a folder of the test run, not to the user's cache."""
    import datasets

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        yield


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Pretends to be on CUDA; the changes that a run then has by default."""
    from openrlhf import platforms

    monkeypatch.setattr(platforms, "name", lambda: "cuda")
    return {
        "ds__param_dtype": "bf16",
        "ds__attn_implementation": "flash_attention_2",
        "vllm__sync_backend": "nccl",
        "vllm__enforce_eager": False,
    }


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A model folder of the test's own, to be damaged."""
    save_model(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def rows_file(tmp_path: Path) -> Callable[..., str]:
    """Writes a data file and returns its path; see `write_rows`."""
    return lambda *args, **more: write_rows(tmp_path / "rows.jsonl", *args, **more)


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Writes a Python file and returns its path."""

    def write(source: str) -> str:
        (tmp_path / "user.py").write_text(source)
        return str(tmp_path / "user.py")

    return write


def write_rows(path: Path, count: int = ROWS, rows: list[Any] | None = None) -> str:
    made = [{"prompt": f"{i} + 2 =", "label": str(i + 2)} for i in range(count)] if rows is None else rows
    path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return str(path)


def save_model(folder: Path) -> None:
    """A Qwen3 folder as the checks see one: config, tokenizer, and weights with a header."""
    from safetensors.numpy import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(["<end>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
    fast.chat_template = CHAT_TEMPLATE
    config = Qwen3Config(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
    )
    fast.save_pretrained(folder)
    config.save_pretrained(folder)
    tensors = {"model.embed_tokens.weight": numpy.zeros((len(vocabulary), 16), numpy.float32)}
    save_file(tensors, folder / "model.safetensors")
