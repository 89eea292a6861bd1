"""What a batch may take of the members a consumer holds: its picks, before they are claimed.

Messages are looked at in the order of their sequences; `_Windows` chooses where to look next, and messages/scan.py judges
the messages of a window. The order of delivery of a sorted destination is messages/sort_order.py's.

One plan reads the headers of a bounded number of messages. When that does not reach the end of a member, the *pass*
continues with the next plan, behind the last message it looked at:

    a pass begins      at the first available message, with the first plan and after the end of the pass before
    it continues       behind the last message looked at, or at the first one that was found and not claimed
    it ends            at the last message

A pass never looks back, so what was blocked at any time during the pass stays blocked until its end. Else it could pick a later
message of a unit of order before an earlier one that became available behind it (core/ordering/units_of_order.py).

Features: C6, C7, C12, T10 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.claims.batches.units_of_order import HeldBack, held_back
from spark_jms.claims.messages.fetch import WITHOUT_LOST
from spark_jms.claims.messages.scan import Later, Question, Scan, ScanBounds, scan, units_of
from spark_jms.claims.messages.sort_order import SortedBacklogs
from spark_jms.core.destinations.destination import QUEUE_SUBSCRIPTION
from spark_jms.core.destinations.subscriptions import missed
from spark_jms.core.messages.ranges import EMPTY, Ranges, union
from spark_jms.core.ordering.sort_order import SortOrder
from spark_jms.core.ordering.units_of_order import NO_UNITS, BlockedUnits, UnitMessages
from spark_jms.core.records.batch import Limits, fair_shares
from spark_jms.core.records.endings import FILES_ARE_LOST, SELECTOR_REFUSED, SERVER_WAS_DOWN, Stamp
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.refusal import holding_back
from spark_jms.core.records.take import Offer
from spark_jms.errors import DataLossError
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot

if TYPE_CHECKING:
    from spark_jms.core.selector import Selector

log = logging.getLogger("spark_jms")
MAX_ROWS_READ = 200_000  # headers that one plan reads in one member: about half a second
_MINUTE_MS = 60_000


@dataclass(frozen=True)
class _Pass:
    behind: int  # the last sequence looked at
    blocked: BlockedUnits  # at any time during this pass
    # Messages may have become available since if another one is found: the epoch of the record, or where others change it
    # meanwhile, how often that has happened.
    mark: int


class _Windows:
    """The available messages from `first` on, window by window, so that a plan looks no further than it needs. `next` is the
    next window; EMPTY at the end."""

    def __init__(self, state: RecordSet, kept_back: Ranges, first: int, last: int) -> None:
        self._windows = (w - kept_back for w in state.available_windows(first, last))
        self.next = next(filter(None, self._windows), EMPTY)

    def take(self, count: int | None) -> Ranges:
        """The lowest `count` messages of the next window; None: all of it."""
        taken = self.next if count is None else self.next.take(count)
        self.next = self.next - taken or next(filter(None, self._windows), EMPTY)
        return taken

    def give_back(self, left: Ranges) -> None:
        """Messages of the window taken last that were not looked at."""
        self.next = left | self.next


class RememberedMessages:
    """Messages of one member that the planner has read, and need not read again: they cannot be delivered now. With those that
    belong to units of order it remembers which messages wait behind them. Not thread-safe: the subscriber's lock guards it."""

    def __init__(self) -> None:
        self.messages = EMPTY
        self._in_units = NO_UNITS
        self._firsts: dict[str, int] = {}
        self._firsts_of: Ranges | None = None  # the messages that `_firsts` was computed from

    def add(self, state: RecordSet, refused: Ranges, in_units: UnitMessages) -> None:
        """Newly read messages. Finished ones are forgotten."""
        self.messages = state.unfinished_of(self.messages) | refused
        self._in_units = UnitMessages.together([self._in_units, in_units])
        self._firsts_of = None

    def forget(self, again: Ranges) -> None:
        """The next plan looks at them again."""
        self.messages = self.messages - again
        if self._in_units:
            again_in_units = pc.is_in(self._in_units.sequences, again.numbers())
            self._in_units, self._firsts_of = self._in_units.only(pc.invert(again_in_units)), None

    def first_of_units(self, state: RecordSet) -> dict[str, int]:
        """unit of order -> its first unfinished message among these."""
        if not self._in_units:
            return {}
        unfinished = state.unfinished_of(self.messages)
        if unfinished != self._firsts_of:
            self._in_units = self._in_units.only(pc.is_in(self._in_units.sequences, unfinished.numbers()))
            self._firsts, self._firsts_of = self._in_units.first_of_units(), unfinished
        return self._firsts


class RefusedMessages(RememberedMessages):
    """Those of a queue that a consumer's selector refuses. They stay for other consumers."""

    def forget_expired(self, now_ms: int) -> None:
        """The next plan finds them expired: they block their units no longer."""
        if self._in_units and (
            over := Ranges.from_numbers(self._in_units.only(self._in_units.expired(now_ms)).sequences)
        ):
            self.forget(over)


class DelayedMessages(RememberedMessages):
    """Those whose delivery time is to come, by the minute in which each is due or expires: from its beginning on, plans look at
    them."""

    def __init__(self) -> None:
        super().__init__()
        self._minutes: dict[int, Ranges] = {}

    def add_later(self, state: RecordSet, later: Later, now_ms: int) -> None:
        minutes = pc.divide(later.times, _MINUTE_MS)
        ahead = pc.greater(minutes, now_ms // _MINUTE_MS)
        rows = pa.table({"minute": minutes, "sequence": later.sequences}).filter(ahead)
        sequences = rows["sequence"].combine_chunks()
        by_minute = rows.sort_by([("minute", "ascending"), ("sequence", "ascending")])
        runs, begin = pc.run_end_encode(by_minute["minute"].combine_chunks(), pa.int64()), 0
        for minute, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            picks = Ranges.from_numbers(by_minute["sequence"][begin:end].combine_chunks())
            self._minutes[minute], begin = self._minutes.get(minute, EMPTY) | picks, end
        remembered = pc.is_in(later.units.sequences, sequences)
        self.add(state, Ranges.from_numbers(sequences), later.units.only(remembered))

    def forget_due(self, now_ms: int) -> None:
        due = [minute for minute in self._minutes if minute <= now_ms // _MINUTE_MS]
        if due:
            self.forget(union(self._minutes.pop(minute) for minute in due))


class Planner:
    """Plans what a batch may take. Not thread-safe: the subscriber's lock guards it."""

    def __init__(
        self,
        table: DeltaLog,
        consumer: str,
        selector: Selector | None,
        fail_on_data_loss: bool,
        name: Callable[[int], str],
        clock_ms: Callable[[], int],
        subscription: str = QUEUE_SUBSCRIPTION,
        floors: Mapping[int, int] | None = None,
    ) -> None:
        """`floors`: where a subscription starts that is not durable."""
        self.table, self.consumer, self.selector = table, consumer, selector
        self._refused: dict[int, RefusedMessages] = {}
        self._delayed: dict[int, DelayedMessages] = {}
        self._fail_on_data_loss, self._name, self._clock_ms = fail_on_data_loss, name, clock_ms
        self._subscription, self._floors = subscription, floors
        self._passes: dict[int, _Pass] = {}
        self._waiting: dict[int, UnitMessages] = {}  # of the pass: what the selector takes, behind others of its unit
        self._over: dict[
            int, Ranges
        ] = {}  # expired messages that the holder has perhaps not finished: never looked at again
        self._sorted = SortedBacklogs(table)

    @property
    def refused(self) -> dict[int, Ranges]:
        """member -> messages of a queue that the selector refuses."""
        return {member: refused.messages for member, refused in self._refused.items()}

    def first_refused_of_units(self, member: int, state: RecordSet) -> dict[str, int]:
        """unit of order -> its first unfinished message that the selector refuses."""
        return self._refused[member].first_of_units(state) if member in self._refused else {}

    @property
    def holding_back(self) -> list[int]:
        """Members on which messages wait behind others of their units of order."""
        return sorted(member for member, waiting in self._waiting.items() if waiting)

    def held_back(self, member: int, state: RecordSet) -> list[HeldBack]:
        """What waits behind messages that the selector refuses and that no other consumer has yet, as far as the last look at the
        member went."""
        taken = state.claimed | state.moving
        firsts = {unit: n for unit, n in self.first_refused_of_units(member, state).items() if n not in taken}
        return held_back(member, firsts, self._waiting[member])

    def has_more(self, member: int) -> bool:
        """The pass has not reached the end: plan again, there may be more."""
        return member in self._passes

    def restart(self, member: int) -> None:
        """This consumer made messages available that the pass has left behind."""
        self._passes.pop(member, None)

    def not_claimed(self, member: int, picks: Ranges) -> None:
        """These picks were not claimed: the pass continues with them."""
        known = self._passes.get(member)
        if known and picks and picks.first <= known.behind:
            self._passes[member] = _Pass(picks.first - 1, known.blocked, known.mark)

    def picks(
        self,
        snapshot: Snapshot,
        member: int,
        state: RecordSet,
        last: int,
        limits: Limits,
        epoch: int,
        apart: Ranges = EMPTY,
    ) -> tuple[RecordSet, Offer]:
        """The messages up to `last` that may be delivered now, in order, beside those that are expired; and the state without
        those that are lost or, in a topic, refused. With a limit it looks at no more messages than it needs: a plan costs the same
        whatever the backlog. Of a sorted destination it looks at all. `apart` are messages that another plan looks at."""
        order = SortOrder.of(snapshot.destination.destination_keys)
        current, max_rows = (None, None) if order else (self._passes.get(member), self._max_rows(limits))
        mark = epoch if state.journal is None else state.returns
        if current and current.mark != mark and any(f.has_groups for f in snapshot.member_files(member).files):
            current, max_rows = None, None  # units may have become available meanwhile: from the start to the end
        begin = current.behind + 1 if current else 1
        waiting = state.waiting
        if over := self._over.get(member, EMPTY):
            over = state.unfinished_of(over) - state.claimed - state.moving
        kept_back = waiting | apart | over | state.kept_back(snapshot.destination.redelivery_limit)
        now = self._clock_ms()
        if (refused := self._refused.get(member)) is not None:
            refused.forget_expired(now)
            kept_back |= refused.messages
        if (delayed := self._delayed.get(member)) is not None:
            delayed.forget_due(now)
            kept_back |= delayed.messages
        windows = _Windows(state, kept_back, begin, last)
        if current and not windows.next:
            current, windows = None, _Windows(state, kept_back, 1, last)
        blocked = current.blocked if current else BlockedUnits()
        self._block(blocked, snapshot, member, state)
        due_ms, is_topic = snapshot.destination.due_ms(member, now), snapshot.destination.is_topic
        not_seen = missed(snapshot.destination, self._subscription, member, last)
        question = Question(self.selector, blocked, now, due_ms, is_topic, not_seen)
        bounded = limits.max_messages is not None and not order
        bounds = ScanBounds(max(limits.max_messages or 0, limits.min_messages) if bounded else None, max_rows)
        picks, expired, read = EMPTY, EMPTY, 0
        held = [self._waiting.get(member, NO_UNITS)] if current else []
        wanted = bounds.enough  # at first look at as many messages as are wanted; if they do not do, at all the others
        while windows.next and not bounds.reached(picks.count, read):
            window, wanted = windows.take(wanted), None
            state, present = self.without_lost(snapshot, state, window, member, epoch)
            if present:
                rest = bounds.after(picks.count, read)
                found = scan(self.table, member, present, question, rest, table_id=snapshot.table_id)
                state = self._without_unwanted(snapshot, state, member, found, epoch)
                picks, expired, read = picks | found.picks, expired | found.expired, read + found.read
                held.append(found.held_back)
                for later in found.later:
                    self._delayed.setdefault(member, DelayedMessages()).add_later(state, later, now)
                windows.give_back(found.left)
        if windows.next and (current or (max_rows is not None and read >= max_rows)):
            self._passes[member] = _Pass(windows.next.first - 1, blocked, mark)
        else:
            self._passes.pop(member, None)
        self._waiting[member] = UnitMessages.together(held)
        offer = self._sorted.offer(snapshot, member, state, picks, order) if order and picks else Offer(picks)
        self._over[member] = over | expired
        near = snapshot.member_files(member).overlapping(picks.first, picks.last) if picks else ()
        units = None if any(file.has_groups for file in near) else NO_UNITS
        if units is None and len(state.consumers) > 1 and state.journal is not None:
            units = units_of(self.table, member, picks, table_id=snapshot.table_id)
        return state, replace(offer.beside(self._over[member]), units=units, returns=state.returns)

    def refuse(self, member: int, state: RecordSet, messages: Ranges) -> None:
        """Messages of a queue that the selector refuses, as another plan has found."""
        self._refused.setdefault(member, RefusedMessages()).add(state, messages, NO_UNITS)

    # -- inside ---------------------------------------------------------------------------------------------------
    @staticmethod
    def _max_rows(limits: Limits) -> int | None:
        """A batch that may wait long for a minimum must see all messages."""
        return MAX_ROWS_READ if limits.min_messages <= 1 or limits.linger_ms is not None else None

    def _block(self, blocked: BlockedUnits, snapshot: Snapshot, member: int, state: RecordSet) -> None:
        """The units of what this plan does not look at."""
        others = union(c.picks for c in state.claims.values() if c.consumer != self.consumer) | state.moving
        if others:
            blocked.block_units(units_of(self.table, member, others, table_id=snapshot.table_id))
        if waiting := state.waiting | holding_back(state.refusals):
            late = units_of(self.table, member, state.unfinished_of(waiting), table_id=snapshot.table_id)
            blocked.block_behind(late.first_of_units())
        for barrier in snapshot.destination.barriers_before(self._subscription, member, self._floors):
            blocked.block_slots(barrier.slots, barrier.new_first)
        blocked.block_behind(self.first_refused_of_units(member, state))
        if member in self._delayed:
            blocked.block_behind(self._delayed[member].first_of_units(state))

    def _without_unwanted(
        self, snapshot: Snapshot, state: RecordSet, member: int, found: Scan, epoch: int
    ) -> RecordSet:
        """Skips what the scan found missed, refused or lost."""
        stamp = Stamp(epoch, self._clock_ms())
        if found.missed:
            state = state.skip(found.missed, SERVER_WAS_DOWN, stamp)
        if found.refused and snapshot.destination.is_topic:
            state = state.skip(
                found.refused, SELECTOR_REFUSED, stamp
            )  # the subscription's selector refuses them for good
        elif found.refused:
            self._refused.setdefault(member, RefusedMessages()).add(state, found.refused, found.refused_units)
        return self._lose(state, found.gone, member, stamp) if found.gone else state

    def without_lost(
        self, snapshot: Snapshot, state: RecordSet, wanted: Ranges, member: int, epoch: int
    ) -> tuple[RecordSet, Ranges]:
        """The part of `wanted` that is in files, and the state without the rest, which is lost."""
        if not wanted:
            return state, wanted
        missing = snapshot.member_files(member).missing(wanted)
        if not missing:
            return state, wanted
        return self._lose(state, missing, member, Stamp(epoch, self._clock_ms())), wanted - missing

    def _lose(self, state: RecordSet, missing: Ranges, member: int, stamp: Stamp) -> RecordSet:
        if self._fail_on_data_loss:
            raise DataLossError(
                f"{self._name(member)}: {missing.count:,} message(s) are gone (sequence {missing}) that the store does not know "
                "as consumed: they were deleted; or consumed and purged, if the store was lost or restored since. "
                f"{WITHOUT_LOST}"
            )
        log.warning("%s: %d message(s) are gone (%s) and are skipped", self._name(member), missing.count, missing)
        return state.skip(missing, FILES_ARE_LOST, stamp)


def batch_shares(snapshot: Snapshot, planned: Mapping[int, Offer], limits: Limits) -> dict[int, int]:
    """How many of each member's picks the batch takes, in the order in which a consumer shows them. A message that is claimed alone
    is a batch of its own."""
    members = sorted(planned, key=lambda member: (member < limits.first_member, member))
    shares = {member: planned[member].picks.count for member in members}
    if limits.max_messages is not None:
        shares = fair_shares(limits.max_messages, shares)
    if limits.max_bytes is not None:
        share_bytes = limits.max_bytes // max(len(planned), 1)
        shares = {m: min(n, _fitting(snapshot, m, planned[m].picks, share_bytes)) for m, n in shares.items()}
    for member, share in shares.items():
        together = planned[member].together
        if share and not together:
            return {member: planned[member].one}
        shares[member] = min(share, together)
    return shares


def _fitting(snapshot: Snapshot, member: int, picks: Ranges, limit_bytes: int) -> int:
    """How many of the first picks have about `limit_bytes`, by the averages of their files; at least one, so that a large
    message does not block the member."""
    used, count = 0.0, 0
    for file in snapshot.member_files(member).overlapping(picks.first, picks.last):
        average = file.bytes / max(file.rows, 1)
        rows = picks.between(file.first, file.last).count
        fits = int((limit_bytes - used) / average)
        if fits < rows:
            return max(count + max(fits, 0), 1)
        used, count = used + rows * average, count + rows
    return max(count, 1)
