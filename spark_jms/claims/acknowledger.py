"""Acknowledging and releasing parts of open claims, as a plain client does.

Features: C8, C11 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from spark_jms.claims.members import Members
from spark_jms.claims.planner import Planner
from spark_jms.core.pledge import Pledge
from spark_jms.core.ranges import Ranges
from spark_jms.core.record_set import RecordSet
from spark_jms.core.redelivery import delay_end_ms
from spark_jms.core.transfer import Ticket

Parts = dict[str, dict[int, Ranges]]  # claim -> member -> messages


class Acknowledger:
    """Not thread-safe: the subscriber's lock guards it."""

    def __init__(self, members: Members, planner: Planner, clock_ms: Callable[[], int]) -> None:
        self._members, self._planner, self._clock_ms = members, planner, clock_ms

    def acknowledge(self, parts: Mapping[str, Mapping[int, Ranges]], *, whole: bool = False) -> Parts:
        """See `Subscriber.acknowledge`."""
        if whole and not all(self._members.open(member) for members in parts.values() for member in members):
            return {claim: dict(members) for claim, members in parts.items()}
        session = self._members.session_id

        def finished(state: RecordSet, epoch: int, now: int, claim: str, part: Ranges) -> RecordSet:
            return state.acknowledge(self._members.consumer, session, claim, epoch, now, part)

        return self._change(parts, finished)

    def pledge(self, parts: Mapping[str, Mapping[int, Ranges]], ticket: Ticket, coordinator: str) -> Parts:
        """See `Subscriber.pledge`."""
        session = self._members.session_id

        def pledged(state: RecordSet, _: int, now: int, claim: str, part: Ranges) -> RecordSet:
            return state.pledge(session, Pledge(ticket, coordinator, part, self._members.consumer, claim, now))

        return self._change(parts, pledged)

    def end_pledges(self, members: Iterable[int], ticket: Ticket, *, committed: bool, delay_ms: int) -> None:
        """See `Subscriber.end_pledges`."""
        now, changed = self._clock_ms(), dict[int, RecordSet]()
        for member in members:
            if not self._members.open(member):
                continue
            state, epoch = self._members.attached_state(member), self._members.held[member].handle.epoch
            if committed:
                changed[member] = state.fulfilled(ticket, epoch, now)
            else:
                self._planner.restart(member)  # returned messages lie before what the pass has looked at
                changed[member] = state.withdrawn(ticket, now, delay_end_ms(now, delay_ms))
        self._members.commit(changed)

    def _change(
        self,
        parts: Mapping[str, Mapping[int, Ranges]],
        change: Callable[[RecordSet, int, int, str, Ranges], RecordSet],
    ) -> Parts:
        """In one write. Returns the parts on members whose record another consumer holds."""
        changed: dict[int, RecordSet] = {}
        left: Parts = {}
        for claim, members in parts.items():
            for member, part in members.items():
                if not self._members.open(member):
                    left.setdefault(claim, {})[member] = part
                    continue
                state = changed.get(member) or self._members.attached_state(member)
                epoch = self._members.held[member].handle.epoch
                changed[member] = change(state, epoch, self._clock_ms(), claim, part)
        self._members.commit(changed)
        return left

    def release(self, claim: str, parts: Mapping[int, Ranges], *, delivered: bool, delay_ms: int) -> bool:
        """See `Subscriber.release`."""
        if not all(self._members.open(member) for member in parts):
            return False
        for member in parts:
            self._planner.restart(member)  # released messages lie before what the pass has looked at
        until = delay_end_ms(self._clock_ms(), delay_ms)
        states = {m: self._members.attached_state(m) for m in parts}
        self._members.commit(
            {m: s.release(claim, parts[m], delivered=delivered, until_ms=until) for m, s in states.items()}
        )
        return True
