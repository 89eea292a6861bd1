"""Which messages of a transfer its target refuses for good, and what counts for its maxMessageSize. Pure.

What was sent counts: not what spark-jms has added since, and what compression has saved does count. So a message that a destination
has taken fits into every other one with the same limit.

Of a unit of work all messages are refused with the one that breaks a rule: neither the part that moved nor the part that stayed would
ever be complete.

Features: C2, C8 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.body_compression import saved_bytes
from spark_jms.core.destination import Destination
from spark_jms.core.error_message import added_bytes
from spark_jms.core.message import check_message_sizes, message_sizes
from spark_jms.core.ranges import EMPTY, Ranges, union
from spark_jms.core.refusal import MESSAGE_SIZE, BrokenRule
from spark_jms.core.unit_of_work import unit_names

SEQUENCE = "sequence"


@dataclass
class Sieve:
    """Finds the rows of one transfer that its target refuses for good. `whole_units`: units of work stay together."""

    whole_units: bool = False
    refused: dict[BrokenRule, Ranges] = field(default_factory=dict)
    _units: list[pa.Table] = field(default_factory=list)

    @property
    def messages(self) -> Ranges:
        return union(self.refused.values())

    def accepted(self, rows: pa.RecordBatch, declared: Destination) -> pa.RecordBatch:
        """The rows that the target takes, without the column `sequence`."""
        sequences = rows.column(SEQUENCE)
        if self.whole_units:
            self._units.append(pa.table({SEQUENCE: sequences, "unit": unit_names(rows.column("properties"))}))
        rows = rows.drop_columns([SEQUENCE])
        large = pc.greater(counted_sizes(rows), declared.max_message_bytes)
        if not pc.any(large, min_count=0).as_py():
            return rows
        most = declared.max_message_bytes
        rule = BrokenRule(MESSAGE_SIZE, f"larger than the maxMessageSize of {declared.name}, {most} bytes")
        self.refuse(rule, Ranges.from_numbers(sequences.filter(large)))
        return rows.filter(pc.invert(large))

    def refuse(self, rule: BrokenRule, messages: Ranges) -> None:
        self.refused[rule] = self.refused.get(rule, EMPTY) | messages

    def refuse_units(self) -> Ranges:
        """The accepted messages whose units of work have lost a part are refused too. Returns them."""
        if not (self._units and self.refused):
            return EMPTY
        units = pa.concat_tables(self._units)
        found = EMPTY
        for rule, messages in list(self.refused.items()):
            torn = pc.unique(units.filter(pc.is_in(units[SEQUENCE], messages.numbers()))["unit"]).drop_null()
            parts = units.filter(pc.is_in(units["unit"], torn, skip_nulls=True))[SEQUENCE].combine_chunks()
            if more := Ranges.from_numbers(parts) - self.messages:
                self.refuse(rule, more)
                found |= more
        return found


def counted_sizes(rows: pa.RecordBatch) -> pa.Int64Array:
    """What the maxMessageSize of a target counts of stored rows."""
    return reduce(pc.add, _beside(rows).values(), message_sizes(rows))


def check_counted_sizes(rows: pa.RecordBatch, max_message_bytes: int) -> None:
    """Raises MessageSizeError, which names the row."""
    check_message_sizes(rows, max_message_bytes, _beside(rows))


def _beside(rows: pa.RecordBatch) -> dict[str, pa.Int64Array]:
    """Bytes of each row that count beside the stored ones, or do not count (below 0)."""
    saved, added = saved_bytes(rows), added_bytes(rows)
    found = {"compression": saved, "added by spark-jms": None if added is None else pc.negate(added)}
    return {name: by_row for name, by_row in found.items() if by_row is not None}
