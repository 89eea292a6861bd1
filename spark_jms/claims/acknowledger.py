"""Acknowledging and releasing parts of open claims, as a plain client does (C8, C11)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spark_jms.claims.members import Members
from spark_jms.claims.planner import Planner
from spark_jms.core.ranges import Ranges
from spark_jms.core.record_set import RecordSet
from spark_jms.core.redelivery import delay_end_ms


class Acknowledger:
    """Not thread-safe: the subscriber's lock guards it."""

    def __init__(self, members: Members, planner: Planner, clock_ms: Callable[[], int]) -> None:
        self._members, self._planner, self._clock_ms = members, planner, clock_ms

    def acknowledge(self, parts: Mapping[str, Mapping[int, Ranges]]) -> dict[str, dict[int, Ranges]]:
        """See `Subscriber.acknowledge`."""
        changed: dict[int, RecordSet] = {}
        left: dict[str, dict[int, Ranges]] = {}
        for claim, members in parts.items():
            for member, part in members.items():
                if not self._members.open(member):
                    left.setdefault(claim, {})[member] = part
                    continue
                state = changed.get(member) or self._members.attached_state(member)
                epoch, session = self._members.held[member].handle.epoch, self._members.session_id
                now = self._clock_ms()
                changed[member] = state.acknowledge(self._members.consumer, session, claim, epoch, now, part)
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
