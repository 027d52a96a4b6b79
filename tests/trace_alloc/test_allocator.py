"""What a round's plan may be: budgets, slots, baselines."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_alloc.allocation import allocate_prefixes, allocate_roots
from trace_alloc.allocator import plan_prefixes, plan_roots
from trace_alloc.config import TraceConfig

KINDS = ("trace", "random", "root_only", "prefix_only", "pcl", "flat")
scores = st.lists(st.floats(0, 1), min_size=0, max_size=30)


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    values=scores,
    n_start=st.integers(0, 12),
    budget=st.integers(0, 80),
    warm=st.booleans(),
    explore=st.sampled_from([0.0, 0.3]),
)
def test_a_round_stays_within_slots_and_budget(kind, values, n_start, budget, warm, explore):
    config = TraceConfig(allocation=kind, explore=explore)
    plan = plan_roots(config, values, n_start=n_start, budget=budget, warm=warm, seed=7)
    assert len(plan.counts) == len(values)
    active = [count for count in plan.counts if count]
    assert len(active) <= n_start and all(count >= 2 for count in active)
    assert sum(active) + plan.unspent == budget and plan.unspent >= 0
    assert plan == plan_roots(config, values, n_start=n_start, budget=budget, warm=warm, seed=7)
    room = min(n_start, len(values), budget // 2)
    if not config.flat:
        assert max(active, default=0) <= config.max_per_root
        spendable = room * config.max_per_root
        assert plan.unspent == max(0, budget - spendable) or (budget < 2 and plan.unspent == budget) or not room


def test_with_slots_for_all_the_plan_is_the_exact_one():
    values = [0.5, 0.9, 0.1, 0.02]
    plan = plan_roots(TraceConfig(), values, n_start=4, budget=8, warm=True, seed=0)
    assert list(plan.counts) == allocate_roots(values, 8) == [4, 2, 2, 0]


def test_with_fewer_slots_the_most_uncertain_share_the_budget():
    plan = plan_roots(TraceConfig(), [0.9, 0.5, 0.1, 0.45, 0.02], n_start=2, budget=12, warm=True, seed=0)
    assert [i for i, count in enumerate(plan.counts) if count] == [1, 3] and sum(plan.counts) == 12


def test_before_the_warm_up_ends_scores_do_not_count():
    for allocation in ("trace", "root_only", "pcl"):
        config = TraceConfig(allocation=allocation)
        plans = {
            plan_roots(config, values, n_start=4, budget=16, warm=False, seed=1).counts
            for values in ([0.5] * 10, [0.0] * 9 + [0.5], [0.1 * i for i in range(10)])
        }
        assert len(plans) == 1 and sorted(plans.pop())[-4:] == [4] * 4


def test_scores_that_are_none_count_as_even():
    nan = float("nan")
    plan = plan_roots(TraceConfig(), [0.01, nan, 0.99], n_start=1, budget=4, warm=True, seed=0)
    assert plan.counts == (0, 4, 0)
    assert plan_prefixes(TraceConfig(), [nan, 2.0], [1.0, 0.0], n_bare=1, warm=True, seed=0).counts == (1, 1)


def test_flat_and_pcl_give_every_started_prompt_as_much():
    values = [0.9, 0.5, 0.1, 0.4]
    flat = plan_roots(TraceConfig(allocation="flat"), values, n_start=2, budget=16, warm=True, seed=0)
    pcl = plan_roots(TraceConfig(allocation="pcl"), values, n_start=2, budget=16, warm=True, seed=0)
    assert flat.counts == (8, 8, 0, 0) and pcl.counts == (0, 8, 0, 8)
    assert plan_prefixes(TraceConfig(allocation="pcl"), [0.5], [1.0], n_bare=8, warm=True, seed=0).counts == (0,)


@pytest.mark.parametrize("allocation", KINDS)
def test_prefixes_get_n_per_bare_rollout(allocation):
    config = TraceConfig(allocation=allocation)
    values, rewards = [0.5, 0.9, 0.2], [1.0, 1.0, 1.0]
    plan = plan_prefixes(config, values, rewards, n_bare=2, warm=True, seed=3)
    if config.flat:
        assert plan.counts == (0, 0, 0)
    else:
        assert sum(plan.counts) == 4 and plan.unspent == 0
    if allocation in ("trace", "prefix_only"):
        assert list(plan.counts) == allocate_prefixes(values, [1, 1, 1], 4) == [2, 0, 2]


def test_without_a_prefix_the_budget_is_unspent():
    plan = plan_prefixes(TraceConfig(), [], [], n_bare=3, warm=True, seed=0)
    assert plan.counts == () and plan.unspent == 6


def test_fractional_rewards_count_as_success():
    assert plan_prefixes(TraceConfig(), [0.95, 0.05], [0.3, 0.0], n_bare=1, warm=True, seed=0) == plan_prefixes(
        TraceConfig(), [0.95, 0.05], [1.0, 0.0], n_bare=1, warm=True, seed=0
    )


def test_the_default_budget_costs_what_the_flat_batch_costs():
    config = TraceConfig()
    assert config.bare_budget(256) * (1 + config.continuations / 2) == 256
    assert TraceConfig(budget=100).bare_budget(256) == 100 and TraceConfig(allocation="pcl").bare_budget(256) == 256
    assert TraceConfig().n_candidates(16, 256) == 64 and TraceConfig(candidates=5).n_candidates(16, 256) == 16
    assert TraceConfig(candidates=20).n_candidates(16, 256) == 32
    assert TraceConfig(allocation="random").n_candidates(16, 256) == 16
