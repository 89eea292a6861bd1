"""The port behind an engine: what keeps the entries of a store, and who owns it.

The engine is the process that owns the persistence. `Persistence` hides how entries are kept and how ownership is won and
lost: a database under its lock protocol, or the regions of a replicated store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from spark_jms.store.errors import StoreError
from spark_jms.store.ledger.entries import Entry
from spark_jms.store.ledger.ledger import Ledger


class OwnershipLostError(StoreError):
    """This process is no longer the engine of the store and writes nothing more. Another process takes over."""


@dataclass(frozen=True)
class Loaded:
    """What is stored: entries that make the ledger from an empty one, the position after them, and the newest outcomes.

    `outcomes` are the (token, position) of appends that were kept, oldest first. Every append kept after `known_since` is
    among them. So an append that is not, and that is based on that position or a later one, was not kept.
    """

    position: int = 0
    entries: tuple[Entry, ...] = ()
    outcomes: tuple[tuple[str, int], ...] = ()
    known_since: int = 0


@dataclass(frozen=True)
class LedgerBatch:
    """One physical write: the entries of all appends that share it, in order, after position `base`.

    `before` and `after` are the ledger without and with them; `append` may read them while it runs. A persistence that
    keeps entries ignores them, one that keeps states writes the difference.
    """

    base: int
    entries: tuple[Entry, ...]
    tokens: tuple[str, ...]
    before: Ledger
    after: Ledger

    @property
    def position(self) -> int:
        return self.base + len(self.entries)


class Persistence(ABC):
    """Owned by this process. The engine calls it in one thread at a time."""

    incarnation: str
    """The name of this ownership; no other ownership ever has it."""

    had_owner: bool = True
    """Whether an earlier owner may still run without knowing that it is the owner no more (read_lease.py)."""

    @abstractmethod
    def load(self) -> Loaded: ...

    @abstractmethod
    def append(self, batch: LedgerBatch) -> None:
        """The batch is durable on return. OwnershipLostError when another process may own the persistence: the batch is
        kept completely or not at all, and nothing is ever kept again. Any other StoreError: nothing of the batch was
        kept, and the engine continues."""

    @abstractmethod
    def prove(self) -> None:
        """This process owns the persistence at a moment during the call. OwnershipLostError: it does not any more. Any other
        StoreError: that cannot be told now. Called from any thread, also while `append` runs."""

    @abstractmethod
    def close(self) -> None:
        """Give the ownership up. Closing twice, or after the ownership was lost, is no error."""


Clock = Callable[[], float]
"""Milliseconds that never go back."""
