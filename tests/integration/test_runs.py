"""Every training script, on real Ray, DeepSpeed and vLLM."""

import re

import pytest

pytestmark = [pytest.mark.run, pytest.mark.timeout(900)]


def updates(output: str) -> list[int]:
    return [int(step) for step in re.findall(r"Global step (\d+): \{", output)]


def test_sync_run_as_a_ray_job(start):
    """`ray_job_submit.sh` starts a head, submits, follows the log, stops the head and has the command's exit code."""
    command = "bash examples/scripts/train_ppo_ray_sync.sh && exit 7"
    run = start("ray_job_submit.sh", "bash", "-c", command, MAX_SAMPLES="32", RAY_ADDRESS="").finish()
    assert run.code == 7, run.tail()
    followed, _, _ = run.output.partition("Job entrypoint command failed")  # Ray repeats the log's end behind it
    assert updates(followed) == [1, 2]


@pytest.mark.parametrize("kind", ["sft", "rm", "dpo"])
def test_upstreams_other_trainers(start, kind):
    run = start(f"train_{kind}.sh", MAX_SAMPLES="128").finish()
    assert run.code == 0, run.tail()
    assert (run.folder / "model" / "config.json").exists(), run.tail()
