"""Members by name: `server@destination` for sending, receiving and browsing (D3)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_jms
import spark_jms.admin
from spark_jms.admin.servers import start_server, stop_server
from spark_jms.client import Context
from spark_jms.core.destinations.routing import Balancing
from spark_jms.errors import (
    ConsumerClosedException,
    InvalidDestinationError,
    MemberLostException,
    MemberUnavailableError,
    NoSuchElementException,
    OptionError,
    ServerDownError,
)
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.log.sending.send import send as send_files
from spark_jms.spark.browser import JmsqReader, ViewPartition
from spark_jms.spark.options import parse_options
from spark_jms.spark.source import JmsqStreamReader
from spark_jms.spark.tasks import MemberPartition
from spark_jms.testing.domain import wait_until
from spark_jms.testing.inside import domain_of
from tests.harness.domains.servers import Away, applied, queue_on, stopped
from tests.harness.messages.source_steps import LIMIT, next_offset, texts_of


@pytest.fixture
def root(tmp_path: Path) -> str:
    return applied(tmp_path, queue_on("a", "b", "c"))


@pytest.fixture
def context(root: str) -> Iterator[Context]:
    with spark_jms.connect(root, housekeeping=False) as opened:
        yield opened


def received(consumer: Any, count: int) -> list[str]:
    """So many messages, after which there are no more."""
    found = [consumer.receive(30).text for _ in range(count)]
    assert consumer.receive(0) is None
    return sorted(found)


def test_message_goes_to_the_named_member(context: Context) -> None:
    """D3: single messages, batches, tables and units of order; beside them, messages to the logical name go anywhere."""
    named = context.producer("b@orders")
    assert {named.send(text=str(n), group_id=f"unit {n}").member for n in range(9)} == {1}
    assert named.send_many({"text": "x"} for _ in range(300)).sequences.keys() == {1}
    assert named.send_table(pa.table({"text": ["y"] * 9})).sequences.keys() == {1}
    anywhere = context.producer("orders")
    assert {anywhere.send(text="z").member for _ in range(9)} == {0, 1, 2}
    with pytest.raises(InvalidDestinationError, match=r"no member on a server 'd' \(it is on: a, b, c\)"):
        context.producer("d@orders")


def test_named_member_is_not_replaced_by_another(root: str, context: Context) -> None:
    """D3, D4: while its server is stopped, a send to a named member fails by name, and what was staged goes nowhere else; the
    messages of other threads in the same commit are sent."""
    named, free = context.producer("b@orders"), context.producer("orders")
    log = Domain(root).log("orders")
    snapshot = log.refresh()
    balancing = Balancing("b")
    writer = MessageWriter(log.storage, snapshot.destination, 0, routing=balancing.routing(snapshot.destination))
    writer.write(pa.record_batch([pa.array([b"staged"], pa.binary())], names=["body"]))
    staged = writer.close()
    stop_server(Domain(root), "b")
    with pytest.raises(ServerDownError, match="stopped server b"):
        send_files(log, staged, snapshot.route_id, balancing=balancing)
    errors: list[str] = []
    barrier = threading.Barrier(6)

    def sends(producer: Any) -> None:
        barrier.wait()
        for _ in range(10):
            try:
                producer.send(text="x")
            except ServerDownError as error:
                errors.append(str(error))

    threads = [threading.Thread(target=sends, args=(producer,)) for producer in [named, free] * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 30
    start_server(Domain(root), "b")
    assert [message.member for message in context.browser("orders")].count(1) == 0
    assert len(list(context.browser("orders"))) == 30


def test_removed_member_is_refused_by_name(root: str, context: Context) -> None:
    """D3, D1: an open producer, and a consumer that waits, learn that the member they name was removed."""
    producer, consumer = context.producer("b@orders"), context.consumer("b@orders")
    assert consumer.receive(0) is None
    spark_jms.apply(root, queue_on("a", "c"))
    with pytest.raises(InvalidDestinationError, match="no member on a server 'b'"):
        producer.send(text="x")
    with pytest.raises(MemberLostException, match="its member there was removed"):
        consumer.receive(30)


def test_consumer_of_a_member_takes_no_other(context: Context) -> None:
    """D3: a consumer of `server@destination` gets the messages of that member alone, and leaves the others to others."""
    sent: dict[int, list[str]] = {0: [], 1: [], 2: []}
    producer = context.producer("orders")
    for n in range(9):
        message = producer.send(text=str(n))
        sent[message.member].append(str(n))
    with context.consumer("b@orders", acknowledge="auto") as pinned:
        assert received(pinned, 3) == sent[1]
        with context.consumer("orders", acknowledge="auto") as free:
            assert received(free, 6) == sorted(sent[0] + sent[2])
    with pytest.raises(OptionError, match="leave out members"):
        context.consumer("b@orders", members=0)


@pytest.mark.parametrize("lost", [stopped, Away])
def test_lost_member_closes_its_consumers(root: str, context: Context, lost: Any) -> None:
    """D3: a synchronous receiver gets the exception itself, a listener's exception listener a ConsumerClosedException with it as
    the cause; a new consumer works when the server is back."""
    reported: list[Exception] = []
    heard: list[str] = []
    listening = context.consumer(
        "b@orders", listener=lambda m: heard.append(m.text), exception_listener=reported.append
    )
    context.producer("b@orders").send(text="1")
    wait_until(lambda: heard == ["1"])
    waiting = context.consumer("b@orders")
    assert waiting.receive(0) is None
    with lost(root, "b"):
        with pytest.raises(MemberLostException, match="has lost b@orders"):
            waiting.receive(60)
        with pytest.raises(MemberLostException):
            waiting.receive(0)
        wait_until(lambda: bool(reported))
        assert type(reported[-1]) is ConsumerClosedException
        assert isinstance(reported[-1].__cause__, MemberLostException)
        listening.close()
        waiting.close()
    context.producer("b@orders").send(text="2")
    with context.consumer("b@orders") as again:
        found = again.receive(30)
        assert found is not None
        assert found.member == 1


def test_browser_shows_the_named_member(root: str, context: Context) -> None:
    """D3: a browser of `server@destination` needs no other server."""
    for server in "abc":
        context.producer(f"{server}@orders").send(text=f"on {server}")
    assert [m.text for m in context.browser("b@orders")] == ["on b"]
    assert [m.text for m in context.browser("b@orders", include_finished=True)] == ["on b"]
    with Away(root, "a"):
        assert [m.text for m in context.browser("c@orders")] == ["on c"]


def test_spark_reads_and_browses_the_named_member(root: str, context: Context) -> None:
    """D3, C1: the source takes the member's messages alone; views show its rows. A checkpoint of the whole destination does not
    fit a query of one member."""
    for server in "aabbcc":
        context.producer(f"{server}@orders").send(text=f"on {server}")
    source = JmsqStreamReader(parse_options({"root": root, "destination": "b@orders"}))
    try:
        start = source.initialOffset()
        assert source.latestOffset(start, LIMIT) == start
        first = next_offset(source, start)
        assert texts_of(source, start, first) == ["on b", "on b"]
    finally:
        source.stop()
    whole = JmsqStreamReader(parse_options({"root": root, "destination": "orders"}))
    try:
        start = whole.initialOffset()
        assert whole.latestOffset(start, LIMIT) == start
        everything = next_offset(whole, start)
    finally:
        whole.stop()
    narrow = JmsqStreamReader(parse_options({"root": root, "destination": "b@orders"}))
    try:
        with pytest.raises(OptionError, match="messages of orders on server a, c"):
            narrow.latestOffset(everything, LIMIT)
    finally:
        narrow.stop()
    for view in ("messages", "all", "subscriptions", "claims"):
        reader = JmsqReader(parse_options({"root": root, "destination": "c@orders", "view": view}))
        for partition in reader.partitions():
            if isinstance(partition, MemberPartition):
                assert partition.member == 2
            elif isinstance(partition, ViewPartition):
                assert [row[2] for row in partition.rows] == [2]
    with pytest.raises(InvalidDestinationError, match="no member on a server 'd'"):
        JmsqReader(parse_options({"root": root, "destination": "d@orders"})).partitions()


@pytest.mark.parametrize("when", ["in the middle", "before"])
def test_browser_of_a_member_loses_its_stopped_server(root: str, context: Context, when: str) -> None:
    """D3, D4: an iteration that has begun raises NoSuchElementException, also when another thread of the process has read the news
    of the shared log already; the next ones raise MemberLostException; and none can be made."""
    for n in range(3):
        context.producer("b@orders").send(text=str(n))
    browser = context.browser("b@orders")
    begun = iter(browser)
    if when == "in the middle":
        assert next(begun).text == "0"
    stop_server(Domain(root), "b")
    if when == "in the middle":
        domain_of(context).log("orders").refresh()
        with pytest.raises(
            NoSuchElementException, match="its server b is down.*the messages that it has shown are not all"
        ):
            next(begun)
    else:
        with pytest.raises(MemberLostException, match="its server b is down"):
            next(begun)
    with pytest.raises(MemberLostException, match="this browser of b@orders .* has lost it: its server b is down"):
        list(browser)
    for include_finished in (False, True):
        with pytest.raises(MemberUnavailableError, match=r"b@orders cannot be browsed: its server b is down"):
            context.browser("b@orders", include_finished=include_finished)
    assert list(context.browser("a@orders")) == []
    start_server(Domain(root), "b")
    assert [m.text for m in context.browser("b@orders")] == ["0", "1", "2"]


def test_browser_of_a_member_that_was_removed_ends_by_name(root: str, context: Context) -> None:
    """D3, D1: an iteration has begun when its member is removed."""
    for n in range(3):
        context.producer("b@orders").send(text=str(n))
    begun = iter(context.browser("b@orders", include_finished=True))
    next(begun)
    with context.consumer("b@orders", acknowledge="auto") as consumer:
        received(consumer, 3)
    spark_jms.apply(root, queue_on("a", "c"))
    domain_of(context).log("orders").refresh()
    with pytest.raises(NoSuchElementException, match="no member on a server 'b'"):
        next(begun)


@pytest.fixture
def spread(tmp_path: Path) -> Iterator[Context]:
    """A queue and a topic of three members in the domain's own store, and a factory with one-way sends."""
    module = {
        "destinations": {
            "spread": {"kind": "distributed-queue", "members": 3},
            "prices": {"kind": "distributed-topic", "members": 3},
        },
        "connectionFactories": {"fast": {"oneWaySendMode": "enabled", "oneWaySendWindowSize": 300}},
    }
    root = applied(tmp_path, module)
    with spark_jms.connect(root, housekeeping=False, connection_factory="fast") as opened:
        yield opened


def test_member_without_a_server_of_its_own_has_an_address(spread: Context) -> None:
    """D3, D2, T11: producers, one-way too, consumers, browsers and subscriptions of one member of several."""
    producer = spread.producer("home.2@spread")
    assert {producer.send(text=str(n), group_id=f"unit {n}").member for n in range(6)} == {2}
    assert producer.send_many({"text": "x"} for _ in range(3)).sequences.keys() == {2}
    assert producer.send(text="fast", delivery_mode="NON_PERSISTENT") is not None
    producer.close()
    assert producer.statistics().one_way == 1
    for member in range(3):
        spread.producer(f"home.{member}@spread").send(text=f"on {member}")
    assert [m.text for m in spread.browser("home.1@spread")] == ["on 1"]
    assert [m.text for m in spread.browser("home.1@spread", include_finished=True)] == ["on 1"]
    assert {m.member for m in spread.browser("home@spread")} == {0, 1, 2}
    with spread.consumer("home.1@spread", acknowledge="auto") as pinned:
        assert received(pinned, 1) == ["on 1"]
        with spread.consumer("spread", acknowledge="auto") as free:
            assert len(received(free, 12)) == 12
    with spread.consumer("home.0@prices", acknowledge="auto") as subscriber:
        for member in range(3):
            spread.producer(f"home.{member}@prices").send(text=f"on {member}")
        assert received(subscriber, 1) == ["on 0"]
    for make in (spread.producer, spread.consumer, spread.browser):
        with pytest.raises(InvalidDestinationError, match=r"no member 3 on server home \(there are: 0, 1, 2\)"):
            make("home.3@spread")
    with pytest.raises(OptionError, match="leave out members"):
        spread.consumer("home.1@spread", members=0)


def test_consumer_of_a_numbered_member_ends_with_it(tmp_path: Path) -> None:
    """D3, D1: it never takes another member instead."""
    queues = [{"destinations": {"spread": {"kind": "distributed-queue", "members": n}}} for n in (1, 2)]
    root = applied(tmp_path, queues[0])
    spark_jms.apply(root, queues[1])
    with spark_jms.connect(root, housekeeping=False) as context, context.consumer("home.1@spread") as consumer:
        assert consumer.receive(0) is None
        spark_jms.apply(root, queues[0])
        with pytest.raises(MemberLostException, match="has lost member 1 of spread"):
            consumer.receive(1)


def test_administration_and_spark_take_a_numbered_member(spread: Context) -> None:
    """D3, C14: backlog, statistics, purge and a view of one member; a query is refused by name."""
    for member in (0, 1, 1):
        spread.producer(f"home.{member}@spread").send(text=f"on {member}")
    with spark_jms.admin.connect(spread.root) as admin:
        assert [(row.member, row.backlog) for row in admin.backlog("home.1@spread")] == [(1, 2)]
        assert [row.member for row in admin.members("home.1@spread")] == [1]
        assert admin.purge("home.1@spread").dropped == 2
        assert {row.member: row.backlog for row in admin.backlog("spread")} == {0: 1, 1: 0, 2: 0}
    reader = JmsqReader(parse_options({"root": spread.root, "destination": "home.0@spread"}))
    assert [p.member for p in reader.partitions() if isinstance(p, MemberPartition)] == [0]
    source = JmsqStreamReader(parse_options({"root": spread.root, "destination": "home.0@spread"}))
    try:
        with pytest.raises(OptionError, match="a query takes all members on a server"):
            source.initialOffset()
    finally:
        source.stop()
