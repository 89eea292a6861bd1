"""The rows of the SIBnnn tables, and which of them a batch of ledger entries changes. Pure.

    class                persistent   parent         name           number              data
    1 record set         yes          –              its name       epoch               –
    2 object             yes          record set     key            –                   value
    3 session            no           –              its id         –                   label
    4 holder             no           record set     session id     –                   –
    5 waiter             no           record set     session id     –                   –
    6 engine             no           –              incarnation    –                   Published (engine.py)

Waiters are served in the order of their ids. A row keeps its id for life, and no id is used twice. `identity` covers id,
parent, class and, of a record set, the name: what tells which record set a damaged row concerns. `checksum` covers the
whole row. A batch is written as its result: a key that one batch changes ten times is one row. content.py turns rows back
into ledger entries.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spark_jms.store.engine.entry_log import LedgerBatch
from spark_jms.store.ledger.record import (
    Cancelled,
    Change,
    Closed,
    Connected,
    Ended,
    Opened,
    Prepared,
    Record,
    Resolved,
    Restored,
    Waited,
    Written,
)

RECORD, OBJECT, SESSION, HOLDER, WAITER, ENGINE = range(1, 7)
CLASSES: Mapping[int, tuple[str, bool]] = {
    RECORD: ("record set", True),
    OBJECT: ("object", True),
    SESSION: ("session", False),
    HOLDER: ("holder", False),
    WAITER: ("waiter", False),
    ENGINE: ("engine", False),
}
"""Name, and whether the class is persistent."""

MISMATCH = "the checksum of the row does not match"
_NEW_DATA_ONLY = (OBJECT, SESSION)  # an update changes nothing else of these, and the map does not know the data
_HEAD = struct.Struct("<qqqq")
_IDENTITY = struct.Struct("<qqq")


class RowKey(NamedTuple):
    """What a row is of. `subject`: a record set or a session; `name`: the key of an object or the session of a waiter."""

    class_id: int
    subject: str
    name: str = ""


@dataclass(frozen=True)
class Row:
    """`id` is 0 until the row gets one. `home` chooses the table among those of its kind: a record set and all of its rows are
    in one table."""

    id: int
    parent_id: int
    class_id: int
    name: str
    number: int
    data: bytes

    @property
    def checksum(self) -> int:
        head = _HEAD.pack(self.id, self.parent_id, self.class_id, self.number)
        return zlib.crc32(self.data, zlib.crc32(self.name.encode(), zlib.crc32(head)))

    @property
    def identity(self) -> int:
        head = _IDENTITY.pack(self.id, self.parent_id, self.class_id)
        return zlib.crc32(self.name.encode() if self.class_id == RECORD else b"", zlib.crc32(head))

    @property
    def home(self) -> int:
        return self.parent_id or self.id

    @property
    def persistent(self) -> bool:
        return CLASSES[self.class_id][1]

    def values(self) -> dict[str, object]:
        return {**vars(self), "identity": self.identity, "checksum": self.checksum}

    def with_id(self, row_id: int) -> Row:
        return Row(row_id, self.parent_id, self.class_id, self.name, self.number, self.data)

    def without_data(self) -> Row:
        if not self.data:
            return self
        return Row(self.id, self.parent_id, self.class_id, self.name, self.number, b"")


@dataclass(frozen=True)
class StoredRow:
    """A row as the table has it, with the two checksums of the table. `persistent`: it is in a persistent table."""

    row: Row
    identity: int
    checksum: int
    table: str
    persistent: bool

    @property
    def good(self) -> bool:
        return self.row.checksum == self.checksum and self.row.identity == self.identity

    @property
    def known(self) -> bool:
        """It is known which record set the row concerns."""
        return self.row.checksum == self.checksum or self.row.identity == self.identity


def text_of(value: object) -> str:
    """SQLite columns accept values of any type; a value of another type matches no checksum."""
    return value if isinstance(value, str) else f"no text: {value!r}"


def number_of(value: object) -> int:
    return value if isinstance(value, int) else -1


def bytes_of(value: object) -> bytes:
    return bytes(value) if isinstance(value, bytes | memoryview) else f"no bytes: {value!r}".encode()


def row_of(found: Any) -> Row:
    """From a result row of a SIBnnn table."""
    return Row(
        id=number_of(found.id),
        parent_id=number_of(found.parent_id),
        class_id=number_of(found.class_id),
        name=text_of(found.name),
        number=number_of(found.number),
        data=bytes_of(found.data),
    )


def describe(row: Row) -> str:
    kind = CLASSES.get(row.class_id, (f"class {row.class_id}", False))[0]
    return f"row {row.id} ({kind} {row.name!r})"


# -- from ledger entries to rows ---------------------------------------------------------------------------------------


@dataclass
class Touched:
    """What a batch may have changed: record sets, (record set, key), sessions."""

    records: dict[str, None] = field(default_factory=dict)
    objects: dict[tuple[str, str], None] = field(default_factory=dict)
    sessions: dict[str, None] = field(default_factory=dict)

    def add_objects(self, changes: Iterable[Change]) -> None:
        for change in changes:
            for operation in change.operations:
                self.objects[change.name, operation.key] = None


def touched(batch: LedgerBatch) -> Touched:
    found = Touched()
    promised: dict[str, tuple[Change, ...]] = dict(batch.before.prepared)
    for entry in batch.entries:
        match entry:
            case Connected(session_id):
                found.sessions[session_id] = None
            case Ended(session_ids):
                found.sessions.update(dict.fromkeys(session_ids))
                gone = set(session_ids)
                for name, record in batch.before.records.items():
                    if record.holder in gone or not gone.isdisjoint(record.waiters):
                        found.records[name] = None
            case Opened(name) | Closed(name) | Waited(name) | Cancelled(name):
                found.records[name] = None
            case Written(changes):
                found.add_objects(changes)
            case Prepared(xid, changes):
                promised[xid] = changes
            case Resolved(xid):
                found.add_objects(promised[xid])
            case Restored(name=name, objects=objects):
                found.records[name] = None
                found.objects.update({(name, key): None for key, _ in objects})
    return found


@dataclass(frozen=True)
class RowChanges:
    inserts: Mapping[RowKey, Row]
    updates: Mapping[RowKey, Row]
    deletes: Mapping[RowKey, Row]


class RowMap:
    """The rows that exist, by key, without their data: the ledger has the values, and a second copy would double the
    memory."""

    def __init__(self) -> None:
        self._rows: dict[RowKey, Row] = {}

    def load(self, rows: Iterable[tuple[RowKey, Row]]) -> None:
        self._rows = dict(rows)

    def changes(self, batch: LedgerBatch, new_id: Callable[[], int]) -> RowChanges:
        """Changes nothing; `apply` does, once the changes are committed."""
        return _Differences(self._rows, batch, new_id).changes()

    def apply(self, changes: RowChanges) -> None:
        for key, row in (*changes.inserts.items(), *changes.updates.items()):
            if row.class_id not in _NEW_DATA_ONLY or key in changes.inserts:
                self._rows[key] = row.without_data()
        for key in changes.deletes:
            if key not in changes.inserts:
                del self._rows[key]

    def __len__(self) -> int:
        return len(self._rows)


class _Differences:
    def __init__(self, rows: Mapping[RowKey, Row], batch: LedgerBatch, new_id: Callable[[], int]) -> None:
        self._rows = rows
        self._batch = batch
        self._new_id = new_id
        self._inserts: dict[RowKey, Row] = {}
        self._updates: dict[RowKey, Row] = {}
        self._deletes: dict[RowKey, Row] = {}

    def changes(self) -> RowChanges:
        what, after = touched(self._batch), self._batch.after
        for name in what.records:
            self._record(name, after.records[name])
        for name, key in what.objects:
            value = after.records[name].objects.get(key)
            if value is None:
                self._delete(RowKey(OBJECT, name, key))
            else:
                self._put(RowKey(OBJECT, name, key), Row(0, self._id_of(name), OBJECT, key, 0, value))
        for session_id in what.sessions:
            label = after.sessions.get(session_id)
            if label is None:
                self._delete(RowKey(SESSION, session_id))
            else:
                self._put(RowKey(SESSION, session_id), Row(0, 0, SESSION, session_id, 0, label.encode()))
        return RowChanges(self._inserts, self._updates, self._deletes)

    def _id_of(self, record_name: str) -> int:
        key = RowKey(RECORD, record_name)
        return (self._inserts.get(key) or self._rows[key]).id

    def _record(self, name: str, record: Record) -> None:
        self._put(RowKey(RECORD, name), Row(0, 0, RECORD, name, record.epoch, b""))
        record_id = self._id_of(name)
        if record.holder is None:
            self._delete(RowKey(HOLDER, name))
        else:
            self._put(RowKey(HOLDER, name), Row(0, record_id, HOLDER, record.holder, 0, b""))
        before = self._batch.before.records.get(name)
        was, now = (before.waiters if before else []), record.waiters
        for session_id in was:
            if session_id not in now:
                self._delete(RowKey(WAITER, name, session_id))
        # A session that left and came back within the batch is at the end of the line now: it gets a new row.
        stayed = [session_id for session_id in was if session_id in now]
        if now[: len(stayed)] != stayed:
            for session_id in stayed:
                self._delete(RowKey(WAITER, name, session_id))
            stayed = []
        for session_id in now[len(stayed) :]:
            self._insert(RowKey(WAITER, name, session_id), Row(0, record_id, WAITER, session_id, 0, b""))

    def _delete(self, key: RowKey) -> None:
        if key in self._rows:
            self._deletes[key] = self._rows[key]

    def _insert(self, key: RowKey, wanted: Row) -> None:
        self._inserts[key] = wanted.with_id(self._new_id())

    def _put(self, key: RowKey, wanted: Row) -> None:
        existing = self._rows.get(key)
        if existing is None or key in self._deletes:
            self._insert(key, wanted)
            return
        row = wanted.with_id(existing.id)
        if wanted.class_id in _NEW_DATA_ONLY or row != existing:
            self._updates[key] = row
