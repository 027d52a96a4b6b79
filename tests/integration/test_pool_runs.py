"""The pool pipeline on real Ray, DeepSpeed and vLLM: runs that are killed, resumed, or lose one of their actors."""

import contextlib
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from openrlhf.trainer.fully_async import run_log
from pace.admission import StaleCap
from pace.budget import RejectionBudget
from pace.selection import replay
from pace.state import unpack_draw

pytestmark = [pytest.mark.run, pytest.mark.timeout(900)]

POOL = ("--pace.enable", "--actor.num_gpus_per_node", "1")
ALL_TRAINED = ("--pace.admission", "none", "--pace.max_reject_rate", "0", "--pace.k_max", "-1")


def steps(folder: Path) -> list[dict]:
    """The last line of every step, in order: a resumed run repeats what was trained after its checkpoint."""
    last = {line["step"]: line for line in run_log.read(folder / run_log.NAME) if line["kind"] == "step"}
    return [last[number] for number in sorted(last)]


def trained_prompts(lines: list[dict]) -> Counter:
    kept = ("kept", "refilled")
    return Counter(d["prompt_id"] for line in lines for d in line["draw"]["decisions"] if d["outcome"] in kept)


def account(line: dict, unit: str) -> dict[str, float]:
    prefix = f"pace/ledger/{unit}/"
    return {key.removeprefix(prefix): value for key, value in line["metrics"].items() if key.startswith(prefix)}


def closes(line: dict) -> bool:
    """generated = trained + rejected + evicted + filtered + failed + in pool + in flight, in groups and tokens."""
    accounts = [account(line, unit) for unit in ("groups", "tokens")]
    return all(columns.pop("generated") == sum(columns.values()) for columns in accounts)


def actor_pid(run, name: str) -> int | None:
    """The process of a Ray actor, by its title; an engine's own process is a child with the same title."""
    ours = set(run.pids())  # a long title may have overwritten the mark, but not that of Ray's own processes
    titled = [pid for pid in processes() if f"ray::{name}" in title(pid)]
    return next((pid for pid in titled if parent(pid) in ours and parent(pid) not in titled), None)


def child(pid: int | None) -> int | None:
    """The engine's own process, forked from its actor."""
    if pid is None:
        return None
    return next((other for other in processes() if parent(other) == pid), None)


def kill(find, limit: float = 120.0) -> None:
    """SIGKILL for the process that `find` gives, as soon as there is one."""
    deadline = time.monotonic() + limit
    while (pid := find()) is None and time.monotonic() < deadline:
        time.sleep(0.5)
    os.kill(pid, signal.SIGKILL)


def processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


def test_every_actor_may_die_once(start, tmp_path):
    """Pool, rollout manager, the actor of one of two engines, and an engine that hangs in a weight sync and is then
    killed. Every prompt is trained once."""
    log = ("--pace.log_dir", str(tmp_path / "log"), "--ckpt.path", str(tmp_path / "checkpoints"))
    size = ("--data.max_samples", "192", "--vllm.num_engines", "2")
    run = start("quickstart_cpu.sh", *POOL, *ALL_TRAINED, *log, *size)
    run.wait_for("Global step 1:")
    for step, name in enumerate(("TrajectoryPoolActor", "RolloutManagerActor", "RolloutRayActor"), start=2):
        kill(lambda name=name: actor_pid(run, name))
        run.wait_for(f"Global step {step}:")
    run.wait_for("was started again and serves policy version")
    core = child(actor_pid(run, "RolloutRayActor"))
    said = len(run.output())
    os.kill(core, signal.SIGSTOP)
    run.wait_for("weight sync of step", after=said)
    with contextlib.suppress(ProcessLookupError):  # its actor may have given it up and ended it first
        os.kill(core, signal.SIGKILL)
    done = run.finish(limit=400)
    assert done.code == 0, done.tail()
    assert "has died" in done.output[said:], "the run went on as if nothing had been"
    lines = steps(tmp_path / "log")
    assert [line["step"] for line in lines] == list(range(1, 13))
    counts = trained_prompts(lines)
    assert len(counts) == 192 and set(counts.values()) == {1}
    assert all(map(closes, lines)), lines[-1]
    assert account(lines[-1], "groups")["trained"] == 192


REWARD = """
import time
from examples.python import reward_func_math

FAULTS = {faults!r}


def reward_func(queries, prompts, labels, **kwargs):
    fault = next((FAULTS[problem] for problem in FAULTS if problem in prompts[0]), None)
    if fault == "raise":
        raise KeyError("no such column")
    if fault == "hang":
        time.sleep(3600)
    result = reward_func_math.reward_func(queries, prompts, labels, **kwargs)
    return {{**result, "rewards": result["rewards"] * float("nan")}} if fault == "nan" else result
"""


def test_a_killed_run_goes_on_and_its_decisions_replay_from_the_log(start, material, tmp_path):
    """SIGKILL between two checkpoints of a run with rejection, dynamic filtering, short batches at the end, every
    logger, and rewards that raise, hang or are NaN: each is tried again up to the cap, then its group has failed, is
    counted, and the run goes on. The second run takes what came after the checkpoint."""
    log, reward = tmp_path / "log", tmp_path / "reward.py"
    rows = (material.model.parent / "train.jsonl").read_text().splitlines()[:160]
    problems = [json.loads(row)["prompt"][0]["content"] for row in rows]
    faults = dict(zip(problems[:6], ("raise", "hang", "nan") * 2, strict=True))
    reward.write_text(REWARD.format(faults=faults))
    evaluating = ("--eval.dataset", str(material.eval), "--eval.steps", "3", "--eval.n_samples_per_prompt", "1")
    rejecting = ("--pace.admission", "none", "--pace.loss", "m2po", "--pace.ess_step_size", *evaluating)
    rejecting += ("--algo.dynamic_filtering_enable", "--rollout.micro_batch_size", "16", "--data.max_samples", "160")
    limits = ("--reward.remote_url", str(reward), "--pace.trajectory_timeout_s", "20", "--pace.max_retries", "1")
    folders = ("--pace.log_dir", str(log), "--ckpt.path", str(tmp_path / "checkpoints"), "--ckpt.save_steps", "2")
    flags = (*POOL, *rejecting, *limits, *folders, "--logger.wandb.key", "0" * 40)
    first = start("quickstart_cpu.sh", *flags, WANDB_MODE="offline")
    first.wait_for("Global step 3:")
    first.kill()
    first.process.wait(30)
    second = start("quickstart_cpu.sh", *flags, "--ckpt.load_enable", WANDB_MODE="offline").finish()
    assert second.code == 0, second.tail()
    assert (second.folder / "model" / "config.json").exists()
    said = first.output() + second.output
    assert "reward_func raised KeyError: 'no such column'" in said
    assert "took longer than 20 s (--pace.trajectory_timeout_s)" in said
    everything = run_log.read(log / run_log.NAME)
    starts = [line["start_step"] for line in everything if line["kind"] == "settings"]
    assert starts[0] == 0 and starts[1] in (2, 4)  # the checkpoint before the kill, which may come a little late
    check_draws(steps(log))
    check_loggers(log, second.folder, tmp_path / "checkpoints", after=starts[1])
    assert set(trained_prompts(steps(log)).values()) == {1}
    columns = account(everything[-1], "groups")
    assert closes(everything[-1])
    assert sum(columns[name] for name in ("trained", "rejected", "evicted", "filtered", "failed")) == 160
    assert columns["failed"] == sum(problem in faults for problem in problems)
    assert columns["filtered"] > 0 and columns["rejected"] > 0
    assert checkpoints(tmp_path / "checkpoints" / "_pool") == checkpoints(tmp_path / "checkpoints" / "_actor")


def check_draws(lines: list[dict]) -> None:
    """Every draw can be repeated from the log, and one that was changed can't."""
    budget = RejectionBudget(batch_groups=16)
    for line in lines:
        assert replay(unpack_draw(line["draw"]), budget=budget, cap=StaleCap(8)) == []
        assert closes(line)
    assert all(0 < line["metrics"]["pace/ess"] <= 1 for line in lines)
    assert any(line["metrics"]["time/rescore"] > 0 for line in lines), "the time that scoring took was not measured"
    tampered = json.loads(json.dumps(lines[-1]["draw"]))
    first = tampered["decisions"][0]
    first["outcome"] = "kept" if first["outcome"] == "rejected" else "rejected"
    assert replay(unpack_draw(tampered), budget=budget, cap=StaleCap(8))


def test_strict_has_no_lag_and_ctrl_c_leaves_nothing(start, tmp_path):
    """Synchronous through the same code, until the user has seen enough. On two ranks of ZeRO-3 the engine's log-probs
    are the trainer's after every sync."""
    strict = ("--pace.enable", "--pace.strict", "--pace.admission_eta", "0", "--pace.log_dir", str(tmp_path / "log"))
    run = start("quickstart_cpu.sh", *strict)
    run.wait_for("Global step 3:")
    run.process.send_signal(signal.SIGINT)
    done = run.finish(limit=30)
    assert done.code == 130, done.tail()
    lines = steps(tmp_path / "log")
    assert len(lines) >= 3 and {line["metrics"]["pace/staleness/total/max"] for line in lines} == {0.0}
    assert all(line["metrics"]["pace/m2"] < 1e-8 for line in lines), "mean squared log-ratio of engine and trainer"


def check_loggers(log: Path, run: Path, saved: Path, *, after: int) -> None:
    """The numbers of the steps `after` the checkpoint are in all loggers of the resumed run; an evaluation names its
    version, and the best one's weights are saved."""
    lines = steps(log)
    evaluations = {line["version"]: line["metrics"] for line in run_log.read(log / run_log.NAME) if "version" in line}
    assert list(evaluations) == list(range(3, len(lines) + 1, 3))
    (rate,) = {key for metrics in evaluations.values() for key in metrics if key.endswith("pass1")}
    best = max(evaluations, key=lambda version: evaluations[version][rate])
    assert f"best_global_step{best}" in checkpoints(saved / "_pool")
    events = EventAccumulator(str(next((run / "tensorboard").rglob("events*")).parent))
    events.Reload()
    for key in ("pace/staleness/effective/mean", "pace/pool/occupancy", "pace/ledger/tokens/trained", "time/update"):
        logged = [event.value for event in events.Scalars(f"train/{key}")]
        assert logged == pytest.approx([line["metrics"][key] for line in lines[after:]]), key
    (offline,) = run.glob("wandb/offline-run-*/*.wandb")
    assert b"pace/staleness/effective/mean" in offline.read_bytes()


def checkpoints(folder: Path) -> set[str]:
    """The names of the checkpoints of one part of a run."""
    return {path.name for path in folder.iterdir() if path.is_dir()}
