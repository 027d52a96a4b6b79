"""Rollout trees to test with: a builder that names its nodes, the worked example, and random trees."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from trace_alloc.tree import ROOT, Node, RolloutTree

# No deadline: the machines that run these are shared, and a slow example is not a failure.
settings.register_profile("trace", max_examples=60, deadline=None)
settings.load_profile("trace")

binary_rewards = st.sampled_from([0.0, 1.0])
fractions = st.one_of(binary_rewards, st.floats(0, 1))
any_rewards = st.floats(allow_nan=False, allow_infinity=False)


def node(parent: int = ROOT, *, bare: bool = True, n_tokens: int = 2, **fields: Any) -> Node:
    """A turn of `n_tokens` generated tokens, with log-probs and versions to match."""
    action = fields.pop("action", tuple(range(10, 10 + n_tokens)))
    return Node(
        parent=parent,
        action=action,
        logprobs=fields.pop("logprobs", tuple(-0.1 * (i + 1) for i in range(len(action)))),
        versions=fields.pop("versions", (3,) * len(action)),
        bare=bare,
        **fields,
    )


def plant(*nodes: Node, prompt: tuple[int, ...] = (1, 2, 3)) -> RolloutTree:
    """A tree of these nodes."""
    return RolloutTree("g0", prompt, list(nodes))


def named_tree(turns: dict[str, tuple[str | None, float | None]], *, bare: str) -> tuple[RolloutTree, dict[str, int]]:
    """A tree from {name: (name of the parent, reward)}, and the index of each name.

    Names in `bare` (separated by blanks) are turns of bare rollouts. Turn i has i % 3 + 1 generated tokens.
    """
    tree, at = RolloutTree("worked", (7, 8)), {}
    for i, (name, (parent, reward)) in enumerate(turns.items()):
        at[name] = tree.add(
            node(
                ROOT if parent is None else at[parent],
                bare=name in bare.split(),
                n_tokens=i % 3 + 1,
                observation=() if reward is not None else (50, 51),
                reward=reward,
            )
        )
    return tree, at


def worked_example() -> tuple[RolloutTree, dict[str, int]]:
    """Design, 13.3: two bare rollouts A and B, three continuations after A1 and one after A2."""
    turns = {
        "A1": (None, None),
        "A2": ("A1", None),
        "A3": ("A2", 1.0),
        "B1": (None, None),
        "B2": ("B1", 0.0),
        "D": ("A2", 0.0),
        "C1": ("A1", 0.0),
        "C2": ("A1", 0.0),
        "C3": ("A1", 1.0),
    }
    return named_tree(turns, bare="A1 A2 A3 B1 B2")


@st.composite
def rollout_trees(
    draw: Any, *, rewards: Any = binary_rewards, finished: bool = False, max_bare: int = 4
) -> RolloutTree:
    """A random tree, empty ones included: bare rollouts, then continuations of any open node.

    Unless `finished`, some rollouts lack their reward. Continuations may start at continuations, which TRACE does not
    do, but the arithmetic allows.
    """
    tree = RolloutTree("random", tuple(range(draw(st.integers(0, 3)))))
    for _ in range(draw(st.integers(0, max_bare))):
        _grow(draw, tree, ROOT, bare=True, rewards=rewards, finished=finished)
    for _ in range(draw(st.integers(0, 6))):
        open_nodes = [i for i, n in enumerate(tree.nodes) if not (n.terminal or n.truncated)]
        if open_nodes:
            _grow(draw, tree, draw(st.sampled_from(open_nodes)), bare=False, rewards=rewards, finished=finished)
    return tree


def _grow(draw: Any, tree: RolloutTree, parent: int, *, bare: bool, rewards: Any, finished: bool) -> None:
    """A run of turns; what is in them follows from their index, so that only the shape is drawn."""
    n_turns = draw(st.integers(1, 4))
    done = finished or draw(st.integers(0, 4)) > 0
    for turn in range(1, n_turns + 1):
        i, last = len(tree.nodes), turn == n_turns
        n_tokens = i % 3 + 1
        parent = tree.add(
            node(
                parent,
                bare=bare,
                action=tuple((7 * i + k) % 5 for k in range(n_tokens)),
                logprobs=tuple(-((i + 1) / (k + 3)) for k in range(n_tokens)),
                versions=tuple((i + k) % 4 or None for k in range(n_tokens)),
                observation=tuple(range(i * 5 % 3)),
                reward=draw(rewards) if last and done else None,
                truncated=last and i % 4 == 0,
            )
        )
