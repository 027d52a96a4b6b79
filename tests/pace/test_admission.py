import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pace.admission import (
    UNLIMITED,
    AdmissionKind,
    AdmissionView,
    ArealAdmission,
    DoraAdmission,
    OpenAdmission,
    StaleCap,
    make_admission,
)
from pace.state import StateError
from pace.types import RejectReason


def view(version=0, next_step=None, batch=4, in_pool=0, in_flight=0, oldest_open=None) -> AdmissionView:
    return AdmissionView(
        version=version,
        next_step=version if next_step is None else next_step,
        batch_groups=batch,
        in_pool=in_pool,
        in_flight=in_flight,
        oldest_open=oldest_open,
    )


@given(
    eta=st.integers(0, 4),
    version=st.integers(0, 9),
    training=st.booleans(),
    batch=st.integers(1, 8),
    in_pool=st.integers(0, 40),
    in_flight=st.integers(0, 40),
)
def test_areal_slots_are_its_published_bound(eta, version, training, batch, in_pool, in_flight):
    """floor((N - 1) / B) <= i + eta for the N-th rollout ever started, thrown away ones not counted."""
    next_step = version + training
    slots = ArealAdmission(eta).slots(view(version, next_step, batch, in_pool, in_flight))
    started = next_step * batch + in_pool + in_flight

    def allowed(nth: int) -> bool:
        return math.floor((nth - 1) / batch) <= version + eta

    assert not slots or allowed(started + slots)
    assert not allowed(started + slots + 1)


def test_eta_zero_starts_nothing_while_the_trainer_trains():
    admission = ArealAdmission(0)
    assert admission.slots(view(version=3)) == 4
    assert admission.slots(view(version=3, in_pool=1, in_flight=2)) == 1
    assert admission.slots(view(version=3, next_step=4)) == 0
    with pytest.raises(ValueError):
        ArealAdmission(-1)


@given(
    kind=st.sampled_from(AdmissionKind),
    version=st.integers(0, 9),
    batch=st.integers(1, 8),
    in_pool=st.integers(0, 20),
    in_flight=st.integers(0, 20),
    age=st.integers(0, 9),
)
def test_no_policy_leaves_a_waiting_trainer_without_a_batch(kind, version, batch, in_pool, in_flight, age):
    oldest = max(0, version - age) if in_pool + in_flight else None
    slots = make_admission(kind, eta=1, window=2).slots(view(version, None, batch, in_pool, in_flight, oldest))
    assert slots >= 0 and slots + in_pool + in_flight >= batch


def test_dora_opens_within_the_window_and_fills_one_batch_beyond_it():
    admission = DoraAdmission(3)
    assert admission.slots(view(version=5)) == UNLIMITED
    assert admission.slots(view(version=5, in_flight=9, oldest_open=3)) == UNLIMITED  # versions 3, 4, 5: three
    assert admission.slots(view(version=5, in_flight=3, oldest_open=2)) == 1
    assert admission.slots(view(version=5, in_flight=9, oldest_open=2)) == 0
    with pytest.raises(ValueError):
        DoraAdmission(0)


def test_open_admission_never_limits():
    assert OpenAdmission().slots(view(in_pool=10**6)) == UNLIMITED


@pytest.mark.parametrize("kind", AdmissionKind)
def test_every_policy_loads_strictly(kind):
    admission = make_admission(kind, eta=1, window=1)
    admission.load_state_dict(admission.state_dict())
    with pytest.raises(StateError):
        admission.load_state_dict({"foreign": 1})


@pytest.mark.parametrize("k_max", [0, 1, 2, 4, 8])
def test_a_lag_at_the_cap_stays_and_above_it_goes(k_max):
    cap = StaleCap(k_max)
    assert cap.reason(float(k_max), 0) is None
    assert cap.reason(math.nextafter(k_max, math.inf), 0) is RejectReason.CAP


def test_no_cap_keeps_any_lag_and_unknown_versions_go_only_on_request():
    assert StaleCap(None).reason(1e9, 7) is None
    assert StaleCap(None, evict_unknown=True).reason(0.0, 1) is RejectReason.UNKNOWN
    assert StaleCap(2, evict_unknown=True).reason(3.0, 1) is RejectReason.CAP
    assert StaleCap(2, evict_unknown=True).reason(1.0, 0) is None
