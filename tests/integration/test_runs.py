"""Every training script, on real Ray, DeepSpeed and vLLM."""

import re
import signal

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(900)]


def updates(output: str) -> list[int]:
    return [int(step) for step in re.findall(r"Global step (\d+): \{", output)]


def test_sync_run_as_a_ray_job(start):
    """`ray_job_submit.sh` starts a head, submits, follows the log and stops the head."""
    script = "examples/scripts/train_ppo_ray_sync.sh"
    run = start("ray_job_submit.sh", "bash", script, MAX_SAMPLES="32", RAY_ADDRESS="").finish()
    assert run.code == 0, run.tail()
    assert updates(run.output) == [1, 2]


def test_job_exit_code_is_the_commands_own(start):
    run = start("ray_job_submit.sh", "bash", "-c", "exit 7", RAY_ADDRESS="").finish()
    assert run.code == 7, run.tail()


@pytest.mark.parametrize("kind", ["sft", "rm", "dpo"])
def test_upstreams_other_trainers(start, kind):
    run = start(f"train_{kind}.sh", MAX_SAMPLES="128").finish()
    assert run.code == 0, run.tail()
    assert (run.folder / "model" / "config.json").exists(), run.tail()


def test_ctrl_c_leaves_nothing(start):
    run = start("quickstart_cpu.sh")
    run.wait_for("Global step 1:")
    run.process.send_signal(signal.SIGINT)
    done = run.finish(limit=30)
    assert done.code == 130, done.tail()
