"""Everything that the tables of a store hold, as one moment has it: rows as ledger entries, and what damaged rows cost.

The engine reads it once, an administrator at any time. A damaged row stays in its table as it is, and

    SIBnnn, it is not persistent                         nothing is refused: the row is ignored
    persistent; identity or checksum matches             its record set is refused: the parent, or the row's own
    persistent; neither matches                          the whole store is refused: its record set is unknown
    persistent; the record set has no readable row       the whole store is refused: the name is unknown
    SIBXACTS, COMMITTED; identity matches                nothing is refused. The tokens are unknown, so the outcome of every
                                                         append of that time that no other row names is unknown, never "not
                                                         committed"
    PREPARED; identity matches                           it stays in doubt and cannot be resolved. The record sets whose part of
                                                         the promise is damaged are refused; if all parts are good, every
                                                         record set that it names
    PREPARED; names unreadable                           the whole store is refused: the record sets that it locks are unknown
    identity does not match                              the whole store is refused: what the row was about is unknown

SIBXACTS has the outcomes of the last commits, and the prepared transactions:

    state        xid                     data                                     kept
    COMMITTED    g: base : first token   the tokens of the appends of one batch   the last OUTCOMES_KEPT (persistence.py)
    PREPARED     x: its id               the promised changes, in sections        until it is resolved

`identity` covers xid, state, base and position; `checksum` covers these and the data. Each batch begins at the position where
the one before it ended. At a gap a row is missing, and every outcome before the gap is unknown too.

Features: S1, S2, S9 (docs/FEATURES.md)
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import sqlalchemy as sa

from spark_jms.store.engine.entry_log import AppendOutcome
from spark_jms.store.errors import StoreCorruptError
from spark_jms.store.jdbc.database import DatabaseConnection
from spark_jms.store.jdbc.rows import (
    CLASSES,
    ENGINE,
    HOLDER,
    MISMATCH,
    OBJECT,
    RECORD,
    SESSION,
    WAITER,
    Row,
    RowKey,
    StoredRow,
    bytes_of,
    describe,
    number_of,
    row_of,
    text_of,
)
from spark_jms.store.jdbc.tables import Tables
from spark_jms.store.ledger.administration import Salvaged
from spark_jms.store.ledger.codec import DecodeError, Lost, decode_sections, encode_sections, pack, unpack
from spark_jms.store.ledger.record import Change, Connected, Damaged, Entry, Prepared, Restored

COMMITTED, PREPARED = "COMMITTED", "PREPARED"


@dataclass(frozen=True)
class StoreContent:
    restored: Restoration
    transactions: Transactions

    @property
    def entries(self) -> tuple[Entry, ...]:
        return (*self.restored.entries, *self.transactions.entries)

    @property
    def damaged(self) -> tuple[Damaged, ...]:
        """Record sets that are refused."""
        return (*self.restored.damaged, *self.transactions.damaged)

    @property
    def passed_over(self) -> tuple[str, ...]:
        """Damage for which nothing is refused."""
        return (*self.restored.passed_over, *self.transactions.passed_over)

    @property
    def refusals(self) -> tuple[StoreCorruptError, ...]:
        """Why the whole store is refused."""
        return (*self.restored.refusals, *self.transactions.refusals, *self._broken_promises())

    @property
    def damaged_places(self) -> frozenset[tuple[str, object]]:
        """Identifies each damaged row, so that two readings can be compared."""
        rows = {(damaged.file, damaged.offset) for damaged in self.restored.damaged}
        return frozenset({*rows, *(("xid", xid) for xid in self.transactions.kept)})

    def _broken_promises(self) -> list[StoreCorruptError]:
        """Of prepared transactions that change a record set without a row."""
        names = {key.subject for key, row in self.restored.rows if row.class_id == RECORD}
        names |= {damaged.name for damaged in self.restored.damaged}
        return [
            StoreCorruptError(f"transaction {entry.xid}", 0, f"it changes record set {change.name!r}, which has no row")
            for entry in self.transactions.prepared
            if isinstance(entry, Prepared)
            for change in entry.changes
            if change.name not in names
        ]


def read_content(data: DatabaseConnection, tables: Tables, place: str) -> StoreContent:
    return StoreContent(restore(read_rows(data, tables), place), read_transactions(data, tables, place))


def read_rows(data: DatabaseConnection, tables: Tables) -> list[StoredRow]:
    """Of all SIBnnn tables."""
    return [
        StoredRow(row_of(row), row.identity, row.checksum, table.fullname, number < tables.persistent_count)
        for number, table in enumerate(tables.objects)
        for row in data.rows(sa.select(*table.c))
    ]


def read_transactions(data: DatabaseConnection, tables: Tables, place: str) -> Transactions:
    table = tables.transactions
    found = [StoredOutcome(outcome_of(row), row.identity, row.checksum) for row in data.rows(sa.select(*table.c))]
    return read_outcomes(found, f"{place}, {table.fullname}")


# -- SIBXACTS ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OutcomeRow:
    """A row of SIBXACTS."""

    xid: str
    state: str
    base: int
    position: int
    data: bytes

    @property
    def identity(self) -> int:
        return zlib.crc32(f"{self.xid} {self.state} {self.base} {self.position}".encode())

    @property
    def checksum(self) -> int:
        return zlib.crc32(self.data, self.identity)

    def values(self) -> dict[str, object]:
        return {**vars(self), "identity": self.identity, "checksum": self.checksum}


def outcome_of(found: Any) -> OutcomeRow:
    """From a result row of SIBXACTS."""
    return OutcomeRow(
        xid=text_of(found.xid),
        state=text_of(found.state),
        base=number_of(found.base),
        position=number_of(found.position),
        data=bytes_of(found.data),
    )


def committed(tokens: tuple[str, ...], base: int, position: int) -> OutcomeRow:
    return OutcomeRow(committed_xid(tokens, base), COMMITTED, base, position, msgspec.msgpack.encode(tokens))


def committed_xid(tokens: tuple[str, ...], base: int) -> str:
    return f"g:{base}:{AppendOutcome.read(tokens[0]).token}"


def prepared(xid: str, changes: tuple[Change, ...], base: int, position: int) -> OutcomeRow:
    promised = pack(encode_sections([Prepared(xid, changes, restored=True)]))
    return OutcomeRow(prepared_xid(xid), PREPARED, base, position, promised)


def prepared_xid(xid: str) -> str:
    return f"x:{xid}"


@dataclass(frozen=True)
class StoredOutcome:
    """A row as the table has it, with the two checksums of the table."""

    outcome: OutcomeRow
    identity: int
    checksum: int

    @property
    def good(self) -> bool:
        return self.outcome.checksum == self.checksum and self.outcome.identity == self.identity

    @property
    def known(self) -> bool:
        return self.outcome.checksum == self.checksum or self.outcome.identity == self.identity


@dataclass
class Transactions:
    """The content of SIBXACTS. `outcomes` are (token, position), oldest first, complete since `known_since`. `kept` are the xids
    of damaged rows, which no trim may remove. Each damaged row is in one of the last three: `damaged` (a record set is
    refused), `passed_over` (nothing is refused), `refusals` (the whole store is refused)."""

    prepared: list[Entry] = field(default_factory=list)
    outcomes: list[tuple[str, int]] = field(default_factory=list)
    position: int = 0
    known_since: int = 0
    kept: list[str] = field(default_factory=list)
    damaged: list[Damaged] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    refusals: list[StoreCorruptError] = field(default_factory=list)

    @property
    def entries(self) -> tuple[Entry, ...]:
        return (*self.damaged, *self.prepared)


def read_outcomes(found: Iterable[StoredOutcome], place: str) -> Transactions:
    """`found` in any order; `place` names the table in problems."""
    read = Transactions()
    first = True
    for one in sorted(found, key=lambda one: one.outcome.position):
        row, where = one.outcome, f"{place}, xid {one.outcome.xid!r}"
        if not one.known:
            read.refusals.append(StoreCorruptError(where, row.position, "the identity of the row does not match"))
            continue
        if not one.good:
            read.kept.append(row.xid)
        if row.state == PREPARED:
            _read_prepared(one, where, read)
            continue
        if first or row.base != read.position:
            read.known_since, first = row.base, False
        read.position = row.position
        if one.good:
            tokens = msgspec.msgpack.decode(row.data, type=tuple[str, ...])
            read.outcomes += [(token, row.position) for token in tokens]
        else:
            read.known_since = row.position
            read.passed_over.append(f"{where}: {MISMATCH}: which commits it recorded is unknown")
    return read


def _read_prepared(one: StoredOutcome, where: str, read: Transactions) -> None:
    sections = unpack(one.outcome.data)
    try:
        if sections is None or isinstance(sections[0], Lost):
            raise DecodeError("the names of the record sets that the transaction changes are unreadable")
        entries = decode_sections(sections, where)
    except DecodeError as error:
        read.refusals.append(StoreCorruptError(where, one.outcome.position, str(error)))
        return
    for entry in entries:
        if isinstance(entry, Damaged):
            read.damaged.append(entry)
        else:
            read.prepared.append(entry)
    if not one.good and not any(isinstance(section, Lost) for section in sections):
        names = {change.name: None for entry in entries if isinstance(entry, Prepared) for change in entry.changes}
        read.damaged += [Damaged(name, where, one.outcome.position, MISMATCH) for name in names]


# -- SIBnnn ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Restoration:
    """`rows` may change from now on. `dropped` are non-persistent rows without a counterpart: of the engine before, of a
    database restored without these tables, or of a damaged record set. Each damaged row is in one of the last three:
    `damaged` (its record set is refused), `passed_over` (nothing is refused), `refusals` (the whole store is refused)."""

    entries: tuple[Entry, ...]
    rows: tuple[tuple[RowKey, Row], ...]
    dropped: tuple[Row, ...]
    last_id: int
    damaged: tuple[Damaged, ...]
    passed_over: tuple[str, ...]
    refusals: tuple[StoreCorruptError, ...]


def restore(rows: Iterable[StoredRow], place: str) -> Restoration:
    """From the rows of the SIBnnn tables back to ledger entries. `place` names the store in problems."""
    return _Restorer(sorted(rows, key=lambda stored: stored.row.id), place).restoration()


class _Restorer:
    def __init__(self, stored: list[StoredRow], place: str) -> None:
        self._place = place
        self._refusals: list[StoreCorruptError] = []
        self._damaged: list[Damaged] = []
        self._passed_over: list[str] = []
        readable = [one for one in stored if self._is_readable(one)]
        self._last_id = max((one.row.id for one in readable), default=0)
        names = {one.row.id: one.row.name for one in readable if one.row.class_id == RECORD}
        for one in readable:
            self._place_damage(one, names)
        refused = {damaged.name for damaged in self._damaged}
        self._names = {row_id: name for row_id, name in names.items() if name not in refused}
        self._by_class: dict[int, list[Row]] = {class_id: [] for class_id in CLASSES}
        for one in readable:
            self._by_class.get(one.row.class_id, []).append(one.row)
        self._kept: list[tuple[RowKey, Row]] = []
        self._dropped: list[Row] = list(self._by_class[ENGINE])

    def _is_readable(self, one: StoredRow) -> bool:
        if one.good or (one.persistent and one.known):
            return True
        if one.persistent:
            self._refuse(one, "its identity does not match")
        else:
            self._passed_over.append(f"{one.table}, {describe(one.row)}: {MISMATCH}")
        return False

    def _place_damage(self, one: StoredRow, names: dict[int, str]) -> None:
        row = one.row
        if row.class_id not in CLASSES or row.persistent != one.persistent:
            self._refuse(one, "a row of this class does not belong in this table")
        elif row.class_id == OBJECT and row.parent_id not in names:
            self._refuse(one, f"it belongs to record set {row.parent_id}, which has no row")
        elif not one.good:
            why = f"{describe(row)}: {MISMATCH}"
            self._damaged.append(Damaged(names[row.home], f"{self._place}, {one.table}", row.id, why))

    def _refuse(self, one: StoredRow, why: str) -> None:
        place = f"{self._place}, {one.table}, {describe(one.row)}"
        self._refusals.append(StoreCorruptError(place, one.row.id, why))

    def restoration(self) -> Restoration:
        sessions = self._sessions()
        objects = self._objects()
        holders = self._holders(sessions)
        waiters = self._waiters(sessions, holders)
        entries: list[Entry] = [Connected(name, row.data.decode()) for name, row in sessions.items()]
        for row in self._by_class[RECORD]:
            if row.id in self._names:
                self._keep(RowKey(RECORD, row.name), row)
                line = tuple(waiters.get(row.id, ()))
                entries.append(Restored(row.name, row.number, holders.get(row.id), line, tuple(objects[row.id])))
        return Restoration(
            entries=(*entries, *self._damaged),
            rows=tuple(self._kept),
            dropped=tuple(self._dropped),
            last_id=self._last_id,
            damaged=tuple(self._damaged),
            passed_over=tuple(self._passed_over),
            refusals=tuple(self._refusals),
        )

    def _keep(self, key: RowKey, row: Row) -> None:
        self._kept.append((key, row.without_data()))

    def _sessions(self) -> dict[str, Row]:
        sessions = {row.name: row for row in self._by_class[SESSION]}
        for name, row in sessions.items():
            self._keep(RowKey(SESSION, name), row)
        return sessions

    def _objects(self) -> dict[int, list[tuple[str, bytes]]]:
        objects: dict[int, list[tuple[str, bytes]]] = {record_id: [] for record_id in self._names}
        for row in self._by_class[OBJECT]:
            if row.parent_id in self._names:
                objects[row.parent_id].append((row.name, row.data))
                self._keep(RowKey(OBJECT, self._names[row.parent_id], row.name), row)
        return objects

    def _holders(self, sessions: dict[str, Row]) -> dict[int, str]:
        holders: dict[int, str] = {}
        for row in self._by_class[HOLDER]:
            if row.parent_id in self._names and row.name in sessions and row.parent_id not in holders:
                holders[row.parent_id] = row.name
                self._keep(RowKey(HOLDER, self._names[row.parent_id]), row)
            else:
                self._dropped.append(row)
        return holders

    def _waiters(self, sessions: dict[str, Row], holders: dict[int, str]) -> dict[int, list[str]]:
        waiters: dict[int, list[str]] = {}
        for row in self._by_class[WAITER]:
            line = waiters.setdefault(row.parent_id, [])
            if row.parent_id in holders and row.name in sessions and row.name not in (*line, holders[row.parent_id]):
                line.append(row.name)
                self._keep(RowKey(WAITER, self._names[row.parent_id], row.name), row)
            else:
                self._dropped.append(row)
        return waiters


# -- salvage -----------------------------------------------------------------------------------------------------------


def salvage_rows(found: list[StoredRow], transactions: Transactions) -> Salvaged:
    """What is readable of a damaged store. Leaves out and names each row whose checksum does not match. When the row of a
    record set is damaged, it leaves out the objects of that record set as well. The identity of a damaged row tells which
    record set it belonged to; when the identity does not match either, it names the record set that the row refers to and every
    other one with which the checksum would match. Of a prepared transaction it keeps the undamaged parts."""
    rows = [one.row for one in found if one.good]
    damaged = [one for one in found if not one.good]
    left_out = [f"{one.table}: {describe(one.row)}: {MISMATCH}" for one in damaged]
    left_out += [refusal.detail() for refusal in transactions.refusals]
    left_out += [entry.error().detail() for entry in transactions.damaged]
    records = {row.id: row for row in rows if row.class_id == RECORD}
    uncertain = {records[record_id].name for one in damaged for record_id in _owners(one, records)}
    uncertain |= {one.row.name for one in damaged if one.row.class_id == RECORD}
    uncertain |= {entry.name for entry in transactions.damaged}
    objects: dict[int, list[tuple[str, bytes]]] = {record_id: [] for record_id in records}
    for row in rows:
        if row.class_id == OBJECT and row.parent_id in objects:
            objects[row.parent_id].append((row.name, row.data))
        elif row.class_id != RECORD:
            left_out.append(f"{describe(row)}: it belongs to record set {row.parent_id}, which has no readable row")
    entries: list[Entry] = [
        Restored(row.name, row.number, None, (), tuple(objects[record_id])) for record_id, row in records.items()
    ]
    names = {row.name for row in records.values()}
    for entry in transactions.prepared:
        if not isinstance(entry, Prepared):
            continue
        missing = sorted({change.name for change in entry.changes} - names)
        if missing:
            left_out.append(f"prepared transaction {entry.xid}: it changes {', '.join(missing)}, which is left out")
        else:
            entries.append(entry)
    return Salvaged(tuple(entries), tuple(left_out), tuple(sorted(uncertain)))


def _owners(damaged: StoredRow, records: Iterable[int]) -> list[int]:
    """The ids of the record sets that a damaged row may belong to."""
    row = damaged.row
    known = [row.parent_id] if row.parent_id in records else []
    if damaged.known:
        return known
    matching = [record_id for record_id in records if replace(row, parent_id=record_id).checksum == damaged.checksum]
    return list(dict.fromkeys((*known, *matching)))
