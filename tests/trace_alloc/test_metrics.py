"""The numbers of a batch of trees, by hand."""

import pytest

from trace_alloc.metrics import ScoredPrefix, ScoredTree, tree_metrics
from trace_alloc.tree import RolloutTree

from .trees import node, plant, worked_example


def flat(*rewards: float) -> RolloutTree:
    return plant(*[node(reward=reward) for reward in rewards])


def test_units_and_ratios_of_the_worked_example():
    tree, at = worked_example()
    prefixes = (
        ScoredPrefix(node=at["A1"], leaf=at["A3"], score=0.25),
        ScoredPrefix(node=at["A2"], leaf=at["A3"], score=0.5),
    )
    numbers = tree_metrics([ScoredTree(tree, 0.5, prefixes), ScoredTree(flat(1.0, 1.0, 1.0), 0.9, ())])
    assert numbers["trace/alloc/bare"] == 5 and numbers["trace/alloc/continuations"] == 4
    assert numbers["trace/alloc/roots_max"] == 3
    assert numbers["trace/cost/units"] == 5 + 4 / 2
    assert numbers["trace/effective_ratio/prompt"] == 0.5
    assert numbers["trace/effective_ratio/anchor"] == 1.0
    assert numbers["trace/cost/generated_tokens"] == tree.n_generated + 6
    root = (1 - 2 * 0.5**2 + 1 - 0.9**3 - 0.1**3) / 2
    assert numbers["trace/alloc/root_activation_predicted"] == pytest.approx(root)
    assert numbers["trace/alloc/root_activation_observed"] == 0.5
    # Below A1 are C1, C2, C3 and D, below A2 is D; the factual outcome is 1.
    assert numbers["trace/alloc/prefix_activation_predicted"] == pytest.approx((1 - 0.25**4 + 1 - 0.5) / 2)
    assert numbers["trace/alloc/prefix_activation_observed"] == 1.0
    pairs = [(0.5, 2 / 6), (0.9, 1.0), (0.25, 1 / 4), (0.5, 0.0)]
    assert numbers["trace/predictor/mse"] == pytest.approx(sum((p - y) ** 2 for p, y in pairs) / 4)
    assert numbers["trace/predictor/spearman_root"] == pytest.approx(1.0)
    assert numbers["trace/predictor/spearman_prefix"] == pytest.approx(-1.0)


def test_what_is_not_defined_is_left_out():
    numbers = tree_metrics([ScoredTree(flat(1.0), None, ())])
    assert numbers == {
        "trace/alloc/bare": 1.0,
        "trace/alloc/continuations": 0.0,
        "trace/alloc/roots_max": 1.0,
        "trace/effective_ratio/prompt": 0.0,
        "trace/cost/units": 1.0,
        "trace/cost/generated_tokens": 2.0,
    }


def test_no_trees_have_no_ratio():
    numbers = tree_metrics([])
    assert not [key for key in numbers if "ratio" in key or "activation" in key or "max" in key]
    assert numbers["trace/cost/units"] == 0.0


def test_a_single_bare_rollout_says_nothing_about_the_prompt():
    assert not [key for key in tree_metrics([ScoredTree(flat(1.0), 0.7, ())]) if "root_activation" in key]


def test_a_prefix_whose_continuations_all_failed_to_end_is_left_out():
    tree = plant(node(), node(0, reward=1.0), node(0, bare=False))
    numbers = tree_metrics([ScoredTree(tree, None, (ScoredPrefix(node=0, leaf=1, score=0.5),))])
    assert not [key for key in numbers if "prefix" in key]
