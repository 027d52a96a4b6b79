"""Advantages of the generated tokens of a rollout tree: TreeRPO, Tree-GRPO, and GRPO without the tree.

Invariants: one row per terminal node, in order of index, with one entry per generated token of its history; a branch
without a terminal node is left out. All numbers are finite, and without contrast they are exactly 0: equal rewards in
the tree, or below a group of siblings, leave no rounding behind.

TreeRPO trains every token of a finished branch in exactly one row, the first that holds it; in the other rows it is
masked, with advantage 0. Tree-GRPO and GRPO train all tokens of every row, so a shared prefix counts once per leaf.

In: a tree with rewards as they came (`binary`: as 1[reward > 0]). Out: `TreeCredit`.
Sources: TreeRPO 2506.05183 and its code, Tree-GRPO 2509.21240 Eqs 6-8 and its code, design section 6.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from trace_alloc.targets import mean, outcomes
from trace_alloc.tree import ROOT, RolloutTree

EPSILON = 1e-6  # in every divisor, as in the code of both papers


class Denominator(str, Enum):
    """What TreeRPO divides by, for a sibling group of mean mu."""

    BERNOULLI_VAR = "bernoulli_var"  # mu (1 - mu) + 1e-6: the paper's code
    BERNOULLI_STD = "bernoulli_std"  # sqrt(mu (1 - mu)) + 1e-6
    NONE = "none"  # 1


class Backup(str, Enum):
    """The value of a node that is not terminal."""

    CHILD_MEAN = "child_mean"  # plain mean of its children's values: TreeRPO
    LEAF_MEAN = "leaf_mean"  # mean over the leaves below it: the recursive targets


class Singleton(str, Enum):
    """What Tree-GRPO makes of a group with a single leaf."""

    ZERO = "zero"  # no contrast, no signal
    UPSTREAM = "upstream"  # mean 0 and deviation 1, as in its code: the reward itself, also when all rewards are equal


@dataclass(frozen=True, slots=True)
class Row:
    """One root-to-leaf trajectory to train on: `tree.tokens(leaf)` with advantages for `tree.action_ranges(leaf)`.

    `advantages` and `mask` have one entry per generated token, in order; `mask` says whether this row trains it.
    """

    leaf: int
    advantages: tuple[float, ...]
    mask: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class TreeCredit:
    """The rows of one tree; none when no branch is done."""

    rows: tuple[Row, ...]

    @property
    def n_trained(self) -> int:
        """Tokens in the loss, a token counted once per row that trains it."""
        return sum(sum(row.mask) for row in self.rows)


def tree_rpo(
    tree: RolloutTree,
    *,
    denominator: Denominator = Denominator.BERNOULLI_VAR,
    backup: Backup = Backup.CHILD_MEAN,
    prune: float = 0.1,
    binary: bool = False,
) -> TreeCredit:
    """TreeRPO's credit: every segment against its siblings (2506.05183; adapted to TRACE's trees by design, 6.1).

        A = (R - mu) / (mu (1 - mu) + 1e-6),   mu the mean of R over the sibling group

    A group are the finished children of one node. Turns between branch points form one segment: an only child has the
    value of its parent and takes over its advantage; an only child of the root has nobody to compare with, and 0.
    A group with max R - min R < `prune` is pruned: its tokens stay in the loss with advantage 0. Groups above and
    below are judged on their own.

    The Bernoulli divisors read R as a probability. When rewards of the tree lie outside [0, 1], all its rewards are
    first mapped linearly, the smallest interval that holds them and [0, 1] onto [0, 1]; R, mu and `prune` are then on
    that scale. So no divisor is negative or nearly 0 without reason. `Denominator.NONE` takes rewards as they are.
    Raises ValueError for a negative `prune`.
    """
    if not prune >= 0:
        raise ValueError(f"prune is a difference of values, 0 or more, got {prune}")
    divisor = _DIVISORS[denominator]
    results = outcomes(tree, binary=binary)
    values = _BACKUPS[backup](tree, results if denominator == Denominator.NONE else _as_probabilities(results))
    advantages = [0.0] * (len(tree.nodes) + 1)  # the last is the root's, for an only child to take over
    for parent, siblings in enumerate(_finished_children(tree), start=ROOT):
        if len(siblings) == 1:
            advantages[siblings[0]] = advantages[parent]
        elif siblings:
            group = [values[node] for node in siblings]
            if max(group) - min(group) >= prune:
                mu = mean(group)
                for node in siblings:
                    advantages[node] = (values[node] - mu) / divisor(mu)
    return TreeCredit(_rows_once(tree, advantages))


def tree_grpo(tree: RolloutTree, *, singleton: Singleton = Singleton.ZERO, binary: bool = False) -> TreeCredit:
    """Tree-GRPO's credit: every leaf within its own tree and within the prompt (2509.21240, Eqs 6-8).

        A = (R - mean_tree) / (std_tree + 1e-6) + (R - mean_prompt) / (std_prompt + 1e-6)

    A tree is a bare rollout with its continuations, std that of a sample (n - 1). The sum is tiled over the row.
    `singleton` is the rule for a group of one leaf, be it a tree or the whole prompt.
    """
    results = outcomes(tree, binary=binary)
    advantages = dict(zip(results, _standardised(list(results.values()), singleton), strict=True))
    for leaves in tree.trees_by_bare():
        intra = _standardised([results[leaf] for leaf in leaves], singleton)
        for leaf, advantage in zip(leaves, intra, strict=True):
            advantages[leaf] += advantage
    return TreeCredit(_rows_tiled(tree, advantages))


def flat_grpo(tree: RolloutTree, *, binary: bool = False) -> TreeCredit:
    """GRPO's credit, all leaves of the prompt as one flat group: A = (R - mean) / (std + 1e-6), tiled over the row.

    The std is that of a sample; a single leaf has 0. Meant for trees of bare rollouts alone (design, section 10).
    """
    results = outcomes(tree, binary=binary)
    advantages = _standardised(list(results.values()), Singleton.ZERO)
    return TreeCredit(_rows_tiled(tree, dict(zip(results, advantages, strict=True))))


def _finished_children(tree: RolloutTree) -> list[list[int]]:
    """The children with a leaf at or below them: of the root first, then of each node in order of index."""
    below = tree.leaves_below()
    return [[child for child in tree.children(node) if below[child]] for node in range(ROOT, len(tree.nodes))]


def _as_probabilities(results: Mapping[int, float]) -> dict[int, float]:
    """Outcomes in [0, 1]: as they are if they lie there, otherwise mapped as `tree_rpo` says."""
    bounds = (0.0, 1.0, *results.values())
    low, high = min(bounds), max(bounds)
    return {leaf: (value - low) / (high - low) for leaf, value in results.items()}


def _child_mean(tree: RolloutTree, results: Mapping[int, float]) -> dict[int, float]:
    children = _finished_children(tree)[1:]
    values: dict[int, float] = {}
    for node in reversed(range(len(tree.nodes))):
        if node in results:
            values[node] = results[node]
        elif children[node]:
            values[node] = mean([values[child] for child in children[node]])
    return values


def _leaf_mean(tree: RolloutTree, results: Mapping[int, float]) -> dict[int, float]:
    *below, _ = tree.leaves_below()
    return {node: mean([results[leaf] for leaf in leaves]) for node, leaves in enumerate(below) if leaves}


_BACKUPS: dict[Backup, Callable[[RolloutTree, Mapping[int, float]], dict[int, float]]] = {
    Backup.CHILD_MEAN: _child_mean,
    Backup.LEAF_MEAN: _leaf_mean,
}
_DIVISORS: dict[Denominator, Callable[[float], float]] = {
    Denominator.BERNOULLI_VAR: lambda mu: mu * (1 - mu) + EPSILON,
    Denominator.BERNOULLI_STD: lambda mu: math.sqrt(mu * (1 - mu)) + EPSILON,
    Denominator.NONE: lambda mu: 1.0,
}


def _standardised(values: Sequence[float], singleton: Singleton) -> list[float]:
    if len(values) < 2:
        return [value / (1 + EPSILON) if singleton == Singleton.UPSTREAM else 0.0 for value in values]
    center = mean(values)
    std = math.sqrt(math.fsum((value - center) ** 2 for value in values) / (len(values) - 1))
    return [(value - center) / (std + EPSILON) for value in values]


def _rows_once(tree: RolloutTree, advantages: Sequence[float]) -> tuple[Row, ...]:
    """Rows of per-node advantages, in which a node is trained by the first row it is part of."""
    rows = []
    trained: set[int] = set()
    for leaf in tree.leaves():
        path = tree.path(leaf)
        own: list[float] = []
        mask: list[bool] = []
        for node in path:
            fresh, n_tokens = node not in trained, len(tree.nodes[node].action)
            own += [advantages[node] if fresh else 0.0] * n_tokens
            mask += [fresh] * n_tokens
        trained.update(path)
        rows.append(Row(leaf, tuple(own), tuple(mask)))
    return tuple(rows)


def _rows_tiled(tree: RolloutTree, advantages: Mapping[int, float]) -> tuple[Row, ...]:
    """Rows with one advantage each, in which every token is trained."""
    rows = []
    for leaf, advantage in advantages.items():
        n_tokens = sum(len(tree.nodes[node].action) for node in tree.path(leaf))
        rows.append(Row(leaf, (advantage,) * n_tokens, (True,) * n_tokens))
    return tuple(rows)
