"""What serves and what keeps: the ports of a served store.

A served store has one *engine*: the process that owns the place where the entries are kept. The engine holds the ledger
and serves it to the sessions of all processes (`Server`). How entries are kept, and how ownership of the place is won
and lost, is behind `Persistence`: a database under its lock protocol, or the regions of a replicated store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from spark_jms.store.errors import StoreError
from spark_jms.store.ledger.entries import Entry
from spark_jms.store.ledger.ledger import Ledger


class OwnershipLostError(StoreError):
    """This process is no longer the engine of the store; it writes nothing any more. Another one takes over."""


@dataclass(frozen=True)
class Loaded:
    """What was kept: entries that make the ledger from nothing, the position after them, and the newest outcomes.

    `outcomes` are (token, position) of appends that are known to be kept, oldest first. Every append kept after
    `known_since` is among them, so that an append unknown here, and based on that position or a later one, was not kept.
    """

    position: int = 0
    entries: tuple[Entry, ...] = ()
    outcomes: tuple[tuple[str, int], ...] = ()
    known_since: int = 0


@dataclass(frozen=True)
class LedgerBatch:
    """One physical write: the entries of all appends that shared it, in order, from `base` on.

    `before` and `after` are the ledger without and with them; to be read, within `append` only. A place that keeps
    entries ignores them, a place that keeps states writes what differs.
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
    """The place, owned by this process. Called by one thread at a time."""

    incarnation: str
    """Of this ownership; never used before, nor after."""

    @abstractmethod
    def load(self) -> Loaded: ...

    @abstractmethod
    def append(self, batch: LedgerBatch) -> None:
        """Durable when it returns. OwnershipLostError when another may own the place: nothing of the batch is kept, or
        all of it, and nothing is ever kept again. Any other StoreError: nothing of the batch was kept, go on."""

    @abstractmethod
    def close(self) -> None:
        """Gives the place up. Closing twice, or after ownership was lost, is no error."""


Clock = Callable[[], float]
"""Milliseconds that only grow."""
