"""The engine actor of TRACE: rollout trees, in two calls with the allocation of the continuations between them.

Invariants: a tree lives in the engine that began it, with the snapshots of its environments and its prefixes in the
cache, until `expand` or until it is handed over to another engine; the tokens of a prefix are the trajectory's own. A
continuation that fails is left out and the tree goes on; where an agent can't be branched, a fresh rollout takes the
continuation's place.

In: leases with their prompts and a number of bare rollouts; then continuations per prefix. Out: as for flat groups; a
response also says where it was branched (`tree`). Source: trace.md 8; the two calls are design.
"""

import logging
import time
from dataclasses import dataclass, field
from typing import Any

from ray import cloudpickle

from openrlhf.trainer.fully_async import payload
from openrlhf.trainer.fully_async.messages import BareReport, BareRollout, GroupReport, Prefix, Task
from openrlhf.trainer.fully_async.trajectory_recorder import TrajectoryRecorder
from openrlhf.trainer.ray import versioned_rollout
from openrlhf.trainer.ray.versioned_rollout import all_or_none, failed
from openrlhf.trainer.tree.branching import BranchRecorder, CannotBranch, Play, Point, n_given, play, points, prefix
from pace.prompts import Lease

logger = logging.getLogger(__name__)


class TreeLost(RuntimeError):
    """The engine was started anew since it began the tree."""


@dataclass
class _Bare:
    """A finished bare rollout, and what it takes to branch it."""

    done: payload.Finished
    play: Play
    points: list[Point]


@dataclass
class _OpenTree:
    """A tree between its two calls; `began` is a time of `time.monotonic`."""

    bare: list[_Bare]
    spent: list[TrajectoryRecorder]
    n_unbranchable: int = 0
    n_failed: int = 0
    moved: bool = False  # here from another engine
    began: float = field(default_factory=time.monotonic)
    bare_s: float = 0.0


class RolloutRayActor(versioned_rollout.RolloutRayActor):
    """One vLLM engine; the methods of the pool pipeline, and trees."""

    async def __init__(self, *args: Any, segment_tokens: int = 0, **kwargs: Any) -> None:
        self._trees: dict[str, _OpenTree] = {}
        self._segment_tokens = segment_tokens
        await super().__init__(*args, **kwargs)

    async def roll_out_bare(self, lease: Lease, task: Task, hf_tokenizer: Any) -> BareReport:
        """`task.n_samples` bare rollouts of a prompt, with the prefixes at which they may be branched."""
        await self._serving.wait()
        tree = _OpenTree([], [])
        try:
            tree.bare = await all_or_none(
                [self._bare(f"{lease.group_id}/{i}", task, hf_tokenizer, tree) for i in range(task.n_samples)]
            )
        except Exception as error:
            if self.llm.errored:
                raise
            return BareReport(failure=failed(error, tree.spent))
        tree.bare_s = time.monotonic() - tree.began
        self._trees[lease.group_id] = tree
        return BareReport(
            rollouts=tuple(
                BareRollout(
                    reward=float(bare.done.response["reward"]),
                    prefixes=tuple(self._prefix(bare, at, hf_tokenizer) for at in bare.points),
                )
                for bare in tree.bare
            )
        )

    async def hand_over(self, group_id: str) -> tuple[bool, bytes]:
        """An open tree, packed for `expand` on another engine and forgotten here. It stays, and the answer is
        (False, b""), where an environment can't be packed."""
        try:
            packed = cloudpickle.dumps(self._trees[group_id])
        except Exception as error:  # an agent's own state may be anything: sockets, locks, generators
            logger.info("group %s stays with its engine: %s", group_id, error)
            return False, b""
        del self._trees[group_id]
        return True, packed

    async def expand(
        self,
        lease: Lease,
        task: Task,
        hf_tokenizer: Any,
        counts: list[list[int]],
        notes: dict[str, Any],
        packed: bytes | None = None,
    ) -> tuple[GroupReport, bytes]:
        """Rolls out `counts[j][p]` continuations of bare rollout j from its prefix p, and ends the tree.

        `notes` travel with the group's first response, `packed` is the tree that another engine has handed over. Two
        return values, as `generate_group`. Raises TreeLost.
        """
        tree: _OpenTree | None = cloudpickle.loads(packed) if packed else self._trees.pop(lease.group_id, None)
        if tree is None:
            raise TreeLost(f"the engine knows no tree of group {lease.group_id}")
        tree.moved = packed is not None
        await self._serving.wait()
        began = time.monotonic()
        places = [
            (j, point)
            for j, (bare, row) in enumerate(zip(tree.bare, counts, strict=True))
            for point, count in zip(bare.points, row, strict=True)
            for _ in range(count)
        ]
        try:
            grown = await all_or_none(
                [
                    self._grown(f"{lease.group_id}/{len(tree.bare) + i}", j, point, tree, task, hf_tokenizer)
                    for i, (j, point) in enumerate(places)
                ]
            )
            finished = [bare.done for bare in tree.bare] + [done for done in grown if done is not None]
            for done in finished:
                done.response.setdefault("tree", {"parent": None, "n_given": 0})
            finished[0].response["tree"] |= {"notes": notes | self._notes(tree, began)}
            return self._group(finished, lease, tree.spent)
        except Exception as error:
            if self.llm.errored:
                raise
            return failed(error, tree.spent), b""

    async def _bare(self, name: str, task: Task, hf_tokenizer: Any, tree: _OpenTree) -> _Bare:
        plays: list[Play] = []

        def begin(attempt: str) -> tuple[Any, TrajectoryRecorder]:
            recorder = BranchRecorder(self, name=attempt, start_version=self._version or 0)
            plays.append(play(self.executor, recorder))
            return plays[-1].executor, recorder

        done = await self._trajectory(name, task, hf_tokenizer, tree.spent, begin)
        found = points(plays[-1].recorder.answers, segment_tokens=self._segment_tokens)
        room = [at for at in found if len(prefix(plays[-1].recorder.answers, at)) < task.max_length]
        return _Bare(done, plays[-1], room)

    async def _grown(
        self, name: str, j: int, point: Point, tree: _OpenTree, task: Task, hf_tokenizer: Any
    ) -> payload.Finished | None:
        """A continuation of bare rollout `j`, or what takes its place; None when it fails, but for the engine."""
        source = tree.bare[j].play
        given = () if source.environment is None else source.environment.played[: point.turn + 1]

        def begin(attempt: str) -> tuple[Any, TrajectoryRecorder]:
            recorder = BranchRecorder(
                self,
                name=attempt,
                start_version=self._version or 0,
                given=source.recorder.answers,
                point=point,
                decode=lambda tokens: _text(hf_tokenizer, tokens),
            )
            return play(self.executor, recorder, given=given).executor, recorder

        try:
            try:
                done = await self._trajectory(name, task, hf_tokenizer, tree.spent, begin)
                done.response["tree"] = {"parent": j, "n_given": done.recorder.n_given}
                return done
            except CannotBranch as error:
                tree.n_unbranchable += 1
                if tree.n_unbranchable == 1:
                    logger.warning("trajectory %s starts afresh, its agent can't be branched: %s", name, error)
                return await self._trajectory(name, task, hf_tokenizer, tree.spent)
        except Exception as error:
            if self.llm.errored:
                raise
            tree.n_failed += 1
            logger.warning("continuation %s failed and is left out: %s", name, error)
            return None

    def _prefix(self, bare: _Bare, at: Point, hf_tokenizer: Any) -> Prefix:
        answers = bare.play.recorder.answers
        text = _text(hf_tokenizer, prefix(answers, at))
        return Prefix(turn=at.turn, n_given=n_given(answers, at), text=text)

    def _notes(self, tree: _OpenTree, expanded_at: float) -> dict[str, Any]:
        """What the trainer logs of a tree: failures, cache hits of the continuations' prompts, seconds."""
        continued = [r for r in tree.spent if isinstance(r, BranchRecorder) and r.n_given]
        return {
            "n_unbranchable": tree.n_unbranchable,
            "n_failed": tree.n_failed,
            "n_moved": int(tree.moved),
            "n_cached": sum(recorder.n_cached for recorder in continued),
            "n_prompt": sum(recorder.n_prompt for recorder in continued),
            "bare_s": tree.bare_s,
            "expand_s": time.monotonic() - expanded_at,
        }


def _text(hf_tokenizer: Any, tokens: list[int]) -> str:
    text: str = hf_tokenizer.decode(tokens, skip_special_tokens=False)
    return text
