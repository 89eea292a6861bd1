"""The unfinished parts of units of work of one member, as a consumer knows them from plan to plan. Pure.

A million parts may wait for the rest of their units, and a plan comes several times a second. So a plan judges only the parts
that are *awake*:

    the unit of a part ...                                 the part is
    ----------------------                                 -----------
    is incomplete, not expired, and has no faulty part     asleep, until a part of the unit arrives or the unit may expire
    anything else                                          awake

What is asleep gets no verdict: only another part can complete its unit, and only time can end it. All parts of a unit are
awake, or all are asleep.

Features: T12 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.ranges import EMPTY, Ranges
from spark_jms.core.unit_of_work import ASLEEP_SCHEMA, NO_PARTS, PARTS_SCHEMA, WorkVerdict, are_in, judge

_MOST_CHUNKS = 64
_NONE_ASLEEP = ASLEEP_SCHEMA.empty_table()


@dataclass(frozen=True)
class KnownParts:
    """`looked_at`: all messages, `sequences` those that are parts. `awake` is PARTS_SCHEMA in the order of the sequences, `asleep`
    ASLEEP_SCHEMA in no order. `patience_ms`: by which the times in `asleep` were found."""

    looked_at: Ranges = EMPTY
    sequences: Ranges = EMPTY
    awake: pa.Table = field(default_factory=lambda: NO_PARTS)
    asleep: pa.Table = field(default_factory=lambda: _NONE_ASLEEP)
    patience_ms: int | None = None

    def unfinished(self, left: Ranges) -> KnownParts:
        """`left`: what is unfinished of the messages looked at."""
        if left == self.looked_at:
            return self
        parts = self.sequences & left
        if parts == self.sequences:
            return replace(self, looked_at=left)
        awake, asleep = (rows.filter(are_in(rows["sequence"], parts)) for rows in (self.awake, self.asleep))
        return replace(self, looked_at=left, sequences=parts, awake=awake, asleep=asleep)

    def with_new(self, messages: Ranges, parts: pa.Table) -> KnownParts:
        """With messages that were just looked at, of which these are parts (PARTS_SCHEMA, in no order)."""
        looked_at = self.looked_at | messages
        if not parts.num_rows:
            return replace(self, looked_at=looked_at)
        known = self._waking(pc.is_in(self.asleep["unit"], pc.unique(parts["unit"])))
        new = Ranges.from_numbers(parts["sequence"].combine_chunks())
        awake = pa.concat_tables([known.awake, parts]).sort_by("sequence")
        return replace(known, looked_at=looked_at, sequences=self.sequences | new, awake=awake)

    def judged(
        self, available: Ranges, now_ms: int, patience_ms: int | None, due_ms: int | None = None
    ) -> tuple[KnownParts, WorkVerdict]:
        """As `judge` of all parts; and what is asleep then."""
        over = pc.less_equal(self.asleep["wakes_ms"], now_ms)
        if patience_ms != self.patience_ms:
            over = pc.is_valid(over)
        known = self._waking(over)
        verdict = judge(known.awake, available, now_ms, patience_ms, due_ms)
        if not verdict.incomplete.num_rows:
            return replace(known, patience_ms=patience_ms), verdict
        asleep = pa.concat_tables([known.asleep, verdict.incomplete])
        if asleep["unit"].num_chunks > _MOST_CHUNKS:
            asleep = asleep.combine_chunks()
        falling = Ranges.from_numbers(verdict.incomplete["sequence"].combine_chunks())
        awake = known.awake.filter(pc.invert(are_in(known.awake["sequence"], falling)))
        return replace(known, awake=awake, asleep=asleep, patience_ms=patience_ms), verdict

    def _waking(self, rows: pa.ChunkedArray) -> KnownParts:
        """`rows`: which of those that are asleep wake."""
        if not pc.any(rows).as_py():
            return self
        woken = self.asleep.filter(rows).select(PARTS_SCHEMA.names)
        awake = pa.concat_tables([self.awake, woken]).sort_by("sequence")
        return replace(self, awake=awake, asleep=self.asleep.filter(pc.invert(rows)))
