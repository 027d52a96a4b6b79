from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pace.selection import Candidate, replay, select
from pace.types import Outcome

candidates = st.lists(
    st.builds(
        Candidate,
        group_id=st.uuids().map(str),
        ready_version=st.integers(0, 4),
        score=st.one_of(st.none(), st.integers(0, 5).map(float)),
        over_cap=st.booleans(),
    ),
    max_size=24,
)


@given(candidates, st.integers(0, 12), st.integers(1, 12), st.integers(0, 12))
def test_the_batch_is_full_or_nothing_is_rejected(window, rejections, batch, spare):
    outcomes = select(window, rejections=rejections, batch_groups=batch, spare=spare)
    kept, rejected = outcomes.count(Outcome.KEPT), outcomes.count(Outcome.REJECTED)
    assert len(outcomes) == len(window) and rejected <= rejections
    assert [o is Outcome.EVICTED for o in outcomes] == [c.over_cap for c in window]
    assert rejected == 0 or kept + spare >= batch


@given(candidates, st.integers(0, 12))
def test_no_kept_group_is_staler_than_a_rejected_one(window, rejections):
    outcomes = select(window, rejections=rejections, batch_groups=1, spare=0)
    scores = {
        outcome: [c.score for c, o in zip(window, outcomes, strict=True) if o is outcome]
        for outcome in (Outcome.KEPT, Outcome.REJECTED)
    }
    if None in scores[Outcome.KEPT]:
        assert all(score is None for score in scores[Outcome.REJECTED])
    known = [score for score in scores[Outcome.REJECTED] if score is not None]
    assert not known or all(score <= min(known) for score in scores[Outcome.KEPT])


def test_ties_reject_the_older_group_then_the_smaller_id():
    window = [Candidate("b", 1, 2.0, False), Candidate("a", 1, 2.0, False), Candidate("z", 0, 2.0, False)]
    chosen = [
        [c.group_id for c, o in zip(window, select(window, rejections=n, batch_groups=1, spare=0), strict=True) if o is
         Outcome.REJECTED]
        for n in (1, 2)
    ]  # fmt: skip
    assert chosen == [["z"], ["a", "z"]]


def test_a_log_that_was_tampered_with_does_not_replay(build):
    pool = build.pool(k_max=5, rate_smoothing=0.0)
    build.feed(pool, *(build.group(f"g{i}", siblings=[(i,)]) for i in range(7)))
    draw = pool.draw(6)
    check = {"budget": pool.budget, "cap": pool.cap}
    assert replay(draw, **check) == []
    by_outcome = {d.outcome: i for i, d in enumerate(draw.decisions)}
    assert set(by_outcome) == set(Outcome)
    for index in by_outcome.values():
        flipped = Outcome.REJECTED if draw.decisions[index].outcome is not Outcome.REJECTED else Outcome.KEPT
        decisions = list(draw.decisions)
        decisions[index] = replace(decisions[index], outcome=flipped)
        assert replay(replace(draw, decisions=tuple(decisions)), **check)
    assert "budget" in replay(replace(draw, plan=replace(draw.plan, rate=0.123)), **check)[0]
    fresh = replace(draw.decisions[by_outcome[Outcome.EVICTED]], worst_lag=1.0)
    assert replay(replace(draw, evicted_before=(fresh,)), **check)
