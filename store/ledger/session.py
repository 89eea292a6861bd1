"""Session and handle over any backend: what a consumer does with records, checked and fenced.

Features: C9 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from spark_jms.store.contract import (
    COMMIT_LIMIT_BYTES,
    Handle,
    Operation,
    RecordView,
    RuleCall,
    Session,
    SessionStatistics,
    check_changes,
    check_duration,
    check_name,
)
from spark_jms.store.errors import (
    FencedError,
    OutcomeUnknownError,
    RecordCorruptError,
    RecordHeldError,
    RecordOpenError,
    StoreClosedError,
    StoreWriteError,
    ValueInvalidError,
)
from spark_jms.store.ledger.backend import (
    Backend,
    ChangeRequest,
    OperationCounter,
    Tally,
    Transaction,
    evict_dead,
    tally_of,
)
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.record import Cancelled, Change, Closed, Ended
from spark_jms.store.ledger.rules import require_no_rule, size_of, view_of

T = TypeVar("T")

POLL_FIRST_MS = 2.0
POLL_LAST_MS = 20.0


class _Held(NamedTuple):
    """Who holds a record, and whether this session waits for it."""

    holder: str | None
    epoch: int
    waiting: bool


class LedgerSession(Session):
    """`closed` is called once, with the id of this session. Its handles are part of it: each stands for one open record."""

    def __init__(
        self, backend: Backend, session_id: str, store_counter: OperationCounter, closed: Callable[[str], None]
    ) -> None:
        self.session_id = session_id
        self._on_closed = closed
        self._backend = backend
        self._counters = (store_counter, OperationCounter())
        self._lock = threading.Lock()
        self._handles: dict[str, LedgerHandle] = {}
        self._closed = False

    def open(self, name: str, timeout_ms: int = 0) -> Handle:
        check_name(name, "record set name")
        check_duration(timeout_ms, "timeout_ms")
        deadline_ms = self._backend.clock_ms() + timeout_ms
        poll_ms = POLL_FIRST_MS
        held = self._try_open(name)
        while held.holder != self.session_id:
            left_ms = deadline_ms - self._backend.clock_ms()
            if left_ms <= 0:
                raise RecordHeldError(name, held.holder)
            self._backend.sleep_ms(min(poll_ms, left_ms))
            poll_ms = min(poll_ms * 1.5, POLL_LAST_MS)
            self._check(name)
            held = self._backend.read(lambda ledger: self._held(ledger, name))
            if held.holder == self.session_id:
                break
            if not held.waiting:  # another thread has cancelled the wait
                raise RecordHeldError(name, held.holder)
            if held.holder is None or not self._backend.alive((held.holder,)):
                held = self._try_open(name)
        return self._adopt(name, held.epoch)

    def _try_open(self, name: str) -> _Held:
        self._check(name)

        def plan(transaction: Transaction) -> _Held:
            ledger = transaction.ledger
            ledger.check_session(self.session_id)
            evict_dead(transaction, self._backend.alive, ledger.involved(name), self.session_id)
            entry = ledger.next_open(self.session_id, name)
            if entry is not None:
                transaction.do(entry)
            return self._held(transaction.ledger, name)

        try:
            return self._backend.write(plan)
        except OutcomeUnknownError:  # twice the same as once
            return self._backend.write(plan)

    def _held(self, ledger: Ledger, name: str) -> _Held:
        ledger.check_session(self.session_id)
        ledger.check_whole(name)
        record = ledger.records[name]
        return _Held(record.holder, record.epoch, self.session_id in record.waiters)

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
        written = self._checked(changes)

        def plan(transaction: Transaction) -> Tally:
            entry = transaction.ledger.next_write(self.session_id, written)
            tally = tally_of(written, transaction.ledger)
            if any(change.operations for change in written):
                transaction.do(entry)
            return tally

        tally = self._backend.write(plan)
        for counter in self._counters:
            counter.add_commit(tally)

    def look(self, names: Sequence[str]) -> dict[str, RecordView]:
        self._check()
        wanted = [check_name(name, "record set name") for name in names]

        def question(ledger: Ledger) -> dict[str, RecordView]:
            ledger.check_session(self.session_id)
            return {name: view_of(ledger, name) for name in wanted}

        for counter in self._counters:
            counter.add_read()
        return self._backend.read(question)

    def change(
        self, names: Sequence[str], call: RuleCall, held: Mapping[Handle, Sequence[Operation]] | None = None
    ) -> bytes:
        promised = tuple(self._checked(held or {}))
        wanted = tuple(dict.fromkeys(check_name(name, "record set name") for name in names))
        if not isinstance(call.argument, bytes):
            raise ValueInvalidError(f"the argument of a rule is bytes, not {type(call.argument).__name__}")
        if len(call.argument) > COMMIT_LIMIT_BYTES:
            raise ValueInvalidError(f"the argument of the rule has {len(call.argument)} bytes")
        made = self._backend.change(ChangeRequest(self.session_id, wanted, call.name, call.argument, promised))
        for counter in self._counters:
            counter.add_commit(made.tally)
        return made.answer

    def prepare(self, xid: str, changes: Mapping[Handle, Sequence[Operation]]) -> None:
        check_name(xid, "transaction id")
        promised = self._checked(changes)
        self._backend.write(
            lambda transaction: transaction.do(transaction.ledger.next_prepare(self.session_id, xid, promised))
        )

    def _checked(self, changes: Mapping[Handle, Sequence[Operation]]) -> list[Change]:
        self._check()
        check_changes(changes)
        checked: list[Change] = []
        size = 0
        for handle, wanted in changes.items():
            if not isinstance(handle, LedgerHandle) or handle.session is not self:
                raise StoreClosedError(f"the handle of {handle.name!r} belongs to another session")
            handle.check()
            operations = tuple(wanted)  # once: an iterator is empty the second time
            size += size_of(operations)
            checked.append(Change(handle.name, handle.epoch, operations))
        if size > COMMIT_LIMIT_BYTES:
            raise ValueInvalidError(f"the commit has {size} bytes")
        return checked

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
            return  # another session has taken it over, or it is damaged: there is nothing to hand over
        evict_dead(transaction, self._backend.alive, transaction.ledger.involved(name), self.session_id)
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
                evict_dead(transaction, self._backend.alive, tuple(ledger.sessions), self.session_id)
                transaction.do(Ended((self.session_id,)))

        try:
            self._backend.write(plan)
        except (StoreClosedError, StoreWriteError):
            pass  # detached, the session counts as dead, and its records are free
        finally:
            self._backend.detach(self.session_id)
            self._on_closed(self.session_id)

    def _read(self, handle: LedgerHandle, question: Callable[[Ledger], T]) -> T:
        for counter in self._counters:
            counter.add_read()

        def fenced(ledger: Ledger) -> T:
            ledger.owned(self.session_id, handle.name, handle.epoch)
            return question(ledger)

        return self._backend.read(fenced)

    def _check(self, name: str | None = None) -> None:
        require_no_rule()
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
        require_no_rule()
        if self.closed:
            raise StoreClosedError(f"the handle of {self.name!r} is closed")
