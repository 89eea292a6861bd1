"""T7: large claims of sorted destinations page, prefetched messages have the room of the buffer, and both are counted."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import spark_jms
from spark_jms.claims.messages.fetch import fetch
from spark_jms.client import ConnectionFactory, Context
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.ordering.sort_order import delivery_order
from spark_jms.errors import TransactionRolledBackException
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages import paging
from spark_jms.log.messages.paging import MessageBuffer
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import paging_files_of

SMALL = 256 * 2**10
BODY = 96 * 2**10


@pytest.fixture
def root() -> Iterator[str]:
    with memory_domain(
        urgent={"kind": "queue", "destination_keys": ("JMSPriority descending",)},
        amounts={"kind": "queue", "destination_keys": ("amount descending double", "JMSMessageID descending")},
        again={"kind": "queue", "destination_keys": ("JMSRedelivered descending", "JMSPriority descending")},
        units={"kind": "queue", "unit_of_work_handling_policy": "SingleMessageDelivery"},
        orders="queue",
    ) as where:
        yield where


@pytest.fixture
def context(root: str) -> Iterator[Context]:
    with spark_jms.connect(root, housekeeping=False) as made:
        yield made


def fill(context: Context, destination: str, count: int = 200) -> None:
    chance = random.Random(7)
    for _ in range(4):
        context.producer(destination, compression_threshold=BODY).send_many(
            {
                "body": chance.randbytes(chance.choice([10, BODY - 1])) if chance.random() < 0.9 else bytes(2 * BODY),
                "priority": chance.randrange(10),
                "properties": {"amount": chance.random()} if chance.random() < 0.9 else {},
                "group_id": chance.choice([None, "a", "b"]) if destination == "amounts" else None,
            }
            for _ in range(count // 4)
        )


def read(root: str, destination: str, picks: Ranges, buffer: MessageBuffer, again: Any = None) -> list[dict[str, Any]]:
    table = Domain(root).log(destination)
    order = delivery_order(table.refresh().destination)
    rows = fetch(table, destination, 0, picks, again or {}, order=order, unpacks=True, buffer=lambda: buffer)
    return [row for batch in rows for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("destination", "limit"),
    [("urgent", 16 * SMALL), ("amounts", SMALL), ("amounts", 16 * SMALL), ("again", 16 * SMALL)],
)
def test_large_claim_of_a_sorted_destination_pages_and_keeps_its_order(
    context: Context, root: str, destination: str, limit: int
) -> None:
    """T7, T15: a task of Spark delivers the same rows, in the same order, as if all were in memory; with buckets of one message
    and of many."""
    fill(context, destination)
    picks = Ranges.of((1, 90), (95, 200))
    again = {2: Ranges.of((3, 9)), 5: Ranges.of((100, 101))}
    small, large = MessageBuffer(limit), MessageBuffer(2**40)
    expected = read(root, destination, picks, large, again)
    assert read(root, destination, picks, small, again) == expected
    assert (len(expected), large.statistics().paged_messages_total) == (196, 0)
    found = small.statistics()
    assert found.paged_messages_total > 50
    assert (found.paged_messages, found.paged_bytes, found.memory_bytes) == (0, 0, 0)
    assert found.memory_bytes_high < limit + 8 * 2**20


def test_compressed_bodies_are_opened_a_few_at_a_time(context: Context, root: str) -> None:
    """T7, T8: 60 MB of text in 0.1 MB of rows are not in memory at once in a task of Spark."""
    context.producer("orders", compression_threshold=1).send_many({"text": "x" * 2**20} for _ in range(60))
    rows = fetch(Domain(root).log("orders"), "orders", 0, Ranges.of((1, 60)), {}, unpacks=True)
    sizes = [batch.nbytes for batch in rows]
    assert sum(sizes) > 60 * 2**20
    assert max(sizes) < 17 * 2**20


def test_units_of_work_stay_together_in_pages(context: Context, root: str) -> None:
    """T7, T12."""
    producer = context.producer("units")
    for unit in range(30):
        producer.send_unit_of_work([{"body": random.randbytes(BODY)} for _ in range(6)], name=f"u{unit}")
    picks, small = Ranges.of((1, 180)), MessageBuffer(SMALL)
    expected = read(root, "units", picks, MessageBuffer(2**40))
    assert read(root, "units", picks, small) == expected
    assert small.statistics().paged_messages_total > 100


def test_reader_that_stops_leaves_no_page(context: Context, root: str) -> None:
    """T7: a task that is cancelled."""
    fill(context, "urgent")
    table, buffer = Domain(root).log("urgent"), MessageBuffer(SMALL)
    order = delivery_order(table.refresh().destination)
    rows = fetch(table, "urgent", 0, Ranges.of((1, 200)), {}, order=order, buffer=lambda: buffer)
    next(rows)
    assert buffer.statistics().paged_messages > 0
    rows.close()  # type: ignore[attr-defined]
    assert (buffer.statistics().paged_messages, buffer.files.segments) == (0, 0)


def test_claim_is_delivered_while_the_directory_is_full(
    context: Context, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T7: in more memory, with a warning."""
    fill(context, "urgent")

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    picks, small = Ranges.of((1, 200)), MessageBuffer(SMALL)
    expected = read(root, "urgent", picks, MessageBuffer(2**40))
    monkeypatch.setattr(paging.os, "pwrite", full)
    assert read(root, "urgent", picks, small) == expected
    assert small.statistics().failures > 10


def test_prefetched_messages_have_the_room_of_the_buffer(root: str) -> None:
    """T7, T9: of all consumers of a connection together; what has no room goes back and is read again from the log."""
    factory = ConnectionFactory(message_buffer_bytes=SMALL, messages_maximum=10)
    with spark_jms.connect(root, housekeeping=False, connection_factory=factory) as context:
        context.producer("orders").send_many({"body": random.randbytes(BODY)} for _ in range(12))
        first, second = (context.consumer("orders") for _ in range(2))
        assert first.receive(5) is not None
        assert first.statistics().prefetched == 1
        assert BODY * 2 <= context.statistics().buffer.memory_bytes <= SMALL
        assert second.receive(5) is not None
        assert second.statistics().prefetched == 0  # one always has room
        assert context.statistics().buffer.limit_bytes == SMALL
        got = {first: 1, second: 1}
        for consumer in (first, second):
            while (message := consumer.receive(0)) is not None:
                got[consumer] += 1
                message.acknowledge()
        assert sum(got.values()) == 12
        context.producer("orders").send_many([{"body": bytes(1000)}] * 5)
        assert first.receive(5) is not None
        assert first.statistics().prefetched == 4
        assert context.statistics().buffer.memory_bytes > 5000
        for consumer in (first, second):
            consumer.close()
        assert context.statistics().buffer.memory_bytes == 0


def test_message_larger_than_the_buffer_is_delivered(root: str) -> None:
    """T7."""
    factory = ConnectionFactory(message_buffer_bytes=2**16)
    with spark_jms.connect(root, housekeeping=False, connection_factory=factory) as context:
        context.producer("urgent").send_many({"body": bytes([n]) * 2**20} for n in range(3))
        with context.consumer("urgent", acknowledge="auto") as consumer:
            bodies = [message.body for _ in range(3) if (message := consumer.receive(5)) is not None]
        assert [body[0] for body in bodies if body] == [0, 1, 2]


@pytest.mark.parametrize("ends", ["commit", "rollback", "close"])
def test_sends_of_a_transaction_page(root: str, ends: str) -> None:
    """T7, T16: to one destination or two, with send, send_many and send_table; each end frees the pages."""
    factory = ConnectionFactory(message_buffer_bytes=SMALL)
    with spark_jms.connect(root, housekeeping=False, connection_factory=factory) as context:
        bodies = [random.randbytes(BODY) for _ in range(40)]
        with context.transacted_session() as session:
            first, second = session.producer("orders"), session.producer("urgent")
            for body in bodies[:10]:
                first.send(body=body)
            first.send_many({"body": body} for body in bodies[10:20])
            first.send_table(pa.table({"body": bodies[20:30]}))
            second.send_many(({"body": body} for body in bodies[30:]), chunk_messages=1)
            found = context.statistics().buffer
            assert found.paged_messages > 25
            assert found.memory_bytes < SMALL + 4 * 2**20
            if ends == "commit":
                session.commit()
            elif ends == "rollback":
                session.rollback()
        found = context.statistics().buffer
        assert (found.paged_messages, found.paged_bytes, found.memory_bytes) == (0, 0, 0)
        assert paging_files_of(context).segments == 0
        there = [[message.body for message in context.browser(name)] for name in ("orders", "urgent")]
        assert there == ([bodies[:30], bodies[30:]] if ends == "commit" else [[], []])


def test_transaction_whose_page_is_damaged_is_rolled_back(root: str) -> None:
    """T7, T16: by name, and nothing of it is sent; the next one is."""
    factory = ConnectionFactory(message_buffer_bytes=2**16)
    with (
        spark_jms.connect(root, housekeeping=False, connection_factory=factory) as context,
        context.transacted_session() as session,
    ):
        producer = session.producer("orders")
        producer.send_many([{"body": bytes(2**20)}] * 2)
        (file,) = paging_files_of(context)._files.values()
        os.pwrite(file.fileno(), b"damaged", 1000)
        with pytest.raises(TransactionRolledBackException, match="PagingError: a page in .* is damaged"):
            session.commit()
        assert list(context.browser("orders")) == []
        assert context.statistics().buffer.paged_messages == 0
        producer.send(text="x")
        session.commit()
        assert [message.text for message in context.browser("orders")] == ["x"]


def test_buffer_keys_are_kept_in_the_module_file(root: str) -> None:
    """T7, T18: under the text's names."""
    keys = {
        "messageBufferSize": "64 MB",
        "pagingDirectory": "/var/paging",
        "pagingMessageCompressionEnabled": True,
        "messageCompressionOptions": "LZF",
    }
    spark_jms.apply(root, {"destinations": {"orders": {"kind": "queue"}}, "connectionFactories": {"small": keys}})
    kept = Domain(root).connection_factories.get("small")
    assert (kept.message_buffer_bytes, kept.paging_directory) == (64_000_000, "/var/paging")
    assert (kept.paging_message_compression_enabled, kept.message_compression_options) == (True, "LZF")
