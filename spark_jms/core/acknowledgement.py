"""The outbox of a record set: acknowledgements that wait for the acknowledgement table.

The outbox is bounded in rows and in bytes. While the table cannot be written, the two oldest rows are folded into one:
the outbox keeps every message and loses only which claim it belonged to.

Features: C5, C14 (docs/FEATURES.md)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

from spark_jms.core.ranges import Ranges

MAX_OUTBOX = 1000  # rows
MAX_OUTBOX_BYTES = 4 * 2**20  # if a single row is larger, consumers claim nothing until the table has it
PURGER, LIMITER = "jmsq purge", "redelivery limit"  # consumers in the rows of messages that they have discarded
_ROW_BYTES, _RANGE_BYTES = 200, 24  # upper bounds of a stored row and of each of its ranges


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


class Outbox(tuple[Acknowledgement, ...]):
    """Rows in the order of their positions, and the size of all. One more row costs the same behind 10 rows and behind 1,000,
    but for the copying of the references."""

    bytes: int

    def __new__(cls, rows: Iterable[Acknowledgement] = (), size: int | None = None) -> Outbox:
        made = super().__new__(cls, rows)
        made.bytes = sum(row.bytes for row in made) if size is None else size
        return made

    def appended(self, row: Acknowledgement) -> Outbox:
        """With one more row, folded from the front until it fits its bounds."""
        rows, size = self + (row,), self.bytes + row.bytes  # noqa: RUF005 - copies once less than (*self, row)
        first, at = rows[0], 0  # `first` is what rows[: at + 1] are folded into
        while len(rows) - at > MAX_OUTBOX or (size > MAX_OUTBOX_BYTES and at + 1 < len(rows)):
            at += 1
            folded = replace(rows[at], picks=first.picks | rows[at].picks, since=first.since or first.position)
            size += folded.bytes - first.bytes - rows[at].bytes
            first = folded
        return Outbox((first, *rows[at + 1 :]) if at else rows, size)

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
    written = [row for row in after if old.pop(row.position, None) != row]
    return OutboxChange([*removed, *old], written)
