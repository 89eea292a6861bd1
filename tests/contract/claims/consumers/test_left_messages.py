"""Why Trigger.AvailableNow ends without some of the messages that were there (C6, C9): the true reason, and no needless wait."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from spark_jms import connect
from spark_jms.admin.destinations import pause
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.batches.units_of_order import WHAT_TO_DO
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.servers.stores import open_stores
from spark_jms.claims.upkeep import views
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.log.destinations.domain import Domain
from spark_jms.spark import source as sources
from spark_jms.spark.options import parse_options
from spark_jms.spark.source import JmsqStreamReader
from spark_jms.testing import memory_domain
from tests.harness.domains.servers import applied, queue_on
from tests.harness.messages.poison_query import send
from tests.harness.messages.source_steps import texts_of

LIMIT = ReadMaxRows(1000)
Offset = dict[str, Any]
Told = Callable[[], list[str]]


@pytest.fixture
def root() -> Iterator[str]:
    with memory_domain("file", orders="queue") as where:
        yield where


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    """The warnings of Trigger.AvailableNow, without the destination."""
    return lambda: [
        record.getMessage().split("AvailableNow leaves ")[1]
        for record in caplog.records
        if "AvailableNow leaves " in record.getMessage()
    ]


@pytest.fixture
def waits_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source fails where it would wait for another consumer."""

    def sleep(seconds: float) -> None:
        raise AssertionError("the source waits for another consumer")

    monkeypatch.setattr(sources, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=sleep))


@contextmanager
def available_now(root: str, destination: str = "orders", **options: str) -> Iterator[tuple[JmsqStreamReader, Offset]]:
    """A source with this trigger, and its first offset, which Spark has logged."""
    source = JmsqStreamReader(parse_options({"root": root, "destination": destination, **options}))
    source.prepareForTriggerAvailableNow()
    try:
        start = source.initialOffset()
        assert source.latestOffset(start, LIMIT) == start
        yield source, start
    finally:
        source.stop()


def drained(source: JmsqStreamReader, start: Offset) -> list[str]:
    """What the run delivers, to its end."""
    texts: list[str] = []
    while (end := source.latestOffset(start, LIMIT)) != start:
        texts += texts_of(source, start, end)
        start = end
    return texts


@pytest.mark.usefixtures("waits_never")
def test_messages_behind_a_refused_one_are_named(root: str, told: Told) -> None:
    """C6, C9, T10: the selector refuses a message of a unit of order. No other consumer is there, so none is waited for or named."""
    with connect(root, housekeeping=False) as context:
        producer = context.producer("orders")
        for number, color in enumerate(["red", "blue", "red", "red"]):
            producer.send(text=str(number), group_id="u", properties={"color": color})
        producer.send(text="free", properties={"color": "red"})
    with available_now(root, selector="color = 'red'") as (source, start):
        assert drained(source, start) == ["0", "free"]
    (said,) = told()
    assert said == (
        "2 message(s) of member 0 for the next run: the selector takes them, and refuses earlier ones of their units of order: "
        f"2 behind message 2 of unit 'u' on member 0. {WHAT_TO_DO}"
    )


@pytest.mark.usefixtures("waits_never")
def test_messages_of_a_live_consumer_are_named_and_not_waited_for(root: str, told: Told) -> None:
    """C6, C9: what it has claimed is its own; a unit of order waits for it too."""
    with connect(root, housekeeping=False) as context:
        producer = context.producer("orders")
        for text, unit in (("a", "u"), ("b", "u"), ("c", None)):
            producer.send(text=text, group_id=unit)
    domain = Domain(root)
    with views.opened_store(domain) as store:
        other = Subscriber(domain, store, "orders", "-", "other", ConsumerSettings(replayable=False))
        assert other.next_batch(Batch("other"), Limits(max_messages=1)) is not None
        with available_now(root) as (source, start):
            assert drained(source, start) == ["c"]
        other.close()
    held, behind = told()
    assert held == "1 message(s) of member 0 for the next run: consumer other holds them"
    assert behind.endswith("message 2 waits for message 1 of unit 'u', which consumer other holds")


def test_session_that_keeps_a_member_is_named(root: str, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """C6, C9: an administrator has the record open all the time."""
    monkeypatch.setattr(sources, "AVAILABLE_NOW_WAIT_S", 0.0)
    send(root, "orders", "a", "b")
    domain = Domain(root)
    record = f"members/{domain.log('orders').refresh().table_id}/-/0"
    with (
        views.opened_store(domain) as store,
        store.connect("a busy job") as session,
        session.open(record),
        available_now(root) as (source, start),
    ):
        assert drained(source, start) == []
    assert told() == [
        "2 message(s) of member 0 for the next run: the session a busy job has opened the member's record set"
    ]


@pytest.mark.usefixtures("waits_never")
def test_delays_are_named_with_their_ends(root: str, told: Told) -> None:
    """C6, C12: a delivery time, and a redelivery delay."""
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send(text="a", delay="10 days")
        context.producer("orders").send(text="b")
        with context.consumer("orders", prefetch=1) as consumer:
            message = consumer.receive(30)
            assert message is not None
            assert message.text == "b"
            message.reject(delay="20 days")
    with available_now(root) as (source, start):
        assert drained(source, start) == []
    redelivered, delayed = told()
    time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"
    assert re.fullmatch(
        rf"1 message\(s\) of member 0 for the next run: their redelivery is delayed until {time}", redelivered
    )
    assert re.fullmatch(
        rf"1 message\(s\) of member 0 for the next run: the delivery time of the first one is {time}", delayed
    )


@pytest.mark.usefixtures("waits_never")
def test_pause_is_the_only_reason_that_is_named(root: str, told: Told) -> None:
    """C6: nothing is said of the messages of a paused member but that."""
    send(root, "orders", "a")
    pause(Domain(root), "orders", ["consumption"])
    with available_now(root) as (source, start):
        assert drained(source, start) == []
    assert told() == ["its messages for the next run"]


def test_sources_of_one_query_do_not_wait_for_each_other(
    root: str, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C6, C9: Spark asks one after the other, so while the second waits for the first one's messages, the first can finish none.
    A wait would end after a day only."""
    monkeypatch.setattr(sources, "AVAILABLE_NOW_WAIT_S", 86_400.0)
    send(root, "orders", "a", "b", "c")
    with available_now(root) as (first, start), available_now(root) as (second, other):
        end = first.latestOffset(start, LIMIT)
        assert second.latestOffset(other, LIMIT) == other
        assert texts_of(first, start, end) == ["a", "b", "c"]
        assert first.latestOffset(end, LIMIT) == end
        assert second.latestOffset(other, LIMIT) == other
    assert told() == [f"3 message(s) of member 0 for the next run: consumer {start['consumer']} holds them"]


def test_reasons_of_servers_are_put_together(tmp_path: Path, told: Told) -> None:
    """C6, M10: each server tells those of its members."""
    root = applied(tmp_path, queue_on("a", "b"))
    with connect(root, housekeeping=False) as context:
        for server in "ab":
            context.producer(f"{server}@orders").send(text=server, delay="10 days")
    with available_now(root) as (source, start):
        assert drained(source, start) == []
    assert [said.split(" for ")[0] for said in told()] == ["1 message(s) of member 0", "1 message(s) of member 1"]


# -- two reads of one queue ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("on_servers", [False, True])
def test_second_read_of_a_queue_is_warned_by_name(
    root: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, on_servers: bool
) -> None:
    """C9: a join of a queue with itself consumes both sides and finds nothing. A client beside a query, or a stream of another
    driver, is no second read of its query."""
    where = applied(tmp_path, queue_on("a", "b")) if on_servers else root
    send(where, "orders", "a")
    domain = Domain(where)
    said = "orders is read by another stream of this Spark driver too"
    with open_stores(domain) as store, connect(where, housekeeping=False) as context, context.consumer("orders"):
        store.connect("orders/- query-abc, process 2 of elsewhere, started by process 1, since 2026-01-01 00:00:00 UTC")
        with available_now(where) as (first, start):
            first.latestOffset(start, LIMIT)
            assert said not in caplog.text
            with available_now(where) as (second, other):
                second.latestOffset(other, LIMIT)
                (record,) = [record for record in caplog.records if said in record.getMessage()]
    assert start["consumer"] in record.getMessage()
    assert record.levelname == "WARNING"


def test_two_subscriptions_are_no_second_read(caplog: pytest.LogCaptureFixture) -> None:
    """C9, C10: what the warning advises gives none."""
    with (
        memory_domain("file", prices="topic") as root,
        available_now(root, "prices", subscription="s") as (first, start),
    ):
        first.latestOffset(start, LIMIT)
        with available_now(root, "prices", subscription="t") as (second, other):
            second.latestOffset(other, LIMIT)
    assert "is read by another stream" not in caplog.text
