import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_alloc.allocation import (
    SCORE_MARGIN,
    allocate_prefixes,
    allocate_prefixes_reference,
    allocate_roots,
    allocate_roots_reference,
    closest_roots,
    feasible_budget,
    prefix_utility,
    root_utility,
    same_outcome,
    uniform_prefixes,
    uniform_roots,
)

ROOT_SOLVERS = [allocate_roots, allocate_roots_reference]
PREFIX_SOLVERS = [allocate_prefixes, allocate_prefixes_reference]
# Ties, mirrored pairs, saturated and nearly equal scores are where a greedy method goes wrong.
GRIDS = [[0.0, 0.5, 1.0], [0.1, 0.9, 0.3, 0.7], [0.5], [0.49, 0.5, 0.51], [0.0, 1.0], [1e-5, 2e-4, 0.999, 0.02]]
scores = st.one_of(
    st.floats(0, 1), st.sampled_from([0.0, 1.0, 0.5, 0.25, 0.75, 0.1, 0.9, 1e-4, 1e-9, 1 / 3, 2 / 3, 0.5000001])
)


def root_value(values, counts):
    clipped = np.clip(values, SCORE_MARGIN, 1 - SCORE_MARGIN)
    return math.fsum(root_utility(clipped, counts))


def prefix_value(values, outcomes, counts):
    return math.fsum(prefix_utility(same_outcome(values, outcomes), counts))


def check_roots(values, budget, cap, seed=None):
    """The fast split is valid and as good as the dynamic program's; returns its value."""
    fast = allocate_roots(values, budget, cap, seed)
    assert len(fast) == len(values) and sum(fast) == budget
    assert all(type(m) is int and (m == 0 or 2 <= m <= cap) for m in fast)
    value = root_value(values, fast)
    exact = root_value(values, allocate_roots_reference(values, budget, cap, seed))
    assert value == pytest.approx(exact, rel=1e-9, abs=1e-9)
    return value


@st.composite
def root_problems(draw, most=10, cap=9):
    values = draw(st.lists(scores, max_size=most))
    cap = draw(st.integers(1, cap))
    return values, feasible_budget(len(values), draw(st.integers(0, len(values) * cap + 2)), cap), cap


def random_scores(rng, n):
    kind = rng.integers(5)
    if kind == 0:
        return rng.random(n)
    if kind == 1:
        return rng.beta(0.15, 0.15, n)
    if kind == 2:
        return np.round(rng.random(n), 1)
    if kind == 3:
        return 0.5 + rng.normal(0, 1e-3, n).clip(-0.5, 0.5)
    return rng.choice(GRIDS[rng.integers(len(GRIDS))], n)


@pytest.mark.parametrize("solve", ROOT_SOLVERS)
@pytest.mark.parametrize(
    ("values", "budget", "cap", "optima", "value"),
    [
        pytest.param([0.5, 0.9, 0.1, 0.02], 8, 8, [[4, 2, 2, 0]], 1.2350, id="R1"),
        pytest.param([0.5, 0.1], 4, 4, [[4, 0]], 0.8750, id="R2"),
        pytest.param([0.5, 0.4, 0.97], 3, 4, [[3, 0, 0]], 0.7500, id="R3"),
        pytest.param([0.5, 0.4, 0.97], 7, 7, [[4, 3, 0]], 1.5950, id="R4"),
        pytest.param([0.2, 0.5, 0.8, 0.95, 0.05], 10, 4, [[3, 4, 3, 0, 0]], 1.8350, id="R5"),
        pytest.param([0.5, 0.35, 0.12], 6, 6, [[3, 3, 0]], 1.4325, id="R6"),
        pytest.param([0.32, 0.67], 4, 4, [[2, 2]], 0.8774, id="R7"),
        pytest.param([0.5, 0.5], 5, 5, [[2, 3], [3, 2]], 1.2500, id="R8"),
        pytest.param([0.0, 1.0], 4, 4, [[4, 0], [2, 2], [0, 4]], 0.0, id="R9"),
    ],
)
def test_worked_examples_of_root_allocation(solve, values, budget, cap, optima, value):
    for seed in (None, 0, 1, 2):
        counts = solve(values, budget, cap, seed)
        assert counts in optima
        assert root_utility(values, counts).sum() == pytest.approx(value, abs=5e-5)


@pytest.mark.parametrize("solve", ROOT_SOLVERS)
@pytest.mark.parametrize(
    ("values", "budget", "cap", "message"),
    [
        pytest.param([0.5, 0.45], 1, 4, "a root budget of 1 .* single rollout .* below is 0", id="R10"),
        pytest.param([0.3], 5, 4, "1 prompts take at most 4 each; .* below is 4", id="R11"),
        ([0.3, 0.2], 3, 2, "pairs only; .* below is 2"),
        ([0.3, 0.2], 5, 2, "2 prompts take at most 2 each; .* below is 4"),
        ([0.3, 0.2], 2, 1, "max_per_root 1 .* below is 0"),
        ([], 2, 4, "0 prompts take at most 4 each; .* below is 0"),
        ([0.3], -1, 4, "negative"),
        ([0.3], 0, 0, "max_per_root 0"),
        ([0.3, math.nan], 2, 4, r"scores must be in \[0, 1\]: 1 are not, the first is nan"),
        ([1.5, 0.2], 2, 4, "the first is 1.5"),
        ([-0.1, 0.2], 2, 4, "the first is -0.1"),
        ([math.inf, 0.2], 2, 4, "the first is inf"),
        ([[0.3, 0.2]], 2, 4, "one score per prompt"),
        (0.3, 2, 4, "one score per prompt"),
    ],
)
def test_root_budgets_and_scores_that_are_refused(solve, values, budget, cap, message):
    with pytest.raises(ValueError, match=message):
        solve(values, budget, cap)


@pytest.mark.parametrize("solve", ROOT_SOLVERS)
def test_root_budgets_of_nothing(solve):
    assert solve([], 0) == []
    assert solve([0.2, 0.5], 0) == [0, 0]
    assert solve([0.2, 0.5], 0, 1) == [0, 0]


@given(root_problems(), st.none() | st.integers(0, 2**31))
@settings(max_examples=400, deadline=None)
def test_root_allocation_is_as_good_as_the_dynamic_program(problem, seed):
    check_roots(*problem, seed)


def test_root_allocation_on_random_instances():
    rng = np.random.default_rng(0)
    for _ in range(2500):
        n, cap = int(rng.integers(1, 13)), int(rng.integers(2, 8))
        budget = feasible_budget(n, int(rng.integers(0, n * cap + 1)), cap)
        check_roots(random_scores(rng, n), budget, cap, int(rng.integers(1000)))


def test_root_allocation_at_every_budget():
    rng = np.random.default_rng(1)
    for cap in (2, 3, 4, 16):
        for _ in range(8):
            values = random_scores(rng, 5)
            for budget in range(5 * cap + 1):
                if feasible_budget(5, budget, cap) == budget:
                    check_roots(values, budget, cap)


def test_root_allocation_on_larger_pools():
    rng = np.random.default_rng(2)
    for n, budget in [(512, 1024), (300, 301), (100, 1500), (64, 1024), (400, 400), (200, 2)]:
        check_roots(random_scores(rng, n), budget, 16, 0)


@given(root_problems(most=4, cap=5))
@settings(max_examples=150, deadline=None)
def test_root_allocation_is_as_good_as_enumeration(problem):
    values, budget, cap = problem
    splits = itertools.product([0, *range(2, cap + 1)], repeat=len(values))
    best = max(root_value(values, split) for split in splits if sum(split) == budget)
    assert check_roots(values, budget, cap) == pytest.approx(best, rel=1e-9, abs=1e-9)


def test_a_large_pool_is_within_one_rollout_of_the_relaxed_optimum():
    values = np.random.default_rng(3).beta(0.3, 0.3, 20_000)
    counts = allocate_roots(values, 40_001, 16, 0)
    assert sum(counts) == 40_001 and set(counts) <= {0, *range(2, 17)}
    clipped = np.clip(values, SCORE_MARGIN, 1 - SCORE_MARGIN)[:, None]
    gains = np.diff(root_utility(clipped, np.arange(17)), axis=1)
    gains[:, :2] = clipped * (1 - clipped)  # as if a count of 1 were worth u
    relaxed = np.sort(gains, axis=None)[-40_001:].sum()
    assert relaxed - 1e-3 < root_value(values, counts) <= relaxed + 1e-8


@given(st.integers(0, 4), st.integers(0, 25), st.integers(1, 5))
def test_feasible_budget_is_the_largest_sum_of_allowed_counts(n, budget, cap):
    sums = {sum(split) for split in itertools.product([0, *range(2, cap + 1)], repeat=n)}
    assert feasible_budget(n, budget, cap) == max(total for total in sums if total <= budget)


@pytest.mark.parametrize(("n", "budget", "cap"), [(-1, 2, 4), (2, -1, 4), (2, 2, 0)])
def test_feasible_budget_refuses_nonsense(n, budget, cap):
    with pytest.raises(ValueError, match="negative"):
        feasible_budget(n, budget, cap)


@pytest.mark.parametrize("solve", ROOT_SOLVERS)
def test_equal_scores_are_settled_by_the_seed_and_not_by_their_place(solve):
    values = [0.9, 0.1, 0.1, 0.9, 0.9, 0.1]  # mirrored scores count as equal, however 1 - v is rounded
    splits = [solve(values, 6, 16, seed) for seed in range(60)]
    assert splits == [solve(values, 6, 16, seed) for seed in range(60)]
    assert all(sum(split[i] for split in splits) > 10 for i in range(6))
    assert solve(values, 6) == solve(values, 6)
    assert solve(values, 6, 16, np.random.default_rng(7)) == solve(values, 6, 16, 7)


@given(root_problems())
@settings(deadline=None)
def test_root_allocation_does_not_tell_success_from_failure(problem):
    values, budget, cap = problem
    mirrored = [1 - v for v in values]
    assert root_value(values, allocate_roots(values, budget, cap)) == pytest.approx(
        root_value(values, allocate_roots(mirrored, budget, cap)), abs=1e-9
    )


def test_saturated_scores_are_still_ranked():
    assert allocate_roots([0.0, 3e-4, 1.0, 1e-4], 3) == [0, 3, 0, 0]


@pytest.mark.parametrize("solve", PREFIX_SOLVERS)
@pytest.mark.parametrize(
    ("anchors", "budget", "cap", "optima", "value"),
    [
        pytest.param([(0.5, 1), (0.9, 1), (0.2, 1)], 4, 4, [[2, 0, 2]], 1.71, id="P1"),
        pytest.param([(0.7, 1), (0.9, 1), (0.6, 0), (0.3, 0)], 6, 6, [[2, 0, 2, 2]], 1.86, id="P2"),
        pytest.param([(0.7, 1), (0.9, 1), (0.6, 0), (0.3, 0)], 6, 2, [[2, 0, 2, 2]], 1.86, id="P2-cap"),
        pytest.param([(0.5, 1), (0.5, 0), (0.9, 1), (0.1, 0)], 4, 4, [[2, 2, 0, 0]], 1.50, id="P3"),
        pytest.param([(0.95, 1), (0.95, 0)], 3, 3, [[2, 1], [1, 2]], 1.0475, id="P4"),
        pytest.param([(1, 1), (0, 0)], 2, 4, [[2, 0], [1, 1], [0, 2]], 0.0, id="P5"),
    ],
)
def test_worked_examples_of_prefix_allocation(solve, anchors, budget, cap, optima, value):
    values, outcomes = zip(*anchors, strict=True)
    for seed in (None, 0, 1, 2):
        counts = solve(values, outcomes, budget, cap, seed)
        assert counts in optima
        assert prefix_value(values, outcomes, counts) == pytest.approx(value, abs=1e-9)


@given(
    st.lists(st.tuples(scores, st.sampled_from([0, 1, True, False])), min_size=1, max_size=8),
    st.integers(0, 30),
    st.none() | st.integers(1, 6),
    st.none() | st.integers(0, 2**31),
)
@settings(max_examples=400, deadline=None)
def test_prefix_allocation_is_as_good_as_the_dynamic_program(anchors, budget, cap, seed):
    values, outcomes = zip(*anchors, strict=True)
    fast = allocate_prefixes(values, outcomes, budget, cap, seed)
    exact = allocate_prefixes_reference(values, outcomes, budget, cap, seed)
    in_force = cap if cap is not None and len(anchors) * cap >= budget else budget
    for counts in (fast, exact):
        assert len(counts) == len(anchors) and sum(counts) == budget
        assert all(type(k) is int and 0 <= k <= in_force for k in counts)
    best = prefix_value(values, outcomes, exact)
    assert prefix_value(values, outcomes, fast) == pytest.approx(best, rel=1e-9, abs=1e-9)


def test_prefix_allocation_on_random_instances():
    rng = np.random.default_rng(4)
    for _ in range(1500):
        n, budget, cap = (int(x) for x in rng.integers((1, 0, 1), (12, 40, 7)))
        values, outcomes = random_scores(rng, n), rng.integers(0, 2, n)
        fast, exact = (solve(values, outcomes, budget, cap) for solve in PREFIX_SOLVERS)
        best = prefix_value(values, outcomes, exact)
        assert sum(fast) == budget and prefix_value(values, outcomes, fast) == pytest.approx(best, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("solve", PREFIX_SOLVERS)
def test_a_prefix_cap_that_is_too_small_is_raised_and_no_prefix_spends_nothing(solve):
    assert solve([0.5, 0.5], [0, 1], 8, 4) == [4, 4]
    assert solve([0.999, 0.5], [1, 1], 8, 4) == [4, 4]
    raised = solve([0.5, 0.999], [1, 1], 9, 4)
    assert sum(raised) == 9 and max(raised) > 5  # up to the budget, not to an equal share
    assert solve([0.3], [1], 7, None) == [7]
    assert solve([], [], 7) == [] == solve([], [], 0)
    assert solve([0.3, 0.4], [1, 0], 0) == [0, 0]


def test_equal_prefixes_share_the_budget():
    for seed in (None, 1, 2):
        assert sorted(allocate_prefixes([1.0, 1.0, 0.0], [1, 1, 0], 7, 4, seed)) == [2, 2, 3]
    drawn = [allocate_prefixes([0.7, 0.3, 0.7], [1, 0, 1], 1, 4, seed).index(1) for seed in range(60)]
    assert all(drawn.count(i) > 10 for i in range(3))


@pytest.mark.parametrize("solve", PREFIX_SOLVERS)
@pytest.mark.parametrize(
    ("values", "outcomes", "budget", "cap", "message"),
    [
        ([0.5, 0.4], [1], 2, 4, r"one score and one outcome per prefix, not shapes \(2,\) and \(1,\)"),
        ([[0.5]], [[1]], 2, 4, "per prefix"),
        ([0.5], [0.5], 2, 4, "outcomes must be 0 or 1"),
        ([0.5], [math.nan], 2, 4, "outcomes must be 0 or 1"),
        ([math.nan], [1], 2, 4, "the first is nan"),
        ([1.1], [1], 2, 4, "the first is 1.1"),
        ([0.5], [1], -1, 4, "budget -1"),
        ([0.5], [1], -1, None, "budget -1"),
        ([0.5], [1], 2, 0, "max_per_prefix 0"),
    ],
)
def test_prefix_budgets_and_scores_that_are_refused(solve, values, outcomes, budget, cap, message):
    with pytest.raises(ValueError, match=message):
        solve(values, outcomes, budget, cap)


@given(st.floats(0, 1), st.integers(0, 7))
@settings(deadline=None)
def test_the_utilities_are_probabilities_of_both_outcomes(v, count):
    """Proposition P3c: enumerating the outcomes of all rollouts."""
    both = opposite = 0.0
    for outcomes in itertools.product([0, 1], repeat=count):
        chance = math.prod(v if r else 1 - v for r in outcomes)
        both += chance * (len(set(outcomes)) == 2)
        opposite += chance * (0 in outcomes)
    assert root_utility(v, count) == pytest.approx(both, abs=1e-12)
    assert prefix_utility(v, count) == pytest.approx(opposite, abs=1e-12)  # the factual outcome is a success
    assert prefix_utility(same_outcome([1 - v], [0]), count) == pytest.approx(opposite, abs=1e-12)


def test_the_utilities_keep_their_digits_at_the_ends():
    assert root_utility(1e-18, 5) == pytest.approx(5e-18, rel=1e-12)
    assert root_utility(1 - 1e-12, 3) == pytest.approx(3e-12, rel=1e-3)
    assert prefix_utility(1 - 2.0**-50, 4) == pytest.approx(4 * 2.0**-50, rel=1e-12)
    assert prefix_utility([0.0, 0.0, 1.0, 1.0], [0, 3, 0, 3]).tolist() == [0.0, 1.0, 0.0, 0.0]
    assert root_utility([0.0, 1.0, 0.5, 0.5, 0.5], [9, 9, 0, 1, 10**6]).tolist() == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert root_utility([[0.2], [0.4]], [2, 3, 4]).shape == (2, 3)
    for utility in (root_utility, prefix_utility):
        for wrong in [(1.1, 2), (math.nan, 2), (0.5, -1), (0.5, 1.5), (0.5, math.nan)]:
            with pytest.raises(ValueError):
                utility(*wrong)


@given(st.lists(scores, min_size=1, max_size=30), st.integers(0, 120), st.integers(2, 5), st.integers(0, 99))
@settings(deadline=None)
def test_allocation_is_never_worse_than_uniform(values, budget, per_root, seed):
    """Proposition P3a, for both stages; also that the random split spends what it is given, and never on a single."""
    budget = 0 if budget == 1 else budget
    flat = uniform_roots(len(values), budget, per_root, seed=seed)
    assert sum(flat) == budget and 1 not in flat and len(flat) == len(values)
    assert flat == uniform_roots(len(values), budget, per_root, seed=seed)
    cap = max([per_root + 1, *flat])
    assert root_value(values, allocate_roots(values, budget, cap)) >= root_value(values, flat) - 1e-9
    outcomes = [i % 2 for i in range(len(values))]
    drawn = uniform_prefixes(len(values), budget, seed)
    assert sum(drawn) == budget and len(drawn) == len(values)
    ours = allocate_prefixes(values, outcomes, budget, None)
    assert prefix_value(values, outcomes, ours) >= prefix_value(values, outcomes, drawn) - 1e-9


@pytest.mark.parametrize(
    ("n", "budget", "counts"),
    [
        (5, 8, [0, 0, 0, 4, 4]),
        (5, 10, [0, 0, 2, 4, 4]),
        (5, 9, [0, 0, 0, 4, 5]),
        (5, 3, [0, 0, 0, 0, 3]),
        (3, 12, [4, 4, 4]),
        (3, 17, [5, 6, 6]),
        (2, 0, [0, 0]),
        (0, 0, []),
    ],
)
def test_uniform_roots_places_the_remainder(n, budget, counts):
    assert sorted(uniform_roots(n, budget, seed=3)) == counts


@pytest.mark.parametrize(("n", "budget", "per_root"), [(3, 1, 4), (0, 4, 4), (-1, 0, 4), (3, -4, 4), (3, 4, 1)])
def test_uniform_roots_refuses_what_it_cannot_spend(n, budget, per_root):
    with pytest.raises(ValueError, match="negative|0 can"):
        uniform_roots(n, budget, per_root, seed=0)


def test_uniform_draws_are_uniform():
    roots = np.sum([uniform_roots(6, 8, seed=seed) for seed in range(600)], axis=0)
    assert roots == pytest.approx(np.full(6, 800), rel=0.15)
    assert uniform_prefixes(4, 8000, 0) == pytest.approx([2000] * 4, rel=0.1)
    assert uniform_prefixes(0, 5, 0) == [] and uniform_prefixes(2, 0, 0) == [0, 0]
    for wrong in [(-1, 2), (2, -1)]:
        with pytest.raises(ValueError):
            uniform_prefixes(*wrong, 0)


def test_closest_roots_keeps_the_prompts_around_the_target():
    assert closest_roots([0.1, 0.45, 0.9, 0.6, 0.5], 3, 8) == [0, 8, 0, 8, 8]
    assert closest_roots([0.1, 0.45, 0.9, 0.6], 1, 4, target=0.8) == [0, 0, 4, 0]
    kept = [closest_roots([0.4, 0.6, 0.4, 0.6], 1, 2, 0.5, seed).index(2) for seed in range(80)]
    assert all(kept.count(i) > 8 for i in range(4))
    assert closest_roots([], 0, 4) == []
    for wrong in [([0.5], 2, 4), ([0.5], -1, 4), ([0.5], 1, 1), ([math.nan], 1, 4), ([[0.5]], 1, 4)]:
        with pytest.raises(ValueError):
            closest_roots(*wrong)
