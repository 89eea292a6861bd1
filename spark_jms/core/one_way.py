"""One-way sends: which sends need not wait, and what a failed one does to its producer. Pure.

A connection factory with `oneWaySendMode` lets producers send without waiting. The first rule of UPGRADES that holds makes a send
two-way: it waits, also for the one-way sends before it. WebLogic's other cases cannot occur here, or concern other calls: XA
and transacted sessions are `send_many(transaction=…)`, which always waits, as `send_table` and `send_unit_of_work` do.

Every `oneWaySendWindowSize`-th send in a row is two-way too. What a one-way send that fails does depends on its error:

    state      event      next       so
    -----      -----      ----       --
    OPEN       DELETED    TWO_WAY    the message is deleted and counted: over quota, paused, its server down
    OPEN       FAILED     CLOSED     the message is lost; the producer is closed, and the application learns it
    TWO_WAY    WAITED     OPEN       a two-way send has succeeded: the condition is over

Features: T11 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from spark_jms.core.address import DestinationAddress
from spark_jms.core.destination import Destination
from spark_jms.core.message import NON_PERSISTENT
from spark_jms.core.pause import INSERTION, PRODUCTION
from spark_jms.core.placement import HOME
from spark_jms.settings.connection_factory import TOPIC_ONLY, ConnectionFactory


class OneWayState(Enum):
    OPEN = "open"
    TWO_WAY = "two-way"
    CLOSED = "closed"


class OneWayEvent(Enum):
    WAITED = "a two-way send has succeeded"
    DELETED = "a one-way send was refused for the state of its destination"
    FAILED = "a one-way send has failed"


_S, _E = OneWayState, OneWayEvent
TRANSITIONS: dict[tuple[OneWayState, OneWayEvent], OneWayState] = {
    (_S.OPEN, _E.WAITED): _S.OPEN,
    (_S.OPEN, _E.DELETED): _S.TWO_WAY,
    (_S.OPEN, _E.FAILED): _S.CLOSED,
    (_S.TWO_WAY, _E.WAITED): _S.OPEN,
    (_S.TWO_WAY, _E.DELETED): _S.TWO_WAY,
    (_S.TWO_WAY, _E.FAILED): _S.CLOSED,
    (_S.CLOSED, _E.WAITED): _S.CLOSED,  # another thread's, which was under way
    (_S.CLOSED, _E.DELETED): _S.CLOSED,
    (_S.CLOSED, _E.FAILED): _S.CLOSED,
}


@dataclass(frozen=True)
class OneWayRule:
    """Of one producer: its connection factory, the address that it was made for, and its connection's home server (None: it
    has none, and is on the domain's own)."""

    factory: ConnectionFactory
    address: DestinationAddress
    home: str | None


@dataclass(frozen=True)
class OneWayCase:
    """One message, on its way to a destination as the sender knows it."""

    rule: OneWayRule
    destination: Destination
    delivery_mode: int
    group_id: str | None
    unit_of_work: object

    def members(self) -> list[int]:
        named = self.rule.address.members(self.destination)
        return list(self.destination.member_ids) if named is None else named


def _spread(case: OneWayCase) -> bool:
    """WebLogic sends one-way to a physical member, not to the logical name. `home@orders` may name several members."""
    return case.destination.kind.startswith("distributed-") and (
        case.rule.address.server is None or len(case.members()) > 1
    )


def _elsewhere(case: OneWayCase) -> bool:
    host = case.rule.home or HOME
    return any(case.destination.server_of(member) != host for member in case.members())


def _stopped(case: OneWayCase) -> bool:
    members, pauses = case.members(), case.destination.pauses
    paused = pauses.members(PRODUCTION, members) | pauses.members(INSERTION, members)
    return bool(paused) or not case.destination.down_members.isdisjoint(members)


UPGRADES: tuple[tuple[str, Callable[[OneWayCase], bool]], ...] = (
    (
        "the connection factory lets only topics' messages go one-way",
        lambda case: case.rule.factory.one_way_send_mode == TOPIC_ONLY and not case.destination.is_topic,
    ),
    ("the message is persistent", lambda case: case.delivery_mode != NON_PERSISTENT),
    (
        "the message has a unit of order",
        lambda case: case.group_id is not None or case.destination.default_unit_of_order is not None,
    ),
    ("the message is part of a unit of work", lambda case: case.unit_of_work is not None),
    ("the address names a distributed destination, not one member of it", _spread),
    ("the member is not on the server of the connection", _elsewhere),
    ("production or insertion is paused, or the server is down", _stopped),
)


def two_way_reason(case: OneWayCase) -> str | None:
    """Why this message is sent two-way; None: it may go one-way, if the window and the producer's state allow."""
    if not case.rule.factory.sends_one_way:
        return "the connection factory does not allow one-way sends"
    return next((reason for reason, holds in UPGRADES if holds(case)), None)
