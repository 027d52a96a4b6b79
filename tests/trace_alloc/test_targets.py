import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_alloc.targets import (
    EffectiveRatio,
    PredictorExample,
    RootTarget,
    activated,
    effective_ratio,
    leaf_mean,
    mean,
    outcome,
    predictor_examples,
    sample_prefix_examples,
)
from trace_alloc.tree import ROOT

from .trees import any_rewards, fractions, node, plant, rollout_trees, worked_example


def weighted_recursion(tree, value_of):
    """Section 4 as written: n and V from the children up, in fractions."""

    def visit(index):
        if index != ROOT and tree.nodes[index].terminal:
            return 1, value_of(tree.nodes[index].reward)
        parts = [visit(child) for child in tree.children(index)]
        n = sum(count for count, _ in parts)
        return n, sum(count * value for count, value in parts) / n if n else Fraction(0)

    return [visit(index) for index in [*range(len(tree.nodes)), ROOT]]


def test_worked_example():
    tree, at = worked_example()
    targets = leaf_mean(tree)
    assert [targets[at[name]] for name in ("A2", "A1", "B1")] == [1 / 2, 2 / 5, 0]
    assert targets[ROOT] == 1 / 3
    root, prefixes = predictor_examples(tree)
    assert root == PredictorExample(group_id="worked", node=ROOT, target=1 / 3, n_leaves=6)
    assert [(e.node, e.target, e.n_leaves) for e in prefixes] == [(at["A1"], 2 / 5, 5), (at["A2"], 1 / 2, 2)]
    unbiased, same = predictor_examples(tree, root_target=RootTarget.BARE_MEAN)
    assert (unbiased.target, unbiased.n_leaves) == (1 / 2, 2) and same == prefixes
    assert activated(tree) and activated(tree, at["A2"]) and not activated(tree, at["B1"])


@given(rollout_trees(rewards=fractions))
def test_targets_are_the_weighted_recursion(tree):
    for binary, value_of in ((True, lambda r: Fraction(r > 0)), (False, Fraction)):
        for found, (n, value) in zip(leaf_mean(tree, binary=binary), weighted_recursion(tree, value_of), strict=True):
            assert found is None if n == 0 else found == pytest.approx(float(value), abs=1e-12)


@given(rollout_trees(rewards=any_rewards))
def test_targets_stay_between_the_outcomes_and_finite(tree):
    for binary in (True, False):
        values = [outcome(n.reward, binary=binary) for n in tree.nodes if n.terminal]
        for target in leaf_mean(tree, binary=binary):
            assert target is None or (math.isfinite(target) and min(values) <= target <= max(values))


@given(st.floats(-1e100, 1e100), st.integers(1, 9))
def test_the_mean_of_equal_numbers_is_that_number(value, n):
    assert mean([value] * n) == value


def test_outcomes_are_binary_unless_asked_otherwise():
    assert [outcome(r) for r in (-0.2, 0.0, 0.31, 1.0, 1e308)] == [0, 0, 1, 1, 1]
    assert [outcome(r, binary=False) for r in (-0.2, 0.31, -1e308)] == [-0.2, 0.31, -1e100]


@given(rollout_trees(rewards=fractions))
def test_examples_are_the_histories_with_two_or_more_leaves(tree):
    targets, below = leaf_mean(tree), tree.leaves_below()
    root, prefixes = predictor_examples(tree)
    assert (root is None) == (len(tree.leaves()) < 2)
    assert [e.node for e in prefixes] == [i for i in range(len(tree.nodes)) if len(below[i]) >= 2]
    for e in [*prefixes, *([root] if root else [])]:
        assert e.target == targets[e.node] and e.n_leaves == len(below[e.node]) and e.group_id == tree.group_id
    bare = [outcome(n.reward) for n in tree.nodes if n.bare and n.terminal]
    unbiased, _ = predictor_examples(tree, root_target=RootTarget.BARE_MEAN)
    assert (unbiased is None) == (len(bare) < 2)
    assert unbiased is None or unbiased.target == pytest.approx(sum(bare) / len(bare))


@given(
    st.integers(0, 300), st.lists(st.integers(), unique=True, max_size=40), st.floats(0, 0.9), st.integers(0, 2**40)
)
def test_drawn_prefixes_have_their_share(n_root, candidates, share, seed):
    drawn = sample_prefix_examples(n_root, candidates, share=share, seed=seed)
    assert drawn == sample_prefix_examples(n_root, candidates, share=share, seed=seed)
    assert [c for c in candidates if c in drawn] == drawn  # none twice, and in order
    if share == 0 or not candidates:
        assert drawn == []
    elif 1 < len(drawn) < len(candidates):
        assert len(drawn) / (len(drawn) + n_root) == pytest.approx(share, abs=0.5 / max(n_root, 1))
    else:
        assert len(drawn) >= 1


def test_six_percent_of_the_batch_by_default_and_every_candidate_equally_likely():
    assert len(sample_prefix_examples(94, range(50), seed=0)) == 6
    assert len(sample_prefix_examples(10, range(50), share=0.5, seed=0)) == 10
    assert len(sample_prefix_examples(1, range(50), seed=0)) == 1
    assert sample_prefix_examples(940, "ab", seed=0) == ["a", "b"]
    hits = [sum(i in sample_prefix_examples(94, range(12), seed=seed) for seed in range(2000)) for i in range(12)]
    assert all(abs(h - 1000) < 5 * math.sqrt(2000 * 0.25) for h in hits)


@pytest.mark.parametrize(("n_root", "share"), [(-1, 0.06), (4, 1.0), (4, -0.1), (4, math.nan)])
def test_impossible_shares_are_refused(n_root, share):
    with pytest.raises(ValueError):
        sample_prefix_examples(n_root, [1], share=share, seed=0)


def test_effective_ratios_count_finished_prompts_and_expanded_prefixes():
    mixed, at = worked_example()
    equal = plant(node(), node(0, reward=1.0), node(0, bare=False, reward=1.0))  # an expanded prefix without contrast
    running = plant(node(), node(0))
    assert effective_ratio([mixed, equal, running]) == EffectiveRatio(prompt=1 / 2, anchor=(5 + 2) / (5 + 2 + 2))
    assert effective_ratio([running]) == effective_ratio([]) == EffectiveRatio(None, None)
    assert effective_ratio([plant(node(reward=0.0), node(reward=0.0))]) == EffectiveRatio(0.0, None)


def test_unequal_successes_are_contrast_for_the_optimizer_only():
    tree = plant(node(), node(0, reward=0.5), node(0, bare=False, reward=1.0))
    assert not activated(tree) and activated(tree, binary=False) and activated(tree, 0, binary=False)
    assert effective_ratio([tree]) == EffectiveRatio(0.0, 0.0)
    assert effective_ratio([tree], binary=False) == EffectiveRatio(1.0, 1.0)


@given(st.lists(rollout_trees(rewards=fractions), max_size=4))
def test_effective_ratio_by_counting(trees):
    ratio = effective_ratio(trees)
    shown = [{t.nodes[i].reward > 0 for i in t.leaves()} for t in trees if t.leaves()]
    assert ratio.prompt == (None if not shown else sum(len(s) == 2 for s in shown) / len(shown))
    hits = total = 0
    for tree in trees:
        for index in range(len(tree.nodes)):
            paths = [tree.path(leaf) for leaf in tree.leaves() if index in tree.path(leaf)[:-1]]
            if len({path[path.index(index) + 1] for path in paths}) >= 2:
                total += len(paths)
                hits += len(paths) * (len({tree.nodes[path[-1]].reward > 0 for path in paths}) == 2)
                assert activated(tree, index) == (len({tree.nodes[path[-1]].reward > 0 for path in paths}) == 2)
    assert ratio.anchor == (None if not total else hits / total)


def exact_chain(tree, weight):
    """P1 and P2 on a finished tree with transition weights: every (probability, V_0 ... V_T = Z) path, V exact."""
    value = {}
    for index in [*reversed(range(len(tree.nodes))), ROOT]:
        if index != ROOT and tree.nodes[index].terminal:
            value[index] = Fraction(tree.nodes[index].reward)
        else:
            children = tree.children(index)
            total = sum(weight[c] for c in children)
            value[index] = sum(weight[c] * value[c] for c in children) / total
    paths = []
    for leaf in tree.leaves():
        path, probability = tree.path(leaf), Fraction(1)
        for parent, child in zip([ROOT, *path], path, strict=False):
            probability *= Fraction(weight[child], sum(weight[c] for c in tree.children(parent)))
        paths.append((probability, [value[i] for i in [ROOT, *path]]))
    return value, paths


def check_propositions(paths):
    assert sum(p for p, _ in paths) == 1
    depth = max(len(values) for _, values in paths)
    padded = [(p, values + values[-1:] * (depth - len(values))) for p, values in paths]
    root = padded[0][1][0]
    assert sum(p * sum((b - a) ** 2 for a, b in zip(v, v[1:], strict=False)) for p, v in padded) == root * (1 - root)
    errors = [sum(p * (v[-1] - v[t]) ** 2 for p, v in padded) for t in range(depth)]
    for t, (before, after) in enumerate(zip(errors, errors[1:], strict=False)):
        assert after <= before
        assert (after < before) == any(v[t + 1] != v[t] for p, v in padded if p)


finished_trees = rollout_trees(finished=True).filter(lambda tree: tree.leaves())


@given(finished_trees, st.integers(0, 2**32))
def test_prefix_values_are_a_martingale_that_only_gains_information(tree, seed):
    """Paper, Propositions 1 and 2 (Eq. 9), with random exact transition probabilities."""
    rng = random.Random(seed)
    _, paths = exact_chain(tree, [rng.randint(1, 9) for _ in tree.nodes])
    check_propositions(paths)


@given(finished_trees)
def test_targets_are_the_values_when_every_leaf_is_equally_likely(tree):
    """So the propositions hold for `leaf_mean` itself, as far as floats go."""
    value, paths = exact_chain(tree, [len(leaves) for leaves in tree.leaves_below()[:-1]])
    check_propositions(paths)
    assert {p for p, _ in paths} == {Fraction(1, len(tree.leaves()))}
    targets = leaf_mean(tree)
    for index in range(ROOT, len(tree.nodes)):
        assert targets[index] == pytest.approx(float(value[index]), abs=1e-12)
