import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_alloc.tree import ROOT, Anchor, RolloutTree

from .trees import any_rewards, node, plant, rollout_trees, worked_example


def test_worked_example_is_read_as_drawn():
    tree, at = worked_example()
    names = {index: name for name, index in at.items()}
    assert [names[i] for i in tree.leaves()] == ["A3", "B2", "D", "C1", "C2", "C3"]
    assert [[names[i] for i in leaves] for leaves in tree.trees_by_bare()] == [["A3", "D", "C1", "C2", "C3"], ["B2"]]
    assert [names[i] for i in tree.children(at["A1"])] == ["A2", "C1", "C2", "C3"]
    assert [names[i] for i in tree.children(ROOT)] == ["A1", "B1"]
    assert [names[i] for i in tree.path(at["D"])] == ["A1", "A2", "D"]
    assert tree.depth(at["D"]) == 3 and tree.depth(ROOT) == 0 and tree.path(ROOT) == []
    assert tree.n_generated == sum(len(n.action) for n in tree.nodes)


def test_anchors_are_the_inner_prefixes_of_bare_rollouts_with_what_came_of_them():
    tree, at = worked_example()
    assert tree.anchors() == [
        Anchor(node=at["A1"], turn=1, leaf=at["A3"], reward=1.0),
        Anchor(node=at["A2"], turn=2, leaf=at["A3"], reward=1.0),
        Anchor(node=at["B1"], turn=1, leaf=at["B2"], reward=0.0),
    ]


def test_no_anchor_in_one_turn_rollouts_and_none_before_the_reward():
    assert plant(node(reward=1.0), node()).anchors() == []
    assert plant(node(), node(0)).anchors() == []


def test_tokens_of_a_history_are_the_ids_as_they_came():
    tree = plant(
        node(action=(10, 11), observation=(20,)),
        node(0, action=(12,), observation=(21, 22)),
        node(1, action=(13, 14, 15), reward=1.0),
        node(0, bare=False, action=(16,), observation=(23,), reward=0.0),
        prompt=(1, 2),
    )
    assert tree.tokens(ROOT) == [1, 2]
    assert tree.tokens(2) == [1, 2, 10, 11, 20, 12, 21, 22, 13, 14, 15]
    assert tree.action_ranges(2) == [(2, 4), (5, 6), (8, 11)]
    assert tree.tokens(3) == [1, 2, 10, 11, 20, 16, 23] and tree.action_ranges(3) == [(2, 4), (5, 6)]


@given(rollout_trees())
def test_ranges_hold_exactly_the_generated_tokens(tree):
    for index in (ROOT, *range(len(tree.nodes))):
        tokens, ranges, path = tree.tokens(index), tree.action_ranges(index), tree.path(index)
        assert [tuple(tokens[start:end]) for start, end in ranges] == [tree.nodes[i].action for i in path]
        length = sum(len(tree.nodes[i].action) + len(tree.nodes[i].observation) for i in path)
        assert len(tokens) == len(tree.prompt) + length
        for parent, child in zip([ROOT, *path], path, strict=False):
            assert child in tree.children(parent)
            assert tokens[: len(tree.tokens(parent))] == tree.tokens(parent)


@given(rollout_trees())
def test_every_leaf_belongs_to_one_bare_rollout_and_to_all_its_ancestors(tree):
    trees = tree.trees_by_bare()
    assert len(trees) == len(tree.children(ROOT))
    assert sorted(leaf for leaves in trees for leaf in leaves) == tree.leaves()
    below = tree.leaves_below()
    assert below[ROOT] == tree.leaves() and len(below) == len(tree.nodes) + 1
    assert Counter(leaf for leaves in below[:-1] for leaf in leaves) == {i: tree.depth(i) for i in tree.leaves()}
    for index, n in enumerate(tree.nodes):
        inner = [leaf for child in tree.children(index) for leaf in below[child]]
        assert below[index] == ([index] if n.terminal else sorted(inner))


@given(rollout_trees())
def test_anchors_lie_on_complete_bare_rollouts_only(tree):
    for anchor in tree.anchors():
        assert tree.nodes[anchor.node].bare and not tree.nodes[anchor.node].terminal
        assert tree.path(anchor.leaf)[anchor.turn - 1] == anchor.node
        assert tree.nodes[anchor.leaf].bare and tree.nodes[anchor.leaf].reward == anchor.reward
    complete = [i for i in tree.leaves() if tree.nodes[i].bare]
    assert len(tree.anchors()) == sum(tree.depth(i) - 1 for i in complete)


def test_bare_rollouts_share_no_node_even_with_equal_tokens():
    tree = plant(node(action=(5,)), node(0, reward=1.0), node(action=(5,)), node(2, reward=0.0))
    assert tree.children(ROOT) == (0, 2) and tree.trees_by_bare() == [(1,), (3,)]
    assert tree.tokens(0) == tree.tokens(2)


@pytest.mark.parametrize(
    "fields",
    [
        {"parent": -2},
        {"parent": True},
        {"action": ()},
        {"action": (-1,)},
        {"action": (1.0,)},
        {"action": [10, 11]},
        {"logprobs": (-0.1,)},
        {"logprobs": (-0.1, float("nan"))},
        {"logprobs": (-0.1, None)},
        {"versions": (3,)},
        {"versions": (3, -1)},
        {"observation": (True,)},
        {"reward": float("inf")},
        {"reward": 10**400},
        {"reward": "1"},
        {"bare": 1},
        {"truncated": None},
    ],
)
def test_impossible_turns_are_refused(fields):
    with pytest.raises(ValueError):
        node(**{"parent": ROOT, **fields})


@pytest.mark.parametrize(
    ("tree", "more"),
    [
        (plant(node()), node(1)),  # no such node
        (plant(node(reward=1.0)), node(0)),  # behind a reward
        (plant(node(truncated=True)), node(0)),  # behind a limit
        (plant(), node(bare=False)),  # a continuation without a prefix
        (plant(node(), node(0)), node(0)),  # a bare rollout does not branch
        (plant(node(), node(0, bare=False)), node(1)),  # nor go on from a continuation
    ],
)
def test_impossible_places_are_refused(tree, more):
    before = replace(tree)
    with pytest.raises(ValueError):
        tree.add(more)
    assert tree == before


def test_a_tree_does_not_grow_into_the_list_it_was_made_from():
    nodes = [node()]
    tree = RolloutTree("g0", (1,), nodes)
    tree.add(node(0, reward=1.0))
    assert len(nodes) == 1 and len(tree.nodes) == 2


def test_unknown_nodes_are_refused():
    tree = plant(node())
    for read in (tree.children, tree.path, tree.tokens, tree.action_ranges, tree.depth):
        for index in (1, -2):
            with pytest.raises(IndexError):
                read(index)


@given(rollout_trees(rewards=any_rewards))
def test_state_is_plain_and_comes_back_exactly(tree):
    state = tree.to_state()
    again = RolloutTree.from_state(json.loads(json.dumps(state, allow_nan=False)))
    assert again == tree and again.to_state() == state
    assert [again.children(i) for i in range(-1, len(tree.nodes))] == [
        tree.children(i) for i in range(-1, len(tree.nodes))
    ]


def test_a_loaded_half_built_tree_goes_on_like_the_original():
    tree = plant(node(), node(0), node())
    again = RolloutTree.from_state(tree.to_state())
    for grown in (tree, again):
        assert grown.add(node(1, reward=1.0)) == 3
        assert grown.add(node(0, bare=False)) == 4
    assert again == tree and tree.leaves() == [3]


def _state(**changes):
    return {**plant(node(), node(0, reward=1.0)).to_state(), **changes}


def _node_state(**changes):
    return _state(nodes=[{**_state()["nodes"][0], **changes}])


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        {},
        _state(more=1),
        _state(group_id=3),
        _state(prompt=None),
        _state(prompt="12"),
        _state(prompt=[1.5]),
        _state(nodes={}),
        _state(nodes=[None]),
        _state(nodes=[{}]),
        _state(nodes=_state()["nodes"][::-1]),  # children before parents
        _node_state(more=1),
        _node_state(action=3),
        _node_state(action=["10", "11"]),
        _node_state(logprobs=[-0.1]),
        _node_state(versions="33"),
        _node_state(parent=None),
        _node_state(reward=[]),
        _node_state(bare=None),
        {k: v for k, v in _state().items() if k != "prompt"},
    ],
)
def test_foreign_state_is_refused(state):
    with pytest.raises(ValueError):
        RolloutTree.from_state(state)


@given(st.data())
def test_any_missing_key_of_a_node_is_noticed(data):
    state = _state()
    nodes = [dict(n) for n in state["nodes"]]
    nodes[1].pop(data.draw(st.sampled_from(sorted(nodes[1]))))
    with pytest.raises(ValueError):
        RolloutTree.from_state({**state, "nodes": nodes})


def test_trees_may_be_thousands_of_nodes_deep():
    tree = RolloutTree("deep", ())
    for _ in range(4000):
        tree.add(node(len(tree.nodes) - 1))
    leaf = tree.add(node(len(tree.nodes) - 1, reward=1.0))
    assert tree.depth(leaf) == 4001 and len(tree.tokens(leaf)) == 8002 and len(tree.anchors()) == 4000
