import json
import math
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pace.metrics as metrics
from pace.metrics import (
    HISTOGRAM_EDGES,
    draw_histograms,
    draw_metrics,
    gauge_metrics,
    metric_keys,
    part_metrics,
    summary,
)


def overfull(build, n=12, seed=0, **settings):
    pool = build.pool(batch_groups=3, rate_smoothing=0.0, target_batches=1.0, pfs_window_min=1, **settings)
    rng = random.Random(seed)
    pool.window.add(rng.random() for _ in range(20))
    build.feed(pool, *(build.random_group(rng, f"g{i}", version=rng.randint(3, 8)) for i in range(n)))
    return pool


@given(seed=st.integers(0, 10_000), n=st.integers(3, 14), k_max=st.sampled_from([-1, 3, 8]))
def test_every_emitted_key_is_listed_and_every_value_is_a_finite_number(build, seed, n, k_max):
    pool = overfull(build, n, seed, k_max=k_max)
    draw = pool.draw(8, final=True)
    emitted = {**gauge_metrics(pool.gauges()), **part_metrics(pool.metrics())}
    if draw is not None:
        emitted |= draw_metrics(draw)
    assert emitted.keys() <= metric_keys()
    assert all(isinstance(value, float) and math.isfinite(value) for value in emitted.values())
    json.dumps(emitted, allow_nan=False)


def test_the_documented_tree_is_there(build):
    pool = overfull(build)
    emitted = {**draw_metrics(pool.draw(8)), **gauge_metrics(pool.gauges()), **part_metrics(pool.metrics())}
    stats = ("mean", "p50", "p90", "max")
    for part in ("total", "gen", "sib", "pool", "effective"):
        for within in ("", "kept/", "rejected/"):
            assert {f"pace/staleness/{within}{part}/{stat}" for stat in stats} <= emitted.keys()
    for name in ("groups", "target", "excess", "reject_rate", "rejected", "evicted"):
        assert f"pace/pool/{name}" in emitted
    for name in ("length", "reward", "solve_rate"):
        assert {f"pace/bias/{name}/kept", f"pace/bias/{name}/rejected"} <= emitted.keys()
    assert any(key.startswith("pace/prefix_score/") for key in emitted)
    assert any(key.startswith("pace/ledger/") for key in emitted)


def test_no_other_module_spells_metric_keys():
    package = Path(metrics.__file__).parent
    spelled = [
        path.name
        for path in package.glob("*.py")
        if path.name != "metrics.py" and re.search(r"[\"']pace/", path.read_text())
    ]
    assert spelled == []


def test_parts_of_the_mean_lag_add_up(build):
    emitted = draw_metrics(overfull(build).draw(8))
    for within in ("", "kept/", "rejected/", "token/"):
        parts = [emitted[f"pace/staleness/{within}{part}/mean"] for part in ("gen", "sib", "pool")]
        assert emitted[f"pace/staleness/{within}total/mean"] == pytest.approx(sum(parts))


def test_unknown_versions_lower_the_coverage_and_never_the_lag(build):
    """Groups whose provenance is missing must not make the data look fresh."""

    def measured(*siblings):
        pool = build.pool(batch_groups=1)
        build.feed(pool, build.group("g", siblings=siblings, completed=[4] * len(siblings), ready=4))
        return draw_metrics(pool.draw(6))

    known, mixed = measured((2, 4)), measured((2, 4), (None, None))
    for key in ("pace/staleness/total/mean", "pace/staleness/gen/mean", "pace/staleness/token/total/mean"):
        assert mixed[key] == known[key] == {"gen": 1.0}.get(key.split("/")[2], 3.0)
    assert (known["pace/staleness/coverage"], mixed["pace/staleness/coverage"]) == (1.0, 0.5)
    nothing = measured((None,), (None,))
    assert nothing["pace/staleness/coverage"] == 0.0
    assert not any(key.startswith(("pace/staleness/total", "pace/staleness/gen", "pace/staleness/token/"))
                   for key in nothing)  # fmt: skip


def test_trained_kept_and_rejected_are_told_apart(build):
    pool = build.pool(batch_groups=2, rank="raw", k_max=6, rate_smoothing=0.0, target_batches=1.0)
    build.feed(pool, *(build.group(f"g{v}", siblings=[(v,)], reward=float(v), solved=v > 4) for v in (0, 3, 4, 5, 6)))
    draw = pool.draw(7)
    emitted = draw_metrics(draw)
    outcomes = {d.group_id: d.outcome.value for d in draw.decisions}
    assert outcomes == {"g0": "evicted", "g3": "rejected", "g4": "rejected", "g5": "kept", "g6": "refilled"}
    assert emitted["pace/staleness/rejected/total/mean"] == 3.5 and emitted["pace/staleness/kept/total/mean"] == 2.0
    assert (emitted["pace/staleness/total/mean"], emitted["pace/staleness/total/max"]) == (1.5, 2.0)
    assert (emitted["pace/bias/reward/rejected"], emitted["pace/bias/solve_rate/trained"]) == (3.5, 1.0)
    assert (emitted["pace/pool/rejected"], emitted["pace/pool/evicted"], emitted["pace/pool/batch"]) == (2, 1, 2)
    assert (emitted["pace/reason/budget"], emitted["pace/reason/cap"], emitted["pace/reason/unknown"]) == (2, 1, 0)


def test_counters_only_grow_while_gauges_move(build):
    pool = overfull(build, n=12)
    seen = [part_metrics(pool.metrics())]
    for version in (8, 9):
        pool.draw(version)
        seen.append(part_metrics(pool.metrics()))
    for before, after in zip(seen, seen[1:], strict=False):
        for key, value in before.items():
            if key.startswith("pace/ledger/") and not key.endswith(("in_pool", "in_flight", "share")):
                assert after[key] >= value
    assert seen[-1]["pace/ledger/groups/in_pool"] < seen[0]["pace/ledger/groups/in_pool"]


def test_the_share_of_wasted_tokens_stands_beside_every_curve(build):
    pool = build.pool(batch_groups=1, k_max=1)
    assert "pace/ledger/wasted_token_share" not in part_metrics(pool.metrics())
    build.feed(pool, build.group("old", siblings=[(0,) * 30]), build.group("new", siblings=[(9,) * 10]))
    pool.draw(9)
    assert part_metrics(pool.metrics())["pace/ledger/wasted_token_share"] == 0.75


pairs = st.lists(st.tuples(st.floats(0, 100), st.integers(1, 20)), min_size=1, max_size=30)


@given(pairs)
def test_weighting_equals_repetition(values):
    repeated = [(value, 1.0) for value, weight in values for _ in range(weight)]
    weighted, plain = summary("x", values), summary("x", repeated)
    assert weighted["x/mean"] == pytest.approx(plain["x/mean"])
    assert [weighted[f"x/{s}"] for s in ("p50", "p90", "max")] == [plain[f"x/{s}"] for s in ("p50", "p90", "max")]
    assert weighted["x/p50"] <= weighted["x/p90"] <= weighted["x/max"]


def test_a_summary_of_nothing_is_nothing():
    assert summary("x", []) == {} and summary("x", [(3.0, 0.0)]) == {}
    assert summary("x", [(1.0, 1), (2.0, 1), (3.0, 1), (4.0, 1)]) == {
        "x/mean": 2.5, "x/p50": 2.0, "x/p90": 4.0, "x/max": 4.0
    }  # fmt: skip


def test_histograms_count_every_group_of_their_population(build):
    draw = overfull(build).draw(8)
    counts = draw_histograms(draw)
    for population in ("kept", "rejected"):
        n = sum(d.outcome.value == population for d in draw.decisions)
        assert n > 0 and sum(counts[f"pace/histogram/{population}/pool"]) == n
        assert len(counts[f"pace/histogram/{population}/pool"]) == len(HISTOGRAM_EDGES)


def test_a_lag_on_an_edge_belongs_to_the_bin_it_opens(build):
    pool = build.pool(batch_groups=1)
    build.feed(pool, build.group("g", siblings=[(0,)]))
    counts = draw_histograms(pool.draw(3))["pace/histogram/kept/total"]
    assert counts[HISTOGRAM_EDGES.index(3.0)] == 1 == sum(counts)
