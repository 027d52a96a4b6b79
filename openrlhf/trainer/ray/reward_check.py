"""A reward that can't be trained on ends the run with its cause.

Upstream's executor logs whatever the user's reward function raises and goes on without a reward; the run then dies
much later, far from the reason, or trains on NaN. Here the error is kept where it happens, and raised with the
response.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

NO_REWARD_HINT = "upstream's interface is reward_func(queries, prompts, labels) -> {'rewards': one number per query}"


class RewardError(RuntimeError):
    """The message names the flag, what happened and what to change."""


class CheckedRewardFunc:
    """A user's `reward_func` that remembers its last error. Called from many threads; the last error wins."""

    def __init__(self, function: Callable[..., Any], path: str) -> None:
        self._function, self._path = function, path
        self.error: RewardError | None = None

    def __call__(self, queries: list[str], prompts: list[str], labels: list[Any]) -> Mapping[str, Any]:
        try:
            result = self._function(queries, prompts, labels)
            problem = wrong_shape(result, len(queries))
        except Exception as error:
            problem, cause = f"reward_func raised {type(error).__name__}: {error}", error
        else:
            if problem is None:
                return result
            cause = None
        self.error = RewardError(f"--reward.remote_url {self._path}: {problem}. Fix: {NO_REWARD_HINT}.")
        self.error.__cause__ = cause
        raise self.error


def wrong_shape(result: Any, count: int) -> str | None:
    """What is wrong with the answer to `count` queries, or None."""
    if not isinstance(result, Mapping) or result.get("rewards") is None:
        return f"reward_func returned {type(result).__name__} without 'rewards'"
    values = _numbers(result["rewards"])
    if len(values) != count:
        return f"reward_func returned {len(values)} rewards for {count} queries"
    if not all(map(math.isfinite, values)):
        return f"reward_func returned {values}, which is not finite"
    return None


def check_response(response: Mapping[str, Any], source: str, reward_func: CheckedRewardFunc | None = None) -> None:
    """Raises RewardError when `response` carries no finite reward; `source` is the flag and file it came from."""
    reward = response.get("reward")
    if reward is None:
        if reward_func is not None and reward_func.error is not None:
            raise reward_func.error
        raise RewardError(f"{source}: no reward came back. Fix: see the log above for what the reward source said.")
    if not all(map(math.isfinite, _numbers(reward))):
        raise RewardError(f"{source}: the reward is {reward}, which is not finite. Fix: return a finite number.")


def _numbers(value: Any) -> list[float]:
    """The numbers in a tensor, a list or a scalar."""
    if hasattr(value, "flatten"):
        value = value.flatten().tolist()
    return [float(item) for item in value] if isinstance(value, (list, tuple)) else [float(value)]
