"""What each kind of store does for its administrator, and the values it reports, which `jmsq store` prints.

`kinds/opening.py` chooses the implementation by URI.

Features: R14, S9 (docs/FEATURES.md)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from spark_jms.store.contract import SessionInfo, Store, StoreInfo
from spark_jms.store.errors import StoreError, StoreUriError
from spark_jms.store.ledger.record import Entry
from spark_jms.store.ledger.store import LedgerStore


@dataclass(frozen=True)
class LockStatus:
    """Which process owns the store.

    `held`: a process holds the store's lock or uses it. `owner`, `hostname`, `pid`, `since_ms`, `incarnation`: what the
    owner published about itself. `answers`: it answers a heartbeat now.
    """

    store: str
    held: bool
    owner: str = ""
    hostname: str = ""
    pid: int = 0
    since_ms: int = 0
    engine: str = ""
    incarnation: str = ""
    version: int = 0
    answers: bool = False
    sessions: tuple[SessionInfo, ...] = ()


@dataclass(frozen=True)
class Checked:
    """`problems` names each damaged place; it is empty when all checksums match."""

    store: str
    record_count: int
    object_count: int
    object_bytes: int
    in_doubt: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class DumpedRecord:
    """`damage` says what is damaged and where; then the other fields but the name are empty."""

    name: str
    epoch: int
    holder: str | None
    objects: tuple[tuple[str, bytes], ...]
    damage: str = ""


@dataclass(frozen=True)
class Salvaged:
    """What is readable of a damaged store.

    `entries` make a ledger in which every record set is free. `left_out` names each damaged place, `uncertain` the record
    sets that may have lost changes, `sessions` the sessions that were connected; a session that is still alive uses the
    store.
    """

    entries: tuple[Entry, ...]
    left_out: tuple[str, ...]
    uncertain: tuple[str, ...]
    sessions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Migrated:
    """What a migration copied. `left_out` and `uncertain` are empty unless it salvaged a damaged store; see Salvaged."""

    record_count: int
    object_count: int
    object_bytes: int
    prepared_count: int
    there_already: int
    left_out: tuple[str, ...] = ()
    uncertain: tuple[str, ...] = ()


class Administration(ABC):
    """Of one store that exists; nothing here creates one."""

    @abstractmethod
    def lock_status(self) -> LockStatus:
        """Takes no lock and changes nothing."""

    @abstractmethod
    def check(self) -> Checked:
        """Reads everything and compares every checksum; changes nothing. A damaged record set is listed as a problem and
        not counted."""

    @abstractmethod
    def compact(self) -> str:
        """Gives back room while other processes use the store. Returns a sentence about what it did."""

    def counts(self) -> StoreInfo | None:
        """What its connections have done, for kinds of store that count it for all processes. None for others, and
        until an open store has reported, which takes a second."""
        return None

    @abstractmethod
    def salvage(self) -> Salvaged:
        """Reads an unused store around its damage and changes nothing. StoreInUseError while it is used,
        StoreUriError when this kind of store cannot be salvaged."""


class OpenedAdministration(Administration):
    """For stores that answer every question once they are opened, as any of their users would open them."""

    def __init__(self, uri: str, open_existing: Callable[[], Store]) -> None:
        self._uri = uri
        self._open = open_existing

    def lock_status(self) -> LockStatus:
        """`held` while a session is connected: the lock of a file store is taken only for the length of a write."""
        with self._open() as store:
            sessions = tuple(store.sessions().values())
        return LockStatus(self._uri, bool(sessions), sessions=sessions, answers=True)

    def check(self) -> Checked:
        try:
            with self._open() as store:
                counts = store.statistics()
                in_doubt = tuple(store.in_doubt())
                problems = tuple(store.damaged().values())
        except StoreError as error:
            return Checked(self._uri, 0, 0, 0, (), (str(error),))
        return Checked(self._uri, counts.record_count, counts.object_count, counts.object_bytes, in_doubt, problems)

    def compact(self) -> str:
        with self._open() as store:
            return ledger_store(store).compact()

    def salvage(self) -> Salvaged:
        raise StoreUriError(f"only a file store or a store in a database can be salvaged, not {self._uri}")


def ledger_store(store: Store) -> LedgerStore:
    if not isinstance(store, LedgerStore):
        raise StoreUriError(f"{type(store).__name__} keeps no record sets")
    return store
