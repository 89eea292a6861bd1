"""One data file: reading its rows by ranges of sequences, writing them, and the time until the log names it.

A file that is written and not in the log yet is staged: a sender owns it until it commits or deletes it.

Features: C3, C5, C13, T8 (docs/FEATURES.md)
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jms.core.messages.arrays import arrow_array, arrow_scalar
from spark_jms.core.messages.columns import DICTIONARY_COLUMNS, ORDINAL, STORED_SCHEMA, message_sizes
from spark_jms.core.messages.compression import UNCOMPRESSED, VERY_LARGE_BYTES, Codec, has_compressed, parquet_arguments
from spark_jms.core.messages.message_bytes import HEADER_BYTES, MESSAGE_BYTES, MOST_PARTS, bounds_of
from spark_jms.core.messages.properties import NOT_PROMOTED, PromotedColumns
from spark_jms.core.messages.ranges import Ranges, counting
from spark_jms.core.transactions.transfer import COMPRESSED_BODIES, StagedFile
from spark_jms.errors import InvalidDestinationError, UnreadableTableError
from spark_jms.log.tables.files import OWN_STATISTICS, SMALL_BYTES, FileHint
from spark_jms.log.tables.storage import Storage, naming_no_room, now_ms

if TYPE_CHECKING:
    from spark_jms.core.destinations.destination import Destination

StoredRows = tuple[pa.RecordBatch, pa.Int64Array]  # rows and their sequences
_READ_BATCH_BYTES = 4 * 2**20
_ONE_PIECE_BYTES = 2**16  # a smaller file is read at once: footer, metadata and each column would be a call each
ROW_GROUP_BYTES, SORTED_ROW_GROUP_BYTES = 8 * 2**20, 2**20  # a batch of a sorted destination takes a few rows of each
FEW = 16  # rows: a dictionary for fewer takes longer to write and to read than it saves, and more room
_DASH = arrow_scalar("-", pa.string())
_MAX_STATISTICS_TEXT = 32
ORDER_KEY = b"jmsq.order"  # in a file's footer: see message_writer.py
_STAGED_GRACE_MS = 600_000

# -- reading -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Decoded:
    path: str
    names: list[str]
    rows: pa.RecordBatch
    first: int  # sequence of the first row


class LastRows:
    """The rows that one consumer has decoded last, at most about 4 MiB of a file. It takes a hundred messages after the other
    from a file of thousands, and would otherwise decode all of them each time. Not thread-safe."""

    def __init__(self) -> None:
        self._decoded: _Decoded | None = None

    def keep(self, path: str, names: list[str], rows: pa.RecordBatch, first: int) -> None:
        self._decoded = _Decoded(path, names, rows, first)

    def find(self, path: str, names: list[str], wanted: Ranges) -> Iterator[StoredRows] | None:
        """None unless all wanted rows are here."""
        known = self._decoded
        if known is None or known.path != path or known.names != names:
            return None
        if wanted.first < known.first or wanted.last >= known.first + known.rows.num_rows:
            return None
        return picked_rows(known.rows, known.first, wanted)


def read_stored(
    storage: Storage,
    file: FileHint,
    picks: Ranges,
    columns: list[str],
    last: LastRows | None = None,
) -> Iterator[StoredRows]:
    """The picked rows of one file with their sequences, in order. `last` keeps decoded rows for the next call. Raises
    FileNotFoundError when the file was deleted and is needed."""
    wanted = picks.between(file.first, file.last)
    if not wanted:
        return
    known = last.find(file.path, columns or [ORDINAL], wanted) if last is not None else None
    if known is not None:
        yield from known
        return
    with storage.open_input(file.path) as source:
        try:
            whole = pa.BufferReader(source.read()) if file.bytes <= _ONE_PIECE_BYTES else source
            parquet = pq.ParquetFile(whole, pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(storage, file, error) from error
        if parquet.metadata.num_rows != file.rows:
            raise UnreadableTableError(
                f"data file {file.path} of {storage.uri} has {parquet.metadata.num_rows} rows, the log says {file.rows}"
            )
        first = file.first
        names = columns or [ORDINAL]
        for group in range(parquet.metadata.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            if wanted.between(first, first + rows - 1):
                yield from _read_group(storage, file, parquet, group, first, wanted, names, last)
            first += rows


def _read_group(
    storage: Storage,
    file: FileHint,
    parquet: pq.ParquetFile,
    group: int,
    first: int,
    wanted: Ranges,
    names: list[str],
    last: LastRows | None,
) -> Iterator[StoredRows]:
    size = max(min(_READ_BATCH_BYTES * file.rows // max(file.bytes, 1), 16_384), 64)
    try:
        for batch in parquet.iter_batches(batch_size=size, row_groups=[group], columns=names, use_threads=False):
            if last is not None and first <= wanted.last:
                last.keep(file.path, names, batch, first)
            yield from picked_rows(batch, first, wanted)
            first += batch.num_rows
            if first > wanted.last:
                break
    except (pa.ArrowException, OSError) as error:
        raise _damaged(storage, file, error) from error


def picked_rows(batch: pa.RecordBatch, first: int, wanted: Ranges) -> Iterator[StoredRows]:
    """The wanted rows of a batch whose first row has this sequence."""
    inside = wanted.between(first, first + batch.num_rows - 1)
    if not inside:
        return
    if inside.count == batch.num_rows:
        yield batch, counting(first, batch.num_rows)
    elif len(inside) == 1:
        yield batch.slice(inside.first - first, inside.count), counting(inside.first, inside.count)
    else:
        sequences = inside.numbers()
        yield batch.take(pc.subtract(sequences, first)), sequences


def _damaged(storage: Storage, file: FileHint, error: Exception) -> UnreadableTableError:
    return UnreadableTableError(f"data file {file.path} of {storage.uri} cannot be read: {error}")


# -- writing -----------------------------------------------------------------------------------------------------------


class FileWriter:
    """Writes one file of one member: rows, ordinals, message ids and statistics. Rows get `ordinal` 0, 1, 2 … and a JMSMessageID of
    the file's token and the ordinal."""

    def __init__(
        self,
        storage: Storage,
        member: int,
        schema: pa.Schema = STORED_SCHEMA,
        *,
        promoted: PromotedColumns = NOT_PROMOTED,
        prefix: str = "",
        row_group_bytes: int = ROW_GROUP_BYTES,
        codec: Codec | None = None,
    ) -> None:
        """`promoted` are written beside the columns of `schema`; rows come without them. `codec`: of the bodies."""
        self._storage = storage
        self.member = member
        self.token = base64.urlsafe_b64encode(os.urandom(12)).decode()
        self._id_prefix = arrow_scalar(f"ID:{self.token}", pa.string())
        self.path = f"m{member}-{prefix}{self.token}.parquet"
        self._where = f"{storage.uri}/{self.path}"
        try:
            self._sink = storage.open_output(self.path)
        except FileNotFoundError as error:
            raise InvalidDestinationError(
                f"the directory of the table {storage.uri} was deleted, so nothing can be sent to it: see `jmsq list`"
            ) from error
        self._promoted, self._codec = promoted, codec
        self._schema = pa.schema([*schema, *promoted.fields]) if promoted else schema
        self._writer: pq.ParquetWriter | None = None  # from the first rows on
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes, self._row_group_bytes = 0, row_group_bytes
        self.rows = 0
        self.bytes = 0
        self.single: pa.RecordBatch | None = None  # all rows, if they came in one small batch
        self._statistics = FileStatistics(promoted.names)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows as `normalise` returns them. Rows that have a JMSMessageID, as their first column, keep it."""
        ordinals = counting(self.rows, batch.num_rows)
        if batch.schema.names[0] == "JMSMessageID":
            self.append(pa.RecordBatch.from_arrays([ordinals, *batch.columns], schema=STORED_SCHEMA))
            return
        ids = pc.binary_join_element_wise(self._id_prefix, pc.cast(ordinals, pa.string()), _DASH)
        self.append(pa.RecordBatch.from_arrays([ordinals, ids, *batch.columns], schema=STORED_SCHEMA))

    def append(self, stored: pa.RecordBatch) -> None:
        """Append rows that already have ordinals and ids (compaction, acknowledgements, events)."""
        rows, size = stored, stored.nbytes
        if self._promoted:
            found = self._promoted.read(stored)
            rows = pa.RecordBatch.from_arrays(
                [*stored.columns, *found.columns], names=[*stored.schema.names, *self._promoted.names]
            )
            self._statistics.add(rows, found.incomplete)
        else:
            self._statistics.add(rows)
        if "properties" in stored.schema.names:
            self._statistics.sizes.append(message_sizes(stored))
            self._statistics.compressed |= has_compressed(stored.column("properties"))
        self.single = stored if not self.rows and size <= SMALL_BYTES else None
        self.rows += stored.num_rows
        self._pending.append(rows)
        self._pending_bytes += size
        if self._pending_bytes >= self._row_group_bytes:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            table = pa.Table.from_batches(self._pending)
            groups = max(self._pending_bytes // self._row_group_bytes, 1)
            with naming_no_room(self._where):
                self._parquet(table.num_rows).write_table(table, row_group_size=max(-(-table.num_rows // groups), 1))
            self.bytes += self._pending_bytes
            self._pending, self._pending_bytes = [], 0

    def _parquet(self, rows: int) -> pq.ParquetWriter:
        """`rows`: of the first row group, or of the whole file."""
        if self._writer is None:
            names = (*DICTIONARY_COLUMNS, *self._promoted.names) if rows >= FEW else ()
            very_large = self._codec is None and self._pending_bytes >= VERY_LARGE_BYTES * max(rows, 1)
            self._writer = pq.ParquetWriter(
                self._sink,
                self._schema,
                **parquet_arguments(self._schema, UNCOMPRESSED if very_large else self._codec),
                use_dictionary=[name for name in self._schema.names if name in names],
                write_statistics=False,
                store_schema=False,
            )
        return self._writer

    def note_order(self, producer: str, rows: Ranges) -> None:
        """The file has these of the producer's rows."""
        order = json.dumps({"producer": producer, "rows": rows.to_json()})
        self._parquet(self.rows).add_key_value_metadata({ORDER_KEY.decode(): order})

    def close(self) -> StagedFile:
        self._flush()
        with naming_no_room(self._where):
            self._parquet(0).close()
            size = self._sink.tell()
            self._sink.close()
        return StagedFile(self.path, self.member, self.rows, size, now_ms(), self._statistics.to_json())

    def abort(self) -> None:
        for unclosed in (self._writer, self._sink):  # they would write when they are collected
            with suppress(OSError, pa.ArrowException):  # a full disk
                if unclosed is not None:
                    unclosed.close()
        self._storage.delete(self.path)


class FileStatistics:
    """What Delta readers and our planner can know of a file without opening it. A promoted column that is not complete has
    none, so it is not taken for the property (core/messages/properties.py)."""

    def __init__(self, promoted: Collection[str] = ()) -> None:
        self._names = (*OWN_STATISTICS, *promoted)
        self._incomplete: set[str] = set()
        self._unordered: set[str] = set()  # columns with values that have no place between minimum and maximum
        self.rows = 0
        self.compressed = False  # some bodies are
        self.sizes: list[pa.Int64Array] = []  # of messages, without HEADER_BYTES
        self.low: dict[str, Any] = {}
        self.high: dict[str, Any] = {}
        self.nulls: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch, incomplete: Collection[str] = ()) -> None:
        self.rows += batch.num_rows
        self._incomplete.update(incomplete)
        for name in self._names:
            if name not in batch.schema.names or name in self._incomplete:
                continue
            column = batch.column(name)
            self.nulls[name] = self.nulls.get(name, 0) + column.null_count
            if column.null_count == len(column):
                continue
            if pa.types.is_floating(column.type) and not pc.all(pc.is_finite(column)).as_py():
                self._unordered.add(name)
            try:
                low, high = _bounds(column)
            except UnicodeDecodeError:  # of an earlier version's message: a log is UTF-8
                self._unordered.add(name)
                continue
            self.low[name] = min(self.low.get(name, low), low)
            self.high[name] = max(self.high.get(name, high), high)

    def to_json(self) -> str:
        short = [n for n in self.low if n not in self._unordered | self._incomplete and self._is_short(n)]
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": {n: self.low[n] for n in short},
                "maxValues": {n: self.high[n] for n in short},
                "nullCount": {n: count for n, count in self.nulls.items() if n not in self._incomplete},
                **({COMPRESSED_BODIES: True} if self.compressed else {}),
                **({MESSAGE_BYTES: self._message_parts()} if self.sizes else {}),
            },
            separators=(",", ":"),
        )

    def _message_parts(self) -> list[int]:
        sizes = pa.concat_arrays(self.sizes)
        if len(sizes) <= MOST_PARTS:  # a part for each
            return [size + HEADER_BYTES for size in sizes.to_pylist()]
        through = pa.concat_arrays([arrow_array([0], pa.int64()), pc.cumulative_sum(pc.add(sizes, HEADER_BYTES))])
        ends = through.take(arrow_array(bounds_of(len(sizes)), pa.int64()))
        parts: list[int] = pc.subtract(ends[1:], ends[:-1]).to_pylist()
        return parts

    def _is_short(self, name: str) -> bool:
        return all(
            not isinstance(bound, str) or len(bound) <= _MAX_STATISTICS_TEXT
            for bound in (self.low[name], self.high[name])
        )


def _bounds(column: pa.Array) -> tuple[Any, Any]:
    """The least and the greatest value of an array that has one."""
    if len(column) == 1:  # a file of one message: a kernel would take longer than the rest of its statistics
        (value,) = column.to_pylist()
        return value, value
    low, high = pc.min_max(column).as_py().values()
    return low, high


# -- staged files ------------------------------------------------------------------------------------------------------


def staged_grace_ms(destination: Destination) -> int:
    """The age at which clean-up takes a file that is not in the log for a dead sender's. A living sender commits within
    half of it or not at all (`too_old`), so clean-up never deletes a file that a sender has made messages."""
    return max(destination.file_grace_ms, _STAGED_GRACE_MS)


def commit_within_ms(destination: Destination) -> int:
    """How long after it was written a staged file may be committed."""
    return staged_grace_ms(destination) // 2


def patience_ms(files: Sequence[StagedFile], destination: Destination, now: int) -> int:
    """How long a sender may wait before it commits these files, with a tenth to spare."""
    oldest = min((file.modified_ms for file in files), default=now)
    return max(oldest + commit_within_ms(destination) * 9 // 10 - now, 0)


def too_old(storage: Storage, files: Sequence[StagedFile], destination: Destination, now: int) -> list[StagedFile]:
    """The files that clean-up has deleted or is about to: their writer slept (a stopped process, a suspended machine)."""
    oldest_ms = now - commit_within_ms(destination)
    return [file for file in files if file.modified_ms < oldest_ms or not storage.exists(file.path)]


def discard(storage: Storage, files: Iterable[StagedFile]) -> None:
    for file in files:
        storage.delete(file.path)
