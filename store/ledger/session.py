"""Store, session and handle over any backend that can agree on the order of ledger entries.

A backend does two things: `read` (ask the newest ledger) and `write` (run a plan on the newest ledger while nobody else
can write, and make the entries it does durable). All rules of the contract are here and in the ledger, once.
"""

from __future__ import annotations

import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import TypeVar

from spark_jms.store.contract import (
    COMMIT_LIMIT_BYTES,
    Delete,
    Handle,
    Operation,
    Put,
    RecordInfo,
    Session,
    SessionInfo,
    SessionStatistics,
    Store,
    StoreStatistics,
    check_label,
    check_name,
)
from spark_jms.store.errors import (
    FencedError,
    RecordCorruptError,
    RecordHeldError,
    RecordOpenError,
    StoreClosedError,
    StoreWriteError,
    ValueInvalidError,
)
from spark_jms.store.ledger.entries import Cancelled, Change, Closed, Connected, Ended, Entry, Opened
from spark_jms.store.ledger.ledger import Ledger, Tally

T = TypeVar("T")

POLL_FIRST_MS = 2.0
POLL_LAST_MS = 20.0


class Transaction:
    """What one write does: entries, each applied as it is done, so that the next plan in the same write sees it."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.entries: list[Entry] = []

    def do(self, entry: Entry) -> None:
        self.ledger.apply(entry)
        self.entries.append(entry)


class Backend(ABC):
    """The port. `write` either makes all entries of the plan durable or raises and leaves none."""

    @abstractmethod
    def read(self, question: Callable[[Ledger], T]) -> T: ...

    @abstractmethod
    def write(self, plan: Callable[[Transaction], T]) -> T: ...

    def new_session_id(self) -> str:
        return secrets.token_hex(8)

    @abstractmethod
    def attach(self, session_id: str, label: str) -> None:
        """From now on this session is alive."""

    @abstractmethod
    def detach(self, session_id: str) -> None:
        """From now on it is not."""

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
        """In place, on demand; what was done, in words."""
        return "nothing to compact: the content is kept in memory"

    @abstractmethod
    def release(self) -> None:
        """One user less; the last one closes the files."""


def evict_dead(transaction: Transaction, backend: Backend, witnesses: Collection[str], me: str) -> None:
    """If one of the witnesses is dead, end all that are: each `Ended` then grants to a live one (C9)."""
    others = [session_id for session_id in witnesses if session_id != me]
    if not others or len(backend.alive(others)) == len(set(others)):
        return
    known = [session_id for session_id in transaction.ledger.sessions if session_id != me]
    alive = backend.alive(known)
    transaction.do(Ended(tuple(session_id for session_id in known if session_id not in alive)))


class _Counter:
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


class LedgerStore(Store):
    """A store on a backend. Closing it ends the sessions that were connected through it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._counter = _Counter()
        self._lock = threading.Lock()
        self._sessions: dict[str, LedgerSession] = {}
        self._closed = False

    def connect(self, label: str = "") -> Session:
        self._check()
        check_label(label)
        session_id = self._backend.new_session_id()

        def plan(transaction: Transaction) -> None:
            evict_dead(transaction, self._backend, tuple(transaction.ledger.sessions), session_id)
            transaction.do(Connected(session_id, label))

        self._backend.attach(session_id, label)
        try:
            self._backend.write(plan)
        except BaseException:
            self._backend.detach(session_id)
            raise
        session = LedgerSession(self, self._backend, session_id, self._counter)
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
        return self._live(
            self._backend.read(
                lambda ledger: _infos(ledger, [name for name in ledger.records if name.startswith(prefix)])
            )
        )

    def _live(self, infos: dict[str, RecordInfo]) -> dict[str, RecordInfo]:
        people = {person for info in infos.values() for person in (info.holder, *info.waiters) if person is not None}
        alive = self._backend.alive(people)
        if len(alive) == len(people):
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
        self._backend.write(lambda transaction: transaction.do(transaction.ledger.next_resolve(xid, commit)))

    def statistics(self) -> StoreStatistics:
        self._check()
        objects, size, records, damaged = self._backend.read(
            lambda ledger: (ledger.object_count, ledger.object_bytes, len(ledger.records), len(ledger.damaged))
        )
        physical, counter = self._backend.statistics(), self._counter
        return StoreStatistics(
            create_count=counter.create,
            read_count=counter.read,
            update_count=counter.update,
            delete_count=counter.delete,
            commit_count=counter.commit,
            object_count=objects,
            object_bytes=size,
            record_count=records,
            damaged_count=damaged,
            connection_count=len(self._sessions),
            physical_write_count=physical.physical_write_count,
            physical_write_bytes=physical.physical_write_bytes,
            compaction_count=physical.compaction_count,
            failed_compaction_count=physical.failed_compaction_count,
            torn_tail_count=physical.torn_tail_count,
            lock_break_count=physical.lock_break_count,
        )

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            sessions = list(self._sessions.values())
        with ExitStack() as closing:  # all of it is closed, whatever one of them raises
            closing.callback(self._release)
            for session in sessions:
                closing.callback(session.close)

    def _release(self) -> None:
        with self._lock:
            # Two threads may close at once: the backend counts its users, so only one of them may release it.
            closed_before, self._closed = self._closed, True
        if not closed_before:
            self._backend.release()

    def _forget(self, session_id: str) -> None:
        with self._lock:
            self._sessions.pop(session_id, None)

    def _check(self) -> None:
        if self._closed:
            raise StoreClosedError("the store is closed")


def _infos(ledger: Ledger, names: list[str]) -> dict[str, RecordInfo]:
    found = ((name, ledger.records.get(name)) for name in names)
    return {
        name: RecordInfo(name, record.epoch, record.holder, tuple(record.waiters))
        for name, record in found
        if record is not None
    }


def _check_size(changes: list[Change]) -> None:
    size = sum(
        len(operation.key) + len(operation.value if isinstance(operation, Put) else b"")
        for change in changes
        for operation in change.operations
    )
    if size > COMMIT_LIMIT_BYTES:
        raise ValueInvalidError(f"the commit has {size} bytes")


class LedgerSession(Session):
    def __init__(self, store: LedgerStore, backend: Backend, session_id: str, counter: _Counter) -> None:
        self.session_id = session_id
        self._store = store
        self._backend = backend
        self._counters = (counter, _Counter())
        self._lock = threading.Lock()
        self._handles: dict[str, LedgerHandle] = {}
        self._closed = False

    def open(self, name: str, timeout_ms: int = 0) -> Handle:
        check_name(name, "record set name")
        deadline_ms = self._backend.clock_ms() + timeout_ms
        poll_ms = POLL_FIRST_MS
        holder, epoch = self._try_open(name)
        while holder != self.session_id:
            left_ms = deadline_ms - self._backend.clock_ms()
            if left_ms <= 0:
                raise RecordHeldError(name, holder)
            self._backend.sleep_ms(min(poll_ms, left_ms))
            poll_ms = min(poll_ms * 1.5, POLL_LAST_MS)
            self._check(name)
            holder, epoch, waiting = self._backend.read(lambda ledger: self._glimpse(ledger, name))
            if holder == self.session_id:
                break
            if not waiting:  # cancelled by another thread: there is no place left to wait at
                raise RecordHeldError(name, holder)
            if holder is None or not self._backend.alive((holder,)):
                holder, epoch = self._try_open(name)
        return self._adopt(name, epoch)

    def _try_open(self, name: str) -> tuple[str | None, int]:
        self._check(name)

        def plan(transaction: Transaction) -> tuple[str | None, int]:
            ledger = transaction.ledger
            ledger.check_session(self.session_id)
            evict_dead(transaction, self._backend, ledger.involved(name), self.session_id)
            entry = ledger.next_open(self.session_id, name)
            if entry is not None:
                transaction.do(entry)
            record = ledger.records[name]
            return record.holder, record.epoch

        return self._backend.write(plan)

    def _glimpse(self, ledger: Ledger, name: str) -> tuple[str | None, int, bool]:
        ledger.check_session(self.session_id)
        ledger.check_whole(name)
        record = ledger.records[name]
        return record.holder, record.epoch, self.session_id in record.waiters

    def _adopt(self, name: str, epoch: int) -> LedgerHandle:
        with self._lock:
            if self._closed:
                raise StoreClosedError("the session is closed")
            if name in self._handles:
                raise RecordOpenError(name)
            handle = self._handles[name] = LedgerHandle(self, name, epoch)
        return handle

    def cancel(self, name: str) -> None:
        self._check()

        def plan(transaction: Transaction) -> None:
            record = transaction.ledger.records.get(name)
            if record is None:
                return
            if self.session_id in record.waiters:
                transaction.do(Cancelled(name, self.session_id))
            elif record.holder == self.session_id and name not in self._handles:
                self._close_record(transaction, name, record.epoch)

        self._backend.write(plan)

    def commit(self, changes: Mapping[Handle, Sequence[Operation]]) -> None:
        self._check()
        self._write([self._change(handle, operations) for handle, operations in changes.items()])

    def prepare(self, xid: str, changes: Mapping[Handle, Sequence[Operation]]) -> None:
        self._check()
        check_name(xid, "transaction id")
        promised = [self._change(handle, operations) for handle, operations in changes.items()]
        _check_size(promised)
        self._backend.write(
            lambda transaction: transaction.do(transaction.ledger.next_prepare(self.session_id, xid, promised))
        )

    def _change(self, handle: Handle, operations: Sequence[Operation]) -> Change:
        if not isinstance(handle, LedgerHandle) or handle.session is not self:
            raise StoreClosedError(f"the handle of {handle.name!r} belongs to another session")
        handle.check()
        for operation in operations:
            if not isinstance(operation, Put | Delete):
                raise ValueInvalidError(f"an operation is a Put or a Delete, not {type(operation).__name__}")
        return Change(handle.name, handle.epoch, tuple(operations))

    def _write(self, changes: list[Change]) -> None:
        _check_size(changes)

        def plan(transaction: Transaction) -> Tally:
            entry = transaction.ledger.next_write(self.session_id, changes)
            tally = transaction.ledger.tally(changes)
            if any(change.operations for change in changes):
                transaction.do(entry)
            return tally

        tally = self._backend.write(plan)
        for counter in self._counters:
            counter.add_commit(tally)

    def _close_handle(self, handle: LedgerHandle) -> None:
        def plan(transaction: Transaction) -> None:
            self._close_record(transaction, handle.name, handle.epoch)

        try:
            self._backend.write(plan)
        finally:
            with self._lock:
                if self._handles.get(handle.name) is handle:
                    del self._handles[handle.name]

    def _close_record(self, transaction: Transaction, name: str, epoch: int) -> None:
        try:
            transaction.ledger.owned(self.session_id, name, epoch)
        except (FencedError, RecordCorruptError):
            return  # it was taken over, or is damaged: there is nothing left to hand over
        evict_dead(transaction, self._backend, transaction.ledger.involved(name), self.session_id)
        transaction.do(Closed(name, epoch))

    def statistics(self) -> SessionStatistics:
        self._check()
        counter = self._counters[1]
        return SessionStatistics(
            counter.create, counter.read, counter.update, counter.delete, counter.commit, len(self._handles)
        )

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for handle in self._handles.values():
                handle.closed = True
            self._handles.clear()

        def plan(transaction: Transaction) -> None:
            ledger = transaction.ledger
            if self.session_id in ledger.sessions:
                evict_dead(transaction, self._backend, tuple(ledger.sessions), self.session_id)
                transaction.do(Ended((self.session_id,)))

        try:
            self._backend.write(plan)
        except (StoreClosedError, StoreWriteError):
            pass  # others will notice: a detached session is a dead one, and its records are free
        finally:
            self._backend.detach(self.session_id)
            self._store._forget(self.session_id)

    def _read(self, handle: LedgerHandle, question: Callable[[Ledger], T]) -> T:
        for counter in self._counters:
            counter.add_read()

        def fenced(ledger: Ledger) -> T:
            ledger.owned(self.session_id, handle.name, handle.epoch)
            return question(ledger)

        return self._backend.read(fenced)

    def _check(self, name: str | None = None) -> None:
        if self._closed:
            raise StoreClosedError("the session is closed")
        if name is not None and name in self._handles:
            raise RecordOpenError(name)


class LedgerHandle(Handle):
    def __init__(self, session: LedgerSession, name: str, epoch: int) -> None:
        self.session = session
        self.name = name
        self.epoch = epoch
        self.closed = False

    def read(self, key: str) -> bytes | None:
        self.check()
        return self.session._read(self, lambda ledger: ledger.records[self.name].objects.get(key))

    def objects(self) -> dict[str, bytes]:
        self.check()
        return self.session._read(self, lambda ledger: dict(ledger.records[self.name].objects))

    def commit(self, operations: Sequence[Operation]) -> None:
        self.session.commit({self: operations})

    def waiters(self) -> tuple[str, ...]:
        self.check()
        backend = self.session._backend
        waiting = backend.read(self._waiting)
        if not waiting:
            return ()
        alive = backend.alive(waiting)
        return tuple(waiter for waiter in waiting if waiter in alive)

    def _waiting(self, ledger: Ledger) -> tuple[str, ...]:
        return tuple(ledger.owned(self.session.session_id, self.name, self.epoch).waiters)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.session._close_handle(self)

    def check(self) -> None:
        if self.closed:
            raise StoreClosedError(f"the handle of {self.name!r} is closed")


__all__ = ["Backend", "LedgerHandle", "LedgerSession", "LedgerStore", "Opened", "Transaction", "evict_dead"]
