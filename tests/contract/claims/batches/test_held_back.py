"""What is told of messages that a selector takes and that wait behind others of their units of order, which it refuses (C7, T10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from spark_jms import connect
from spark_jms.claims.batches.units_of_order import WHAT_TO_DO, HeldBack
from spark_jms.client.receiving.consumer import Consumer
from spark_jms.client.receiving.delivery import HeldBackWarning
from spark_jms.spark.options import parse_options
from spark_jms.spark.source import JmsqStreamReader
from spark_jms.testing import memory_domain
from tests.harness.messages.source_steps import texts_of

LIMIT = ReadMaxRows(1000)
RED = "color = 'red'"
Warnings = Callable[[], list[str]]


@pytest.fixture
def root() -> Iterator[str]:
    """Of unit u, message 2 is blue, and two red ones are behind it; of unit v one is. The last message is of no unit."""
    with memory_domain("file", orders="queue") as where, connect(where, housekeeping=False) as context:
        producer = context.producer("orders")
        for unit, color in (("u", "red"), ("u", "blue"), ("v", "blue"), ("u", "red"), ("v", "red"), ("u", "red")):
            producer.send(text=f"{unit}-{color}", group_id=unit, properties={"color": color})
        producer.send(text="free", properties={"color": "red"})
        yield where


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Warnings:
    return lambda: [r.getMessage() for r in caplog.records if "behind earlier ones of their units" in r.getMessage()]


@contextmanager
def reading(root: str) -> Iterator[Consumer]:
    with connect(root, housekeeping=False) as context, context.consumer("orders", selector=RED) as consumer:
        yield consumer


def test_client_warns_once_of_what_it_does_not_get(root: str, warnings: Warnings) -> None:
    """C7, T10: it names the messages that wait, those that hold them back, and what to do."""
    with reading(root) as consumer:
        received = [consumer.receive(5), consumer.receive(5)]
        assert [message.text for message in received if message] == ["u-red", "free"]
        received[0].acknowledge()  # type: ignore[union-attr]
        assert warnings() == []
        assert consumer.receive(0.5) is None
        assert consumer.receive(0.3) is None
    assert warnings() == [
        "orders: 3 message(s) that the selector takes wait behind earlier ones of their units of order that it refuses: "
        f"2 behind message 2 of unit 'u' on member 0, 1 behind message 3 of unit 'v' on member 0. {WHAT_TO_DO}"
    ]


def test_nothing_is_told_of_what_another_consumer_has(root: str, warnings: Warnings) -> None:
    """C7, T10: it is at work on the refused messages, and the others come after it."""
    with connect(root, housekeeping=False) as context, context.consumer("orders", prefetch=3) as other:
        held = [other.receive(5) for _ in range(3)]
        assert all(held)
        with reading(root) as consumer:
            message = consumer.receive(10)
            assert message is not None
            assert message.text == "free"
            assert consumer.receive(0.5) is None
    assert warnings() == []


def test_progress_of_a_query_counts_what_is_held_back(root: str) -> None:
    """C7, C13, T10: the lag alone would look like a query that does nothing."""
    source = JmsqStreamReader(parse_options({"root": root, "destination": "orders", "selector": RED}))
    try:
        start = source.initialOffset()
        source.latestOffset(start, LIMIT)
        end = source.latestOffset(start, LIMIT)
        assert sorted(texts_of(source, start, end)) == ["free", "u-red"]
        assert source.latestOffset(end, LIMIT) == end
        assert source.reportLatestOffset() == {
            "backlog": 3,
            "refused": 2,
            "heldBack": {
                "messages": 3,
                "behind": [
                    {"member": 0, "unit": "u", "refused": 2, "messages": 2},
                    {"member": 0, "unit": "v", "refused": 3, "messages": 1},
                ],
            },
            "members": {"0": 3},
        }
    finally:
        source.stop()


def test_warnings_have_a_distance() -> None:
    """C7, T10: consumers that hold back each other's messages for moments do not fill the log, and what was told is not repeated."""
    told: list[HeldBack] = [HeldBack(0, "u", 2, 1)]
    subscriber = SimpleNamespace(
        settings=SimpleNamespace(selector=RED), destination="orders", held_back=lambda: list(told)
    )
    now = [0.0]
    looked: list[int] = []

    class Counted(HeldBackWarning):
        def warn(self, found: list[HeldBack]) -> None:
            looked.append(found[0].refused)

    warning = Counted(subscriber, lambda: now[0])  # type: ignore[arg-type]
    for second, refused in ((0, 2), (30, 3), (61, 3), (200, 3), (201, 4)):
        now[0], told[0] = float(second), HeldBack(0, "u", refused, 1)
        warning.look()
    assert looked == [2, 3, 4]
