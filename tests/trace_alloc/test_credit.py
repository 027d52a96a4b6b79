import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_alloc.credit import Backup, Denominator, Singleton, flat_grpo, tree_grpo, tree_rpo
from trace_alloc.tree import ROOT, RolloutTree

from .trees import any_rewards, binary_rewards, fractions, node, plant, rollout_trees, worked_example

TILED = [tree_grpo, flat_grpo, lambda tree: tree_grpo(tree, singleton=Singleton.UPSTREAM)]
rpo_options = st.fixed_dictionaries(
    {
        "denominator": st.sampled_from(Denominator),
        "backup": st.sampled_from(Backup),
        "prune": st.sampled_from([0.0, 0.1, 0.5]),
    }
)


def by_node(tree, credit):
    """{node: (advantage, ...) of its tokens} from the row that trains each token, and how often each was trained."""
    found, times = {}, Counter()
    for row in credit.rows:
        at = 0
        for index in tree.path(row.leaf):
            for position in range(len(tree.nodes[index].action)):
                if row.mask[at]:
                    times[index, position] += 1
                    found.setdefault(index, {})[position] = row.advantages[at]
                at += 1
        assert at == len(row.advantages) == len(row.mask)
    return {index: tuple(tokens[p] for p in sorted(tokens)) for index, tokens in found.items()}, times


def scalars(tree, credit):
    """{leaf: its one advantage} of tiled rows."""
    assert all(len(set(row.advantages)) == 1 for row in credit.rows)
    return {row.leaf: row.advantages[0] for row in credit.rows}


def segment_credit(tree, *, denominator, backup, prune, rewards):
    """{node: advantage} of TreeRPO by explicit sets; None where rounding may decide.

    A node's segment starts at the nearest ancestor that has siblings with leaves.
    """
    leaves = [i for i, n in enumerate(tree.nodes) if n.reward is not None]
    lines = {leaf: set(tree.path(leaf)) for leaf in leaves}
    below = {i: frozenset(leaf for leaf in leaves if i in lines[leaf]) for i in range(len(tree.nodes))}

    def siblings(i):
        return [c for c, n in enumerate(tree.nodes) if n.parent == tree.nodes[i].parent and below[c]]

    def value(i):
        if i in rewards:
            return rewards[i]
        parts = [c for c, n in enumerate(tree.nodes) if n.parent == i and below[c]]
        if backup is Backup.LEAF_MEAN:
            return np.mean([rewards[leaf] for leaf in below[i]])
        return np.mean([value(c) for c in parts])

    result = {}
    for i in (i for i in below if below[i]):
        head = i
        while len(siblings(head)) == 1 and tree.nodes[head].parent != ROOT:
            head = tree.nodes[head].parent
        group = np.array([value(c) for c in siblings(head)])
        spread, variance = np.ptp(group), group.mean() * (1 - group).mean()
        scale = {Denominator.BERNOULLI_VAR: variance, Denominator.BERNOULLI_STD: np.sqrt(variance)}
        divisor = scale[denominator] + 1e-6 if denominator in scale else 1.0
        if abs(spread - prune) < 1e-9:
            result[i] = None  # rounding decides whether it is pruned
        else:
            result[i] = 0.0 if spread < prune else (value(head) - group.mean()) / divisor
    return result


def test_worked_example_tree_rpo():
    tree, at = worked_example()
    below = {"A2": 0.53333, "C1": -1.59999, "C2": -1.59999, "C3": 2.66666, "A3": 1.99999, "D": -1.99999}
    for backup, first in ((Backup.CHILD_MEAN, 1.23076), (Backup.LEAF_MEAN, 1.24999)):
        credit = tree_rpo(tree, backup=backup)
        found, _ = by_node(tree, credit)
        wanted = {"A1": first, "B1": -first, "B2": -first, **below}
        assert found.keys() == {at[name] for name in wanted}
        for name, advantage in wanted.items():
            assert found[at[name]] == pytest.approx([advantage] * len(tree.nodes[at[name]].action), abs=1e-5)
        assert credit.n_trained == tree.n_generated
    assert tree_rpo(tree) == tree_rpo(tree, backup=Backup.CHILD_MEAN, denominator=Denominator.BERNOULLI_VAR, prune=0.1)


def test_worked_example_trains_shared_prefixes_in_the_factual_row():
    tree, at = worked_example()
    masks = {row.leaf: row.mask for row in tree_rpo(tree).rows}
    assert all(masks[at["A3"]]) and all(masks[at["B2"]])
    for name in ("D", "C1", "C2", "C3"):
        own = len(tree.nodes[at[name]].action)
        assert masks[at[name]][-own:] == (True,) * own and not any(masks[at[name]][:-own])


@pytest.mark.parametrize("singleton", Singleton)
def test_worked_example_tree_grpo(singleton):
    tree, at = worked_example()
    wanted = {"A3": 2.3864, "D": -1.3758, "C1": -1.3758, "C2": -1.3758, "C3": 2.3864, "B2": -0.6455}
    found = scalars(tree, tree_grpo(tree, singleton=singleton))
    assert found == {at[name]: pytest.approx(value, abs=1e-4) for name, value in wanted.items()}
    flat = scalars(tree, flat_grpo(tree))
    assert flat[at["A3"]] == pytest.approx(1.2910, abs=1e-4) and flat[at["B2"]] == pytest.approx(-0.6455, abs=1e-4)


def test_singleton_rules_differ_when_the_lone_leaf_succeeds():
    tree = plant(node(reward=1.0), node(reward=0.0))
    zero, upstream = (scalars(tree, tree_grpo(tree, singleton=rule)) for rule in Singleton)
    assert upstream[0] - zero[0] == pytest.approx(1.0, abs=1e-5) and upstream[1] == zero[1]
    alone = plant(node(reward=1.0))
    assert scalars(alone, tree_grpo(alone)) == {0: 0.0}
    assert scalars(alone, tree_grpo(alone, singleton=Singleton.UPSTREAM)) == {0: pytest.approx(2.0, abs=1e-5)}


@given(rollout_trees(rewards=fractions), rpo_options)
def test_tree_rpo_trains_every_token_of_a_finished_branch_exactly_once(tree, options):
    credit = tree_rpo(tree, **options)
    _, times = by_node(tree, credit)
    finished = [i for i, leaves in enumerate(tree.leaves_below()[:-1]) if leaves]
    assert times == {(i, p): 1 for i in finished for p in range(len(tree.nodes[i].action))}
    assert credit.n_trained == len(times)
    masked = [a for row in credit.rows for a, m in zip(row.advantages, row.mask, strict=True) if not m]
    assert all(a == 0 for a in masked)


@given(rollout_trees(rewards=fractions))
def test_tiled_credit_trains_every_token_of_every_row(tree):
    lengths = {leaf: sum(end - start for start, end in tree.action_ranges(leaf)) for leaf in tree.leaves()}
    for credit in (f(tree) for f in TILED):
        assert [row.leaf for row in credit.rows] == tree.leaves()
        assert all(row.mask == (True,) * lengths[row.leaf] for row in credit.rows)
        scalars(tree, credit)


@given(rollout_trees(rewards=fractions), rpo_options, st.booleans())
def test_tree_rpo_by_explicit_segments(tree, options, binary):
    rewards = {i: float(n.reward > 0) if binary else n.reward for i, n in enumerate(tree.nodes) if n.terminal}
    wanted = segment_credit(tree, rewards=rewards, **options)
    found, _ = by_node(tree, tree_rpo(tree, binary=binary, **options))
    assert found.keys() == wanted.keys()
    for index, advantages in found.items():
        if wanted[index] is not None:
            assert advantages == pytest.approx([wanted[index]] * len(advantages), rel=1e-6, abs=1e-9)


@given(rollout_trees(rewards=fractions), st.sampled_from(Singleton), st.booleans())
def test_tree_grpo_by_numpy(tree, singleton, binary):
    rewards = np.array([float(n.reward > 0) if binary else n.reward for n in tree.nodes if n.terminal])
    owner = np.array([tree.path(leaf)[0] for leaf in tree.leaves()])

    def whitened(group):
        if len(group) == 1:
            return group * (singleton is Singleton.UPSTREAM)
        return (group - group.mean()) / (group.std(ddof=1) + 1e-6)

    inter = whitened(rewards) if len(rewards) else rewards
    intra = np.zeros_like(rewards)
    for bare in set(owner.tolist()):
        intra[owner == bare] = whitened(rewards[owner == bare])
    found = scalars(tree, tree_grpo(tree, singleton=singleton, binary=binary))
    assert list(found) == tree.leaves()
    np.testing.assert_allclose(list(found.values()), inter + intra, rtol=1e-5, atol=1e-5)
    if len(rewards) > 1:
        np.testing.assert_allclose(list(scalars(tree, flat_grpo(tree, binary=binary)).values()), inter, atol=1e-5)


@given(st.data(), any_rewards, rpo_options)
def test_equal_rewards_give_exactly_nothing(data, reward, options):
    tree = data.draw(rollout_trees(rewards=st.just(reward)))
    for credit in (tree_rpo(tree, **options), tree_grpo(tree), flat_grpo(tree)):
        assert all(a == 0.0 for row in credit.rows for a in row.advantages)


@given(rollout_trees(rewards=st.one_of(any_rewards, fractions, st.floats(-2, 2))), rpo_options)
def test_any_rewards_give_finite_credit_that_favours_the_better_sibling(tree, options):
    for credit in (tree_rpo(tree, **options), *(f(tree) for f in TILED)):
        assert all(math.isfinite(a) for row in credit.rows for a in row.advantages)
    rewards = {i: n.reward for i, n in enumerate(tree.nodes) if n.terminal}
    found, _ = by_node(tree, tree_rpo(tree, **options))
    for a in rewards:
        for b in rewards:
            if tree.nodes[a].parent == tree.nodes[b].parent and rewards[a] <= rewards[b]:
                assert found[a][0] <= found[b][0]


@given(
    rollout_trees(rewards=st.floats(-3, 3)), st.sampled_from([Denominator.BERNOULLI_VAR, Denominator.BERNOULLI_STD])
)
def test_rewards_outside_the_unit_interval_are_mapped_onto_it(tree, denominator):
    rewards = [n.reward for n in tree.nodes if n.terminal]
    low, high = min([0.0, *rewards]), max([1.0, *rewards])
    state = tree.to_state()
    for n in state["nodes"]:
        n["reward"] = None if n["reward"] is None else (n["reward"] - low) / (high - low)
    mapped = RolloutTree.from_state(state)
    assert tree_rpo(tree, denominator=denominator) == tree_rpo(mapped, denominator=denominator)


def test_penalties_below_zero_keep_a_sane_scale():
    """Clipping the mean to [0, 1] instead would divide by 1e-6 here, and not clipping it by a negative number."""
    tree = plant(node(reward=-0.2), node(reward=0.0), node(reward=-0.2))
    found, _ = by_node(tree, tree_rpo(tree))
    assert found[1][0] == pytest.approx((1 / 6 - 1 / 18) / (1 / 18 * 17 / 18 + 1e-6)) and found[0] == found[2]
    found, _ = by_node(tree, tree_rpo(tree, denominator=Denominator.NONE))
    assert found[1][0] == pytest.approx(0.2 * 2 / 3) and found[0][0] == pytest.approx(-0.2 / 3)


def test_pruned_groups_stay_in_the_loss_with_advantage_zero():
    tree = plant(node(reward=0.50), node(reward=0.55), node(), node(2, reward=0.52), node(2, bare=False, reward=0.58))
    credit = tree_rpo(tree)
    assert credit.n_trained == tree.n_generated
    assert not any(a for row in credit.rows for a in row.advantages)
    assert any(a for row in tree_rpo(tree, prune=0.05).rows for a in row.advantages)


def test_a_spread_of_exactly_the_threshold_is_kept():
    tree = plant(node(reward=0.25), node(reward=0.75))
    assert any(tree_rpo(tree, prune=0.5).rows[0].advantages) and not any(tree_rpo(tree, prune=0.51).rows[0].advantages)


def test_divisors_of_a_rare_success():
    """Where mu (1 - mu) is no larger than the 1e-6 beside it."""
    tree, mu = plant(node(reward=0.0), node(reward=2e-6)), 1e-6
    wanted = {Denominator.BERNOULLI_VAR: 1 / 2, Denominator.BERNOULLI_STD: 1e-6 / (1e-3 + 1e-6), Denominator.NONE: mu}
    for denominator, advantage in wanted.items():
        found, _ = by_node(tree, tree_rpo(tree, denominator=denominator, prune=0.0))
        assert found[1][0] == pytest.approx(advantage, rel=1e-5)


def test_a_pruned_root_group_does_not_silence_the_groups_below():
    tree = plant(node(), node(0, reward=1.0), node(0, bare=False, reward=0.0), node(reward=0.5))
    found, _ = by_node(tree, tree_rpo(tree))
    assert found[0] == found[3] == (0.0, 0.0) and found[1][0] == -found[2][0] == pytest.approx(2.0, abs=1e-4)


def test_unary_chains_are_one_segment():
    tree = plant(node(), node(0), node(1), node(2, reward=1.0), node(reward=0.0), node(1, bare=False, reward=0.0))
    found, _ = by_node(tree, tree_rpo(tree))
    assert found[0] == found[1] and found[2] == found[3] and found[0] != found[2]


def test_a_branch_without_an_end_is_as_if_it_were_not_there():
    with_gap = plant(
        node(), node(0, reward=1.0), node(0, bare=False), node(reward=0.0), node(), node(0, bare=False, truncated=True)
    )
    without = plant(node(), node(0, reward=1.0), node(reward=0.0))
    for credit in (tree_rpo, *TILED):
        rows = credit(with_gap).rows
        assert [row.leaf for row in rows] == [1, 3]
        assert [(r.advantages, r.mask) for r in rows] == [(r.advantages, r.mask) for r in credit(without).rows]


@pytest.mark.parametrize("tree", [plant(), plant(node()), plant(node(), node(0, truncated=True))])
def test_no_finished_branch_no_row(tree):
    for credit in (tree_rpo, *TILED):
        assert credit(tree).rows == () and credit(tree).n_trained == 0


def test_single_leaves_and_single_turns():
    for tree in (plant(node(reward=1.0)), plant(node(), node(0), node(1, reward=1.0))):
        for credit in (tree_rpo(tree, prune=0.0), tree_grpo(tree), flat_grpo(tree)):
            assert len(credit.rows) == 1 and not any(credit.rows[0].advantages) and all(credit.rows[0].mask)
    pair = plant(node(reward=1.0), node(reward=0.0))
    found, _ = by_node(pair, tree_rpo(pair))
    assert found[0] == pytest.approx([2.0, 2.0], abs=1e-4) and found[1] == pytest.approx([-2.0, -2.0], abs=1e-4)


@given(rollout_trees(rewards=binary_rewards))
def test_segments_of_a_group_cancel(tree):
    """Per group the advantages sum to 0: what one sibling gains, the others lose."""
    found, _ = by_node(tree, tree_rpo(tree, prune=0.0))
    for parent in range(ROOT, len(tree.nodes)):
        group = [found[c][0] for c in tree.children(parent) if c in found]
        if len(group) > 1:
            assert sum(group) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("prune", [-0.1, math.nan])
def test_impossible_thresholds_are_refused(prune):
    with pytest.raises(ValueError):
        tree_rpo(plant(), prune=prune)
