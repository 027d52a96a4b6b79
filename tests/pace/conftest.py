"""Builders with defaults, and a clock that tests move by hand."""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings

from pace.config import PaceConfig
from pace.pool import TrajectoryPool
from pace.types import Trajectory, TrajectoryGroup, VersionSpan, spans_of

# No deadline: the machines that run these are shared, and a slow example is not a failure.
settings.register_profile("pace", max_examples=60, deadline=None)
settings.load_profile("pace")


def build_trajectory(
    trajectory_id: str = "g0/0", *, versions: Any = (0,), completed: int | None = None, **fields: Any
) -> Trajectory:
    """A trajectory whose i-th token came from `versions[i]`; completed by default with its last known version."""
    known = [version for version in versions if version is not None]
    return Trajectory(
        trajectory_id=trajectory_id,
        group_id=fields.pop("group_id", trajectory_id.split("/")[0]),
        prompt_id=fields.pop("prompt_id", "p"),
        spans=fields.pop("spans", spans_of(versions)),
        completed_version=max(known, default=0) if completed is None else completed,
        **fields,
    )


def build_group(
    group_id: str = "g0",
    *,
    siblings: Any = ((0,), (0,)),
    completed: Any = None,
    ready: int | None = None,
    scores: Any = None,
    attempt: int = 0,
    prompt_id: str | None = None,
    **fields: Any,
) -> TrajectoryGroup:
    """A group with one trajectory per entry of `siblings` (its token versions), `scores` aligned with them."""
    prompt_id = prompt_id or f"p-{group_id}"
    trajectories = tuple(
        build_trajectory(
            f"{group_id}/{i}",
            versions=versions,
            completed=None if completed is None else completed[i],
            group_id=group_id,
            prompt_id=prompt_id,
            prefix_score=None if scores is None else scores[i],
            **fields,
        )
        for i, versions in enumerate(siblings)
    )
    newest = max(t.completed_version for t in trajectories)
    return TrajectoryGroup(
        group_id=group_id,
        prompt_id=prompt_id,
        trajectories=trajectories,
        ready_version=newest if ready is None else ready,
        attempt=attempt,
    )


def random_group(rng: random.Random, group_id: str, *, version: int, n: int = 3, **fields: Any) -> TrajectoryGroup:
    """A group ready at `version` with spans, unknown versions, scores and lengths drawn by `rng`."""
    trajectories = []
    for i in range(n):
        completed = rng.randint(max(0, version - 2), version)
        first = rng.randint(max(0, completed - 4), completed)
        spans = [
            VersionSpan(v if rng.random() > 0.1 else None, rng.randint(1, 9)) for v in range(first, completed + 1)
        ]
        trajectories.append(
            Trajectory(
                trajectory_id=f"{group_id}/{i}",
                group_id=group_id,
                prompt_id=fields.get("prompt_id", f"p-{group_id}"),
                spans=tuple(spans),
                completed_version=completed,
                reward=rng.choice([0.0, 1.0, None]),
                solved=rng.choice([True, False, None]),
                length=rng.choice([None, 40]),
                prefix_score=rng.random() if first < completed and rng.random() > 0.2 else None,
            )
        )
    return TrajectoryGroup(
        group_id=group_id,
        prompt_id=fields.get("prompt_id", f"p-{group_id}"),
        trajectories=tuple(trajectories),
        ready_version=version,
        attempt=fields.get("attempt", 0),
    )


class VirtualClock:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def build_pool(*, batch_groups: int = 2, seed: int = 0, clock: Any = None, **settings: Any) -> TrajectoryPool:
    """A pool with the default settings but for `settings`."""
    config = PaceConfig(**settings)
    return TrajectoryPool(config, batch_groups=batch_groups, clock=clock or VirtualClock(), rng=random.Random(seed))


def feed(pool: TrajectoryPool, *groups: TrajectoryGroup) -> None:
    """Starts each group and puts it, as the rollout side does."""
    for group in groups:
        pool.ledger.start(group.group_id, version=0)
        pool.put(group)


@pytest.fixture(scope="session")
def build() -> SimpleNamespace:
    """The builders as one object: test modules cannot import each other."""
    return SimpleNamespace(
        trajectory=build_trajectory,
        group=build_group,
        random_group=random_group,
        pool=build_pool,
        feed=feed,
        clock=VirtualClock,
    )


@pytest.fixture(scope="session")
def ids() -> Callable[[Any], list[str]]:
    """The group ids of a draw or of decisions."""
    return lambda records: [record.group_id for record in getattr(records, "groups", records)]
