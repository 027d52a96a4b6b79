"""The account of groups and tokens that must close.

Invariant, in groups and in tokens, after every operation:

    generated = trained + rejected + evicted + filtered + failed + skipped + in_pool + in_flight

A group is opened once, is in flight, then perhaps in the pool, and is closed once; any other step raises
`LedgerError`. "Trained" means handed to the trainer in a batch. Tokens count once, when an engine made them: those of
a retried request are booked as failed although their group lives on.

In: starts, progress and ends from the rollout side, fates from the pool. Source: design (pipeline contract).
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pace.state import State, StateError, check_keys


class LedgerError(ValueError):
    """A group was moved in a way that would count it twice or lose it."""


class Fate(str, Enum):
    """How a group's account is closed: the first three from the pool, the others from in flight."""

    TRAINED = "trained"
    REJECTED = "rejected"
    EVICTED = "evicted"
    FILTERED = "filtered"
    FAILED = "failed"
    SKIPPED = "skipped"  # leased as a candidate, then given no rollout

    @property
    def from_pool(self) -> bool:
        """Whether the group was ready before."""
        return self in (Fate.TRAINED, Fate.REJECTED, Fate.EVICTED)


COLUMNS = ("generated", *(fate.value for fate in Fate), "in_pool", "in_flight")
_COUNTERS = COLUMNS[:-2]


@dataclass(slots=True)
class Account:
    """An open group: the trainer's version when it started, the tokens made for it, whether it is ready."""

    start_version: int
    n_tokens: int = 0
    in_pool: bool = False


class Ledger:
    """Books every group and every generated token exactly once."""

    def __init__(self) -> None:
        self._open: dict[str, Account] = {}
        self._starts: Counter[int] = Counter()  # open groups by start version
        self._groups: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._in_pool = 0

    def start(self, group_id: str, *, version: int) -> None:
        """Opens a group, in flight, at trainer version `version`."""
        if group_id in self._open:
            raise LedgerError(f"group {group_id} was started twice")
        self._open[group_id] = Account(version)
        self._starts[version] += 1
        self._groups["generated"] += 1

    def generate(self, group_id: str, n_tokens: int) -> None:
        """Books tokens just made for a group in flight (optional: its end books what was not reported)."""
        if n_tokens < 0:
            raise LedgerError(f"group {group_id} cannot have made {n_tokens} tokens")
        self._account(group_id, in_pool=False).n_tokens += n_tokens
        self._tokens["generated"] += n_tokens

    def ready(self, group_id: str, *, n_tokens: int) -> None:
        """The group is complete with `n_tokens` tokens and enters the pool."""
        account = self._account(group_id, in_pool=False)
        self._settle_tokens(account, n_tokens)
        account.in_pool = True
        self._in_pool += 1

    def close(self, group_id: str, fate: Fate, *, n_tokens: int | None = None) -> None:
        """Ends a group. `n_tokens` is what a filtered or failed one had made; default: what was reported so far."""
        account = self._account(group_id, in_pool=fate.from_pool)
        if n_tokens is not None and not account.in_pool:
            self._settle_tokens(account, n_tokens)
        del self._open[group_id]
        self._in_pool -= account.in_pool
        self._starts[account.start_version] -= 1
        if not self._starts[account.start_version]:
            del self._starts[account.start_version]
        self._groups[fate.value] += 1
        self._tokens[fate.value] += account.n_tokens

    def restart_in_flight(self) -> list[str]:
        """After a restart: groups to generate again, in order of their start; their tokens so far have failed."""
        flying = [group_id for group_id, account in self._open.items() if not account.in_pool]
        for group_id in flying:
            self._settle_tokens(self._open[group_id], 0)
        return flying

    @property
    def n_in_flight(self) -> int:
        """Groups started and not complete."""
        return len(self._open) - self._in_pool

    @property
    def oldest_open(self) -> int | None:
        """The smallest start version of an open group."""
        return min(self._starts, default=None)

    def columns(self) -> dict[str, dict[str, int]]:
        """The identity's columns under "groups" and "tokens"."""
        groups = {name: self._groups[name] for name in _COUNTERS}
        tokens = {name: self._tokens[name] for name in _COUNTERS}
        waiting = sum(account.n_tokens for account in self._open.values() if account.in_pool)
        flying = sum(account.n_tokens for account in self._open.values() if not account.in_pool)
        return {
            "groups": {**groups, "in_pool": self._in_pool, "in_flight": self.n_in_flight},
            "tokens": {**tokens, "in_pool": waiting, "in_flight": flying},
        }

    def check(self) -> None:
        """Raises LedgerError, with the columns, unless both identities hold."""
        for unit, columns in self.columns().items():
            if columns["generated"] != sum(columns.values()) - columns["generated"]:
                raise LedgerError(f"the account of {unit} does not close: {columns}")

    def state_dict(self) -> State:
        """Open accounts in order of their start, and the counters."""
        return {
            "open": [[key, a.start_version, a.n_tokens, a.in_pool] for key, a in self._open.items()],
            "groups": {name: self._groups[name] for name in _COUNTERS},
            "tokens": {name: self._tokens[name] for name in _COUNTERS},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises StateError on foreign keys or an account that does not close; the ledger is then unchanged."""
        check_keys(state, ("open", "groups", "tokens"), type(self).__name__)
        loaded = Ledger()
        for unit, counter in (("groups", loaded._groups), ("tokens", loaded._tokens)):
            check_keys(state[unit], _COUNTERS, f"{type(self).__name__}.{unit}")
            counter.update({name: int(count) for name, count in state[unit].items()})
        for group_id, start_version, n_tokens, in_pool in state["open"]:
            loaded._open[group_id] = Account(int(start_version), int(n_tokens), bool(in_pool))
            loaded._starts[int(start_version)] += 1
            loaded._in_pool += bool(in_pool)
        try:
            loaded.check()
        except LedgerError as error:
            raise StateError(f"state of {type(self).__name__}: {error}") from error
        vars(self).update(vars(loaded))

    def metrics(self) -> dict[str, float]:
        """Columns as `groups/<column>`, `tokens/<column>`: counters, but for the gauges in_pool and in_flight."""
        return {f"{unit}/{name}": float(n) for unit, columns in self.columns().items() for name, n in columns.items()}

    def _account(self, group_id: str, *, in_pool: bool) -> Account:
        """The open account, required to be where the caller thinks it is."""
        if group_id not in self._open:
            raise LedgerError(f"group {group_id} is not open: never started, or closed already")
        account = self._open[group_id]
        if account.in_pool is not in_pool:
            raise LedgerError(f"group {group_id} is {'in the pool' if account.in_pool else 'still in flight'}")
        return account

    def _settle_tokens(self, account: Account, n_tokens: int) -> None:
        """Brings the account to `n_tokens`: what was not reported yet is new, a surplus belongs to retries."""
        unreported = n_tokens - account.n_tokens
        self._tokens["generated" if unreported > 0 else Fate.FAILED.value] += abs(unreported)
        account.n_tokens = n_tokens
