"""Which claims were revoked: only what the store has counts, for a plan that others have overtaken is never written (C8, C9).

A consumer plans to revoke a claim whose session has died, and before its write the claim's consumer comes back. The rule then
decides on the newest state, and leaves the claim alone. So the account notes what record sets were asked for, and looks at each
write for which of that has happened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from spark_jms.claims.servers.stores import read_state
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import Claim
from spark_jms.core.records.stored_form import MEMBERS_PREFIX, from_objects
from spark_jms.core.transactions.transfer import Intent, Ticket
from spark_jms.store import MemoryStore
from tests.models.queue.tables import Place


@dataclass(frozen=True)
class NotedRevocation:
    """`shown`: those of the messages that the application has certainly got."""

    claim: Claim
    picks: Ranges
    shown: Ranges
    until_ms: int


@dataclass
class Revocations:
    store: MemoryStore
    until_ms: dict[tuple[str, Place], int] = field(
        default_factory=dict
    )  # claim, message -> when the message may come again at first
    returns: Counter[Place] = field(
        default_factory=Counter
    )  # how often a message came back that was certainly shown, or that no target of a transfer took
    _noted: list[NotedRevocation] = field(default_factory=list)  # by the process that acts
    _ended: dict[Ticket, Intent] = field(default_factory=dict)  # transfers that no target has taken, as it says

    def note(self, revocation: NotedRevocation) -> None:
        self._noted.append(revocation)

    def note_end(self, intent: Intent) -> None:
        self._ended[intent.ticket] = intent

    def forget(self) -> None:
        """A new plan begins, and what older ones have noted was not written."""
        self._noted, self._ended = [], {}

    @contextmanager
    def of_others(self) -> Iterator[None]:
        """Other processes act, which write nothing of what the present one has noted."""
        noted, self._noted, ended, self._ended = self._noted, [], self._ended, {}
        try:
            yield
        finally:
            self._noted, self._ended = noted, ended

    @contextmanager
    def write(self, records: Iterable[str]) -> Iterator[None]:
        """Around a write of these records."""
        before = {name: self.store.peek(name) for name in records if name.startswith(MEMBERS_PREFIX)}
        yield
        if not (self._noted or self._ended):
            return
        for name, objects in before.items():
            _, table, _, member = name.split("/")
            old, new = from_objects(objects, name), read_state(self.store, name)
            self._count(table, int(member), old, new)

    def _count(self, table: str, member: int, old: RecordSet, new: RecordSet) -> None:
        """What has happened to the record set. Limit and delay concern what was shown."""
        for one in self._noted:
            gone = one.picks & _claimed(old, one.claim.id) - _claimed(new, one.claim.id)
            for sequence in gone.numbers().tolist():
                key = one.claim.id, Place(table, member, sequence)
                certain = sequence in one.shown
                self.returns[key[1]] += certain and key not in self.until_ms
                self.until_ms[key] = one.until_ms if certain else 0
        for ticket, intent in self._ended.items():
            if old.intents.get(ticket.slot) == intent != new.intents.get(ticket.slot):
                self.returns.update(Place(table, member, sequence) for sequence in intent.picks.numbers().tolist())


def _claimed(state: RecordSet, claim: str) -> Ranges:
    return state.claims[claim].picks if claim in state.claims else EMPTY
