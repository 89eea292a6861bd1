"""What tests of flow control share: factories, queues with thresholds that are looked at with each send, and their messages (T5)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from spark_jms.client import Context
from spark_jms.log.destinations import limits
from spark_jms.settings.connection_factory import ConnectionFactory
from spark_jms.testing import memory_domain
from spark_jms.testing.domain import wait_until
from spark_jms.testing.inside import domain_of

FAST = ConnectionFactory(flow_maximum=2000, flow_minimum=1000, flow_interval_ms=0)  # armed: at once to the minimum
GENTLE = ConnectionFactory(flow_maximum=100, flow_minimum=10, flow_interval_ms=20_000, flow_steps=2)
TEN: dict[str, Any] = {"kind": "queue", "messages_threshold_high": 10, "messages_threshold_low": 5}
QUEUES: dict[str, Any] = {
    "orders": TEN,
    "large": {"kind": "queue", "bytes_threshold_high": 50_000, "bytes_threshold_low": 20_000},
    "prices": {**TEN, "kind": "topic"},
    "free": "queue",
}


def look_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(limits, "SHARE_OF_TIME", float("inf"))


@contextlib.contextmanager
def watched_domain(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The root of a domain with these queues."""
    look_always(monkeypatch)
    with memory_domain(**QUEUES) as made:
        yield made


def send(context: Context, destination: str, count: int, text: str = "x") -> None:
    context.producer(destination).send_many({"text": text} for _ in range(count))


def consume(context: Context, destination: str, count: int) -> None:
    """So many messages, acknowledged; returns once the usage without them is published."""
    before = domain_of(context).usage_of(destination).messages
    with context.consumer(destination, acknowledge="individual") as consumer:
        for _ in range(count):
            message = consumer.receive(10)
            assert message is not None
            message.acknowledge()
        wait_until(lambda: domain_of(context).usage_of(destination).messages <= before - count)
