import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace.budget import ExcessLaw, RejectionBudget, excess
from pace.state import StateError


@st.composite
def budgets(draw):
    return RejectionBudget(
        batch_groups=draw(st.integers(1, 64)),
        target_batches=draw(st.floats(1, 4)),
        law=draw(st.sampled_from(ExcessLaw)),
        smoothing=draw(st.floats(0, 0.99)),
        max_rate=draw(st.floats(0, 0.95)),
        scarce_margin=draw(st.integers(0, 8)),
    )


occupancies = st.lists(st.integers(0, 400), min_size=1, max_size=60)


@given(budgets(), occupancies)
def test_the_budget_never_starves_the_trainer(budget, history):
    for occupancy in history:
        plan = budget.plan(occupancy)
        assert 0 <= plan.rejections <= max(0, occupancy - budget.batch_groups)
        assert plan.candidates == min(occupancy, budget.batch_groups + plan.rejections)
        assert 0.0 <= plan.rate <= budget.max_rate and 0.0 <= plan.carry_after < 1.0
        assert 0.0 <= plan.excess <= 1.0
        if occupancy < budget.batch_groups + budget.scarce_margin:
            assert plan.scarce and plan.rate == 0.0 and plan.rejections == 0
            assert plan.rate_after == plan.rate_before / 2


@given(budgets(), occupancies)
def test_a_plan_is_a_function_of_its_recorded_numbers(budget, history):
    for occupancy in history:
        plan = budget.plan(occupancy)
        assert budget.plan_from(plan.occupancy, rate=plan.rate_before, carry=plan.carry_before) == plan


def test_excess_is_the_surplus_share_of_the_pool_or_relative_to_the_target():
    assert excess(0, 10, ExcessLaw.SHARE) == 0.0 and excess(0, 10, ExcessLaw.RELATIVE) == 0.0
    assert excess(10, 10, ExcessLaw.SHARE) == excess(10, 10, ExcessLaw.RELATIVE) == 0.0  # at the target: none
    assert excess(15, 10, ExcessLaw.SHARE) == pytest.approx(1 / 3)
    assert excess(15, 10, ExcessLaw.RELATIVE) == 0.5 and excess(99, 10, ExcessLaw.RELATIVE) == 1.0


def test_smoothing_follows_the_documented_average():
    budget = RejectionBudget(batch_groups=10, target_batches=1.0, smoothing=0.8, max_rate=0.5)
    assert budget.plan(20).rate == pytest.approx(0.1)
    assert budget.plan(20).rate == pytest.approx(0.8 * 0.1 + 0.2 * 0.5)
    for _ in range(100):
        budget.plan(1000)
    assert budget.plan(1000).rate == 0.5  # r_max


def test_release_is_at_once_and_build_up_is_slow():
    budget = RejectionBudget(batch_groups=10, target_batches=1.0)
    for _ in range(50):
        high = budget.plan(100).rate
    scarce = budget.plan(9)
    assert scarce.rate == 0.0 and scarce.rejections == 0
    assert budget.plan(9).rate_before == high / 2
    assert budget.plan(10).rejections == 0  # exactly a batch: nothing to spare


def test_a_margin_widens_scarcity():
    budget = RejectionBudget(batch_groups=10, target_batches=1.0, scarce_margin=3, smoothing=0.0)
    assert budget.plan(12).scarce and not budget.plan(13).scarce


def test_small_rates_are_carried_and_not_rounded_away():
    budget = RejectionBudget(batch_groups=10, target_batches=1.05, smoothing=0.0)
    plans = [budget.plan(11) for _ in range(1000)]
    wanted = sum(10 * plan.rate / (1 - plan.rate) for plan in plans)
    assert {plan.rejections for plan in plans} == {0, 1} and wanted == pytest.approx(476.2, abs=0.1)
    assert abs(sum(plan.rejections for plan in plans) - wanted) <= 1


@pytest.mark.parametrize(("law", "settles"), [(ExcessLaw.SHARE, 1.5), (ExcessLaw.RELATIVE, 2 - 1 / 1.5)])
def test_constant_overload_settles_where_the_docstring_says(law, settles):
    budget = RejectionBudget(batch_groups=40, target_batches=1.5, law=law)
    pool, seen = 0, []
    for step in range(600):
        pool += 60  # load 1.5
        plan = budget.plan(pool)
        pool -= 40 + plan.rejections
        seen.append(plan.occupancy if step > 300 else 0)
    assert sum(seen) / 299 == pytest.approx(60 * settles, rel=0.03)


def test_underload_is_inert():
    budget = RejectionBudget(batch_groups=40)
    assert all(budget.plan(q).rejections == 0 for q in [40, 44, 50, 39, 41] * 50)


def test_a_rate_of_zero_turns_rejection_off():
    budget = RejectionBudget(batch_groups=4, max_rate=0.0)
    assert all(budget.plan(10_000).rejections == 0 for _ in range(20))


@given(budgets(), occupancies, occupancies)
def test_the_budget_continues_after_a_round_trip(budget, before, after):
    for occupancy in before:
        budget.plan(occupancy)
    copy = RejectionBudget(
        batch_groups=budget.batch_groups,
        target_batches=budget.target / budget.batch_groups,
        law=budget.law,
        smoothing=budget.smoothing,
        max_rate=budget.max_rate,
        scarce_margin=budget.scarce_margin,
    )
    copy.target = budget.target  # the division above may round
    copy.load_state_dict(json.loads(json.dumps(budget.state_dict())))
    assert [copy.plan(q) for q in after] == [budget.plan(q) for q in after]


@pytest.mark.parametrize("state", [{}, {"rate": 0.1}, {"rate": 1.0, "carry": 0.0}, {"rate": 0.0, "carry": -1.0}])
def test_foreign_state_is_refused(state):
    with pytest.raises(StateError):
        RejectionBudget(batch_groups=1).load_state_dict(state)


@pytest.mark.parametrize(
    "settings",
    [{"batch_groups": 0}, {"target_batches": 0.5}, {"smoothing": 1.0}, {"max_rate": 1.0}, {"scarce_margin": -1}],
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ValueError):
        RejectionBudget(**{"batch_groups": 4, **settings})


def test_metrics_are_gauges():
    assert RejectionBudget(batch_groups=4, target_batches=2).metrics() == {"rate": 0.0, "carry": 0.0, "target": 8.0}
