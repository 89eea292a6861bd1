"""Reading the backlog of a consumer's subscription, also on members that other consumers hold (C14)."""

from __future__ import annotations

from collections.abc import Mapping

from spark_jms.claims.members import Members
from spark_jms.claims.record_sets import read_state
from spark_jms.core.active_subscription import LiveSubscription
from spark_jms.core.placement import HOME
from spark_jms.core.ranges import EMPTY, Ranges, union
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
            member: self._unfinished(self._state(member), snapshot, member, snapshot.last_sequence(member)).count
            for member in recorded_on(snapshot.destination, self._server, self._members.subscription)
        }

    def refused(self, snapshot: Snapshot, refused: Mapping[int, Ranges]) -> dict[int, int]:
        """member -> how many of these messages, which the consumer's selector refuses, are unfinished."""
        out = {}
        for member, messages in refused.items():
            unfinished = self._unfinished(self._state(member), snapshot, member, snapshot.last_sequence(member))
            if left := messages & unfinished:
                out[member] = left.count
        return out

    def left_to_others(
        self, snapshot: Snapshot, targets: Mapping[int, int], refused: Mapping[int, Ranges]
    ) -> dict[int, int]:
        """member -> unfinished messages up to `targets` that another consumer holds, by its record or a claim."""
        out = {}
        for member, last in targets.items():
            state = self._state(member)
            left = self._unfinished(state, snapshot, member, last) - refused.get(member, EMPTY)
            if member in self._members.held:
                left = left & union(c.picks for c in state.claims.values() if c.consumer != self._members.consumer)
            if left:
                out[member] = left.count
        return out

    def _state(self, member: int) -> RecordSet:
        held = self._members.held.get(member)
        return (
            held.state if held else read_state(self._store, self._members.record(member), self._members.label(member))
        )

    def _unfinished(self, state: RecordSet, snapshot: Snapshot, member: int, last: int) -> Ranges:
        if self._live is not None:
            floor = self._live.subscription.floors.get(member, 0)
        else:
            floor = snapshot.destination.start_floor(self._members.subscription, member)
        return state.unfinished(floor + 1, last)
