"""Reading the backlog of a consumer's subscription, also on members that other consumers hold.

Features: C14 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_jms.claims.members import Members
from spark_jms.claims.record_sets import read_state
from spark_jms.core.active_subscription import LiveSubscription
from spark_jms.core.placement import HOME
from spark_jms.core.ranges import Ranges
from spark_jms.core.record_set import RecordSet
from spark_jms.core.subscription_place import recorded_on
from spark_jms.log.snapshot import Snapshot
from spark_jms.store import Store


class BacklogReader:
    """Not thread-safe: the subscriber's lock guards it."""

    def __init__(self, store: Store, members: Members, live: LiveSubscription | None, server: str = HOME) -> None:
        self._store, self._members, self._live, self._server = store, members, live, server

    def backlog(self, snapshot: Snapshot) -> dict[int, int]:
        """member -> unfinished messages."""
        return {
            member: self.unfinished(self.state(member), snapshot, member, snapshot.last_sequence(member)).count
            for member in recorded_on(snapshot.destination, self._server, self._members.subscription)
        }

    def refused(self, snapshot: Snapshot, refused: Mapping[int, Ranges]) -> dict[int, int]:
        """member -> how many of these messages, which the consumer's selector refuses, are unfinished."""
        out = {}
        for member, messages in refused.items():
            unfinished = self.unfinished(self.state(member), snapshot, member, snapshot.last_sequence(member))
            if left := messages & unfinished:
                out[member] = left.count
        return out

    def state(self, member: int) -> RecordSet:
        """As this consumer holds it, or as last committed."""
        held = self._members.held.get(member)
        return (
            held.state if held else read_state(self._store, self._members.record(member), self._members.label(member))
        )

    def unfinished(self, state: RecordSet, snapshot: Snapshot, member: int, last: int) -> Ranges:
        """The messages up to `last` that the subscription has not finished."""
        if self._live is not None:
            floor = self._live.subscription.floors.get(member, 0)
        else:
            floor = snapshot.destination.start_floor(self._members.subscription, member)
        return state.unfinished(floor + 1, last) - snapshot.lost_of(member)
