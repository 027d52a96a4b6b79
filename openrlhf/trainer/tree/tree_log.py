"""What the run's log keeps of a step's trees: where the budget went, what was predicted, and one whole tree.

Invariant: small. A prompt and a continued prefix take a few numbers each; of the trees one is written out, without its
tokens, and it has at most MAX_NODES nodes with at most MAX_TEXT characters of text. Predictions are those on which the
budget was allocated. In: trees as they were trained. Out: the content of a line of kind `trees`; docs/report.md.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from openrlhf.trainer.tree.grown import GrownTree
from trace_alloc.config import TraceConfig
from trace_alloc.targets import activated, leaf_mean, mean, outcome
from trace_alloc.tree import ROOT

MAX_NODES = 96
MAX_TEXT = 80
Decode = Callable[[list[int]], str]


def tree_line(trees: Sequence[GrownTree], *, config: TraceConfig, decode: Decode, seed: int) -> dict[str, Any]:
    """`prompts` as [bare rollouts, predicted success, mean outcome], `prefixes` as [turn, share of the rollout's
    tokens before it, continuations, predicted success, mean outcome of the continuations], and a `tree` or None."""
    chosen = _one_of(trees, seed=seed)
    return {
        "prompts": [_prompt(tree) for tree in trees],
        "prefixes": [prefix for tree in trees for prefix in _prefixes(tree)],
        "tree": _drawn(chosen, config, decode) if chosen else None,
    }


def _one_of(trees: Sequence[GrownTree], *, seed: int) -> GrownTree | None:
    """A tree that is small enough, with both outcomes and with continuations if there is one."""
    small = [tree for tree in trees if 0 < len(tree.tree.nodes) <= MAX_NODES]
    grown = [tree for tree in small if not all(node.bare for node in tree.tree.nodes)]
    mixed = [tree for tree in grown if activated(tree.tree)]
    choice = mixed or grown or small
    return random.Random(seed).choice(choice) if choice else None


def _prompt(tree: GrownTree) -> list[float | None]:
    n_bare = sum(node.terminal and node.bare for node in tree.tree.nodes)
    return [n_bare, tree.notes.get("predicted"), leaf_mean(tree.tree)[ROOT]]


def _prefixes(tree: GrownTree) -> list[list[float | None]]:
    """Those that were continued."""
    below, found = tree.tree.leaves_below(), []
    for parent, n_given, score in tree.notes.get("anchors", ()):
        node = tree.prefix_at(parent, n_given)
        fresh = [leaf for leaf in below[node] if not tree.tree.nodes[leaf].bare]
        if fresh:
            path = tree.tree.path(node)
            made = sum(len(tree.tree.nodes[i].action) for i in tree.tree.path(tree.leaves[parent]))
            observed = mean([outcome(tree.tree.nodes[leaf].reward or 0.0) for leaf in fresh])
            found.append([len(tree.ends.intersection(path)), n_given / made, len(fresh), score, observed])
    return found


def _drawn(tree: GrownTree, config: TraceConfig, decode: Decode) -> dict[str, Any]:
    """A tree to look at. A node's `value` is the mean outcome below it, its `advantage` that of its tokens, the mean
    over the rows that train them; `predicted` is there where the budget was allocated by it."""
    values, advantages = leaf_mean(tree.tree), _advantages(tree, config)
    scores = {tree.prefix_at(parent, n_given): score for parent, n_given, score in tree.notes.get("anchors", ())}
    return {
        "prompt_id": tree.key,
        "predicted": tree.notes.get("predicted"),
        "value": values[ROOT],
        "nodes": [
            {
                "parent": node.parent,
                "bare": node.bare,
                "n_tokens": len(node.action),
                "reward": node.reward,
                "value": values[at],
                "advantage": advantages.get(at),
                "predicted": scores.get(at),
                "text": decode(list(node.action))[:MAX_TEXT],
            }
            for at, node in enumerate(tree.tree.nodes)
        ],
    }


def _advantages(tree: GrownTree, config: TraceConfig) -> dict[int, float]:
    """By node; nothing for a node that no row trains."""
    found: dict[int, list[float]] = defaultdict(list)
    for row in tree.rows(config):
        start = 0
        for node in tree.tree.path(row.leaf):
            if row.mask[start]:
                found[node].append(row.advantages[start])
            start += len(tree.tree.nodes[node].action)
    return {node: mean(values) for node, values in found.items()}
