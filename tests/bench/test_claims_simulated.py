"""How bench/claims_simulated.py judges: on two short runs, and on results made up to break each claim."""

from dataclasses import replace

import pytest

from bench import claims_simulated
from bench.claims import judged
from bench.claims_simulated import BELOW, CLAIMS, PAPER, PAPER_STEP_S, main, report, run_one, settings

RUNS = {"pool": 8.0, "gen": 0.2, "sib": 0.5, "effective": 8.4, "total": 8.7}


@pytest.fixture(scope="module")
def blank():
    """A real result, to be changed."""
    return run_one("sync", 1, 20)


@pytest.fixture
def ideal(blank):
    """Results of every run for which all claims hold."""

    def made(pool, *, step_s=26.19, gen=0.2, idle=0.0, rejected=0.0, length=1.0, total=None):
        lags = RUNS | {"pool": pool, "gen": gen, "effective": pool + 0.1, "total": total or pool + 0.7}
        lags |= {f"rejected/{part}": lags[part] + 1 for part in ("pool", "gen", "effective")}
        return replace(
            blank,
            lags={f"{part}/mean": value for part, value in lags.items()},
            **{"step_s": step_s, "trainer_idle": idle, "rejected": rejected, "pool_batches": pool},
            **{"length_trained": length, "length_all": 1.0},
        )

    runs = {name: made(1.0) for name in settings()}
    runs |= {"unfiltered": made(8.0), "sync": made(0.0, step_s=97.01)}
    runs |= {"pace-raw": made(1.0, gen=0.25, rejected=0.2, length=0.9)}
    runs |= {f"gamma {g}": made(1.0, step_s=28.22, gen=0.3, rejected=0.2) for g in (1, 2, 4)}
    runs |= {f"stale {k}": made(1.0, total=float(k)) for k in (1, 2, 4, 8)}
    runs |= {f"eta {k}": made(1.0, total=float(k), idle=0.3 if k == 1 else 0.0) for k in (1, 2, 4, 8)}
    return runs


def held(runs):
    return {verdict["claim"] for verdict in judged(CLAIMS, {1: runs}) if verdict["held"]}


def test_every_claim_can_hold(ideal):
    assert held(ideal) == {claim.text for claim in CLAIMS}


@pytest.mark.parametrize(
    ("run", "like", "lost"),
    [
        ("stale 8", "stale 1", "a larger k"),
        ("eta 1", "stale 1", "a tighter lag bound"),
        ("unfiltered", "below unfiltered", "unfiltered, a backlog"),
        ("gamma 4", "unfiltered", "PACE: waiting"),
        ("gamma 4", "pace-raw", "effective ranking keeps longer"),
        ("gamma 2", "unfiltered", "gamma 1, 2, 4"),
        ("below pace-effective", "gamma 4", "below load 1"),
        ("sync", "pace-raw", "step times"),
    ],
)
def test_a_claim_is_lost_with_its_run(ideal, run, like, lost):
    missing = {claim.text for claim in CLAIMS} - held(ideal | {run: ideal[like]})
    assert any(text.startswith(lost) for text in missing)


def test_a_claim_must_hold_for_every_seed(ideal):
    worse = ideal | {"sync": ideal["pace-raw"]}
    (verdict,) = [v for v in judged(CLAIMS, {1: ideal, 2: worse}) if v["claim"].startswith("step times")]
    assert verdict["by_seed"] == {"1": True, "2": False} and not verdict["held"]
    text = report({"arguments": {"seeds": [1, 2], "steps": 20}, "claims": [verdict]})
    assert "NOT HELD (1 of 2 seeds)" in text and "26.190 to 97.010" in text


def test_the_cluster_is_what_the_text_says():
    assert PAPER.load == pytest.approx(1.2, abs=0.01) and BELOW.load == pytest.approx(0.8)
    assert PAPER.train_s + PAPER.sync_s == pytest.approx(PAPER_STEP_S["unfiltered"])
    gap = PAPER_STEP_S["pace-effective"] - PAPER_STEP_S["pace-raw"]
    assert PAPER.rescore_s == pytest.approx(gap)


def test_a_wrong_flag_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["--steps", "3"])
    assert "--steps must be at least 20, got 3" in capsys.readouterr().err
    assert claims_simulated.parse([]).seeds == [11, 12, 13]
