"""Staging messages: rows are routed to members, and each member's rows go to a file of its own.

Features: C4, T15 (docs/FEATURES.md)
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.body_compression import compressed
from spark_jms.core.destination import Destination
from spark_jms.core.message import IN_ARROW, check_sendable, normalise
from spark_jms.core.promoted_columns import PromotedColumns
from spark_jms.core.ranges import EMPTY, Ranges
from spark_jms.core.routing import Routing, route, route_of, split
from spark_jms.core.sort_order import SortOrder
from spark_jms.core.staged_file import StagedFile
from spark_jms.core.store_compression import codec_of
from spark_jms.core.unit_of_work import check_parts, routing_groups
from spark_jms.core.unit_order import refuse_units, with_default_unit
from spark_jms.log.file_writer import ROW_GROUP_BYTES, SORTED_ROW_GROUP_BYTES, FileWriter
from spark_jms.log.staged_file import discard
from spark_jms.log.storage import Storage, naming_destination, now_ms

MAX_FILE_BYTES = 256 * 2**20


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
    ) -> None:
        """`prefix` begins the token of every file (transfers name theirs). `routing` None: the destination's. `producer` names
        the sender of the rows; None: this writer is one. `threshold`: from so many bytes on a body is compressed; None: never."""
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
        self._default_unit = destination.default_unit(producer or self._producer)
        self._numbers: dict[int, Ranges] = {}  # open file -> which of our rows it has, if a member can be removed
        self._placed: dict[int, frozenset[str]] = {}  # open file -> its units that go to its member if they are new
        self._staged: list[StagedFile] = []
        self.singles: dict[str, pa.RecordBatch] = {}  # path -> rows, of files written in one small batch
        self._checked: pa.Schema | None = None
        self._order = SortOrder.of(destination.destination_keys)
        self._promoted = PromotedColumns.of(destination.promoted_properties)
        self._codec = codec_of(destination)

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
        self.write_routed(rows, pa.repeat(pa.scalar(member, pa.int32()), rows.num_rows))

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
                    codec=self._codec,
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
