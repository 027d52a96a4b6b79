"""Rollout trees on real Ray, DeepSpeed and vLLM, through PACE's pool; a run that loses its policy, and is resumed."""

import pytest

from examples.tiny import build
from openrlhf.trainer.fully_async import run_log

from .test_pool_runs import account, actor_pid, closes, kill, steps, trained_prompts

pytestmark = [pytest.mark.run, pytest.mark.timeout(900)]


def eight_games(folder):
    """A file with the first games of the evaluation data."""
    games = folder / "games.jsonl"
    games.write_text("".join(build.build().calculator_eval.read_text().splitlines(keepends=True)[:8]))
    return str(games)


def test_trees_go_through_the_pool_and_a_run_goes_on_that_lost_its_policy(start, tmp_path):
    """128 candidates; each is trained or skipped once. The language model predicts, and its state is resumed. A rank
    of the policy that dies between two checkpoints ends the run with the cause."""
    log = tmp_path / "log"
    folders = ("--pace.log_dir", str(log), "--ckpt.path", str(tmp_path / "checkpoints"))
    flags = ("--pace.enable", "--pace.admission", "areal", "--pace.admission_eta", "1", *folders)
    flags += ("--pace.max_reject_rate", "0", "--actor.num_gpus_per_node", "1", "--trace.candidates", "32")
    flags += ("--ckpt.save_steps", "2", "--trace.num_actors", "2")
    flags += ("--eval.dataset", eight_games(tmp_path), "--eval.steps", "2", "--eval.n_samples_per_prompt", "2")
    first = start("train_trace_tree.sh", *flags, MAX_SAMPLES="128")
    first.wait_for("Global step 3:")
    kill(lambda: actor_pid(first, "PolicyModelActor"))
    died = first.finish(limit=120)
    assert died.code == 1 and "died" in died.output.splitlines()[-1], died.tail()
    assert (tmp_path / "checkpoints" / "_pool" / "global_step2" / "predictor.pt").is_file()
    second = start("train_trace_tree.sh", *flags, "--ckpt.load_enable", MAX_SAMPLES="128").finish()
    assert second.code == 0, second.tail()
    lines, everything = steps(log), run_log.read(log / run_log.NAME)
    end, settings = everything[-1], [line["trace"] for line in everything if line["kind"] == "settings"]
    assert len(settings) == 2 and settings[0] == settings[1] and settings[0]["candidates"] == 32
    assert all(map(closes, [*lines, end]))
    columns = account(end, "groups")
    assert columns["trained"] + columns["skipped"] == 128 and columns["failed"] == 0
    counts = trained_prompts(lines)
    assert len(counts) == columns["trained"] and set(counts.values()) == {1}
    numbers = [line["metrics"] for line in lines]
    assert all(n["trace/alloc/continuations"] == 2 * n["trace/alloc/bare"] for n in numbers)
    assert any(n["trace/cost/prefix_cache_hit_rate"] > 0.5 for n in numbers)
    assert any(n["pace/staleness/total/max"] > 0 for n in numbers), "trees never waited for the trainer"
    assert all(n["trace/cost/trained_tokens"] == n["trace/cost/generated_tokens"] for n in numbers)
    assert {n["trace/predictor/skipped"] for n in numbers} == {0.0}
    assert len({n["trace/predictor/loss"] for n in numbers}) > 1
    evaluations = [line["metrics"] for line in everything if line["kind"] == "evaluation"]
    assert evaluations and all(0 < n["eval_predictor_mse"] < 1 for n in evaluations)
