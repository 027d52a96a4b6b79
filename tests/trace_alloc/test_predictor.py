import json
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_alloc.predictor import Anchor, ConstantPredictor, Example, Predictor, RunningMeanPredictor, UpdateReport

probabilities = st.floats(0, 1)
steps = st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), probabilities), max_size=6), max_size=6)


def anchor(key: str = "p", turn: int = 0) -> Anchor:
    return Anchor(key=key, turn=turn, text=f"{key} after {turn}")


def example(target: float, key: str = "p", turn: int = 0) -> Example:
    return Example(anchor=anchor(key, turn), target=target)


def predictors() -> list[Predictor]:
    return [ConstantPredictor(), ConstantPredictor(0.2), RunningMeanPredictor()]


@pytest.mark.parametrize("target", [-0.01, 1.01, math.nan, math.inf, -math.inf])
def test_targets_outside_the_unit_interval_are_refused(target):
    with pytest.raises(ValueError, match="target"):
        example(target)


@pytest.mark.parametrize(
    "fields", [{"turn": -1}, {"turn": 1.0}, {"turn": True}, {"key": 3}, {"text": b"x"}, {"text": None}]
)
def test_impossible_anchors_are_refused(fields):
    with pytest.raises(ValueError):
        Anchor(**{"key": "p", "turn": 0, "text": "t", **fields})


def test_records_travel_between_processes_and_cannot_be_changed():
    sent = example(0.25, turn=3)
    assert pickle.loads(pickle.dumps(sent)) == sent
    with pytest.raises(AttributeError):
        sent.target = 1.0
    with pytest.raises(AttributeError):
        sent.anchor.text = ""


@pytest.mark.parametrize("predictor", predictors(), ids=lambda p: type(p).__name__)
def test_nothing_in_nothing_out(predictor):
    before = predictor.state_dict()
    assert predictor.score([]) == []
    assert predictor.update([]) == UpdateReport(loss=None, n=0)
    assert predictor.state_dict() == before


def test_a_constant_never_learns():
    predictor = ConstantPredictor(0.25)
    assert predictor.update([example(1.0), example(0.25)]) == UpdateReport(loss=0.75**2 / 2, n=2)
    assert predictor.score([anchor(), anchor("q", 3)]) == [0.25, 0.25]
    assert ConstantPredictor().score([anchor()]) == [0.5]
    with pytest.raises(ValueError):
        predictor.load_state_dict({"value": 0.5})


def test_a_running_mean_by_hand():
    predictor = RunningMeanPredictor(prior=0.5, prior_weight=2.0, keep=0.5)
    assert predictor.score([anchor()]) == [0.5]
    assert predictor.update([example(1.0)]) == UpdateReport(loss=0.25, n=1)
    assert predictor.score([anchor()]) == [(1 + 1) / (2 + 1)]
    report = predictor.update([example(0.0), example(0.0, key="q")])
    assert report.loss == pytest.approx(((2 / 3) ** 2 + 0.5**2) / 2)
    assert predictor.score([anchor(), anchor("q")]) == [(1 + 0.5) / (2 + 1.5), 1 / 3]


def test_prefixes_count_like_their_prompt_and_teach_nothing():
    predictor = RunningMeanPredictor()
    predictor.update([example(1.0), example(0.0, turn=2), example(0.0, key="q", turn=1)])
    assert predictor.score([anchor(turn=4)]) == predictor.score([anchor()]) == [2 / 3]
    assert predictor.score([anchor("q")]) == [0.5]
    assert predictor.state_dict() == {"seen": {"p": [1.0, 1.0]}}


def test_old_evidence_fades():
    predictor = RunningMeanPredictor(keep=0.5)
    for _ in range(50):
        predictor.update([example(1.0)])
    assert predictor.score([anchor()])[0] == pytest.approx(3 / 4)  # prior weight 2, at most 1 / (1 - keep) seen
    for _ in range(4):
        predictor.update([example(0.0)])
    assert predictor.score([anchor()])[0] < 0.3
    forgetful = RunningMeanPredictor(keep=0.0)
    forgetful.update([example(1.0)])
    forgetful.update([example(0.0)])
    assert forgetful.score([anchor()]) == [1 / 3]


@given(steps, st.floats(0, 1), st.floats(0.01, 10), st.floats(0, 1))
def test_a_running_mean_stays_a_probability_and_survives_json(history, prior, weight, keep):
    def fresh() -> RunningMeanPredictor:
        return RunningMeanPredictor(prior=prior, prior_weight=weight, keep=keep)

    predictor, other = fresh(), fresh()
    everyone = [anchor(key, turn) for key in "abcd" for turn in (0, 1)]
    for step in history:
        before = predictor.score([anchor(key) for key, _, _ in step])
        report = predictor.update([example(target, key, turn) for key, turn, target in step])
        assert report.n == len(step) and (report.loss is None) == (not step)
        if step:
            errors = [(v - y) ** 2 for v, (_, _, y) in zip(before, step, strict=True)]
            assert report.loss == pytest.approx(sum(errors) / len(errors), abs=1e-12)
        assert all(0.0 <= score <= 1.0 for score in predictor.score(everyone))
    other.load_state_dict(json.loads(json.dumps(predictor.state_dict())))
    assert other.score(everyone) == predictor.score(everyone) and other.state_dict() == predictor.state_dict()
    again = [example(1.0, "a"), example(0.0, "d")]
    assert other.update(again) == predictor.update(again) and other.score(everyone) == predictor.score(everyone)


@pytest.mark.parametrize(
    "settings",
    [{"prior": 1.1}, {"prior": math.nan}, {"prior_weight": 0.0}, {"prior_weight": math.inf}, {"keep": -0.1}],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ValueError):
        RunningMeanPredictor(**settings)
    with pytest.raises(ValueError):
        ConstantPredictor(1.5)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"seen": {}, "more": 1},
        {"seen": []},
        {"seen": {"p": [1.0]}},
        {"seen": {"p": [1.0, 2.0]}},
        {"seen": {"p": [math.nan, 0.0]}},
        {"seen": {"p": [math.inf, 0.0]}},
        {"seen": {"p": ["1", "0"]}},
        {"seen": {7: [1.0, 0.0]}},
        ["seen"],
    ],
)
def test_foreign_states_are_refused_and_change_nothing(state):
    predictor = RunningMeanPredictor()
    predictor.update([example(1.0)])
    with pytest.raises(ValueError):
        predictor.load_state_dict(state)
    assert predictor.score([anchor()]) == [2 / 3]


def test_a_saved_state_is_not_the_live_one():
    predictor = RunningMeanPredictor()
    state = predictor.state_dict()
    predictor.update([example(1.0)])
    assert state == {"seen": {}}
