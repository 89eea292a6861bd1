"""The ledger of a store: its sessions, its records, the prepared transactions, and what is damaged. Pure.

Theory. A store is the fold of its entries, in order: every process that reads the same entries has the same ledger. So a
backend is only a way to agree on the order of entries. What may happen to one record is decided by the table in record.py;
the ledger finds the records that an entry concerns, checks all of them, and changes them only then. A plan changes the ledger
it runs on before its entries are durable, so it runs on a ScratchLedger, and the ledger below changes only once they are.

A prepared transaction is two entries: `Prepared` promises changes that its session may make now, `Resolved` makes
them or forgets them, whichever session owns the record by then. In between, the keys it names are locked against other
writes; the record itself may change hands.

A damaged record is out of the fold: `Damaged` takes it out, the fold passes over every later entry about it, and no
session may read or change it. The other records continue, also those that share an entry with it. A prepared transaction
that changes a damaged record cannot be resolved: its promise to the others stays a promise.

Invariants, beside those of a record: every holder and waiter is connected; an id that ended never connects again.

Features: S2, S9 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from spark_jms.store.contract import Operation, Put
from spark_jms.store.errors import SessionLostError, StaleEpochError, TransactionInDoubtError, TransactionUnknownError
from spark_jms.store.ledger.record import (
    Cancelled,
    Change,
    Closed,
    Connected,
    Damaged,
    Ended,
    Entry,
    Event,
    LedgerError,
    Opened,
    Prepared,
    Record,
    Resolved,
    Restored,
    Waited,
    Written,
)

_WRITTEN = Event.WRITTEN
_OF_ONE = (Opened, Closed, Waited, Cancelled, Restored, Damaged)


class UnknownSessionError(LedgerError):
    """The entry names a session that is not connected."""


class UnknownRecordError(LedgerError):
    """The entry names a record that does not exist."""


class DuplicateError(LedgerError):
    """The entry makes a session, record or transaction that exists already."""


class KeyLockedError(LedgerError):
    """The entry changes a key that a prepared transaction has locked."""


class PreparedTransactions(dict[str, tuple[Change, ...]]):
    """Those of a store: transaction id -> the changes it promises. A key it names stays locked against other writes until it is
    resolved."""

    def locked_by(self, changes: Iterable[Change]) -> str | None:
        """The transaction that has locked one of these keys, if there is one."""
        if not self:
            return None
        wanted = {(change.name, operation.key) for change in changes for operation in change.operations}
        for xid, promised in self.items():
            if any((change.name, operation.key) in wanted for change in promised for operation in change.operations):
                return xid
        return None


class Ledger:
    """`apply` checks first and changes then, so an entry that it refuses (LedgerError) leaves the ledger as it was."""

    def __init__(self) -> None:
        self.sessions: dict[str, str] = {}
        self.records: dict[str, Record] = {}
        self.prepared = PreparedTransactions()
        self.damaged: dict[str, Damaged] = {}
        self.object_count = 0
        self.object_bytes = 0

    # ---- the fold

    def apply(self, entry: Entry) -> None:
        if self.damaged and isinstance(entry, _OF_ONE) and entry.name in self.damaged:
            return
        match entry:
            case Written(changes):  # nearly all are
                self._apply_written(changes)
            case Connected(session_id, label):
                if session_id in self.sessions:
                    raise DuplicateError(f"session {session_id} is connected already")
                self.sessions[session_id] = label
            case Ended(session_ids):
                self._apply_ended(session_ids)
            case Opened(name, epoch, session_id):
                self._require_connected({session_id})
                record = self.records.get(name) or Record()
                record.step(Event.OPENED, epoch, session_id)
                self.records[name] = record
            case Closed(name, epoch):
                self._known(name).release(epoch)
            case Waited(name, session_id):
                self._require_connected({session_id})
                record = self._known(name)
                record.step(Event.WAITED, record.epoch, session_id)
            case Cancelled(name, session_id):
                record = self._known(name)
                record.step(Event.CANCELLED, record.epoch, session_id)
            case Restored():
                self._apply_restored(entry)
            case Prepared():
                self._apply_prepared(entry)
            case Resolved(xid, commit):
                self._apply_resolved(xid, commit)
            case Damaged(name):
                record = self.records.pop(name, Record())
                self._count(-1, record.objects.items())
                self.damaged[name] = entry

    def _apply_ended(self, session_ids: tuple[str, ...]) -> None:
        ended = set(session_ids)
        self._require_connected(ended)
        involved = self._involving(ended)
        for record in involved:
            record.waiters = [waiter for waiter in record.waiters if waiter not in ended]
        for record in involved:
            if record.holder in ended:
                record.release(record.epoch)
        for session_id in session_ids:
            del self.sessions[session_id]

    def _involving(self, session_ids: set[str]) -> list[Record]:
        """The records that one of the sessions holds or waits for."""
        return [r for r in self.records.values() if r.holder in session_ids or not session_ids.isdisjoint(r.waiters)]

    def _apply_written(self, changes: tuple[Change, ...]) -> None:
        whole = self._whole(changes)
        checked = []
        for change in whole:
            record = self._known(change.name)
            checked.append((record, record.check(_WRITTEN, change.epoch), change.operations))
        if self.prepared:
            self._require_unlocked(whole)
        for record, row, operations in checked:
            record.follow(row)
            self.change_objects(record, operations)

    def _apply_prepared(self, entry: Prepared) -> None:
        if entry.xid in self.prepared:
            raise DuplicateError(f"transaction {entry.xid!r} is prepared already")
        whole = self._whole(entry.changes)
        self._require_unlocked(whole)
        for change in whole:
            record = self._known(change.name)
            if not entry.restored:
                record.check(Event.WRITTEN, change.epoch)
        self.prepared[entry.xid] = entry.changes

    def _apply_resolved(self, xid: str, commit: bool) -> None:
        if xid not in self.prepared:
            raise UnknownRecordError(f"no transaction {xid!r} is prepared")
        whole = self._whole(self.prepared[xid]) if commit else ()
        records = [self._known(change.name) for change in whole]
        del self.prepared[xid]
        for change, record in zip(whole, records, strict=True):
            self.change_objects(record, change.operations)

    def _apply_restored(self, entry: Restored) -> None:
        if entry.name in self.records:
            raise DuplicateError(f"record {entry.name!r} exists already")
        if entry.epoch <= 0 or (entry.waiters and entry.holder is None):
            raise LedgerError(f"record {entry.name!r} was never opened, or is free and has waiters")
        self._require_connected({*entry.waiters, *([entry.holder] if entry.holder else [])})
        self.records[entry.name] = Record(entry.epoch, entry.holder, list(entry.waiters), dict(entry.objects))
        self._count(1, entry.objects)

    def change_objects(self, record: Record, operations: Iterable[Operation]) -> None:
        objects = record.objects
        for operation in operations:
            key = operation.key
            before = objects.pop(key, None)
            if before is not None:
                self.object_count -= 1
                self.object_bytes -= len(key) + len(before)
            if isinstance(operation, Put):
                objects[key] = operation.value
                self.object_count += 1
                self.object_bytes += len(key) + len(operation.value)

    def _count(self, sign: int, objects: Iterable[tuple[str, bytes]]) -> None:
        for key, value in objects:
            self.object_count += sign
            key_bytes = len(key) if key.isascii() else len(key.encode())
            self.object_bytes += sign * (key_bytes + len(value))

    def _whole(self, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        """The changes of records that are not damaged."""
        return tuple(change for change in changes if change.name not in self.damaged) if self.damaged else changes

    def _known(self, name: str) -> Record:
        record = self.records.get(name)
        if record is None:
            raise UnknownRecordError(f"there is no record {name!r}")
        return record

    def _require_connected(self, session_ids: set[str]) -> None:
        if not session_ids <= self.sessions.keys():
            raise UnknownSessionError(f"not connected: {', '.join(sorted(session_ids - self.sessions.keys()))}")

    def _require_unlocked(self, changes: Sequence[Change]) -> None:
        if (xid := self.prepared.locked_by(changes)) is not None:
            raise KeyLockedError(f"prepared transaction {xid!r} has locked a key")

    def snapshot(self) -> Iterator[Entry]:
        """Entries that make the same ledger from an empty one."""
        for session_id, label in self.sessions.items():
            yield Connected(session_id, label)
        for name, record in self.records.items():
            yield Restored(name, record.epoch, record.holder, tuple(record.waiters), tuple(record.objects.items()))
        yield from self.damaged.values()
        for xid, changes in self.prepared.items():
            yield Prepared(xid, changes, restored=True)

    # ---- what a session may do, and the entry for it

    def check_whole(self, name: str) -> None:
        """RecordCorruptError when the record is damaged."""
        if name in self.damaged:
            raise self.damaged[name].error()

    def check_session(self, session_id: str) -> None:
        if session_id not in self.sessions:
            raise SessionLostError(f"session {session_id}")

    def owned(self, session_id: str, name: str, epoch: int) -> Record:
        """The record, if this session owns it at this epoch: the fence of every read and commit."""
        record = self.records.get(name)
        if record is None or record.epoch != epoch:
            self.check_whole(name)
            raise StaleEpochError(name, epoch, record.epoch if record else 0)
        self.check_session(session_id)
        if record.holder != session_id:
            raise StaleEpochError(name, epoch, record.epoch)
        return record

    def next_open(self, session_id: str, name: str) -> Opened | Waited | None:
        """The entry by which the session opens the record or waits for it; None when it does already."""
        self.check_session(session_id)
        self.check_whole(name)
        record = self.records.get(name) or Record()
        if record.holder is None:
            return Opened(name, record.epoch + 1, session_id)
        if session_id == record.holder or session_id in record.waiters:
            return None
        return Waited(name, session_id)

    def next_write(self, session_id: str, changes: Sequence[Change]) -> Written:
        self._check_writable(session_id, changes)
        return Written(tuple(changes))

    def next_prepare(self, session_id: str, xid: str, changes: Sequence[Change]) -> Prepared:
        if xid in self.prepared:
            raise TransactionInDoubtError(xid)
        self._check_writable(session_id, changes)
        return Prepared(xid, tuple(changes))

    def next_resolve(self, xid: str, commit: bool) -> Resolved:
        """RecordCorruptError when the transaction changes a damaged record: its promise there could not be kept."""
        if xid not in self.prepared:
            raise TransactionUnknownError(xid)
        for change in self.prepared[xid]:
            self.check_whole(change.name)
        return Resolved(xid, commit)

    def _check_writable(self, session_id: str, changes: Sequence[Change]) -> None:
        for change in changes:
            self.owned(session_id, change.name, change.epoch)
        if self.prepared and (xid := self.prepared.locked_by(changes)) is not None:
            raise TransactionInDoubtError(xid)

    def involved(self, name: str) -> tuple[str, ...]:
        """Holder and waiters: the sessions whose death matters to the next owner of the record."""
        record = self.records.get(name)
        if record is None or record.holder is None:
            return ()
        return (record.holder, *record.waiters)


class ScratchLedger(Ledger):
    """A ledger to try entries on: it reads through to the ledger below and copies a record when it is touched. Costs a copy of
    each touched record and of the session table."""

    def __init__(self, base: Ledger) -> None:
        self._below = base
        self._touched = _Records(base.records)
        self.sessions = dict(base.sessions)
        self.records = self._touched
        self.prepared = PreparedTransactions(base.prepared)
        self.damaged = base.damaged  # a plan never changes it
        self.object_count = base.object_count
        self.object_bytes = base.object_bytes

    def keep(self) -> None:
        """Make the ledger below, which has not changed since, equal to this one. The scratch ends with it."""
        base = self._below
        base.records.update(dict.items(self._touched))
        base.sessions, base.prepared = self.sessions, self.prepared
        base.object_count, base.object_bytes = self.object_count, self.object_bytes

    def _involving(self, session_ids: set[str]) -> list[Record]:
        involved = [
            name
            for name, record in self._touched.look()
            if record.holder in session_ids or not session_ids.isdisjoint(record.waiters)
        ]
        return [self.records[name] for name in involved]


class _Records(dict[str, Record]):
    """Looks like all records of `base`; holds copies of those that were asked for by name."""

    def __init__(self, base: dict[str, Record]) -> None:
        super().__init__()
        self._base = base

    def __missing__(self, name: str) -> Record:
        copied = self[name] = self._base[name].copy()
        return copied

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._base

    def __iter__(self) -> Iterator[str]:
        yield from self._base
        yield from (name for name in super().__iter__() if name not in self._base)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def keys(self) -> Any:
        return list(self)

    def values(self) -> Any:
        return [self[name] for name in self]

    def items(self) -> Any:
        return [(name, self[name]) for name in self]

    def look(self) -> Iterator[tuple[str, Record]]:
        """For reading only: copies nothing."""
        for name in self:
            yield name, super().get(name) or self._base[name]
