"""Ledger entries as rows of the SIBnnn tables, and back. Pure.

    class                persistent   parent         name           number              data
    1 record set         yes          –              its name       epoch               –
    2 object             yes          record set     key            –                   value
    3 session            no           –              its id         –                   label
    4 holder             no           record set     session id     –                   –
    5 waiter             no           record set     session id     –                   –
    6 engine             no           –              incarnation    –                   where it serves (engine.py)

Waiters are served in the order of their ids. A row has the id it got, for life; ids are never used again. `checksum`
is over all else. A batch is written as what it leaves behind: a key that was changed ten times in one batch is one row.

A damaged row is left as it is, and (S9)

    it is not persistent                              nothing is refused: it is as if it was not there
    persistent; identity or checksum fits             its record set is refused: the parent's, or its own
    persistent; neither fits                          the whole store is refused: nobody knows whose it is
    persistent; its record set has no readable row    the whole store is refused: nobody knows the name

`identity` is over id, parent, class and, of a record set, the name.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_jms.store.contract import Operation
from spark_jms.store.engine.persistence import LedgerBatch
from spark_jms.store.errors import StoreCorruptError
from spark_jms.store.ledger.ledger import (
    Cancelled,
    Change,
    Closed,
    Connected,
    Damaged,
    Ended,
    Entry,
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
_HEAD = struct.Struct("<qqqq")
_IDENTITY = struct.Struct("<qqq")
Key = tuple[object, ...]


@dataclass(frozen=True)
class Row:
    """`home` chooses its table among those of its kind: a record set and all of its rows lie together."""

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
        return {
            "id": self.id,
            "parent_id": self.parent_id,
            "class_id": self.class_id,
            "name": self.name,
            "number": self.number,
            "data": self.data,
            "identity": self.identity,
            "checksum": self.checksum,
        }


@dataclass
class Touched:
    """What a batch may have changed."""

    records: dict[str, None] = field(default_factory=dict)
    objects: dict[tuple[str, str], None] = field(default_factory=dict)
    sessions: dict[str, None] = field(default_factory=dict)
    prepared: dict[str, None] = field(default_factory=dict)


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
                found.objects.update(_keys(changes))
            case Prepared(xid, changes):
                found.prepared[xid] = None
                promised[xid] = changes
            case Resolved(xid):
                found.prepared[xid] = None
                found.objects.update(_keys(promised[xid]))
            case Restored(name=name, objects=objects):
                found.records[name] = None
                found.objects.update({(name, key): None for key, _ in objects})
    return found


def _keys(changes: Iterable[Change]) -> dict[tuple[str, str], None]:
    def operations(change: Change) -> tuple[Operation, ...]:
        return change.operations

    return {(change.name, operation.key): None for change in changes for operation in operations(change)}


@dataclass(frozen=True)
class RowChanges:
    inserts: tuple[tuple[Key, Row], ...]
    updates: tuple[tuple[Key, Row], ...]
    deletes: tuple[tuple[Key, Row], ...]


class RowMap:
    """Which rows there are. A key says what a row is of: (class, name) or (class, record set, name)."""

    def __init__(self) -> None:
        self._rows: dict[Key, Row] = {}

    def load(self, rows: Iterable[tuple[Key, Row]]) -> None:
        self._rows = dict(rows)

    def changes(self, batch: LedgerBatch, new_id: Callable[[], int]) -> RowChanges:
        """Changes nothing here: `made` does, once they are committed."""
        return _Differences(self._rows, batch, new_id).changes()

    def made(self, changes: RowChanges) -> None:
        for key, row in (*changes.inserts, *changes.updates):
            # The value is in the ledger: here it would be a second copy of everything.
            self._rows[key] = Row(row.id, row.parent_id, row.class_id, row.name, row.number, b"")
        for key, _ in changes.deletes:
            del self._rows[key]

    def __len__(self) -> int:
        return len(self._rows)


class _Differences:
    def __init__(self, rows: Mapping[Key, Row], batch: LedgerBatch, new_id: Callable[[], int]) -> None:
        self._rows = rows
        self._batch = batch
        self._new_id = new_id
        self._inserts: dict[Key, Row] = {}
        self._updates: dict[Key, Row] = {}
        self._deletes: dict[Key, Row] = {}

    def changes(self) -> RowChanges:
        what, after = touched(self._batch), self._batch.after
        for name in what.records:
            self._record(name, after.records[name])
        for name, key in what.objects:
            value = after.records[name].objects.get(key)
            parent_id = self._id_of((RECORD, name))
            self._put((OBJECT, name, key), None if value is None else (parent_id, OBJECT, key, 0, value))
        for session_id in what.sessions:
            label = after.sessions.get(session_id)
            self._put((SESSION, session_id), None if label is None else (0, SESSION, session_id, 0, label.encode()))
        return RowChanges(tuple(self._inserts.items()), tuple(self._updates.items()), tuple(self._deletes.items()))

    def _id_of(self, key: Key) -> int:
        row = self._inserts.get(key) or self._rows[key]
        return row.id

    def _record(self, name: str, record: Record) -> None:
        self._put((RECORD, name), (0, RECORD, name, record.epoch, b""))
        record_id = self._id_of((RECORD, name))
        holder = record.holder
        self._put((HOLDER, name), None if holder is None else (record_id, HOLDER, holder, 0, b""))
        before = self._batch.before.records.get(name)
        was, now = (before.waiters if before else []), record.waiters
        for session_id in was:
            if session_id not in now:
                self._put((WAITER, name, session_id), None)
        # One that left and came again within the batch stands at the end now: a new row.
        stayed = [session_id for session_id in was if session_id in now]
        if now[: len(stayed)] != stayed:
            for session_id in stayed:
                self._put((WAITER, name, session_id), None)
            stayed = []
        for session_id in now[len(stayed) :]:
            self._put((WAITER, name, session_id), (record_id, WAITER, session_id, 0, b""), anew=True)

    def _put(self, key: Key, wanted: tuple[int, int, str, int, bytes] | None, anew: bool = False) -> None:
        there = self._rows.get(key)
        if wanted is None:
            if there is not None:
                self._deletes[key] = there
            return
        if there is None or key in self._deletes or anew:
            self._inserts[key] = Row(self._new_id(), *wanted)
            return
        if (there.parent_id, there.class_id, there.name, there.number) == wanted[:4] and wanted[1] not in (
            OBJECT,
            SESSION,
        ):
            return
        self._updates[key] = Row(there.id, *wanted)


# ---- back


def text_of(value: object) -> str:
    """What a database without types of its own (SQLite) gives for a text; a value of another type fits no checksum."""
    return value if isinstance(value, str) else f"no text: {value!r}"


def number_of(value: object) -> int:
    return value if isinstance(value, int) else -1


def bytes_of(value: object) -> bytes:
    return bytes(value) if isinstance(value, bytes | memoryview) else f"no bytes: {value!r}".encode()


def row_of(found: Any) -> Row:
    """Of a row of a SIBnnn table, as the database gives it."""
    return Row(
        number_of(found.id), number_of(found.parent_id), number_of(found.class_id), text_of(found.name),
        number_of(found.number), bytes_of(found.data),
    )  # fmt: skip


@dataclass(frozen=True)
class StoredRow:
    """A row as it stands in a table, with the checksums that stand there."""

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
        """Whose it is."""
        return self.row.checksum == self.checksum or self.row.identity == self.identity


@dataclass(frozen=True)
class Restoration:
    """`rows` are those that may be changed from now on. A damaged row is in one of the last three."""

    entries: tuple[Entry, ...]
    rows: tuple[tuple[Key, Row], ...]
    dropped: tuple[Row, ...]
    """Non-persistent rows that fit nothing: of a copy restored without them, or of a damaged record set."""
    last_id: int
    damaged: tuple[Damaged, ...]
    passed_over: tuple[str, ...]
    refusals: tuple[StoreCorruptError, ...]
    """Why nothing of the store may be used."""


def describe(row: Row) -> str:
    kind = CLASSES.get(row.class_id, (f"class {row.class_id}", False))[0]
    return f"row {row.id} ({kind} {row.name!r})"


_MISFIT = "the checksum of the row does not fit"


def restore(rows: Iterable[StoredRow], place: str) -> Restoration:
    return _Restorer(sorted(rows, key=lambda found: found.row.id), place).restoration()


class _Restorer:
    def __init__(self, found: list[StoredRow], place: str) -> None:
        self._place = place
        self._refusals: list[StoreCorruptError] = []
        self._damaged: list[Damaged] = []
        self._passed_over: list[str] = []
        self._by_class: dict[int, list[Row]] = {class_id: [] for class_id in CLASSES}
        self._last_id = 0
        self._sort(found)

    def _sort(self, found: list[StoredRow]) -> None:
        kept = []
        for one in found:
            if one.good or (one.persistent and one.known):
                kept.append(one)
                self._last_id = max(self._last_id, one.row.id)
            elif one.persistent:
                self._refuse(one, "its identity does not fit")
            else:
                self._passed_over.append(f"{one.table}, {describe(one.row)}: {_MISFIT}")
        names = {one.row.id: one.row.name for one in kept if one.row.class_id == RECORD}
        for one in kept:
            row = one.row
            if row.class_id not in CLASSES or row.persistent != one.persistent:
                self._refuse(one, "no such row belongs there")
            elif row.class_id == OBJECT and row.parent_id not in names:
                self._refuse(one, f"it belongs to record set {row.parent_id}, which is not there")
            elif not one.good:
                name = names[row.parent_id or row.id]
                why = f"{describe(row)}: {_MISFIT}"
                self._damaged.append(Damaged(name, f"{self._place}, {one.table}", row.id, why))
        refused = {damaged.name for damaged in self._damaged}
        self._names = {row_id: name for row_id, name in names.items() if name not in refused}
        for one in kept:
            if one.row.class_id in CLASSES:
                self._by_class[one.row.class_id].append(one.row)

    def _refuse(self, one: StoredRow, why: str) -> None:
        place = f"{self._place}, {one.table}, {describe(one.row)}"
        self._refusals.append(StoreCorruptError(place, one.row.id, why))

    def restoration(self) -> Restoration:
        names, by_class = self._names, self._by_class
        kept: list[tuple[Key, Row]] = []
        dropped: list[Row] = list(by_class[ENGINE])
        objects: dict[int, list[tuple[str, bytes]]] = {record_id: [] for record_id in names}
        for row in by_class[OBJECT]:
            if row.parent_id in names:
                objects[row.parent_id].append((row.name, row.data))
                kept.append(((OBJECT, names[row.parent_id], row.name), row))
        sessions = {row.name: row for row in by_class[SESSION]}
        kept += [((SESSION, name), row) for name, row in sessions.items()]
        holders: dict[int, str] = {}
        for row in by_class[HOLDER]:
            if row.parent_id in names and row.name in sessions and row.parent_id not in holders:
                holders[row.parent_id] = row.name
                kept.append(((HOLDER, names[row.parent_id]), row))
            else:
                dropped.append(row)
        waiters: dict[int, list[str]] = {}
        for row in by_class[WAITER]:
            line = waiters.setdefault(row.parent_id, [])
            if row.parent_id in holders and row.name in sessions and row.name not in (*line, holders[row.parent_id]):
                line.append(row.name)
                kept.append(((WAITER, names[row.parent_id], row.name), row))
            else:
                dropped.append(row)
        entries: list[Entry] = [Connected(name, row.data.decode()) for name, row in sessions.items()]
        for row in by_class[RECORD]:
            if row.id in names:
                kept.append(((RECORD, row.name), row))
                line = waiters.get(row.id, [])
                entries.append(Restored(row.name, row.number, holders.get(row.id), tuple(line), tuple(objects[row.id])))
        slim = tuple((key, Row(r.id, r.parent_id, r.class_id, r.name, r.number, b"")) for key, r in kept)
        return Restoration(
            (*entries, *self._damaged), slim, tuple(dropped), self._last_id, tuple(self._damaged),
            tuple(self._passed_over), tuple(self._refusals),
        )  # fmt: skip
