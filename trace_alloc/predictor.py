"""Who says how likely a prompt or a prefix is to end well: the Protocol, and two predictors without a model.

Invariant: scores are finite and lie in [0, 1], one per anchor and in its order, whatever the anchors are. Scoring
changes nothing; only `update` learns. The allocator alone uses the scores, never the policy gradient (paper, 4).

In: anchors (roots and prefixes) as text; examples with the targets of `trace_alloc.targets`. Out: P(success | history,
current policy). The language model behind the same Protocol is `openrlhf.trainer.tree.lm_predictor`.
Source: paper, section 4 and E.6 (one predictor for roots and prefixes, mean squared error, one update a step); the two
predictors here are design, as baselines and for machines without room for a second model.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trace_alloc.calibration import mse

State = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """A history to be scored. `key` names the prompt, for predictors that keep a table; `turn` counts the turns so
    far (0: the root); `text` is what `trace_alloc.serialisation.serialise` makes of the history.

    Raises ValueError for a `turn` that is not an integer from 0 on, and for a `key` or `text` that is not a string.
    """

    key: str
    turn: int
    text: str

    def __post_init__(self) -> None:
        if type(self.turn) is not int or self.turn < 0:
            raise ValueError(f"a turn is an integer from 0 on, got {self.turn!r}")
        if not isinstance(self.key, str) or not isinstance(self.text, str):
            raise ValueError("the key and the text of an anchor are strings")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """An anchor and the share of successes below it (trace.md 4). Raises ValueError for a target outside [0, 1]."""

    anchor: Anchor
    target: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.target <= 1.0:  # NaN is not either
            raise ValueError(f"a target lies in [0, 1], got {self.target!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """What an update did with its `n` examples.

    `loss` is their mean squared error before it, over those with a finite one; None when there is none. `n_skipped`
    examples taught nothing, because the loss or the gradient they were part of was not finite.
    """

    loss: float | None
    n: int
    n_skipped: int = 0


class Predictor(Protocol):
    """Scores anchors, and learns online from what became of them."""

    def score(self, texts: Sequence[Anchor]) -> list[float]:
        """P(success) of each anchor, in [0, 1]; nothing for none."""

    def update(self, examples: Sequence[Example]) -> UpdateReport:
        """Learns from the examples of one step; nothing happens without any."""

    def state_dict(self) -> State:
        """What it has learnt."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Strict inverse of `state_dict`; raises ValueError on foreign state, and then nothing has changed."""


class ConstantPredictor:
    """Says the same of everything and learns nothing: with 0.5 every anchor is as uncertain as can be (design).

    Raises ValueError for a value outside [0, 1].
    """

    def __init__(self, value: float = 0.5) -> None:
        _check_probability("the constant", value)
        self._value = float(value)

    def score(self, texts: Sequence[Anchor]) -> list[float]:
        """The value, once per anchor."""
        return [self._value] * len(texts)

    def update(self, examples: Sequence[Example]) -> UpdateReport:
        """Only measures."""
        return UpdateReport(loss=_loss(self.score([e.anchor for e in examples]), examples), n=len(examples))

    def state_dict(self) -> State:
        """Nothing to save."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError unless `state` is empty."""
        _check_keys(state, (), type(self).__name__)


class RunningMeanPredictor:
    """Each prompt's success rate so far; its prefixes count like the prompt itself (design).

    With targets y_1, y_2, ... of a prompt's root, `n` of them in an update that has any:

        s <- keep * s + sum y,   w <- keep * w + n,   V = (prior_weight * prior + s) / (prior_weight + w)

    so V is the mean of a Beta posterior whose evidence fades by `keep` each time the prompt is seen again, because
    the policy it was measured under is gone. Targets of prefixes are not learnt: continuations are placed where the
    outcome was in doubt, so their mean is not the prompt's.

    Raises ValueError for a `prior` outside [0, 1], a `prior_weight` not above 0 or a `keep` outside [0, 1].
    """

    def __init__(self, *, prior: float = 0.5, prior_weight: float = 2.0, keep: float = 0.7) -> None:
        _check_probability("prior", prior)
        _check_probability("keep", keep)
        if not 0.0 < prior_weight < math.inf:
            raise ValueError(f"the weight of the prior is a number above 0, got {prior_weight!r}")
        self._prior, self._prior_weight, self._keep = float(prior), float(prior_weight), float(keep)
        self._seen: dict[str, tuple[float, float]] = {}  # per prompt: w and s

    def score(self, texts: Sequence[Anchor]) -> list[float]:
        """The mean of each anchor's prompt; the prior for a prompt never seen."""
        return [self._mean(anchor.key) for anchor in texts]

    def update(self, examples: Sequence[Example]) -> UpdateReport:
        """Learns from the roots among the examples, and measures on all of them."""
        loss = _loss(self.score([e.anchor for e in examples]), examples)
        targets: dict[str, list[float]] = {}
        for example in examples:
            if example.anchor.turn == 0:
                targets.setdefault(example.anchor.key, []).append(example.target)
        for key, values in targets.items():
            weight, total = self._seen.get(key, (0.0, 0.0))
            self._seen[key] = (self._keep * weight + len(values), self._keep * total + math.fsum(values))
        return UpdateReport(loss=loss, n=len(examples))

    def state_dict(self) -> State:
        """The weight and the sum of each prompt, as plain data that survives JSON; prior and `keep` are settings."""
        return {"seen": {key: [weight, total] for key, (weight, total) in self._seen.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError on a state that is not one of these; nothing has changed then."""
        _check_keys(state, ("seen",), type(self).__name__)
        if not isinstance(state["seen"], Mapping):
            raise ValueError(
                f"state of RunningMeanPredictor: `seen` is a {type(state['seen']).__name__}, not a mapping"
            )
        self._seen = {_key(key): _evidence(pair) for key, pair in state["seen"].items()}

    def _mean(self, key: str) -> float:
        weight, total = self._seen.get(key, (0.0, 0.0))
        value = (self._prior_weight * self._prior + total) / (self._prior_weight + weight)
        return min(max(value, 0.0), 1.0)  # rounding


def _loss(scores: Sequence[float], examples: Sequence[Example]) -> float | None:
    return mse(scores, [example.target for example in examples])


def _check_probability(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} lies in [0, 1], got {value!r}")


def _check_keys(state: object, expected: Sequence[str], owner: str) -> None:
    if not isinstance(state, Mapping):
        raise ValueError(f"state of {owner} is a {type(state).__name__}, not a mapping")
    if set(state) != set(expected):
        raise ValueError(f"state of {owner}: keys {sorted(map(str, state))} instead of {sorted(expected)}")


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise ValueError(f"state of RunningMeanPredictor: {key!r} is no key of a prompt")
    return key


def _evidence(pair: object) -> tuple[float, float]:
    if isinstance(pair, (list, tuple)) and len(pair) == 2 and all(type(x) in (int, float) for x in pair):
        weight, total = float(pair[0]), float(pair[1])
        if 0.0 <= total <= weight * (1 + 1e-9) and weight < math.inf:
            return weight, total
    raise ValueError(f"state of RunningMeanPredictor: {pair!r} is not a weight and a sum between 0 and it")
