"""Routing staged files again whose members were removed before the commit.

A member keeps the order of one producer's messages. So the rows of removed members cannot just follow those of the members
that remain: the rows of one producer, a task or a send, are written again in their order. Each file says in its footer which
of its producer's rows it has. Only files for members that can be removed need that (those added after the creation), so
other destinations write none of it.

Features: C4 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jms.core.balancing import Balancing
from spark_jms.core.destination import Destination
from spark_jms.core.integers import counting, view
from spark_jms.core.message import ORDINAL, STORED_SCHEMA
from spark_jms.core.ranges import Ranges
from spark_jms.core.routing import Routing, route
from spark_jms.core.staged_file import StagedFile
from spark_jms.core.unit_of_work import routing_groups
from spark_jms.core.utf8 import readable
from spark_jms.log.file_writer import ORDER_KEY
from spark_jms.log.message_writer import MessageWriter
from spark_jms.log.staged_file import discard
from spark_jms.log.storage import Storage

_WINDOW_ROWS = 16_384
_COLUMNS = [name for name in STORED_SCHEMA.names if name not in (ORDINAL, "JMSMessageID")]


def rewrite(
    storage: Storage, files: Sequence[StagedFile], destination: Destination, balancing: Balancing
) -> list[StagedFile]:
    """The files as they fit the remaining members; those of stopped servers count as removed, and only their units of order
    stay there, and what a sender sends to such a server by its name. Producers without rows for removed members keep their
    files; all files of the others are written again, in the order of the producer's rows, and the old ones deleted. Rows of
    remaining members stay there, except those of units of order that belong to another member by now."""
    routing = balancing.routing(destination)
    moving = {
        file.path
        for file in files
        if file.member not in destination.reachable_members or is_misplaced(storage, file, routing)
    }
    if not moving:
        return list(files)
    staged: list[StagedFile] = []
    left = [_StagedRows(storage, file) for file in files]
    while left:
        producer = [rows for rows in left if rows.producer == left[0].producer]
        left = [rows for rows in left if rows.producer != left[0].producer]
        if not any(rows.file.path in moving for rows in producer):
            staged += [rows.file for rows in producer]
            continue
        writer = MessageWriter(storage, destination, turn=0)
        try:
            _write(writer, producer, destination, routing)
            staged += writer.close()
        except BaseException:
            writer.abort()
            raise
        discard(storage, [rows.file for rows in producer])
    return staged


def is_misplaced(storage: Storage, file: StagedFile, routing: Routing) -> bool:
    """It has units of order that belong to another member by now."""
    if json.loads(file.stats)["nullCount"].get("JMSXGroupID") == file.rows:
        return False
    with storage.open_input(file.path) as source:
        groups = pq.ParquetFile(source).read(columns=["JMSXGroupID"])["JMSXGroupID"]
    units = readable(pc.unique(groups)).drop_null().to_pylist()
    return any(routing.member_of_unit(unit) != file.member for unit in units)


class _StagedRows:
    """The rows of one staged file, to be taken in their order. `numbers` are their places among the producer's rows."""

    def __init__(self, storage: Storage, file: StagedFile) -> None:
        self._storage, self.file = storage, file
        with storage.open_input(file.path) as source:
            footer = pq.ParquetFile(source).metadata.metadata or {}
        stored = json.loads(footer.get(ORDER_KEY, b"null"))
        self.producer: str = stored["producer"] if stored else file.path  # an earlier version staged it
        self.numbers = Ranges.from_json(stored["rows"]).numbers() if stored else counting(0, file.rows)
        self._batches = self._read()
        self._pending: list[pa.RecordBatch] = []
        self._taken = 0

    def take(self, end: int) -> pa.Table:
        """The next rows whose numbers are below `end`."""
        wanted = bisect_left(view(self.numbers), end) - self._taken
        parts, have = [], 0
        while have < wanted:
            batch = self._pending.pop() if self._pending else next(self._batches)
            if have + batch.num_rows > wanted:
                self._pending.append(batch.slice(wanted - have))
                batch = batch.slice(0, wanted - have)
            parts.append(batch)
            have += batch.num_rows
        self._taken += wanted
        return pa.Table.from_batches(parts, _SCHEMA)

    def numbers_taken(self, rows: int) -> pa.Int64Array:
        """Of the rows that `take` returned last."""
        return self.numbers[self._taken - rows : self._taken]

    def _read(self) -> Iterator[pa.RecordBatch]:
        with self._storage.open_input(self.file.path) as source:
            for batch in pq.ParquetFile(source).iter_batches(columns=_COLUMNS):
                yield batch.select(_COLUMNS).cast(_SCHEMA)


_SCHEMA = pa.schema([STORED_SCHEMA.field(name) for name in _COLUMNS])


def _write(writer: MessageWriter, producer: Sequence[_StagedRows], destination: Destination, routing: Routing) -> None:
    end, last = 0, max(rows.numbers[-1].as_py() for rows in producer)
    while end <= last:
        end += _WINDOW_ROWS
        tables = [rows.take(end) for rows in producer]
        window = pa.concat_tables(tables).combine_chunks()
        if not window.num_rows:
            continue
        numbers = pa.concat_arrays([rows.numbers_taken(t.num_rows) for rows, t in zip(producer, tables, strict=True)])
        sources = zip(producer, tables, strict=True)
        members = pa.concat_arrays([pa.repeat(pa.scalar(r.file.member, pa.int32()), t.num_rows) for r, t in sources])
        order = pc.sort_indices(numbers)
        (batch,) = window.take(order).combine_chunks().to_batches()
        members = members.take(order)
        moving = pc.invert(pc.is_in(members, pa.array(destination.reachable_members, pa.int32())))
        in_units = pc.is_valid(batch.column("JMSXGroupID"))
        groups = routing_groups(batch, destination.handles_units_of_work)
        members = pc.if_else(pc.or_(moving, in_units), route(routing, groups, end // _WINDOW_ROWS), members)
        writer.write_routed(batch, members, routing.placed_units(groups))
