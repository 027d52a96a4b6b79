"""Which prefixes are rescored, what is made of the answers, and of an engine that gives none."""

import asyncio
from typing import Any

import pytest

from openrlhf.trainer.fully_async.prefix_scorer import CALIBRATIONS, PrefixScorer
from pace.config import PaceConfig


class ShiftedEngine:
    """Rescores by the log-probs of the test engine (-0.01, -0.02, ... per generation), moved down by `shift` nats."""

    def __init__(self, *, shift: float = 0.5, label: int = 1) -> None:
        self.shift, self.label = shift, label
        self.asked: list[str] = []
        self.slow: set[str] = set()
        self.broken: set[str] = set()

    async def rescore(self, tokens: list[int]) -> tuple[list[float], int]:
        text = "".join(map(chr, tokens))
        self.asked.append(text)
        if text in self.slow:
            await asyncio.sleep(60)
        if text in self.broken:
            raise RuntimeError("the engine is gone")
        # Prompts are p's; whatever else is there was generated in one go.
        begin = len(text) - len(text.lstrip("p"))
        return [-(i - begin + 1) / 100 - self.shift for i in range(1, len(text))], self.label


def scorer(engine: ShiftedEngine, *, max_sequence: int = 100, **settings: Any) -> PrefixScorer:
    return PrefixScorer(engine.rescore, PaceConfig(**settings), max_sequence=max_sequence)


def scored(one: PrefixScorer, recorders: list[Any], *, version: int = 1) -> list[float]:
    one.interrupt(recorders)
    return asyncio.run(one.score(version))


def test_a_score_is_the_mean_change_over_the_generated_tokens(fake):
    recorder = fake.recorded(("pp", "abc", [0, 0, 0]))
    assert scored(scorer(ShiftedEngine(shift=0.5)), [recorder]) == pytest.approx([0.5])
    assert recorder.score == pytest.approx(0.5)


def test_a_token_without_anything_before_it_is_left_out(fake):
    assert scored(scorer(ShiftedEngine()), [fake.recorded(("", "abc", [0] * 3))]) == pytest.approx([0.5])
    assert scored(scorer(ShiftedEngine()), [fake.recorded(("", "a", [0]))]) == []


def test_an_interruption_ends_older_scores_and_counts_what_has_begun(fake):
    fresh, old = fake.recorded(), fake.recorded(("pp", "ab", [0, 0]))
    old.score = fresh.score = 0.9
    one = scorer(ShiftedEngine())
    assert one.interrupt([fresh, old]) == 1
    assert old.score is None
    assert one.interrupt([]) == 0 and asyncio.run(one.score(1)) == []


def test_the_oldest_come_first_and_what_does_not_fit_is_missing(fake):
    old = fake.recorded(("pp", "old", [0] * 3), start_version=1)
    older = fake.recorded(("pp", "older", [0] * 5), start_version=0)
    young = fake.recorded(("pp", "y", [0]), start_version=2)
    engine = ShiftedEngine()
    assert len(scored(scorer(engine, pfs_max_tokens=10), [young, old, older])) == 2
    assert engine.asked == ["ppolder", "ppy"], "a smaller one takes the place of what is too large"
    assert old.score is None and young.score is not None


def test_what_cannot_be_scored_costs_nothing(fake):
    """Too long for the engine, or with images: neither takes tokens from the others."""
    long = fake.recorded(("pp", "l" * 6, [0] * 6))
    pictures = fake.recorded(("pp", "i", [0]))
    pictures.multi_modal = True
    short = fake.recorded(("pp", "s", [0]))
    engine = ShiftedEngine()
    assert scored(scorer(engine, max_sequence=5, pfs_max_tokens=4), [long, pictures, short]) == pytest.approx([0.5])
    assert engine.asked == ["pps"] and pictures.score is None


def test_late_scores_are_missing_not_late(fake):
    engine = ShiftedEngine()
    slow, quick = fake.recorded(("pp", "slow", [0] * 4)), fake.recorded(("pp", "quick", [0] * 5))
    engine.slow.add("ppslow")
    assert len(scored(scorer(engine, pfs_deadline_s=0.05), [slow, quick])) == 1
    assert slow.score is None and quick.score == pytest.approx(0.5)


def test_an_engine_that_raises_costs_only_the_scores_it_did_not_give(fake, caplog):
    engine = ShiftedEngine()
    broken, fine = fake.recorded(("pp", "broken", [0] * 6)), fake.recorded(("pp", "fine", [0] * 4))
    engine.broken.add("ppbroken")
    assert len(scored(scorer(engine), [broken, fine])) == 1
    assert broken.score is None and "the engine is gone" in caplog.text


def test_answers_of_other_weights_are_no_scores(fake):
    """Another sync came between: the score would be attributed to the wrong one."""
    recorder = fake.recorded(("pp", "ab", [0, 0]))
    assert scored(scorer(ShiftedEngine(label=2)), [recorder], version=1) == [] and recorder.score is None


def calibrate(one: PrefixScorer, recorders: list[Any], *, version: int = 1) -> None:
    async def all_at_a_time() -> None:
        await asyncio.gather(*(one.calibrate(recorder, version) for recorder in recorders))

    asyncio.run(all_at_a_time())


def test_the_noise_floor_is_subtracted_once_it_is_known(fake):
    engine = ShiftedEngine(shift=0.1)
    one = scorer(engine)
    trajectory = fake.recorded(("pp", "ab", [1, 1]))
    calibrate(one, [trajectory] * (CALIBRATIONS - 1))
    assert one.floor == 0.0 and not one.calibrated
    calibrate(one, [trajectory])
    assert one.floor == pytest.approx(0.1) and one.calibrated
    engine.shift, engine.label = 0.5, 2
    assert scored(one, [fake.recorded(("pp", "abc", [1] * 3))], version=2) == pytest.approx([0.4])
    engine.shift = 0.05
    assert scored(one, [fake.recorded(("pp", "abc", [1] * 3))], version=2) == [0.0], "noise is no drift"


def test_the_noise_floor_does_not_change_any_more(fake):
    engine = ShiftedEngine(shift=0.1)
    one = scorer(engine)
    calibrate(one, [fake.recorded(("pp", "ab", [1, 1]))] * CALIBRATIONS)
    n_asked, engine.shift = len(engine.asked), 9.0
    calibrate(one, [fake.recorded(("pp", "ab", [1, 1]))])
    assert one.floor == pytest.approx(0.1) and len(engine.asked) == n_asked


def test_more_than_enough_calibrations_at_a_time_are_not_all_counted(fake):
    engine = ShiftedEngine(shift=0.1)
    one = scorer(engine)
    late = fake.recorded(("pp", "late", [1] * 4))
    engine.slow.add("pplate")

    async def scenario() -> None:
        waits = asyncio.create_task(one.calibrate(late, 1))
        await asyncio.sleep(0)
        await asyncio.gather(*(one.calibrate(fake_recorder, 1) for fake_recorder in early))
        waits.cancel()

    early = [fake.recorded(("pp", "ab", [1, 1]))] * (CALIBRATIONS + 3)
    asyncio.run(scenario())
    assert len(one._calibrations) == CALIBRATIONS


def test_calibration_takes_only_what_can_be_compared(fake):
    engine = ShiftedEngine(shift=0.1)
    one = scorer(engine, max_sequence=5)
    pictures = fake.recorded(("pp", "i", [1]))
    pictures.multi_modal = True
    long, fine = fake.recorded(("pp", "l" * 6, [1] * 6)), fake.recorded(("pp", "ab", [1, 1]))
    calibrate(one, [pictures, long, fake.recorded()] * CALIBRATIONS)
    assert engine.asked == []
    engine.broken.add("ppab")
    calibrate(one, [fine] * CALIBRATIONS)
    engine.broken, engine.label = set(), 2
    calibrate(one, [fine] * CALIBRATIONS)
    assert not one.calibrated, "neither an error nor other weights' answer is a calibration"
