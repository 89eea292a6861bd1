"""Sending from Spark (C1, C2, C4, C5)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import attrs
import pytest
from pyspark.errors import PySparkException

from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.limits.usage import FLOW
from spark_jms.settings.connection_factory import ConnectionFactory
from spark_jms.spark.sink import QueryPace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tests.spark.conftest import Bench


def test_batch_send_balances_members_and_browsing_consumes_nothing(bench: Bench) -> None:
    """C1, C2, C4: the sent messages are spread evenly over the members, with dense sequences; browsing consumes nothing."""
    bench.send(bench.numbers(1, 400), "orders")
    for _ in range(2):
        rows = bench.browse("orders").collect()
        assert sorted(int(r.text) for r in rows) == list(range(1, 401))
        by_member: dict[int, list[int]] = {}
        for r in rows:
            by_member.setdefault(r.member, []).append(r.sequence)
        assert {m: sorted(s) for m, s in by_member.items()} == {m: list(range(1, 101)) for m in range(4)}
    assert len({r.JMSMessageID for r in rows}) == 400
    assert {r.JMSDestination for r in rows} == {"orders"}
    assert {r.JMSXDeliveryCount for r in rows} == {1}


def test_all_message_columns_arrive(bench: Bench) -> None:
    """C2, M5: every message column that a sender may set arrives; typed properties keep their types; a trace context stays."""
    frame = bench.spark.sql(
        "select 'hi' text, 9 JMSPriority, 2000000000000L JMSExpiration, 'c1' JMSCorrelationID, 'back' JMSReplyTo, 'T' JMSType,"
        " 1 JMSDeliveryMode, 'g' JMSXGroupID, 3 JMSXGroupSeq,"
        " named_struct('n', 7, 'ok', true, 's', 'x', 'none', cast(null as int), 'traceparent', '00-1-2-01') properties"
    )
    bench.send(frame, "jobs")
    row = bench.browse("jobs").collect()[0]
    assert (row.text, row.JMSPriority, row.JMSExpiration, row.JMSCorrelationID, row.JMSReplyTo, row.JMSType) == (
        "hi",
        9,
        2000000000000,
        "c1",
        "back",
        "T",
    )
    assert (row.JMSDeliveryMode, row.JMSXGroupID, row.JMSXGroupSeq, row.body) == (1, "g", 3, None)
    assert row.properties == {
        "n": "7",
        "ok": "true",
        "s": "x",
        "traceparent": "00-1-2-01",
        "JMS_JMSQ_Types": "n:int,ok:boolean,none:int",
    }


def test_two_writes_in_one_foreach_batch_both_arrive(bench: Bench) -> None:
    """C5: batch writes never use the query's ids; txnAppId and txnVersion make them repeatable."""
    bench.send(bench.numbers(1, 3), "jobs")

    def on_batch(frame: DataFrame, batch_id: int) -> None:
        texts = frame.select("text")
        for _ in range(2):
            bench.send(texts, "orders")
            bench.send(texts, "orders", txnAppId="both", txnVersion=batch_id)

    query = bench.stream("jobs").writeStream.foreachBatch(on_batch).option("checkpointLocation", str(bench.path / "ck"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert sorted(int(r.text) for r in bench.browse("orders").collect()) == sorted([1, 2, 3] * 3)


def test_stream_of_messages_can_be_forwarded(bench: Bench) -> None:
    """C1, C5: a query can write the messages it receives to another destination, which sets the provider's columns."""
    bench.send(bench.numbers(1, 50, "cast(id % 5 as string) JMSXGroupID"), "jobs")
    query = bench.options(bench.stream("jobs").writeStream, "orders", checkpointLocation=str(bench.path / "ck"))
    query.trigger(availableNow=True).start().awaitTermination()
    rows = bench.browse("orders").collect()
    assert sorted(int(r.text) for r in rows) == list(range(1, 51))
    for group in {r.JMSXGroupID for r in rows}:
        mine = sorted((r.sequence, int(r.text)) for r in rows if r.JMSXGroupID == group)
        assert [t for _, t in mine] == sorted(t for _, t in mine)
        assert len({r.member for r in rows if r.JMSXGroupID == group}) == 1


def test_new_member_receives_messages_of_a_running_stream(bench: Bench) -> None:
    """C3, C4: a running stream sends to a new member without a restart, and no message is lost."""
    from spark_jms.core.destinations.destination import Destination
    from spark_jms.log.destinations.declarations import apply_destinations

    frame = (
        bench.spark.readStream.format("rate")
        .option("rowsPerSecond", 200)
        .load()
        .selectExpr("cast(value as string) text")
    )
    query = bench.options(frame.writeStream, "orders", checkpointLocation=str(bench.path / "ck")).start()
    log = bench.domain.log("orders")
    deadline = time.monotonic() + 60
    while log.refresh().last_sequence(0) == 0 and time.monotonic() < deadline:
        time.sleep(0.1)
    apply_destinations(bench.domain, [Destination("orders", "distributed-queue", 5)], lambda name, member: False)
    while log.refresh().last_sequence(4) == 0 and time.monotonic() < deadline:
        time.sleep(0.1)
    query.stop()
    assert query.exception() is None
    texts = sorted(int(r.text) for r in bench.browse("orders").collect())
    assert texts == list(range(len(texts)))
    assert log.refresh().last_sequence(4) > 0


def test_sink_keeps_one_member_without_load_balancing(bench: Bench) -> None:
    """D2, D3: without load balancing all tasks of a query use one member, batch after batch; so do those of a batch write. Its
    units of order go to their own members."""
    bench.send(bench.numbers(1, 40), "jobs")
    stream = bench.stream("jobs", maxMessagesPerTrigger=15)
    written = bench.options(
        stream.repartition(3).writeStream,
        "orders",
        loadBalancingEnabled="false",
        checkpointLocation=str(bench.path / "ck"),
    )
    written.trigger(availableNow=True).start().awaitTermination()
    rows = bench.browse("orders").collect()
    assert len(rows) == 40
    assert len({row.member for row in rows}) == 1
    bench.send(
        bench.numbers(1, 40).repartition(3), "orders", loadBalancingEnabled="false", txnAppId="app", txnVersion=1
    )
    assert len({row.member for row in bench.browse("orders").collect()}) <= 2
    bench.send(bench.numbers(1, 40, "cast(id as string) JMSXGroupID"), "home@orders", loadBalancingEnabled="false")
    assert len({row.member for row in bench.browse("orders").collect()}) == 4


@pytest.mark.parametrize(
    ("sql", "destination", "options", "error"),
    [
        ("select 'x' text, 1 colour", "jobs", {}, "MessageFormatError: unknown message column.* 'colour'"),
        ("select 1 JMSPriority", "jobs", {}, "MessageFormatError: a message needs"),
        ("select 5 text", "jobs", {}, r"MessageFormatError: column 'text' is .* cast\(col as string\)"),
        ("select 'x' text, 11 JMSPriority", "jobs", {}, "MessageFormatError: row 0: JMSPriority is 11"),
        ("select repeat('x', 101) text", "small", {}, "MessageSizeError: .*101 bytes"),
        (
            "select 'x' text",
            "nowhere",
            {},
            "InvalidDestinationError: there is no destination 'nowhere' .*there are: jobs",
        ),
        (
            "select 'x' text",
            "jobs",
            {"txnAppId": "a"},
            "(DuplicateTransactionError|DELTA_INVALID_IDEMPOTENT_WRITES_OPTIONS)",
        ),
        (
            "select 'x' text",
            "jobs",
            {"txnAppId": "a", "txnVersion": "x"},
            "(OptionError: option txnVersion is|DELTA_ILLEGAL_OPTION)",
        ),
        ("select 'x' text", "jobs", {"compresion": "x"}, "OptionError: .* no option 'compresion': accepted are"),
    ],
)
def test_bad_send_raises_a_named_error_and_sends_nothing(
    bench: Bench, sql: str, destination: str, options: dict[str, str], error: str
) -> None:
    """C2: a wrong column, type, value, size, destination or option is a named error that says what to do."""
    with pytest.raises(PySparkException, match=f"(?s){error}"):
        bench.send(bench.spark.sql(sql), destination, **options)
    if destination != "nowhere":
        assert bench.domain.log(destination).refresh().last_sequence(0) == 0
        assert not [f for f in bench.domain.log(destination).storage.list("") if f.path.endswith(".parquet")]


def test_overwrite_is_refused(bench: Bench) -> None:
    """C1: a destination accepts appended messages and cannot be overwritten."""
    with pytest.raises(PySparkException, match="(?s)(OptionError|append)"):
        bench.options(bench.numbers(1, 2).select("text").write, "jobs").mode("overwrite").save()


def test_root_without_a_domain_raises_domain_error(bench: Bench) -> None:
    """C16: the error for a root without a domain says how to create one."""
    with pytest.raises(
        PySparkException, match="(?s)DomainError: .* is not a spark-jms domain: create it with `jmsq apply"
    ):
        bench.spark.read.format("jmsq").option("root", str(bench.path / "no")).option("destination", "x").load().count()


def test_sink_slows_down_above_a_threshold(bench: Bench) -> None:
    """T5: batches that find the destination armed keep the limit of the connection factory, under the query's id."""
    domain = Domain(bench.root)
    log = domain.log("orders")
    armed = attrs.evolve(log.refresh().destination, messages_threshold_high=2, messages_threshold_low=1)
    apply_destinations(domain, [armed], lambda destination, member: False)
    domain.connection_factories.put("steady", ConnectionFactory(flow_maximum=1000, flow_interval_ms=3_600_000))
    bench.send(bench.numbers(1, 60), "jobs")
    frame = bench.stream("jobs", maxMessagesPerTrigger=20)
    checkpoint = str(bench.path / "ck")
    sink = bench.options(frame.writeStream, "orders", checkpointLocation=checkpoint, connectionFactory="steady")
    query = sink.trigger(availableNow=True).start()
    query.awaitTermination()
    assert len(bench.browse("orders").collect()) == 60
    (stored,) = domain.storage.list(f"{FLOW}/{log.refresh().table_id}")
    assert stored.path.endswith(str(query.id))
    pace = QueryPace.from_bytes(domain.storage.get(stored.path) or b"")
    assert pace.pace.limit == 1000
    assert pace.pace.debt <= 1, "each batch has waited for its own messages"
    assert pace.batch > 0
    assert any(pace.armed.values())
