"""The rows of a part of the change feed: in a task of Spark, or in the process of a plain reader.

A file that compaction has replaced since the plan is looked up again, by the numbers of its messages. What is in no file any more is
gone: purged in between, or with the table. What is in a file that cannot be read is told of as `unread` where a part isolates that;
`changes_again` reads it later.

Features: M12 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import chain, islice, repeat

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.changes.change import MESSAGES, MINUTE_MS, FeedSpan, MessageChange, Run, SentRows, ended
from spark_jms.core.messages.ranges import Ranges
from spark_jms.errors import JmsqError
from spark_jms.log.changes.plan import FeedFile, FeedPart, FeedPiece, feed_files
from spark_jms.log.changes.positions import log_of_table
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages.data_files import read_stored
from spark_jms.log.tables.object_store import open_storage
from spark_jms.log.tables.storage import Storage

log = logging.getLogger("spark_jms")
_ATTEMPTS = 3
_BATCH_ROWS = 10_000
_COLUMNS = ["subscription", "consumer", "claim", "acknowledged_ms", "messages", "first", "last", "ranges"]
_MOMENT = pa.timestamp("us", tz="UTC")
FEED_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("destination", pa.string()),
        ("table", pa.string()),
        ("member", pa.int32()),
        ("subscription", pa.string()),
        ("consumer", pa.string()),
        ("claim", pa.string()),
        ("detail", pa.string()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("ranges", pa.string()),
        ("messages", pa.int64()),
        ("bytes", pa.int64()),
        ("at", _MOMENT),
        ("minute", _MOMENT),
        ("due", _MOMENT),
        ("quota", pa.string()),
        ("position", pa.int64()),
        ("read", _MOMENT),
    ]
)
_TIMES = {"at": "at_ms", "minute": "minute_ms", "due": "due_ms", "read": "read_ms"}


def changes_of(part: FeedPart) -> Iterator[MessageChange]:
    """The rows of a part: of each member in the order of its numbers."""
    yield from part.rows
    for piece in part.pieces:
        yield from _PieceReader(part.root, piece, isolates=part.isolates).rows()


def changes_again(root: str, span: FeedSpan) -> list[MessageChange]:
    """The rows of a span that was not read before; `gone` if its table was dropped. Raises what its table or a file raises."""
    return [*_PieceReader(root, FeedPiece(span)).rows_again()]


def batches_of(part: FeedPart) -> Iterator[pa.RecordBatch]:
    """The same in columns, as FEED_SCHEMA."""
    rows = changes_of(part)
    while some := list(islice(rows, _BATCH_ROWS)):
        yield _columns(some)


def _columns(changes: list[MessageChange]) -> pa.RecordBatch:
    arrays = []
    for field in FEED_SCHEMA:
        if name := _TIMES.get(field.name):
            times = pa.array([getattr(one, name) for one in changes], pa.timestamp("ms", tz="UTC"))
            arrays.append(times.cast(field.type))
        else:
            arrays.append(pa.array([getattr(one, field.name) for one in changes], field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=FEED_SCHEMA)


class _PieceReader:
    """Reads one span, file by file."""

    def __init__(self, root: str, piece: FeedPiece, *, isolates: bool = False) -> None:
        self._root, self._piece, self._span, self._isolates = root, piece, piece.span, isolates
        self._next = piece.span.first  # what is not read yet begins here
        self._collected = SentRows(piece.span)
        self._storage: Storage | None = None

    def rows(self) -> Iterator[MessageChange]:
        if self._piece.away:
            yield self._span.unread(self._span.first, self._span.last)
            return
        try:
            yield from self._read(self._piece.files)
        except (JmsqError, OSError) as error:
            yield from self._unread(self._span.last, error)
        yield from self._collected.end()

    def rows_again(self) -> Iterator[MessageChange]:
        yield from self._read(self._looked_up())
        yield from self._collected.end()

    def _read(self, files: Iterable[FeedFile]) -> Iterator[MessageChange]:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                for file in files:
                    yield from self._file_or_unread(file, is_last=attempt == _ATTEMPTS)
                break
            except FileNotFoundError:
                if attempt == _ATTEMPTS:
                    raise
            files = self._looked_up()
        yield from self._gone(self._span.last)

    def _file_or_unread(self, file: FeedFile, *, is_last: bool) -> Iterator[MessageChange]:
        """A missing file may have been replaced; behind the `is_last` look it was not."""
        try:
            yield from self._file(file)
        except (JmsqError, OSError) as error:
            if isinstance(error, FileNotFoundError) and not is_last:
                raise
            yield from self._gone(file.hint.first - 1)
            yield from self._unread(min(file.hint.last, self._span.last), error)

    def _unread(self, last: int, error: Exception) -> Iterator[MessageChange]:
        """From the next one on; raises the error where it is not isolated."""
        if not self._isolates:
            raise error
        log.warning(
            "%s, member %d: numbers %d to %d cannot be read (%s); the others continue",
            self._span.destination,
            self._span.member,
            self._next,
            last,
            error,
        )
        yield self._span.unread(self._next, last)
        self._next = last + 1

    def _file(self, file: FeedFile) -> Iterator[MessageChange]:
        """Everything of it, or nothing and FileNotFoundError."""
        if file.hint.last < self._next or file.hint.first > self._span.last:
            return
        first, last = max(file.hint.first, self._next), min(file.hint.last, self._span.last)
        picks = Ranges.of((first, last))
        found: list[MessageChange] = []
        if self._span.what == MESSAGES:
            found += self._collected.add(_runs(file, picks) if file.minute else self._read_runs(file, picks))
        else:
            found += self._read_rows(file, picks)
        yield from chain(self._gone(first - 1), found)
        self._next = last + 1

    def _gone(self, last: int) -> Iterator[MessageChange]:
        """No file has the numbers from the next one to `last`."""
        if last >= self._next:
            yield self._span.gone(self._next, last)
            self._next = last + 1

    # -- reading --------------------------------------------------------------------------------------------------
    def _read_runs(self, file: FeedFile, picks: Ranges) -> list[Run]:
        found: list[Run] = []
        for rows, sequences in read_stored(self._opened(), file.hint, picks, ["JMSTimestamp", "JMSExpiration"]):
            found += runs_of(rows, sequences[0].as_py())
        return found

    def _read_rows(self, file: FeedFile, picks: Ranges) -> list[MessageChange]:
        found = []
        for rows, numbers in read_stored(self._opened(), file.hint, picks, _COLUMNS):
            columns = {name: rows.column(name) for name in _COLUMNS}
            for number, *values in zip(
                numbers.to_pylist(), *(column.to_pylist() for column in columns.values()), strict=True
            ):
                found.append(ended(self._span, number, dict(zip(_COLUMNS, values, strict=True))))
        return found

    def _opened(self) -> Storage:
        """The folder of the table. A rename leaves it where it is."""
        if self._storage is None:
            self._storage = open_storage(self._piece.folder)
        return self._storage

    def _looked_up(self) -> tuple[FeedFile, ...]:
        """The files that have the rest now; none when the table was dropped."""
        span = self._span
        table = log_of_table(Domain(self._root), span.table, span.destination, rows=span.what != MESSAGES)
        if table is None:
            return ()
        self._storage = table.storage
        files = table.verify().member_files(self._span.member).overlapping(self._next, self._span.last)
        return feed_files(files, self._span)


def _runs(file: FeedFile, picks: Ranges) -> list[Run]:
    """Of a file whose statistics tell everything."""
    assert file.minute is not None
    whole = picks.count == file.hint.rows
    return [Run(picks.first, picks.last, *file.minute, file.bytes if whole else None)]


def runs_of(rows: pa.RecordBatch, first: int) -> Iterator[Run]:
    """Pure. Neighbours of one minute and due minute, of rows with the sequences from `first` on."""
    sent = pc.fill_null(rows.column("JMSTimestamp"), 0)
    over = pc.max_element_wise(pc.fill_null(rows.column("JMSExpiration"), 0), 0)
    minutes = pc.multiply(pc.divide(sent, MINUTE_MS), MINUTE_MS)
    dues = pc.if_else(
        pc.equal(over, 0), pa.scalar(None, pa.int64()), pc.multiply(pc.add(pc.divide(over, MINUTE_MS), 1), MINUTE_MS)
    )
    known = pc.fill_null(dues, -1)
    changes = pc.or_(pc.not_equal(minutes[1:], minutes[:-1]), pc.not_equal(known[1:], known[:-1]))
    starts = pa.concat_arrays([pa.array([0], pa.int64()), pc.add(pc.cast(pc.indices_nonzero(changes), pa.int64()), 1)])
    begins = pc.add(starts, first).to_pylist()
    ends = [*(begin - 1 for begin in begins[1:]), first + rows.num_rows - 1]
    return map(Run, begins, ends, minutes.take(starts).to_pylist(), dues.take(starts).to_pylist(), repeat(None))
