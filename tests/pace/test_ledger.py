import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace.ledger import COLUMNS, Fate, Ledger, LedgerError
from pace.state import StateError

FROM_POOL = [fate for fate in Fate if fate.from_pool]
FROM_FLIGHT = [fate for fate in Fate if not fate.from_pool]


def random_operation(ledger: Ledger, rng: random.Random, flying: list[str], pooled: list[str], serial: int) -> None:
    kind = rng.choice(["start", "generate", "ready", "pool", "flight", "restart"])
    if kind == "start":
        ledger.start(f"g{serial}", version=rng.randint(0, 5))
        flying.append(f"g{serial}")
    elif kind == "restart":
        assert ledger.restart_in_flight() == flying
    elif kind == "pool" and pooled:
        ledger.close(pooled.pop(rng.randrange(len(pooled))), rng.choice(FROM_POOL))
    elif kind == "generate" and flying:
        ledger.generate(rng.choice(flying), rng.randint(0, 50))
    elif kind == "ready" and flying:
        group_id = flying.pop(rng.randrange(len(flying)))
        ledger.ready(group_id, n_tokens=rng.randint(1, 80))
        pooled.append(group_id)
    elif kind == "flight" and flying:
        made = rng.choice([None, rng.randint(0, 80)])
        ledger.close(flying.pop(rng.randrange(len(flying))), rng.choice(FROM_FLIGHT), n_tokens=made)


@given(seed=st.integers(0, 100_000), n=st.integers(1, 80))
def test_the_account_closes_after_every_operation_also_across_restarts(seed, n):
    rng, ledger = random.Random(seed), Ledger()
    flying: list[str] = []
    pooled: list[str] = []
    for serial in range(n):
        before = ledger.columns()
        random_operation(ledger, rng, flying, pooled, serial)
        ledger.check()
        after = ledger.columns()
        for unit in ("groups", "tokens"):
            assert all(after[unit][name] >= before[unit][name] for name in COLUMNS[:-2]), "counters only grow"
            assert all(value >= 0 for value in after[unit].values())
        assert (after["groups"]["in_flight"], after["groups"]["in_pool"]) == (len(flying), len(pooled))
        if rng.random() < 0.2:
            state = json.loads(json.dumps(ledger.state_dict()))
            ledger = Ledger()
            ledger.load_state_dict(state)
            assert ledger.columns() == after and ledger.state_dict() == state


def test_a_life_in_tokens():
    ledger = Ledger()
    ledger.start("a", version=2)
    ledger.generate("a", 30)
    assert ledger.columns()["tokens"]["in_flight"] == 30
    ledger.ready("a", n_tokens=50)
    assert ledger.columns()["tokens"] == dict.fromkeys(COLUMNS, 0) | {"generated": 50, "in_pool": 50}
    ledger.close("a", Fate.TRAINED)
    assert ledger.columns()["tokens"] == dict.fromkeys(COLUMNS, 0) | {"generated": 50, "trained": 50}


def test_tokens_of_a_retried_request_are_failed_while_the_group_lives_on():
    ledger = Ledger()
    ledger.start("a", version=0)
    ledger.generate("a", 80)
    ledger.ready("a", n_tokens=50)
    tokens = ledger.columns()["tokens"]
    assert (tokens["generated"], tokens["failed"], tokens["in_pool"]) == (80, 30, 50)
    assert ledger.columns()["groups"]["failed"] == 0


def test_a_restart_keeps_groups_owed_and_books_their_lost_tokens():
    ledger = Ledger()
    for group_id in ("a", "b", "c"):
        ledger.start(group_id, version=1)
        ledger.generate(group_id, 7)
    ledger.ready("b", n_tokens=7)
    assert ledger.restart_in_flight() == ["a", "c"]
    assert ledger.columns()["tokens"]["failed"] == 14 and ledger.n_in_flight == 2
    ledger.check()


@pytest.mark.parametrize(
    "step",
    [
        lambda ledger: ledger.start("flying", version=0),
        lambda ledger: ledger.ready("pooled", n_tokens=1),
        lambda ledger: ledger.ready("never", n_tokens=1),
        lambda ledger: ledger.generate("pooled", 1),
        lambda ledger: ledger.generate("flying", -1),
        lambda ledger: ledger.close("flying", Fate.TRAINED),
        lambda ledger: ledger.close("pooled", Fate.FAILED),
        lambda ledger: ledger.close("pooled", Fate.FILTERED),
        lambda ledger: ledger.close("gone", Fate.TRAINED),
    ],
)
def test_double_counting_is_an_error_and_changes_nothing(step):
    ledger = Ledger()
    for group_id in ("flying", "pooled", "gone"):
        ledger.start(group_id, version=0)
    ledger.ready("pooled", n_tokens=3)
    ledger.close("gone", Fate.FAILED)
    before = ledger.state_dict()
    with pytest.raises(LedgerError):
        step(ledger)
    assert ledger.state_dict() == before


def test_the_oldest_open_start_moves_with_the_groups():
    ledger = Ledger()
    assert ledger.oldest_open is None
    for group_id, version in (("a", 3), ("b", 3), ("c", 5)):
        ledger.start(group_id, version=version)
    ledger.close("a", Fate.FAILED)
    assert ledger.oldest_open == 3
    ledger.ready("b", n_tokens=1)
    ledger.close("b", Fate.EVICTED)
    assert ledger.oldest_open == 5


def test_state_that_does_not_close_is_refused_and_leaves_the_ledger_alone():
    ledger = Ledger()
    ledger.start("a", version=0)
    good = ledger.state_dict()
    broken = json.loads(json.dumps(good))
    broken["groups"]["trained"] = 5
    for state in (broken, {**good, "extra": 1}, {**good, "tokens": {}}):
        with pytest.raises(StateError):
            ledger.load_state_dict(state)
    assert ledger.state_dict() == good


def test_metrics_show_every_column_in_both_units():
    assert set(Ledger().metrics()) == {f"{unit}/{name}" for unit in ("groups", "tokens") for name in COLUMNS}
