"""The store in memory: the contract within one process, and the fake that tests of other packages use.

Time is injected: `freeze` stops a session's heartbeat, and the session counts as dead once `clock_ms` has advanced by
session_timeout_ms. `crash` acts like kill -9. Stores of one name share their content, like two openings of one directory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import TypeVar

from spark_jms.store.contract import Session, StoreStatistics
from spark_jms.store.errors import StoreClosedError
from spark_jms.store.forks import this_process
from spark_jms.store.ledger.backend import Backend, Transaction
from spark_jms.store.ledger.entries import Ended
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.store import LedgerStore

T = TypeVar("T")


def _monotonic_ms() -> float:
    return time.monotonic() * 1000.0


def _sleep_ms(duration_ms: float) -> None:
    time.sleep(duration_ms / 1000.0)


class MemoryBackend(Backend):
    def __init__(
        self,
        session_timeout_ms: int = 10_000,
        clock_ms: Callable[[], float] = _monotonic_ms,
        sleep_ms: Callable[[float], None] = _sleep_ms,
    ) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._clock_ms = clock_ms
        self._sleep_ms = sleep_ms
        self._lock = threading.RLock()
        self._ledger = Ledger()
        self._attached: set[str] = set()
        self._frozen_at_ms: dict[str, float] = {}
        self._physical_write_count = 0
        self._process = this_process()

    def read(self, question: Callable[[Ledger], T]) -> T:
        self._require_own_process()
        with self._lock:
            return question(self._ledger)

    def write(self, plan: Callable[[Transaction], T]) -> T:
        self._require_own_process()
        with self._lock:
            transaction = Transaction(self._ledger)
            try:
                return plan(transaction)
            finally:
                self._physical_write_count += bool(transaction.entries)

    def attach(self, session_id: str, label: str) -> None:
        with self._lock:
            self._attached.add(session_id)

    def detach(self, session_id: str) -> None:
        with self._lock:
            self._attached.discard(session_id)
            self._frozen_at_ms.pop(session_id, None)

    def alive(self, session_ids: Collection[str]) -> frozenset[str]:
        with self._lock:
            now_ms = self._clock_ms()
            return frozenset(
                session_id
                for session_id in session_ids
                if session_id in self._attached
                and now_ms - self._frozen_at_ms.get(session_id, now_ms) < self._session_timeout_ms
            )

    def freeze(self, session_id: str) -> None:
        with self._lock:
            self._frozen_at_ms.setdefault(session_id, self._clock_ms())

    def thaw(self, session_id: str) -> None:
        with self._lock:
            self._frozen_at_ms.pop(session_id, None)

    def crash(self, session_id: str) -> None:
        self.detach(session_id)

        def plan(transaction: Transaction) -> None:
            if session_id in transaction.ledger.sessions:
                transaction.do(Ended((session_id,)))

        self.write(plan)

    def clock_ms(self) -> float:
        return self._clock_ms()

    def sleep_ms(self, duration_ms: float) -> None:
        self._sleep_ms(duration_ms)

    def statistics(self) -> StoreStatistics:
        return StoreStatistics(physical_write_count=self._physical_write_count)

    def release(self) -> None:
        """The content stays for the next store of the same name."""

    def _require_own_process(self) -> None:
        if self._process is not this_process():
            raise StoreClosedError("this memory store belongs to the parent process; a forked child cannot share it")


_named: dict[str, MemoryBackend] = {}
_named_lock = threading.Lock()


class MemoryStore(LedgerStore):
    """With a name, the content is shared by all stores of that name in this process; without one it is private."""

    def __init__(
        self,
        name: str = "",
        *,
        session_timeout_ms: int = 10_000,
        clock_ms: Callable[[], float] = _monotonic_ms,
        sleep_ms: Callable[[float], None] = _sleep_ms,
    ) -> None:
        with _named_lock:
            backend = _named.get(name) if name else None
            if backend is None or backend._process is not this_process():
                backend = MemoryBackend(session_timeout_ms, clock_ms, sleep_ms)
                if name:
                    _named[name] = backend
        super().__init__(backend)
        self._memory = backend

    @staticmethod
    def exists(name: str) -> bool:
        with _named_lock:
            return name in _named

    @staticmethod
    def forget(name: str) -> None:
        """Drop the content of a name; the next store of that name is empty."""
        with _named_lock:
            _named.pop(name, None)

    def crash(self, session: Session | str) -> None:
        """As if the process of the session, or of the one with this id, was killed: its records are freed or handed over, and its
        own calls are fenced."""
        self._memory.crash(session if isinstance(session, str) else session.session_id)

    def freeze(self, session: Session) -> None:
        """As if the process of the session was stopped (SIGSTOP): its heartbeat ends."""
        self._memory.freeze(session.session_id)

    def thaw(self, session: Session) -> None:
        self._memory.thaw(session.session_id)


def crash(session: Session, store: MemoryStore) -> None:
    """Simulate the death of the process of a session."""
    store.crash(session)
