"""M2PO against the formulas in NumPy: the clip bound by bisection, the masked set by removing one token at a time."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf.models.loss import PolicyLoss
from openrlhf.trainer.losses.m2po import M2poLoss, largest_bound, within_budget

FORMS = ("clip", "mask")
# Squares of log-ratios: ties, zeros and numbers about as large as the budget, and a few far outliers.
near = st.lists(st.sampled_from([0.0, 0.01, 0.04, 0.09]) | st.floats(0.0, 0.3), max_size=40)
squares_lists = st.tuples(near, st.lists(st.floats(0.3, 4e4), max_size=3)).map(lambda parts: parts[0] + parts[1])
budgets = st.sampled_from([0.01, 0.04]) | st.floats(1e-3, 0.5)


def bound_by_bisection(squares, budget):
    if len(squares) == 0 or np.mean(squares) <= budget:
        return math.inf
    low, high = 0.0, math.sqrt(max(squares))
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.mean(np.minimum(squares, middle**2)) <= budget else (low, middle)
    return low


def removed_one_by_one(squares, budget):
    """Indices that stay when the largest goes until the mean of the rest fits."""
    kept = list(np.argsort(squares, kind="stable"))
    while kept and math.fsum(squares[i] for i in kept) > budget * len(kept):
        kept.pop()
    return kept


def expected_tokens(form, budget, new, behaviour, advantages, min_low, min_high):
    """Loss, gradient by log pi_new and whether cut, of each token of a flat batch, written from the formulas."""
    d = behaviour - new
    ratio = np.exp(-d)
    if form == "mask":
        kept = np.isin(np.arange(len(d)), removed_one_by_one(d**2, budget))
        return -advantages * ratio * kept, -advantages * ratio * kept, ~kept
    harmful = ((advantages > 0) & (ratio > 1)) | ((advantages < 0) & (ratio < 1))
    tau = bound_by_bisection(d[harmful] ** 2, budget)
    low, high = min(math.exp(-tau), 1 - min_low), max(math.exp(tau), 1 + min_high)
    loss = np.maximum(-advantages * ratio, -advantages * np.clip(ratio, low, high))
    cut = harmful & ((ratio > high) | (ratio < low))
    return loss, np.where(cut, 0.0, -advantages * ratio), cut


@pytest.mark.parametrize(
    ("form", "minimal"), [("mask", (0.3, 0.5)), ("clip", (0.3, 0.5)), ("clip", (0.0, 0.0))], ids=str
)
@pytest.mark.parametrize("token_level", [True, False])
@pytest.mark.parametrize("spread", [0.05, 0.4, 1.5])
def test_loss_gradient_and_metrics_are_the_formulas(make_batch, loss_and_gradient, form, minimal, token_level, spread):
    loss_fn = M2poLoss(form=form, min_low=minimal[0], min_high=minimal[1], token_level=token_level)
    cuts = 0
    for seed in range(6):
        batch = make_batch(seed, spread=spread)
        mask = batch["action_mask"].numpy()
        new, old, behaviour, advantages = (
            batch[name].detach().numpy()[mask]
            for name in ("log_probs", "old_log_probs", "rollout_log_probs", "advantages")
        )
        loss, gradient, cut = expected_tokens(form, 0.04, new, behaviour, advantages, *minimal)
        rows = np.nonzero(mask)[0]
        weights = np.full(len(rows), 1 / len(rows))
        if not token_level:
            weights = 1 / np.bincount(rows)[rows] / len(set(rows))

        (value, clip_ratio, ppo_kl, vllm_kl, filtered), actual = loss_and_gradient(loss_fn, batch)
        assert value.item() == pytest.approx(np.sum(weights * loss), rel=1e-6, abs=1e-12)
        np.testing.assert_allclose(actual.numpy()[mask], weights * gradient, rtol=1e-6, atol=1e-12)
        assert not actual.numpy()[~mask].any()
        assert clip_ratio.item() == pytest.approx(np.mean(cut))
        assert ppo_kl.item() == pytest.approx(np.mean(old - new))
        assert vllm_kl.item() == pytest.approx(np.mean(behaviour - old))
        assert filtered.item() == 0.0
        cuts += cut.sum()
    assert (cuts > 0) == (spread > 0.05)  # the cases with cuts and those without are both there


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cut", ["none", "one", "all"])
def test_finite_at_log_ratios_of_200(extreme_batch, loss_and_gradient, form, cut):
    answer, gradient = loss_and_gradient(M2poLoss(form=form), extreme_batch(cut))
    assert all(value.isfinite() for value in answer) and gradient.isfinite().all()
    if cut == "none":
        assert answer[0].item() == 0.0 and not gradient.any()


def test_a_bound_beyond_what_exp_can_hold_is_none(loss_and_gradient):
    """tau = sqrt(6e5) = 775 nats: no clip, and no overflow."""
    zero, one = torch.zeros(1, 1), torch.ones(1, 1)
    batch = {"log_probs": (2000 * one).requires_grad_(), "old_log_probs": zero, "advantages": one}
    answer, gradient = loss_and_gradient(M2poLoss(budget=6e5), batch)
    assert answer[0].isfinite() and answer[1].item() == gradient.item() == 0.0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("token_level", [True, False])
def test_no_gradient_without_advantages(make_batch, loss_and_gradient, form, token_level):
    """All rewards of a group equal: A = 0."""
    batch = make_batch(0, spread=3.0)
    batch["advantages"] = torch.zeros_like(batch["advantages"])
    answer, gradient = loss_and_gradient(M2poLoss(form=form, token_level=token_level), batch)
    assert answer[0].item() == 0.0 and not gradient.any()


@pytest.mark.parametrize("form", FORMS)
def test_on_policy_it_is_upstreams_loss(make_batch, loss_and_gradient, form):
    """At ratio 1 nothing is clipped and the gradient is REINFORCE's: -A."""
    batch = make_batch(3, padding=0.0)
    batch["old_log_probs"] = batch["rollout_log_probs"] = batch["log_probs"].detach().clone()
    ours, theirs = (loss_and_gradient(loss_fn, batch) for loss_fn in (M2poLoss(form=form), PolicyLoss()))
    assert ours[0][:3] == theirs[0][:3]
    assert torch.equal(ours[1], theirs[1])


def test_without_rollout_log_probs_the_old_policy_is_the_behaviour(make_batch, loss_and_gradient):
    batch = make_batch(4)
    batch["rollout_log_probs"] = batch["old_log_probs"]
    given_both, gradient = loss_and_gradient(M2poLoss(), batch)
    given_one, same = loss_and_gradient(M2poLoss(), batch | {"rollout_log_probs": None})
    assert given_one[:3] == given_both[:3] and torch.equal(gradient, same)
    assert given_one[3:] == (None, None)


@pytest.mark.parametrize("token_level", [True, False])
def test_micro_batches_add_up_to_the_batch(make_batch, token_level):
    """With the totals of the whole batch, as upstream passes them; no token is clipped, since bounds are per call."""
    loss_fn = M2poLoss(budget=100.0, token_level=token_level)
    batch = make_batch(5, rows=6, spread=0.1)
    mask = batch["action_mask"]
    totals = {"dp_size": 1, "batch_num_tokens": mask.sum(), "global_batch_size": mask.any(-1).sum()}
    parts = [{name: values[rows] for name, values in batch.items()} for rows in (slice(0, 1), slice(1, 6))]
    assert sum(loss_fn(**part, **totals)[0] for part in parts).item() == pytest.approx(loss_fn(**batch)[0].item())


def test_a_single_token(make_batch, loss_and_gradient):
    """One harmful token of d^2 = 1: clipped at its minimal bound, or masked, so the loss is 0."""
    one = torch.ones(1, 1)
    batch = {"log_probs": (-one).requires_grad_(), "old_log_probs": -one, "advantages": one, "action_mask": one.bool()}
    batch["rollout_log_probs"] = -2 * one
    answer, gradient = loss_and_gradient(M2poLoss(), batch)
    assert (answer[0].item(), answer[1].item(), gradient.item()) == (-1.5, 1.0, 0.0)
    answer, gradient = loss_and_gradient(M2poLoss(form="mask"), batch)
    assert (answer[0].item(), answer[1].item(), gradient.item()) == (0.0, 1.0, 0.0)


@given(squares=squares_lists, budget=budgets)
def test_masking_leaves_the_largest_set_within_the_budget(squares, budget):
    values = torch.tensor([squares], dtype=torch.float64)
    kept = within_budget(values, torch.ones_like(values, dtype=torch.bool), budget)
    n_kept = int(kept.sum())
    slack = 1 + 1e-9
    if n_kept:
        assert math.fsum(values[kept].tolist()) / n_kept <= budget * slack
        assert n_kept == len(squares) or values[kept].max() <= values[~kept].min()
    if n_kept < len(squares):  # one more, the smallest that was masked, would exceed it
        more = math.fsum([*values[kept].tolist(), values[~kept].min().item()])
        assert more * slack >= budget * (n_kept + 1)


@given(squares=squares_lists, budget=budgets)
def test_the_clip_bound_uses_the_budget_up(squares, budget):
    tau = largest_bound(torch.tensor(squares, dtype=torch.float64), budget)
    if math.isinf(tau):
        assert not squares or np.mean(squares) <= budget * (1 + 1e-9)
    else:
        assert np.mean(np.minimum(squares, tau**2)) == pytest.approx(budget, rel=1e-9)
        assert np.mean(squares) > budget * (1 - 1e-9)


def test_the_budget_is_kept_in_double_precision():
    squares = torch.tensor([[0.1 + 1e-10]], dtype=torch.float64)
    assert not within_budget(squares, torch.ones(1, 1, dtype=torch.bool), 0.1).any()


def test_masking_looks_at_action_tokens_only():
    squares = torch.tensor([[0.0, 9.0, 0.03], [5.0, 0.05, 9.0]])
    mask = torch.tensor([[True, False, True], [True, True, False]])
    assert within_budget(squares, mask, 0.04).tolist() == [[True, False, True], [False, True, False]]


@pytest.mark.parametrize(
    "settings",
    [{"budget": 0.0}, {"budget": math.nan}, {"min_low": 1.1}, {"min_high": -0.1}, {"form": "both"}],
    ids=str,
)
def test_wrong_settings_are_refused(settings):
    with pytest.raises(ValueError):
        M2poLoss(**settings)
