"""Control calls to engines that answer, refuse, die and fall silent."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from openrlhf.trainer.fully_async.engine_control import EngineTimeout, control, end_when_blocked


class EngineDeadError(Exception):
    """Stands for vLLM's."""


def alive() -> SimpleNamespace:
    return SimpleNamespace(errored=False, dead_error=EngineDeadError("dead"))


async def after(seconds: float, answer: Any) -> Any:
    await asyncio.sleep(seconds)
    if isinstance(answer, Exception):
        raise answer
    return answer


@pytest.mark.parametrize("seconds", [0, 0.08])
def test_an_answer_is_returned(seconds):
    assert asyncio.run(control(alive(), after(seconds, 7), what="it", timeout_s=5)) == 7


@pytest.mark.parametrize("seconds", [0, 0.08])
def test_an_error_is_raised(seconds):
    with pytest.raises(KeyError):
        asyncio.run(control(alive(), after(seconds, KeyError("x")), what="it", timeout_s=5))


def test_an_engine_that_dies_ends_the_call_at_once():
    async def scenario() -> None:
        llm = alive()
        asyncio.get_running_loop().call_later(0.05, lambda: setattr(llm, "errored", True))
        with pytest.raises(EngineDeadError):
            await control(llm, after(60, None), what="it", timeout_s=60)

    began = time.monotonic()
    asyncio.run(scenario())
    assert time.monotonic() - began < 5


def test_an_answer_counts_even_if_the_engine_died_since():
    llm = SimpleNamespace(errored=True, dead_error=EngineDeadError("dead"))
    assert asyncio.run(control(llm, after(0, 7), what="it", timeout_s=5)) == 7


def test_a_silent_engine_is_named_and_the_call_ended():
    async def scenario() -> None:
        call = asyncio.ensure_future(after(60, None))
        with pytest.raises(EngineTimeout, match=r"did not answer pause_generation within 0\.1 s"):
            await control(alive(), call, what="pause_generation", timeout_s=0.1)
        await asyncio.gather(call, return_exceptions=True)
        assert call.cancelled()

    asyncio.run(scenario())


def test_a_caller_that_goes_away_takes_the_call_with_it():
    async def scenario() -> None:
        call = asyncio.ensure_future(after(60, None))
        caller = asyncio.create_task(control(alive(), call, what="it", timeout_s=60))
        await asyncio.sleep(0.01)
        caller.cancel()
        await asyncio.gather(caller, call, return_exceptions=True)
        assert caller.cancelled() and call.cancelled()

    asyncio.run(scenario())


@pytest.mark.parametrize("blocks", [True, False])
def test_a_loop_that_an_agent_blocks_is_ended_and_a_busy_one_is_not(blocks):
    ended: list[float] = []

    async def scenario() -> None:
        end_when_blocked(asyncio.get_running_loop(), 0.3, end=lambda: ended.append(time.monotonic()))
        if blocks:
            time.sleep(1.0)  # as an agent's step might
        else:
            for _ in range(10):
                await asyncio.sleep(0.1)

    asyncio.run(scenario())
    assert len(ended) == blocks
