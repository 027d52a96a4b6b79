"""A drawn group as a rollout tree: nodes, rows, credit, what the predictor learns from it.

Invariant: the tree holds every generated token of the group once, and row i of the group is the path to `leaves[i]`;
so per-token credit of the tree fits the rows as they are trained.

In: a group's responses, which say where they were branched (`tree`). Out: `GrownTree`. Source: trace.md 4-6.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trace_alloc import credit
from trace_alloc.config import TraceConfig
from trace_alloc.predictor import Anchor, Example
from trace_alloc.serialisation import serialise
from trace_alloc.targets import PredictorExample, RootTarget, predictor_examples
from trace_alloc.tree import ROOT, Node, RolloutTree

Response = dict[str, Any]


@dataclass(frozen=True)
class GrownTree:
    """`leaves` are the nodes in which the rows end, `ends` those with which an answer of the engine ends; `key` names
    the prompt, `notes` is what the rollout side says."""

    tree: RolloutTree
    leaves: tuple[int, ...]
    ends: frozenset[int]
    key: str
    notes: dict[str, Any]

    def rows(self, config: TraceConfig) -> list[credit.Row]:
        """Advantages and masks of the rows, in their order."""
        by_leaf = {row.leaf: row for row in _credit(self.tree, config).rows}
        return [by_leaf[leaf] for leaf in self.leaves]

    def examples(
        self, config: TraceConfig, decode: Callable[[list[int]], str], *, prompt: str
    ) -> tuple[list[Example], list[Example]]:
        """What the predictor can learn: the prompt (or nothing, with one leaf), and prefixes.

        `prompt` is the data set's, by which prompts are scored: an agent may put more before its first turn.
        """
        root, prefixes = predictor_examples(self.tree, root_target=RootTarget(config.root_target))

        def example(found: PredictorExample) -> Example:
            turn = len(self.ends.intersection(self.tree.path(found.node)))
            text = serialise(prompt if found.node == ROOT else decode(self.tree.tokens(found.node)), turn=turn)
            return Example(anchor=Anchor(key=self.key, turn=turn, text=text), target=found.target)

        return [example(root)] if root else [], [example(found) for found in prefixes]

    def prefix_at(self, parent: int, n_given: int) -> int:
        """The node in which a prefix of row `parent` ends."""
        return _after(self.tree, self.leaves[parent], n_given)


def grown(group_id: str, responses: Sequence[Response], *, key: str) -> GrownTree:
    """The tree of a group. A response without a branch is a bare rollout; its parent, if any, comes before it."""
    first = responses[0]
    start_of_first = next((begin for begin, end in first["action_ranges"] if end > begin), 0)
    prompt = first["observation_tokens"][:start_of_first]
    tree = RolloutTree(group_id=group_id, prompt=tuple(prompt))
    cuts: dict[int, set[int]] = {}
    for response in responses:
        place = response.get("tree") or {}
        if place.get("parent") is not None:
            cuts.setdefault(place["parent"], set()).add(place["n_given"])
    leaves: list[int] = []
    ends: set[int] = set()
    for row, response in enumerate(responses):
        place = response.get("tree") or {}
        parent, n_given = place.get("parent"), place.get("n_given", 0)
        start = ROOT if parent is None else _after(tree, leaves[parent], n_given)
        leaves.append(_grow(tree, start, response, n_given, cuts.get(row, set()), ends))
    return GrownTree(tree, tuple(leaves), frozenset(ends), key, (first.get("tree") or {}).get("notes", {}))


def _grow(tree: RolloutTree, start: int, response: Response, n_given: int, cuts: set[int], ends: set[int]) -> int:
    """Adds the nodes of a response behind its first `n_given` generated tokens; the last one's index. Those with which
    an answer ends are added to `ends`."""
    tokens, versions, logprobs = (response[name] for name in ("observation_tokens", "versions", "rollout_log_probs"))
    ranges = [
        (begin, min(end, len(tokens))) for begin, end in response["action_ranges"] if begin < min(end, len(tokens))
    ]
    pieces: list[tuple[int, int, int, bool]] = []  # first and last token, end of the observation, whether it is whole
    made = 0
    for i, (begin, end) in enumerate(ranges):
        following = ranges[i + 1][0] if i + 1 < len(ranges) else len(tokens)
        inner = sorted(begin + cut - made for cut in cuts | {n_given} if made < cut < made + end - begin)
        for left, right in zip([begin, *inner], [*inner, end], strict=True):
            if made + left - begin >= n_given:
                whole = right not in inner
                pieces.append((left, right, following if whole else right, whole))
        made += end - begin
    if not pieces:
        raise ValueError(f"group {tree.group_id}: a continuation has no token of its own")
    for piece in pieces:
        left, right, following, whole = piece
        start = tree.add(
            Node(
                parent=start,
                action=tuple(tokens[left:right]),
                logprobs=tuple(map(float, logprobs[left:right])),
                versions=tuple(version if version >= 0 else None for version in versions[left:right]),
                observation=tuple(tokens[right:following]),
                reward=float(response["reward"]) if piece is pieces[-1] else None,
                bare=n_given == 0,
            )
        )
        if whole:
            ends.add(start)
    return start


def _after(tree: RolloutTree, leaf: int, n_given: int) -> int:
    """The node on the way to `leaf` behind which `n_given` generated tokens lie."""
    made = 0
    for node in tree.path(leaf):
        made += len(tree.nodes[node].action)
        if made == n_given:
            return node
    raise ValueError(f"group {tree.group_id} was branched after {n_given} tokens, where no node ends")


def _credit(tree: RolloutTree, config: TraceConfig) -> credit.TreeCredit:
    binary = config.binary_policy_reward
    if config.credit == "tree_rpo":
        return credit.tree_rpo(
            tree,
            denominator=credit.Denominator(config.denominator),
            backup=credit.Backup(config.backup),
            prune=config.prune,
            binary=binary,
        )
    if config.credit == "tree_grpo":
        return credit.tree_grpo(tree, singleton=credit.Singleton(config.singleton), binary=binary)
    return credit.flat_grpo(tree, binary=binary)
