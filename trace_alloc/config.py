"""Every knob of TRACE: one frozen dataclass that generates its own flags.

In: the command line as `args.trace`. Out: `TraceConfig`. Defaults without a source are design; the paper gives N = 2
(E.5), the 6 % of prefixes and the learning rate of the predictor (E.6).
"""

import argparse
from dataclasses import dataclass, fields
from typing import Any

from pace.knobs import add_args, checked, knob, read_args

GROUP_TITLE = "TRACE"
PREFIX = "trace"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceConfig:
    """All settings of tree rollouts. Raises ValueError on the first value out of range, naming its flag."""

    enable: bool = knob(False, "build rollout trees with an allocated budget; without --pace.enable synchronously")
    # Where the budget goes
    allocation: str = knob(
        "trace",
        "who gets the rollouts: predicted mixed outcomes at prompts and prefixes (trace), at one of the two with the "
        "other uniform (root_only, prefix_only), both uniform (random), flat groups of the prompts nearest to an even "
        "chance (pcl), flat groups of all prompts (flat)",
        choices=("trace", "random", "root_only", "prefix_only", "pcl", "flat"),
    )
    budget: int = knob(
        0,
        "bare rollouts per batch (M); 0: what costs as much as the flat batch, rollout.batch_size * "
        "n_samples_per_prompt = M * (1 + N / 2)",
        low=0,
        high=1_000_000,
        fix="use 0 for the cost of the flat batch",
    )
    continuations: int = knob(
        2, "continuations per bare rollout (N), each costed at half a rollout", low=0, high=64, fix="use 2"
    )
    candidates: int = knob(
        0,
        "prompts per batch among which the allocator chooses; the others are skipped in this episode; 0: M / 2; "
        "rounded up to whole multiples of a batch",
        low=0,
        high=1_000_000,
        fix="use 0 for half of the budget",
    )
    max_per_root: int = knob(16, "bare rollouts that one prompt may get", low=2, high=4096, fix="use 16")
    max_per_prefix: int = knob(
        4, "continuations that the predictor may give one prefix", low=1, high=4096, fix="use 4"
    )
    explore: float = knob(
        0.0,
        "prompts, as a share of those that start, which are drawn at random and count as an even chance, so that all "
        "keep being measured",
        low=0,
        high=1,
        fix="use 0 or a few percent",
    )
    # Trees
    segment_tokens: int = knob(
        0,
        "single-turn tasks: a prefix ends every so many generated tokens; 0: prefixes end with turns only",
        low=0,
        high=1_000_000,
        fix="use 0, or about a quarter of the response length",
    )
    num_actors: int = knob(1, "rollout actors that share prompts and budget", low=1, high=256, fix="use 1")
    # Credit
    credit: str = knob(
        "tree_rpo",
        "advantages: per segment against its siblings (tree_rpo), per leaf against its tree and prompt (tree_grpo), "
        "per leaf against its prompt (grpo)",
        choices=("tree_rpo", "tree_grpo", "grpo"),
    )
    denominator: str = knob(
        "bernoulli_var",
        "what TreeRPO divides by: the siblings' Bernoulli variance, its root, nothing",
        choices=("bernoulli_var", "bernoulli_std", "none"),
    )
    backup: str = knob(
        "child_mean",
        "a node's value under TreeRPO: mean of its children, or of the leaves below it",
        choices=("child_mean", "leaf_mean"),
    )
    prune: float = knob(
        0.1, "siblings whose values differ by less get no advantage (TreeRPO)", low=0, high=1e6, fix="use 0.1"
    )
    singleton: str = knob(
        "zero",
        "Tree-GRPO's advantage within a tree of one leaf: none, or its reward as in the authors' code",
        choices=("zero", "upstream"),
    )
    binary_policy_reward: bool = knob(False, "train the policy on 1[reward > 0], as the allocator always does")
    # Predictor of success
    predictor: str = knob(
        "lm",
        "who predicts success: a language model with a scalar head, the prompt's mean so far, a constant 0.5",
        choices=("lm", "running_mean", "constant"),
    )
    predictor_model: str = knob("", "model folder of the predictor (lm); empty: the policy's")
    predictor_lr: float = knob(3e-5, "learning rate of the predictor", low=0, high=1, fix="use 3e-5")
    predictor_batch: int = knob(64, "examples per update of the predictor", low=1, high=65536, fix="use 64")
    predictor_max_tokens: int = knob(
        8192,
        "tokens of a prefix that the predictor reads; a longer one loses its middle",
        low=16,
        high=1 << 20,
        fix="use 8192",
    )
    predictor_gpus: float = knob(0.0, "share of a GPU for the predictor; 0: on the CPU", low=0, high=1, fix="use 0.2")
    prefix_share: float = knob(0.06, "share of prefixes in the predictor's examples", low=0, high=0.9, fix="use 0.06")
    root_target: str = knob(
        "leaf_mean",
        "what the predictor learns at a prompt: mean over all leaves, or over the bare rollouts only (unbiased)",
        choices=("leaf_mean", "bare_mean"),
    )
    warmup_steps: int = knob(
        1, "updates during which the budget is spread uniformly and the predictor only learns", low=0, fix="use 1"
    )

    def __post_init__(self) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, checked(f, getattr(self, f.name), flag(f.name)))

    @property
    def flat(self) -> bool:
        """Whether groups are flat: no continuations, the same number of rollouts for every prompt."""
        return self.allocation in ("flat", "pcl")

    @property
    def predicts(self) -> bool:
        """Whether a predictor's values have a say: not where all get the same."""
        return self.predictor != "constant" and self.allocation not in ("random", "flat")

    def bare_budget(self, flat_rollouts: int) -> int:
        """M: bare rollouts per batch, for a flat batch of `flat_rollouts` (trace.md 7)."""
        if self.flat:
            return flat_rollouts
        return self.budget or max(2, round(flat_rollouts / (1 + self.continuations / 2)))

    def n_candidates(self, batch_groups: int, flat_rollouts: int) -> int:
        """Prompts per batch of `batch_groups` trees among which the allocator chooses; as many for each tree."""
        if self.allocation in ("flat", "random", "prefix_only"):
            return batch_groups
        wanted = max(batch_groups, self.candidates or self.bare_budget(flat_rollouts) // 2)
        return -(-wanted // batch_groups) * batch_groups


def flag(name: str) -> str:
    """The flag of a field, as typed."""
    return f"--{PREFIX}.{name}"


def add_trace_args(parser: argparse.ArgumentParser) -> None:
    """Adds one flag per field."""
    about = "allocation of the rollout budget over prompts and prefixes"
    add_args(parser, TraceConfig, prefix=PREFIX, title=GROUP_TITLE, about=about)


def from_args(args: Any) -> TraceConfig:
    """The settings in `args.trace`. Raises ValueError for a value out of range and for flags that do not match."""
    return TraceConfig(**read_args(args, TraceConfig, prefix=PREFIX))
