"""Rows of trees as upstream's batches: credit per token, silent copies, and cuts at the maximal length."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.tree.experience import TreeExperienceMaker, place, row_unit, tree_samples
from trace_alloc.credit import Row


def response(*lengths: int, reward: float = 1.0) -> dict[str, Any]:
    """Turns of these lengths behind a prompt of 3 tokens, with 2 tokens of the environment after each."""
    tokens, ranges, logprobs = [1, 2, 3], [], [0.0] * 3
    for length in lengths:
        ranges.append((len(tokens), len(tokens) + length))
        tokens += [*range(10, 10 + length), 4, 5]
        logprobs += [-0.5] * length + [0.0, 0.0]
    return {
        "prompt": "p",
        "label": "l",
        "images": None,
        "observation_tokens": tokens,
        "action_ranges": ranges,
        "rollout_log_probs": logprobs,
        "reward": reward,
        "scores": reward,
        "truncated": False,
        "extra_logs": {},
    }


def samples(groups: Any, *, unit: int = 1, max_length: int = 64) -> tuple[list[Experience], int]:
    generator = SamplesGenerator(SimpleNamespace(args=SimpleNamespace()), None, None, None, [])
    return tree_samples(groups, unit=unit, max_length=max_length, generator=generator)


def batch(found: list[Experience]) -> Experience:
    """What the experience maker sees: padded, with log-probs of the policy, and numbered."""
    made = Experience.concat_experiences(found, 0)
    made.action_log_probs = made.rollout_log_probs + 0.25
    made.index = list(range(len(found)))
    return made


def row(advantages: list[float], mask: list[bool] | None = None) -> Row:
    return Row(leaf=0, advantages=tuple(advantages), mask=tuple(mask or [True] * len(advantages)))


def of_row(made: Experience, at: int, n: int) -> tuple[list[float], list[bool]]:
    """Advantages and mask of the first n generated tokens of turn one."""
    return made.advantages[at, 2 : 2 + n].tolist(), made.action_mask[at, 2 : 2 + n].bool().tolist()


sizes = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=5)


@given(st.lists(sizes, min_size=1, max_size=4), st.integers(1, 7))
def test_groups_of_any_size_fill_up_to_a_unit_with_copies_of_the_shortest(groups, unit):
    made = [[response(*lengths) for lengths in group] for group in groups]
    found, n_real = samples(made, unit=unit)
    flat = [one for group in made for one in group]
    assert n_real == len(flat) and len(found) % unit == 0 and len(found) - n_real < unit
    for sample, one in zip(found[:n_real], flat, strict=True):
        assert sample.sequences.flatten().tolist() == one["observation_tokens"]
        assert int(sample.action_mask.sum()) == sum(end - start for start, end in one["action_ranges"])
    shortest = min(len(one["observation_tokens"]) for one in flat)
    assert all(sample.sequences.numel() == shortest for sample in found[n_real:])


def test_every_token_has_its_own_advantage_and_observations_have_none():
    made = batch(samples([[response(2, 3), response(1)]])[0])
    place(made, [row([1, 2, 3, 4, 5], [True, False, True, True, True]), row([-1])])
    assert made.advantages[0, 2:9].tolist() == [1, 0, 0, 0, 3, 4, 5]
    assert made.action_mask[0].bool().tolist()[2:9] == [True, False, False, False, True, True, True]
    assert of_row(made, 1, 1) == ([-1.0], [True]) and int(made.action_mask[1].sum()) == 1
    assert torch.equal(made.returns, made.advantages) and made.info["return"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("nothing", [None, row([7.0, 7.0, 7.0], [False] * 3)])
def test_a_row_that_trains_nothing_keeps_one_token_without_advantage(nothing):
    made = batch(samples([[response(3), response(2)]])[0])
    place(made, [nothing, row([1.0, 1.0])])
    assert int(made.action_mask[0].sum()) == 1 and not made.advantages[0].any()
    assert of_row(made, 1, 2) == ([1.0, 1.0], [True, True])


@pytest.mark.parametrize("max_length", [4, 5, 8, 9])
def test_what_is_cut_at_the_maximal_length_takes_its_credit_along(max_length):
    made = batch(samples([[response(2, 4)]], max_length=max_length)[0])
    place(made, [row([1, 2, 3, 4, 5, 6])])
    kept = [1, 2, 0, 0, 3, 4, 5, 6][: max_length - 3]
    assert made.advantages[0, 2:].tolist()[: len(kept)] == kept
    assert int(made.action_mask.sum()) == sum(value > 0 for value in kept)


def test_the_maker_places_the_credit_of_each_row_and_silences_the_copies():
    found, n_real = samples([[response(2), response(3)], [response(1, 2)]], unit=4)
    first, second = batch([found[1], found[0]]), batch(found[2:])
    first.index, second.index = [1, 0], [2, 3]
    maker = object.__new__(TreeExperienceMaker)
    maker.credit = [row([1, 2]), row([3, 4, 5]), row([6, 7, 8], [False, True, True])]
    assert n_real == len(maker.credit)
    maker.compute_advantages_and_returns([first, second])
    assert of_row(first, 0, 3)[0] == [3, 4, 5] and of_row(first, 1, 2)[0] == [1, 2]
    assert second.advantages[0].sum() == 15 and int(second.action_mask[0].sum()) == 2
    assert int(second.action_mask[1].sum()) == 1 and not second.advantages[1].any()
    weights = [math.exp(0.25 * n) for n in (2, 3, 3)]
    ess = sum(weights) ** 2 / (3 * sum(weight**2 for weight in weights))
    assert maker.m2 == pytest.approx(0.25**2) and maker.relative_ess == pytest.approx(ess)


def test_rows_come_in_whole_micro_batches_of_every_rank_and_step():
    args = SimpleNamespace(
        actor=SimpleNamespace(num_nodes=2, num_gpus_per_node=4),
        ds=SimpleNamespace(ring_attn_size=2, tensor_parallel_size=1),
        rollout=SimpleNamespace(micro_batch_size=4),
        train=SimpleNamespace(micro_batch_size=6),
    )
    assert row_unit(args, 3) == 12 * 4 * 3
