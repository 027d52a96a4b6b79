import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace.state import StateError, Stateless, check_keys, pack_draw, pack_group, unpack_draw, unpack_group


@given(seed=st.integers(0, 10_000))
def test_a_group_survives_json_with_every_field(build, seed):
    group = build.random_group(random.Random(seed), "g7", version=5, attempt=2)
    assert unpack_group(json.loads(json.dumps(pack_group(group), allow_nan=False))) == group


def test_a_draw_survives_json_with_every_field(build):
    pool = build.pool(on_reject="requeue", max_reject_rate=0.9, rate_smoothing=0.0)
    build.feed(pool, *(build.random_group(random.Random(i), f"g{i}", version=i) for i in range(9)))
    draw = pool.draw(10)
    assert {d.outcome.value for d in draw.decisions} == {"kept", "rejected", "evicted"} or len(draw.decisions) > 2
    assert unpack_draw(json.loads(json.dumps(pack_draw(draw), allow_nan=False))) == draw


def test_a_line_of_the_log_has_the_decisions_without_the_groups(build):
    pool = build.pool()
    build.feed(pool, build.group("a"), build.group("b"))
    line = pack_draw(pool.draw(0), with_groups=False)
    assert line["groups"] == [] and [d["group_id"] for d in line["decisions"]] == ["a", "b"]


@pytest.mark.parametrize("change", ["missing", "unknown", "not a mapping", "bad enum", "bad value"])
def test_foreign_state_is_refused(build, change):
    pool = build.pool()
    build.feed(pool, build.group("a"), build.group("b"))
    state = pack_draw(pool.draw(0))
    if change == "missing":
        del state["plan"]["rate"]
    elif change == "unknown":
        state["groups"][0]["trajectories"][0]["colour"] = "red"
    elif change == "not a mapping":
        state["groups"][0] = ["a"]
    elif change == "bad enum":
        state["decisions"][0]["outcome"] = "vanished"
    else:
        state["groups"][0]["trajectories"][0]["reward"] = float("nan")
    with pytest.raises(StateError):
        unpack_draw(state)


def test_check_keys_names_what_is_wrong():
    with pytest.raises(StateError, match=r"Owner: missing \['a'\], unknown \['c'\]"):
        check_keys({"b": 1, "c": 2}, ("a", "b"), "Owner")


def test_stateless_policies_load_strictly():
    Stateless().load_state_dict(Stateless().state_dict())
    assert Stateless().metrics() == {}
    with pytest.raises(StateError):
        Stateless().load_state_dict({"left": "over"})
