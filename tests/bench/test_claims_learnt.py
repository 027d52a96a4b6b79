"""bench/claims_learnt.py judges made-up runs as it says."""

import re
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest

import openrlhf
from bench import step_time
from bench.claims import judged
from bench.claims_learnt import CLAIMS, LAGS, PACE, WAYS, best, curve, main, reached, report, smoothed
from bench.step_time import Update
from pace.config import PaceConfig, flag


def learnt(*rewards: float, step_s: float = 1.0, **lags: float) -> dict[str, Any]:
    at = [i * step_s for i in range(len(rewards))]
    return {"at": at, "reward": list(rewards), "lags": {part: lags.get(part, 1.0) for part in LAGS}}


@pytest.fixture
def ideal() -> dict[str, Any]:
    """All claims hold."""
    plain = learnt(*[i / 20 for i in range(10)], pool=8.0, gen=1.0, effective=8.0)
    fresh = learnt(*[i / 12 for i in range(10)], pool=1.0, gen=1.0, effective=1.0)
    runs = {way: plain for way in WAYS} | {way: fresh for way in WAYS if way.startswith("gamma")}
    return runs | {"stale-1": learnt(*[0.5] * 10), "stale-4": learnt(*[0.4] * 10), "stale-8": learnt(*[0.3] * 10)}


def held(runs: dict[str, Any]) -> set[str]:
    return {verdict["claim"] for verdict in judged(CLAIMS, {"1": runs}) if verdict["held"]}


def test_all_hold_in_the_ideal_case(ideal):
    assert held(ideal) == {claim.text for claim in CLAIMS}


@pytest.mark.parametrize(
    ("way", "like", "lost"),
    [
        ("stale-1", "stale-8", "a larger k"),
        (PACE, "unfiltered", "PACE halves"),
        (PACE, "unfiltered", "PACE takes"),
        (PACE, "unfiltered", "gamma"),
        ("stale-8", "stale-1", "a larger k"),
    ],
)
def test_a_claim_is_lost_with_its_run(ideal, way, like, lost):
    missing = {claim.text for claim in CLAIMS} - held(ideal | {way: ideal[like]})
    assert any(text.startswith(lost) for text in missing)


def test_a_better_asynchronous_way_takes_the_peak_and_a_better_synchronous_one_does_not(ideal):
    better = learnt(*[0.9] * 10)
    assert not any(text.startswith("PACE's peak") for text in held(ideal | {"async": better}))
    assert any(text.startswith("PACE's peak") for text in held(ideal | {"sync": better}))


def test_claims_wait_for_their_ways_and_hold_for_every_seed(ideal):
    some = {way: run for way, run in ideal.items() if not way.startswith("stale")}
    assert {v["claim"] for v in judged(CLAIMS, {"1": some})} == {claim.text for claim in CLAIMS[1:]}
    worse = ideal | {PACE: ideal["unfiltered"]}
    (verdict,) = [v for v in judged(CLAIMS, {"1": ideal, "2": worse}) if v["claim"].startswith("PACE takes")]
    assert verdict["by_seed"] == {"1": True, "2": False} and not verdict["held"]
    assert verdict["numbers"]["share of unfiltered's time"] == [pytest.approx(7 / 9), 1.0]


def test_smoothing_and_times():
    assert smoothed([1.0, 0.0, 0.0, 0.0, 0.0, 5.0]) == [1.0, 0.5, 1 / 3, 0.25, 0.2, 1.0]
    run = learnt(0.0, 1.0, 1.0, step_s=3.0)
    assert best(run) == pytest.approx(2 / 3) and reached(run, 0.5) == 3.0 and reached(run, 0.9) == float("inf")


def test_a_run_is_read_and_one_without_a_reward_is_an_error():
    updates = [Update(i, 10.0 + 2 * i, {"rollout/reward_mean": i / 4}) for i in range(3)]
    log = [{"pace/staleness/pool/mean": 1.0}, {}, {"pace/staleness/pool/mean": 2.0}]
    found = curve(updates, log)
    assert found["at"] == [0.0, 2.0, 4.0] and found["reward"] == [0.0, 0.25, 0.5]
    assert found["lags"] == {"pool": 1.5, "gen": None, "effective": None, "total": None}
    with pytest.raises(ValueError, match="no reward at update 7"):
        curve([Update(7, 0.0, {})], [])


def test_the_report_has_every_claim_and_way(ideal):
    lines = report({"arguments": {"updates": 10}, "runs": {"1": ideal, "2": ideal}}).splitlines()
    assert lines[0] == "10 updates, seeds 1, 2"
    assert sum(line.startswith("held: ") for line in lines) == len(CLAIMS)
    assert {line.split()[0] for line in lines[-len(WAYS) :]} == set(WAYS)


@pytest.mark.parametrize("way", WAYS)
def test_every_flag_exists(tmp_path, way):
    (tmp_path / "train.jsonl").write_text("{}\n" * 100)
    material = SimpleNamespace(model=tmp_path / "model")
    flags = (*WAYS[way], "--train.seed", "1")
    arguments = step_time.command("uniform", flags, tmp_path, n_updates=9, material=material)
    upstream = (openrlhf.UPSTREAM / "cli" / "train_ppo_ray.py").read_text().replace("{prefix}", "actor")
    known = {*re.findall(r"(--[a-z][\w.]+)", upstream), *(flag(field.name) for field in fields(PaceConfig))}
    assert {argument for argument in arguments if argument.startswith("--")} <= known


def test_a_wrong_flag_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["--updates", "3"])
    assert "--updates must be at least 10, got 3" in capsys.readouterr().err
