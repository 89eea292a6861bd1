"""What is readable of a damaged store in a database. Pure.

Salvage leaves out and names each row whose checksum does not match. When the row of a record set is damaged, it leaves out
the objects of that record set as well. The identity of a damaged row tells which record set it belonged to; when the
identity does not match either, salvage names the record set that the row refers to and every other one with which the
checksum would match. Of a prepared transaction it keeps the undamaged parts.

Features: S9 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from spark_jms.store.jdbc.outcomes import Transactions
from spark_jms.store.jdbc.rows import MISMATCH, OBJECT, RECORD, StoredRow, describe
from spark_jms.store.ledger.entries import Entry, Prepared, Restored
from spark_jms.store.reports import Salvaged


def salvage_rows(found: list[StoredRow], transactions: Transactions) -> Salvaged:
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
