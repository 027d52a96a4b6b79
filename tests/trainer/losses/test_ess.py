"""The effective sample size against its definition, and where it must come out as known."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf.trainer.losses.ess import batch_relative_ess, relative_ess, sequence_log_weights, step_scale

log_weight_lists = st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=40)


def micro_batch(seed, rows, columns, spread=0.3):
    random = torch.Generator().manual_seed(seed)
    rollout = -torch.rand(rows, columns, generator=random)
    old = rollout + spread * torch.randn(rows, columns, generator=random)
    mask = torch.rand(rows, columns, generator=random) < 0.8
    mask[:, 0] = True
    return old.masked_fill(~mask, math.nan), rollout, mask


def test_rho_is_its_definition_over_all_micro_batches():
    batches = [micro_batch(seed, rows, columns) for seed, rows, columns in ((0, 3, 5), (1, 1, 17), (2, 4, 2))]
    weights = []
    for old, rollout, mask in batches:
        for row in range(len(mask)):
            gaps = (old[row].numpy().astype(float) - rollout[row].numpy())[mask[row].numpy()]
            weights.append(np.exp(gaps.sum()))
    weights = np.array(weights)
    expected = weights.sum() ** 2 / (weights**2).sum() / len(weights)
    assert batch_relative_ess(batches) == pytest.approx(expected, rel=1e-9)
    assert 1 / 8 < expected < 1


def test_it_does_not_matter_how_the_batch_is_cut():
    old, rollout, mask = micro_batch(3, 6, 7)
    pieces = [(old[i : i + 2], rollout[i : i + 2], mask[i : i + 2]) for i in (0, 2, 4)]
    assert batch_relative_ess(pieces) == batch_relative_ess([(old, rollout, mask)])
    ranks = [sequence_log_weights(pieces[:1]), sequence_log_weights(pieces[1:])]
    assert relative_ess(torch.cat(ranks)) == batch_relative_ess(pieces)


def test_sequences_without_action_tokens_are_not_counted():
    old, rollout, mask = micro_batch(4, 3, 5)
    padded = (torch.cat([old, old]), torch.cat([rollout, rollout]), torch.cat([mask, torch.zeros_like(mask)]))
    assert batch_relative_ess([padded]) == batch_relative_ess([(old, rollout, mask)])
    assert batch_relative_ess([]) == batch_relative_ess([(old, rollout, torch.zeros_like(mask))]) == 1.0


@given(log_weights=log_weight_lists)
def test_rho_is_between_one_sequence_and_all(log_weights):
    rho = relative_ess(torch.tensor(log_weights, dtype=torch.float64))
    assert (1 / len(log_weights)) * (1 - 1e-12) <= rho <= 1.0


@given(log_weights=log_weight_lists, shift=st.floats(-1e4, 1e4))
def test_a_common_factor_changes_nothing(log_weights, shift):
    values = torch.tensor(log_weights, dtype=torch.float64)
    assert relative_ess(values + shift) == pytest.approx(relative_ess(values), rel=1e-9)


@given(log_weight=st.floats(-1e4, 1e4), n=st.integers(1, 50))
def test_equal_weights_are_a_full_batch(log_weight, n):
    assert relative_ess(torch.full((n,), log_weight, dtype=torch.float64)) == 1.0


@pytest.mark.parametrize("low", [-1e4, 0.0])
def test_one_that_outweighs_all_others_is_a_batch_of_one(low):
    assert relative_ess(torch.tensor([1e4, low, low, low, low])) == pytest.approx(1 / 5)


def test_finite_at_10_000_nats_a_token():
    rollout = torch.tensor([[-1e4, 0.0], [0.0, -1e4]]).repeat(2, 1)
    old = torch.tensor([[0.0, 0.0], [-1e4, -1e4]]).repeat(2, 1)
    assert batch_relative_ess([(old, rollout, torch.ones(4, 2))]) == pytest.approx(1 / 2)  # two of four carry it


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_an_undefined_weight_is_an_error(wrong):
    old, rollout, mask = micro_batch(5, 2, 3)
    old[1, 0] = wrong
    with pytest.raises(ValueError, match="not finite"):
        batch_relative_ess([(old, rollout, mask)])


@pytest.mark.parametrize(
    ("rho", "base", "law", "scale"),
    [
        (1.0, 1.0, "sqrt", 1.0),
        (0.25, 1.0, "sqrt", 0.5),
        (0.25, 1.0, "linear", 0.25),
        (0.25, 0.5, "linear", 0.5),
        (0.08, 0.5, "sqrt", 0.4),
        (0.9, 0.5, "sqrt", 1.0),
    ],
)
def test_the_step_shrinks_by_the_law(rho, base, law, scale):
    assert step_scale(rho, base, law) == pytest.approx(scale)


@pytest.mark.parametrize("arguments", [(0.0,), (1.1,), (math.nan,), (0.5, 0.0), (0.5, 1.0, "cubic")], ids=str)
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(ValueError):
        step_scale(*arguments)
