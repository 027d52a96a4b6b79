"""Every knob of PACE: one frozen dataclass that generates its own flags. Errors name the flag and what to set it to.

In: the command line as `args.pace`. Out: `PaceConfig`. Defaults: the paper names gamma in {1, 2, 4}; the rest is
design.
"""

import argparse
from dataclasses import dataclass, fields, replace
from typing import Any

from pace.knobs import add_args, checked, knob, read_args

GROUP_TITLE = "PACE"
PREFIX = "pace"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceConfig:
    """All settings of the pool pipeline. Raises ValueError on the first value out of range, naming its flag."""

    enable: bool = knob(False, "train from the trajectory pool instead of the queue of whole batches")
    strict: bool = knob(
        False,
        "synchronous training through the pool: lag exactly 0 (admission areal with eta 0, k_max 0, no rejection)",
    )
    # Which groups to reject
    rank: str = knob(
        "effective",
        "what the rejected groups have most of: effective or raw staleness, its generation or waiting part, nothing "
        "(random), time in the pool (oldest)",
        choices=("effective", "raw", "generation", "waiting", "random", "oldest"),
    )
    group_score: str = knob("mean", "how sibling scores become a group's", choices=("mean", "max"))
    wait_from: str = knob(
        "group",
        "where waiting staleness begins: when the group is ready, or when each trajectory completes; the latter "
        "charges the wait for the slowest sibling in full, which works against long rollouts",
        choices=("group", "trajectory"),
    )
    gamma: float = knob(
        4.0, "sharpening of the drift percentile, weight = u ** gamma", low=0.01, high=64, fix="use 1, 2 or 4"
    )
    # How many to reject
    target_batches: float = knob(
        1.25,
        "ready groups, in batches, above which rejection begins (kappa)",
        low=1,
        high=1e6,
        fix="1 is the freshest; above 2 little is rejected",
    )
    excess_law: str = knob(
        "share", "surplus as a share of the pool, or relative to the target", choices=("share", "relative")
    )
    rate_smoothing: float = knob(
        0.8, "memory of the smoothed rejection rate (beta)", low=0, high=0.999, fix="0 follows the pool at once"
    )
    max_reject_rate: float = knob(
        0.5,
        "largest rejection rate; 0 turns rejection off",
        low=0,
        high=0.95,
        fix="0.5 rejects one group per trained one",
    )
    scarce_margin_groups: int = knob(
        0, "ready groups beyond a batch that still count as scarce: nothing is rejected", low=0, fix="use 0 or a few"
    )
    on_reject: str = knob(
        "drop", "what becomes of the prompt of a rejected or evicted group", choices=("drop", "requeue")
    )
    requeue_cap: int = knob(
        2, "how often one prompt may be put back", low=1, fix="use --pace.on_reject drop for never"
    )
    # Hard bounds
    k_max: int = knob(
        8,
        "hard cap on a trajectory's lag at training, in versions (Stale-k); -1: none",
        low=-1,
        fix="use -1 for no cap",
    )
    evict_unknown: bool = knob(False, "evict groups that have tokens of unknown policy version, too")
    admission: str = knob(
        "none",
        "bound on starting rollouts: none, AReaL's versions ahead (areal), DORA's version window (dora)",
        choices=("none", "areal", "dora"),
    )
    admission_eta: int = knob(4, "versions that rollouts may run ahead (areal)", low=0, fix="0 is synchronous")
    admission_window: int = knob(3, "open policy versions (dora)", low=1, fix="1 is the current version only")
    pool_capacity_groups: int = knob(
        0, "ready groups at which no new rollout starts; 0: eight batches", low=0, fix="use 0 or at least one batch"
    )
    max_inflight_groups: int = knob(0, "groups generated at a time; 0: two batches", low=0, fix="use 0 or more")
    # Prefix forgetting score
    pfs_phi: str = knob(
        "abs", "drift as any change of a log-prob, or only as probability lost", choices=("abs", "lost")
    )
    pfs_window: int = knob(512, "recent scores that a score is compared with", low=1, fix="use 512")
    pfs_window_min: int = knob(
        32, "scores needed before the percentile is used; before that, rank by raw staleness", low=1, fix="use 32"
    )
    pfs_max_tokens: int = knob(
        65536,
        "tokens that one engine may rescore at a weight sync, prompts included; the oldest trajectories come first",
        low=1,
        fix="use 65536",
    )
    pfs_deadline_s: float = knob(
        5.0, "seconds after a weight sync at which missing scores are given up", low=0, high=3600, fix="use 5"
    )
    # Weight sync
    kv: str = knob(
        "recompute",
        "cached attention states of running requests at a weight sync: computed again under the new weights, or kept, "
        "which is faster and makes log-probs that no trainer can reproduce",
        choices=("recompute", "keep"),
    )
    sync_bucket_mib: int = knob(256, "megabytes of weights that travel at a time", low=1, high=65536, fix="use 256")
    sync_timeout_s: float = knob(
        120.0, "seconds an engine may take to load new weights", low=1, high=86400, fix="use 120"
    )
    # Failure
    max_retries: int = knob(
        2, "how often a trajectory whose environment or reward fails is generated again", low=0, fix="use 2"
    )
    on_failure: str = knob(
        "drop", "what becomes of a prompt whose trajectories keep failing", choices=("drop", "requeue")
    )
    trajectory_timeout_s: float = knob(
        3600.0, "seconds one trajectory may take, environment and reward included", low=0.1, high=1e7, fix="use 3600"
    )
    engine_timeout_s: float = knob(
        30.0, "seconds without an answer after which an engine is restarted", low=1, high=3600, fix="use 30"
    )
    # Loss
    loss: str = knob(
        "upstream",
        "policy loss: upstream's own (--actor.policy_loss_type), M2PO as its authors' code (m2po) or as its text "
        "(m2po_mask), decoupled PPO with the behaviour policy apart from the proximal one (decoupled)",
        choices=("upstream", "m2po", "m2po_mask", "decoupled"),
    )
    m2_budget: float = knob(0.04, "second moment of log-ratios that M2PO allows", low=1e-6, high=100, fix="use 0.04")
    behaviour_cap: float = knob(
        5.0, "largest weight of a token for its behaviour policy (decoupled)", low=1, high=1e6, fix="use 5"
    )
    ess_step_size: bool = knob(False, "scale the learning rate by the batch's effective sample size (VCPO)")
    ess_base: float = knob(
        1.0, "share of the batch from which the learning rate is used in full (VCPO)", low=0.01, high=1, fix="use 1"
    )
    # What is written
    log_dir: str = knob("", "folder of the run's decision log pace.jsonl; empty: --ckpt.path")

    def __post_init__(self) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, checked(f, getattr(self, f.name), flag(f.name)))
        if self.pfs_window_min > self.pfs_window:
            raise ValueError(
                f"{flag('pfs_window_min')} must be at most {flag('pfs_window')} ({self.pfs_window}), got "
                f"{self.pfs_window_min}: lower it or widen the window"
            )

    def resolve(self) -> "PaceConfig":
        """The settings as they act: `strict` fixes the bounds that make every lag 0."""
        if not self.strict:
            return self
        return replace(self, admission="areal", admission_eta=0, k_max=0, max_reject_rate=0.0)

    @property
    def needs_prefix_scores(self) -> bool:
        """Whether any choice depends on prefix scores; without it weight syncs need no rescoring."""
        return self.rank == "effective"

    def capacity(self, batch_groups: int) -> int:
        """Pool capacity in groups for batches of `batch_groups`. Raises ValueError when no batch would fit."""
        capacity = self.pool_capacity_groups or 8 * batch_groups
        if capacity < batch_groups:
            raise ValueError(
                f"{flag('pool_capacity_groups')} must hold at least one batch ({batch_groups} groups), got {capacity}"
                ": use 0 for eight batches"
            )
        return capacity

    def inflight_limit(self, batch_groups: int) -> int:
        """Groups that may be generated at a time."""
        return self.max_inflight_groups or 2 * batch_groups


def flag(name: str) -> str:
    """The flag of a field, as typed."""
    return f"--{PREFIX}.{name}"


def add_pace_args(parser: argparse.ArgumentParser) -> None:
    """Adds one flag per field."""
    about = "staleness control by a pool of trajectory groups"
    add_args(parser, PaceConfig, prefix=PREFIX, title=GROUP_TITLE, about=about)


def from_args(args: Any) -> PaceConfig:
    """The settings in `args.pace`. Raises ValueError for a value out of range and for flags that do not match."""
    return PaceConfig(**read_args(args, PaceConfig, prefix=PREFIX))
