"""The range of every numeric flag: one row per flag, and where it counts.

Invariant: a row's range holds every value with which upstream runs and trains. NaN lies in no range. A flag that the
chosen mode never reads isn't checked.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace

from openrlhf.launch import reading
from openrlhf.launch.problem import Problem


@dataclass(frozen=True)
class Range:
    """`interval` in mathematical notation. None always passes: upstream then chooses. `why` follows the range."""

    flag: str
    interval: str
    example: float
    when: Callable[[SimpleNamespace], bool] = lambda args: True
    why: str = ""

    def __contains__(self, number: float) -> bool:
        low, high = (float(end) for end in self.interval[1:-1].split(","))
        above = number > low if self.interval[0] == "(" else number >= low
        return above and (number < high if self.interval[-1] == ")" else number <= high)


def _evaluates(args: SimpleNamespace) -> bool:
    return bool(args.eval.dataset)


def _evaluation_is_due(args: SimpleNamespace) -> bool:
    return _evaluates(args) or not args.train.async_enable  # the synchronous trainer divides by it in any case


def _queues(args: SimpleNamespace) -> bool:
    return args.train.async_enable and not reading.trains_from_pool(args)


def _dynamic(args: SimpleNamespace) -> bool:
    return args.train.dynamic_batch_enable


def _lora(args: SimpleNamespace) -> bool:
    return args.ds.lora.rank > 0


def _sized(name: str, runs: Callable[[SimpleNamespace], bool]) -> list[Range]:
    return [Range(f"{name}.num_nodes", "[1, inf)", 1, runs), Range(f"{name}.num_gpus_per_node", "[1, inf)", 1, runs)]


def _optimizer(name: str, runs: Callable[[SimpleNamespace], bool]) -> list[Range]:
    def muon(args: SimpleNamespace) -> bool:
        return runs(args) and getattr(args, name).optim == "muon"

    return [
        Range(f"{name}.adam.lr", "(0, inf)", 1e-6, runs, "with 0 nothing is learned"),
        Range(f"{name}.adam.betas", "[0, 1)", 0.9, runs),
        Range(f"{name}.adam.eps", "[0, inf)", 1e-8, runs),
        Range(f"{name}.adam.weight_decay", "[0, inf)", 0, runs),
        Range(f"{name}.lr_warmup_ratio", "[0, 1]", 0.03, runs),
        Range(f"{name}.min_lr_ratio", "[0, 1]", 0.1, runs),
        Range(f"{name}.muon.lr", "(0, inf)", 0.02, muon),
        Range(f"{name}.muon.momentum", "[0, 1)", 0.95, muon),
    ]


def _runs(name: str) -> Callable[[SimpleNamespace], bool]:
    return lambda args: any(group.name == name for group in reading.groups(args))


RANGES = (
    *_sized("actor", _runs("actor")),
    *_sized("ref", _runs("ref")),
    *_sized("critic", _runs("critic")),
    *_sized("reward", _runs("reward")),
    *_optimizer("actor", _runs("actor")),
    *_optimizer("critic", _runs("critic")),
    Range("vllm.tensor_parallel_size", "[1, inf)", 1),
    Range("vllm.gpu_memory_utilization", "(0, 1]", 0.9),
    Range("rollout.batch_size", "[1, inf)", 128),
    Range("rollout.micro_batch_size", "[1, inf)", 1),
    Range("rollout.n_samples_per_prompt", "[1, inf)", 8),
    Range("rollout.vllm_generate_batch_size", "[0, inf)", 128),
    Range("rollout.max_new_tokens", "[1, inf)", 1024),
    Range("rollout.top_p", "(0, 1]", 1),
    Range("rollout.temperature", "(0, 2]", 1, why="the trainer divides by it, and vLLM takes at most 2"),
    Range("rollout.max_tokens_per_gpu", "[1, inf)", 16192, _dynamic),
    Range("train.max_tokens_per_gpu", "[1, inf)", 16192, _dynamic),
    Range("train.batch_size", "[1, inf)", 128),
    Range("train.micro_batch_size", "[1, inf)", 1),
    Range("train.num_episodes", "[1, inf)", 1),
    Range("train.max_epochs", "[1, inf)", 1),
    Range("train.seed", "[0, 4294967295]", 42),
    Range("train.async_queue_size", "[1, inf)", 1, _queues),
    Range("train.ema_beta", "[0, 1]", 0.992, lambda args: args.train.enable_ema),
    Range("data.max_len", "[2, inf)", 2048),
    Range("data.max_samples", "[1, inf)", 100000),
    Range("data.dataloader_num_workers", "[0, inf)", 0),
    Range("eval.n_samples_per_prompt", "[1, inf)", 4, _evaluates),
    Range("eval.temperature", "[0, 2]", 0.6, _evaluates),
    Range("ds.zero_stage", "[0, 3]", 2),
    Range("ds.zpg", "[1, inf)", 1),
    Range("ds.ring_attn_size", "[1, inf)", 1),
    Range("ds.ring_attn_head_stride", "[1, inf)", 1),
    Range("ds.tensor_parallel_size", "[1, inf)", 1),
    Range("ds.lora.rank", "[0, inf)", 0),
    Range("ds.lora.alpha", "(0, inf)", 16, _lora),
    Range("ds.lora.dropout", "[0, 1)", 0, _lora),
    Range("actor.eps_clip", "[0, inf)", 0.2),
    Range("actor.eps_clip_low_high", "[0, inf)", 0.2),
    Range("actor.dual_clip", "(1, inf)", 3),
    Range("actor.aux_loss_coef", "[0, inf)", 0),
    Range("critic.value_clip", "[0, inf)", 0.5, reading.has_critic),
    Range("algo.advantage.gamma", "[0, 1]", 1),
    Range("algo.advantage.lambd", "[0, 1]", 1),
    Range("algo.kl.target", "[0, inf)", 0.01),
    Range("algo.kl.horizon", "(0, inf)", 10000, lambda args: bool(args.algo.kl.target)),
    Range("reward.overlong_buffer_len", "[0, inf)", 128),
    Range("reward.stop_properly_penalty_coef", "(-inf, 1]", 0.5),
)
# Flags by which upstream takes a remainder: any value but 0 works.
PERIODS: tuple[tuple[str, Callable[[SimpleNamespace], bool]], ...] = (
    ("eval.steps", _evaluation_is_due),
    ("ckpt.save_steps", lambda args: True),
    ("logger.logging_steps", lambda args: True),
)


def check(args: SimpleNamespace) -> Iterator[Problem]:
    for row in RANGES:
        found = reading.value(args, row.flag)
        if found is None or not row.when(args):
            continue
        wrong = [n for n in (found if isinstance(found, (list, tuple)) else [found]) if n not in row]
        if wrong:
            what = f"is {_text(found)}, outside {row.interval}" + (f" ({row.why})" if row.why else "")
            yield Problem(f"--{row.flag}", what, f"choose a value in {row.interval}, for example {_text(row.example)}")
    fix = "use a positive number (-1 means never for --eval.steps and --ckpt.save_steps)"
    for flag, when in PERIODS:
        if when(args) and reading.value(args, flag) == 0:
            yield Problem(f"--{flag}", "is 0, and upstream divides by it at every step", fix)


def _text(number: object) -> str:
    if isinstance(number, (list, tuple)):
        return " ".join(map(_text, number))
    if isinstance(number, float) and math.isfinite(number):
        return f"{number:g}"
    return str(number)
