"""What can be read of a damaged store in a database. Nothing is changed and the engine's lock is not taken (S9).

A row whose checksum does not fit is left out and named. What belongs to a record set whose own row is damaged is left
out with it. Which record set a damaged row belonged to is what it says, and every other one for which its checksum fits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import sqlalchemy as sa

from store.admin import Salvaged
from store.errors import StoreCorruptError, StoreInUseError
from store.jdbc.admin import opened
from store.jdbc.persistence import read_transaction
from store.jdbc.rows import OBJECT, RECORD, Row, describe
from store.ledger import Entry, Prepared, Restored


def salvage_jdbc(uri: str) -> Salvaged:
    left_out: list[str] = []
    rows: list[Row] = []
    damaged: list[tuple[Row, int]] = []
    prepared: list[Prepared] = []
    with opened(uri) as store:
        if store.held():
            raise StoreInUseError(f"{store.settings.shown} is used: an engine has its lock")
        for table in store.tables.objects[: store.tables.persistent_count]:
            for found in store.data.rows(sa.select(*table.c)):
                row = Row(found.id, found.parent_id, found.class_id, found.name, found.number, bytes(found.data))
                if row.checksum == found.checksum:
                    rows.append(row)
                else:
                    damaged.append((row, found.checksum))
                    left_out.append(f"{table.fullname}: {describe(row)}: the checksum of the row does not fit")
        transactions = store.tables.transactions
        for found in store.data.rows(sa.select(*transactions.c).order_by(transactions.c.position)):
            try:
                prepared += [entry for entry in read_transaction(found, transactions)[0] if isinstance(entry, Prepared)]
            except StoreCorruptError as error:
                left_out.append(error.detail())
    return _salvaged(rows, damaged, prepared, left_out)


def _salvaged(
    rows: list[Row], damaged: list[tuple[Row, int]], prepared: list[Prepared], left_out: list[str]
) -> Salvaged:
    """Pure."""
    records = {row.id: row for row in rows if row.class_id == RECORD}
    uncertain = {records[record_id].name for row, checksum in damaged for record_id in _owners(row, checksum, records)}
    uncertain |= {row.name for row, _ in damaged if row.class_id == RECORD}
    objects: dict[int, list[tuple[str, bytes]]] = {record_id: [] for record_id in records}
    for row in rows:
        if row.class_id == OBJECT and row.parent_id in objects:
            objects[row.parent_id].append((row.name, row.data))
        elif row.class_id != RECORD:
            left_out.append(f"{describe(row)}: record set {row.parent_id}, to which it belongs, is not there")
    entries: list[Entry] = [
        Restored(row.name, row.number, None, (), tuple(objects[record_id])) for record_id, row in records.items()
    ]
    names = {row.name for row in records.values()}
    for entry in prepared:
        missing = sorted({change.name for change in entry.changes} - names)
        if missing:
            left_out.append(f"prepared transaction {entry.xid}: it changes {', '.join(missing)}, which is left out")
        else:
            entries.append(entry)
    return Salvaged(tuple(entries), tuple(left_out), tuple(sorted(uncertain)))


def _owners(row: Row, checksum: int, records: Iterable[int]) -> list[int]:
    known = [row.parent_id] if row.parent_id in records else []
    fits = [record_id for record_id in records if replace(row, parent_id=record_id).checksum == checksum]
    return list(dict.fromkeys((*known, *fits)))
