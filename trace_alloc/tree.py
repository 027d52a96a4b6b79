"""The rollout tree of one prompt: bare rollouts, and continuations branched off their prefixes.

Invariants: a parent comes before its children, so one pass over the nodes is bottom-up or top-down without recursion.
Every bare rollout is a branch of its own from the root: two of them share no node, even where their tokens are equal.
A continuation reuses the very token ids of its prefix, because it stores none of them. A branch may lack its terminal
node: it is still running, or it failed. Such a tree can be saved and loaded, and what reads it leaves the branch out.

Node indices count from 0 in the order of `add`; `ROOT` = -1 is the prompt. A list with one entry per node and a last
one for the root can therefore be read at any index, ROOT included.

In: turns as the engines and environments return them. Out: exact token ids, anchors, leaves, plain state.
Source: paper, section 2 (turns, histories, bare rollouts, factual and counterfactual suffixes); the rest is design.
"""

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

ROOT = -1
State = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One complete turn (or one segment of tokens): what was generated, and the environment's tokens after it.

    `parent` is the index of the node before it, or ROOT. `action` holds the generated token ids, `logprobs` their
    behaviour log-probs and `versions` the policy version of each (None: not known); all three have the same length,
    at least 1. `observation` holds the environment's token ids, possibly none. `reward` is that of the whole history
    and makes the node terminal. `bare` tells a turn of a bare rollout from one of a continuation. `truncated` means
    that a limit ended the rollout here; such a turn is not continued, with a reward or without.
    Raises ValueError for numbers that cannot be, also for such that are not plain Python ones.
    """

    parent: int
    action: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int | None, ...]
    observation: tuple[int, ...] = ()
    reward: float | None = None
    bare: bool
    truncated: bool = False

    def __post_init__(self) -> None:
        if type(self.parent) is not int or self.parent < ROOT:
            raise ValueError(f"a parent is the index of a node or {ROOT}, got {self.parent!r}")
        _check_token_ids("action", self.action)
        _check_token_ids("observation", self.observation)
        if not self.action or not len(self.action) == len(self.logprobs) == len(self.versions):
            raise ValueError(
                "a turn has at least one generated token, and a log-prob and a version for each: got "
                f"{len(self.action)}, {len(self.logprobs)} and {len(self.versions)}"
            )
        if not isinstance(self.logprobs, tuple) or not all(map(_is_finite, self.logprobs)):
            raise ValueError("log-probs are a tuple of finite numbers")
        if not isinstance(self.versions, tuple) or not _are_counts(v for v in self.versions if v is not None):
            raise ValueError("versions are a tuple of integers from 0 on, or None where not known")
        if self.reward is not None and not _is_finite(self.reward):
            raise ValueError(f"a reward is a finite number, got {self.reward!r}")
        if not isinstance(self.bare, bool) or not isinstance(self.truncated, bool):
            raise ValueError(f"bare and truncated are flags, got {self.bare!r} and {self.truncated!r}")

    @property
    def terminal(self) -> bool:
        """Whether its history is complete and rewarded."""
        return self.reward is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """A visited, non-terminal prefix H_{i,j,t} of a complete bare rollout, with what came of it (paper, section 2).

    `node` is its last turn, `turn` is t = 1 ... T-1, `leaf` the terminal node of the same bare rollout and `reward`
    the factual reward there, as it came.
    """

    node: int
    turn: int
    leaf: int
    reward: float


@dataclass(slots=True)
class RolloutTree:
    """All rollouts of one prompt. `prompt` holds its token ids; given `nodes` are added one by one.

    Grows by `add` alone. Raises ValueError for ids that are not token ids, and whatever `add` raises.
    """

    group_id: str
    prompt: tuple[int, ...]
    nodes: list[Node] = field(default_factory=list)
    _children: list[list[int]] = field(init=False, repr=False, compare=False)  # of node i at i + 1

    def __post_init__(self) -> None:
        if not isinstance(self.group_id, str):
            raise ValueError(f"a group id is a string, got {self.group_id!r}")
        _check_token_ids("prompt", self.prompt)
        given, self.nodes, self._children = self.nodes, [], [[]]
        for node in given:
            self.add(node)

    def add(self, node: Node) -> int:
        """Appends a turn and returns its index.

        Raises ValueError when the parent is unknown or ended its rollout, when a bare turn follows anything but the
        root or the newest turn of its own bare rollout, and when a continuation starts at the root: a fresh rollout
        from there is a bare one (design, 3.1: t = 0 is no anchor).
        """
        if node.parent >= len(self.nodes):
            raise ValueError(f"tree {self.group_id} has {len(self.nodes)} nodes, but no node {node.parent}")
        if node.parent == ROOT:
            if not node.bare:
                raise ValueError(f"tree {self.group_id}: a continuation starts at a prefix, not at the root")
        else:
            parent = self.nodes[node.parent]
            if parent.terminal or parent.truncated:
                raise ValueError(f"tree {self.group_id}: node {node.parent} ended its rollout and has no continuation")
            if node.bare and (not parent.bare or any(self.nodes[c].bare for c in self.children(node.parent))):
                raise ValueError(f"tree {self.group_id}: node {node.parent} is not the last turn of a bare rollout")
        index = len(self.nodes)
        self.nodes.append(node)
        self._children.append([])
        self._children[node.parent + 1].append(index)
        return index

    def children(self, index: int) -> tuple[int, ...]:
        """The turns that follow node `index` (or the root), in the order they came."""
        return tuple(self._children[self._known(index) + 1])

    def leaves(self) -> list[int]:
        """The terminal nodes, in order of index."""
        return [index for index, node in enumerate(self.nodes) if node.terminal]

    def leaves_below(self) -> list[list[int]]:
        """The terminal nodes at or below each node and, in the last entry, the root; empty where none is done yet."""
        below: list[list[int]] = [[] for _ in range(len(self.nodes) + 1)]
        for leaf in self.leaves():
            for index in (ROOT, *self.path(leaf)):
                below[index].append(leaf)
        return below

    def path(self, index: int) -> list[int]:
        """The nodes from the first turn to node `index`, both included; nothing for the root."""
        path = []
        self._known(index)
        while index != ROOT:
            path.append(index)
            index = self.nodes[index].parent
        return path[::-1]

    def depth(self, index: int) -> int:
        """The number of turns up to node `index`; 0 for the root."""
        return len(self.path(index))

    def tokens(self, index: int) -> list[int]:
        """The exact token ids of the history that ends with node `index`: prompt, then actions and observations."""
        tokens = list(self.prompt)
        for i in self.path(index):
            tokens += self.nodes[i].action + self.nodes[i].observation
        return tokens

    def action_ranges(self, index: int) -> list[tuple[int, int]]:
        """Where the generated tokens stand in `tokens(index)`: one [start, end) per node of `path(index)`."""
        ranges, start = [], len(self.prompt)
        for i in self.path(index):
            end = start + len(self.nodes[i].action)
            ranges.append((start, end))
            start = end + len(self.nodes[i].observation)
        return ranges

    def anchors(self) -> list[Anchor]:
        """The prefixes that Stage 2 may expand, t = 1 ... T-1 of every complete bare rollout (paper, Eqs 14-16).

        A bare rollout without a reward yet has no factual outcome, and so no anchors.
        """
        return [
            Anchor(node=index, turn=turn, leaf=leaf, reward=node.reward)
            for leaf, node in enumerate(self.nodes)
            if node.bare and node.reward is not None
            for turn, index in enumerate(self.path(leaf)[:-1], start=1)
        ]

    def trees_by_bare(self) -> list[tuple[int, ...]]:
        """The leaves of each bare rollout and its continuations (Tree-GRPO's trees), aligned with `children(ROOT)`."""
        trees: dict[int, list[int]] = {first: [] for first in self.children(ROOT)}
        for leaf in self.leaves():
            trees[self.path(leaf)[0]].append(leaf)
        return [tuple(leaves) for leaves in trees.values()]

    @property
    def n_generated(self) -> int:
        """Tokens that the engines generated, each counted once, unfinished branches included."""
        return sum(len(node.action) for node in self.nodes)

    def to_state(self) -> State:
        """The tree as plain data that survives JSON; see `from_state`."""
        return {
            "group_id": self.group_id,
            "prompt": list(self.prompt),
            "nodes": [{f.name: _plain(getattr(node, f.name)) for f in fields(Node)} for node in self.nodes],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "RolloutTree":
        """Exact inverse of `to_state`. Raises ValueError for missing or unknown keys and for impossible contents."""
        _check_keys(state, ("group_id", "prompt", "nodes"), "a tree")
        nodes = [_node_from(node) for node in _listed(state["nodes"])]
        return cls(group_id=state["group_id"], prompt=_listed(state["prompt"]), nodes=nodes)

    def _known(self, index: int) -> int:
        if not ROOT <= index < len(self.nodes):
            raise IndexError(f"tree {self.group_id} has {len(self.nodes)} nodes, but no node {index}")
        return index


def _node_from(state: Mapping[str, Any]) -> Node:
    _check_keys(state, [f.name for f in fields(Node)], "a node")
    lists = {name: _listed(state[name]) for name in ("action", "logprobs", "versions", "observation")}
    return Node(**{**state, **lists})


def _check_keys(state: object, expected: Collection[str], owner: str) -> None:
    """Raises ValueError unless `state` is a mapping with exactly the `expected` keys."""
    if not isinstance(state, Mapping):
        raise ValueError(f"state of {owner} is a {type(state).__name__}, not a mapping")
    missing, unknown = sorted(set(expected) - state.keys()), sorted(map(str, state.keys() - set(expected)))
    if missing or unknown:
        raise ValueError(f"state of {owner}: missing {missing}, unknown {unknown}")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _listed(value: object) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"the state has a {type(value).__name__} where a list belongs")
    return tuple(value)


def _are_counts(values: Iterable[object]) -> bool:
    return all(type(value) is int and value >= 0 for value in values)


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and -sys.float_info.max <= value <= sys.float_info.max


def _check_token_ids(name: str, ids: object) -> None:
    if not isinstance(ids, tuple) or not _are_counts(ids):
        raise ValueError(f"{name} is a tuple of token ids, integers from 0 on")
