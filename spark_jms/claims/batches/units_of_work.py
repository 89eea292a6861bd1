"""Which units of work a batch may take, beside the single messages that planner.py offers.

The properties of a message tell whether it is a part of a unit. They are read once for each message: this plan remembers the parts
that are not finished, and judges those whose verdict may have changed. A faulty part goes to the error destination, or is
discarded where there is none; while it cannot, it is kept back. core/ordering/units_of_work.py has the rules.

Features: T12 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_jms.claims.batches.planner import Planner
from spark_jms.claims.failures.error_destination import ErrorDestination, UnclaimedMessages
from spark_jms.claims.messages.scan import read_files
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.ordering.units_of_work import NO_PARTS, PART_COLUMNS, PendingParts, WorkVerdict, parts, work_order
from spark_jms.core.records.batch import Limits
from spark_jms.core.records.endings import JUDGE, SELECTOR_REFUSED, Stamp
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.take import Offer
from spark_jms.log.messages.data_files import read_stored
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.files import DataFile
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.settings.fields import DISCARD

if TYPE_CHECKING:
    from spark_jms.core.selector import Selector

log = logging.getLogger("spark_jms")


class WorkPlanner:
    """Plans which units of work a batch may take. Of one consumer. Not thread-safe: the subscriber's lock guards it."""

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
        self._known: dict[int, PendingParts] = {}

    def picks(
        self,
        snapshot: Snapshot,
        member: int,
        state: RecordSet,
        stored: RecordSet,
        last: int,
        limits: Limits,
        epoch: int,
    ) -> tuple[RecordSet, Offer]:
        """As `Planner.picks`, of a destination that handles units of work. When the state has a new intent, the caller writes
        it and then finishes the transfer."""
        destination, now = snapshot.destination, self._clock_ms()
        state = self._look(snapshot, member, state, last, epoch)
        known = self._known[member]
        sequences = known.sequences
        state, singles = self._planner.picks(snapshot, member, state, stored, last, limits, epoch, apart=sequences)
        if not sequences:
            return state, singles
        kept_back = state.waiting | state.kept_back(destination.redelivery_limit)
        self._known[member], verdict = known.judged(
            (state.available(1, last) - kept_back) & sequences,
            now,
            destination.incomplete_work_expiration_ms,
            destination.due_ms(member, now),
        )
        state = self._set_aside(snapshot, member, state, verdict, epoch)
        state = self._without_unwanted(snapshot, member, state, stored, verdict, epoch)
        offer = together(singles, verdict).beside(singles.expired | verdict.expired)
        return state, replace(offer, returns=state.returns)

    # -- inside ---------------------------------------------------------------------------------------------------
    def _look(self, snapshot: Snapshot, member: int, state: RecordSet, last: int, epoch: int) -> RecordSet:
        """Read the messages that are new, or finish them if they are lost."""
        known = self._known.get(member, PendingParts())
        known = known.unfinished(state.unfinished_of(known.looked_at))
        new = state.unfinished(1, last) - known.looked_at - state.moving
        claimed = new & state.claimed
        state, present = self._planner.without_lost(snapshot, state, new - claimed, member, epoch)
        new = present | claimed
        found = read_parts(self._planner.table, member, new, self._planner.selector, snapshot.table_id)
        self._known[member] = known.with_new(new, found)
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

    def _without_unwanted(
        self,
        snapshot: Snapshot,
        member: int,
        state: RecordSet,
        stored: RecordSet,
        verdict: WorkVerdict,
        epoch: int,
    ) -> RecordSet:
        if verdict.expired and snapshot.destination.expiration_policy == DISCARD:
            log.warning(
                "%s: %d message(s) (%s) of units of work have expired undelivered",
                self._label(member),
                verdict.expired.count,
                verdict.expired,
            )
        if verdict.refused and snapshot.destination.is_topic:
            return state.skip(verdict.refused, SELECTOR_REFUSED, Stamp(epoch, self._clock_ms()))
        if verdict.refused:
            self._planner.refuse(member, stored, verdict.refused)
        return state


def read_parts(table: DeltaLog, member: int, messages: Ranges, selector: Selector | None, table_id: str) -> pa.Table:
    """Those of `messages` that are parts of units of work, as PARTS_SCHEMA, in no order. A message that is in no file is no part:
    the plan of single messages tells that it is lost."""
    columns = list(dict.fromkeys([*PART_COLUMNS, *(selector.columns if selector else ())]))

    def read(file: DataFile, part: Ranges) -> Iterator[pa.Table]:
        for rows, sequences in read_stored(table.storage, file.hint, part, columns):
            taken = selector.mask(rows) if selector else pa.repeat(True, rows.num_rows)
            yield parts(rows, sequences, taken)

    found, _ = read_files(table, member, messages, read, table_id=table_id)
    return pa.concat_tables([NO_PARTS, *found])


def together(singles: Offer, verdict: WorkVerdict) -> Offer:
    """Single messages and the deliverable units, in the order of delivery."""
    found = verdict.deliverable
    if not found.num_rows:
        return singles
    alone = singles.picks.numbers()
    sequences = pa.concat_arrays([alone, found["sequence"].combine_chunks()])
    units = pa.concat_arrays([pa.nulls(len(alone), pa.string()), found["unit"].combine_chunks()])
    numbers = pa.concat_arrays([pa.nulls(len(alone), pa.int64()), found["number"].combine_chunks()])
    order = work_order(sequences, units, numbers)
    picks = singles.picks | Ranges.from_numbers(found["sequence"].combine_chunks())
    return replace(singles, picks=picks, order=order.sequences, ends=order.ends)
