"""The simulator: hand-worked runs, the published closed form, and that the pool's account closes in every run."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pace.config import PaceConfig
from pace.simulation_cluster import Cluster, Work, Workload, flag
from pace.simulation_run import DropOldest, Simulation, Stalled
from pace.simulator import POLICIES, SHOWN, advice, closed_form, main, simulate, table

DOC = Path(__file__).resolve().parents[2] / "docs" / "simulator.md"
SMALL = Cluster(slots=12, batch_groups=6, group_size=3, mean_tokens=400.0, sync_s=0.5).at_load(1.3)
BELOW = SMALL.at_load(0.7)


def hours(cluster, steps):
    """Virtual hours of so many updates, if the slower side sets the pace."""
    return steps * cluster.train_s * max(1.0, 1 / cluster.load) / 3600


def one_by_one(**numbers):
    """One slot, one group of one trajectory of 100 tokens at a token a second, updates of 40 s."""
    sizes = {"slots": 1, "batch_groups": 1, "group_size": 1, "lengths": "constant", "prompt_spread": 0.0}
    times = {"mean_tokens": 100.0, "tokens_per_s": 1.0, "train_s": 40.0, "sync_s": 0.0}
    return Cluster(**sizes | times | numbers)


def test_a_run_worked_by_hand():
    """Every trajectory begins with an update, sees the new version after 40 of its 100 tokens, and never waits."""
    result = simulate(one_by_one(), "unfiltered", hours=10.0)
    assert {part: result.lag(part) for part in ("gen", "sib", "pool", "total", "start")} == pytest.approx(
        {"gen": 0.4, "sib": 0.0, "pool": 0.0, "total": 0.4, "start": 1.0}
    )
    assert result.step_s == pytest.approx(100.0, rel=0.01)
    assert result.trainer_idle == pytest.approx(0.6, abs=0.01) and result.rollout_idle == 0.0
    assert result.load == pytest.approx(0.4) and result.rejected == result.wasted == 0.0


def test_rollouts_stand_still_during_a_sync():
    result = simulate(one_by_one(sync_s=10.0), "unfiltered", hours=10.0)
    assert result.step_s == pytest.approx(110.0, rel=0.01)
    assert result.paused == pytest.approx(10 / 110, abs=0.002)
    assert result.lag("gen") == pytest.approx(0.4)


def test_siblings_that_take_turns_in_one_slot_wait_for_each_other():
    """The first of each group is done before an update ends, the second sees it half-way; together they see none."""
    turns = simulate(one_by_one(group_size=2, slot_unit="trajectory", train_s=150.0), "unfiltered", hours=10.0)
    assert [turns.lag(part) for part in ("gen", "sib", "pool", "start")] == pytest.approx([0.25, 0.5, 0.0, 1.0])
    assert turns.step_s == pytest.approx(200.0, rel=0.02)
    together = simulate(one_by_one(group_size=2, train_s=150.0), "unfiltered", hours=10.0)
    assert together.lag("sib") == 0.0 and together.step_s == pytest.approx(150.0, rel=0.02)


def test_no_token_is_written_while_a_tool_runs():
    work = Work(n_tokens=100, tool_s=50.0, drift=1.0)
    assert [work.tokens_by(s, 1.0) for s in (0, 30, 50, 80, 100, 120, 150, 999)] == [0, 30, 50, 50, 50, 70, 100, 100]
    assert work.duration(2.0) == 100.0


@pytest.mark.parametrize(
    ("load", "slots_per_batch", "queue"),
    [(0.6, 1, 1), (0.6, 2, 2), (0.8, 3, 1), (0.9, 2, 2), (1.07, 1, 2)]
    + [(1.1, 1, 1), (1.1, 3, 1), (1.25, 4, 2), (1.5, 2, 1), (1.5, 4, 2)],
)
def test_the_closed_form(load, slots_per_batch, queue):
    """Lags from a group's start, where a queue drops its oldest; lengths vary little, as the form has no variance."""
    cluster = Cluster(
        slots=slots_per_batch * 32, batch_groups=32, group_size=1, prompt_spread=0.0, spread=0.35, sync_s=0.0
    ).at_load(load)
    result = simulate(cluster, "drop-oldest", hours=hours(cluster, 130), queue_batches=queue)
    expected = closed_form(load, slots_per_batch=slots_per_batch, queue_batches=queue)
    assert result.lag("start") == pytest.approx(expected, abs=0.15)


def test_the_closed_form_has_the_published_terms():
    assert closed_form(0.5, slots_per_batch=2.0) == pytest.approx(2.0 + 0.5)
    assert closed_form(2.0, slots_per_batch=2.0, queue_batches=3) == pytest.approx(1.0 + 7 / 4)


def test_a_queue_that_drops_its_oldest_keeps_what_fits():
    plan = DropOldest(batch_groups=4, target_batches=2).plan_from(11, rate=0.0, carry=0.0)
    assert (plan.rejections, plan.candidates) == (3, 7)
    assert DropOldest(batch_groups=4, target_batches=2).plan_from(8, rate=0.0, carry=0.0).rejections == 0


def test_the_seed_and_nothing_else_decides():
    first, again = (simulate(SMALL, "pace-effective", hours=hours(SMALL, 40), seed=3).to_dict() for _ in range(2))
    assert first == again
    assert first != simulate(SMALL, "pace-effective", hours=hours(SMALL, 40), seed=4).to_dict()


def test_every_policy_gets_the_same_work():
    workload, again = Workload(SMALL, seed=1), Workload(SMALL, seed=1)
    assert workload.group(prompt=5, attempt=0) == again.group(prompt=5, attempt=0)
    assert workload.group(prompt=5, attempt=0) != workload.group(prompt=5, attempt=1)


@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_the_account_closes_in_every_run(data):
    def one(*values):
        return data.draw(st.sampled_from(values))

    numbers = {"slots": one(3, 8), "batch_groups": one(1, 3), "group_size": one(1, 3), "mean_tokens": 200.0}
    numbers |= {"slot_unit": one("group", "trajectory"), "lengths": one("constant", "exponential", "lognormal")}
    numbers |= {"tool_share": one(0.0, 0.3), "filter_share": one(0.0, 0.3), "sync_s": one(0.0, 2.0)}
    cluster = Cluster(**numbers, max_tokens=one(0, 300)).at_load(one(0.6, 1.0, 1.6))
    config = PaceConfig(
        **POLICIES[one(*POLICIES)]
        | {"on_reject": one("drop", "requeue"), "requeue_cap": 1, "rank": one("effective", "random", "oldest")}
    )
    config = replace(config, k_max=one(-1, 2)) if not config.strict else config
    simulation = Simulation(cluster, config, seed=data.draw(st.integers(0, 99)), queue_batches=one(None, 1.5))
    result = simulation.run(hours(cluster, 12))
    simulation.pool.ledger.check()
    for account in result.ledger.values():
        assert account["generated"] == sum(account.values()) - account["generated"]
    idle = (result.trainer_idle, result.rollout_idle, result.paused)
    assert all(0 <= share <= 1 + 1e-9 for share in (*idle, result.wasted, result.rejected + result.evicted))
    if result.lag("total") is not None:
        parts = (result.lag(part) for part in ("gen", "sib", "pool"))
        assert sum(parts) == pytest.approx(result.lag("total"))
        assert result.lag("effective") <= result.lag("total") + 1e-9
        assert result.lag("total") <= result.lag("start") + 1e-9


def test_below_load_one_pace_is_inert():
    runs = [simulate(BELOW, policy, hours=hours(BELOW, 60)).to_dict() for policy in ("unfiltered", "pace-effective")]
    assert runs[0]["rejected"] == runs[1]["rejected"] == 0.0
    assert runs[0] == runs[1]


def test_above_it_pace_cuts_the_wait_and_the_trainer_still_never_waits():
    unfiltered, kept = (simulate(SMALL, policy, hours=hours(SMALL, 120)) for policy in ("unfiltered", "pace-raw"))
    assert 3 * kept.lag("pool") < unfiltered.lag("pool")
    assert kept.trainer_idle < 0.03 and kept.rejected == pytest.approx(1 - 1 / 1.3, abs=0.05)
    assert kept.pool_batches == pytest.approx(1.3 * 1.25, abs=0.25)  # the droop: load times target


def test_synchronous_training_has_no_lag():
    result = simulate(SMALL, "sync", hours=hours(SMALL, 60))
    assert result.steps > 5 and result.lag("total", "max") == 0.0 and result.lag("start", "max") == 0.0
    assert result.trainer_idle > 0.2


@pytest.mark.parametrize("eta", [1, 3])
def test_areals_bound_holds_for_the_mean_start_lag(eta):
    """A straggler may exceed it, since what is ready is trained first; then others are below."""
    result = simulate(SMALL, "areal", base=PaceConfig(admission_eta=eta), hours=hours(SMALL, 60))
    assert eta - 1 < result.lag("start") <= eta + 0.05 and result.rejected == 0.0


def test_the_cap_holds():
    result = simulate(SMALL, "pace-raw", base=PaceConfig(k_max=2), hours=hours(SMALL, 60))
    assert result.lag("total", "max") <= 2 and result.evicted > 0


def test_a_run_that_cannot_go_on_says_so():
    config = PaceConfig(**POLICIES["unfiltered"], max_inflight_groups=1)
    simulation = Simulation(one_by_one(filter_share=0.0), config)
    simulation.pool.ledger.start("stray", version=0)  # holds the only place, and never gets ready
    with pytest.raises(Stalled, match="no rollout may start"):
        simulation.run(1.0)


FAST = ["--hours", "0.3", "--workers", "1", "--cluster.slots", "8", "--cluster.batch_groups", "4"]
FAST += ["--cluster.group_size", "2", "--cluster.mean_tokens", "400", "--cluster.train_s", "6"]


def test_the_command_prints_a_line_per_policy_and_advice(capsys, tmp_path):
    file = tmp_path / "numbers.json"
    assert main([*FAST, "--json", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1 : len(SHOWN) + 1]] == list(SHOWN)
    content = json.loads(file.read_text())
    assert list(content["policies"]) == list(SHOWN) and content["policies"]["sync"]["lags"]["total/max"] == 0.0
    assert any(line.startswith("load ") for line in lines) and content["advice"][0] in lines


def test_json_to_the_console_is_nothing_but_json(capsys):
    assert main([*FAST, "--policies", "pace-raw", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["cluster"]["slots"] == 8


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--hours", "0"], "--hours must be between 0.01 and 1000, got 0"),
        (["--queue_batches", "0.5"], "--queue_batches must be between 1 and 1000"),
        (["--cluster.slots", "0"], "--cluster.slots must be at least 1, got 0: use engines x concurrency"),
        (["--cluster.spread", "9"], "--cluster.spread must be between 0 and 3, got 9.0: use 0.4 to 1"),
        (["--cluster.tool_share", "nan"], "--cluster.tool_share must be between 0 and 1, got nan"),
        (["--cluster.slot_unit", "token"], "argument --cluster.slot_unit: invalid choice"),
        (["--pace.gamma", "0"], "--pace.gamma must be between 0.01 and 64, got 0.0: use 1, 2 or 4"),
        (["--pace.pool_capacity_groups", "5"], "--pace.pool_capacity_groups must hold at least one batch (32 groups)"),
        (["--policies", "best"], "argument --policies: invalid choice"),
    ],
)
def test_a_wrong_flag_ends_with_its_name_and_the_fix(argv, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize(("cluster", "words"), [(SMALL, "surplus of 23%"), (BELOW, "PACE is inert")])
def test_the_advice_knows_the_regime(cluster, words):
    results = {"unfiltered": simulate(cluster, "unfiltered", hours=hours(cluster, 20))}
    assert words in advice(cluster, results)[0]
    assert table(results).splitlines()[1].startswith("unfiltered")


def test_every_number_of_a_cluster_is_described():
    described = dict(re.findall(r"^\| `(--cluster\.\w+)` \| `([^`]*)`", DOC.read_text(), re.MULTILINE))
    assert described == {flag(f.name): str(f.default) for f in fields(Cluster)}
