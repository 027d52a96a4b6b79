"""What a batch of trees says about allocation, cost and prediction.

In: trees as they were trained, with what their allocators predicted. Out: one number per key; a statistic of no values
is left out. Source: trace.md 7, 8 (effective ratio, units, activation); the choice of keys is the pipeline contract.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trace_alloc.allocation import prefix_utility, root_utility, same_outcome
from trace_alloc.calibration import summary
from trace_alloc.targets import activated, effective_ratio, leaf_mean, mean, outcome, outcomes
from trace_alloc.tree import ROOT, RolloutTree


@dataclass(frozen=True, slots=True)
class ScoredPrefix:
    """A prefix that was continued: its node, the terminal node of its own rollout, and its predicted success."""

    node: int
    leaf: int
    score: float


@dataclass(frozen=True, slots=True)
class ScoredTree:
    """A tree, the predicted success of its prompt (None: not asked), and the prefixes that were continued."""

    tree: RolloutTree
    predicted: float | None
    prefixes: tuple[ScoredPrefix, ...]


def tree_metrics(trees: Sequence[ScoredTree]) -> dict[str, float]:
    """What was sampled, how much of it is mixed, and how well that was foreseen."""
    bare = [sum(node.terminal and node.bare for node in scored.tree.nodes) for scored in trees]
    leaves = [len(scored.tree.leaves()) for scored in trees]
    n_bare, n_grown = sum(bare), sum(leaves) - sum(bare)
    ratio = effective_ratio([scored.tree for scored in trees])
    numbers: dict[str, float | None] = {
        "trace/alloc/bare": n_bare,
        "trace/alloc/continuations": n_grown,
        "trace/alloc/roots_max": max(bare, default=None),
        "trace/effective_ratio/prompt": ratio.prompt,
        "trace/effective_ratio/anchor": ratio.anchor,
        "trace/cost/units": n_bare + n_grown / 2,
        "trace/cost/generated_tokens": sum(scored.tree.n_generated for scored in trees),
    }
    return {key: float(value) for key, value in numbers.items() if value is not None} | _foreseen(trees, bare)


def _foreseen(trees: Sequence[ScoredTree], bare: Sequence[int]) -> dict[str, float]:
    """Predicted against observed: success of prompts and prefixes, and activation of both."""
    roots: list[tuple[float, float]] = []
    prefixes: list[tuple[float, float]] = []
    activation: dict[str, list[float]] = {name: [] for name in ("root", "root_seen", "prefix", "prefix_seen")}
    for scored, m in zip(trees, bare, strict=True):
        results = outcomes(scored.tree)
        below = scored.tree.leaves_below()
        if scored.predicted is not None and m >= 2:
            mine = [results[leaf] for leaf in below[ROOT] if scored.tree.nodes[leaf].bare]
            roots.append((scored.predicted, leaf_mean(scored.tree)[ROOT] or 0.0))
            activation["root"].append(float(root_utility([scored.predicted], [m])[0]))
            activation["root_seen"].append(float(len(set(mine)) > 1))
        for prefix in scored.prefixes:
            fresh = [results[leaf] for leaf in below[prefix.node] if not scored.tree.nodes[leaf].bare]
            if fresh:
                factual = outcome(scored.tree.nodes[prefix.leaf].reward or 0.0)
                prefixes.append((prefix.score, mean(fresh)))
                same = same_outcome([prefix.score], [factual])
                activation["prefix"].append(float(prefix_utility(same, [len(fresh)])[0]))
                activation["prefix_seen"].append(float(activated(scored.tree, prefix.node)))
    numbers = {
        f"trace/alloc/{name.removesuffix('_seen')}_activation_{'observed' if 'seen' in name else 'predicted'}": mean(
            values
        )
        for name, values in activation.items()
        if values
    }
    return numbers | summary(roots=roots, prefixes=prefixes)
