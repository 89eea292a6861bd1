"""What can be read of a damaged store in a database. Nothing is changed and the engine's lock is not taken (S9).

A row whose checksum does not fit is left out and named. What belongs to a record set whose own row is damaged is left
out with it. Which record set a damaged row belonged to says its identity; where that does not fit either, it is what the
row says, and every other one for which its checksum fits. Of a prepared transaction the parts count that are good.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from spark_jms.store.admin import Salvaged
from spark_jms.store.errors import StoreError, StoreInUseError
from spark_jms.store.jdbc.admin import opened
from spark_jms.store.jdbc.outcomes import Transactions
from spark_jms.store.jdbc.persistence import read_rows, read_transactions
from spark_jms.store.jdbc.protocol import check_owner
from spark_jms.store.jdbc.rows import OBJECT, RECORD, Found, Row, describe
from spark_jms.store.ledger.ledger import Entry, Prepared, Restored


def salvage_jdbc(uri: str) -> Salvaged:
    with opened(uri) as store:
        shown = store.settings.shown
        if store.held():
            raise StoreInUseError(f"{shown} is used: an engine has its lock")
        try:
            rows = [found for found in read_rows(store.data, store.tables) if found.persistent]
            transactions = read_transactions(store.data, store.tables, shown)
        except StoreError:
            check_owner(store.owner(), "", shown)  # tables of another version
            raise
    return _salvaged(rows, transactions)


def _salvaged(found: list[Found], transactions: Transactions) -> Salvaged:
    """Pure."""
    rows = [one.row for one in found if one.good]
    damaged = [one for one in found if not one.good]
    left_out = [f"{one.table}: {describe(one.row)}: the checksum of the row does not fit" for one in damaged]
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
            left_out.append(f"{describe(row)}: record set {row.parent_id}, to which it belongs, is not there")
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


def _owners(damaged: Found, records: Iterable[int]) -> list[int]:
    row: Row = damaged.row
    known = [row.parent_id] if row.parent_id in records else []
    if damaged.known:
        return known
    fits = [record_id for record_id in records if replace(row, parent_id=record_id).checksum == damaged.checksum]
    return list(dict.fromkeys((*known, *fits)))
