"""What the actors of the pool pipeline say to each other, beside the pool's own records. Plain data."""

from dataclasses import dataclass
from typing import Any

from pace.types import TrajectoryGroup


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to roll out for one lease. `sampling` are vLLM's SamplingParams as keywords, lengths count tokens.

    Trees (TRACE): `n_samples` counts bare rollouts, `predicted` is the predictor's score of the prompt, and with
    `uniform` the predictor has no say yet in where they are continued.
    """

    prompt: str
    label: Any
    images: Any
    sampling: dict[str, Any]
    max_length: int
    n_samples: int
    predicted: float | None = None
    uniform: bool = False


@dataclass(frozen=True, kw_only=True)
class GroupReport:
    """A finished group, or why there is none. `n_tokens` counts what the engine generated, retries included.

    `scores` are what dynamic filtering looks at, one per trajectory; None where there is none.
    """

    group: TrajectoryGroup | None
    n_tokens: int
    scores: tuple[float | None, ...] = ()
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class Prefix:
    """Where a bare rollout can be continued: after `turn` turns and `n_given` generated tokens; its text so far."""

    turn: int
    n_given: int
    text: str


@dataclass(frozen=True, kw_only=True)
class BareRollout:
    """A finished bare rollout of a tree: its reward, and the prefixes at which it can be continued."""

    reward: float
    prefixes: tuple[Prefix, ...]


@dataclass(frozen=True, kw_only=True)
class BareReport:
    """The bare rollouts of a prompt, or the report about their failure."""

    rollouts: tuple[BareRollout, ...] = ()
    failure: GroupReport | None = None


@dataclass(frozen=True, kw_only=True)
class EngineStatus:
    """`incarnation` changes with every start; `version` is None until the trainer lets the engine serve one."""

    incarnation: str
    version: int | None
    loaded: int | None


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """How a weight update went in one engine: seconds, unfinished trajectories that had generated tokens.

    About the prefix scores so far: `noise_floor` is the engine's own in nats per token, `rescore_s` the seconds that
    those of the previous update took.
    """

    pause_s: float
    load_s: float
    interrupted: int
    noise_floor: float
    rescore_s: float
