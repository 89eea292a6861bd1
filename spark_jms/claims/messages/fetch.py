"""Reading claimed messages in the order of delivery, also while compaction replaces their files.

A destination that sorts, or that delivers units of work together, gives a claim another order than the log has. Rows that fit half
the message buffer are sorted in memory, where the join of their batches takes the other half. More are sorted in two passes: the
first reads what decides the order, and gives each message its rank; the second reads the rows and puts each into the bucket of its
rank, which pages. Then the buckets are read one by one, and each is sorted in memory. So a row is read twice from the log,
whatever the size of the claim, and is in a page once.

Spark's tasks and the client read so.

Features: C5, C13, T7, T8, T15 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.messages.columns import COLUMNS, deliver, stored_columns
from spark_jms.core.messages.compression import DamagedBodyError, columns_to_read, decompressed, pieces
from spark_jms.core.messages.ranges import Ranges, union
from spark_jms.core.ordering.sort_order import FIFO, DeliveryOrder, SortOrder
from spark_jms.errors import DataLossError, DestinationReplacedError, MessageFormatError
from spark_jms.log.messages.data_files import LastRows, StoredRows, read_stored
from spark_jms.log.tables.files import FileHint
from spark_jms.log.tables.storage import Storage

if TYPE_CHECKING:
    from spark_jms.log.messages.paging import MessageBuffer, PagedRows
    from spark_jms.log.tables.snapshot import Snapshot

log = logging.getLogger("spark_jms")
WITHOUT_LOST = (
    "Continue without them with failOnDataLoss=false (Python: fail_on_data_loss=False; `jmsq receive`: --skip-lost)."
)
MOST_BUCKETS = 1_024
_ATTEMPTS = 3
_SMALL_BATCH_BYTES = 2**20  # smaller batches are delivered together
_ROWS, _BYTES = 16_384, 8 * 2**20  # of a batch of sorted rows
_SEQUENCE = "jmsq.sequence"  # beside the columns of a paged row
_SHARE = 8  # a bucket has such a part of the buffer


class ReadTable(Protocol):
    """What reading needs of a destination's table; a DeltaLog has it."""

    @property
    def storage(self) -> Storage: ...
    @property
    def snapshot(self) -> Snapshot: ...
    def refresh(self) -> Snapshot: ...
    def verify(self) -> Snapshot: ...


def fetch(
    table: ReadTable,
    destination: str,
    member: int,
    picks: Ranges,
    redelivered: Mapping[int, Ranges],
    *,
    columns: tuple[str, ...] = tuple(COLUMNS),
    files: Sequence[FileHint] | None = None,
    fail_on_data_loss: bool = True,
    table_id: str | None = None,
    order: DeliveryOrder = FIFO,
    last: LastRows | None = None,
    unpacks: bool = False,
    buffer: Callable[[], MessageBuffer] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The picked messages of one member, in `order`: FIFO, or another one, for which large claims page in `buffer`.
    `redelivered` maps a delivery count above 1 to its messages.

    `files` are tried first; a file that compaction has replaced is looked up in the log. Raises DataLossError for
    messages that are in no file, or leaves them out when `fail_on_data_loss` is false. Raises DestinationReplacedError when
    the table is not `table_id` any more: the messages that have these sequences now are others. `last` keeps decoded rows
    for the next call. `buffer` None: that of the process. With `unpacks`, compressed bodies are as they were sent.
    """
    found = _PickedRows(table, member, picks, files, table_id, last)
    stored = list(dict.fromkeys([*stored_columns(columns), *order.columns]))
    rows = _together(found.rows(columns_to_read(stored) if unpacks else stored))
    if order:

        def again(names: list[str]) -> Iterator[StoredRows]:
            return _PickedRows(table, member, picks, files, table_id, None).rows(names)

        rows = in_order(rows, order, redelivered, again, buffer or _buffer_of_process)
    for batch, sequences in rows:
        done = 0
        for piece in pieces(batch) if unpacks else [batch]:
            numbers = sequences.slice(done, piece.num_rows)
            done += piece.num_rows
            plain = _unpacked(piece, destination, member, numbers) if unpacks else piece
            yield deliver(plain, columns, destination, member, numbers, _delivery_counts(numbers, redelivered))
    if not found.left:
        return
    left = found.left
    why = "purged or deleted" if left - table.snapshot.lost_of(member) else "a loss of power has taken them"
    what = f"{destination}, member {member}: {left.count:,} message(s) are gone (sequence {left}): {why}"
    if fail_on_data_loss:
        raise DataLossError(f"{what}. {WITHOUT_LOST}")
    log.warning("%s. They are left out.", what)


def _buffer_of_process() -> MessageBuffer:
    from spark_jms.log.messages.paging import process_buffer

    return process_buffer()


def _unpacked(batch: pa.RecordBatch, destination: str, member: int, sequences: pa.Array) -> pa.RecordBatch:
    try:
        return decompressed(batch)
    except DamagedBodyError as error:
        raise MessageFormatError(
            f"{destination}, member {member}, sequence {sequences[error.row].as_py()}: {error.reason}"
        ) from None


class _PickedRows:
    """The stored rows of the picks. After `rows`, `left` are the picks that no file holds."""

    def __init__(
        self,
        table: ReadTable,
        member: int,
        picks: Ranges,
        files: Sequence[FileHint] | None,
        table_id: str | None,
        last: LastRows | None,
    ) -> None:
        self._last = last
        self._table, self._table_id = table, table_id
        self._member = member
        self._files = files
        self.left = picks

    def rows(self, columns: list[str]) -> Iterator[StoredRows]:
        for attempt in range(1, _ATTEMPTS + 1):
            if not self.left:
                return
            given: list[Ranges] = []
            known = self._files if attempt == 1 else None
            for file in known if known is not None else self._newest_files(missing=attempt > 1):
                part = self.left.between(file.first, file.last)
                rows = read_stored(self._table.storage, file, part, columns, self._last)
                try:
                    first = next(rows, None)  # opens the file
                except FileNotFoundError:
                    if attempt < _ATTEMPTS:
                        break  # the rows before it are delivered; look up the remaining ones in the log
                    continue  # in the log but not on disk: deliver the rows behind it
                if first is not None:
                    yield first
                    yield from rows
                given.append(part)
            self.left = self.left - union(given)

    def _newest_files(self, *, missing: bool) -> list[FileHint]:
        """The files that hold `left`, in the newest snapshot. When one was `missing`, the table may be."""
        snapshot = self._table.verify() if missing else self._table.refresh()
        if self._table_id not in (None, snapshot.table_id):
            raise DestinationReplacedError()
        files = snapshot.member_files(self._member).overlapping(self.left.first, self.left.last)
        return [file.hint for file in files if self.left.between(file.first, file.last)]


def _together(rows: Iterable[StoredRows]) -> Iterator[StoredRows]:
    """Joins the rows of small files into one batch, since a batch costs more than its first hundred rows."""
    pending: list[StoredRows] = []
    size = 0
    for stored in rows:
        pending.append(stored)
        size += stored[0].nbytes
        if size >= _SMALL_BATCH_BYTES:
            yield _joined(pending)
            pending, size = [], 0
    if pending:
        yield _joined(pending)


def _joined(rows: list[StoredRows]) -> StoredRows:
    if len(rows) == 1:
        return rows[0]
    return pa.concat_batches([batch for batch, _ in rows]), pa.concat_arrays([sequences for _, sequences in rows])


def _delivery_counts(sequences: Any, redelivered: Mapping[int, Ranges]) -> Any:
    """One count for each sequence; just 1 when all are delivered for the first time."""
    if not redelivered:
        return 1
    least, most = pc.min_max(sequences).as_py().values()
    hits = {count: part for count, ranges in redelivered.items() if (part := ranges.between(least, most))}
    if not hits:
        return 1
    counts = pa.repeat(pa.scalar(1, pa.int32()), len(sequences))
    for count, part in hits.items():
        counts = pc.if_else(pc.is_in(sequences, part.numbers()), pa.scalar(count, pa.int32()), counts)
    return counts


# -- in the order of delivery ------------------------------------------------------------------------------------------


def in_order(
    rows: Iterator[StoredRows],
    order: DeliveryOrder,
    redelivered: Mapping[int, Ranges],
    read: Callable[[list[str]], Iterable[StoredRows]],
    buffer: Callable[[], MessageBuffer],
) -> Iterator[StoredRows]:
    """`rows` in the order of delivery. `read` reads columns of the same messages again; it and `buffer` are called when a buffer is
    needed. Raises PagingError when a page cannot be read."""
    parts: list[StoredRows] = []
    size = 0
    made: MessageBuffer | None = None
    for part in rows:
        parts.append(part)
        size += part[0].nbytes
        if size > _BYTES and made is None:
            made = buffer()
        if made is not None and size > made.limit_bytes // 2:
            yield from _in_buckets(parts, size, rows, _Ranks(order, redelivered, read), made)
            return
    yield from _sorted(parts, order, redelivered)


def _sorted(parts: list[StoredRows], order: DeliveryOrder, redelivered: Mapping[int, Ranges]) -> Iterator[StoredRows]:
    if not parts:
        return
    parts.sort(key=lambda part: part[1][0].as_py())
    table = pa.Table.from_batches([batch for batch, _ in parts])
    sequences = pa.concat_arrays([numbers for _, numbers in parts])
    parts.clear()
    again = pc.is_in(sequences, union(redelivered.values()).numbers())
    yield from _taken(table, sequences, order.delivery(table.select(order.columns), sequences, again))


def _taken(table: pa.Table, sequences: pa.Int64Array, at: pa.Int64Array) -> Iterator[StoredRows]:
    table = table.combine_chunks()  # once, or each `take` would join all chunks
    step = min(_ROWS, max(_BYTES * len(at) // max(table.nbytes, 1), 1))
    for start in range(0, len(at), step):
        chosen = at[start : start + step]
        for batch in table.take(chosen).combine_chunks().to_batches():
            yield batch, sequences.take(chosen)


class _Ranks:
    """The place of each message in the order of delivery. There is none when a purge took all files before this pass."""

    def __init__(
        self,
        order: DeliveryOrder,
        redelivered: Mapping[int, Ranges],
        read: Callable[[list[str]], Iterable[StoredRows]],
    ) -> None:
        keys: list[pa.RecordBatch] = []
        numbers: list[pa.Int64Array] = []
        for batch, sequences in sorted(
            ((_key(order, batch), sequences) for batch, sequences in read(order.columns) if len(sequences)),
            key=lambda part: part[1][0].as_py(),
        ):
            keys.append(batch)
            numbers.append(sequences)
        self.count = sum(map(len, numbers))
        self._delivered = pa.array([], pa.int64())
        if self.count:
            sequences = pa.concat_arrays(numbers)
            again = pc.is_in(sequences, union(redelivered.values()).numbers())
            by = order.by_keys if isinstance(order, SortOrder) else order.delivery
            self._delivered = sequences.take(by(pa.Table.from_batches(keys), sequences, again))

    def of(self, sequences: pa.Int64Array) -> pa.Int64Array:
        """Messages that were in no file at the first pass come last."""
        found = pc.index_in(sequences, value_set=self._delivered).cast(pa.int64())
        return pc.coalesce(found, pa.scalar(max(self.count - 1, 0), pa.int64()))


def _key(order: DeliveryOrder, batch: pa.RecordBatch) -> pa.RecordBatch:
    """What decides the order, far smaller than maps of properties."""
    return order.key_rows(batch) if isinstance(order, SortOrder) else batch


def _in_buckets(
    parts: list[StoredRows], size: int, rows: Iterator[StoredRows], ranks: _Ranks, buffer: MessageBuffer
) -> Iterator[StoredRows]:
    from spark_jms.log.messages.paging import PagedRows

    seen = sum(batch.num_rows for batch, _ in parts)
    expected = size * ranks.count // max(seen, 1)
    count = min(max(_SHARE * expected // buffer.limit_bytes + 1, 2), MOST_BUCKETS, max(ranks.count, 1))
    buckets = [PagedRows(buffer, buffer.limit_bytes // (4 * count)) for _ in range(count)]
    try:
        while parts:
            _put(buckets, *parts.pop(0), ranks)
        for batch, sequences in rows:
            _put(buckets, batch, sequences, ranks)
        for bucket in buckets:
            yield from _of_bucket(bucket, ranks)
    finally:
        for bucket in buckets:
            bucket.clear()


def _put(buckets: list[PagedRows], batch: pa.RecordBatch, sequences: pa.Int64Array, ranks: _Ranks) -> None:
    width = max(-(-ranks.count // len(buckets)), 1)
    where = pc.divide(ranks.of(sequences), width)
    named = pa.RecordBatch.from_arrays([*batch.columns, sequences], names=[*batch.schema.names, _SEQUENCE])
    for number in pc.unique(where).to_pylist():
        buckets[number].append(named.filter(pc.equal(where, number)))


def _of_bucket(bucket: PagedRows, ranks: _Ranks) -> Iterator[StoredRows]:
    pieces = list(bucket)
    bucket.clear()
    if not pieces:
        return
    table = pa.Table.from_batches(pieces)
    pieces.clear()
    sequences = table.column(_SEQUENCE).combine_chunks()
    rows = table.drop_columns([_SEQUENCE])
    yield from _taken(rows, sequences, pc.sort_indices(ranks.of(sequences)).view(pa.int64()))
