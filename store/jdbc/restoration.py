"""From the rows of the SIBnnn tables back to ledger entries, and what damaged rows cost. Pure.

A damaged row stays in its table as it is, and

    it is not persistent                                 nothing is refused: the row is ignored
    persistent; identity or checksum matches             its record set is refused: the parent, or the row's own
    persistent; neither matches                          the whole store is refused: its record set is unknown
    persistent; the record set has no readable row       the whole store is refused: the name is unknown

Features: S1, S9 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spark_jms.store.errors import StoreCorruptError
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
    describe,
)
from spark_jms.store.ledger.entries import Connected, Damaged, Entry, Restored


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
    """`place` names the store in problems."""
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
