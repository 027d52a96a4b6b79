"""Decoupled PPO against its formula in NumPy, token by token, against finite differences and upstream's PPO."""

import math

import numpy as np
import pytest
import torch

from openrlhf.models.loss import PolicyLoss
from openrlhf.trainer.losses.decoupled import DecoupledPpoLoss

VARIANTS = [(mode, level) for mode in ("clamp", "mask") for level in ("token", "sequence")]
CLIPS = {"clip_low": 0.2, "clip_high": 0.28}


def expected(batch, new, *, mode, level, cap, dual_clip, token_level):
    """Loss, clip_ratio and is_filter_ratio, in loops over the formulas."""
    old, behaviour, advantages, mask = (
        batch[name].numpy() for name in ("old_log_probs", "rollout_log_probs", "advantages", "action_mask")
    )
    sequences, clipped, filtered = [], [], []
    for row in range(len(mask)):
        tokens = np.flatnonzero(mask[row])
        gaps = [old[row, t] - behaviour[row, t] for t in tokens]
        losses = []
        for t, gap in zip(tokens, gaps, strict=True):
            a, u = advantages[row, t], math.exp(new[row, t] - old[row, t])
            w = math.exp(np.mean(gaps) if level == "sequence" else gap)
            cut = w > cap
            w = (cap if mode == "clamp" else 0.0) if cut else w
            limited = a * min(max(u, 1 - CLIPS["clip_low"]), 1 + CLIPS["clip_high"])
            objective = min(u * a, limited)
            if dual_clip and a < 0:
                objective = max(objective, dual_clip * a)
            losses.append(-w * objective)
            clipped.append(limited < u * a)
            if level == "token" or t == tokens[0]:
                filtered.append(cut)
        if losses:
            sequences.append(losses)
    loss = np.mean(np.concatenate(sequences)) if token_level else np.mean([np.mean(s) for s in sequences])
    return loss, np.mean(clipped), np.mean(filtered)


@pytest.mark.parametrize(("mode", "level"), VARIANTS)
@pytest.mark.parametrize("dual_clip", [None, 1.5])
@pytest.mark.parametrize("token_level", [True, False])
def test_loss_gradient_and_metrics_are_the_formula(make_batch, loss_and_gradient, mode, level, dual_clip, token_level):
    how = {"mode": mode, "level": level, "cap": 1.15, "dual_clip": dual_clip, "token_level": token_level}
    loss_fn = DecoupledPpoLoss(
        **CLIPS, behaviour_cap=1.15, behaviour_mode=mode, level=level, dual_clip=dual_clip, token_level=token_level
    )
    shares = []
    for seed in range(3):
        batch = make_batch(seed, spread=0.5)
        new, mask = batch["log_probs"].detach().numpy(), batch["action_mask"].numpy()
        loss, clip_ratio, filter_ratio = expected(batch, new, **how)
        answer, gradient = loss_and_gradient(loss_fn, batch)
        assert answer[0].item() == pytest.approx(loss)
        assert answer[1].item() == pytest.approx(clip_ratio)
        assert answer[2].item() == pytest.approx(np.mean((batch["old_log_probs"].numpy() - new)[mask]))
        stale = (batch["rollout_log_probs"] - batch["old_log_probs"]).numpy()[mask]
        assert answer[3].item() == pytest.approx(np.mean(stale))
        assert answer[4].item() == pytest.approx(filter_ratio)
        shares.append(filter_ratio)

        assert not gradient.numpy()[~mask].any()
        for row, t in np.argwhere(mask):
            step = np.zeros_like(new)
            step[row, t] = 1e-6
            slope = (expected(batch, new + step, **how)[0] - expected(batch, new - step, **how)[0]) / 2e-6
            assert gradient[row, t].item() == pytest.approx(slope, rel=1e-5, abs=1e-8)
    assert 0 < np.mean(shares) < 1


@pytest.mark.parametrize("dual_clip", [None, 3.0])
@pytest.mark.parametrize("token_level", [True, False])
@pytest.mark.parametrize(
    "totals",
    [{}, {"dp_size": 2}, {"dp_size": 2, "batch_num_tokens": 21.5, "global_batch_size": torch.tensor(3.5)}],
    ids=["micro-batch", "ranks", "global batch"],
)
@pytest.mark.parametrize(("mode", "level"), VARIANTS)
def test_without_staleness_it_is_upstreams_ppo_exactly(
    make_batch, loss_and_gradient, dual_clip, token_level, totals, mode, level
):
    """Behaviour = proximal policy: the same bits, in float32, with and without totals of the global batch."""
    batch = make_batch(7, rows=8, spread=0.7, dtype=torch.float32, padding=0.0)
    batch["rollout_log_probs"] = batch["old_log_probs"]
    ours = DecoupledPpoLoss(**CLIPS, behaviour_mode=mode, level=level, dual_clip=dual_clip, token_level=token_level)
    theirs = PolicyLoss(
        clip_eps_low=CLIPS["clip_low"],
        clip_eps_high=CLIPS["clip_high"],
        dual_clip=dual_clip,
        token_level_loss=token_level,
    )
    (answer, gradient), (reference, reference_gradient) = (
        loss_and_gradient(loss_fn, batch, **totals) for loss_fn in (ours, theirs)
    )
    assert answer[:3] == reference[:3] and reference[1] > 0
    assert torch.equal(gradient, reference_gradient)
    assert (answer[3].item(), answer[4].item()) == (0.0, 0.0)


@pytest.mark.parametrize(("mode", "level"), VARIANTS)
@pytest.mark.parametrize("cut", ["none", "one", "all"])
def test_finite_at_log_ratios_of_200(extreme_batch, loss_and_gradient, mode, level, cut):
    for cap in (2.0, math.inf):
        loss_fn = DecoupledPpoLoss(behaviour_cap=cap, behaviour_mode=mode, level=level)
        answer, gradient = loss_and_gradient(loss_fn, extreme_batch(cut))
        assert all(value.isfinite() for value in answer) and gradient.isfinite().all()
        if cut == "none":
            assert answer[0].item() == 0.0 and not gradient.any()


@pytest.mark.parametrize("totals", [{}, {"batch_num_tokens": torch.tensor(0.0), "global_batch_size": 0.0}], ids=str)
@pytest.mark.parametrize("token_level", [True, False])
def test_a_batch_without_tokens_has_no_loss(make_batch, loss_and_gradient, totals, token_level):
    batch = make_batch(1)
    batch["action_mask"] = torch.zeros_like(batch["action_mask"])
    answer, gradient = loss_and_gradient(DecoupledPpoLoss(token_level=token_level), batch, **totals)
    assert [value.item() for value in answer] == [0.0] * 5 and not gradient.any()


def test_no_gradient_without_advantages(make_batch, loss_and_gradient):
    batch = make_batch(2, spread=3.0)
    batch["advantages"] = torch.zeros_like(batch["advantages"])
    answer, gradient = loss_and_gradient(DecoupledPpoLoss(dual_clip=2.0), batch)
    assert answer[0].item() == 0.0 and not gradient.any()


def test_without_rollout_log_probs_it_is_plain_ppo(make_batch, loss_and_gradient):
    batch = make_batch(3, padding=0.0) | {"rollout_log_probs": None}
    answer, gradient = loss_and_gradient(DecoupledPpoLoss(), batch)
    reference, reference_gradient = loss_and_gradient(PolicyLoss(), batch)
    assert answer[:3] == reference[:3] and answer[3:] == (None, None)
    assert torch.equal(gradient, reference_gradient)


def test_without_a_mask_all_tokens_count(make_batch):
    batch = make_batch(4, padding=0.0)
    full = DecoupledPpoLoss()(**batch | {"action_mask": torch.ones_like(batch["action_mask"])})
    assert DecoupledPpoLoss()(**batch | {"action_mask": None}) == full


def test_masked_tokens_stay_in_the_denominator():
    """Two tokens of ratio 1, A = 1, one of them with a weight above the cap: -1/2, not -1."""
    zeros = torch.zeros(1, 2)
    behaviour = torch.tensor([[0.0, -9.0]])
    loss_fn = DecoupledPpoLoss(behaviour_mode="mask")
    loss, *_, filtered = loss_fn(zeros, zeros, zeros + 1, zeros == 0, behaviour)
    assert (loss.item(), filtered.item()) == (-0.5, 0.5)


def test_empty_sequences_do_not_dilute_the_filter_ratio():
    zeros = torch.zeros(3, 2)
    mask = torch.tensor([[True, True], [True, False], [False, False]])
    behaviour = torch.tensor([[-9.0, -9.0], [0.0, 0.0], [0.0, 0.0]])
    *_, filtered = DecoupledPpoLoss(level="sequence")(zeros, zeros, zeros + 1, mask, behaviour)
    assert filtered.item() == 0.5


def test_no_gradient_flows_through_the_behaviour_weight(make_batch):
    batch = make_batch(6)
    batch["rollout_log_probs"].requires_grad_()
    loss = DecoupledPpoLoss()(**batch)[0]
    assert torch.autograd.grad(loss, batch["rollout_log_probs"], allow_unused=True) == (None,)


@pytest.mark.parametrize(
    "settings",
    [
        {"clip_low": -0.1},
        {"clip_high": -0.1},
        {"behaviour_cap": 0.5},
        {"behaviour_cap": math.nan},
        {"dual_clip": 1.0},
        {"behaviour_mode": "drop"},
        {"level": "seq"},
    ],
    ids=str,
)
def test_wrong_settings_are_refused(settings):
    with pytest.raises(ValueError):
        DecoupledPpoLoss(**settings)
