"""Pause and resume as senders, consumers and transfers meet them (T14)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from spark_jms import apply, connect
from spark_jms.admin.destinations import pause, resume
from spark_jms.admin.statistics import collect
from spark_jms.admin.transfer import MoveOrder, move
from spark_jms.claims.batches import planner
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.upkeep import views
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.client import Context, Message
from spark_jms.client.sending import shared_send
from spark_jms.core.destinations.pause import CONSUMPTION, INSERTION, PRODUCTION
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.core.transactions.transfer import StagedFile
from spark_jms.errors import InsertionPausedError, InvalidDestinationError, OptionError, ProductionPausedError
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.log.sending import send as log_send
from spark_jms.log.tables import snapshot as log_snapshot
from spark_jms.spark.options import parse_options
from spark_jms.spark.source import JmsqStreamReader
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.messages.shorthands import send_texts, texts

FOUR = {"kind": "distributed-queue", "members": 4}
LIMIT_S = 30


@pytest.fixture
def context() -> Iterator[Context]:
    with (
        memory_domain(orders="queue", spread=FOUR, errors="queue", prices="topic") as root,
        connect(root, housekeeping=False) as opened,
    ):
        yield opened


def browse(context: Context, destination: str = "orders") -> list[str | None]:
    return [message.text for message in context.browser(destination)]


# -- production ----------------------------------------------------------------------------------------------------------
def test_paused_production_refuses_every_way_to_send(context: Context) -> None:
    """T14: also of a producer made before; after the resume the same producer sends."""
    producer = context.producer("orders")
    producer.send(text="before")
    pause(domain_of(context), "orders", [PRODUCTION])
    with pytest.raises(ProductionPausedError, match="jmsq resume orders --production"):
        producer.send(text="refused")
    with pytest.raises(ProductionPausedError):
        producer.send_many([{"text": "refused"}] * 200)
    with pytest.raises(ProductionPausedError):
        producer.send_table(pa.table({"text": ["refused"]}))
    with pytest.raises(ProductionPausedError):
        context.producer("orders").send(text="refused")
    assert browse(context) == ["before"]
    assert len(list(Path(context.root, "orders").glob("*.parquet"))) == 1, "refused files are deleted"
    resume(domain_of(context), "orders", [PRODUCTION])
    producer.send(text="after")
    assert browse(context) == ["before", "after"]


def test_paused_member_gets_nothing_while_others_are_open(context: Context) -> None:
    """T14, D2: the producer's next send goes to the open members, whichever way it sends."""
    producer = context.producer("spread")
    producer.send_many({"text": str(n)} for n in range(8))
    pause(domain_of(context), "spread", [PRODUCTION], [1, 2])
    for n in range(8):
        assert producer.send(text=f"single {n}").member in (0, 3)
    assert set(producer.send_many({"text": str(n)} for n in range(300)).sequences) == {0, 3}
    pause(domain_of(context), "spread", [PRODUCTION], [0, 3])
    with pytest.raises(ProductionPausedError):
        producer.send(text="nowhere")


def test_unit_of_order_of_a_paused_member_is_refused_alone(context: Context) -> None:
    """T14, T10: other senders of the same commit are not concerned."""
    producer = context.producer("spread")
    units = {producer.send(text="x", group_id=f"g{n}").member: f"g{n}" for n in range(40)}
    pause(domain_of(context), "spread", [PRODUCTION], [1])
    with pytest.raises(ProductionPausedError, match="member 1"):
        producer.send(text="x", group_id=units[1])
    with ThreadPoolExecutor(8) as threads:
        wanted = [units[m] for m in (0, 1, 2, 3) for _ in range(6)]

        def one(unit: str) -> int:
            try:
                return producer.send(text="x", group_id=unit).member
            except ProductionPausedError:
                return -1

        got = list(threads.map(one, wanted))
    assert got == [m for m in (0, -1, 2, 3) for _ in range(6)]


def test_no_message_follows_a_pause_into_its_member(context: Context) -> None:
    """T14: while several threads send, a member's last sequence stands still from the return of `pause` to `resume`; nothing
    is refused while another member is open, and nothing is lost."""
    stop, counts = threading.Event(), [0] * 4

    def send(index: int) -> None:
        producer = context.producer("spread")
        while not stop.is_set():
            producer.send(text=str(index))
            counts[index] += 1

    log = domain_of(context).log("spread")
    with ThreadPoolExecutor(4) as threads:
        sending_threads = [threads.submit(send, index) for index in range(4)]
        try:
            for round_ in range(6):
                member = round_ % 4
                pause(domain_of(context), "spread", [PRODUCTION], [member])
                last, before = log.refresh().last_sequence(member), list(counts)
                wait_until(
                    lambda before=before: all(now >= b + 3 for now, b in zip(counts, before, strict=True)), LIMIT_S
                )  # type: ignore[misc]
                assert log.refresh().last_sequence(member) == last
                resume(domain_of(context), "spread", [PRODUCTION], [member])
        finally:
            stop.set()
        for done in sending_threads:
            done.result(LIMIT_S)
    assert len(browse(context, "spread")) == sum(counts)


def test_apply_changes_no_pause(context: Context) -> None:
    """T14: neither sets nor clears it."""
    pause(domain_of(context), "orders", [PRODUCTION])
    apply(context.root, {"destinations": {"orders": {"kind": "queue", "retention": "1 h"}}})
    with pytest.raises(ProductionPausedError):
        context.producer("orders").send(text="x")


# -- insertion -----------------------------------------------------------------------------------------------------------
def test_senders_wait_for_insertion_up_to_their_time_out(context: Context) -> None:
    """T14, T2: then the error is named; 10 ms unless the producer says otherwise."""
    pause(domain_of(context), "orders", [INSERTION])
    with pytest.raises(InsertionPausedError, match="jmsq resume orders --insertion"):
        context.producer("orders").send(text="refused")
    with pytest.raises(InsertionPausedError):
        context.producer("orders", send_timeout=0).send_many([{"text": "refused"}] * 200)
    with pytest.raises(OptionError, match="send_timeout"):
        context.producer("orders", send_timeout="soon")
    assert browse(context) == []


@pytest.mark.parametrize("count", [1, 200])
def test_blocked_sender_continues_after_the_resume(
    context: Context, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T14: its messages are sent once."""
    waiting = threading.Event()
    for module in (shared_send, log_send):
        look = module.wait_for_change

        def announced(*arguments: object, look: object = look) -> object:
            waiting.set()
            return look(*arguments)  # type: ignore[operator]

        monkeypatch.setattr(module, "wait_for_change", announced)
    pause(domain_of(context), "orders", [INSERTION])
    producer = context.producer("orders", send_timeout=LIMIT_S)
    with ThreadPoolExecutor(1) as threads:
        blocked = threads.submit(producer.send_many, [{"text": str(n)} for n in range(count)])
        assert waiting.wait(LIMIT_S)
        assert browse(context) == []
        resume(domain_of(context), "orders")
        assert blocked.result(LIMIT_S).messages == count
    assert browse(context) == [str(n) for n in range(count)]


def test_work_in_flight_passes_a_production_pause_and_no_insertion_pause(context: Context) -> None:
    """T14: files staged before the pause, as a Spark batch has them."""
    log = domain_of(context).log("orders")

    def stage() -> tuple[list[StagedFile], log_snapshot.RouteId]:
        snapshot = log.refresh()
        writer = MessageWriter(log.storage, snapshot.destination, 0)
        writer.write(pa.record_batch({"text": ["in flight"]}))
        return writer.close(), snapshot.route_id

    files, planned = stage()
    pause(domain_of(context), "orders", [PRODUCTION])
    assert log_send.send(log, files, planned).version > 0
    resume(domain_of(context), "orders")
    files, planned = stage()
    pause(domain_of(context), "orders", [INSERTION])
    with pytest.raises(InsertionPausedError):
        log_send.send(log, files, planned)
    assert browse(context) == ["in flight"]


def test_delay_that_ends_during_the_pause_shows_after_the_resume(context: Context) -> None:
    """T14, C12: a message that was due before the pause stays available."""
    producer = context.producer("orders")
    producer.send(text="now")
    producer.send(text="later", delay="0.3 s")
    pause(domain_of(context), "orders", [INSERTION])
    with context.consumer("orders", acknowledge="auto") as consumer:
        assert texts(consumer, 1) == ["now"]
        assert consumer.receive(timeout=0.8) is None
        resume(domain_of(context), "orders")
        assert texts(consumer, 1) == ["later"]


def test_redelivery_delay_that_ends_during_the_pause_shows_after_the_resume(context: Context) -> None:
    """T14, C8"""
    send_texts(context, "a")
    with context.consumer("orders", acknowledge="individual") as consumer:
        first = consumer.receive(timeout=10)
        assert first is not None
        pause(domain_of(context), "orders", [INSERTION])
        first.reject(delay="0.2 s")
        assert consumer.receive(timeout=0.7) is None
        resume(domain_of(context), "orders")
        again = consumer.receive(timeout=10)
        assert again is not None
        assert again.redelivered


def test_transfer_waits_for_its_target(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T14, C18: it stays open, `jmsq stat` says for what, and the next holder of the record finishes it; housekeeping takes
    it for no failure. A new move is refused before anything moves."""
    send_texts(context, "a", "b")
    domain, store = domain_of(context), records_of(context)
    order = MoveOrder("orders", "errors")
    pause(domain, "errors", [INSERTION])
    with pytest.raises(InsertionPausedError):
        move(domain, store, order, wait_s=5)
    assert not views.transfers(domain, store, "orders")

    with monkeypatch.context() as patched:  # the pause comes after the check
        patched.setattr("spark_jms.claims.upkeep.move._checked", lambda *_: ("-", [0]))
        with pytest.raises(Exception, match="insertion"):
            move(domain, store, order, wait_s=5)
    (row,) = views.transfers(domain, store, "orders")
    assert row.next == "waits: insertion into errors is paused"
    housekeeper = Housekeeper(domain, store, "orders")
    housekeeper.run()
    assert not housekeeper.health.failures
    assert views.transfers(domain, store, "orders")
    assert browse(context, "errors") == []
    housekeeper.close()
    resume(domain, "errors")
    housekeeper = Housekeeper(domain, store, "orders")
    housekeeper.run()
    housekeeper.close()
    assert not views.transfers(domain, store, "orders")
    assert browse(context, "errors") == ["a", "b"]


# -- consumption ---------------------------------------------------------------------------------------------------------
def test_paused_consumption_gives_out_nothing(context: Context) -> None:
    """T14: what a consumer has it acknowledges and releases; browsing works; the resume wakes a waiting receiver."""
    send_texts(context, "a", "b", "c")
    with context.consumer("orders", prefetch=2, acknowledge="individual") as consumer:
        first, second = consumer.receive(timeout=10), consumer.receive(timeout=10)
        assert first is not None
        assert second is not None
        pause(domain_of(context), "orders", [CONSUMPTION])
        first.acknowledge()
        second.reject()
        assert consumer.receive(timeout=0) is None
        assert browse(context) == ["b", "c"]
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(consumer.receive, timeout=LIMIT_S)
            resume(domain_of(context), "orders")
            message = waiting.result(LIMIT_S)
            assert message is not None
            assert (message.text, message.redelivered) == ("b", True)


def test_paused_consumption_of_a_member(context: Context) -> None:
    """T14: the messages of the other members are delivered, to a listener too."""
    context.producer("spread").send_many({"text": str(n)} for n in range(8))
    pause(domain_of(context), "spread", [CONSUMPTION], [2])
    got: list[Message] = []
    with context.consumer("spread", listener=got.append, acknowledge="auto"):
        wait_until(lambda: len(got) == 6, LIMIT_S)
        assert {message.member for message in got} == {0, 1, 3}
        resume(domain_of(context), "spread", [CONSUMPTION], [2])
        wait_until(lambda: len(got) == 8, LIMIT_S)


def test_spark_source_runs_on_with_empty_batches(context: Context) -> None:
    """T14, C6: the offset stays, AvailableNow ends, and after the resume the query gets its messages."""
    source = JmsqStreamReader(parse_options({"root": context.root, "destination": "orders"}))
    limit = ReadMaxRows(10)
    start = source.initialOffset()
    assert source.latestOffset(start, limit) == start
    send_texts(context, "a", "b")
    pause(domain_of(context), "orders", [CONSUMPTION])
    assert source.latestOffset(start, limit) == start
    assert source.partitions(start, start) == []
    source.prepareForTriggerAvailableNow()
    assert source.latestOffset(start, limit) == start
    resume(domain_of(context), "orders")
    end = source.latestOffset(start, limit)
    assert sum(partition.picks.count for partition in source.partitions(start, end)) == 2  # type: ignore[attr-defined]
    source.stop()


def test_pause_ends_a_plan_that_is_not_through(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T14, C6: a bounded plan that would continue, behind many delayed messages, does not spin until the resume."""
    monkeypatch.setattr(planner, "MAX_ROWS_READ", 3)
    context.producer("orders").send_many({"text": "late", "delay": "1 h"} for _ in range(12))
    send_texts(context, "a")
    settings = ConsumerSettings(None, replayable=False)
    subscriber = Subscriber(domain_of(context), records_of(context), "orders", "-", "q", settings)
    assert subscriber.next_batch(Batch("q"), Limits()) is None
    assert subscriber.has_more()
    pause(domain_of(context), "orders", [CONSUMPTION])
    assert subscriber.next_batch(Batch("q"), Limits()) is None
    assert not subscriber.has_more()
    subscriber.close()
    resume(domain_of(context), "orders")
    with context.consumer("orders") as consumer:
        assert texts(consumer, 1) == ["a"]


def test_acknowledgement_of_a_batch_passes_a_pause(context: Context) -> None:
    """T14, C5: a query's claim is acknowledged by the empty batch after it."""
    send_texts(context, "a")
    source = JmsqStreamReader(parse_options({"root": context.root, "destination": "orders"}))
    limit = ReadMaxRows(10)
    start = source.initialOffset()
    source.latestOffset(start, limit)
    end = source.latestOffset(start, limit)
    pause(domain_of(context), "orders", [CONSUMPTION])
    assert source.latestOffset(end, limit) == end
    assert browse(context) == []
    source.stop()


# -- looking -------------------------------------------------------------------------------------------------------------
def test_statistics_show_pauses(context: Context) -> None:
    """T14: operation, member, since when."""
    done = pause(domain_of(context), "spread", [INSERTION], [3])
    again = pause(domain_of(context), "spread", [INSERTION], [3])
    assert (done.changed, again.changed) == (True, False)
    assert again.pauses == done.pauses
    (row,) = collect(domain_of(context), records_of(context), "spread").paused
    assert (row.operation, row.member) == (INSERTION, 3)
    assert resume(domain_of(context), "spread").pauses == ()


def test_impossible_pauses_are_refused(context: Context) -> None:
    """T14: a member that is not there, an unknown operation, an unknown destination."""
    with pytest.raises(InvalidDestinationError, match="members 0 to 3, not 4"):
        pause(domain_of(context), "spread", members=[4])
    with pytest.raises(OptionError, match="production, insertion, consumption"):
        resume(domain_of(context), "spread", ["browsing"])
    with pytest.raises(InvalidDestinationError):
        pause(domain_of(context), "nowhere")
