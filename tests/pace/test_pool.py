"""The pool's choices. `at(3)` is a group of one token, generated and ready at version 3."""

import copy
import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pace.config
from pace.config import PaceConfig
from pace.ledger import Fate, LedgerError
from pace.pool import TrajectoryPool
from pace.ranking import RankBy
from pace.selection import replay
from pace.state import pack_draw, unpack_draw
from pace.types import Outcome, RejectReason

NO_REJECTION = {"max_reject_rate": 0.0}


@pytest.fixture(scope="session")
def at(build):
    return lambda version, name="g", **fields: build.group(f"{name}{version}", siblings=[(version,)], **fields)


def test_draws_oldest_ready_first_and_ties_by_id_whatever_the_arrival(build, at, ids):
    pool = build.pool(batch_groups=3, **NO_REJECTION)
    build.feed(pool, at(2), at(1, "b"), at(0), at(1, "a"))
    assert ids(pool.draw(2)) == ["g0", "a1", "b1"]
    assert pool.draw(3) is None and pool.gauges().groups == 1


def test_waits_for_a_full_batch_and_takes_what_is_left_at_the_end_of_the_data(build, at, ids):
    """Groups accepted before the data ran out are trained, not thrown away for want of a full batch."""
    pool = build.pool(batch_groups=3)
    build.feed(pool, at(0), at(1))
    assert pool.draw(1) is None
    last = pool.draw(1, final=True)
    assert ids(last) == ["g0", "g1"]
    pool.commit(1)
    assert pool.draw(2, final=True) is None
    pool.ledger.check()


def test_overfull_pool_rejects_the_stalest_within_the_budget(build, at):
    pool = build.pool(batch_groups=2, rank="raw", rate_smoothing=0.0, target_batches=1.0)
    build.feed(pool, *(at(v) for v in range(4)))
    draw = pool.draw(4)
    assert draw.plan.rejections == 2 and draw.plan.candidates == 4
    assert {d.group_id: d.outcome.value for d in draw.decisions} == {
        "g0": "rejected",
        "g1": "rejected",
        "g2": "kept",
        "g3": "kept",
    }
    assert all(d.reason is RejectReason.BUDGET for d in draw.decisions if d.outcome is Outcome.REJECTED)


@pytest.mark.parametrize(("lag", "trained"), [(1, True), (2, True), (3, False)])
def test_age_at_the_cap_is_trained_and_one_more_is_evicted(build, at, lag, trained):
    pool = build.pool(batch_groups=1, k_max=2)
    build.feed(pool, at(5 - lag))
    draw = pool.draw(5)
    assert (draw is not None) is trained
    assert pool.ledger.columns()["groups"]["evicted"] == (not trained)


def test_the_cap_is_exact_for_fractions_at_the_boundary(build):
    """K = 3 exactly, as a mean over thirds and sevenths: no rounding may evict it."""
    pool = build.pool(batch_groups=1, k_max=2)
    build.feed(pool, build.group("a", siblings=[(1, 3, 5), (0, 6, 1, 5, 2, 4, 3)], ready=6))
    assert pool.draw(6) is None
    pool = build.pool(batch_groups=1, k_max=3)
    build.feed(pool, build.group("a", siblings=[(1, 3, 5), (0, 6, 1, 5, 2, 4, 3)], ready=6))
    assert pool.draw(6) is not None


def test_one_stale_sibling_evicts_the_whole_group(build):
    pool = build.pool(batch_groups=1, k_max=3)
    build.feed(pool, build.group("a", siblings=[(0,), (4,)], ready=4), build.group("b", siblings=[(4,), (4,)]))
    draw = pool.draw(4)
    assert [(d.group_id, d.outcome, d.reason) for d in draw.decisions] == [
        ("a", Outcome.EVICTED, RejectReason.CAP),
        ("b", Outcome.REFILLED, None),
    ]
    assert draw.decisions[0].total == 2.0 and draw.decisions[0].worst_lag == 4.0
    assert len(draw.groups[0].trajectories) == 2


@given(seed=st.integers(0, 10_000), k_max=st.sampled_from([0, 1, 2, 4, 8]))
def test_stale_k_trains_nothing_above_k_and_refills(build, seed, k_max):
    rng = random.Random(seed)
    pool = build.pool(batch_groups=3, k_max=k_max, **NO_REJECTION)
    for version in range(12):
        for i in range(rng.randint(0, 7)):
            build.feed(pool, build.random_group(rng, f"g{version}-{i}", version=version))
        draw = pool.draw(version)
        if draw is None:
            continue
        assert len(draw.groups) == 3
        for decision in draw.all_decisions:
            assert (decision.worst_lag > k_max) is (decision.outcome is Outcome.EVICTED)
        for group in draw.groups:
            for t in group.trajectories:
                assert not t.n_known or version - t.version_sum / t.n_known <= k_max + 1e-9


def test_evicted_candidates_are_replaced_from_behind_the_window(build, at, ids):
    pool = build.pool(batch_groups=2, k_max=3, **NO_REJECTION)
    build.feed(pool, at(0), at(1), at(4), at(0, "x"), at(5), at(6))
    draw = pool.draw(6)
    assert ids(draw) == ["g4", "g5"]
    assert [d.outcome.value for d in draw.decisions] == ["evicted", "evicted", "evicted", "refilled", "refilled"]
    assert draw.n_window == 2 and draw.plan.occupancy == 6


def test_a_step_sets_its_budget_once_and_rejects_nothing_after_waiting(build, at, ids):
    pool = build.pool(batch_groups=2, k_max=3, rate_smoothing=0.0, target_batches=1.0)
    build.feed(pool, at(0), at(1), at(2), at(9))
    assert pool.draw(9) is None and pool.draw(9) is None
    assert pool.gauges().groups == 1
    build.feed(pool, at(8), at(7), at(6, "y"))
    draw = pool.draw(9)
    assert ids(draw) == ["y6", "g7"] and draw.plan.occupancy == 4
    assert ids(draw.evicted_before) == ["g0", "g1", "g2"]
    assert all(d.outcome is not Outcome.REJECTED for d in draw.all_decisions)
    assert replay(draw, budget=pool.budget, cap=pool.cap) == []


def test_asking_again_returns_the_same_batch_until_it_is_committed(build, at):
    pool = build.pool(batch_groups=1)
    build.feed(pool, at(0), at(1))
    first = pool.draw(1)
    assert pool.draw(1) is first
    ahead = pool.draw(2)  # prefetch: lags are those of step 2
    assert ahead is not None and ahead.decisions[0].pool == 1.0 and pool.draw(1) is first
    pool.commit(1)
    for wrong in (lambda: pool.draw(1), lambda: pool.commit(1), lambda: pool.draw(0)):
        with pytest.raises(ValueError, match="step"):
            wrong()
    assert pool.draw(2) is ahead


def test_versions_that_run_backwards_are_an_error(build, at):
    pool = build.pool(batch_groups=1)
    build.feed(pool, at(5))
    with pytest.raises(ValueError, match="version 5"):
        pool.draw(4)


def test_a_group_enters_once_and_only_if_it_was_started(build, at):
    pool = build.pool()
    with pytest.raises(LedgerError):
        pool.put(at(0))
    build.feed(pool, at(0))
    with pytest.raises(LedgerError):
        pool.put(at(0))
    assert pool.gauges().groups == 1


def test_back_pressure_stops_new_work_and_never_refuses_what_is_in_flight(build, at):
    pool = build.pool(batch_groups=2, pool_capacity_groups=3, max_inflight_groups=4)
    for i in range(4):
        assert pool.may_start(0) == 4 - i
        pool.ledger.start(f"g{i}", version=0)
    assert pool.may_start(0) == 0  # in-flight limit
    free = []
    for i in range(4):
        pool.put(at(i))
        free.append(pool.may_start(0))
    assert free == [1, 2, 0, 0]  # shut at exactly the capacity
    assert pool.may_start(0) == 0 and not pool.gauges().accepting  # full, though nothing is in flight
    assert pool.gauges().groups == 4  # at most capacity plus in flight
    pool.draw(4)
    assert pool.may_start(4) == 4


def test_failures_and_filtered_groups_free_their_slots(build):
    """Slots that leak with failed work stop a run after a while."""
    pool = build.pool(batch_groups=2, strict=True)
    for round_ in range(20):
        assert pool.may_start(0) == 2
        for i, fate in enumerate((Fate.FAILED, Fate.FILTERED)):
            pool.ledger.start(f"{round_}-{i}", version=0)
            pool.ledger.close(f"{round_}-{i}", fate, n_tokens=5)
    pool.ledger.check()


def test_rejections_do_not_use_up_the_admission_bound(build, at):
    pool = build.pool(batch_groups=1, admission="areal", admission_eta=1, rate_smoothing=0.0, target_batches=1.0)
    serial = 0
    for version in range(30):
        assert pool.may_start(version) > 0
        for _ in range(pool.may_start(version)):
            build.feed(pool, at(version, f"n{serial}-"))
            serial += 1
        assert pool.draw(version) is not None
        pool.commit(version)
    assert pool.ledger.columns()["groups"]["rejected"] > 0


def test_strict_mode_has_lag_exactly_zero(build, at):
    pool = build.pool(batch_groups=3, strict=True)
    for version in range(5):
        assert pool.may_start(version) == 3
        build.feed(pool, *(at(version, f"{i}-") for i in range(3)))
        draw = pool.draw(version)
        assert pool.may_start(version) == 0, "nothing starts before the update"
        assert [d.total for d in draw.decisions] == [0.0] * 3
        pool.commit(version)
    assert pool.ledger.columns()["groups"]["rejected"] == 0


def test_rejected_prompts_come_back_up_to_the_cap_and_are_handed_over_once(build, at):
    """A hard prompt must not go round for ever."""
    pool = build.pool(batch_groups=1, on_reject="requeue", requeue_cap=2, k_max=1)
    for attempt in range(3):
        build.feed(pool, build.group(f"try{attempt}", siblings=[(0,)], attempt=attempt, prompt_id="hard"))
        [decision] = pool.evict(5)
        requeues = pool.take_requeues()
        assert decision.requeued is bool(requeues) is (attempt < 2)
        assert [(r.prompt_id, r.attempt) for r in requeues] == [("hard", attempt + 1)][: len(requeues)]
        assert pool.take_requeues() == []


def test_dropped_prompts_do_not_come_back(build, at):
    pool = build.pool(k_max=0)
    build.feed(pool, at(0))
    assert not pool.evict(1)[0].requeued and pool.take_requeues() == []


def test_unknown_versions_rank_first_and_are_evicted_on_request(build, at):
    unknown = build.group("unknown", siblings=[(None,)])
    pool = build.pool(batch_groups=1, rank="raw", rate_smoothing=0.0, target_batches=1.0)
    build.feed(pool, unknown, at(0), at(1))
    decisions = {d.group_id: d for d in pool.draw(1).decisions}
    assert decisions["unknown"].outcome is Outcome.REJECTED
    assert decisions["unknown"].total is None and decisions["unknown"].n_unknown == 1
    pool = build.pool(batch_groups=1, evict_unknown=True)
    build.feed(pool, unknown)
    assert [d.reason for d in pool.evict(0)] == [RejectReason.UNKNOWN]


def test_gauges_show_the_queue_age_in_seconds_and_versions(build, at):
    clock = build.clock()
    pool = build.pool(clock=clock)
    build.feed(pool, at(1))
    clock.now += 12.5
    build.feed(pool, at(3))
    pool.evict(4)
    gauges = pool.gauges()
    assert (gauges.oldest_age_s, gauges.oldest_lag, gauges.groups, gauges.in_flight) == (12.5, 3, 2, 0)
    assert build.pool().gauges().oldest_age_s == 0.0


def test_only_prefix_scores_separate_equal_ages(build):
    pool = build.pool(batch_groups=1, rate_smoothing=0.0, target_batches=1.0, pfs_window_min=2)
    pool.window.add([0.1, 0.2, 0.8, 0.9])
    build.feed(
        pool,
        build.group("drifted", siblings=[(0, 2)], scores=[0.9]),
        build.group("stable", siblings=[(0, 2)], scores=[0.1]),
    )
    outcomes = {d.group_id: d.outcome for d in pool.draw(2).decisions}
    assert outcomes == {"drifted": Outcome.REJECTED, "stable": Outcome.KEPT}


@pytest.mark.parametrize("rank", [rank.value for rank in RankBy])
def test_equal_inputs_make_equal_choices_whatever_the_order_of_arrival(build, rank):
    def run(order: list[int]) -> list:
        rng = random.Random(5)
        groups = [build.random_group(rng, f"g{i}", version=rng.randint(3, 6)) for i in range(12)]
        pool = build.pool(batch_groups=3, rank=rank, rate_smoothing=0.0, seed=1)
        pool.window.add(random.Random(2).random() for _ in range(40))
        build.feed(pool, *(groups[i] for i in order))
        return [(d.group_id, d.outcome) for version in (6, 7) for d in pool.draw(version).decisions]

    straight = list(range(12))
    assert run(straight) == run(straight)
    if rank != "oldest":  # that one is about arrival
        assert run(straight) == run(straight[::-1])


@given(
    seed=st.integers(0, 100_000),
    rank=st.sampled_from([rank.value for rank in RankBy]),
    k_max=st.sampled_from([-1, 2, 5]),
    requeue=st.sampled_from(["drop", "requeue"]),
)
def test_the_decision_log_replays_and_every_record_adds_up(build, seed, rank, k_max, requeue):
    rng = random.Random(seed)
    pool = build.pool(
        batch_groups=3, rank=rank, k_max=k_max, on_reject=requeue, rate_smoothing=rng.choice([0.0, 0.5, 0.8])
    )
    log, serial = [], 0
    for version in range(10):
        for _ in range(rng.randint(0, 9)):
            build.feed(pool, build.random_group(rng, f"g{serial}", version=version))
            serial += 1
        pool.window.add(rng.random() for _ in range(rng.randint(0, 12)))
        draw = pool.draw(version)
        if draw is not None:
            log.append(json.dumps(pack_draw(draw, with_groups=False), allow_nan=False))
            pool.commit(version)
        pool.ledger.check()
    left = [d for line in log for d in unpack_draw(json.loads(line)).all_decisions]
    assert len({d.group_id for d in left}) == len(left), "a group leaves once"
    for line in log:
        draw = unpack_draw(json.loads(line))
        assert replay(draw, budget=pool.budget, cap=pool.cap) == []
        for d in draw.all_decisions:
            assert d.total is None or abs(d.total - (d.gen + d.sib + d.pool)) < 1e-9
            assert d.requeued <= (requeue == "requeue")


def test_trained_length_stays_unbiased_without_ranking_by_age(build):
    """Discarding must not starve slow work: random rejection keeps the length of what is trained."""
    rng = random.Random(0)
    pool = build.pool(batch_groups=8, rank="random", k_max=-1, target_batches=1.0)
    trained, everything = [], []
    for version in range(120):
        for i in range(12):
            length = rng.randint(1, 6)
            start = max(0, version - length)
            group = build.group(f"g{version}-{i}", siblings=[tuple(range(start, version + 1))])
            everything.append(group.n_tokens)
            build.feed(pool, group)
        trained += [g.n_tokens for g in pool.draw(version).groups]
        pool.commit(version)
    ratio = (sum(trained) / len(trained)) / (sum(everything) / len(everything))
    assert 0.96 < ratio < 1.04
    assert pool.ledger.columns()["groups"]["rejected"] > 200


def test_a_draw_from_ten_thousand_groups_of_sixteen_takes_milliseconds(build):
    pool = build.pool(batch_groups=32, pool_capacity_groups=20_000, k_max=-1)
    rng = random.Random(0)
    pool.window.add(rng.random() for _ in range(512))
    models = [build.random_group(rng, f"t{i}", version=10, n=16) for i in range(20)]
    for i in range(10_000 + 64 * 40):
        group = copy.copy(models[i % 20])  # the trajectories are shared: building 200,000 would take the time
        object.__setattr__(group, "group_id", f"g{i:06d}")
        build.feed(pool, group)
    times = []
    for version in range(10, 50):
        started = time.process_time()  # CPU time: other work on the machine is not the pool's
        draw = pool.draw(version)
        times.append(time.process_time() - started)
        assert len(draw.groups) == 32
        pool.commit(version)
    assert pool.gauges().groups >= 10_000
    assert sorted(times)[-1] < 0.010, f"slowest of 40 draws: {max(times) * 1e3:.1f} ms"


def test_capacity_below_a_batch_is_refused_at_once():
    with pytest.raises(ValueError, match="--pace.pool_capacity_groups"):
        TrajectoryPool(PaceConfig(pool_capacity_groups=1), batch_groups=2, clock=time.monotonic, rng=random.Random(0))


def test_the_core_needs_nothing_but_the_standard_library():
    code = (
        "import sys, pathlib, importlib, pace\n"
        "for path in pathlib.Path(pace.__file__).parent.glob('*.py'):\n"
        "    if path.stem not in ('__init__', 'actor'): importlib.import_module(f'pace.{path.stem}')\n"
        "tops = {name.split('.')[0] for name in sys.modules}\n"
        "print(sorted(tops & {'ray', 'torch', 'numpy', 'vllm', 'openrlhf', 'trace_alloc', 'hypothesis'}))\n"
    )
    root = Path(pace.config.__file__).parents[1]
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == "[]", run.stdout + run.stderr
