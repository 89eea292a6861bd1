"""Data files of a destination: written by senders before the commit gives them numbers, read by ranges (C3, C4)."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jms.core.destination import Destination
from spark_jms.core.message import (
    DICTIONARY_COLUMNS,
    ORDINAL,
    STATISTICS_COLUMNS,
    STORED_SCHEMA,
    check_sendable,
    deliver,
    normalise,
    stored_columns,
)
from spark_jms.core.ranges import Ranges
from spark_jms.core.routing import route, split
from spark_jms.errors import UnreadableTableError
from spark_jms.log.storage import LocalStorage, ObjectStorage, now_ms

MAX_FILE_BYTES = 256 * 2**20
_STAGED_GRACE_MS = 600_000
_FLUSH_BYTES = 8 * 2**20  # one row group
_READ_BATCH_BYTES = 4 * 2**20
_SMALL_BATCH_BYTES = 2**20  # smaller ones are handed on together
_MAX_STATISTICS_TEXT = 32
ACKNOWLEDGED = "acknowledged_ms"  # of the acknowledgement table


@dataclass(frozen=True)
class StagedFile:
    """A written file that is not in the log yet: it has rows but no sequence numbers."""

    path: str
    member: int
    rows: int
    bytes: int
    modified_ms: int
    stats: str

    def add_action(self, first_sequence: int, *, data_change: bool) -> dict[str, dict[str, Any]]:
        return {
            "add": {
                "path": self.path,
                "size": self.bytes,
                "modificationTime": self.modified_ms,
                "dataChange": data_change,
                "partitionValues": {"member": str(self.member), "first_sequence": str(first_sequence)},
                "stats": self.stats,
            }
        }


class FileWriter:
    """One file of one member. Rows get `ordinal` 0, 1, 2 … and JMSMessageIDs made of the file's token and the ordinal."""

    def __init__(self, storage: LocalStorage | ObjectStorage, member: int, schema: pa.Schema = STORED_SCHEMA) -> None:
        self._storage = storage
        self.member = member
        self.token = base64.urlsafe_b64encode(os.urandom(12)).decode()
        self.path = f"m{member}-{self.token}.parquet"
        self._sink = storage.open_output(self.path)
        dictionary = [name for name in schema.names if name in DICTIONARY_COLUMNS]
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression="snappy",
            use_dictionary=dictionary,
            write_statistics=False,
            store_schema=False,
        )
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self.rows = 0
        self.bytes = 0
        self._statistics = _Statistics()

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows as `normalise` gives them."""
        ordinals = np.arange(self.rows, self.rows + batch.num_rows, dtype=np.int64)
        ids = pc.binary_join_element_wise(f"ID:{self.token}", pc.cast(pa.array(ordinals), pa.string()), "-")
        self.append(pa.RecordBatch.from_arrays([pa.array(ordinals), ids, *batch.columns], schema=STORED_SCHEMA))

    def append(self, stored: pa.RecordBatch) -> None:
        """Append rows that have their ordinals and ids already (compaction)."""
        self._statistics.add(stored)
        self.rows += stored.num_rows
        self._pending.append(stored)
        self._pending_bytes += stored.nbytes
        if self._pending_bytes >= _FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            table = pa.Table.from_batches(self._pending)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
            self.bytes += self._pending_bytes
            self._pending, self._pending_bytes = [], 0

    def close(self) -> StagedFile:
        self._flush()
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        return StagedFile(self.path, self.member, self.rows, size, now_ms(), self._statistics.to_json())

    def abort(self) -> None:
        self._sink.close()
        self._storage.delete(self.path)


class _Statistics:
    """What Delta readers and our planner may know of a file without opening it."""

    def __init__(self) -> None:
        self.rows = 0
        self.low: dict[str, Any] = {}
        self.high: dict[str, Any] = {}
        self.nulls: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        for name in (ORDINAL, *STATISTICS_COLUMNS, ACKNOWLEDGED):
            if name not in batch.schema.names:
                continue
            column = batch.column(name)
            self.nulls[name] = self.nulls.get(name, 0) + column.null_count
            if column.null_count == len(column):
                continue
            bounds = pc.min_max(column)
            low, high = bounds["min"].as_py(), bounds["max"].as_py()
            self.low[name] = min(self.low.get(name, low), low)
            self.high[name] = max(self.high.get(name, high), high)

    def to_json(self) -> str:
        short = [n for n in self.low if not isinstance(self.high[n], str) or len(self.high[n]) <= _MAX_STATISTICS_TEXT]
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": {n: self.low[n] for n in short},
                "maxValues": {n: self.high[n] for n in short},
                "nullCount": self.nulls,
            },
            separators=(",", ":"),
        )


class MessageWriter:
    """What one task or one send writes: rows go to their members' files. Nothing is visible before the commit."""

    def __init__(
        self, storage: LocalStorage | ObjectStorage, destination: Destination, turn: int, now: int | None = None
    ) -> None:
        self._storage = storage
        self._destination = destination
        self._turn = turn
        self._now = now_ms() if now is None else now
        self._open: dict[int, FileWriter] = {}
        self._staged: list[StagedFile] = []
        self._checked: pa.Schema | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Raises MessageFormatError or MessageSizeError before anything of the batch is written."""
        if batch.schema is not self._checked:
            check_sendable(batch.schema)
            self._checked = batch.schema
        self.write_normalised(normalise(batch, self._now, self._destination.max_message_bytes))

    def write_normalised(self, rows: pa.RecordBatch) -> None:
        members = route(self._destination.route, rows.column("JMSXGroupID"), self._turn)
        self._turn += 1
        for member, part in split(rows, members):
            writer = self._open.get(member)
            if writer is None:
                writer = self._open[member] = FileWriter(self._storage, member)
            writer.write(part)
            if writer.bytes >= MAX_FILE_BYTES:
                self._staged.append(self._open.pop(member).close())

    def close(self) -> list[StagedFile]:
        for member in sorted(self._open):
            self._staged.append(self._open[member].close())
        self._open = {}
        return self._staged

    def abort(self) -> None:
        for writer in self._open.values():
            writer.abort()
        self._open = {}
        discard(self._storage, self._staged)


def staged_grace_ms(destination: Destination) -> int:
    """How old a file that is not in the log must be for clean-up to take it for a dead sender's. A living sender commits
    within half of it or not at all (`send`), so neither of the two ever deletes what the other has made a message."""
    return max(destination.file_grace_ms, _STAGED_GRACE_MS)


def discard(storage: LocalStorage | ObjectStorage, files: Iterable[StagedFile]) -> None:
    for file in files:
        storage.delete(file.path)


def reroute(
    storage: LocalStorage | ObjectStorage, files: Sequence[StagedFile], destination: Destination
) -> list[StagedFile]:
    """Files whose member is gone, written anew for those that are left; the old ones are deleted. The others go where
    they were routed to: units of order never change their member, and dealing a producer's rows out again, file by
    file, would mix up their order."""
    gone = [file for file in files if file.member >= destination.members]
    writer = MessageWriter(storage, destination, turn=0)
    for file in gone:
        with storage.open_input(file.path) as source:
            for batch in pq.ParquetFile(source).iter_batches():
                writer.write_normalised(
                    batch.select([n for n in STORED_SCHEMA.names if n not in (ORDINAL, "JMSMessageID")])
                )
    staged = writer.close()
    discard(storage, gone)
    return [file for file in files if file.member < destination.members] + staged


# -- reading --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class FileHint:
    """Where a task finds rows: enough of a DataFile to read it, small enough to travel in a partition."""

    path: str
    first: int
    rows: int
    bytes: int

    @property
    def last(self) -> int:
        return self.first + self.rows - 1


StoredRows = tuple[pa.RecordBatch, np.ndarray[Any, np.dtype[np.int64]]]  # and their sequences


def read_stored(
    storage: LocalStorage | ObjectStorage,
    file: FileHint,
    picks: Ranges,
    columns: list[str],
) -> Iterator[StoredRows]:
    """The picked rows of one file with their sequences, in order. FileNotFoundError when the file is gone."""
    wanted = picks.between(file.first, file.last)
    if not wanted:
        return
    with storage.open_input(file.path) as source:
        try:
            parquet = pq.ParquetFile(source, pre_buffer=False)
        except pa.ArrowException as error:
            raise UnreadableTableError(f"data file {file.path} of {storage.uri} cannot be read: {error}") from error
        if parquet.metadata.num_rows != file.rows:
            raise UnreadableTableError(
                f"data file {file.path} of {storage.uri} has {parquet.metadata.num_rows} rows, the log says {file.rows}"
            )
        first = file.first
        names = columns or [ORDINAL]
        for group in range(parquet.metadata.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            if wanted.between(first, first + rows - 1):
                yield from _read_group(storage, file, parquet, group, first, wanted, names)
            first += rows


def _read_group(
    storage: LocalStorage | ObjectStorage,
    file: FileHint,
    parquet: pq.ParquetFile,
    group: int,
    first: int,
    wanted: Ranges,
    names: list[str],
) -> Iterator[StoredRows]:
    size = max(min(_READ_BATCH_BYTES * file.rows // max(file.bytes, 1), 16_384), 64)
    try:
        for batch in parquet.iter_batches(batch_size=size, row_groups=[group], columns=names, use_threads=False):
            sequences = np.arange(first, first + batch.num_rows, dtype=np.int64)
            first += batch.num_rows
            inside = wanted.between(int(sequences[0]), int(sequences[-1]))
            if not inside:
                continue
            if inside.count == batch.num_rows:
                yield batch, sequences
            elif len(inside) == 1:
                start = inside.first - int(sequences[0])
                yield batch.slice(start, inside.count), sequences[start : start + inside.count]
            else:
                chosen = inside.numbers() - sequences[0]
                yield batch.take(pa.array(chosen)), sequences[chosen]
    except pa.ArrowException as error:
        raise UnreadableTableError(f"data file {file.path} of {storage.uri} cannot be read: {error}") from error


@dataclass(frozen=True)
class Delivery:
    """Stored rows of one member on their way to whoever asked for these columns. `redelivered` gives the delivery count of
    those that have one above 1."""

    columns: tuple[str, ...]
    destination: str
    member: int
    redelivered: Mapping[int, Ranges]

    @property
    def stored(self) -> list[str]:
        return stored_columns(self.columns)

    def messages(self, rows: Iterable[StoredRows]) -> Iterator[pa.RecordBatch]:
        """In order; many small files come in one batch, since a batch costs more than its first hundred rows."""
        pending: list[StoredRows] = []
        size = 0
        for stored in rows:
            pending.append(stored)
            size += stored[0].nbytes
            if size >= _SMALL_BATCH_BYTES:
                yield self._deliver(pending)
                pending, size = [], 0
        if pending:
            yield self._deliver(pending)

    def _deliver(self, rows: list[StoredRows]) -> pa.RecordBatch:
        batch, sequences = rows[0]
        if len(rows) > 1:
            batch = pa.concat_batches([batch for batch, _ in rows])
            sequences = np.concatenate([sequences for _, sequences in rows])
        counts = _delivery_counts(sequences, self.redelivered)
        return deliver(batch, self.columns, self.destination, self.member, sequences, counts)


def _delivery_counts(sequences: Any, redelivered: Mapping[int, Ranges]) -> Any:
    hits = {
        count: part
        for count, ranges in redelivered.items()
        if (part := ranges.between(int(sequences[0]), int(sequences[-1])))
    }
    if not hits:
        return 1
    counts = np.ones(len(sequences), dtype=np.int32)
    for count, part in hits.items():
        at = np.searchsorted(part.lo, sequences, side="right") - 1
        counts[(at >= 0) & (sequences <= part.hi[at])] = count
    return counts
