"""Batches for upstream's trainer: advantages by the formulas, any group size, and a last batch that is not full."""

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from openrlhf.models.loss import PolicyLoss
from openrlhf.trainer.fully_async.batch import PoolExperienceMaker, to_samples
from openrlhf.trainer.losses.decoupled import DecoupledPpoLoss
from openrlhf.trainer.losses.ess import batch_relative_ess
from openrlhf.trainer.losses.m2po import M2poLoss
from openrlhf.trainer.ppo_utils import experience_maker
from openrlhf.trainer.ppo_utils.experience import make_experience_batch, remove_padding_in_sequences
from openrlhf.trainer.ppo_utils.experience import split_experience_batch as split
from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

OF_ANY_SIZE = ("gae", "reinforce", "flash_reinforce")
ESTIMATORS = (*OF_ANY_SIZE, "rloo", "reinforce_baseline", "group_norm", "dr_grpo")
SIZES = [(name, size) for name in ESTIMATORS for size in (1, 2, 16) if size > 1 or name in OF_ANY_SIZE]
VALUE = 0.25  # what the critic predicts everywhere


class FakeModelGroup:
    """Stands for upstream's RayActorGroup: `forward` gives a number per token that depends on the token alone."""

    def __init__(self, per_token: Any) -> None:
        self._per_token = per_token

    def async_run_method_batch(self, *, method_name: str, sequences: Any, **_: Any) -> list[list[torch.Tensor]]:
        assert method_name == "forward"
        return [[self._per_token(batch[:, 1:].double()).float()] for batch in sequences]


def policy_logprob(tokens: torch.Tensor) -> torch.Tensor:
    return -(tokens % 7 + 1) / 10


@pytest.fixture(autouse=True)
def without_ray(monkeypatch):
    """References are the objects themselves."""
    monkeypatch.setattr(experience_maker, "ray", SimpleNamespace(put=lambda x: x, get=lambda x: x))


def make_args(estimator: str = "reinforce", **rollout: Any) -> SimpleNamespace:
    advantage = SimpleNamespace(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=False)
    return SimpleNamespace(
        algo=SimpleNamespace(advantage=advantage, kl=SimpleNamespace(use_loss=False, estimator="k1")),
        reward=SimpleNamespace(clip_range=None),
        rollout=SimpleNamespace(
            **{"n_samples_per_prompt": 8, "batch_size": 4, "micro_batch_size": 3, "max_tokens_per_gpu": 60} | rollout
        ),
        train=SimpleNamespace(dynamic_batch_enable=False, colocate_all=False, colocate_actor_ref=False),
        actor=SimpleNamespace(num_nodes=1, num_gpus_per_node=2),
        ds=SimpleNamespace(ring_attn_size=1, tensor_parallel_size=1),
        data=SimpleNamespace(max_len=64),
    )


def make_groups(n_groups: int, size: int, *, seed: int = 0) -> list[list[dict[str, Any]]]:
    """Responses of different lengths, in one or two turns, with rewards of any kind."""
    rng = random.Random(seed)

    def response(name: str) -> dict[str, Any]:
        turns = [rng.randint(1, 6) for _ in range(rng.randint(1, 2))]
        tokens, ranges, logprobs = [rng.randint(1, 99) for _ in range(3)], [], [0.0] * 3
        for length in turns:
            ranges.append((len(tokens), len(tokens) + length))
            made = [rng.randint(1, 99) for _ in range(length)]
            logprobs += [-(token % 7 + 1) / 10 + rng.uniform(-0.3, 0.3) for token in made] + [0.0, 0.0]
            tokens += [*made, 1, 2]  # the environment's answer
        return {
            "prompt": name,
            "label": "l",
            "images": None,
            "observation_tokens": tokens,
            "action_ranges": ranges,
            "rollout_log_probs": logprobs,
            "reward": rng.choice([0.0, 1.0, rng.uniform(-1, 2)]),
            "scores": 1.0,
            "truncated": False,
            "extra_logs": {"turns": len(turns)},
        }

    return [[response(f"{group}") for _ in range(size)] for group in range(n_groups)]


def make_batch(
    groups: Any, args: SimpleNamespace, *, kl: float = 0.0, batch_groups: int | None = None
) -> tuple[PoolExperienceMaker, list[Any]]:
    """What the trainer gets for these groups: the maker, and the experiences in micro-batches."""
    strategy = SimpleNamespace(args=args)
    generator = SamplesGenerator(strategy, None, None, None, [])
    batch_groups = args.rollout.batch_size = batch_groups or args.rollout.batch_size
    samples, n_real = to_samples(groups, batch_groups=batch_groups, max_length=args.data.max_len, generator=generator)
    critic = FakeModelGroup(lambda tokens: tokens * 0 + VALUE) if args.algo.advantage.estimator == "gae" else None
    maker = PoolExperienceMaker(
        FakeModelGroup(policy_logprob),
        critic,
        None,
        FakeModelGroup(lambda tokens: policy_logprob(tokens) - tokens % 3 / 10) if kl else None,
        FixedKLController(kl),
        strategy,
        SimpleNamespace(pad_token_id=0),
    )
    maker.args.train.colocate_critic_reward = False
    maker.n_real = n_real
    return maker, maker.make_experience_batch(samples)


def by_rollout(experiences: list[Any]) -> list[Any]:
    """Single-rollout experiences without padding, in the order of the rollouts."""
    order = [i for experience in experiences for i in experience.index]
    items = remove_padding_in_sequences([item for experience in experiences for item in split(experience)])
    return [item for _, item in sorted(zip(order, items, strict=True), key=lambda pair: pair[0])]


def expected_advantages(estimator: str, rewards: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Per rollout (they are the same for all its tokens), rewards (groups, size), written from the formulas."""
    size = rewards.shape[1]
    own_mean = rewards.mean(axis=1, keepdims=True)
    shaped = {
        "gae": rewards - VALUE,
        "reinforce": rewards,
        "flash_reinforce": rewards - rewards.mean(),
        "rloo": rewards - (rewards.sum(axis=1, keepdims=True) - rewards) / max(1, size - 1),
        "reinforce_baseline": rewards - own_mean,
        "dr_grpo": rewards - own_mean,
        "group_norm": (rewards - own_mean) / (rewards.std(axis=1, ddof=min(1, size - 1), keepdims=True) + 1e-9),
    }[estimator].reshape(-1)
    if estimator in ("gae", "reinforce", "reinforce_baseline"):  # whitened over the batch's tokens
        mean = (shaped * counts).sum() / counts.sum()
        variance = ((shaped - mean) ** 2 * counts).sum() / counts.sum()
        shaped = (shaped - mean) / np.sqrt(max(variance, 1e-8))
    return shaped


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("estimator", "size"), SIZES)
def test_advantages_are_the_formulas_for_every_group_size(estimator, size, dynamic):
    """The size is that of the groups that came, whatever --rollout.n_samples_per_prompt asked for."""
    args = make_args(estimator, n_samples_per_prompt=8)
    args.train.dynamic_batch_enable = dynamic
    groups = make_groups(4, size)
    maker, experiences = make_batch(groups, args)
    assert args.rollout.n_samples_per_prompt == 8, "the flag is as it was"
    items = by_rollout(experiences)
    rewards = np.array([[response["reward"] for response in group] for group in groups])
    counts = np.array([int(item.action_mask.sum()) for item in items])
    for item, advantage in zip(items, expected_advantages(estimator, rewards, counts), strict=True):
        mask = item.action_mask.bool()
        np.testing.assert_allclose(item.advantages[mask].numpy(), advantage, rtol=1e-4, atol=1e-5)


def test_groups_of_different_sizes_are_refused():
    mixed = [*make_groups(1, 2), *make_groups(1, 3)]
    generator = SamplesGenerator(SimpleNamespace(args=make_args()), None, None, None, [])
    with pytest.raises(ValueError, match=r"\[2, 3\] rollouts"):
        to_samples(mixed, batch_groups=2, max_length=9, generator=generator)


def test_groups_stay_whole_and_in_order():
    generator = SamplesGenerator(SimpleNamespace(args=make_args()), None, None, None, [])
    samples, n_real = to_samples(make_groups(3, 2), batch_groups=5, max_length=64, generator=generator)
    assert [sample.prompts[0] for sample in samples] == list("0011220011") and n_real == 6


@pytest.mark.parametrize("max_length", [64, 8])
def test_logprobs_and_the_mask_lie_on_the_same_tokens(max_length):
    """Position t of mask and log-probs is about token t + 1 of the sequence, also behind a cut at --data.max_len."""
    groups = make_groups(3, 2, seed=5)
    for group in groups:
        for response in group:
            made = {i for start, end in response["action_ranges"] for i in range(start, end)}
            tokens = response["observation_tokens"]
            response["rollout_log_probs"] = [-token / 1000 if i in made else 0.0 for i, token in enumerate(tokens)]
    args = make_args()
    args.data.max_len = max_length
    _, experiences = make_batch(groups, args, batch_groups=3)
    responses = [response for group in groups for response in group]
    for item, response in zip(by_rollout(experiences), responses, strict=True):
        assert len(item.sequences) <= max_length
        mask = item.action_mask.bool()
        expected = sum(max(0, min(end, max_length) - start) for start, end in response["action_ranges"])
        assert int(mask.sum()) == expected
        assert torch.allclose(item.rollout_log_probs[mask], -item.sequences[1:][mask] / 1000)
        assert torch.allclose(item.action_log_probs[mask], policy_logprob(item.sequences[1:][mask]))


# The last batch


def short_and_alone(estimator: str, *, dynamic: bool = False, kl: float = 0.1, size: int = 2) -> tuple[Any, Any]:
    """Three groups in a batch of five, and in a batch of three; as (maker, experiences)."""

    def made(batch_groups: int) -> tuple[Any, Any]:
        args = make_args(estimator)
        args.train.dynamic_batch_enable = dynamic
        return make_batch(make_groups(3, size, seed=1), args, kl=kl, batch_groups=batch_groups)

    return made(5), made(3)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_short_batch_gives_the_real_rollouts_what_they_get_alone(estimator, dynamic):
    (padded, experiences), (alone, reference) = short_and_alone(estimator, dynamic=dynamic)
    items, expected = by_rollout(experiences), by_rollout(reference)
    assert len(items) == 10 and len(expected) == 6
    for item, twin in zip(items[:6], expected, strict=True):
        assert torch.equal(item.sequences, twin.sequences)
        for name in ("action_mask", "advantages", "returns", "rewards", "rollout_log_probs", "action_log_probs"):
            torch.testing.assert_close(getattr(item, name), getattr(twin, name), rtol=1e-6, atol=1e-6)
        assert item.info.keys() == twin.info.keys()
        for key, value in twin.info.items():
            torch.testing.assert_close(item.info[key], value, rtol=1e-6, atol=1e-6)
    assert padded.relative_ess == pytest.approx(alone.relative_ess) and padded.m2 == pytest.approx(alone.m2)
    for item in items[6:]:
        assert item.action_mask.sum() == 1 and not item.advantages.any()
        first = int(item.action_mask.nonzero()[0])
        assert item.returns[first] == (VALUE if estimator == "gae" else 0.0), "nothing for the critic to learn"


def test_effective_size_and_second_moment_are_those_of_the_data():
    groups = make_groups(2, 2)
    maker, experiences = make_batch(groups, make_args(), batch_groups=2)
    parts = [(e.action_log_probs, e.rollout_log_probs, e.action_mask) for e in experiences]
    assert maker.relative_ess == pytest.approx(batch_relative_ess(parts)) and 0 < maker.relative_ess < 1
    squares = [
        (-(token % 7 + 1) / 10 - logprob) ** 2
        for group in groups
        for response in group
        for start, end in response["action_ranges"]
        for token, logprob in zip(
            response["observation_tokens"][start:end], response["rollout_log_probs"][start:end], strict=True
        )
    ]
    assert maker.m2 == pytest.approx(np.mean(squares), rel=1e-5)


LOSSES: dict[str, Any] = {
    "ppo": lambda token_level: PolicyLoss(token_level_loss=token_level),
    "ppo dual": lambda token_level: PolicyLoss(token_level_loss=token_level, dual_clip=3.0),
    "gspo": lambda token_level: PolicyLoss(token_level_loss=token_level, policy_loss_type="gspo"),
    "gspo corrected": lambda token_level: PolicyLoss(
        token_level_loss=token_level, policy_loss_type="gspo", is_correction_level="seq"
    ),
    **{
        f"ppo {level} {gating} {mode}": lambda token_level, level=level, gating=gating, mode=mode: PolicyLoss(
            token_level_loss=token_level,
            is_correction_level=level,
            is_correction_gating=gating,
            is_correction_mode=mode,
            is_correction_threshold=(0.8, 1.25) if gating == "ratio" else (0.0, 0.05),
        )
        for level, gating, mode in [
            ("token", "ratio", "mask"),
            ("token", "ratio", "clip"),
            ("seq", "ratio", "mask"),
            ("token", "binary_kl", "mask"),
            ("seq", "binary_kl", "mask"),
            ("token", "tv", "mask"),
            ("seq", "tv", "mask"),
        ]
    },
    "decoupled": lambda token_level: DecoupledPpoLoss(token_level=token_level),
    "m2po": lambda token_level: M2poLoss(token_level=token_level),
    "m2po_mask": lambda token_level: M2poLoss(token_level=token_level, form="mask", budget=0.5),
}


def gradient(loss_fn: Any, items: list[Any]) -> tuple[list[torch.Tensor], tuple[Any, ...]]:
    """The gradient by log pi_new per rollout, for a policy that has moved a little, and the loss with its metrics."""
    batch = make_experience_batch(items)
    moved = torch.sin(batch.sequences[:, 1:].double()).float() / 5
    new = (batch.action_log_probs + moved).requires_grad_()
    answer = loss_fn(new, batch.action_log_probs, batch.advantages, batch.action_mask, batch.rollout_log_probs)
    (grad,) = torch.autograd.grad(answer[0], new)
    lengths = [len(item.action_mask) for item in items]
    return [row[:length] for row, length in zip(grad, lengths, strict=True)], answer


@pytest.mark.parametrize("token_level", [True, False])
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_a_short_batch_has_the_gradient_of_its_real_rollouts_up_to_the_share_of_the_silent_ones(name, token_level):
    """To 1 part in 10^5: T / (T + 4) of it for T tokens and 4 silent rollouts, or 6 / 10 of it when the mean is one
    over sequences. Every number is finite, for every --actor.policy_loss_type and --actor.loss_agg_mode."""
    (_, experiences), (_, reference) = short_and_alone("reinforce_baseline")
    items, expected = by_rollout(experiences), by_rollout(reference)
    loss_fn = LOSSES[name](token_level)
    rows, answer = gradient(loss_fn, items)
    twins, _ = gradient(loss_fn, expected)
    assert all(value is None or torch.isfinite(value).all() for value in answer)
    n_tokens = sum(int(item.action_mask.sum()) for item in expected)
    by_token = token_level and not name.startswith("gspo")  # upstream's GSPO is always by sequence
    share = n_tokens / (n_tokens + 4) if by_token else 6 / 10
    assert any(twin.any() for twin in twins)
    for row, twin in zip(rows[:6], twins, strict=True):
        torch.testing.assert_close(row, twin * share, rtol=1e-5, atol=1e-8)
    for row in rows[6:]:
        assert not row.any(), "a silent rollout pulls nowhere"
