"""The run's log: whole lines whatever is in them, and a record from which every decision can be made again."""

import json
import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf.trainer.fully_async.run_log import NAME, RunLog, read
from pace.config import PaceConfig
from pace.pool import TrajectoryPool
from pace.selection import replay
from pace.state import pack_draw, unpack_decisions, unpack_draw
from pace.types import Outcome, PoolDraw, Trajectory, TrajectoryGroup, VersionSpan

NAN, INF = math.nan, math.inf
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def written(folder: Any, **content: Any) -> dict[str, Any]:
    log = RunLog(folder)
    log.write("test", **content)
    log.close()
    return read(log.path)[-1]


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@given(anything)
def test_plain_data_comes_back_with_null_for_what_is_not_finite(tmp_path_factory, value):
    line = written(tmp_path_factory.mktemp("log"), value=value)
    assert line["value"] == finite(value) and line["kind"] == "test" and line["time"] > 0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (NAN, None),
        ({"deep": [INF, (-INF, 1.0)]}, {"deep": [None, [None, 1.0]]}),
        (np.float32(NAN), None),
        (np.float64(0.5), 0.5),
        (np.arange(2), [0, 1]),
        (torch.tensor(INF), None),
        (torch.tensor([1.0, NAN]), [1.0, None]),
        ("NaN and Infinity", "NaN and Infinity"),
        (PaceConfig, str(PaceConfig)),
        ({1: 2}, {"1": 2}),
        ("two\nlines", "two\nlines"),
    ],
    ids=repr,
)
def test_a_line_is_valid_json_whatever_is_in_it(tmp_path, value, expected):
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    assert written(tmp_path, value=value)["value"] == expected
    for line in (tmp_path / NAME).read_text().splitlines():
        json.loads(line, parse_constant=refuse)


def test_a_line_that_was_not_finished_is_left_out(tmp_path):
    written(tmp_path, value=1)
    with (tmp_path / NAME).open("a") as file:
        file.write('{"kind": "st')
    assert [line["value"] for line in read(tmp_path / NAME)] == [1]


def test_a_resumed_run_appends_also_behind_a_torn_line(tmp_path):
    written(tmp_path, value=1)
    written(tmp_path, value=2)
    with (tmp_path / NAME).open("a") as file:
        file.write('{"kind": "step", "metr')
    written(tmp_path, value=3)
    assert [line["value"] for line in read(tmp_path / NAME)] == [1, 2, 3]


def test_a_log_that_is_only_a_torn_line_begins_anew(tmp_path):
    (tmp_path / NAME).write_text('{"kind"')
    assert read(tmp_path / NAME) == []
    assert written(tmp_path, value=3)["value"] == 3 and len(read(tmp_path / NAME)) == 1


def test_a_line_can_be_read_before_the_log_is_closed(tmp_path):
    log = RunLog(tmp_path / "new" / "folder")
    log.settings(PaceConfig(k_max=3), batch_groups=4, start_step=7, n_prompts=9)
    (line,) = read(log.path)
    assert PaceConfig(**line["pace"]) == PaceConfig(k_max=3)
    assert (line["kind"], line["batch_groups"], line["start_step"], line["n_prompts"]) == ("settings", 4, 7, 9)
    log.close()


# A recorded run


def random_group(rng: random.Random, group_id: str, *, version: int) -> TrajectoryGroup:
    """Ready at `version`; spans, unknown versions, scores and rewards of any kind."""
    trajectories = []
    for i in range(rng.randint(1, 4)):
        completed = rng.randint(max(0, version - 3), version)
        first = rng.randint(max(0, completed - 6), completed)
        known = rng.choice([True, True, True, False])
        spans = [VersionSpan(v if known else None, rng.randint(1, 9)) for v in range(first, completed + 1)]
        trajectories.append(
            Trajectory(
                trajectory_id=f"{group_id}/{i}",
                group_id=group_id,
                prompt_id=f"p{group_id}",
                spans=tuple(spans),
                completed_version=completed,
                reward=rng.choice([None, 0.0, 1.0]),
                prefix_score=rng.random() if rng.random() < 0.6 else None,
            )
        )
    return TrajectoryGroup(
        group_id=group_id, prompt_id=f"p{group_id}", trajectories=tuple(trajectories), ready_version=version
    )


def record(folder: Any, *, seed: int, steps: int = 40, **settings: Any) -> tuple[TrajectoryPool, list[Any]]:
    """A run of a few hundred groups, logged; the pool and the lines of the log."""
    rng = random.Random(seed)
    pool = TrajectoryPool(
        PaceConfig(**settings), batch_groups=4, clock=lambda: float(rng.random()), rng=random.Random(seed)
    )
    log = RunLog(folder)
    n_groups = 0
    for step in range(steps):
        pool.window.add(rng.random() for _ in range(3))
        for _ in range(rng.choice([3, 6, 12])):
            group = random_group(rng, f"g{n_groups}", version=max(0, step - rng.choice([0, 0, 1, 5])))
            n_groups += 1
            pool.ledger.start(group.group_id, version=0)
            pool.put(group)
        draw = pool.draw(step)
        while draw is None:  # too few ready groups: more come while the step waits
            group = random_group(rng, f"g{n_groups}", version=step)
            n_groups += 1
            pool.ledger.start(group.group_id, version=0)
            pool.put(group)
            draw = pool.draw(step)
        pool.commit(step)
        log.step(step + 1, draw, {"reward": NAN, "text": "left out", "n": step})
    log.end(tuple(pool.evict(steps + 20)), {"left": NAN})
    log.close()
    return pool, read(log.path)


SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "tight": {"k_max": 2, "max_reject_rate": 0.9, "rate_smoothing": 0.0},
    "unknown": {"evict_unknown": True, "excess_law": "relative", "group_score": "max"},
    "waiting": {"wait_from": "trajectory", "rank": "waiting", "pfs_window_min": 1},
    "random": {"rank": "random", "k_max": -1},
    "oldest": {"rank": "oldest", "scarce_margin_groups": 2},
    "none": {"max_reject_rate": 0.0},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_decision_of_a_recorded_run_can_be_made_again_from_its_log(tmp_path, name):
    pool, lines = record(tmp_path, seed=3, **SETTINGS[name])
    draws = [unpack_draw(line["draw"]) for line in lines if line["kind"] == "step"]
    assert [line["step"] for line in lines if line["kind"] == "step"] == list(range(1, 41))
    outcomes = [decision.outcome for draw in draws for decision in draw.all_decisions]
    assert len(outcomes) > 150
    assert name == "none" or outcomes.count(Outcome.REJECTED) >= 10
    for draw in draws:
        assert replay(draw, budget=pool.budget, cap=pool.cap) == []
    leaving = len(outcomes) + len(unpack_decisions(lines[-1]["evicted"]))
    assert pool.ledger.columns()["groups"]["generated"] == leaving + pool.gauges().groups
    assert lines[0]["metrics"] == {"reward": None, "n": 0}


def tampered(draw: PoolDraw, rng: random.Random) -> dict[str, Any] | None:
    """The line with one decision told otherwise, or None where there is nothing to tell."""
    line = pack_draw(draw, with_groups=False)
    decisions = line["decisions"][: draw.n_window]
    rejected = [d for d in decisions if d["outcome"] == "rejected"]
    kept = [d for d in decisions if d["outcome"] == "kept"]
    if not rejected or not kept:
        return None
    a, b = rng.choice(rejected), rng.choice(kept)
    a["outcome"], b["outcome"] = b["outcome"], a["outcome"]
    return line


def test_a_line_that_was_tampered_with_is_found(tmp_path):
    pool, lines = record(tmp_path, seed=3, max_reject_rate=0.9, rate_smoothing=0.0)
    rng, n_tampered = random.Random(0), 0
    for line in lines:
        if line["kind"] != "step":
            continue
        swapped = tampered(unpack_draw(line["draw"]), rng)
        if swapped is not None:
            n_tampered += 1
            assert len(replay(unpack_draw(swapped), budget=pool.budget, cap=pool.cap)) == 2
        spent = json.loads(json.dumps(line["draw"]))
        spent["plan"]["occupancy"] += 40
        assert replay(unpack_draw(spent), budget=pool.budget, cap=pool.cap), "a budget that the pool did not allow"
        spared = json.loads(json.dumps(line["draw"]))
        next(d for d in spared["decisions"] if d["outcome"] == "kept")["worst_lag"] = 99.0
        assert replay(unpack_draw(spared), budget=pool.budget, cap=pool.cap), "a group above the cap was trained"
    assert n_tampered > 10
