"""Where each message is: in one place at any time, and it leaves a record set once, for one reason (C5, C8, C18, T6).

    came to the member = acknowledged + moved elsewhere + expired + dropped by the redelivery limit + present

holds for each member of each destination between any two steps, whatever has died: what came is what was sent there and what
transfers have brought. A message is dropped only where there is no error destination, and does
not expire before its time, or where expired messages are redirected.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.record_set import RecordSet
from spark_jms.settings.destination import UNLIMITED
from tests.models.queue.clock import Clock
from tests.models.queue.consumers import ConsumerProcess
from tests.models.queue.revocations import Revocations
from tests.models.queue.rules import Rules
from tests.models.queue.tables import ModelDestination, Place, Tables

ACKNOWLEDGED, MOVED, DROPPED, EXPIRED = "acknowledged", "moved", "dropped", "expired"
NEW = RecordSet()


@dataclass
class Conservation:
    tables: Tables
    consumers: list[ConsumerProcess]
    rules: Rules
    clock: Clock
    revocations: Revocations
    over: set[str] = field(default_factory=set)  # texts of messages that have left for good without an acknowledgement
    left: dict[tuple[str, int], Counter[str]] = field(default_factory=dict)  # table, member -> why messages left it
    _finished: set[Place] = field(default_factory=set)
    _counted: list[int] = field(default_factory=list)  # how many finished messages of each consumer were looked at

    def look(self) -> None:
        """At what has happened since the last look, before the record sets are checked."""
        self._counted += [0] * (len(self.consumers) - len(self._counted))
        for number, consumer in enumerate(self.consumers):
            for row in consumer.finished[self._counted[number] :]:
                self._finished.add(Place(row.table, row.member, row.sequence))
            self._counted[number] = len(consumer.finished)
        self.tables.note_arrivals()
        arrived, self.tables.arrived = self.tables.arrived, []
        states = {d.table_id: self.tables.states(d) for d in self.tables.living()} if arrived else {}
        for place in arrived:
            course = self.tables.courses[self.tables.texts[place]]
            origin = course[course.index(place) - 1]
            if origin.table in states and place.table in states:
                state, alone = states[origin.table][origin.member], Ranges.of((origin.sequence, origin.sequence))
                stays = state.unfinished_of(alone) - state.moving
                assert not stays, f"{self.tables.texts[place]} is in two places: {origin} and {place}"

    def check(self, destination: ModelDestination, member: int, before: RecordSet, after: RecordSet, last: int) -> None:
        """A record set has changed."""
        table = destination.table_id
        left = self.left.setdefault((table, member), Counter())
        present = after.unfinished(1, last)
        for sequence in (before.unfinished(1, last) - present).numbers().tolist():
            place = Place(table, member, sequence)
            why = self._reason(place)
            assert why, f"{self.tables.texts[place]} has left {destination.name}, member {member}, for no reason"
            left[why] += 1
            if why not in (ACKNOWLEDGED, MOVED):
                self.over.add(self.tables.texts[place])
        came = left.total() + present.count
        assert came == last, f"{came} message(s) of {destination.name}, member {member}, are accounted for, {last} came"
        for sequence in ((before.moving - after.moving) & present).numbers().tolist():
            place = Place(table, member, sequence)
            there = self.tables.courses[self.tables.texts[place]][-1]
            alive = there.table in {d.table_id for d in self.tables.living()}
            assert there == place or not alive, f"{self.tables.texts[place]} is back at {place}, and at {there}"

    def _reason(self, place: Place) -> str:
        """Empty if there is none."""
        if not self.tables.is_last(place):
            return MOVED
        if place in self._finished:
            return ACKNOWLEDGED
        of_orders = place.table == self.tables.orders.table_id
        if self.tables.is_over(place, self.clock.ms()) and not (of_orders and self.rules.redirects):
            return EXPIRED
        limit = self.rules.redelivery_limit
        may_drop = limit != UNLIMITED and not self.rules.keeps_failed and self.revocations.returns[place] > limit
        return DROPPED if may_drop and of_orders else ""
