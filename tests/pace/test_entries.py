import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace.admission import StaleCap
from pace.drift import ScoreWindow
from pace.entries import Entry, OpenStep, look, pack_entry, pack_step, unpack_entry, unpack_step
from pace.ranking import LagMeter
from pace.state import StateError
from pace.types import RejectReason

METER = LagMeter(ScoreWindow())


def entry_of(group, arrival: int = 0) -> Entry:
    return Entry(group, METER.prepare(group), 100.0, arrival)


def test_looking_stops_when_enough_may_be_trained(build):
    entries = [entry_of(build.group(f"g{i}", siblings=[(v,)])) for i, v in enumerate([0, 5, 0, 5, 5])]
    looks = look(entries, StaleCap(3), step=6, enough=2)
    assert [seen.reason for seen in looks] == [RejectReason.CAP, None, RejectReason.CAP, None]
    assert look(entries, StaleCap(3), step=6, enough=0) == []
    assert len(look(entries, StaleCap(3), step=6)) == 5


def test_the_order_is_readiness_then_id(build):
    keys = [entry_of(build.group(name, siblings=[(v,)])).key for name, v in (("b", 1), ("a", 1), ("c", 0))]
    assert sorted(keys) == [(0, "c"), (1, "a"), (1, "b")]


@given(seed=st.integers(0, 10_000))
def test_an_entry_keeps_its_age_across_clocks(build, seed):
    entry = entry_of(build.random_group(random.Random(seed), "g", version=3), arrival=4)
    restored = unpack_entry(json.loads(json.dumps(pack_entry(entry, now=130.0))), 7.0, METER.prepare)
    assert restored == Entry(entry.group, entry.standing, -23.0, 4)


def test_an_open_step_survives_json_strictly(build):
    pool = build.pool()
    step = OpenStep(4, pool.budget.plan(9), looked=True)
    state = json.loads(json.dumps(pack_step(step)))
    assert unpack_step(state) == step and unpack_step(pack_step(None)) is None
    with pytest.raises(StateError):
        unpack_step({**state, "extra": 1})
