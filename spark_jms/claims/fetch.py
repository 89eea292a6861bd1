"""Reading claimed messages, also while compaction replaces their files: for Spark's tasks and the client.

Features: C5, C13, T7, T8 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.claims.sorted_rows import in_order
from spark_jms.core.body_compression import DamagedBodyError, columns_to_read, decompressed, pieces
from spark_jms.core.delivery_order import DeliveryOrder
from spark_jms.core.message import COLUMNS, deliver, stored_columns
from spark_jms.core.ranges import Ranges, union
from spark_jms.core.sort_order import FIFO
from spark_jms.errors import DataLossError, DestinationReplacedError, MessageFormatError
from spark_jms.log.data_file import FileHint
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.file_reader import LastRows, StoredRows, read_stored
from spark_jms.log.message_buffer import MessageBuffer, process_buffer

WITHOUT_LOST = (
    "Continue without them with failOnDataLoss=false (Python: fail_on_data_loss=False; `jmsq receive`: --skip-lost)."
)
_ATTEMPTS = 3
_SMALL_BATCH_BYTES = 2**20  # smaller batches are delivered together
log = logging.getLogger("spark_jms")


def fetch(
    table: DeltaLog,
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
    buffer: Callable[[], MessageBuffer] = process_buffer,
) -> Iterator[pa.RecordBatch]:
    """The picked messages of one member, in `order`: FIFO, or another one, for which large claims page in `buffer`.
    `redelivered` maps a delivery count above 1 to its messages.

    `files` are tried first; a file that compaction has replaced is looked up in the log. Raises DataLossError for
    messages that are in no file, or leaves them out when `fail_on_data_loss` is false. Raises DestinationReplacedError when
    the table is not `table_id` any more: the messages that have these sequences now are others. `last` keeps decoded rows
    for the next call. With `unpacks`, compressed bodies are as they were sent.
    """
    found = _PickedRows(table, member, picks, files, table_id, last)
    stored = list(dict.fromkeys([*stored_columns(columns), *order.columns]))
    rows = _together(found.rows(columns_to_read(stored) if unpacks else stored))
    if order:

        def again(names: list[str]) -> Iterator[StoredRows]:
            return _PickedRows(table, member, picks, files, table_id, None).rows(names)

        rows = in_order(rows, order, redelivered, again, buffer)
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
        table: DeltaLog,
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
    least, most = pc.min_max(sequences).as_py().values()
    hits = {count: part for count, ranges in redelivered.items() if (part := ranges.between(least, most))}
    if not hits:
        return 1
    counts = pa.repeat(pa.scalar(1, pa.int32()), len(sequences))
    for count, part in hits.items():
        counts = pc.if_else(pc.is_in(sequences, part.numbers()), pa.scalar(count, pa.int32()), counts)
    return counts
