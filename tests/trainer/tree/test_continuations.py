"""What takes the place of a continuation that can't be had: a fresh rollout, or nothing, counted and said."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from openrlhf.trainer.ray import tree_rollout
from openrlhf.trainer.tree.branching import CannotBranch, Point

pytestmark = pytest.mark.slow  # imports vLLM


class FakeEngine(tree_rollout.RolloutRayActor):
    """The actor without its engine: a branched trajectory raises `error`, a fresh one is `fresh` or raises it."""

    def __new__(cls, *_: Any) -> Any:
        return object.__new__(cls)

    def __init__(self, error: Exception, fresh: Any) -> None:
        self.llm = SimpleNamespace(errored=False)
        self.executor, self._version = None, 0
        self.error, self.fresh = error, fresh

    async def _trajectory(self, name: str, task: Any, hf_tokenizer: Any, spent: Any, begin: Any = None) -> Any:
        if begin is not None:
            raise self.error
        if isinstance(self.fresh, Exception):
            raise self.fresh
        return self.fresh


def continued(engine: FakeEngine, times: int = 1) -> tuple[list[Any], Any]:
    """What the engine gives for so many continuations of one bare rollout, and the tree with its counts."""
    bare = SimpleNamespace(play=SimpleNamespace(environment=None, recorder=SimpleNamespace(answers=())))
    tree = tree_rollout._OpenTree([bare], [])

    async def all_of_them() -> list[Any]:
        point = Point(turn=0, offset=3)
        return [await engine._grown(f"g/{i}", 0, point, tree, None, None) for i in range(times)]

    return asyncio.run(all_of_them()), tree


def test_an_agent_that_cant_be_branched_rolls_out_afresh_and_says_so_once(caplog):
    fresh = object()
    with caplog.at_level(logging.WARNING):
        found, tree = continued(FakeEngine(CannotBranch("it holds a socket"), fresh), times=3)
    assert found == [fresh] * 3
    assert (tree.n_unbranchable, tree.n_failed) == (3, 0)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "starts afresh" in said and "it holds a socket" in said


@pytest.mark.parametrize(
    "error", [KeyError("no such file"), TimeoutError("step took too long")], ids=lambda e: type(e).__name__
)
def test_an_environment_that_raises_mid_branch_costs_that_branch(caplog, error):
    found, tree = continued(FakeEngine(error, None), times=2)
    assert found == [None, None]
    assert (tree.n_unbranchable, tree.n_failed) == (0, 2)
    assert all("left out" in record.getMessage() for record in caplog.records)


def test_a_fresh_rollout_may_fail_as_well():
    found, tree = continued(FakeEngine(CannotBranch("no"), ValueError("reward is NaN")))
    assert found == [None] and (tree.n_unbranchable, tree.n_failed) == (1, 1)


def test_a_dead_engine_is_no_failed_branch():
    engine = FakeEngine(RuntimeError("engine died"), None)
    engine.llm.errored = True
    with pytest.raises(RuntimeError, match="engine died"):
        continued(engine)
