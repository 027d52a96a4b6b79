"""The pool actor under Ray, killed with SIGKILL between calls, during calls and with batches handed out."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from pace.config import PaceConfig
from pace.types import RejectReason

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.slow

PATIENCE = 90.0  # seconds for a restart on a busy machine


class Client:
    """The rollout manager and the trainer in one, patient as they have to be: a call whose actor died is repeated."""

    def __init__(self, build: Any, folder: Any, **settings: Any) -> None:
        from pace.actor import TrajectoryPoolActor

        self.build = build
        self.n_deaths_seen = 0
        self.actor = TrajectoryPoolActor.remote(
            config=PaceConfig(**{"max_reject_rate": 0.0, "k_max": -1, **settings}),
            batch_groups=3,
            n_prompts=9,
            n_episodes=2,
            seed=0,
            folder=str(folder),
        )

    def ask(self, name: str, *args: Any, **fields: Any) -> Any:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return ray.get(getattr(self.actor, name).remote(*args, **fields), timeout=PATIENCE)
            except ray.exceptions.RayActorError:
                self.n_deaths_seen += 1
                assert time.monotonic() < deadline, f"{name}: the actor did not come back"
                time.sleep(0.2)

    @property
    def pid(self) -> int:
        return int(self.ask("__ray_call__", _pid))

    def kill(self, pid: int | None = None) -> None:
        os.kill(pid or self.pid, signal.SIGKILL)

    def group(self, lease: Any, *, ready: int = 0) -> Any:
        return self.build.group(lease.group_id, siblings=[(ready,)], prompt_id=lease.prompt_id, attempt=lease.attempt)

    def put(self, lease: Any, *, ready: int = 0) -> bool:
        return bool(self.ask("put", self.group(lease, ready=ready), [ray.put(content(lease.group_id))]))

    def send(self, lease: Any, *, ready: int) -> None:
        """Puts without waiting for the reply."""
        self.actor.put.remote(self.group(lease, ready=ready), [ray.put(content(lease.group_id))])

    def payloads(self, version: int) -> list[bytes]:
        """The payloads of a step; references that died with their owner are asked for again."""
        for _ in range(5):
            try:
                return list(ray.get(self.ask("draw", version, timeout_s=10).payloads, timeout=PATIENCE))
            except ray.exceptions.ObjectLostError:  # OwnerDiedError is one
                continue
        raise AssertionError("the payloads could not be read")


def _pid(actor: Any) -> int:
    return os.getpid()


def content(group_id: str) -> bytes:
    """Above Ray's limit for objects that travel inside a reply."""
    return group_id.encode() * 40_000


@pytest.fixture
def client(cluster: None, build: Any, tmp_path: Any) -> Iterator[Any]:
    made = []

    def make(**settings: Any) -> Client:
        made.append(Client(build, tmp_path / "pool", **settings))
        return made[-1]

    yield make
    for each in made:
        ray.kill(each.actor)


def test_a_killed_actor_gives_the_same_batch_with_payloads_that_can_be_read(client):
    one = client()
    leases = one.ask("lease", limit=4, timeout_s=10).leases
    assert [one.put(lease) for lease in leases[:3]] == [True] * 3
    before = one.ask("draw", 0, timeout_s=10)
    one.kill()
    assert one.ask("outstanding") == leases[3:]
    after = one.ask("draw", 0, timeout_s=10)
    assert after.draw == before.draw and one.n_deaths_seen
    assert one.payloads(0) == [content(group.group_id) for group in after.draw.groups]
    one.kill()
    assert one.ask("commit", 0) and not one.ask("commit", 0)
    assert not one.put(leases[0]) and one.put(leases[3])
    assert one.ask("report")["pace/ledger/groups/trained"] == 3.0


def test_a_call_that_waits_in_a_killed_actor_fails_and_is_answered_when_repeated(client):
    one = client(max_inflight_groups=3)
    leases = one.ask("lease", limit=3, timeout_s=10).leases
    pid = one.pid
    draw = one.actor.draw.remote(0, timeout_s=300)
    lease = one.actor.lease.remote(limit=1, timeout_s=300)
    assert ray.wait([draw, lease], timeout=1)[0] == []
    one.kill(pid)
    for call in (draw, lease):
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(call, timeout=PATIENCE)
    assert "3 in flight" in one.ask("waiting_for")
    waiting = one.actor.draw.remote(0, timeout_s=60)
    for each in leases:
        assert one.put(each)
    assert len(ray.get(waiting, timeout=PATIENCE).draw.groups) == 3


def test_a_new_actor_on_the_folder_of_another_run_starts_empty(client):
    one = client()
    first = one.ask("lease", limit=2, timeout_s=10).leases
    two = client()
    assert two.ask("outstanding") == () and two.ask("lease", limit=2, timeout_s=10).leases == first


def test_a_whole_run_with_kills_at_random_moments_trains_every_prompt_once(client, tmp_path):
    """The pool is killed before calls, just after they are sent, and while they wait."""
    rng, one = random.Random(5), client(max_inflight_groups=4)
    trained, version, n_kills, flying = [], 0, 0, {}

    def maybe_kill(sent: Any = None) -> None:
        nonlocal n_kills
        if n_kills < 6 and rng.random() < 0.2:
            pid = one.pid
            n_kills += 1
            if sent:
                sent()
            time.sleep(rng.random() * 0.01)
            one.kill(pid)

    for _ in range(300):
        maybe_kill(partial(one.actor.lease.remote, limit=2, timeout_s=60))
        flying = {lease.group_id: lease for lease in one.ask("outstanding")}
        flying |= {lease.group_id: lease for lease in one.ask("lease", limit=4, timeout_s=0).leases}
        for lease in list(flying.values())[: rng.randint(1, 4)]:
            if rng.random() < 0.15:
                fields = {"reason": RejectReason.FAILURE, "n_tokens": 4, "put_back": True}
                maybe_kill(partial(one.actor.close.remote, lease.group_id, **fields))
                one.ask("close", lease.group_id, **fields)
            else:
                maybe_kill(partial(one.send, lease, ready=version))
                one.put(lease, ready=version)
        maybe_kill(partial(one.actor.draw.remote, version, timeout_s=60))
        reply = one.ask("draw", version, timeout_s=0)
        if reply.draw:
            ids = [group.group_id for group in reply.draw.groups]
            assert one.payloads(version) == [content(group_id) for group_id in ids]
            maybe_kill(partial(one.actor.commit.remote, version))
            one.ask("commit", version)
            trained += [group.prompt_id for group in reply.draw.groups]
            version += 1
            one.ask("set_version", version)
        if reply.finished:
            break
    assert Counter(trained) == Counter(f"{episode}:{i}" for episode in range(2) for i in range(9))
    report = one.ask("report")
    assert report["pace/ledger/groups/trained"] == 18.0 and report["pace/ledger/groups/in_flight"] == 0.0
    assert n_kills == 6 and not list((tmp_path / "pool" / "payloads").iterdir())


def test_a_checkpoint_goes_on_in_another_actor(client, tmp_path):
    one = client()
    leases = one.ask("lease", limit=4, timeout_s=10).leases
    for lease in leases[:3]:
        one.put(lease)
    draw = one.ask("draw", 0, timeout_s=10).draw
    one.ask("save", str(tmp_path / "checkpoint"))
    ray.kill(one.actor)
    two = client()
    two.ask("load", str(tmp_path / "checkpoint"))
    two.kill()
    assert two.ask("draw", 0, timeout_s=10).draw == draw
    assert two.payloads(0) == [content(group.group_id) for group in draw.groups]
    assert two.ask("lease", limit=1, timeout_s=10).leases == leases[3:]
