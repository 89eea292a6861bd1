"""Staging messages: rows are routed to members, and each member's rows go to a file of its own.

A member may be removed between the staging and the commit; then `rewrite` routes its rows again. A member keeps the order of one
producer's messages. So the rows of removed members cannot just follow those of the members that remain: the rows of one producer,
a task or a send, are written again in their order. Each file says in its footer which of its producer's rows it has. Only files
for members that can be removed need that (those added after the creation), so other destinations write none of it.

Features: C4, T15 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import uuid
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.routing import Balancing, Routing, route, route_of, split
from spark_jms.core.messages.arrays import repeated
from spark_jms.core.messages.columns import IN_ARROW, ORDINAL, STORED_SCHEMA, check_sendable, normalise
from spark_jms.core.messages.compression import codec_of, compressed
from spark_jms.core.messages.properties import PromotedColumns
from spark_jms.core.messages.ranges import EMPTY, Ranges, counting, view
from spark_jms.core.messages.types import readable
from spark_jms.core.ordering.sort_order import SortOrder
from spark_jms.core.ordering.units_of_order import refuse_units, with_default_unit
from spark_jms.core.ordering.units_of_work import check_parts, routing_groups
from spark_jms.core.transactions.transfer import StagedFile
from spark_jms.log.messages.data_files import ORDER_KEY, ROW_GROUP_BYTES, SORTED_ROW_GROUP_BYTES, FileWriter, discard
from spark_jms.log.tables.storage import Storage, naming_destination, now_ms

MAX_FILE_BYTES = 256 * 2**20
_WINDOW_ROWS = 16_384
_COLUMNS = [name for name in STORED_SCHEMA.names if name not in (ORDINAL, "JMSMessageID")]
_SCHEMA = pa.schema([STORED_SCHEMA.field(name) for name in _COLUMNS])


class MessageWriter:
    """Routes the rows of one task or one send to files of their members. Nothing is visible before the commit."""

    def __init__(
        self,
        storage: Storage,
        destination: Destination,
        turn: int,
        now: int | None = None,
        *,
        prefix: str = "",
        routing: Routing | None = None,
        producer: str | None = None,
        threshold: int | None = None,
        unit: str | None = None,
    ) -> None:
        """`prefix` begins the token of every file (transfers name theirs). `routing` None: the destination's. `producer` names
        the sender of the rows; None: this writer is one. `threshold`: from so many bytes on a body is compressed; None: never.
        `unit`: the default unit of order of the sender's connection factory."""
        self._threshold = threshold
        self._storage = storage
        self._destination = destination
        self._routing = route_of(destination) if routing is None else routing
        self._turn = turn
        self._prefix = prefix
        self._now = now_ms() if now is None else now
        self._open: dict[int, FileWriter] = {}
        self._notes_order = destination.can_lose_members
        self._producer, self._rows = uuid.uuid4().hex, 0
        self._default_unit = destination.default_unit(producer or self._producer, unit)
        self._numbers: dict[int, Ranges] = {}  # open file -> which of our rows it has, if a member can be removed
        self._placed: dict[int, frozenset[str]] = {}  # open file -> its units that go to its member if they are new
        self._staged: list[StagedFile] = []
        self.singles: dict[str, pa.RecordBatch] = {}  # path -> rows, of files written in one small batch
        self._checked: pa.Schema | None = None
        self._order = SortOrder.of(destination.destination_keys)
        self._promoted = PromotedColumns.of(destination.promoted_properties)

    def write(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows as they are stored, without ids. Raises MessageFormatError or MessageSizeError before it writes
        anything of the batch."""
        if batch.schema is not self._checked:
            check_sendable(batch.schema, IN_ARROW)
            self._checked = batch.schema
        rows = normalise(batch, self._now, self._destination.max_message_bytes)
        if self._destination.handles_units_of_work:
            check_parts(rows)
        if self._destination.forward_delay_ms is not None:
            refuse_units(rows, self._destination.name)
        return self.write_normalised(compressed(rows, self._threshold))

    def write_normalised(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of a sorted destination are stored in its order. Returns them so."""
        rows = with_default_unit(rows, self._default_unit)
        places = self._order.storing(rows) if self._order else None
        if places is not None:
            rows = rows.take(places)
        groups = routing_groups(rows, self._destination.handles_units_of_work)
        members = route(self._routing, groups, self._turn)
        self._turn += 1
        self.write_routed(rows, members, self._routing.placed_units(groups))
        return rows

    def write_to(self, rows: pa.RecordBatch, member: int) -> None:
        """All rows go to one member."""
        self.write_routed(rows, repeated(member, pa.int32(), rows.num_rows))

    def write_routed(
        self, rows: pa.RecordBatch, members: pa.Int32Array, placed: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """`members` has the member of each row. `placed`: Routing.placed_units of the rows."""
        with naming_destination(self._destination.name):
            self._write_routed(rows, members, placed)
        self._rows += rows.num_rows

    def _write_routed(self, rows: pa.RecordBatch, members: pa.Int32Array, placed: Mapping[str, int]) -> None:
        for member, part in split(rows, members):
            writer = self._open.get(member)
            if writer is None:
                size = SORTED_ROW_GROUP_BYTES if self._order else ROW_GROUP_BYTES
                writer = FileWriter(
                    self._storage,
                    member,
                    promoted=self._promoted,
                    prefix=self._prefix,
                    row_group_bytes=size,
                    codec=codec_of(self._destination, self._destination.compression_on(member)),
                )
                self._open[member] = writer
            writer.write(part)
            if placed:
                here = (unit for unit, where in placed.items() if where == member)
                self._placed[member] = self._placed.get(member, frozenset()).union(here)
            if self._notes_order:
                new = Ranges.from_numbers(pc.add(pc.indices_nonzero(pc.equal(members, member)), self._rows))
                self._numbers[member] = self._numbers.get(member, EMPTY) | new
            if writer.bytes >= MAX_FILE_BYTES:
                self._close(member)

    def close(self) -> list[StagedFile]:
        with naming_destination(self._destination.name):
            for member in sorted(self._open):
                self._close(member)
        return self._staged

    def _close(self, member: int) -> None:
        if self._notes_order:
            self._open[member].note_order(self._producer, self._numbers.pop(member))
        writer = self._open[member]
        self._staged.append(replace(writer.close(), placed=self._placed.pop(member, frozenset())))
        if writer.single is not None:
            self.singles[writer.path] = writer.single
        del self._open[member]

    def abort(self) -> None:
        for writer in self._open.values():
            writer.abort()
        self._open = {}
        discard(self._storage, self._staged)


# -- routing again -----------------------------------------------------------------------------------------------------


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
