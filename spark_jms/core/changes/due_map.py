"""When messages of one member fall due: a bounded map from minutes to messages. Pure.

Expiration keeps one for each member. Messages enter when they are sent, under the minute in which they are over; `fire` gives those
whose minute has come. The receiver looks at the record set, which decides: so the map may name too much, and must not name too
little or too late.

    fired in vain   a consumer has the message: its minute is over and it is not finished. It stays, and fires again after 1, 1, 2,
                    4, 8, 15, 15 … minutes, until `done` has passed it. Nothing needs to answer, and nothing is forgotten
    done(floor)     all messages up to `floor` are finished: forget them
    told(row)       a row of the change feed (change.py): sent messages; messages that cannot be read now, and may be over; done;
                    or the table was dropped. The operator of Spark and the loop without Spark call this one

**Bounds.** Of an hour's messages with a time to live of a month each has a minute of its own. So the map joins neighbouring minutes
beyond MAX_MINUTES, and closes small gaps between messages beyond MAX_RANGES. A joined entry fires from its first minute on in each
minute until its last: early, and in vain for most of it, but never late. Its stored form is at most MAX_BYTES.

Features: T6, M12 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from spark_jms.core.changes.change import DONE, DROPPED_TABLE, GONE, MINUTE_MS, SENT, UNREAD, MessageChange
from spark_jms.core.messages.ranges import EMPTY, Ranges, union
from spark_jms.errors import FormatVersionError, RecordSetError

MAX_MINUTES, MAX_RANGES, MAX_BYTES = 64, 1_000, 32 * 1024
RETRY_MINUTES = (1, 1, 2, 4, 8, 15)  # after the first time, the second …; then as the last one
_VERSION = 1


class Due(NamedTuple):
    """Messages that are over by the minute `until`, at the latest. `tries`: how often they fired since then."""

    until: int
    picks: Ranges
    tries: int = 0

    def joined(self, other: Due) -> Due:
        return Due(max(self.until, other.until), self.picks | other.picks, min(self.tries, other.tries))


class DueRow(NamedTuple):
    """Of a row of the change feed, what concerns the map of its member. `minute` and `ranges` of SENT and UNREAD alone."""

    kind: str
    last: int | None = None
    minute: int | None = None
    ranges: str | None = None


def due_row(change: MessageChange) -> DueRow | None:
    """None: it concerns none. The expiration query has the same condition in SQL."""
    if change.kind in (SENT, UNREAD) and change.due_ms is not None:
        return DueRow(change.kind, change.last, change.due_ms // MINUTE_MS, change.ranges)
    if change.kind == DONE or (change.kind == GONE and change.detail == DROPPED_TABLE):
        return DueRow(change.kind, change.last)
    return None


class Fired(NamedTuple):
    """Messages to look at. `minute`: the first in which one of them was over, or the one of this repetition."""

    minute: int
    picks: Ranges


@dataclass(frozen=True)
class DueMap:
    """Minutes are counted from 1970. `entries`: the minute of the next look -> what is looked at. All messages are above `floor`."""

    entries: Mapping[int, Due] = field(default_factory=dict)
    floor: int = 0

    @property
    def next_minute(self) -> int | None:
        """When to call `fire`."""
        return min(self.entries, default=None)

    @property
    def picks(self) -> Ranges:
        return union(due.picks for due in self.entries.values())

    def added(self, minute: int, picks: Ranges) -> DueMap:
        """These messages are over from this minute on. Those that are done are left out."""
        new = _above(picks, self.floor)
        if not new:
            return self
        due = Due(minute, new)
        known = self.entries.get(minute)
        entries = {**self.entries, minute: due if known is None else due.joined(known)}
        return replace(self, entries=entries).bounded()

    def told(self, row: DueRow) -> DueMap:
        """An empty map is not kept."""
        if row.kind == GONE:
            return DueMap()
        if row.kind == DONE:
            return self.done(int(row.last or 0))
        return self.added(int(row.minute or 0), Ranges.from_json(json.loads(row.ranges or "[]")))

    def done(self, floor: int) -> DueMap:
        """All messages up to `floor` are finished. A lower one than before changes nothing."""
        if floor <= self.floor:
            return self
        left = {minute: due._replace(picks=_above(due.picks, floor)) for minute, due in self.entries.items()}
        return DueMap({minute: due for minute, due in left.items() if due.picks}, floor)

    def fire(self, now: int) -> tuple[DueMap, list[Fired]]:
        """What is due in the minute `now` or was before, and the map after that."""
        fired = [Fired(minute, due.picks) for minute, due in sorted(self.entries.items()) if minute <= now]
        if not fired:
            return self, []
        entries = {minute: due for minute, due in self.entries.items() if minute > now}
        for minute in (each.minute for each in fired):
            due = self.entries[minute]
            again = now + 1
            if due.until <= now:
                again = now + RETRY_MINUTES[min(due.tries, len(RETRY_MINUTES) - 1)]
                due = due._replace(tries=due.tries + 1)
            known = entries.get(again)
            entries[again] = due if known is None else due.joined(known)
        return replace(self, entries=entries).bounded(), fired

    def bounded(self) -> DueMap:
        """Within MAX_MINUTES and MAX_RANGES."""
        entries = dict(self.entries)
        while len(entries) > MAX_MINUTES:
            minutes = sorted(entries)
            first, second = min(pairwise(minutes), key=lambda pair: (pair[1] - pair[0], pair[0]))
            entries[first] = entries[first].joined(entries.pop(second))
        if sum(len(due.picks) for due in entries.values()) > MAX_RANGES:
            entries = _coarser(entries)
        return self if entries == self.entries else replace(self, entries=entries)

    # -- stored form ----------------------------------------------------------------------------------------------
    def to_bytes(self) -> bytes:
        """At most MAX_BYTES, with a version and a checksum."""
        body = bytearray()
        _write(body, [self.floor, len(self.entries)])
        before = 0
        for minute, due in sorted(self.entries.items()):
            later, earlier = max(due.until - minute, 0), max(minute - due.until, 0)
            _write(body, [minute - before, later, earlier, due.tries, len(due.picks)])
            at = self.floor
            for low, high in due.picks:
                _write(body, [low - at, high - low])
                at = high
            before = minute
        return bytes([_VERSION]) + zlib.crc32(body).to_bytes(4, "big") + bytes(body)

    @staticmethod
    def from_bytes(data: bytes) -> DueMap:
        """Raises RecordSetError for damaged bytes, FormatVersionError for those of a later release."""
        if data and data[0] > _VERSION:
            raise FormatVersionError(
                f"a map of due messages has format version {data[0]}, this spark-jms reads up to {_VERSION}: install a later one"
            )
        if len(data) < 5 or zlib.crc32(data[5:]).to_bytes(4, "big") != data[1:5]:
            raise RecordSetError(
                "a map of due messages is damaged: start the query with a fresh checkpointLocation, which reads all of them again"
            )
        numbers = _read(data[5:])
        floor, count = next(numbers), next(numbers)
        entries, minute = dict[int, Due](), 0
        for _ in range(count):
            minute += next(numbers)
            later, earlier, tries, ranges = (next(numbers) for _ in range(4))
            pairs, at = list[tuple[int, int]](), floor
            for _ in range(ranges):
                low = at + next(numbers)
                at = low + next(numbers)
                pairs.append((low, at))
            entries[minute] = Due(minute + later - earlier, Ranges.of(*pairs), tries)
        return DueMap(entries, floor)


def _above(picks: Ranges, floor: int) -> Ranges:
    return picks.between(floor + 1, picks.last) if picks and picks.last > floor else EMPTY


def _coarser(entries: Mapping[int, Due]) -> dict[int, Due]:
    """With the smallest gaps closed, until half of the ranges that are allowed are left: so it happens rarely."""
    gaps = sorted(gap for due in entries.values() for gap in _gaps(due.picks))
    surplus = sum(len(due.picks) for due in entries.values()) - MAX_RANGES // 2
    widest = gaps[min(surplus, len(gaps)) - 1]
    return {minute: due._replace(picks=_closed(due.picks, widest)) for minute, due in entries.items()}


def _gaps(picks: Ranges) -> Iterator[int]:
    pairs = list(picks)
    return (low - high for (_, high), (low, _) in pairwise(pairs))


def _closed(picks: Ranges, widest: int) -> Ranges:
    """With all gaps up to this width filled."""
    pairs: list[tuple[int, int]] = []
    for low, high in picks:
        if pairs and low - pairs[-1][1] <= widest:
            pairs[-1] = (pairs[-1][0], high)
        else:
            pairs.append((low, high))
    return Ranges.of(*pairs)


def _write(body: bytearray, numbers: Iterable[int]) -> None:
    """Seven bits a byte, the lowest first."""
    for number in numbers:
        while number > 0x7F:
            body.append(number & 0x7F | 0x80)
            number >>= 7
        body.append(number)


def _read(body: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in body:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield number
            number = shift = 0
