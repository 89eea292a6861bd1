"""What each kind of store does for its administrator. `store/uri.py` chooses the implementation by URI.

Features: R14, S9 (docs/FEATURES.md)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from spark_jms.store.contract import Store
from spark_jms.store.errors import StoreError, StoreUriError
from spark_jms.store.ledger.store import LedgerStore
from spark_jms.store.reports import Checked, LockStatus, Salvaged, StoreInfo


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
