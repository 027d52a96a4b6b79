"""Flags that pass the checks get through upstream's own assertions after parsing, whatever the combination.

Upstream's `__main__` is run for every example, up to the first line of its `train`.
"""

import runpy
import sys
from collections.abc import Iterable
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf.launch import arguments, flags

BASE = "--actor.model_name_or_path m --data.prompt_dataset d.jsonl --rollout.batch_size 8 --train.batch_size 8".split()
CHOICES: dict[str, list[str]] = {
    "--actor.num_gpus_per_node": ["1", "2"],
    "--ref.num_gpus_per_node": ["1", "2"],
    "--critic.num_gpus_per_node": ["1", "2"],
    "--reward.num_gpus_per_node": ["1", "2"],
    "--vllm.num_engines": ["0", "1", "2"],
    "--reward.remote_url": ["http://h/r", "a.py"],
    "--reward.model_name_or_path": ["r"],
    "--critic.model_name_or_path": ["c"],
    "--train.agent_func_path": ["agent.py"],
    "--eval.dataset": ["e.jsonl"],
    "--rollout.n_samples_per_prompt": ["1", "2"],
    "--rollout.micro_batch_size": ["1", "4", "16"],
    "--rollout.vllm_generate_batch_size": ["4", "8", "16"],
    "--train.batch_size": ["4", "8", "16"],
    "--algo.advantage.estimator": ["gae", "reinforce", "rloo", "group_norm", "flash_reinforce"],
    "--algo.kl.init_coef": ["0", "0.01"],
    "--algo.dynamic_filtering_range": ["0 1", "1 0"],
    "--algo.advantage.is_correction_threshold": ["2", "0.5 2", "1 2 3"],
    "--data.max_images_per_prompt": ["0", "2"],
}
SWITCHES = [
    "--train.async_enable",
    "--train.partial_rollout_enable",
    "--train.colocate_all",
    "--train.colocate_actor_ref",
    "--vllm.enable_sleep",
    "--algo.dynamic_filtering_enable",
]


class Reached(Exception):
    """Upstream accepted the flags."""


def upstream_accepts(argv: Iterable[str]) -> bool:
    """Whether upstream's `__main__` calls its `train` with these flags."""
    import ray

    def reached() -> None:
        raise Reached

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["train_ppo_ray", *argv])
        patch.setattr(ray, "is_initialized", reached)
        try:
            with flags.parsed_by(lambda parsed: None):
                runpy.run_path(flags.UPSTREAM_CLI, run_name="__main__")
        except Reached:
            return True
        except (AssertionError, AttributeError, TypeError):
            return False
    raise AssertionError("upstream neither trained nor complained")


@given(
    chosen=st.fixed_dictionaries({}, optional={flag: st.sampled_from(values) for flag, values in CHOICES.items()}),
    switches=st.sets(st.sampled_from(SWITCHES)),
)
@settings(max_examples=150, deadline=None)
def test_what_passes_here_passes_there(parsed: SimpleNamespace, chosen: dict[str, str], switches: set[str]) -> None:
    argv = [*BASE, *(word for flag, value in chosen.items() for word in (flag, *value.split())), *sorted(switches)]
    problems = arguments.check(flags.parse(argv))
    assert problems or upstream_accepts(argv)


def test_the_comparison_sees_both_verdicts() -> None:
    fine = [*BASE, *"--vllm.num_engines 1 --reward.remote_url a.py --algo.advantage.estimator reinforce".split()]
    fine += "--actor.num_gpus_per_node 1 --ref.num_gpus_per_node 1".split()
    assert arguments.check(flags.parse(fine)) == [] and upstream_accepts(fine)
    bad = [*fine, "--train.partial_rollout_enable"]
    assert arguments.check(flags.parse(bad)) != [] and not upstream_accepts(bad)
