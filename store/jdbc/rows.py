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
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from store.contract import Operation
from store.errors import StoreCorruptError
from store.ledger import (
    Cancelled,
    Change,
    Closed,
    Connected,
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
from store.served.port import Batch

RECORD, OBJECT, SESSION, HOLDER, WAITER, ENGINE = range(1, 7)
CLASSES: Mapping[int, tuple[str, bool]] = {
    RECORD: ("record set", True),
    OBJECT: ("object", True),
    SESSION: ("session", False),
    HOLDER: ("holder", False),
    WAITER: ("waiter", False),
    ENGINE: ("engine", False),
}
_HEAD = struct.Struct("<qqiq")
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
            "checksum": self.checksum,
        }


@dataclass
class Touched:
    """What a batch may have changed."""

    records: dict[str, None] = field(default_factory=dict)
    objects: dict[tuple[str, str], None] = field(default_factory=dict)
    sessions: dict[str, None] = field(default_factory=dict)
    prepared: dict[str, None] = field(default_factory=dict)


def touched(batch: Batch) -> Touched:
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

    def changes(self, batch: Batch, new_id: Callable[[], int]) -> RowChanges:
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
    def __init__(self, rows: Mapping[Key, Row], batch: Batch, new_id: Callable[[], int]) -> None:
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


@dataclass(frozen=True)
class Restoration:
    entries: tuple[Entry, ...]
    rows: tuple[tuple[Key, Row], ...]
    dropped: tuple[Row, ...]
    """Non-persistent rows that fit nothing: of a copy restored without them, or damaged."""
    last_id: int


def check_row(row: Row, checksum: int, place: str) -> None:
    if row.checksum != checksum:
        raise StoreCorruptError(f"{place}, {describe(row)}", row.id, "the checksum of the row does not fit")


def describe(row: Row) -> str:
    kind = CLASSES.get(row.class_id, (f"class {row.class_id}", False))[0]
    return f"row {row.id} ({kind} {row.name!r})"


def restore(rows: Iterable[Row], place: str) -> Restoration:
    """Rows whose checksums fit, in the order of their ids. StoreCorruptError when a persistent one has no record set."""
    rows = sorted(rows, key=lambda row: row.id)
    by_class: dict[int, list[Row]] = {class_id: [] for class_id in CLASSES}
    for row in rows:
        if row.class_id not in by_class:
            raise StoreCorruptError(place, row.id, f"{describe(row)} is of no known class")
        by_class[row.class_id].append(row)
    names = {row.id: row.name for row in by_class[RECORD]}
    kept: list[tuple[Key, Row]] = []
    dropped: list[Row] = list(by_class[ENGINE])
    objects: dict[int, list[tuple[str, bytes]]] = {record_id: [] for record_id in names}
    for row in by_class[OBJECT]:
        if row.parent_id not in names:
            raise StoreCorruptError(
                place, row.id, f"{describe(row)} belongs to record set {row.parent_id}, which is not there"
            )
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
        kept.append(((RECORD, row.name), row))
        line = waiters.get(row.id, [])
        entries.append(Restored(row.name, row.number, holders.get(row.id), tuple(line), tuple(objects[row.id])))
    last_id = rows[-1].id if rows else 0
    slim = tuple((key, Row(r.id, r.parent_id, r.class_id, r.name, r.number, b"")) for key, r in kept)
    return Restoration(tuple(entries), slim, tuple(dropped), last_id)
