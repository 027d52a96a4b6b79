"""What a simulated cluster is: its numbers, and the work that rollouts make for it.

Invariant: work depends on the seed, the prompt and the attempt alone, so every policy is given the same work. In: the
`--cluster.*` flags. Out: per trajectory its tokens, its wait for a tool and how fast its prefix drifts.

Models (design). A trajectory gets a constant number of tokens a second, however many others are generated. Lengths are
constant, exponential, or lognormal around a prompt's own mean, which is lognormal, too. A tool answers after a Pareto
time, half-way through the response. Drift: a token that is d versions old has mean |log-ratio| `drift_nats` * d * x,
with x lognormal of median 1, drawn once per trajectory.
"""

import math
import random
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import NamedTuple

from pace.knobs import checked, knob

PREFIX = "cluster"
_PROBES = 2000  # groups drawn to estimate how long one takes


class Work(NamedTuple):
    """One rollout to be made: response in tokens, seconds its tool takes half-way, factor on its drift."""

    n_tokens: int
    tool_s: float
    drift: float

    def duration(self, tokens_per_s: float) -> float:
        """Seconds from its start to its end."""
        return self.n_tokens / tokens_per_s + self.tool_s

    def tokens_by(self, seconds: float, tokens_per_s: float) -> int:
        """Tokens written when `seconds` have passed since its start."""
        if self.tool_s:
            asked = self.n_tokens // 2 / tokens_per_s
            seconds = min(seconds, asked) + max(0.0, seconds - asked - self.tool_s)
        return min(self.n_tokens, int(seconds * tokens_per_s))


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The numbers of a cluster. Raises ValueError on the first one out of range, naming its flag."""

    slots: int = knob(64, "what the engines generate at a time, in slot_unit", low=1, fix="use engines x concurrency")
    slot_unit: str = knob(
        "group",
        "what holds a slot until it ends: a whole group with its slowest trajectory, or each trajectory for itself",
        choices=("group", "trajectory"),
    )
    batch_groups: int = knob(32, "groups in a training batch (B)", low=1, fix="use --rollout.batch_size")
    group_size: int = knob(8, "trajectories in a group (n)", low=1, fix="use --rollout.n_samples_per_prompt")
    lengths: str = knob(
        "lognormal", "distribution of response lengths", choices=("constant", "exponential", "lognormal")
    )
    mean_tokens: float = knob(4000.0, "mean length of a response, in tokens", low=1, high=1e7, fix="see a run's log")
    spread: float = knob(
        0.6, "standard deviation of log(length) within a prompt (lognormal)", low=0, high=3, fix="use 0.4 to 1"
    )
    prompt_spread: float = knob(
        0.4, "standard deviation of log(mean length) between prompts", low=0, high=3, fix="0: all prompts are alike"
    )
    max_tokens: int = knob(0, "responses are cut at so many tokens; 0: never", low=0, fix="use 0 for no limit")
    tokens_per_s: float = knob(
        40.0, "tokens a second that one trajectory gets", low=1e-3, high=1e6, fix="measure one busy engine"
    )
    tool_share: float = knob(0.0, "share of trajectories that wait for a tool", low=0, high=1, fix="0: no tools")
    tool_s: float = knob(10.0, "mean seconds of such a wait", low=0, high=1e6, fix="see a run's log")
    tool_tail: float = knob(
        1.5, "Pareto index of such a wait; the nearer to 1, the heavier the tail", low=1.05, high=100, fix="use 1.5"
    )
    filter_share: float = knob(
        0.0, "share of groups that a filter takes out before the pool", low=0, high=0.99, fix="0: no filter"
    )
    train_s: float = knob(120.0, "seconds an update takes, experience included", low=1e-3, high=1e6, fix="see time/*")
    sync_s: float = knob(5.0, "seconds of a weight sync; rollouts stand still", low=0, high=1e5, fix="see time/sync")
    rescore_s: float = knob(
        0.0, "seconds that scoring prefixes adds to a sync (rank effective)", low=0, high=1e5, fix="see time/rescore"
    )
    drift_nats: float = knob(
        0.02, "mean |log-ratio| of a token one version old, in nats", low=0, high=10, fix="see pace/prefix_score"
    )
    drift_spread: float = knob(
        0.7,
        "standard deviation of log(drift) between trajectories of one age; the larger, the less drift follows age",
        low=0,
        high=5,
        fix="use 0.7",
    )

    def __post_init__(self) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, checked(f, getattr(self, f.name), flag(f.name)))

    @cached_property
    def groups_per_s(self) -> float:
        """Groups that get ready a second while every slot is busy and nothing is paused."""
        workload = Workload(self, seed=0)
        groups = [workload.group(prompt=i, attempt=0) for i in range(_PROBES)]
        durations = [[work.duration(self.tokens_per_s) for work in group] for group in groups]
        held = map(max, durations) if self.slot_unit == "group" else map(math.fsum, durations)
        return self.slots * (1 - self.filter_share) * _PROBES / math.fsum(held)

    @property
    def load(self) -> float:
        """rho: groups that get ready in the time of an update and its sync, over B; engines stand still in a sync."""
        return self.groups_per_s * self.train_s / self.batch_groups

    def at_load(self, load: float) -> "Cluster":
        """The same rollouts with a trainer as fast as that load says."""
        return replace(self, train_s=load * self.batch_groups / self.groups_per_s)


class Workload:
    """The work of every prompt and attempt."""

    def __init__(self, cluster: Cluster, *, seed: int) -> None:
        self._cluster = cluster
        self._seed = seed

    def group(self, *, prompt: int, attempt: int) -> list[Work]:
        """The rollouts of a prompt; another attempt is as long on average, and otherwise new."""
        rng = random.Random(f"{self._seed} {prompt} {attempt}")
        mean = self._cluster.mean_tokens
        if spread := self._cluster.prompt_spread:
            mean *= _lognormal(random.Random(f"{self._seed} {prompt}"), spread)
        return [self._work(rng, mean) for _ in range(self._cluster.group_size)]

    def filtered(self, *, prompt: int, attempt: int) -> bool:
        """Whether the filter takes the group out."""
        share = self._cluster.filter_share
        return bool(share) and random.Random(f"{self._seed} {prompt} {attempt} filter").random() < share

    def _work(self, rng: random.Random, mean: float) -> Work:
        about = self._cluster
        length = mean
        if about.lengths == "lognormal":
            length *= _lognormal(rng, about.spread)
        elif about.lengths == "exponential":
            length *= rng.expovariate(1.0)
        if about.max_tokens:
            length = min(length, about.max_tokens)
        waits = about.tool_share and rng.random() < about.tool_share
        shortest = about.tool_s * (about.tool_tail - 1) / about.tool_tail
        tool_s = shortest * rng.paretovariate(about.tool_tail) if waits else 0.0
        return Work(max(1, round(length)), tool_s, math.exp(rng.gauss(0.0, about.drift_spread)))


def flag(name: str) -> str:
    """The flag of a field, as typed."""
    return f"--{PREFIX}.{name}"


def _lognormal(rng: random.Random, sigma: float) -> float:
    """Lognormal of mean 1."""
    return math.exp(rng.gauss(-sigma * sigma / 2, sigma))
