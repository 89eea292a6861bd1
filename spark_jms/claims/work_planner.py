"""Which units of work a batch may take, beside the single messages that planner.py offers (T12). core/unit_of_work.py has the
rules.

The properties of a message tell whether it is a part of a unit. They are read once for each message: this plan remembers
the parts that are not finished. A faulty part goes to the error destination, or is discarded where there is none; while it
cannot, it is kept back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.claims.error_destination import ErrorDestination, UnclaimedMessages
from spark_jms.claims.file_lookup import read_files
from spark_jms.claims.offer import Offer
from spark_jms.claims.planner import Planner
from spark_jms.core.batch import Limits
from spark_jms.core.ranges import EMPTY, Ranges
from spark_jms.core.record_set import RecordSet
from spark_jms.core.unit_of_work import NO_PARTS, PART_COLUMNS, WorkVerdict, judge, parts, work_order
from spark_jms.log.data_file import DataFile
from spark_jms.log.file_reader import read_stored
from spark_jms.log.snapshot import Snapshot

JUDGE = "unit of work"  # the consumer of faulty parts, in the acknowledgement table
log = logging.getLogger("spark_jms")


@dataclass(frozen=True)
class _Known:
    looked_at: Ranges = EMPTY
    parts: pa.Table = field(default_factory=lambda: NO_PARTS)

    def unfinished(self, state: RecordSet) -> _Known:
        kept = pc.is_in(self.parts["sequence"], state.unfinished_of(self.sequences).numbers())
        return _Known(state.unfinished_of(self.looked_at), self.parts.filter(kept))

    @property
    def sequences(self) -> Ranges:
        return Ranges.from_numbers(self.parts["sequence"].combine_chunks())


class WorkPlanner:
    """Of one consumer. Not thread-safe: the subscriber's lock guards it."""

    def __init__(
        self,
        planner: Planner,
        errors: ErrorDestination,
        session: str,
        label: Callable[[int], str],
        clock_ms: Callable[[], int],
    ) -> None:
        self._planner, self._label, self._clock_ms = planner, label, clock_ms
        self._unclaimed = UnclaimedMessages(errors, JUDGE, session, label, clock_ms)
        self._known: dict[int, _Known] = {}

    def picks(
        self, snapshot: Snapshot, member: int, state: RecordSet, last: int, limits: Limits, epoch: int
    ) -> tuple[RecordSet, Offer]:
        """As `Planner.picks`, of a destination that handles units of work. When the state has a new intent, the caller writes
        it and then finishes the transfer."""
        destination, now = snapshot.destination, self._clock_ms()
        state = self._look(snapshot, member, state, last)
        known = self._known[member]
        sequences = known.sequences
        state, singles = self._planner.picks(snapshot, member, state, last, limits, epoch, apart=sequences)
        if not known.parts.num_rows:
            return state, singles
        kept_back = state.waiting | state.beyond_limit(destination.redelivery_limit)
        verdict = judge(
            known.parts,
            (state.available(1, last) - kept_back) & sequences,
            now,
            destination.incomplete_work_expiration_ms,
            destination.due_ms(member, now),
        )
        state = self._set_aside(snapshot, member, state, verdict, epoch)
        state = self._without_unwanted(snapshot, member, state, verdict)
        return state, _together(singles, verdict)

    # -- inside ---------------------------------------------------------------------------------------------------
    def _look(self, snapshot: Snapshot, member: int, state: RecordSet, last: int) -> RecordSet:
        """Read the messages that are new, or finish them if they are lost."""
        known = self._known.get(member, _Known()).unfinished(state)
        new = state.unfinished(1, last) - known.looked_at - state.moving
        claimed = new & state.claimed
        state, present = self._planner.without_lost(snapshot, state, new - claimed, member)
        new = present | claimed
        table, selector = self._planner.table, self._planner.selector
        columns = list(dict.fromkeys([*PART_COLUMNS, *(selector.columns if selector else ())]))

        def read(file: DataFile, part: Ranges) -> Iterator[pa.Table]:
            for rows, sequences in read_stored(table.storage, file.hint, part, columns):
                taken = selector.mask(rows) if selector else pa.repeat(True, rows.num_rows)
                yield parts(rows, sequences, taken)

        # Messages that are in no file are as single ones: the plan of those tells that they are lost.
        found, _ = read_files(table, member, new, read, table_id=snapshot.table_id)
        together = pa.concat_tables([known.parts, *found]).sort_by("sequence") if found else known.parts
        self._known[member] = _Known(known.looked_at | new, together)
        return state

    def _set_aside(
        self, snapshot: Snapshot, member: int, state: RecordSet, verdict: WorkVerdict, epoch: int
    ) -> RecordSet:
        if not verdict.faulty or not self._unclaimed.may_move(member):
            return state
        for reason, picks in verdict.faulty.items():
            kept_back = f"are kept back, because they are no part of their unit of work ({reason}) and"
            state = self._unclaimed.move(state, snapshot.destination, member, picks, epoch, reason, kept_back)
        return state

    def _without_unwanted(self, snapshot: Snapshot, member: int, state: RecordSet, verdict: WorkVerdict) -> RecordSet:
        if verdict.expired:
            log.warning(
                "%s: %d message(s) (%s) of units of work have expired undelivered",
                self._label(member),
                verdict.expired.count,
                verdict.expired,
            )
            state = state.skip(verdict.expired)
        if verdict.refused and snapshot.destination.is_topic:
            return state.skip(verdict.refused)
        if verdict.refused:
            self._planner.refuse(member, state, verdict.refused)
        return state


def _together(singles: Offer, verdict: WorkVerdict) -> Offer:
    found = verdict.deliverable
    if not found.num_rows:
        return singles
    alone = singles.picks.numbers()
    sequences = pa.concat_arrays([alone, found["sequence"].combine_chunks()])
    units = pa.concat_arrays([pa.nulls(len(alone), pa.string()), found["unit"].combine_chunks()])
    numbers = pa.concat_arrays([pa.nulls(len(alone), pa.int64()), found["number"].combine_chunks()])
    order = work_order(sequences, units, numbers)
    picks = singles.picks | Ranges.from_numbers(found["sequence"].combine_chunks())
    return Offer(picks, order.sequences, order.ends)
