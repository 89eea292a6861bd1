"""What a batch of the change feed reads, divided into parts for tasks.

A part names files with what their statistics tell: where all messages of a file were sent in one minute and are over in one minute, no
task opens it. So a part of files that senders wrote costs a few microseconds a file.

Features: M12 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from spark_jms.core.changes.change import MESSAGES, FeedPosition, FeedSpan, MessageChange, due_minute, minute_of
from spark_jms.log.changes.positions import FeedTables
from spark_jms.log.tables.files import DataFile, FileHint
from spark_jms.log.upkeep.compaction import is_merged

SMALL_WEIGHT = 2_000  # a batch of at most so much is one part
_PART_WEIGHT, _MOST_PARTS = 20_000, 16
_OPEN_WEIGHT, _ROW_WEIGHT = 50, 10  # of a file that is read, and of a row of acknowledgements, in messages


class OneMinute(NamedTuple):
    """All messages of a file were sent in this minute, and are over in the minute `due_ms` (None: never)."""

    minute_ms: int
    due_ms: int | None


@dataclass(frozen=True)
class FeedFile:
    """`minute` None: a task must read it. `bytes` None: they are not what its sender wrote."""

    hint: FileHint
    minute: OneMinute | None = None
    bytes: int | None = None

    @property
    def weight(self) -> int:
        return 1 if self.minute is not None else _OPEN_WEIGHT + self.hint.rows


@dataclass(frozen=True)
class FeedPiece:
    """A span, the folder of its table and the files to find it in. Without files its numbers are gone. `away`: its table cannot be
    read."""

    span: FeedSpan
    folder: str = ""
    files: tuple[FeedFile, ...] = ()
    away: bool = False

    @property
    def weight(self) -> int:
        each = 1 if self.span.what == MESSAGES else _ROW_WEIGHT
        return each * sum(file.weight for file in self.files) + 1


@dataclass(frozen=True)
class FeedPart:
    """What one task reads. `rows` are known already. `isolates`: what cannot be read has a row `unread`, and fails nothing."""

    root: str
    pieces: tuple[FeedPiece, ...] = ()
    rows: tuple[MessageChange, ...] = ()
    isolates: bool = False


def plan(root: str, tables: FeedTables, start: FeedPosition, end: FeedPosition) -> list[FeedPart]:
    """The parts of a batch, which together have each number between `start` and `end` once. `tables` were looked at for `end`, or
    later. Raises StaleDomainError."""
    pieces = [_piece(tables, span) for span in start.spans(end)]
    known = (*start.dropped(end), *start.done(end))
    parts = [FeedPart(root, tuple(some), isolates=tables.isolates) for some in divided(pieces)]
    return [FeedPart(root, rows=known), *parts] if known else parts


def divided(pieces: Sequence[FeedPiece]) -> list[list[FeedPiece]]:
    """Pure. Parts of about the same weight."""
    weight = sum(piece.weight for piece in pieces)
    if not pieces:
        return []
    count = 1 if weight <= SMALL_WEIGHT else min(-(-weight // _PART_WEIGHT), _MOST_PARTS)
    most = -(-weight // count)
    parts: list[list[FeedPiece]] = [[]]
    filled = 0
    for piece in chain.from_iterable(_cut(whole, most) for whole in pieces):
        if parts[-1] and filled + piece.weight > most:
            parts.append([])
            filled = 0
        parts[-1].append(piece)
        filled += piece.weight
    return parts


def _cut(piece: FeedPiece, most: int) -> Iterator[FeedPiece]:
    """At the ends of files."""
    each = 1 if piece.span.what == MESSAGES else _ROW_WEIGHT
    first, taken, weight = piece.span.first, list[FeedFile](), 0
    for file in piece.files:
        if taken and weight + each * file.weight > most:
            last = taken[-1].hint.last
            yield replace(piece, span=piece.span._replace(first=first, last=last), files=tuple(taken))
            first, taken, weight = last + 1, [], 0
        taken.append(file)
        weight += each * file.weight
    yield replace(piece, span=piece.span._replace(first=first), files=tuple(taken))


def _piece(tables: FeedTables, span: FeedSpan) -> FeedPiece:
    """While a table cannot be read, none that is missing counts as dropped: it may be that one."""
    table = tables.found.get(span.table)
    if table is None:
        return FeedPiece(span, away=bool(tables.problems))
    of_messages = span.what == MESSAGES
    snapshot, folder = (table.messages, table.messages_uri) if of_messages else (table.rows, table.rows_uri)
    files = snapshot.member_files(span.member).overlapping(span.first, span.last)
    return FeedPiece(span, folder, feed_files(files, span))


def feed_files(files: Iterable[DataFile], span: FeedSpan) -> tuple[FeedFile, ...]:
    if span.what != MESSAGES:
        return tuple(FeedFile(file.hint) for file in files)
    return tuple(FeedFile(file.hint, one_minute(file), None if is_merged(file.path) else file.bytes) for file in files)


def one_minute(file: DataFile) -> OneMinute | None:
    """Pure. As the statistics of a file of messages tell."""
    low, high = file.statistics.get("minValues", {}), file.statistics.get("maxValues", {})
    sent, over = ((low.get(name), high.get(name)) for name in ("JMSTimestamp", "JMSExpiration"))
    if any(ms is None for ms in (*sent, *over)):
        return None
    minutes, dues = {minute_of(int(str(ms))) for ms in sent}, {due_minute(int(str(ms))) for ms in over}
    return OneMinute(minutes.pop(), dues.pop()) if len(minutes) == len(dues) == 1 else None
