"""The prompt and evaluation datasets, read by upstream's own loader and looked at before any model is.

Invariant: a dataset that passes gives upstream a prompt text for every row looked at, a step at least, and a last step
of the episode that every process gets a share of. Rows are sampled (the first SAMPLE); keys, nulls and sizes aren't.
"""

import glob
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from openrlhf.launch import batches, pool, ranges, reading
from openrlhf.launch.model_files import first_line, offline, vocabulary
from openrlhf.launch.problem import Problem

logger = logging.getLogger(__name__)

SAMPLE = 64
FILE_TYPES = (".json", ".jsonl", ".csv", ".parquet", ".arrow")


@dataclass(frozen=True)
class Source:
    """One of the two uses of a dataset, with its flags."""

    flag: str
    names: str
    split_flag: str
    split: str
    shares: str | None = None


def sources(args: SimpleNamespace) -> list[Source]:
    data, split = args.data, "--data.prompt_split"
    found = [
        Source("--data.prompt_dataset", data.prompt_dataset, split, data.prompt_split, data.prompt_probs),
        Source("--eval.dataset", args.eval.dataset, "--eval.split", args.eval.split),
    ]
    return [source for source in found if source.names]


def check(args: SimpleNamespace, tokenizer: Any) -> Iterator[Problem]:
    """`tokenizer` is the actor's, or None when it is not on the disk or broken."""
    sound = not any(ranges.check(args))  # else nothing can be computed with the flags' numbers
    for source in sources(args):
        data, problems = _load(source, args)
        yield from problems
        if data is None:
            continue
        training = source.flag == "--data.prompt_dataset"
        if len(data) == 0:
            if training:
                yield Problem(source.flag, f"{source.names} has no rows", "name a dataset with prompts in it")
            continue
        keys = [*_keys(source, args, data)]
        yield from keys
        if training and sound:
            yield from _steps(args, len(data))
            yield from pool.check_rows(args, len(data))
        if not keys:
            yield from _rows(source, args, data, tokenizer if sound else None)


# Loading.


def _load(source: Source, args: SimpleNamespace) -> tuple[Any, list[Problem]]:
    """The dataset as upstream's trainer sees it."""
    problems: list[Problem] = []
    names = source.names.split(",")
    for name in names:
        if (missing := _missing(source, name)) is not None:
            problems.append(missing)
            continue
        try:
            data = _blend(name, None, source, args)
        except Exception as error:  # datasets, pyarrow and fsspec raise anything here
            problems.append(_explain(source, name.strip(), error))
    if problems:
        return None, problems
    if len(names) > 1:
        try:
            data = _blend(source.names, source.shares, source, args)
        except Exception as error:
            fix = "make their columns alike, or name fewer datasets"
            return None, [Problem(source.flag, f"the datasets can't be blended ({first_line(error)})", fix)]
    return data.select(range(min(args.data.max_samples, len(data)))), []


def _blend(names: str, shares: str | None, source: Source, args: SimpleNamespace) -> Any:
    from openrlhf.datasets.utils import blending_datasets

    strategy = SimpleNamespace(print=logger.debug, is_rank_0=lambda: False, args=args)
    limits = {"max_count": args.data.max_samples} if source.flag == "--data.prompt_dataset" else {}
    return blending_datasets(names, shares, strategy, args.train.seed, dataset_split=source.split, **limits)


def _missing(source: Source, name: str) -> Problem | None:
    path = name.split("@")[0].strip()
    file_like = os.path.splitext(path)[1] in FILE_TYPES
    if not path or "://" in path or os.path.exists(path) or (file_like and glob.glob(path)):
        return None
    if file_like or os.path.isabs(path) or path.startswith((".", "~")):
        return Problem(source.flag, f"{path} doesn't exist", "check the spelling; a relative path starts here")
    return None


def _explain(source: Source, name: str, error: Exception) -> Problem:
    path = name.split("@")[0].strip()
    if isinstance(error, AttributeError) and "DatasetDict" in f"{error}":
        splits = _splits(path, name)
        fix = f"use {source.split_flag} {splits[0]}" if splits else f"set {source.split_flag} to one of its splits"
        others = f", but {', '.join(splits)}" if splits else ""
        return Problem(source.split_flag, f"{name} has no split {source.split!r}{others}", fix)
    if path.endswith((".json", ".jsonl")) and os.path.isfile(path):
        return Problem(source.flag, *_json_fault(path, error))
    if not os.path.exists(path) and "/" in path and offline():
        what = f"{path} is neither a path here nor in the Hugging Face cache, and downloads are off (HF_HUB_OFFLINE=1)"
        return Problem(source.flag, what, "name a local file or folder, or set HF_HUB_OFFLINE=0")
    return Problem(source.flag, f"{name} can't be loaded ({_root_cause(error)})", "check the name and the files")


def _splits(path: str, name: str) -> list[str]:
    if os.path.isfile(path):
        return ["train"]
    listing = os.path.join(path, "dataset_dict.json")
    if os.path.isfile(listing):
        with open(listing) as opened:
            return list(json.load(opened)["splits"])
    from datasets import get_dataset_split_names

    try:
        return list(get_dataset_split_names(path, data_dir=name.split("@")[1].strip() if "@" in name else None))
    except Exception:  # only for the message: the problem is reported without the list
        return []


def _json_fault(path: str, error: Exception) -> tuple[str, str]:
    """The first line that isn't JSON, or the loader's own words."""
    with open(path, "rb") as opened:
        if not opened.read(1):
            return f"{path} is empty", "name a file with prompts in it"
        opened.seek(0)
        if path.endswith(".jsonl"):
            for number, line in enumerate(opened, start=1):
                try:
                    json.loads(line) if line.strip() else None
                except ValueError as fault:
                    return f"{path}, line {number}: not JSON ({first_line(fault)})", "correct or remove that line"
    return f"{path} can't be loaded ({_root_cause(error)})", "give every row the same keys, with values of one type"


def _root_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)


# Columns and sizes.


def _keys(source: Source, args: SimpleNamespace, data: Any) -> Iterator[Problem]:
    for flag, key in (("--data.input_key", args.data.input_key), ("--data.label_key", args.data.label_key)):
        if key is None:
            continue
        columns = data.column_names
        if key not in columns:
            what = f"{key} is no column of {source.names} ({', '.join(columns)})"
            yield Problem(flag, what, f"use {flag} with one of these columns")
    if args.data.input_key in data.column_names:
        empty = _empty_values(data, args.data.input_key)
        if empty:
            what = f"column {args.data.input_key} of {source.names} has {empty} empty values"
            yield Problem("--data.input_key", what, "remove these rows: one prompt without text ends the run")


def _empty_values(data: Any, key: str) -> int:
    import pyarrow
    import pyarrow.compute

    column = data.data.column(key)
    if len(column) != len(data):  # rows picked by an index: the sample of rows has to do
        return 0
    empty = column.null_count
    if pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type):
        empty += pyarrow.compute.sum(pyarrow.compute.equal(column, "")).as_py() or 0
    return empty


def _steps(args: SimpleNamespace, rows: int) -> Iterator[Problem]:
    samples = rows * args.rollout.n_samples_per_prompt
    if samples < args.train.batch_size:
        yield Problem(
            "--train.batch_size",
            f"{args.train.batch_size} is more than all rollouts of a pass over the data, {rows} prompts with "
            f"{args.rollout.n_samples_per_prompt} each: no update would be planned",
            f"use --train.batch_size {samples} or less, more prompts, or more samples per prompt",
        )
        return
    per_step = reading.prompts_per_step(args)
    rest = rows % per_step
    steps = -(-rows // per_step) * args.train.num_episodes
    if reading.trains_from_pool(args):  # batches go on over the end of an episode
        steps = -(-rows * args.train.num_episodes // per_step)
    if args.critic.freezing_steps >= steps - 1 and args.critic.freezing_steps >= 0:
        yield Problem(
            "--critic.freezing_steps",
            f"{args.critic.freezing_steps} leaves none of the run's {steps} steps to train the actor in",
            f"use {max(steps - 2, -1)} or less",
        )
    # With filtering the last step's size is known at run time only; the pool hands out whole batches.
    if not rest or args.algo.dynamic_filtering_enable or reading.trains_from_pool(args):
        return
    fault = batches.step_fault(args, rest * args.rollout.n_samples_per_prompt)
    if fault is not None:
        yield Problem(
            "--data.max_samples",
            f"the last step of a pass over {rows} prompts has {rest}, whose "
            f"{rest * args.rollout.n_samples_per_prompt} rollouts {fault}",
            f"use --data.max_samples {rows - rest}"
            if rows > rest
            else f"use --rollout.batch_size {rest} or less, or more prompts",
        )


# Rows.


def _rows(source: Source, args: SimpleNamespace, data: Any, tokenizer: Any) -> Iterator[Problem]:
    if args.data.apply_chat_template:
        if tokenizer is None:
            return
        if not getattr(tokenizer, "chat_template", None):
            yield Problem(
                "--data.apply_chat_template",
                f"the tokenizer of {args.actor.model_name_or_path} has no chat template",
                "drop the flag and use --data.input_template, or save the tokenizer with a chat_template",
            )
            return
    prompts: list[str] = []
    for number, row in enumerate(data.select(range(min(SAMPLE, len(data))))):
        prompt = _prompt(source, args, tokenizer, number, row)
        if isinstance(prompt, Problem):
            yield prompt
            return
        prompts.append(prompt)
    if tokenizer is not None and args.data.max_images_per_prompt <= 0:
        encoded = [tokenizer(text=prompt, add_special_tokens=False)["input_ids"] for prompt in prompts]
        yield from _unknown_tokens(args, encoded)
        yield from _lengths(source, args, [len(tokens) for tokens in encoded])


def _prompt(source: Source, args: SimpleNamespace, tokenizer: Any, number: int, row: Any) -> str | Problem:
    from openrlhf.datasets.prompts_dataset import preprocess_data

    where = f"row {number} of {source.names}"
    template = args.data.input_template if "{}" in (args.data.input_template or "") else None  # as upstream does
    chat = tokenizer.apply_chat_template if args.data.apply_chat_template else None
    try:
        prompt, _ = preprocess_data(row, template, args.data.input_key, args.data.label_key, chat)
    except Exception as error:  # a template raises what it likes
        if chat is not None:
            what = f"{where} doesn't fit the chat template ({type(error).__name__}: {first_line(error)})"
            fix = "make each prompt a text, or a list of messages with `role` and `content`"
            return Problem("--data.apply_chat_template", what, fix)
        what = f"{where} can't be put into the template ({type(error).__name__}: {first_line(error)})"
        return Problem("--data.input_template", what, "write {} where the prompt goes, and {{ }} for other braces")
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list):
        what = f"{where} holds chat messages in column {args.data.input_key}, and no text"
        return Problem("--data.apply_chat_template", what, "add --data.apply_chat_template")
    what = f"{where} has no text in column {args.data.input_key} ({type(prompt).__name__})"
    return Problem("--data.input_key", what, "remove such rows, or name another column")


def _unknown_tokens(args: SimpleNamespace, encoded: list[list[int]]) -> Iterator[Problem]:
    """vLLM refuses a token that the model has no embedding for, and the run ends."""
    known = vocabulary(args)
    largest = max((token for tokens in encoded for token in tokens), default=0)
    if known is not None and largest >= known:
        what = f"its tokenizer makes token {largest} of the prompts, and the model has {known} tokens"
        yield Problem("--actor.model_name_or_path", what, "put the model's own tokenizer into its folder")


def _lengths(source: Source, args: SimpleNamespace, lengths: list[int]) -> Iterator[Problem]:
    """Upstream cuts longer prompts from the front, but not when that would leave nothing: vLLM then refuses them."""
    room = args.rollout.max_new_tokens or 1
    cut = room < args.data.max_len
    room = room if cut else 1
    long = [length for length in lengths if length > args.data.max_len - room]
    if not long:
        return
    tokens = "1 new token" if room == 1 else f"{room} new tokens"
    what = (
        f"leaves no room for {len(long)} of the first {len(lengths)} prompts of {source.names}: they are longer than "
        f"{args.data.max_len} minus {tokens} (the longest has {max(long)})"
    )
    if len(long) == len(lengths) or not cut:
        yield Problem("--data.max_len", what, f"use --data.max_len {max(long) + room} or more")
    else:
        logger.warning("--data.max_len %s; their beginnings are cut off", what)
