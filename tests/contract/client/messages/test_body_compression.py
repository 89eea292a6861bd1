"""T8: bodies that senders compress stay compressed in the table, and on all ways through it, until they are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StringType, StructField, StructType

import spark_jms
from spark_jms.admin.transfer import MoveOrder, move
from spark_jms.client import ConnectionFactory, Context, Message
from spark_jms.client.messages.message import CompressedMessage
from spark_jms.core.destinations.destination import FORMAT_VERSION
from spark_jms.core.messages import compression
from spark_jms.errors import FormatVersionError, MessageFormatError, MessageSizeError, OptionError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.upkeep.compaction import compact
from spark_jms.spark.browser import JmsqReader
from spark_jms.spark.options import parse_options
from spark_jms.spark.sink import JmsqWriter
from spark_jms.spark.tasks import read_partition
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import records_of

LONG = "a long text, and again " * 100


@pytest.fixture
def root() -> Iterator[str]:
    with memory_domain(
        "file",
        orders={"kind": "queue", "max_message_bytes": 10_000, "error_destination": "failed", "redelivery_limit": 0},
        plain="queue",
        failed="queue",
        work={"kind": "queue", "unit_of_work_handling_policy": "SingleMessageDelivery"},
    ) as where:
        yield where


@pytest.fixture
def context(root: str) -> Iterator[Context]:
    factory = ConnectionFactory(default_compression_threshold=100)
    with spark_jms.connect(root, housekeeping=False, connection_factory=factory) as opened:
        yield opened


def stored_bodies(root: str, destination: str) -> list[bool]:
    """Of each message in the files, in order: whether its body is compressed."""
    log = Domain(root).log(destination)
    found = []
    for files in log.refresh().members.values():
        for file in files.files:
            rows = pq.read_table(Path(log.storage.uri, file.path)).to_pylist()
            found += ["JMS_JMSQ_Compressed" in dict(row["properties"] or ()) for row in rows]
    return found


def query(root: str, destination: str, **options: str) -> list[dict[str, Any]]:
    """What a batch query reads."""
    options = {"root": root, "destination": destination, "view": "all", **options}
    reader = JmsqReader(parse_options(options))
    return [row for part in reader.partitions() for batch in read_partition(part) for row in batch.to_pylist()]  # type: ignore[arg-type]


def receive_all(context: Context, destination: str) -> list[Message]:
    with context.consumer(destination, acknowledge="auto") as consumer:
        return list(consumer.messages(0))


def test_threshold_of_factory_and_producer(root: str, context: Context) -> None:
    """T8: `send`, `send_many` and `send_table`; the producer's own threshold comes first; short bodies stay."""
    producer = context.producer("orders")
    producer.send(text=LONG)
    producer.send(text="short")
    producer.send_many([{"text": LONG}] * 2 + [{"body": b"x"}])
    producer.send_many([{"text": LONG}] * 150)
    context.producer("orders", compression_threshold=10_000).send(text=LONG)
    context.producer("orders", compression_threshold=0).send(
        text="aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    )
    assert stored_bodies(root, "orders") == [True, False, True, True, False, *[True] * 150, False, True]
    assert [m.text for m in receive_all(context, "orders")].count(LONG) == 154
    with pytest.raises(OptionError, match="compression_threshold is -1, but must be a number of bytes, 0 or more"):
        context.producer("orders", compression_threshold=-1)


def test_received_body_is_compressed_until_it_is_read(root: str, context: Context) -> None:
    """T8: consumers and browsers; selectors do not need it."""
    sent = context.producer("orders").send(text=LONG, properties={"color": "red"})
    assert sent.text == LONG
    (browsed,) = context.browser("orders", selector="color = 'red'")
    (received,) = receive_all(context, "orders")
    for message in (browsed, received):
        assert isinstance(message, CompressedMessage)
        assert message.properties == {"color": "red"}
        assert message.compressed_bytes < 200
        assert message.text == LONG


def test_query_decompresses_where_its_columns_ask_for_the_body(root: str, context: Context) -> None:
    """T8: and never shows the property, so that rows can be sent again."""
    context.producer("orders").send(text=LONG)
    context.producer("orders").send(body=LONG.encode())
    context.producer("orders").send(text="short", properties={"a": "b"})
    texts, bodies = [LONG, None, "short"], [None, LONG.encode(), None]
    assert [row["text"] for row in query(root, "orders", columns="text")] == texts
    assert [row["body"] for row in query(root, "orders", columns="body")] == bodies
    both = query(root, "orders")
    assert [(row["text"], row["body"]) for row in both] == list(zip(texts, bodies, strict=True))
    assert [dict(row["properties"] or ()) for row in both] == [{}, {}, {"a": "b"}]
    headers = query(root, "orders", columns="properties")
    assert [dict(row["properties"] or ()) for row in headers] == [{}, {}, {"a": "b"}]


def test_body_stays_compressed_when_its_message_moves(root: str, context: Context) -> None:
    """T8, C8, C18: to another queue, to the error destination, and through compaction."""
    for _ in range(9):
        context.producer("orders").send(text=LONG)
    domain = Domain(root)
    assert compact(domain.log("orders")).compacted_files
    assert stored_bodies(root, "orders") == [True] * 9
    with context.consumer("orders") as consumer:
        rejected = consumer.receive(10)
        assert rejected is not None
        rejected.reject()
        assert consumer.receive(10) is not None
    move(domain, records_of(context), MoveOrder("orders", "plain", limit=3), 10)
    assert stored_bodies(root, "failed") == [True]
    assert stored_bodies(root, "plain") == [True] * 3
    assert [m.text for m in receive_all(context, "plain")] == [LONG] * 3
    assert [m.text for m in receive_all(context, "failed")] == [LONG]


def test_units_of_work_have_compressed_messages(root: str, context: Context) -> None:
    """T8, T12"""
    context.producer("work").send_unit_of_work([{"text": LONG}, {"text": "short"}])
    (unit,) = receive_all(context, "work")
    assert [part.text for part in unit.unit_of_work] == [LONG, "short"]


def test_message_size_counts_what_was_sent(context: Context) -> None:
    """T8, T17"""
    with pytest.raises(MessageSizeError):
        context.producer("orders").send(text="a" * 10_001)
    context.producer("orders").send(text="a" * 10_000)


def test_moved_message_counts_what_was_sent(root: str, context: Context) -> None:
    """T8, T17, C18: a destination takes no larger message by a transfer than by a send."""
    spark_jms.apply(root, {"destinations": {"narrow": {"kind": "queue", "maxMessageSize": "5 KB"}}})
    context.producer("orders").send(text="a" * 4_000)
    context.producer("orders").send(text="a" * 9_000)
    assert stored_bodies(root, "orders") == [True, True]
    order = MoveOrder("orders", "narrow", limit=1)
    move(Domain(root), records_of(context), order, 10)
    with pytest.raises(MessageSizeError, match="`compression`"):
        move(Domain(root), records_of(context), order, 10)
    assert [m.text for m in receive_all(context, "narrow")] == ["a" * 4_000]


def test_damaged_body_is_named_by_its_sequence(root: str, context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T8: not by its row in a file."""
    for text in ("short", LONG, LONG):
        context.producer("orders").send(text=text)
    whole, bodies = compression.unpack, 0

    def second_is_damaged(packed: bytes) -> bytes:
        nonlocal bodies
        bodies += 1
        return whole(packed if bodies == 1 else packed[:-9])

    monkeypatch.setattr(compression, "unpack", second_is_damaged)
    with pytest.raises(MessageFormatError, match="orders, member 0, sequence 3: the compressed body is damaged"):
        query(root, "orders", columns="text")


def test_first_compressed_body_raises_the_format(root: str, context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T8: in the commit that has it; earlier releases refuse the table. Later sends leave the declaration alone."""
    plain = spark_jms.connect(root, housekeeping=False)
    plain.producer("orders").send(text=LONG)
    declared = Domain(root).log("orders").refresh().destination
    assert not declared.has_compressed
    context.producer("orders").send(text=LONG)
    after = Domain(root).log("orders").refresh()
    assert after.destination.has_compressed
    assert after.destination.epoch == declared.epoch
    assert after.metadata["configuration"]["jmsq.formatVersion"] == str(FORMAT_VERSION)
    plain.producer("orders").send(text="short")
    context.producer("orders").send(text=LONG)
    commits = sorted(Path(Domain(root).log("orders").storage.uri, "_delta_log").glob("*.json"))
    assert ["metaData" in commit.read_text() for commit in commits] == [True, False, True, False, False]
    plain.close()
    monkeypatch.setattr("spark_jms.core.destinations.destination.FORMAT_VERSION", FORMAT_VERSION - 1)
    with pytest.raises(FormatVersionError):
        _ = Domain(root).log("orders").refresh().destination


def test_changed_declaration_keeps_the_format(root: str, context: Context) -> None:
    """T8, C3"""
    context.producer("plain").send(text=LONG)
    spark_jms.apply(root, {"destinations": {"plain": {"kind": "queue", "retention": "1 h"}}})
    assert Domain(root).log("plain").refresh().destination.has_compressed
    assert [row["text"] for row in query(root, "plain", columns="text")] == [LONG]


def test_sink_compresses_as_its_connection_factory_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T8"""
    import pyarrow as pa

    root = str(tmp_path)
    factories = {"connectionFactories": {"packing": {"defaultCompressionThreshold": "1 KB"}}}
    spark_jms.apply(root, {"destinations": {"orders": {"kind": "queue"}}, **factories})

    class TaskContext:
        @staticmethod
        def get() -> TaskContext:
            return TaskContext()

        def getLocalProperty(self, name: str) -> None:
            return None

        def partitionId(self) -> int:
            return 0

    monkeypatch.setattr("pyspark.TaskContext", TaskContext)
    options = {"root": root, "destination": "orders", "connectionFactory": "packing"}
    writer = JmsqWriter(parse_options(options), StructType([StructField("text", StringType())]), False)
    rows = pa.RecordBatch.from_pydict({"text": [LONG, "short"]})
    writer.commit([writer.write(iter([rows]))])
    assert stored_bodies(root, "orders") == [True, False]
    assert [row["text"] for row in query(root, "orders", columns="text")] == [LONG, "short"]


def test_requests_and_replies_follow_the_connection_factory(root: str, context: Context) -> None:
    """T8, C15: also a reply to a temporary queue of another context."""
    with (
        context.consumer("orders", acknowledge="auto", listener=lambda message: message.reply(text=LONG)),
        spark_jms.connect(root, housekeeping=False) as other,
    ):
        for requesting in (context, other):
            reply = requesting.request("orders", text=LONG, timeout=30)
            assert isinstance(reply, CompressedMessage)
            assert reply.text == LONG
    assert stored_bodies(root, "orders") == [True, False]
