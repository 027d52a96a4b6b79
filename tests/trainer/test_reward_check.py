"""Rewards that can't be trained on, without an engine."""

import pytest
import torch

from openrlhf.trainer.ray.reward_check import CheckedRewardFunc, RewardError, check_response, wrong_shape

GOOD = [torch.tensor([0.5]), [0.5], 0.5, torch.tensor(1.0), [1]]
BAD = {
    "none": (None, "NoneType without 'rewards'"),
    "no rewards": ({"scores": [1.0]}, "dict without 'rewards'"),
    "too many": ({"rewards": torch.zeros(3)}, "3 rewards for 1 queries"),
    "none at all": ({"rewards": []}, "0 rewards for 1 queries"),
    "nan": ({"rewards": torch.tensor([float("nan")])}, "not finite"),
    "infinite": ({"rewards": [float("-inf")]}, "not finite"),
    "text": ({"rewards": ["high"]}, "raised ValueError"),
}


@pytest.mark.parametrize("rewards", GOOD, ids=str)
def test_every_form_that_upstream_takes_passes(rewards):
    assert wrong_shape({"rewards": rewards}, 1) is None
    assert CheckedRewardFunc(lambda *_: {"rewards": rewards}, "r.py")(["q"], ["p"], ["l"]) == {"rewards": rewards}


@pytest.mark.parametrize("fault", sorted(BAD))
def test_a_fault_is_kept_and_raised_with_the_response(fault):
    """Upstream's executor swallows the first raise, so the second one is what ends the run."""
    answer, message = BAD[fault]
    reward_func = CheckedRewardFunc(lambda *_: answer, "rewards/mine.py")
    with pytest.raises(RewardError):
        reward_func(["q"], ["p"], ["l"])
    with pytest.raises(RewardError) as raised:
        check_response({"reward": None}, "--reward.remote_url rewards/mine.py", reward_func)
    assert message in str(raised.value)
    assert "--reward.remote_url rewards/mine.py" in str(raised.value)
    assert "Fix:" in str(raised.value)


def test_the_users_own_exception_is_the_cause():
    def broken(queries, prompts, labels):
        raise KeyError("no such column")

    with pytest.raises(RewardError, match="reward_func raised KeyError") as raised:
        CheckedRewardFunc(broken, "r.py")(["q"], ["p"], ["l"])
    assert isinstance(raised.value.__cause__, KeyError)


@pytest.mark.parametrize("reward", [float("nan"), torch.tensor(float("inf")), None], ids=str)
def test_an_agents_response_needs_a_finite_reward(reward):
    with pytest.raises(RewardError, match="--train.agent_func_path agent.py") as raised:
        check_response({"reward": reward}, "--train.agent_func_path agent.py")
    assert "Fix:" in str(raised.value)


def test_a_finite_reward_passes():
    check_response({"reward": torch.tensor([0.0])}, "--train.agent_func_path agent.py")
