"""What must hold in the model, at any time and at the end, beside conservation.py."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from spark_jms.core.destinations.pause import CONSUMPTION
from spark_jms.core.messages.ranges import Ranges, union
from spark_jms.core.records.batch import Batch, claim_number
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.refusal import holding_back, messages_of
from spark_jms.core.records.stored_form import consumer_record
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.settings.destination import UNLIMITED
from spark_jms.store import MemoryStore
from spark_jms.testing.inside import members_of
from tests.models.queue.clock import Clock
from tests.models.queue.conservation import NEW, Conservation
from tests.models.queue.consumers import ConsumerProcess, DeliveredRow, Query
from tests.models.queue.crowd import Crowd
from tests.models.queue.revocations import Revocations
from tests.models.queue.rules import Rules
from tests.models.queue.senders import Senders
from tests.models.queue.tables import Place, Tables


@dataclass
class Account:
    tables: Tables
    store: MemoryStore
    senders: Senders
    conservation: Conservation
    clock: Clock
    rules: Rules
    revocations: Revocations
    claims: dict[Place, list[str]] = field(default_factory=dict)  # of messages that wait before they come again
    _checked: dict[tuple[str, int], RecordSet] = field(default_factory=dict)
    newest: dict[tuple[str, str], int] = field(
        default_factory=dict
    )  # table, consumer -> the number of its newest claim
    planned: Snapshot | None = None  # what the newest plan of a consumer has seen of the log

    def check_claim(self, consumer: ConsumerProcess, batch: Batch) -> None:
        """A consumer claims messages of the living table only. One consumer at a time has messages of a unit of order, and
        none before the earlier ones of the unit are finished or its own. Only the instance that holds the query's record
        claims, and no number comes twice."""
        name, orders = consumer.name, self.tables.orders
        assert batch.table == orders.table_id, f"{name} has claimed messages of a destination that was dropped"
        self.tables.note_arrivals()  # a plan finishes open transfers
        states, groups, snapshot = self.tables.states(orders), self.senders.groups, self.tables.snapshot(orders)
        for member, pick in batch.members.items():
            others = union(c.picks for c in states[member].claims.values() if c.consumer != batch.consumer)
            held = {groups[text] for text in self.tables.texts_of(batch.table, member, others)} - {None}
            got = {groups[text] for text in self.tables.texts_of(batch.table, member, pick.picks)}
            assert not held & got, f"{name} got units of order {held & got} that other consumers have"
            self._check_redelivery(name, batch, member, states[member])
            places = (Place(batch.table, member, sequence) for sequence in pick.picks.numbers().tolist())
            late = [place.sequence for place in places if self.tables.is_over(place, self.clock.ms())]
            assert not late, f"{name} got expired messages: {late}"
            paused = snapshot.destination.pauses.find(CONSUMPTION, member)
            assert not paused, f"{name} got messages of member {member}, whose consumption is paused"
            refused = messages_of(states[member].refusals) & pick.picks
            assert not refused, f"{name} got messages that are refused for good: {refused}"
            if self.rules.sorts and consumer.selector is None and not snapshot.destination.pauses:
                assert self.planned is not None
                seen = self.planned.last_sequence(member)  # the plan itself may finish a transfer between members
                self._check_priority(name, batch, member, states[member].available(1, seen))
            self._check_unit_order(name, batch, member, states[member])
        if isinstance(consumer, Query):
            assert consumer.subscriber is not None
            info = self.store.info(consumer_record(batch.table, "-", batch.consumer))
            assert info is not None, f"{name} claims without a record of its own"
            assert info.holder == members_of(consumer.subscriber).session_id, f"{name} claims beside another instance"
            key, number = (batch.table, batch.consumer), claim_number(batch.claim)
            assert number > self.newest.get(key, 0), f"{name} gives claim number {number} again"
            self.newest[key] = number

    def _check_redelivery(self, name: str, batch: Batch, member: int, state: RecordSet) -> None:
        """No message comes again too often, or too early."""
        pick, limit, revoked = batch.members[member], self.rules.redelivery_limit, self.revocations.until_ms
        shown = max((times for times, ranges in state.deliveries.shown.items() if ranges & pick.picks), default=0)
        assert limit == UNLIMITED or shown <= limit, (
            f"{name} got a message for the {shown + 1}th time, the limit is {limit}"
        )
        if self.rules.redelivery_delay_ms:
            for sequence in pick.picks.numbers().tolist():
                place = Place(batch.table, member, sequence)
                known = self.claims.setdefault(place, [])
                wait_ms = max((revoked.get((claim, place), 0) for claim in known), default=0) - self.clock.ms()
                assert wait_ms <= 0, f"{name} got message {sequence} {wait_ms} ms before its redelivery delay was over"
                known.append(batch.claim)

    def _check_priority(self, name: str, batch: Batch, member: int, available: Ranges) -> None:
        """None that might have come has a higher priority; units of order have ranks of their own."""
        state, now, senders = self.tables.states(self.tables.orders)[member], self.clock.ms(), self.senders
        free = available - state.waiting - state.kept_back(self.rules.redelivery_limit)
        got = self.tables.texts_of(batch.table, member, batch.members[member].picks)
        lowest = min((senders.priorities[text] for text in got if senders.groups[text] is None), default=9)
        for sequence in free.numbers().tolist():
            place = Place(batch.table, member, sequence)
            text = self.tables.texts[place]
            if senders.groups[text] is None and senders.due_ms[text] <= now and not self.tables.is_over(place, now):
                priority = senders.priorities[text]
                assert priority <= lowest, (
                    f"{name} got messages of priority {lowest} before {text} of priority {priority}"
                )

    def _check_unit_order(self, name: str, batch: Batch, member: int, state: RecordSet) -> None:
        picks = batch.members[member].picks
        own = union(c.picks for c in state.claims.values() if c.consumer == batch.consumer)
        stuck: set[str] = set()
        # They block none, since they will never be delivered here; but for those that are refused for good.
        kept_back = state.beyond_limit(self.rules.redelivery_limit) - holding_back(state.refusals)
        for sequence in (state.unfinished(1, picks.last) - (own - picks) - kept_back).numbers().tolist():
            place = Place(batch.table, member, sequence)
            group = self.senders.groups[self.tables.texts[place]]
            if self.tables.is_over(place, self.clock.ms()) and sequence not in picks:
                continue  # it will never be delivered
            if group is not None and sequence in picks:
                assert group not in stuck, f"{name} got message {sequence} of unit {group} before an earlier one"
            elif group is not None:
                stuck.add(group)

    def check_records(self) -> None:
        self.conservation.look()
        for destination in self.tables.living():
            snapshot = self.tables.snapshot(destination)
            for member, state in self.tables.states(destination).items():
                before = self._checked.get((destination.table_id, member), NEW)
                if before is state:
                    continue
                self._checked[destination.table_id, member] = state
                self.conservation.check(destination, member, before, state, snapshot.last_sequence(member))
                claims, intents = state.claims.values(), state.intents.values()
                assert sum(c.picks.count for c in claims) == state.claimed.count, "a message is in two claims"
                assert sum(i.picks.count for i in intents) == state.moving.count, "a message is in two transfers"
                assert not state.claimed & state.moving, "a message is claimed and moving"
                taken = state.claimed | state.moving
                assert state.unfinished_of(taken) == taken, "a message is claimed or moving, and done"
                assert not state.done or state.done.first > state.floor + 1
                assert state.newest_known <= snapshot.last_sequence(member)
                for counts in (state.deliveries.shown, state.deliveries.perhaps):
                    counted = [ranges.all() for ranges in counts.values()]
                    assert sum(r.count for r in counted) == union(counted).count
                    assert not state.done & union(counted)
                refused = messages_of(state.refusals)
                assert sum(one.picks.count for one in state.refusals) == refused.count, "a message is refused twice"
                assert state.unfinished_of(refused) == refused, "a message is refused, and done"

    def finished(self) -> bool:
        for destination in self.tables.living():
            snapshot = self.tables.snapshot(destination)
            for member, state in self.tables.states(destination).items():
                if state.floor != snapshot.last_sequence(member) or state.claims or state.intents:
                    return False
        return True

    def check(self, crowd: Crowd, *, in_order: bool) -> None:
        """At the end. `in_order`: nothing has happened that may change the order of a single query's messages."""
        for table, member, given in self.tables.numbers():
            assert given == list(range(1, len(given) + 1)), f"the sequences of {table}/{member} have gaps"
        every, revoked = defaultdict[Place, list[DeliveredRow]](list), self.revocations.until_ms
        for consumer in crowd.consumers:
            for d in consumer.delivered:
                assert self.tables.text(d.table, d.member, d.sequence) == d.text, f"another message's content: {d}"
                every[Place(d.table, d.member, d.sequence)].append(d)
        received = Counter(
            self.tables.texts[place]
            for place, deliveries in every.items()
            if any((d.claim, place) not in revoked for d in deliveries)
        )
        finished = {d.text for consumer in crowd.consumers for d in consumer.finished}
        lost = set(self.tables.texts.values()) - finished - self.tables.discarded - self.conservation.over
        assert not lost, f"lost: {sorted(lost, key=int)[:10]}"
        doubled = [text for text, places in received.items() if places > 1 and text not in self.tables.returned]
        assert not doubled, f"received, and received again after a move: {doubled[:10]}"
        for place, deliveries in every.items():
            text = self.tables.texts[place]
            deliveries.sort(key=lambda d: d.count)
            for before, after in pairwise(deliveries):
                assert (before.claim, place) in revoked, (
                    f"{text} was delivered twice, and its claim was not revoked: {deliveries}"
                )
                assert after.count > before.count, f"{text} was delivered twice and not flagged: {deliveries}"
        if in_order and not self.rules.sorts and isinstance(crowd.consumers[0], Query) and not revoked:
            for table, member, _ in self.tables.numbers():
                delivered = crowd.consumers[0].delivered
                mine = [d for d in delivered if (d.table, d.member) == (table, member)]
                for group in set(self.senders.groups.values()):
                    along = [d for d in mine if self.senders.groups[d.text] == group]
                    if group is None:  # those of a unit wait for a delayed one
                        along = [d for d in along if d.text not in self.senders.delayed]
                    numbers = [d.sequence for d in along]
                    assert numbers == sorted(numbers), "a single query received a member out of order"
