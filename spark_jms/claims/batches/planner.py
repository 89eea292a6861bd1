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

What a consumer has read and cannot have now is remembered (core/records/remembered.py). Each message that plans have looked at is
finished, remembered or *open*, and of these three a plan looks at the open ones alone, as far as they are available:

    finished      the store has it as done; what a plan finishes stays open until that is written
    remembered    until its time comes, or its unit of order is free: then it is open again
    open          all others: what consumers have claimed, what moves or waits for its redelivery, what was picked

So a plan costs what is open and what is new, whatever the backlog.

Features: C6, C7, C12, T10 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from spark_jms.claims.batches.units_of_order import HeldBack, held_back
from spark_jms.claims.messages.fetch import WITHOUT_LOST
from spark_jms.claims.messages.scan import Question, Scan, ScanBounds, scan, units_and_lost, units_of
from spark_jms.claims.messages.sort_order import SortedBacklogs
from spark_jms.core.destinations.destination import QUEUE_SUBSCRIPTION
from spark_jms.core.destinations.subscriptions import missed
from spark_jms.core.messages.ranges import EMPTY, Ranges, union
from spark_jms.core.ordering.blocked_units import BlockedUnits
from spark_jms.core.ordering.sort_order import SortOrder
from spark_jms.core.ordering.units_of_order import NO_UNITS, UnitMessages
from spark_jms.core.records.batch import Limits, fair_shares
from spark_jms.core.records.endings import FILES_ARE_LOST, SELECTOR_REFUSED, SERVER_WAS_DOWN, Stamp
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.refusal import holding_back
from spark_jms.core.records.remembered import BlockedMessages, DelayedMessages, RefusedMessages
from spark_jms.core.records.take import Offer
from spark_jms.errors import DataLossError
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot

if TYPE_CHECKING:
    from spark_jms.core.selector import Selector

log = logging.getLogger("spark_jms")
MAX_ROWS_READ = 200_000  # headers that one plan reads in one member: about half a second


@dataclass(frozen=True)
class _Pass:
    behind: int  # the last sequence looked at
    blocked: BlockedUnits  # at any time during this pass
    returns: int  # `RecordSet.returns`: messages may have become available since if it is another one


@dataclass(frozen=True)
class _Looked:
    """Plans have looked at the messages of a member up to `upto`. Of these, plans look at the `open` ones again, as far as they are
    not finished; the others are remembered, or finished in the store. `clears`: `RecordSet.clears`."""

    clears: int = 0
    upto: int = 0
    open: Ranges = EMPTY

    def again(self, messages: Ranges) -> _Looked:
        return replace(self, open=self.open | messages.between(1, self.upto)) if messages else self

    def without(self, messages: Ranges) -> _Looked:
        return replace(self, open=self.open - messages) if messages else self

    def up_to(self, last: int, new: Ranges, stored: RecordSet) -> _Looked:
        """`new`: those behind `upto` that plans look at again."""
        return _Looked(self.clears, max(last, self.upto), stored.unfinished_of(self.open) | new)


class _Windows:
    """The available messages from `first` on, window by window, so that a plan looks no further than it needs. `next` is the
    next window; EMPTY at the end. What is remembered is not among them, whatever the number."""

    def __init__(
        self,
        state: RecordSet,
        looked: _Looked,
        refused: RefusedMessages | None,
        kept_back: Ranges,
        first: int,
        last: int,
    ) -> None:
        again = state.unfinished_of(looked.open.between(first, last)) - state.claimed - state.moving
        new = state.available_windows(max(first, looked.upto + 1), last)
        windows = chain((again,), new if refused is None else map(refused.without, new))
        self._windows = (window - kept_back for window in windows)
        self.next = next(filter(None, self._windows), EMPTY)

    def take(self, count: int | None) -> Ranges:
        """The lowest `count` messages of the next window; None: all of it."""
        taken = self.next if count is None else self.next.take(count)
        self.next = self.next - taken or next(filter(None, self._windows), EMPTY)
        return taken

    def give_back(self, left: Ranges) -> None:
        """Messages of the window taken last that were not looked at."""
        self.next = left | self.next


class UnitsNotOffered:
    """The units of one member's messages that plans do not look at, such as what other consumers have claimed: each message is read
    once. `whole`: they block their whole units, not only what comes behind them. Not thread-safe: the subscriber's lock guards it."""

    def __init__(self, table: DeltaLog, member: int, *, whole: bool) -> None:
        self._table, self._member, self._whole = table, member, whole
        self._messages = EMPTY
        self._found = NO_UNITS
        self._blocked: Mapping[str, int] = {}

    def blocked(self, messages: Ranges, table_id: str) -> Mapping[str, int]:
        """As `BlockedUnits.block_behind` takes it; the same mapping while the messages are the same."""
        if messages != self._messages:
            kept = self._found.only(pc.is_in(self._found.sequences, messages.numbers())) if self._found else NO_UNITS
            new, lost = units_and_lost(self._table, self._member, messages - self._messages, table_id=table_id)
            self._found = UnitMessages.together([kept, new])
            self._messages = messages - lost  # they may be newer than the table as it is known
            self._blocked = self._found.whole_units() if self._whole else self._found.first_of_units()
        return self._blocked


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
        self._blocked: dict[int, BlockedMessages] = {}
        self._looked: dict[int, _Looked] = {}
        self._units_of_others: dict[int, UnitsNotOffered] = {}
        self._units_kept_back: dict[int, UnitsNotOffered] = {}
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

    def first_refused_of_units(self, member: int, stored: RecordSet) -> dict[str, int]:
        """unit of order -> its first unfinished message that the selector refuses."""
        return self._refused[member].first_of_units(stored) if member in self._refused else {}

    @property
    def holding_back(self) -> list[int]:
        """Members on which messages wait behind others of their units of order."""
        return sorted(member for member, waiting in self._waiting.items() if waiting or member in self._blocked)

    def held_back(self, member: int, state: RecordSet) -> list[HeldBack]:
        """What waits behind messages that the selector refuses and that no other consumer has yet, as far as the last look at the
        member went."""
        taken = state.claimed | state.moving
        firsts = {unit: n for unit, n in self.first_refused_of_units(member, state).items() if n not in taken}
        waiting = [self._waiting[member]]
        if firsts and member in self._blocked:
            waiting.append(self._blocked[member].of_units(state))
        return held_back(member, firsts, UnitMessages.together(waiting))

    def has_more(self, member: int) -> bool:
        """The pass has not reached the end: plan again, there may be more."""
        return member in self._passes

    def is_due(self, now_ms: int, paused: Set[int]) -> bool:
        """A message that the last plans have seen may have its delivery time now, on a member that is not paused."""
        times = (delayed.due_ms for member, delayed in self._delayed.items() if member not in paused)
        return any(due_ms is not None and due_ms <= now_ms for due_ms in times)

    def available(self, member: int, stored: RecordSet, last: int, most: int) -> int:
        """How many of the messages up to `last` are available, as far as record sets tell and what is remembered; no more than are
        needed to reach `most`. As many where some wait behind others of their units, which may be free by now."""
        if member in self._blocked and self._blocked[member].holds:
            return most
        looked, count = self._looked_at(member, stored), 0
        windows = _Windows(stored, looked, self._refused.get(member), stored.waiting, 1, last)
        while windows.next and count < most:
            count += windows.take(None).count
        return count

    def restart(self, member: int) -> None:
        """This consumer made messages available that the pass has left behind."""
        self._passes.pop(member, None)

    def not_claimed(self, member: int, picks: Ranges) -> None:
        """These picks were not claimed: the pass continues with them."""
        known = self._passes.get(member)
        if known and picks and picks.first <= known.behind:
            self._passes[member] = _Pass(picks.first - 1, known.blocked, known.returns)

    def picks(
        self,
        snapshot: Snapshot,
        member: int,
        state: RecordSet,
        stored: RecordSet,
        last: int,
        limits: Limits,
        epoch: int,
        apart: Ranges = EMPTY,
    ) -> tuple[RecordSet, Offer]:
        """The messages up to `last` that may be delivered now, in order, beside those that are expired; and the state without
        those that are lost or, in a topic, refused. With a limit it looks at no more messages than it needs: a plan costs the same
        whatever the backlog. Of a sorted destination it looks at all. `apart` are messages that another plan looks at. `stored` is
        the state as the store has it: what is finished there stays finished."""
        order = SortOrder.of(snapshot.destination.destination_keys)
        current, max_rows = (None, None) if order else (self._passes.get(member), self._max_rows(limits))
        if current and current.returns != state.returns and snapshot.member_files(member).has_groups:
            current, max_rows = None, None  # units may have become available meanwhile: from the start to the end
        begin = current.behind + 1 if current else 1
        waiting = state.waiting
        if over := self._over.get(member, EMPTY):
            over = state.unfinished_of(over) - state.claimed - state.moving
        kept_back = waiting | apart | over | state.kept_back(snapshot.destination.redelivery_limit)
        now = self._clock_ms()
        self._look_again(member, stored, now)
        blocked = self._blocked_units(current, snapshot, member, state, stored)
        windows = self._windows(member, state, blocked, kept_back, begin, last, now)
        if current and not windows.next:
            current, blocked = None, self._blocked_units(None, snapshot, member, state, stored)
            windows = self._windows(member, state, blocked, kept_back, 1, last, now)
        due_ms, is_topic = snapshot.destination.due_ms(member, now), snapshot.destination.is_topic
        not_seen = missed(snapshot.destination, self._subscription, member, last)
        question = Question(self.selector, blocked, now, due_ms, is_topic, not_seen)
        bounded = limits.max_messages is not None and not order
        bounds = ScanBounds(max(limits.max_messages or 0, limits.min_messages) if bounded else None, max_rows)
        picks, expired, remembered, read = EMPTY, EMPTY, EMPTY, 0
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
                remembered |= self._remember(member, stored, found, now, is_topic=is_topic)
                held.append(self._held_back(found))
                windows.give_back(found.left)
        self._note_looked(member, stored, windows.next.first - 1 if windows.next else last, remembered)
        if windows.next and (current or (max_rows is not None and read >= max_rows)):
            self._passes[member] = _Pass(windows.next.first - 1, blocked, state.returns)
        else:
            self._passes.pop(member, None)
        self._waiting[member] = UnitMessages.together(held)
        offer = self._sorted.offer(snapshot, member, state, picks, order) if order and picks else Offer(picks)
        self._over[member] = over | expired
        near = snapshot.member_files(member).overlapping(picks.first, picks.last) if picks else ()
        units = None if any(file.has_groups for file in near) else NO_UNITS
        if units is None and len(state.consumers) > 1:
            units = units_of(self.table, member, picks, table_id=snapshot.table_id)
        return state, replace(offer.beside(self._over[member]), units=units, returns=state.returns)

    def refuse(self, member: int, stored: RecordSet, messages: Ranges) -> None:
        """Messages of a queue that the selector refuses, as another plan has found."""
        self._refused.setdefault(member, RefusedMessages()).add_timeless(stored, messages)
        self._looked[member] = self._looked_at(member, stored).without(messages)

    # -- inside ---------------------------------------------------------------------------------------------------
    @staticmethod
    def _max_rows(limits: Limits) -> int | None:
        """A batch that may wait long for a minimum must see all messages."""
        return MAX_ROWS_READ if limits.min_messages <= 1 or limits.linger_ms is not None else None

    def _looked_at(self, member: int, stored: RecordSet) -> _Looked:
        """A record set that was cleared is another one."""
        known = self._looked.get(member)
        return known if known and known.clears == stored.clears else _Looked(stored.clears)

    def _look_again(self, member: int, stored: RecordSet, now_ms: int) -> None:
        """At what is remembered and whose time has come."""
        looked = self._looked_at(member, stored)
        if not looked.upto:
            self._refused.pop(member, None)
            self._delayed.pop(member, None)
            self._blocked.pop(member, None)
        for known in (self._refused.get(member), self._delayed.get(member)):
            if known is not None:
                looked = looked.again(known.looked_at_again(now_ms))
        self._looked[member] = looked

    def _windows(
        self,
        member: int,
        state: RecordSet,
        blocked: BlockedUnits,
        kept_back: Ranges,
        first: int,
        last: int,
        now_ms: int,
    ) -> _Windows:
        """Without what waits behind others of these units."""
        if member in self._blocked:
            looks = self._blocked[member].looks(blocked, now_ms)
            self._looked[member] = self._looked[member].again(looks.again).without(looks.not_now)
        return _Windows(state, self._looked[member], self._refused.get(member), kept_back, first, last)

    def _note_looked(self, member: int, stored: RecordSet, last: int, remembered: Ranges) -> None:
        looked = self._looked[member].without(remembered)
        new = stored.unfinished(looked.upto + 1, last) - remembered
        if member in self._refused:
            new = self._refused[member].without(new)
        self._looked[member] = looked.up_to(last, new, stored)

    def _blocked_units(
        self, current: _Pass | None, snapshot: Snapshot, member: int, state: RecordSet, stored: RecordSet
    ) -> BlockedUnits:
        """With the units of what this plan does not look at."""
        blocked = current.blocked if current else BlockedUnits()
        table_id = snapshot.table_id
        others = union(c.picks for c in state.claims.values() if c.consumer != self.consumer) | state.moving
        if others or member in self._units_of_others:
            known = self._units_of_others.setdefault(member, UnitsNotOffered(self.table, member, whole=True))
            blocked.block_behind(known.blocked(others, table_id))
        waiting = state.unfinished_of(state.waiting | holding_back(state.refusals))
        if waiting or member in self._units_kept_back:
            known = self._units_kept_back.setdefault(member, UnitsNotOffered(self.table, member, whole=False))
            blocked.block_behind(known.blocked(waiting, table_id))
        for barrier in snapshot.destination.barriers_before(self._subscription, member, self._floors):
            blocked.block_slots(barrier.slots, barrier.new_first)
        blocked.block_behind(self.first_refused_of_units(member, stored))
        if member in self._delayed:
            blocked.block_behind(self._delayed[member].first_of_units(stored))
        return blocked

    def _remember(self, member: int, stored: RecordSet, found: Scan, now_ms: int, *, is_topic: bool) -> Ranges:
        """What no plan looks at before its time."""
        remembered = EMPTY
        if found.refused and not is_topic:
            refused = self._refused.setdefault(member, RefusedMessages())
            remembered = refused.add_refused(stored, found.refused, found.refused_units, now_ms)
        for later in found.later:
            remembered |= self._delayed.setdefault(member, DelayedMessages()).add(stored, later, now_ms)
        for later in found.blocked:
            remembered |= self._blocked.setdefault(member, BlockedMessages()).add(stored, later, now_ms)
        return remembered

    @staticmethod
    def _held_back(found: Scan) -> UnitMessages:
        """What waits behind refused messages, but for that which is remembered as blocked."""
        held = found.held_back
        for later in found.blocked if held else ():
            held = held.only(pc.invert(pc.is_in(held.sequences, later.sequences)))
        return held

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
