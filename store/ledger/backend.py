"""The port between the rules of a store and the medium that keeps its ledger, and what both of its sides use.

`Backend` is the port, `Transaction` the entries of one write, and OperationCounter counts the operations of a session or store.

Features: C9, C16 (docs/FEATURES.md)
"""

from __future__ import annotations

import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TypeVar

from spark_jms.store.contract import Delete, Put, StoreStatistics
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.record import Change, Ended, Entry

T = TypeVar("T")
Alive = Callable[[Collection[str]], frozenset[str]]
"""Which of these sessions are alive."""


@dataclass(frozen=True)
class Tally:
    create_count: int = 0
    update_count: int = 0
    delete_count: int = 0


@dataclass(frozen=True)
class ChangeRequest:
    """What a session asks a rule for (rules.py). `held`: operations of records that it has open, made in the same write."""

    session_id: str
    names: tuple[str, ...]
    rule: str
    argument: bytes
    held: tuple[Change, ...] = ()


@dataclass(frozen=True)
class ChangeAnswer:
    """`tally` is empty when only the outcome is still known, not what was done."""

    answer: bytes
    tally: Tally = Tally()


class Transaction:
    """The entries of one write. Each is applied as it is done, so that the next plan in the same write sees it."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.entries: list[Entry] = []

    def do(self, entry: Entry) -> None:
        self.ledger.apply(entry)
        self.entries.append(entry)


class Backend(ABC):
    """How a store keeps its ledger. All rules of the contract are in the ledger and in the sessions above it, so a backend
    only has to agree with the other processes on the order of entries."""

    @abstractmethod
    def read(self, question: Callable[[Ledger], T]) -> T:
        """The answer of the newest ledger. The question must not change it."""

    @abstractmethod
    def write(self, plan: Callable[[Transaction], T]) -> T:
        """Run the plan on the newest ledger while no other writes, and make its entries durable: all of them or, when it
        raises StoreError, none; OutcomeUnknownError when it cannot tell."""

    @abstractmethod
    def change(self, request: ChangeRequest) -> ChangeAnswer:
        """The same for a change that a rule decides, wherever the write is: here or in an engine."""

    def new_session_id(self) -> str:
        return secrets.token_hex(8)

    @abstractmethod
    def attach(self, session_id: str, label: str) -> None:
        """The session is alive from now on."""

    @abstractmethod
    def detach(self, session_id: str) -> None:
        """The session is dead from now on."""

    @abstractmethod
    def alive(self, session_ids: Collection[str]) -> frozenset[str]: ...

    @abstractmethod
    def clock_ms(self) -> float: ...

    @abstractmethod
    def sleep_ms(self, duration_ms: float) -> None: ...

    @abstractmethod
    def statistics(self) -> StoreStatistics:
        """The physical half of the statistics."""

    def compact(self) -> str:
        """Rewrite the stored ledger in place. Returns what was done, in words."""
        return "nothing to compact: the content is kept in memory"

    @abstractmethod
    def release(self) -> None:
        """Count one user less; the last one closes the backend."""


class OperationCounter:
    """Counts the operations of a session, or of a store, for statistics. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.create = self.read = self.update = self.delete = self.commit = 0

    def add_read(self) -> None:
        with self._lock:
            self.read += 1

    def add_commit(self, tally: Tally) -> None:
        with self._lock:
            self.commit += 1
            self.create += tally.create_count
            self.update += tally.update_count
            self.delete += tally.delete_count


def tally_of(changes: Iterable[Change], ledger: Ledger) -> Tally:
    """How many objects these changes would create, update and delete in the ledger."""
    create = update = delete = 0
    for change in changes:
        record = ledger.records.get(change.name)
        there: dict[str, bool] = {}
        for operation in change.operations:
            known = there.get(operation.key, record is not None and operation.key in record.objects)
            if isinstance(operation, Delete):
                delete += known
            elif known:
                update += 1
            else:
                create += 1
            there[operation.key] = isinstance(operation, Put)
    return Tally(create, update, delete)


def evict_dead(transaction: Transaction, alive: Alive, witnesses: Collection[str], me: str) -> None:
    """If one of the witnesses is dead, end all dead sessions, so that their records go to live ones."""
    others = [session_id for session_id in witnesses if session_id != me]
    if not others or len(alive(others)) == len(set(others)):
        return
    known = [session_id for session_id in transaction.ledger.sessions if session_id != me]
    living = alive(known)
    transaction.do(Ended(tuple(session_id for session_id in known if session_id not in living)))
