"""A store over any backend, and MemoryStore: the contract within one process, and the fake that tests of other packages use."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TypeVar

from spark_jms.store.contract import RecordInfo, Session, SessionInfo, Store, StoreStatistics, check_label, check_prefix
from spark_jms.store.errors import StoreClosedError, ValueInvalidError
from spark_jms.store.ledger.backend import (
    Backend,
    ChangeAnswer,
    ChangeRequest,
    OperationCounter,
    Transaction,
    evict_dead,
)
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.record import Connected, Ended, Entry
from spark_jms.store.ledger.rules import require_no_rule, run_change
from spark_jms.store.ledger.session import LedgerSession
from spark_jms.store.processes import this_process

T = TypeVar("T")
_named: dict[str, MemoryBackend] = {}
_named_lock = threading.Lock()


def _monotonic_ms() -> float:
    return time.monotonic() * 1000.0


def _sleep_ms(duration_ms: float) -> None:
    time.sleep(duration_ms / 1000.0)


_learned: weakref.WeakKeyDictionary[Backend, set[object]] = weakref.WeakKeyDictionary()


class LedgerStore(Store):
    """Connects sessions, and answers what may be asked without opening a record. Closing the store ends the sessions that were
    connected through it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._counter = OperationCounter()
        self._lock = threading.Lock()
        self._sessions: dict[str, LedgerSession] = {}
        self._closed = False

    @property
    def learned(self) -> set[object]:
        """What users of this store in this process have found out about it, for all of them, as long as one has it open."""
        return _learned.setdefault(self._backend, set())

    def connect(self, label: str = "") -> Session:
        self._check()
        check_label(label)
        session_id = self._backend.new_session_id()

        def plan(transaction: Transaction) -> None:
            evict_dead(transaction, self._backend.alive, tuple(transaction.ledger.sessions), session_id)
            transaction.do(Connected(session_id, label))

        self._backend.attach(session_id, label)
        try:
            self._backend.write(plan)
        except BaseException:
            self._backend.detach(session_id)
            raise
        session = LedgerSession(self._backend, session_id, self._counter, self._forget)
        with self._lock:
            self._sessions[session_id] = session
        return session

    def sessions(self) -> dict[str, SessionInfo]:
        self._check()
        known = self._backend.read(lambda ledger: dict(ledger.sessions))
        alive = self._backend.alive(tuple(known))
        return {
            session_id: SessionInfo(session_id, label) for session_id, label in known.items() if session_id in alive
        }

    def names(self, prefix: str = "") -> list[str]:
        self._check()
        check_prefix(prefix)
        return self._backend.read(
            lambda ledger: sorted(name for name in (*ledger.records, *ledger.damaged) if name.startswith(prefix))
        )

    def info(self, name: str) -> RecordInfo | None:
        self._check()

        def question(ledger: Ledger) -> dict[str, RecordInfo]:
            ledger.check_whole(name)
            return _infos(ledger, [name])

        return self._live(self._backend.read(question)).get(name)

    def infos(self, prefix: str = "") -> dict[str, RecordInfo]:
        self._check()
        check_prefix(prefix)
        return self._live(
            self._backend.read(
                lambda ledger: _infos(ledger, [name for name in ledger.records if name.startswith(prefix)])
            )
        )

    def _live(self, infos: dict[str, RecordInfo]) -> dict[str, RecordInfo]:
        named = {session_id for info in infos.values() for session_id in (info.holder, *info.waiters) if session_id}
        alive = self._backend.alive(named)
        if len(alive) == len(named):
            return infos
        return {
            name: RecordInfo(
                name,
                info.epoch,
                info.holder if info.holder in alive else None,
                tuple(waiter for waiter in info.waiters if waiter in alive),
            )
            for name, info in infos.items()
        }

    def peek(self, name: str) -> dict[str, bytes]:
        self._check()

        def question(ledger: Ledger) -> dict[str, bytes]:
            ledger.check_whole(name)
            record = ledger.records.get(name)
            return dict(record.objects) if record else {}

        self._counter.add_read()
        return self._backend.read(question)

    def damaged(self) -> dict[str, str]:
        self._check()
        return self._backend.read(
            lambda ledger: {name: damage.error().detail() for name, damage in ledger.damaged.items()}
        )

    def in_doubt(self) -> dict[str, tuple[str, ...]]:
        self._check()
        return self._backend.read(
            lambda ledger: {
                xid: tuple(dict.fromkeys(change.name for change in changes)) for xid, changes in ledger.prepared.items()
            }
        )

    def resolve(self, xid: str, commit: bool) -> None:
        self._check()
        if not isinstance(commit, bool):
            raise ValueInvalidError(f"the decision is True (commit) or False (roll back), not {commit!r}")
        self._backend.write(lambda transaction: transaction.do(transaction.ledger.next_resolve(xid, commit)))

    # ---- the ledger itself, for administration

    def read(self, question: Callable[[Ledger], T]) -> T:
        """The answer of the newest ledger; the question must not change it."""
        self._check()
        return self._backend.read(question)

    def append(self, entries: Sequence[Entry]) -> None:
        """Make the entries durable in one write. LedgerError when one does not fit the ledger."""
        self._check()

        def plan(transaction: Transaction) -> None:
            for entry in entries:
                transaction.do(entry)

        self._backend.write(plan)

    def compact(self) -> str:
        """Rewrite the stored ledger in place. Returns what was done, in words."""
        self._check()
        return self._backend.compact()

    def statistics(self) -> StoreStatistics:
        self._check()
        counter, physical = self._counter, self._backend.statistics()

        def counted(ledger: Ledger) -> StoreStatistics:
            return replace(
                physical,
                object_count=ledger.object_count,
                object_bytes=ledger.object_bytes,
                record_count=len(ledger.records),
                damaged_count=len(ledger.damaged),
            )

        return replace(
            self._backend.read(counted),
            create_count=counter.create,
            read_count=counter.read,
            update_count=counter.update,
            delete_count=counter.delete,
            commit_count=counter.commit,
            connection_count=len(self._sessions),
        )

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            sessions = list(self._sessions.values())
        with ExitStack() as closing:  # everything closes, whatever one of them raises
            closing.callback(self._release)
            for session in sessions:
                closing.callback(session.close)

    def _release(self) -> None:
        with self._lock:
            # Two threads may close at once, and the backend counts its users: only one thread may release it.
            closed_before, self._closed = self._closed, True
        if not closed_before:
            self._backend.release()

    def _forget(self, session_id: str) -> None:
        with self._lock:
            self._sessions.pop(session_id, None)

    def _check(self) -> None:
        require_no_rule()
        if self._closed:
            raise StoreClosedError("the store is closed")


class MemoryBackend(Backend):
    """Time is injected: `freeze` stops a session's heartbeat, and the session counts as dead once `clock_ms` has advanced by
    session_timeout_ms. `crash` acts like kill -9."""

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

    def change(self, request: ChangeRequest) -> ChangeAnswer:
        return self.write(lambda transaction: run_change(request, transaction, self.alive))

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


def _infos(ledger: Ledger, names: list[str]) -> dict[str, RecordInfo]:
    found = ((name, ledger.records.get(name)) for name in names)
    return {
        name: RecordInfo(name, record.epoch, record.holder, tuple(record.waiters))
        for name, record in found
        if record is not None
    }
