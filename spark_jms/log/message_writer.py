"""Staging messages: rows are routed to members, and each member's rows go to a file of its own (C4)."""

from __future__ import annotations

import uuid

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_jms.core.destination import Destination
from spark_jms.core.message import check_sendable, normalise
from spark_jms.core.ranges import EMPTY, Ranges
from spark_jms.core.routing import route, split
from spark_jms.core.staged_file import StagedFile
from spark_jms.log.file_writer import FileWriter
from spark_jms.log.staged_file import discard
from spark_jms.log.storage import Storage, now_ms

MAX_FILE_BYTES = 256 * 2**20


class MessageWriter:
    """Routes the rows of one task or one send to files of their members. Nothing is visible before the commit."""

    def __init__(
        self, storage: Storage, destination: Destination, turn: int, now: int | None = None, *, prefix: str = ""
    ) -> None:
        """`prefix` begins the token of every file (transfers name theirs)."""
        self._storage = storage
        self._destination = destination
        self._turn = turn
        self._prefix = prefix
        self._now = now_ms() if now is None else now
        self._open: dict[int, FileWriter] = {}
        self._notes_order = destination.members > (destination.slot_members or destination.members)
        self._producer, self._rows = uuid.uuid4().hex, 0
        self._numbers: dict[int, Ranges] = {}  # open file -> which of our rows it has, if a member can be removed
        self._staged: list[StagedFile] = []
        self._checked: pa.Schema | None = None

    def write(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows as they are stored, without ids. Raises MessageFormatError or MessageSizeError before it writes
        anything of the batch."""
        if batch.schema is not self._checked:
            check_sendable(batch.schema)
            self._checked = batch.schema
        rows = normalise(batch, self._now, self._destination.max_message_bytes)
        self.write_normalised(rows)
        return rows

    def write_normalised(self, rows: pa.RecordBatch) -> None:
        members = route(self._destination.route, rows.column("JMSXGroupID"), self._turn)
        self._turn += 1
        self.write_routed(rows, members)

    def write_to(self, rows: pa.RecordBatch, member: int) -> None:
        """All rows go to one member."""
        self.write_routed(rows, np.full(rows.num_rows, member, dtype=np.int32))

    def write_routed(self, rows: pa.RecordBatch, members: npt.NDArray[np.int32]) -> None:
        """`members` has the member of each row."""
        for member, part in split(rows, members):
            writer = self._open.get(member)
            if writer is None:
                writer = self._open[member] = FileWriter(self._storage, member, prefix=self._prefix)
            writer.write(part)
            if self._notes_order:
                new = Ranges.from_numbers(np.flatnonzero(members == member) + self._rows)
                self._numbers[member] = self._numbers.get(member, EMPTY) | new
            if writer.bytes >= MAX_FILE_BYTES:
                self._close(member)
        self._rows += rows.num_rows

    def close(self) -> list[StagedFile]:
        for member in sorted(self._open):
            self._close(member)
        return self._staged

    def _close(self, member: int) -> None:
        if self._notes_order:
            self._open[member].note_order(self._producer, self._numbers.pop(member))
        self._staged.append(self._open[member].close())
        del self._open[member]

    def abort(self) -> None:
        for writer in self._open.values():
            writer.abort()
        self._open = {}
        discard(self._storage, self._staged)
