"""Which engine rolls out the next group."""

import random

from hypothesis import given
from hypothesis import strategies as st

from openrlhf.trainer.fully_async.engine_balancer import COOLDOWN_S, EngineBalancer


class VirtualClock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make(n: int) -> tuple[EngineBalancer, VirtualClock]:
    clock = VirtualClock()
    return EngineBalancer(n, clock=clock), clock


def test_groups_are_spread_evenly():
    balancer, _ = make(3)
    assert sorted(balancer.take() for _ in range(6)) == [0, 0, 1, 1, 2, 2]
    assert balancer.open_groups == (2, 2, 2)


def test_a_slow_engine_gets_fewer():
    balancer, _ = make(2)
    running, counts = [balancer.take(), balancer.take()], [1, 1]
    for turn in range(30):
        done = 0 if turn % 10 == 9 else 1  # engine 0 takes ten times as long
        if done in running:
            running.remove(done)
            balancer.give_back(done)
        running.append(balancer.take())
        counts[running[-1]] += 1
    assert counts[1] > 3 * counts[0]


def test_an_engine_that_failed_rests():
    balancer, clock = make(2)
    index = balancer.take()
    balancer.give_back(index, failed=True)
    assert {balancer.take() for _ in range(5)} == {1 - index}
    clock.now += COOLDOWN_S
    assert balancer.take() == index


def test_when_all_rest_the_one_that_failed_longest_ago_is_tried():
    balancer, clock = make(3)
    for index in (2, 0, 1):
        clock.now += 0.1
        while (taken := balancer.take()) != index:
            balancer.give_back(taken, failed=True)
        balancer.give_back(index, failed=True)
    assert balancer.take() == 2


@given(st.integers(1, 4), st.integers(0, 10**6))
def test_whatever_happens_the_books_are_right_and_no_rested_engine_idles_beside_a_busier_one(n, seed):
    rng = random.Random(seed)
    balancer, clock = make(n)
    open_at: list[int] = []
    failed_at = [float("-inf")] * n
    for _ in range(60):
        clock.now += rng.uniform(0, 2)
        if open_at and rng.random() < 0.5:
            index = open_at.pop(rng.randrange(len(open_at)))
            failed = rng.random() < 0.3
            balancer.give_back(index, failed=failed)
            failed_at[index] = clock.now if failed else failed_at[index]
        else:
            before = balancer.open_groups
            index = balancer.take()
            rested = [i for i in range(n) if clock.now - failed_at[i] >= COOLDOWN_S]
            assert index in rested or not rested
            assert before[index] == min(before[i] for i in rested) if rested else True
            open_at.append(index)
        assert balancer.open_groups == tuple(map(open_at.count, range(n)))
