"""Bring messages of members without consumers to members that have some, as a job. core/forwarding.py has the rules.

The messages go in transfers, as `jmsq move` takes them, so each is in one member at any time, whenever this process dies: the
transfer that it leaves open is finished by the next process that opens the record. What is forgotten then is how long members
have been idle: their waits begin again.

Features: D5 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_jms.admin.move import MoveOrder, move
from spark_jms.claims.member_consumers import AskedMember, ask_members
from spark_jms.core.destination import Destination
from spark_jms.core.forwarding import Forward, IdleMembers, LookedAt, forwards, staying
from spark_jms.core.pause import CONSUMPTION, INSERTION, PRODUCTION
from spark_jms.core.ranges import Ranges
from spark_jms.core.selector import Selector
from spark_jms.errors import JmsqError
from spark_jms.log.domain import Domain
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.storage import now_ms
from spark_jms.store import Store, StoreError

FORWARDER = "jmsq forward"  # the consumer in the acknowledgement table
ROUND = 10_000  # the most messages of a member in one round
WAIT_S = 1.0  # for a record that a consumer holds
STORE_LIMIT_S = 15.0  # of one call of a store: one that hangs must not hold up the other destinations
_WITHOUT_UNIT = "JMSXGroupID IS NULL"  # those of before the declaration may have one, and stay
log = logging.getLogger("spark_jms")


def _not_inserting(declared: Destination) -> frozenset[int]:
    """Members that get no messages: paused ones, and those that are leaving."""
    paused = (declared.pauses.members(operation, declared.member_ids) for operation in (INSERTION, PRODUCTION))
    return declared.leaving.union(*paused)


def _movable(one: AskedMember, snapshot: Snapshot) -> Ranges:
    """With claims of dead consumers: `move` revokes them, because no consumer comes that would."""
    available = one.state.available(1, snapshot.last_sequence(one.member))
    return (available | one.left_behind) - staying(one.state, snapshot.destination.redelivery_limit, now_ms())


@dataclass(frozen=True)
class Forwarded:
    """What one round has done to a destination. `problems`: why some messages were not forwarded; they are tried again."""

    destination: str
    moves: tuple[Forward, ...] = ()
    problems: tuple[str, ...] = ()


class MemberForwarder:
    """Of one destination. Call `run` about once a second. Several processes may forward the same destination."""

    def __init__(
        self, domain: Domain, store: Store, destination: str, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._domain, self._store, self._destination = domain, store, destination
        self._monotonic_s = monotonic_s
        self._idle = IdleMembers({})
        self._turn = 0

    def run(self) -> Forwarded:
        """Does nothing for a destination without `forwardDelay`. Raises InvalidDestinationError when it was dropped."""
        snapshot = self._domain.log(self._destination).refresh()
        declared = snapshot.destination
        if declared.forward_delay_ms is None:
            self._idle = IdleMembers({})
            return Forwarded(self._destination)
        asked = ask_members(self._store, snapshot)
        looks = [LookedAt(one.member, _movable(one, snapshot).count, one.consumers) for one in asked.members]
        now_s = self._monotonic_s()
        self._idle = self._idle.after(looks, now_s)
        self._turn += 1
        plan = forwards(
            looks,
            self._idle.due(declared.forward_delay_ms / 1000, now_s),
            not_consuming=declared.pauses.members(CONSUMPTION, declared.member_ids),
            not_inserting=_not_inserting(declared),
            turn=self._turn,
        )
        done: list[Forward] = []
        problems = [f"server {server}: {why}" for server, why in asked.unreachable.items()]
        for step in plan:
            self._carry_out(step, snapshot.table_id, done, problems)
        return Forwarded(self._destination, tuple(done), tuple(problems))

    def _carry_out(self, step: Forward, table_id: str, done: list[Forward], problems: list[str]) -> None:
        order = MoveOrder(
            self._destination,
            self._destination,
            members=(step.source,),
            target_member=step.target,
            selector=Selector.parse(_WITHOUT_UNIT),
            limit=min(step.messages, ROUND),
            actor=FORWARDER,
            forwards=True,
            table_id=table_id,
        )
        try:
            moved = move(self._domain, self._store, order, WAIT_S).moved
        except (JmsqError, StoreError, OSError) as error:
            problems.append(f"member {step.source} to {step.target}: {type(error).__name__}: {error}")
            return
        if moved:
            done.append(Forward(step.source, step.target, moved))
            log.info(
                "%s: forwarded %d message(s) of member %d to %d", self._destination, moved, step.source, step.target
            )


class Forwarders:
    """Of several destinations."""

    def __init__(self, domain: Domain, store: Store, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._domain, self._store, self._monotonic_s = domain, store, monotonic_s
        self._forwarders: dict[str, MemberForwarder] = {}

    def run(self, destinations: Sequence[str] = ()) -> list[Forwarded]:
        """One round of these destinations, or of all. What fails for one is in its `problems`, and the others continue."""
        try:
            names = list(dict.fromkeys(destinations)) or self._domain.destinations()
        except (JmsqError, OSError) as error:
            return [Forwarded("", problems=(f"{type(error).__name__}: {error}",))]
        return [self._run(name) for name in names]

    def _run(self, name: str) -> Forwarded:
        if name not in self._forwarders:
            self._forwarders[name] = MemberForwarder(self._domain, self._store, name, self._monotonic_s)
        try:
            return self._forwarders[name].run()
        except (JmsqError, StoreError, OSError) as error:
            return Forwarded(name, problems=(f"{type(error).__name__}: {error}",))
