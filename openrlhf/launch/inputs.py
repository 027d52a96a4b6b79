"""Checks of everything that the flags name on the disk: models, tokenizer, datasets, user code, checkpoint, outputs.

Invariant: what can be read before a run is read with the libraries that upstream reads it with, so a run that passes
doesn't stop minutes later over a file. No weights are loaded; user code is tried in a process of its own, meanwhile.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

from openrlhf.launch import checkpoints, model_files, pool, prompt_data, reading, storage, user_code
from openrlhf.launch.problem import Problem


@dataclass(frozen=True)
class Section:
    """One kind of input: what it is, which files, and what is wrong with them."""

    name: str
    subject: str
    problems: tuple[Problem, ...]


def check(args: SimpleNamespace) -> list[Problem]:
    """All problems of the inputs of a run."""
    return [problem for section in examine(args) for problem in section.problems]


def examine(args: SimpleNamespace) -> list[Section]:
    """The inputs one kind after another, user code last: its trial runs meanwhile."""
    trial = user_code.start(args)
    try:
        sections = [*_files(args)]
    finally:
        code = trial if isinstance(trial, list) else trial.problems()
    return [*sections, Section(*_code_text(args), tuple(code))]


def _files(args: SimpleNamespace) -> Iterator[Section]:
    models = tuple(model_files.check(args))
    paths = ", ".join(dict.fromkeys(role.path for role in model_files.roles(args)))
    yield Section("models", paths, models)
    tokenizer = None
    if not models:
        tokenizer, problems = model_files.load_tokenizer(args)
        yield Section("tokenizer", _tokenizer_text(tokenizer), tuple(problems))
    names = ", ".join(source.names for source in prompt_data.sources(args))
    yield Section("datasets", names, tuple(prompt_data.check(args, tokenizer)))
    resumed = args.ckpt.path if args.ckpt.load_enable else "none"
    yield Section("checkpoint", resumed, tuple(checkpoints.check(args)) or tuple(pool.check_saved(args)))
    folders = [args.ckpt.output_dir, args.ckpt.path, args.logger.tensorboard_dir, pool.log_dir(args)]
    yield Section("output folders", ", ".join(filter(None, folders)), tuple(storage.check(args)))


def _tokenizer_text(tokenizer: object) -> str:
    return "not on the disk" if tokenizer is None else type(tokenizer).__name__


def _code_text(args: SimpleNamespace) -> tuple[str, str]:
    if args.train.agent_func_path:
        return "agent file", args.train.agent_func_path
    endpoints = reading.reward_endpoints(args)
    if endpoints and endpoints[0].endswith(".py"):
        return "reward file", endpoints[0]
    return "reward server", ", ".join(endpoints) or "none"
