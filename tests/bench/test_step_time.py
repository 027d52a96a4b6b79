"""The reading and the arithmetic of bench/step_time.py, on made-up runs."""

import asyncio
import copy
import json
import re
import statistics
import subprocess
import sys
from dataclasses import fields
from types import SimpleNamespace

import pytest

import openrlhf
from bench import slow_calculator_agent as agent
from bench import step_time
from bench.processes import running
from bench.step_time import Update
from pace.config import PaceConfig, flag
from pace.metrics import metric_keys

PREFIX = "\x1b[36m(TrainingActor pid=7)\x1b[0m INFO 12-01 01:03:56 training_actor.py:204] "


def line(step: int, **more: object) -> str:
    return f"{PREFIX}Global step {step}: {console(**more)}\x1b[0m"


def console(**more: object) -> dict[str, object]:
    made = {"timing/make_experience": 0.5, "timing/ppo_train": 1.5, "rollout/num_samples": 256.0}
    return made | more


def logged(step: int, *, ready: int, rejected: int = 4) -> dict[str, float]:
    """The pool's log at a step, 16 groups trained and `rejected` thrown away at each, `ready` made so far."""
    out = step * (16 + rejected)
    return {
        "pace/staleness/total/mean": step / 10,
        "pace/pool/batch": 16.0,
        "pace/pool/rejected": float(rejected),
        "pace/pool/evicted": 0.0,
        "pace/pool/accepting": 1.0,
        "pace/ledger/groups/trained": 16.0 * step,
        "pace/ledger/groups/rejected": float(rejected * step),
        "pace/ledger/groups/evicted": 0.0,
        "pace/ledger/groups/in_pool": float(ready - out),
    }


def test_updates_are_read_from_the_console():
    text = [line(3, kl=float("nan"), note="nano"), "Global step soon", line(4, note="\u2728")]
    first, second = step_time.updates_in(text, at=7.0)
    assert (first.step, first.at, second.step) == (3, 7.0, 4)
    assert first.metrics == console(kl=None, note="nano")


def test_the_first_updates_are_dropped():
    """Steps of 3 s after four of 100 s; 2 s of each are work."""
    at = [100.0 * n for n in range(1, 5)] + [400.0 + 3 * n for n in range(1, 11)]
    found = step_time.numbers([Update(n, t, console()) for n, t in enumerate(at, 1)], [], drop=4)
    assert found["steps"] == 10 and found["step_s"] == 3.0
    assert found["trajectories_per_s"] == pytest.approx(256 / 3)
    assert found["idle"] == pytest.approx(1 / 3)
    assert found["lag"] is None and found["load"] is None


def test_a_run_without_enough_updates_is_no_result():
    with pytest.raises(ValueError, match="nothing to measure"):
        step_time.numbers([Update(n, n, console()) for n in range(1, 5)], [], drop=4)


def test_the_pools_numbers_are_those_of_the_measured_steps():
    """24 groups get ready a step, of which 20 leave: load 1.5, although the first steps were otherwise."""
    log = [logged(n, ready=900 + 24 * n) for n in range(1, 16)]
    updates = [Update(n, 3.0 * n, console()) for n in range(1, 15)]
    found = step_time.numbers(updates, log, drop=4)
    assert found["load"] == pytest.approx(1.5)
    assert found["rejected"] == pytest.approx(0.2) and found["evicted"] == 0
    assert found["lag"] == pytest.approx(statistics.mean(range(5, 15)) / 10)
    assert found["full"] == 0


def test_the_keys_are_the_pools_own():
    assert {key for key in logged(1, ready=20)} <= metric_keys()


def run(setting: str, way: str, step_s: float, **more: float | None) -> dict[str, object]:
    return {"setting": setting, "way": way, "numbers": {"step_s": step_s, "load": None, "full": None} | more}


def test_rounds_are_summed_up_and_compared():
    runs = [run("uniform", way, s) for s in (1.0, 3.0, 2.0) for way in ("async", "unfiltered")]
    runs += [run("uniform", "pace-raw", s) for s in (3.0, 4.0, 5.0)] + [run("tool", "pace-raw", 9.0)]
    result = step_time.summary(runs)
    assert result["uniform"]["pace-raw"]["step_s"] == 4.0
    assert result["uniform"]["pace-raw"]["against_async"] == 2.0
    assert result["uniform"]["unfiltered"]["against_unfiltered"] == 1.0
    assert result["tool"]["pace-raw"]["against_async"] is None


def test_the_table_has_a_dash_where_there_is_no_number():
    ways = step_time.summary([run("uniform", "async", 2.0), run("uniform", "unfiltered", 2.5, load=1.5, full=0.0)])
    head, first, second = step_time.table(ways["uniform"]).splitlines()
    assert len(head) == len(first) == len(second)
    assert re.split(r"\s{2,}", head.strip()) == list(step_time.COLUMNS)
    assert re.split(r"\s{2,}", first) == ["async", "2.00", "-", "0.80", "1.00", "-", "-", "-", "-", "-", "-"]
    assert re.split(r"\s{2,}", second)[1:5] == ["2.50", "-", "1.00", "1.25"]


@pytest.mark.parametrize(
    ("load", "full", "said"),
    [
        (1.8, 0.0, "load: 1.80 groups ready per trained one (unfiltered); rollout outruns training"),
        (1.0, 0.4, "load: at least 1.00 groups ready per trained one (unfiltered); the pool was full"),
        (1.0, 0.0, "balanced"),
        (0.7, 0.0, "inert by design"),
        (None, None, "not measured"),
    ],
)
def test_the_regime_is_said(load, full, said):
    ways = step_time.summary([run("tool", "async", 2.0), run("tool", "unfiltered", 2.0, load=load, full=full)])
    assert said in step_time.regime(ways["tool"])


@pytest.fixture
def material(tmp_path):
    for data, _ in step_time.SETTINGS.values():
        (tmp_path / data).write_text("{}\n" * 100)
    return SimpleNamespace(model=tmp_path / "model")


@pytest.mark.parametrize("setting", step_time.SETTINGS)
@pytest.mark.parametrize("way", step_time.WAYS)
def test_every_flag_exists_and_prompts_suffice(tmp_path, material, setting, way):
    arguments = step_time.command(setting, step_time.WAYS[way], tmp_path, n_updates=14, material=material)
    upstream = (openrlhf.UPSTREAM / "cli" / "train_ppo_ray.py").read_text().replace("{prefix}", "actor")
    known = {*re.findall(r"(--[a-z][\w.]+)", upstream), *(flag(field.name) for field in fields(PaceConfig))}
    assert {argument for argument in arguments if argument.startswith("--")} <= known
    episodes = int(arguments[arguments.index("--train.num_episodes") + 1])
    rows = int(arguments[arguments.index("--data.max_samples") + 1])
    assert rows == 96 and rows % step_time.BATCH == 0
    assert rows * episodes >= (2 * 14 + 10) * step_time.BATCH  # half rejected, and a full pool in the end
    assert ("--pace.log_dir" in arguments) == ("--pace.enable" in arguments)


def script(*lines: str, code: int = 0, sleep: float = 0.0) -> list[str]:
    program = f"import sys, time\n[print(line, flush=True) for line in {list(lines)!r}]\n"
    return [sys.executable, "-c", f"{program}time.sleep({sleep})\nsys.exit({code})"]


def test_a_run_is_stopped_after_its_last_update(tmp_path):
    log = tmp_path / "run.log"
    with running(script(*map(line, (1, 2, 3)), sleep=60), log, seed=0) as process:
        found = list(step_time.follow(process, log, n_updates=2, limit_s=30))
    assert [update.step for update in found] == [1, 2]
    assert isinstance(process, subprocess.Popen) and process.poll() is not None


@pytest.mark.parametrize(
    ("arguments", "limit", "why"),
    [
        (script(line(1), "the cause", code=3), 30.0, r"the cause\nended with exit code 3"),
        (script(line(1), sleep=60), 0.5, "made no update for 0 s"),
    ],
)
def test_a_run_that_ends_or_stands_still_has_failed(tmp_path, arguments, limit, why):
    log = tmp_path / "run.log"
    with running(arguments, log, seed=0) as process, pytest.raises(step_time.Failed, match=why):
        list(step_time.follow(process, log, n_updates=2, limit_s=limit))


def test_a_failed_run_ends_in_a_non_zero_exit_code(tmp_path, material, monkeypatch, capsys):
    """The others are still made and written down."""
    at = iter(range(3))

    def measure(setting, way, args, material, label):
        if way == "async":
            raise step_time.Failed("the cause")
        return run(setting, way, 2.0 + next(at)) | {"at": []}

    from examples.tiny import build

    monkeypatch.setattr(step_time, "measure", measure)
    monkeypatch.setattr(build, "build", lambda report: material)
    written = tmp_path / "numbers.json"
    flags = ["--ways", "sync", "async", "unfiltered", "--settings", "tool", "--json", str(written)]
    monkeypatch.setattr(sys, "argv", ["step_time.py", *flags])
    assert step_time.main() == 1
    printed = capsys.readouterr()
    assert "tool, async FAILED:\nthe cause" in printed.err
    content = json.loads(written.read_text())
    assert content["failed"] == ["round 1/1, tool, async"]
    assert list(content["summary"]["tool"]) == ["sync", "unfiltered"]


def test_the_tools_waits_are_seeded_and_heavy_tailed():
    source = agent.waits("0", 3)
    first = [agent.wait_s(source) for _ in range(2000)]
    again = agent.waits("0", 3)
    assert [agent.wait_s(again) for _ in range(2000)] == first
    assert agent.wait_s(agent.waits("0", 4)) != first[0]
    assert min(first) >= agent.SMALLEST_S and max(first) <= agent.LARGEST_S and max(first) > 100 * min(first)
    assert statistics.median(first) < statistics.mean(first) / 1.5


def test_the_slow_agent_plays_the_same_game(monkeypatch):
    waited = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(agent.asyncio, "sleep", sleep)

    async def play(kind: type) -> list[str]:
        episode = kind()
        await episode.reset({"observation": "", "label": json.dumps({"start": 1, "target": 11, "calls": 3})})
        states = [{"action_text": f"<call>{call}</call>"} for call in ("+9", "+1")]
        answers = [await episode.step(state) for state in states]
        assert copy.deepcopy(episode).state == episode.state
        return [f"{answer['environment_feedback']} {answer['done']}" for answer in answers]

    slow = asyncio.run(play(agent.AgentInstance))
    assert slow == asyncio.run(play(agent.calculator.AgentInstance)) and len(waited) == 2
