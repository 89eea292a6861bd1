"""The rows of a claim in the order of delivery, in bounded memory.

A destination that sorts, or that delivers units of work together, gives a claim another order than the log has. Rows that fit
half the message buffer are sorted in memory, where the join of their batches takes the other half. More are sorted in two passes:
the first reads what decides the order, and gives each message its rank; the second reads the rows and puts each into the bucket
of its rank, which pages. Then the buckets are read one by one, and each is sorted in memory. So a row is read twice from the log,
whatever the size of the claim, and is in a page once.

Features: T7, T15 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.delivery_order import DeliveryOrder
from spark_jms.core.ranges import Ranges, union
from spark_jms.core.sort_order import SortOrder
from spark_jms.log.file_reader import StoredRows
from spark_jms.log.message_buffer import MessageBuffer, PagedRows

_ROWS, _BYTES = 16_384, 8 * 2**20  # of a batch of sorted rows
_SEQUENCE = "jmsq.sequence"  # beside the columns of a paged row
MOST_BUCKETS = 1_024
_SHARE = 8  # a bucket has such a part of the buffer


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
