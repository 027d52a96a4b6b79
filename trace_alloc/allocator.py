"""Who gets the budget of a round: bare rollouts for prompts, then continuations for the prefixes of one prompt.

Invariants: a plan is a function of scores, sizes and seed; it never spends more than the budget, and names what it
could not spend. Both stages can be uniform instead, which gives the baselines at equal budget.

In: scores of the predictor. Out: one count per prompt or prefix. Source: trace.md 2, 3, 10; rounds that start a
limited number of prompts are design.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trace_alloc.allocation import (
    allocate_prefixes,
    allocate_roots,
    closest_roots,
    feasible_budget,
    root_utility,
    uniform_prefixes,
)
from trace_alloc.config import TraceConfig
from trace_alloc.targets import outcome


@dataclass(frozen=True, slots=True)
class Plan:
    """`counts` per input, in order, and what the budget allowed beyond their sum."""

    counts: tuple[int, ...]
    unspent: int


def plan_roots(
    config: TraceConfig, scores: Sequence[float], *, n_start: int, budget: int, warm: bool, seed: int
) -> Plan:
    """Bare rollouts for each of the scored prompts, of which at most `n_start` may start.

    Flat groups get `budget / n_start` rollouts each. `warm`: whether the predictor has learnt; before that, and where
    the allocation says so, prompts are drawn and share the budget evenly. Scores outside [0, 1] count as 0.5.
    """
    n_start = min(n_start, len(scores), budget // 2)
    values = _usable(scores)
    rng = np.random.default_rng(seed)
    counts = np.zeros(len(scores), dtype=np.int64)
    if config.flat:
        per_root = max(2, budget // max(1, n_start))
        if config.allocation == "pcl" and warm:
            counts[:] = closest_roots(values, n_start, per_root, seed=seed)
        else:
            counts[:n_start] = per_root
    elif config.allocation in ("random", "prefix_only") or not warm:
        counts[rng.permutation(len(values))[:n_start]] = _even(n_start, budget, config.max_per_root)
    else:
        values[rng.permutation(len(values))[: math.ceil(config.explore * n_start)]] = 0.5  # as if nothing was known
        counts[:] = _allocated(config, values, budget, seed)
        active = np.flatnonzero(counts)
        if len(active) > n_start:  # the best of them share the budget
            gains = root_utility(values[active], np.full(len(active), 2))
            best = active[np.lexsort((rng.permutation(len(active)), -gains))[:n_start]]
            counts[:] = 0
            counts[best] = _allocated(config, values[best], budget, seed)
    return _plan(counts.tolist(), budget)


def plan_prefixes(
    config: TraceConfig,
    scores: Sequence[float],
    rewards: Sequence[float],
    *,
    n_bare: int,
    warm: bool,
    seed: int,
) -> Plan:
    """Continuations for each prefix of one prompt with `n_bare` bare rollouts.

    `rewards` are those of the rollouts that the prefixes were cut from.
    """
    budget = 0 if config.flat else n_bare * config.continuations
    if not scores or not budget:
        return _plan([0] * len(scores), budget)
    if config.allocation in ("random", "root_only") or not warm:
        return _plan(uniform_prefixes(len(scores), budget, seed), budget)
    results = [outcome(reward) for reward in rewards]
    return _plan(allocate_prefixes(_usable(scores), results, budget, config.max_per_prefix, seed), budget)


def _allocated(config: TraceConfig, values: NDArray[np.float64], budget: int, seed: int) -> list[int]:
    spend = feasible_budget(len(values), budget, config.max_per_root)
    return allocate_roots(values, spend, config.max_per_root, seed)


def _even(n: int, budget: int, cap: int) -> list[int]:
    """Shares of the budget (2 n or more) as equal as can be, none above the cap."""
    return [min(cap, budget // n + (i < budget % n)) for i in range(n)]


def _usable(scores: Sequence[float]) -> NDArray[np.float64]:
    return np.array([score if 0.0 <= score <= 1.0 else 0.5 for score in scores], dtype=np.float64)


def _plan(counts: Sequence[int], budget: int) -> Plan:
    return Plan(tuple(counts), budget - sum(counts))
