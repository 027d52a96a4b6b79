"""Runs that can't go on: each ends by itself, with its cause last, and leaves no process (checked by `finish`).

All without PACE; what the pool pipeline survives is in test_pool_runs.py.
"""

import os
import signal
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.run, pytest.mark.timeout(900)]

ONE_RANK = ("--actor.num_gpus_per_node", "1")
ONE_REFERENCE_RANK = ("--ref.num_gpus_per_node", "1")


def last_word(output: str) -> str:
    return output[output.rfind("train_ppo_ray stopped:") :]


def test_a_reward_function_that_raises(start, tmp_path):
    """Upstream logs the error and goes on without a reward. Other faults: tests/trainer/test_reward_check.py."""
    path = tmp_path / "reward.py"
    path.write_text("def reward_func(queries, prompts, labels, **kwargs):\n    raise KeyError('no such column')\n")
    done = start("train_ppo_ray_sync.sh", "--reward.remote_url", str(path), *ONE_RANK, *ONE_REFERENCE_RANK).finish()
    assert done.code == 1
    assert "reward_func raised KeyError: 'no such column'" in last_word(done.output), done.tail()
    assert f"--reward.remote_url {path}" in last_word(done.output)


def test_killed_engine_ends_the_run(start):
    """Of a multi-turn run, after its first update. Upstream's weight sync would wait for ever in its broadcast."""
    run = start("train_ppo_ray_agent_async.sh", *ONE_RANK)
    run.wait_for("Global step 1:")
    engine = next(pid for pid in run.pids() if is_engine(pid))
    os.kill(engine, signal.SIGKILL)
    killed = time.monotonic()
    done = run.finish(limit=60)
    assert time.monotonic() - killed < 30
    assert done.code == 1
    # Whoever notices first: the watchdog, or a rollout that was in flight.
    assert "EngineCore" in last_word(done.output), done.tail()


def is_engine(pid: int) -> bool:
    """The engine process is forked from its actor, so it carries the actor's title and has it as its parent."""
    parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return "RolloutRayActor" in title(pid) and "RolloutRayActor" in title(parent)


def title(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
