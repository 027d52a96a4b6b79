"""Which prompt is rolled out next.

Invariant: every prompt of every episode is leased once, in an order that depends on (seed, episode) alone, and once
more for each time it was put back; put-back prompts come first. A lease is outstanding until it is released or put
back, so a saved source knows every prompt it still owes.

In: the size of the data set. Out: leases, which name a row of it. Source: design (pipeline contract).
"""

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pace.state import State, StateError, check_keys, pack, unpack

_SETTINGS = ("n_prompts", "n_episodes", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to roll out one prompt once: its group's id, the row of the data set, the episode, the attempt."""

    group_id: str
    prompt_id: str
    index: int
    episode: int
    attempt: int


class PromptSource:
    """Leases prompts. `outstanding` holds the leases by group id. Raises ValueError for a size below 1."""

    def __init__(self, *, n_prompts: int, n_episodes: int, seed: int) -> None:
        if n_prompts < 1 or n_episodes < 1:
            raise ValueError(f"{n_prompts} prompts in {n_episodes} episodes are nothing to train on")
        self.n_prompts = n_prompts
        self.n_episodes = n_episodes
        self.seed = seed
        self.outstanding: dict[str, Lease] = {}
        self._episode = 0
        self._position = 0
        self._order = self._shuffled(0)
        self._again: deque[Lease] = deque()

    @property
    def exhausted(self) -> bool:
        """Whether there is nothing to lease now; an outstanding lease that is put back changes that."""
        return not self._again and self._episode == self.n_episodes

    def lease(self) -> Lease | None:
        """The next prompt, or None when exhausted."""
        if self._again:
            lease = self._again.popleft()
        elif self._episode < self.n_episodes:
            lease = _lease(index=self._order[self._position], episode=self._episode, attempt=0)
            self._position += 1
            if self._position == self.n_prompts:
                self._episode, self._position = self._episode + 1, 0
                self._order = self._shuffled(self._episode)
        else:
            return None
        self.outstanding[lease.group_id] = lease
        return lease

    def put_back(self, group_id: str) -> None:
        """The prompt will be leased again, as the next attempt. Raises ValueError if the lease isn't outstanding."""
        lease = self._end(group_id)
        self._again.append(_lease(index=lease.index, episode=lease.episode, attempt=lease.attempt + 1))

    def release(self, group_id: str) -> None:
        """The prompt is done with. Raises ValueError if the lease isn't outstanding."""
        self._end(group_id)

    def state_dict(self) -> State:
        """Settings, cursor and leases."""
        return {
            **{name: getattr(self, name) for name in _SETTINGS},
            "episode": self._episode,
            "position": self._position,
            "again": [pack(lease) for lease in self._again],
            "outstanding": [pack(lease) for lease in self.outstanding.values()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises StateError on foreign keys, and for other data, naming the setting; the source is then unchanged.

        There may be more episodes than when it was saved.
        """
        check_keys(state, (*_SETTINGS, "episode", "position", "again", "outstanding"), type(self).__name__)
        changed = [
            f"{name} was {state[name]!r}, is {getattr(self, name)!r}"
            for name in _SETTINGS
            if state[name] != getattr(self, name) and not (name == "n_episodes" and state[name] < self.n_episodes)
        ]
        if changed:
            raise StateError(f"the prompts were saved for other data: {'; '.join(changed)}")
        episode, position = int(state["episode"]), int(state["position"])
        if not (0 <= episode <= self.n_episodes and 0 <= position < self.n_prompts):
            raise StateError(f"state of PromptSource: position {position} of episode {episode} does not exist")
        again = deque(unpack(Lease, lease) for lease in state["again"])
        outstanding = [unpack(Lease, lease) for lease in state["outstanding"]]
        self._episode, self._position, self._order = episode, position, self._shuffled(episode)
        self._again, self.outstanding = again, {lease.group_id: lease for lease in outstanding}

    def _shuffled(self, episode: int) -> list[int]:
        """The rows in the order of that episode; a string as seed, so that no two episodes share a generator."""
        if episode == self.n_episodes:
            return []
        order = list(range(self.n_prompts))
        random.Random(f"{self.seed}:{episode}").shuffle(order)
        return order

    def _end(self, group_id: str) -> Lease:
        if group_id not in self.outstanding:
            raise ValueError(f"the lease of group {group_id} is not outstanding")
        return self.outstanding.pop(group_id)


def _lease(*, index: int, episode: int, attempt: int) -> Lease:
    """The ids are derived, so that a prompt keeps its own and every attempt has one of its own."""
    prompt_id = f"{episode}:{index}"
    return Lease(group_id=f"{prompt_id}.{attempt}", prompt_id=prompt_id, index=index, episode=episode, attempt=attempt)
