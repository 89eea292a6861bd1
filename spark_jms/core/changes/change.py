"""The change feed: its rows, and where its readers stand. Pure.

A row tells what happened to a range of messages of one member. Two tables of a destination have the facts, and each numbers its own
1, 2, 3 … by member, without gaps, for ever:

    messages            `sent`: the sequences of the member
    acknowledgements    how messages ended: core/records/endings.py has the kinds

So a position is two numbers for each member, under the *table's id*: it survives log clean-up, Delta checkpoints, compaction and
rename, and a destination that is created again has another id. What a reader came too late for is named by a row of the kind `gone`:

    detail      what is gone                                                     messages
    ------      ------------                                                     --------
    sent        messages that were finished and purged before they were read     how many
    ended       rows that were older than `acknowledgementRetention`             unknown; first and last are numbers of rows
    dropped     what happened in a table behind `first`, until it was dropped    unknown

A reader that keeps messages in its state (`floors`) also gets rows of the kind `done`: all messages of the member up to `last` are
finished and purged, so it can forget them. A reader that continues without what cannot be read gets a row of the kind `unread` in its
place, with the `detail` and the numbers as of `gone`: they are there, and can be read later, by their numbers.

A position names the domain's life, which changes with a restore from a backup: numbers of an older copy are given twice.

**A batch read twice has the same rows.** Everything in a row is from the tables, or from the end of its batch: which minute it was,
`read`, is in the position, and never falls, so a watermark on it drops nothing. Sent messages are rows by minute of sending and
minute of expiration, whatever files they are in; only `bytes` is unknown once their files were merged.

**Ends come after beginnings.** The acknowledgements are looked at before the messages, and a limited batch takes rows only once all
messages are read. So a message has ended in the batch in which it was sent, or in a later one.

Features: M12 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.endings import KINDS, kind_of, messages_of, split_claim
from spark_jms.errors import FormatVersionError, OffsetError, StaleDomainError

SENT, GONE, DONE, UNREAD = "sent", "gone", "done", "unread"
ALL_KINDS = (SENT, *dict.fromkeys(["finished", *KINDS.values()]), GONE)
MESSAGES, ENDINGS, DROPPED_TABLE = "sent", "ended", "dropped"  # what a span is of; the detail of a row of the kind gone
MINUTE_MS = 60_000
FORMAT_VERSION = 1
ALL_DESTINATIONS = "*"
_MAX_RANGES, _MAX_KEYS = 10_000, 200  # of one row, and of rows that are being collected


# -- rows --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class MessageChange:
    """One row. docs/CHANGES.md describes the columns. Times are in ms since 1970."""

    kind: str
    destination: str
    table: str
    member: int
    position: int  # of the newest message, or of the row of the acknowledgement table
    read_ms: int
    first: int | None = None
    last: int | None = None
    ranges: str | None = None
    messages: int | None = None
    bytes: int | None = None
    at_ms: int | None = None
    due_ms: int | None = None
    subscription: str | None = None
    consumer: str | None = None
    claim: str | None = None
    detail: str | None = None
    quota: str | None = None

    @property
    def minute_ms(self) -> int | None:
        return None if self.at_ms is None else minute_of(self.at_ms)


def minute_of(ms: int) -> int:
    return ms - ms % MINUTE_MS


def due_minute(expiration_ms: int) -> int | None:
    """The start of the minute in which a message is certainly over; None: never."""
    return minute_of(expiration_ms) + MINUTE_MS if expiration_ms > 0 else None


class FeedSpan(NamedTuple):
    """Numbers first..last of one member of a table: messages, or rows of its acknowledgement table (`what`)."""

    what: str
    table: str
    destination: str
    member: int
    first: int
    last: int
    read_ms: int
    quota: str | None = None

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    def gone(self, first: int, last: int) -> MessageChange:
        """Of numbers that the tables have no more."""
        known = self.what == MESSAGES
        found = MessageChange(
            GONE, self.destination, self.table, self.member, last, self.read_ms, first, quota=self.quota
        )
        return replace(found, last=last, messages=last - first + 1 if known else None, detail=self.what)

    def unread(self, first: int, last: int) -> MessageChange:
        """Of numbers that cannot be read now. Messages among them may be over in any minute, also in the one of this batch."""
        due_ms = minute_of(self.read_ms) if self.what == MESSAGES else None
        ranges = ranges_text(Ranges.of((first, last)))
        return replace(self.gone(first, last), kind=UNREAD, ranges=ranges, due_ms=due_ms)


def ended(span: FeedSpan, number: int, row: Mapping[str, Any]) -> MessageChange:
    """A row of the acknowledgement table."""
    consumer = str(row["consumer"])
    claim, detail = split_claim(consumer, str(row["claim"]))
    picks = Ranges.from_json(json.loads(row["ranges"]))
    return MessageChange(
        kind_of(consumer),
        span.destination,
        span.table,
        span.member,
        number,
        span.read_ms,
        row["first"],
        row["last"],
        ranges_text(picks),
        messages_of(consumer, str(row["claim"]), row["messages"]),
        at_ms=row["acknowledged_ms"],
        subscription=row["subscription"],
        consumer=consumer,
        claim=claim or None,
        detail=detail or None,
        quota=span.quota,
    )


def ranges_text(picks: Ranges) -> str:
    """JSON pairs, for `from_json(ranges, 'array<array<bigint>>')`."""
    return json.dumps([[lo, hi] for lo, hi in picks], separators=(",", ":"))


class Run(NamedTuple):
    """Neighbouring messages sent in one minute that are over in one minute. `bytes` None: unknown."""

    first: int
    last: int
    minute_ms: int
    due_ms: int | None
    bytes: int | None


class SentRows:
    """Collects runs of one span, in order, into rows: one for each minute and due minute, as long as it holds them. However the
    messages are divided into files, the rows are the same, but for `bytes`."""

    def __init__(self, span: FeedSpan) -> None:
        self._span, self._open = span, _NO_RUN
        self._rows: dict[tuple[int, int | None], list[Run]] = {}
        self._ranges = 0

    def add(self, runs: Iterable[Run]) -> list[MessageChange]:
        """Gives rows that are complete."""
        done = list[MessageChange]()
        for run in runs:
            known = self._open
            if known[1] + 1 == run[0] and known[2:4] == run[2:4]:
                self._open = Run(known.first, run.last, run.minute_ms, run.due_ms, _sum(known.bytes, run.bytes))
                continue
            self._close()
            self._open = run
            if self._ranges >= _MAX_RANGES or len(self._rows) >= _MAX_KEYS:
                done += self._flush()
        return done

    def end(self) -> Iterator[MessageChange]:
        self._close()
        yield from self._flush()

    def _close(self) -> None:
        if self._open is not _NO_RUN:
            self._rows.setdefault((self._open.minute_ms, self._open.due_ms), []).append(self._open)
            self._ranges, self._open = self._ranges + 1, _NO_RUN

    def _flush(self) -> Iterator[MessageChange]:
        for (minute_ms, due_ms), runs in self._rows.items():
            picks = Ranges.of(*((run.first, run.last) for run in runs))
            sizes = [run.bytes for run in runs]
            span = self._span
            found = MessageChange(
                SENT, span.destination, span.table, span.member, picks.last, span.read_ms, quota=span.quota
            )
            yield replace(
                found,
                first=picks.first,
                last=picks.last,
                ranges=ranges_text(picks),
                messages=picks.count,
                bytes=None if None in sizes else sum(filter(None, sizes)),
                at_ms=minute_ms,
                due_ms=due_ms,
            )
        self._rows, self._ranges = {}, 0


_NO_RUN = Run(0, -2, -1, None, None)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


# -- positions ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TablePosition:
    """How far one destination is read. `sent` and `rows` by member; `quotas` of the members that have one. `destination` "": its
    table could not be read, and has no row `gone` when it turns out to be dropped."""

    destination: str
    sent: Mapping[int, int] = field(default_factory=dict)
    rows: Mapping[int, int] = field(default_factory=dict)
    quotas: Mapping[int, str] = field(default_factory=dict)
    floors: Mapping[int, int] = field(
        default_factory=dict
    )  # all up to these are purged; {} unless the reader wants to know

    def is_ahead_of(self, table: TablePosition) -> bool:
        """The table lacks what was read."""
        return any(
            now.get(member, 0) < last
            for known, now in ((self.sent, table.sent), (self.rows, table.rows))
            for member, last in known.items()
        )


@dataclass(frozen=True)
class FeedPosition:
    """Where a reader stands: `tables` by id. `at_ms`: when it was looked at, never before its predecessor. `life`: of the domain; ""
    of a reader that has read nothing. `scope`: the destination that it reads, or ALL_DESTINATIONS."""

    life: str = ""
    at_ms: int = 0
    tables: Mapping[str, TablePosition] = field(default_factory=dict)
    scope: str = ""

    def to_json(self) -> dict[str, Any]:
        tables = {
            table: {"n": one.destination, "s": _texts(one.sent), "a": _texts(one.rows)}
            | ({"q": _texts(one.quotas)} if one.quotas else {})
            | ({"f": _texts(one.floors)} if one.floors else {})
            for table, one in sorted(self.tables.items())
        }
        return {"v": FORMAT_VERSION, "life": self.life, "at": self.at_ms, "d": self.scope, "t": tables}

    @staticmethod
    def from_json(value: object) -> FeedPosition:
        """Raises OffsetError, or FormatVersionError."""
        try:
            if not isinstance(value, dict):
                raise TypeError(f"it is {type(value).__name__}")
            if int(value["v"]) > FORMAT_VERSION:
                raise FormatVersionError(
                    f"the position of the change feed has format version {value['v']}, this spark-jms reads up to "
                    f"{FORMAT_VERSION}: install a later spark-jms"
                )
            tables = {
                str(table): TablePosition(
                    str(one["n"]),
                    _numbers(one["s"]),
                    _numbers(one["a"]),
                    _names(one.get("q", {})),
                    _numbers(one.get("f", {})),
                )
                for table, one in value["t"].items()
            }
            return FeedPosition(str(value["life"]), int(value["at"]), tables, str(value["d"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OffsetError(
                f"a position of the change feed cannot be read ({error!r}): take one that `changes` has given, or begin with "
                "earliest or latest"
            ) from error

    def to_text(self) -> str:
        return json.dumps(self.to_json(), separators=(",", ":"))

    @staticmethod
    def from_text(text: str) -> FeedPosition:
        """Raises OffsetError, or FormatVersionError."""
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        return FeedPosition.from_json(value)

    def spans(self, end: FeedPosition) -> list[FeedSpan]:
        """What `end` has read and this has not, messages first. Raises StaleDomainError."""
        self.check_before(end)
        found = []
        for table, new in end.tables.items():
            known = self.tables.get(table, TablePosition(new.destination))
            for what, before, after in ((MESSAGES, known.sent, new.sent), (ENDINGS, known.rows, new.rows)):
                for member, last in sorted(after.items()):
                    if last > (first := before.get(member, 0)):
                        quota = new.quotas.get(member)
                        found.append(FeedSpan(what, table, new.destination, member, first + 1, last, end.at_ms, quota))
        return sorted(found, key=lambda span: span.what != MESSAGES)

    def dropped(self, end: FeedPosition) -> list[MessageChange]:
        """A row for each member of the tables that `end` has no more."""
        return [
            MessageChange(GONE, one.destination, table, member, last, end.at_ms, last + 1, detail=DROPPED_TABLE)
            for table, one in sorted(self.tables.items())
            if table not in end.tables and one.destination
            for member, last in sorted(one.sent.items())
        ]

    def done(self, end: FeedPosition) -> list[MessageChange]:
        """A row for each member whose floor has risen."""
        found = []
        for table, new in sorted(end.tables.items()):
            known = self.tables.get(table, TablePosition(new.destination)).floors
            for member, floor in sorted(new.floors.items()):
                if floor > (before := known.get(member, 0)):
                    done = MessageChange(DONE, new.destination, table, member, floor, end.at_ms, before + 1, floor)
                    found.append(done)
        return found

    def check_before(self, end: FeedPosition) -> None:
        """Raises StaleDomainError when `end` is of another life of the domain, or lacks what this has read."""
        falls = self.life not in ("", end.life)
        for table, new in end.tables.items():
            known = self.tables.get(table)
            falls = falls or (known is not None and known.is_ahead_of(new))
        if falls:
            raise StaleDomainError(
                "the change feed has read what the domain does not have: an older copy of the domain was restored, or it is "
                "another domain, so numbers may be given twice. Begin with a fresh checkpointLocation, or with earliest or latest"
            )

    def towards(self, newest: FeedPosition, most: int | None) -> FeedPosition:
        """The end of a batch of at most so many messages and rows: `newest`, or on the way there. Members take turns, and rows come
        when messages leave room: those of all tables have come then."""
        spans = self.spans(newest)
        if most is None or sum(span.size for span in spans) <= most:
            return newest
        messages = [span for span in spans if span.what == MESSAGES]
        taken = _shares([span.size for span in messages], most)
        left = most - sum(taken)
        sent = {(span.table, span.member): span.first - 1 + n for span, n in zip(messages, taken, strict=True)}
        endings = [span for span in spans if span.what == ENDINGS]
        counts = _shares([span.size for span in endings], left)
        rows = {(span.table, span.member): span.first - 1 + n for span, n in zip(endings, counts, strict=True)}
        tables = {}
        for table, new in newest.tables.items():
            known = self.tables.get(table, TablePosition(new.destination))
            reached = {m: sent.get((table, m), known.sent.get(m, 0)) for m in new.sent}
            told = {m: rows.get((table, m), known.rows.get(m, 0)) for m in new.rows}
            tables[table] = replace(new, sent=reached, rows=told)
        return replace(newest, tables=tables)


NOTHING_READ = FeedPosition()


def _shares(counts: list[int], most: int) -> list[int]:
    """So many of each that together they are `most`, if there are as many: the smaller ones whole."""
    shares, left = [0] * len(counts), max(most, 0)
    order = sorted(range(len(counts)), key=counts.__getitem__)
    for turn, at in enumerate(order):
        part = -(-left // (len(order) - turn))
        shares[at] = min(counts[at], part)
        left -= shares[at]
    return shares


def _texts(values: Mapping[int, Any]) -> dict[str, Any]:
    return {str(member): value for member, value in sorted(values.items())}


def _numbers(value: Mapping[str, Any]) -> dict[int, int]:
    found = {int(member): int(number) for member, number in value.items()}
    if any(number < 0 for number in found.values()):
        raise ValueError("a number is negative")
    return found


def _names(value: Mapping[str, Any]) -> dict[int, str]:
    return {int(member): str(name) for member, name in value.items()}
