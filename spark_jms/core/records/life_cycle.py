"""The life-cycle log, and the outbox: what a record set tells of its messages until it is rows of tables.

A destination with `messageLoggingEnabled` logs events. Those of a subscription come from the transitions of its record set
(redelivery.py), and `LOGGED` says which:

    event         transition                                                    consumer
    -----         ----------                                                    --------
    sent          none: the numbers of the destination's own table tell it      –
    claimed       CLAIM by an attached consumer                                 that consumer
    acknowledged  ACKNOWLEDGE                                                   that consumer
    released      RETURN, REDELIVER, REFUSE: available again                    the one that had them
    expired       EXPIRE; a redirected message is transferred                   –
    refused       SKIP: by the selector of a topic's subscription               –
    skipped       SKIP: the files are lost, or the server of the subscription was down   –
    transferred   ARRIVE: another destination or member has them                the one that moved them
    removed       none: discarded by an administrator or a limit                the one that discarded them

The event joins the record set in the write that makes the transition, so it is there exactly when the transition is. Its
position is one of 1, 2, 3 … of the record set; the table keeps the position up to which it has them, so a repeated write
adds nothing. While the table cannot be written the oldest events are dropped beyond a bound: then positions are missing.

`LifeCycle.is_on` and `now_ms` are not stored: the process that takes a record set sets them.

Features: C5, C14, T6 (docs/FEATURES.md)
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple

from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.endings import HullClaim, counts_apart, fold_key, hull
from spark_jms.core.records.redelivery import Claim, MessageEvent
from spark_jms.settings.fields import LifeEvent

MAX_EVENTS = 10_000  # of one record set, that wait for the table: about what a busy client makes in two seconds
MAX_EVENT_BYTES = 2 * 2**20  # but the newest one stays
_ROW_BYTES, _RANGE_BYTES = 200, 24  # upper bounds of a stored row and of each of its ranges
MAX_OUTBOX = 1000  # rows
MAX_OUTBOX_BYTES = 4 * 2**20  # if a single row is larger, consumers claim nothing until the table has it
LOGGED: Mapping[MessageEvent, LifeEvent] = {
    MessageEvent.CLAIM: LifeEvent.CLAIMED,
    MessageEvent.ACKNOWLEDGE: LifeEvent.ACKNOWLEDGED,
    MessageEvent.RETURN: LifeEvent.RELEASED,
    MessageEvent.REDELIVER: LifeEvent.RELEASED,
    MessageEvent.REFUSE: LifeEvent.RELEASED,
    MessageEvent.ARRIVE: LifeEvent.TRANSFERRED,
}


@dataclass(frozen=True)
class LoggedEvent:
    """One row of the table. `position` 0: it has none yet."""

    event: LifeEvent
    picks: Ranges
    at_ms: int
    consumer: str = ""
    claim: str = ""
    detail: str = ""
    position: int = 0

    @property
    def bytes(self) -> int:
        return _ROW_BYTES + len(self.detail) + _RANGE_BYTES * len(self.picks)


class WaitingEvents(tuple[LoggedEvent, ...]):
    """In the order of their positions, and the size of all. One more costs the same behind 10 and behind 1,000, but for the
    copying of the references."""

    bytes: int

    def __new__(cls, rows: Iterable[LoggedEvent] = (), size: int | None = None) -> WaitingEvents:
        made = super().__new__(cls, rows)
        made.bytes = sum(row.bytes for row in made) if size is None else size
        return made

    def appended(self, row: LoggedEvent) -> WaitingEvents:
        """With one more event, and without the oldest ones that do not fit the bounds."""
        rows, size, first = self + (row,), self.bytes + row.bytes, 0  # noqa: RUF005 - copies once less than (*self, row)
        while len(rows) - first > MAX_EVENTS or (size > MAX_EVENT_BYTES and first + 1 < len(rows)):
            size -= rows[first].bytes
            first += 1
        return WaitingEvents(rows[first:] if first else rows, size)

    def behind(self, position: int) -> tuple[LoggedEvent, ...]:
        """Those of later positions."""
        return self[bisect_right(self, position, key=_POSITION) :]

    def up_to(self, position: int) -> tuple[LoggedEvent, ...]:
        return self[: bisect_right(self, position, key=_POSITION)]


_POSITION = attrgetter("position")
NONE_WAIT = WaitingEvents()


@dataclass(frozen=True)
class LifeCycle:
    """Of one record set. `waiting` are the events that the table may lack."""

    position: int = 0  # of the newest event ever
    waiting: WaitingEvents = NONE_WAIT
    is_on: bool = field(default=False, compare=False)
    now_ms: int = field(default=0, compare=False)

    def noted(self, event: LoggedEvent) -> LifeCycle:
        """With one more event, while the log is on. `at_ms` 0 becomes `now_ms`."""
        if not self.is_on or not event.picks:
            return self
        position = self.position + 1
        row = replace(event, at_ms=event.at_ms or self.now_ms, position=position)
        return replace(self, position=position, waiting=self.waiting.appended(row))

    def moved(self, event: MessageEvent, claim: Claim, picks: Ranges, at_ms: int) -> LifeCycle:
        """A transition of a claim's messages."""
        logged = LOGGED.get(event)
        if logged is None or not self.is_on:
            return self
        detail = "may have been delivered" if event is MessageEvent.REDELIVER else ""
        return self.noted(LoggedEvent(logged, picks, at_ms, claim.consumer, claim.id, detail))

    def behind(self, position: int) -> LifeCycle:
        """The table has all events up to `position`."""
        rest = self.waiting.behind(position)
        return self if len(rest) == len(self.waiting) else replace(self, waiting=WaitingEvents(rest))


OFF = LifeCycle()


# -- the outbox: acknowledgements that wait for the acknowledgement table ----------------------------------------------
@dataclass(frozen=True)
class Acknowledgement:
    """One row of the acknowledgement table, waiting in the outbox."""

    position: int
    consumer: str
    claim: str
    picks: Ranges
    epoch: int
    acknowledged_ms: int
    since: int = 0  # of a folded row: the position of the first row in it; 0 = not folded

    @property
    def bytes(self) -> int:
        return _ROW_BYTES + _RANGE_BYTES * len(self.picks)

    @property
    def key(self) -> str:
        """Rows of one key may be folded."""
        return fold_key(self.consumer, self.claim)

    @property
    def messages(self) -> int:
        """`picks` of a row that counts apart may be a hull (endings.py)."""
        return HullClaim.parse(self.claim).messages if counts_apart(self.consumer) else self.picks.count

    @property
    def reason(self) -> str:
        """Of a row that counts apart."""
        return HullClaim.parse(self.claim).reason

    def without(self, messages: int) -> Acknowledgement:
        """A row that counts apart, without so many of its messages."""
        known = HullClaim.parse(self.claim)
        return replace(self, claim=str(known._replace(messages=known.messages - messages)))

    def with_earlier(self, row: Acknowledgement) -> Acknowledgement:
        """One row in place of both, which have the same key."""
        both, since = row.picks | self.picks, row.since or row.position
        if not counts_apart(self.consumer):
            return replace(self, picks=both, since=since)
        known = HullClaim.parse(self.claim)
        claim = str(known._replace(messages=row.messages + known.messages))
        return replace(self, picks=hull(both), since=since, claim=claim)


class Outbox(tuple[Acknowledgement, ...]):
    """Rows in the order of their positions, and the size of all. One more row costs the same behind 10 rows and behind 1,000,
    but for the copying of the references.

    The outbox is bounded in rows and in bytes. While the table cannot be written, the two oldest rows of one key (endings.py) are
    folded into one: the outbox keeps every message and how it ended, and loses only which claim it belonged to.
    """

    bytes: int

    def __new__(cls, rows: Iterable[Acknowledgement] = (), size: int | None = None) -> Outbox:
        made = super().__new__(cls, rows)
        made.bytes = sum(row.bytes for row in made) if size is None else size
        return made

    def appended(self, row: Acknowledgement) -> Outbox:
        """With one more row, folded from the front until it fits its bounds."""
        rows, size = self + (row,), self.bytes + row.bytes  # noqa: RUF005 - copies once less than (*self, row)
        front: dict[str, Acknowledgement] = {}  # key -> what the rows before `at` are folded into
        at = 0
        while at < len(rows) and (len(front) + len(rows) - at > MAX_OUTBOX or size > MAX_OUTBOX_BYTES):
            later, at = rows[at], at + 1
            if (first := front.pop(later.key, None)) is not None:
                folded = later.with_earlier(first)
                size += folded.bytes - first.bytes - later.bytes
                later = folded
            front[later.key] = later  # behind the others: its position is the largest
        return Outbox((*front.values(), *rows[at:]) if at else rows, size)

    def behind(self, position: int) -> Outbox:
        """The rows of later positions."""
        return Outbox(row for row in self if row.position > position)

    @property
    def is_full(self) -> bool:
        """The table is so far behind that the record set could grow beyond what a store accepts."""
        return self.bytes > MAX_OUTBOX_BYTES


NOTHING_WAITS = Outbox()


class OutboxChange(NamedTuple):
    removed: list[int]  # positions
    written: list[Acknowledgement]


def outbox_change(before: Outbox, after: Outbox) -> OutboxChange:
    """What to store when `before` becomes `after`. Usually rows left at the front and came at the end; then the rows in
    between, of which all but a folded first one are the same, are not looked at one by one."""
    first = after[0].position if after else before[-1].position + 1 if before else 0
    start = bisect_left(before, first, key=attrgetter("position"))
    removed, kept = [row.position for row in before[:start]], before[start:]
    same = after[: len(kept)]
    if same == kept:
        return OutboxChange(removed, [*after[len(kept) :]])
    if same and same[0].position == kept[0].position and same[1:] == kept[1:]:
        return OutboxChange(removed, [same[0], *after[len(kept) :]])
    old = {row.position: row for row in kept}
    written = [row for row in after if (known := old.pop(row.position, None)) is not row and known != row]
    return OutboxChange([*removed, *old], written)


# -- how far the tables have a record set ------------------------------------------------------------------------------
def sent_id(table_id: str, member: int) -> str:
    """The txn app id that keeps up to which message the sent ones of a member are in the table."""
    return f"sent/{table_id}/{member}"


def events_id(table_id: str, subscription: str, member: int) -> str:
    """The txn app id that keeps up to which event of a record set is in the table."""
    return f"life/{table_id}/{subscription}/{member}"
