"""Model folders and tokenizers: everything about them that would stop a run minutes later, in an actor.

Invariant: weights are never loaded, only their headers are read; a model that isn't on the disk but may be downloaded
(a hub name, not offline) passes unseen. Loading is left to the libraries that upstream loads with.
"""

import json
import logging
import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf.launch import reading
from openrlhf.launch.problem import Problem

logger = logging.getLogger(__name__)

SAFETENSORS, TORCH = "model.safetensors", "pytorch_model.bin"
TOKENIZER_PATTERNS = ("tokenizer*", "vocab*", "*.model", "*.tiktoken", "tekken*")
LFS_POINTER = b"version https://git-lfs"
TRUE = ("1", "on", "true", "yes")
# RoPE types that vLLM doesn't stretch the context of any further than `max_position_embeddings`.
UNSTRETCHED = (None, "default", "llama3", "yarn", "longrope", "su")


@dataclass(frozen=True)
class Role:
    """A model as a flag names it. The critic isn't one when it is another role's model by default."""

    flag: str
    path: str
    scores: bool = False


def roles(args: SimpleNamespace) -> list[Role]:
    found = [Role("--actor.model_name_or_path", args.actor.model_name_or_path)]
    if reading.has_critic(args) and args.critic.model_name_or_path:
        found.append(Role("--critic.model_name_or_path", args.critic.model_name_or_path))
    if not reading.scored_by_engines(args):
        found.append(Role("--reward.model_name_or_path", args.reward.model_name_or_path, scores=True))
    if reading.grows_trees(args) and args.trace.predictor == "lm":
        found.append(Role("--trace.predictor_model", args.trace.predictor_model))
    return [role for role in found if role.path]


def check(args: SimpleNamespace) -> Iterator[Problem]:
    for role in roles(args):
        folder = find(role.path)
        if folder is None:
            if not args.use_ms and (problem := _not_on_disk(role)) is not None:
                yield problem
            continue
        problems = [*_config(role, folder)] or [*_weights(role, folder)]
        yield from problems
        if problems:
            continue
        if role.scores:
            yield from _reward_head(role, folder, args)
        if role.flag == "--actor.model_name_or_path":
            yield from _engine_limits(role, folder, args)


def find(path: str) -> Path | None:
    """The folder of a model on this disk: the path itself, or the newest snapshot in the hub's cache."""
    if os.path.isdir(path):
        return Path(path)
    if _is_hub_name(path):
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(path, "config.json")
        if isinstance(cached, str):
            return Path(cached).parent
    return None


def _is_hub_name(path: str) -> bool:
    return re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", path) is not None


def offline() -> bool:
    return any(os.environ.get(name, "").lower() in TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def _not_on_disk(role: Role) -> Problem | None:
    if os.path.isfile(role.path):
        return Problem(role.flag, f"{role.path} is a file, not a model's folder", "name the folder that holds it")
    if not _is_hub_name(role.path):
        return Problem(role.flag, f"{role.path} doesn't exist", "check the spelling; a relative path starts here")
    if offline():
        return Problem(
            role.flag,
            f"{role.path} is neither a folder here nor in the Hugging Face cache, and downloads are off "
            "(HF_HUB_OFFLINE=1, the default of the CPU platform)",
            "name a local folder, or set HF_HUB_OFFLINE=0 to let it be downloaded",
        )
    logger.info("%s %s will be downloaded: not checked", role.flag, role.path)
    return None


def _config(role: Role, folder: Path) -> Iterator[Problem]:
    config = folder / "config.json"
    if not config.is_file():
        if (folder / "adapter_config.json").is_file():
            fix = "merge it into its base model with `python -m openrlhf.cli.lora_combiner` and name the result"
            yield Problem(role.flag, f"{folder} holds a LoRA adapter only", fix)
        else:
            yield Problem(role.flag, f"{folder} has no config.json", "name the folder that save_pretrained wrote")
        return
    try:
        if "auto_map" not in json.loads(config.read_text()):  # whose config class is code of its own, for the actors
            read_config(folder)
    except Exception as error:  # transformers raises anything from OSError to KeyError
        yield Problem(role.flag, f"{config} can't be read ({first_line(error)})", "download or export the model again")


def read_config(folder: Path) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(str(folder))


def weight_files(folder: Path) -> list[Path]:
    """The weight files that transformers would load, in its order of preference; they needn't exist."""
    for single in (SAFETENSORS, TORCH):
        index = folder / f"{single}.index.json"
        if (folder / single).is_file():
            return [folder / single]
        if index.is_file():
            return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    return []


def _weights(role: Role, folder: Path) -> Iterator[Problem]:
    try:
        files = weight_files(folder)
    except (ValueError, KeyError, AttributeError) as error:
        yield Problem(role.flag, f"the weight index in {folder} is damaged ({first_line(error)})", "download it again")
        return
    if not files:
        names = f"{SAFETENSORS}, {TORCH} or an index of either"
        yield Problem(role.flag, f"{folder} has no weights ({names})", "copy them there, or name another folder")
    for file in files:
        if (fault := weight_fault(file)) is not None:
            pull = "run `git lfs pull` in it" if "Git LFS" in fault else "copy or download the file again"
            yield Problem(role.flag, f"{file} {fault}", pull)


def weight_fault(file: Path) -> str | None:
    """What is wrong with a weight file, by its header alone."""
    if not file.is_file():
        return "is missing, though the index names it"
    with file.open("rb") as opened:
        start = opened.read(len(LFS_POINTER))
    if start == LFS_POINTER:
        return "is a Git LFS pointer, not the weights"
    if file.suffix == ".safetensors":
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(file), framework="numpy"):
                return None
        except (SafetensorError, OSError) as error:
            return f"is damaged or cut short ({first_line(error)})"
    return None if start[:1] == b"\x80" else archive_fault(file)  # torch's format before 1.6 is a bare pickle


def archive_fault(file: Path) -> str | None:
    """What is wrong with a file that `torch.save` wrote: a zip archive, whose directory stands at its end."""
    try:
        with zipfile.ZipFile(file) as archive:
            return None if archive.namelist() else "is an empty archive"
    except (zipfile.BadZipFile, OSError) as error:
        return f"is damaged or cut short ({first_line(error)})"


def shapes(folder: Path) -> dict[str, list[int]]:
    """Every tensor's shape by name, from safetensors headers; empty when the weights are in another format."""
    from safetensors import safe_open

    found: dict[str, list[int]] = {}
    for file in weight_files(folder):
        if file.suffix != ".safetensors":
            return {}
        with safe_open(str(file), framework="numpy") as opened:
            found |= {name: opened.get_slice(name).get_shape() for name in opened.keys()}
    return found


def _reward_head(role: Role, folder: Path, args: SimpleNamespace) -> Iterator[Problem]:
    config = json.loads((folder / "config.json").read_text())
    head = config.get("value_head_prefix", args.ds.value_head_prefix)
    names = shapes(folder)
    if names and not any(f".{name}".endswith(f".{head}.weight") for name in names):
        yield Problem(
            role.flag,
            f"{folder} has no reward head `{head}.weight`: its rewards would be random",
            "name a trained reward model, or its head's name with --ds.value_head_prefix",
        )


def _engine_limits(role: Role, folder: Path, args: SimpleNamespace) -> Iterator[Problem]:
    """What makes vLLM refuse to start."""
    if "auto_map" in json.loads((folder / "config.json").read_text()):
        return
    text = read_config(folder).get_text_config()
    rope = getattr(text, "rope_parameters", None) or {}
    context = getattr(text, "max_position_embeddings", None)
    plain = all(not isinstance(part, dict) for part in rope.values()) and rope.get("rope_type") in UNSTRETCHED
    long_is_fine = os.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "").lower() in TRUE
    if context and plain and args.data.max_len > context and not long_is_fine:
        yield Problem(
            "--data.max_len",
            f"{args.data.max_len} is more than the context of {folder} ({context} tokens)",
            f"use {context} or less",
        )
    heads = getattr(text, "num_attention_heads", None)
    if heads and args.vllm.tensor_parallel_size > 0 and heads % args.vllm.tensor_parallel_size:
        yield Problem(
            "--vllm.tensor_parallel_size",
            f"{args.vllm.tensor_parallel_size} doesn't divide the model's {heads} attention heads",
            f"use a divisor of {heads}",
        )


def vocabulary(args: SimpleNamespace) -> int | None:
    """The number of tokens that the actor's model has embeddings for; None when its config doesn't tell."""
    folder = find(args.actor.model_name_or_path)
    if folder is None or "auto_map" in json.loads((folder / "config.json").read_text()):
        return None
    return getattr(read_config(folder).get_text_config(), "vocab_size", None)


def load_tokenizer(args: SimpleNamespace) -> tuple[Any, list[Problem]]:
    """The actor's tokenizer as upstream loads it, or None, with what is wrong with it."""
    from openrlhf.utils.utils import get_tokenizer

    flag, path = "--actor.model_name_or_path", args.actor.model_name_or_path
    folder = find(path or "")
    if folder is None:
        return None, []
    if not any(next(folder.glob(pattern), None) for pattern in TOKENIZER_PATTERNS):
        # transformers then makes a tokenizer without a vocabulary for some model types, and says nothing.
        return None, [Problem(flag, f"{folder} has no tokenizer", "copy the tokenizer's files into the folder")]
    try:
        tokenizer = get_tokenizer(path, None, "left", None, use_fast=not args.data.disable_fast_tokenizer)
    except Exception as error:  # transformers raises anything here
        what = f"the tokenizer in {folder} can't be loaded ({first_line(error)})"
        return None, [Problem(flag, what, "copy the tokenizer's files again, or try --data.disable_fast_tokenizer")]
    if tokenizer.pad_token_id is None:
        what = f"the tokenizer in {folder} has neither a padding nor an end token"
        return tokenizer, [Problem(flag, what, "set pad_token in its tokenizer_config.json")]
    return tokenizer, []


def first_line(error: BaseException) -> str:
    """An exception as one short line."""
    text = f"{error}".strip()
    return (text.splitlines()[0] if text else type(error).__name__)[:200].rstrip(".:")
