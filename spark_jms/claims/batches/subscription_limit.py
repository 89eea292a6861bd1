"""Applying the limit of a subscription to what has arrived in a member.

A consumer applies it with each plan, and once a second while it does not plan; housekeeping, where no consumer lives. In between, a
subscription may have more messages than its limit. core/destinations/subscriptions.py has the rules.

A subscription of a replicated topic has a record set for every member, and its limit is that of all of them together: of what the
whole has too many each drops the part in its member. The states of all record sets decide what has to go, the oldest message first,
by the time at which it was sent; so consumers that decide at the same time drop the same messages.

Features: T4 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.claims.batches.units_of_work import read_parts, together
from spark_jms.claims.messages.scan import Question, may_expire, scan
from spark_jms.claims.messages.sort_order import SortedBacklogs
from spark_jms.claims.servers.stores import label_of, opened_state, operations, record_of, without_lost
from spark_jms.core.destinations.destination import Subscription
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.destinations.subscriptions import Arrivals, Droppable, dropped, is_durable, missed, record_server
from spark_jms.core.messages.ranges import EMPTY, Ranges, counting, union
from spark_jms.core.ordering.sort_order import SortOrder
from spark_jms.core.ordering.units_of_work import WorkVerdict, judge
from spark_jms.core.records.endings import SELECTOR_REFUSED, SERVER_WAS_DOWN, Stamp
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.take import Offer
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.settings.destination import UNLIMITED
from spark_jms.settings.fields import DISCARD
from spark_jms.store import RecordCorruptError, RecordHeldError, Session, StoreError

if TYPE_CHECKING:
    from spark_jms.core.selector import Selector

BY_TIME = SortOrder.of(["JMSTimestamp ascending"])
_FOR_EVER_MS = 2**63 - 1
_MOST_SORTED = 100_000  # arrivals of one decision where the heads are not the oldest: what it drops may be scattered
log = logging.getLogger("spark_jms")


class SubscriptionLimit:
    """Applies the limit to a record set. Of one subscription. Not thread-safe."""

    def __init__(
        self,
        table: DeltaLog,
        subscription: str,
        selector: Selector | None,
        label: Callable[[int], str],
        clock_ms: Callable[[], int],
    ) -> None:
        self._table, self._subscription, self._selector = table, subscription, selector
        self._label, self._clock_ms = label, clock_ms
        self._sorted = SortedBacklogs(table)
        self._looked: dict[int, int] = {}  # member -> what had arrived in all when nothing had to be dropped there

    def enforce(
        self,
        state: RecordSet,
        snapshot: Snapshot,
        member: int,
        epoch: int,
        others: Callable[[int], RecordSet] | None = None,
    ) -> RecordSet:
        """The state of a member without the messages that have made room, and without those that the subscription's
        selector refuses. The same state when nothing has arrived, or there is room. `others` reads the record sets of the other
        members, of a replicated topic."""
        if snapshot.destination.is_replicated and others is not None:
            return self._enforce_whole(state, snapshot, member, epoch, others)
        last = snapshot.last_sequence(member)
        if not is_over(state, snapshot, member) or state.outbox.is_full:
            return state
        state = self._without_others(state, snapshot, member, last, epoch, state.limit.arrived)
        if not is_over(state, snapshot, member):
            return state
        destination, begun = snapshot.destination, state.limit.arrived
        arrived = state.unfinished(begun + 1, last)
        if destination.destination_keys:
            arrived = arrived.take(_MOST_SORTED)
            last = arrived.last
        droppable = self._droppable(state, snapshot, member, last)
        present = state.unfinished(1, begun).count
        picks = dropped(present, arrived, droppable, destination.messages_limit_override)
        return self._limited(state, snapshot, member, epoch, last, picks)

    def _limited(
        self,
        state: RecordSet,
        snapshot: Snapshot,
        member: int,
        epoch: int,
        last: int,
        picks: Ranges,
        *,
        of_whole: bool = False,
    ) -> RecordSet:
        picks -= self._expired(snapshot, member, picks)
        if picks:
            log.info(
                "%s has more than %d message(s): %d (%s) are dropped",
                self._label(member),
                snapshot.destination.messages_limit_override,
                picks.count,
                picks.text(10),
            )
        named = {"of_whole": True} if of_whole else {}
        return state.limited(last, picks, f"limit-{secrets.token_hex(8)}", epoch, self._clock_ms(), **named)

    def _enforce_whole(
        self, state: RecordSet, snapshot: Snapshot, member: int, epoch: int, others: Callable[[int], RecordSet]
    ) -> RecordSet:
        if not self.may_have_arrived(snapshot, member) or state.outbox.is_full:
            return state
        last, limit = snapshot.last_sequence(member), snapshot.destination.messages_limit_override
        states = {m: state if m == member else others(m) for m in snapshot.destination.member_ids}
        if _unfinished(states, snapshot) > limit:
            for m, each in states.items():  # of the others, in memory alone
                states[m] = self._without_others(each, snapshot, m, snapshot.last_sequence(m), epoch, 0)
            state = states[member]
        excess = _unfinished(states, snapshot) - limit
        picks = self._heads(states, snapshot, excess).get(member, EMPTY) if excess > 0 else EMPTY
        if excess > 0 and (picks or last > state.limit.arrived):
            return self._limited(state, snapshot, member, epoch, last, picks, of_whole=True)
        self._looked[member] = all_arrived(snapshot)
        return state

    def may_have_arrived(self, snapshot: Snapshot, member: int) -> bool:
        """Of a replicated topic: something, in any member, since this process found nothing to drop in this one."""
        limit = snapshot.destination.messages_limit_override
        return limit != UNLIMITED and self._looked.get(member) != all_arrived(snapshot)

    def _heads(self, states: Mapping[int, RecordSet], snapshot: Snapshot, excess: int) -> dict[int, Ranges]:
        """By member, what the whole subscription drops."""
        order = SortOrder.of(snapshot.destination.destination_keys)
        news = any(_has_news(state, snapshot, member) for member, state in states.items())
        found: dict[int, Ranges] = {}
        for member, state in states.items():
            free = state.available(1, snapshot.last_sequence(member))
            if (
                not news
            ):  # another holder has seen the last arrival: what consumers had then is immune until the next one
                free -= union(state.redelivered(free).values())
            if free:
                found[member] = free
        if not found:
            return {}
        arrivals = Arrivals.of({member: (free, self._times(snapshot, member, free)) for member, free in found.items()})
        if not order:
            return arrivals.first(arrivals.order, excess)
        keys, redelivered = list[pa.Table](), list[pa.BooleanArray]()
        for member, free in found.items():
            numbers, rows = self._sorted.keys(snapshot, member, free, order)
            keys.append(rows)
            redelivered.append(pc.is_in(numbers, union(states[member].redelivered(free).values()).numbers()))
        rows, again = pa.concat_tables(keys).take(arrivals.order), pa.concat_arrays(redelivered).take(arrivals.order)
        places = order.by_keys(rows, counting(0, len(arrivals.order)), again)
        return arrivals.first(arrivals.order.take(places), excess)

    def _times(self, snapshot: Snapshot, member: int, messages: Ranges) -> pa.Int64Array:
        """When each was sent."""
        _, rows = self._sorted.keys(snapshot, member, messages, BY_TIME)
        return rows.column(0).combine_chunks()

    def _without_others(
        self, state: RecordSet, snapshot: Snapshot, member: int, last: int, epoch: int, begun: int
    ) -> RecordSet:
        """Finishes messages behind `begun` that were never in the subscription: its selector refuses them, or its server was
        down."""
        destination, stamp = snapshot.destination, Stamp(epoch, self._clock_ms())
        not_seen = missed(destination, self._subscription, member, last)
        if not_seen and not destination.store_enabled:
            state = state.skip(not_seen, SERVER_WAS_DOWN, stamp)
        if not (self._selector or not_seen):
            return state
        of_units = EMPTY
        if destination.handles_units_of_work:
            of_units, verdict = self._judged(state, snapshot, member, last)
            state = state.skip(verdict.refused, SELECTOR_REFUSED, stamp)
        question = Question(self._selector, skips_refused=True, missed=not_seen)
        new = state.available(begun + 1, last) - of_units
        found = scan(self._table, member, new, question, table_id=snapshot.table_id)
        if found.missed:
            state = state.skip(found.missed, SERVER_WAS_DOWN, stamp)
        return state.skip(found.refused, SELECTOR_REFUSED, stamp) if found.refused else state

    def _expired(self, snapshot: Snapshot, member: int, picks: Ranges) -> Ranges:
        """Those that leave by the policy of the destination: it logs or redirects them, if it does not discard them."""
        if not picks or snapshot.destination.expiration_policy == DISCARD:
            return EMPTY
        question = Question(now_ms=self._clock_ms(), due_ms=_FOR_EVER_MS)
        files = snapshot.member_files(member).overlapping(picks.first, picks.last)
        may = union(picks.between(file.first, file.last) for file in files if may_expire(file))
        return scan(self._table, member, may, question, table_id=snapshot.table_id).expired if may else EMPTY

    def _droppable(self, state: RecordSet, snapshot: Snapshot, member: int, last: int) -> Droppable:
        """Available messages; of units of work, the complete ones."""
        destination, free = snapshot.destination, state.available(1, last)
        order = SortOrder.of(destination.destination_keys)
        if order:
            offer = self._sorted.offer(snapshot, member, state, free, order) if free else Offer()
        elif destination.handles_units_of_work:
            offer = self._with_whole_units(state, snapshot, member, last)
        else:
            offer = Offer(free)
        return Droppable(offer.picks, offer.order, offer.ends)

    def _with_whole_units(self, state: RecordSet, snapshot: Snapshot, member: int, last: int) -> Offer:
        of_units, verdict = self._judged(state, snapshot, member, last)
        return together(Offer(state.available(1, last) - of_units), verdict)

    def _judged(self, state: RecordSet, snapshot: Snapshot, member: int, last: int) -> tuple[Ranges, WorkVerdict]:
        """The unfinished parts of units of work, and what becomes of them; delays do not matter."""
        messages = state.unfinished(1, last)
        parts = read_parts(self._table, member, messages, self._selector, snapshot.table_id).sort_by("sequence")
        of_units = Ranges.from_numbers(parts["sequence"].combine_chunks())
        expiration_ms = snapshot.destination.incomplete_work_expiration_ms
        free = state.available(1, last) & of_units
        return of_units, judge(parts, free, self._clock_ms(), expiration_ms, _FOR_EVER_MS)


def is_over(state: RecordSet, snapshot: Snapshot, member: int) -> bool:
    """Something has arrived since the limit was applied, and there may be no room for it."""
    limit, last = snapshot.destination.messages_limit_override, snapshot.last_sequence(member)
    if limit == UNLIMITED or max(state.limit.arrived, state.floor) >= last:
        return False
    return state.unfinished(1, last).count > limit and bool(state.unfinished(state.limit.arrived + 1, last))


def all_arrived(snapshot: Snapshot) -> int:
    """How many messages a replicated topic has had, in all members."""
    return sum(snapshot.last_sequence(member) for member in snapshot.numbered_members())


def _has_news(state: RecordSet, snapshot: Snapshot, member: int) -> bool:
    """Something has arrived in this member to which the limit was not applied."""
    return snapshot.last_sequence(member) > max(state.limit.arrived, state.floor)


def _unfinished(states: Mapping[int, RecordSet], snapshot: Snapshot) -> int:
    return sum(state.unfinished(1, snapshot.last_sequence(member)).count for member, state in states.items())


class FreeRecordLimits:
    """Applies the limit to the record sets of a destination without a live consumer: housekeeping calls it."""

    def __init__(self, table: DeltaLog, clock_ms: Callable[[], int]) -> None:
        self._table, self._clock_ms = table, clock_ms
        self._limits: dict[tuple[str, str, str | None], SubscriptionLimit] = {}

    def enforce(
        self,
        session: Session,
        snapshot: Snapshot,
        subscriptions: Iterable[Subscription],
        state_of: Callable[[str, int], RecordSet | None],
        away: Container[str],
    ) -> None:
        """`state_of` reads the record set of a subscription and member, and returns None where a consumer lives; an old state will
        do. Servers of `away` are not asked, and one whose store fails waits for the next round."""
        declared = snapshot.destination
        for subscription in subscriptions:
            for member in declared.member_ids:
                server = record_server(declared, subscription.name, member)
                if server in away:
                    continue
                try:
                    states = self._maybe_over(subscription, snapshot, member, partial(state_of, subscription.name))
                    if states is not None:
                        self._enforce(session, snapshot, subscription, member, states.__getitem__)
                except RecordCorruptError:
                    raise
                except StoreError as error:
                    if server == HOME:
                        raise
                    log.warning("%s: server %s cannot be asked: %s", declared.name, server, error)

    def _maybe_over(
        self, subscription: Subscription, snapshot: Snapshot, member: int, state_of: Callable[[int], RecordSet | None]
    ) -> dict[int, RecordSet] | None:
        """The record sets that share the limit, where they may be over it and no consumer lives."""
        declared = snapshot.destination
        if declared.is_replicated and not self._limit(snapshot, subscription).may_have_arrived(snapshot, member):
            return None
        together = declared.member_ids if declared.is_replicated else (member,)
        known = {m: state for m in together if (state := state_of(m)) is not None}
        if len(known) < len(together):
            return None
        if declared.is_replicated:
            return known if _unfinished(known, snapshot) > declared.messages_limit_override else None
        return known if is_over(known[member], snapshot, member) else None

    def _enforce(
        self,
        session: Session,
        snapshot: Snapshot,
        subscription: Subscription,
        member: int,
        others: Callable[[int], RecordSet],
    ) -> None:
        record = record_of(snapshot, subscription.name, member)
        try:
            handle = session.open(record)
        except RecordHeldError:  # an administrator has it, or a consumer of an earlier release, which applies the limit
            session.cancel(record)
            return
        with handle:
            if is_durable(
                subscription.name
            ):  # it may be dropped by now, and its record empty for a later one of its name
                snapshot = self._table.refresh()
                known = snapshot.destination.subscriptions.get(subscription.name)
                if known is None or record != record_of(snapshot, known.name, member):
                    return
                subscription = known
            label = label_of(snapshot.destination.name, subscription.name, member)
            logged = snapshot.destination.message_logging_enabled
            before = opened_state(handle, label).logging(is_on=logged, now_ms=self._clock_ms())
            started = before.start_at(subscription.floor(member, snapshot.last_sequence(member)))
            begun = without_lost(started, snapshot, member, label, Stamp(handle.epoch, self._clock_ms()))
            after = self._limit(snapshot, subscription).enforce(begun, snapshot, member, handle.epoch, others)
            if after is not begun:
                handle.commit(operations(before, after))

    def _limit(self, snapshot: Snapshot, subscription: Subscription) -> SubscriptionLimit:
        key, name = (snapshot.table_id, subscription.name, subscription.selector), snapshot.destination.name
        if key not in self._limits:
            from spark_jms.core.selector import Selector

            self._limits[key] = SubscriptionLimit(
                self._table,
                subscription.name,
                Selector.parse(subscription.selector or ""),
                lambda member: label_of(name, subscription.name, member),
                self._clock_ms,
            )
        return self._limits[key]
