"""The outbox of a record set: acknowledgements that wait for the acknowledgement table (C5, C14).

The outbox is bounded in rows and in bytes. While the table cannot be written, the two oldest rows are folded into one:
the outbox keeps every message and loses only which claim it belonged to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from spark_jms.core.ranges import Ranges

MAX_OUTBOX = 1000  # rows
MAX_OUTBOX_BYTES = 4 * 2**20  # if a single row is larger, consumers claim nothing until the table has it
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


Outbox = tuple[Acknowledgement, ...]


def appended(outbox: Outbox, row: Acknowledgement) -> Outbox:
    """With one more row, folded from the front until it fits its bounds."""
    rows = [*outbox, row]
    size = sum(row.bytes for row in rows)
    while len(rows) > MAX_OUTBOX or (size > MAX_OUTBOX_BYTES and len(rows) > 1):
        first, second = rows[:2]
        folded = replace(second, picks=first.picks | second.picks, since=first.since or first.position)
        size += folded.bytes - first.bytes - second.bytes
        rows[:2] = [folded]
    return tuple(rows)


def is_full(outbox: Outbox) -> bool:
    """The table is so far behind that the record set could grow beyond what a store accepts."""
    return sum(row.bytes for row in outbox) > MAX_OUTBOX_BYTES
