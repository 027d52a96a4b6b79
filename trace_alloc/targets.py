"""What the predictor learns from finished trees, and how much contrast the trees hold.

Invariant: only terminal nodes count, factual and counterfactual ones alike; a branch without one is left out. Outcomes
are 1[reward > 0] by default (design, section 12): the paper's formulas need 0 or 1, while rewards may be fractional.
With `binary=False` rewards count as they are, and "activated" means unequal rewards.

    leaf:      V(y) = outcome of y
    internal:  V(y) = (1/n_y) sum_c n_c V(c),   n_y = sum_c n_c      (paper, recursive targets; design, section 4)

which is the mean outcome of the leaves below y, and is computed as such. Continuations are placed by looking at the
factual outcome, so the mean at an ancestor over-weights expanded branches; the paper accepts that, and
`RootTarget.BARE_MEAN` is the way around it at the root.

In: rollout trees. Out: targets in [0, 1] (for binary outcomes), examples for the predictor, effective ratios.
"""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from trace_alloc.tree import ROOT, RolloutTree

T = TypeVar("T")
# Beyond any reward that means something; sums, squares and divisions by 1e-6 of what is inside stay finite.
REWARD_BOUND = 1e100


class RootTarget(str, Enum):
    """Whose outcomes make the target of the root."""

    LEAF_MEAN = "leaf_mean"  # all leaves: the paper's
    BARE_MEAN = "bare_mean"  # the bare rollouts alone: unbiased


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorExample:
    """A history to learn from: the one of tree `group_id` that ends with `node` (ROOT: the prompt alone).

    `target` is the mean of `n_leaves` outcomes, at least two.
    """

    group_id: str
    node: int
    target: float
    n_leaves: int


@dataclass(frozen=True, slots=True)
class EffectiveRatio:
    """Shares in [0, 1] of what was sampled below activated anchors; None where there was nothing of the kind."""

    prompt: float | None  # over prompts
    anchor: float | None  # over expanded prefixes, each weighing as many as it has terminal descendants


def outcome(reward: float, *, binary: bool = True) -> float:
    """1[reward > 0] or, with `binary` off, the reward itself, brought into +-REWARD_BOUND."""
    if binary:
        return float(reward > 0)
    return min(max(float(reward), -REWARD_BOUND), REWARD_BOUND)


def outcomes(tree: RolloutTree, *, binary: bool = True) -> dict[int, float]:
    """The outcome of every terminal node, in order of index."""
    return {
        index: outcome(node.reward, binary=binary) for index, node in enumerate(tree.nodes) if node.reward is not None
    }


def mean(values: Sequence[float]) -> float:
    """The mean of one or more numbers, never outside their range: equal numbers have exactly their mean."""
    return min(max(math.fsum(values) / len(values), min(values)), max(values))


def leaf_mean(tree: RolloutTree, *, binary: bool = True) -> list[float | None]:
    """The recursive target of each node and, in the last entry, the root; None where no leaf is done yet."""
    results = outcomes(tree, binary=binary)
    return [mean([results[leaf] for leaf in leaves]) if leaves else None for leaves in tree.leaves_below()]


def predictor_examples(
    tree: RolloutTree, *, root_target: RootTarget = RootTarget.LEAF_MEAN, binary: bool = True
) -> tuple[PredictorExample | None, list[PredictorExample]]:
    """The root's example and those of the prefixes below it, in order of index (design, section 5).

    Only histories with two or more terminal descendants have an example; for BARE_MEAN the root needs two bare ones.
    Prefixes are those of bare rollouts and, should a continuation have been expanded itself, of that one.
    """
    results = outcomes(tree, binary=binary)

    def example(node: int, leaves: Iterable[int]) -> PredictorExample | None:
        values = [results[leaf] for leaf in leaves]
        if len(values) < 2:
            return None
        return PredictorExample(group_id=tree.group_id, node=node, target=mean(values), n_leaves=len(values))

    *below, all_leaves = tree.leaves_below()
    bare_only = root_target == RootTarget.BARE_MEAN
    root = example(ROOT, [leaf for leaf in all_leaves if tree.nodes[leaf].bare or not bare_only])
    prefixes = [example(node, leaves) for node, leaves in enumerate(below)]
    return root, [prefix for prefix in prefixes if prefix is not None]


def sample_prefix_examples(n_root: int, candidates: Sequence[T], *, share: float = 0.06, seed: int) -> list[T]:
    """Draws the prefix examples that make `share` of a batch with `n_root` root examples (paper, E.6; design, 5).

    Without replacement, in the order of `candidates`: round(n_root share / (1 - share)) of them, at least one while
    there is any, and no more than there are; none at share 0. The same seed draws the same ones.
    Raises ValueError for a share outside [0, 1) or a negative `n_root`.
    """
    if not 0 <= share < 1 or n_root < 0:
        raise ValueError(f"a share lies in [0, 1) and a number of roots is not negative, got {share} and {n_root}")
    wanted = max(1, round(n_root * share / (1 - share))) if share else 0
    drawn = random.Random(seed).sample(range(len(candidates)), min(wanted, len(candidates)))
    return [candidates[index] for index in sorted(drawn)]


def activated(tree: RolloutTree, node: int = ROOT, *, binary: bool = True) -> bool:
    """Whether the terminal descendants of `node` hold both outcomes (paper, D.3)."""
    return _mixed(outcomes(tree, binary=binary), tree.leaves_below()[node])


def effective_ratio(trees: Iterable[RolloutTree], *, binary: bool = True) -> EffectiveRatio:
    """The share of sampled terminal descendants below activated anchors (paper, C.2; design, section 8).

    At prompts: the share of trees that hold both outcomes, among those with a leaf. At prefixes: those from which two
    or more branches lead to a leaf; a leaf below nested ones counts once for each.
    """
    prompts: list[bool] = []
    anchors: list[tuple[int, bool]] = []
    for tree in trees:
        results, below = outcomes(tree, binary=binary), tree.leaves_below()
        if below[ROOT]:
            prompts.append(_mixed(results, below[ROOT]))
        for node in range(len(tree.nodes)):
            if sum(bool(below[child]) for child in tree.children(node)) > 1:
                anchors.append((len(below[node]), _mixed(results, below[node])))
    return EffectiveRatio(
        prompt=sum(prompts) / len(prompts) if prompts else None,
        anchor=sum(n for n, mixed in anchors if mixed) / sum(n for n, _ in anchors) if anchors else None,
    )


def _mixed(results: dict[int, float], leaves: Iterable[int]) -> bool:
    return len({results[leaf] for leaf in leaves}) > 1
