"""One-way sends as pure rules: each case in which a send waits, and what a failure does (T11)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import attrs
import pytest

from spark_jms.client.sending.producers import OneWaySends
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.pause import CONSUMPTION, INSERTION, PRODUCTION
from spark_jms.core.destinations.routing import DestinationAddress
from spark_jms.core.messages.columns import NON_PERSISTENT, PERSISTENT
from spark_jms.core.transactions.producers import (
    ONE_WAY_TRANSITIONS,
    OneWayCase,
    OneWayEvent,
    OneWayRule,
    OneWayState,
    two_way_reason,
)
from spark_jms.settings.connection_factory import ConnectionFactory

ENABLED = ConnectionFactory(one_way_send_mode="enabled", one_way_send_window_size=100)
ORDERS = Destination(name="orders", kind="queue", members=1)
ON_SERVERS = Destination(name="orders", kind="distributed-queue", members=2, servers=("home", "a"))


def case(
    destination: Destination = ORDERS, address: str = "orders", home: str | None = None, **more: Any
) -> OneWayCase:
    factory = more.pop("factory", ENABLED)
    rule = OneWayRule(factory, DestinationAddress.parse(address), home)
    plain = OneWayCase(rule, destination, NON_PERSISTENT, None, None)
    return replace(plain, **more)


def paused(operation: str) -> Destination:
    return attrs.evolve(ORDERS, pauses=ORDERS.pauses.pause([operation], None, 2, 1))


@pytest.mark.parametrize(
    "allowed",
    [
        case(),
        case(Destination(name="prices", kind="topic", members=1)),
        case(
            Destination(name="prices", kind="topic", members=1),
            factory=attrs.evolve(ENABLED, one_way_send_mode="topicOnly"),
        ),
        case(ON_SERVERS, "home@orders"),
        case(ON_SERVERS, "home@orders", "home"),
        case(Destination(name="orders", kind="distributed-queue", members=4), "home.3@orders"),
        case(ON_SERVERS, "a@orders", "a"),
        case(paused(CONSUMPTION)),
    ],
)
def test_non_persistent_messages_to_one_near_member_go_one_way(allowed: OneWayCase) -> None:
    """T11"""
    assert two_way_reason(allowed) is None


@pytest.mark.parametrize(
    ("upgraded", "because"),
    [
        (case(factory=ConnectionFactory()), "does not allow one-way"),
        (case(factory=attrs.evolve(ENABLED, one_way_send_mode="topicOnly")), "only topics"),
        (case(delivery_mode=PERSISTENT), "persistent"),
        (case(group_id="customer-7"), "unit of order"),
        (case(attrs.evolve(ORDERS, default_unit_of_order="(SystemGenerated)")), "unit of order"),
        (case(factory=attrs.evolve(ENABLED, default_unit_of_order="orders")), "unit of order"),
        (case(unit_of_work="unit"), "unit of work"),
        (case(ON_SERVERS), "distributed"),
        (case(Destination(name="orders", kind="distributed-queue", members=4)), "distributed"),
        (case(Destination(name="orders", kind="distributed-queue", members=4), "home@orders"), "distributed"),
        (case(ON_SERVERS, "a@orders"), "server of the connection"),
        (case(ON_SERVERS, "home@orders", "a"), "server of the connection"),
        (case(attrs.evolve(ON_SERVERS, stopped={"a": 1}), "a@orders", "a"), "paused, or the server is down"),
        (case(paused(PRODUCTION)), "paused"),
        (case(paused(INSERTION)), "paused"),
    ],
)
def test_each_case_of_the_text_is_upgraded(upgraded: OneWayCase, because: str) -> None:
    """T11: to a two-way send."""
    assert because in str(two_way_reason(upgraded))


def test_every_event_has_a_transition_and_closed_is_final() -> None:
    """T11"""
    assert set(ONE_WAY_TRANSITIONS) == {(state, event) for state in OneWayState for event in OneWayEvent}
    assert {ONE_WAY_TRANSITIONS[OneWayState.CLOSED, event] for event in OneWayEvent} == {OneWayState.CLOSED}


@pytest.mark.parametrize("window", [1, 2, 5, 300])
def test_every_send_of_the_window_waits(window: int) -> None:
    """T11: with 1, each."""
    from spark_jms.client import Message

    rule = OneWayRule(attrs.evolve(ENABLED, one_way_send_window_size=window), DestinationAddress("orders"), None)
    sends = OneWaySends(rule, None)
    one_way = []
    for _ in range(3 * window):
        one_way.append(sends.takes(Message(text="a", delivery_mode=NON_PERSISTENT), ORDERS))
        if not one_way[-1]:
            sends.waited()
    assert one_way == [number % window != 0 for number in range(1, 3 * window + 1)]
