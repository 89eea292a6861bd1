"""Expired messages: discarded, logged or redirected, and counted once (T6)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jms import connect
from spark_jms.admin.destinations import pause, resume
from spark_jms.claims.failures import expiration
from spark_jms.claims.messages import scan
from spark_jms.claims.messages.scan import Question
from spark_jms.claims.servers.stores import state_of
from spark_jms.claims.upkeep import views
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.client.context.context import Context
from spark_jms.core.destinations.pause import INSERTION
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.records import life_cycle
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.core.records.endings import EXPIRER
from spark_jms.log.messages import data_files
from spark_jms.log.tables.storage import now_ms
from spark_jms.settings.fields import LifeEvent
from spark_jms.testing import memory_domain
from spark_jms.testing.domain import wait_until
from spark_jms.testing.inside import domain_of, part_of, records_of
from tests.harness.domains.expirations import (
    HOUR_MS,
    Later,
    Search,
    expired,
    opened_domain,
    send,
    texts,
)
from tests.harness.domains.servers import applied


@pytest.fixture
def context() -> Iterator[Context]:
    with opened_domain() as opened:
        yield opened


# -- the search --------------------------------------------------------------------------------------------------------
def test_search_expires_what_no_consumer_comes_to(context: Context) -> None:
    """T6: in every member; what never expires, or later, stays; and each message is counted once."""
    send(context, "two", *map(str, range(6)))
    send(context, "two", "for ever", time_to_live=None)
    send(context, "two", "later", time_to_live="1 day")
    search = Search(context, "two")
    assert search.run() == 6
    assert sorted(filter(None, texts(context, "two"))) == ["for ever", "later"]
    assert (search.run(), expired(context, "two")) == (0, 6)
    search.now_ms += 24 * HOUR_MS
    assert (search.run(), expired(context, "two")) == (1, 7)


def test_scattered_expirations_do_not_fill_the_outbox(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T6, C5: every second message: a search and a consumer's plans expire some ranges at a time, and a full outbox stops nobody."""
    monkeypatch.setattr(expiration, "SCATTERED", 5)
    monkeypatch.setattr(life_cycle, "MAX_OUTBOX_BYTES", 10 * 24 + 200)
    messages: list[dict[str, Any]] = []
    for n in range(20):
        messages += [{"text": f"{n} late", "time_to_live": "1 h"}, {"text": str(n)}]
    context.producer("plain").send_many(messages)
    table = domain_of(context).log("plain")
    assert Search(context, "plain").run() == 20
    state = state_of(records_of(context), table.refresh(), "-", 0)
    assert (state.outbox, state.unfinished(1, 40).count) == ((), 20)
    rows = views.acknowledgements(domain_of(context), records_of(context), "plain")
    assert [(row.consumer, row.messages) for row in rows] == [(EXPIRER, 5)] * 4
    context.producer("plain").send_many(messages)
    later = Later(context, "plain")
    taken: list[int] = []
    for _ in range(12):
        taken += later.batch()[1]
        later.subscriber.flush_outbox()
    assert taken == [*range(2, 41, 2), *range(42, 81, 2)]
    assert expired(context, "plain") == 40


def test_claimed_messages_do_not_expire_under_their_consumer(context: Context) -> None:
    """T6: they are acknowledged as ever; what comes back expires then."""
    send(context, "plain", "a", "b", "c")
    search = Search(context, "plain")
    with context.consumer("plain", prefetch=2) as consumer:
        first = consumer.receive(5)
        assert first is not None
        assert search.run() == 1  # the consumer has claimed the others
        consumer.recover()
        again = consumer.receive(5)
        assert again is not None
        again.acknowledge()
    assert search.run() == 1
    assert (texts(context, "plain"), expired(context, "plain")) == ([], 2)


def test_messages_of_dead_consumers_expire(context: Context) -> None:
    """T6, C9: as the next consumer would have found them."""
    send(context, "plain", "a")
    dead = Later(context, "plain")
    dead.now_ms = now_ms()
    assert dead.batch()[1] == [1]
    dead.subscriber.close()
    assert (Search(context, "plain").run(), expired(context, "plain")) == (1, 1)


def test_consumers_and_search_meet_the_same_messages(
    context: Context, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T6: 20,000 messages, of which a consumer and the search each find parts; each is counted and logged once, and the others
    are delivered."""
    monkeypatch.setattr(expiration, "LOGGED", 300)
    monkeypatch.setattr(expiration, "WAIT_S", 60)
    send(context, "logged", *map(str, range(10_000)))
    send(context, "logged", *map(str, range(10_000, 10_100)), time_to_live=None)
    send(context, "logged", *map(str, range(10_100, 20_100)))
    consumer, search, delivered = Later(context, "logged"), Search(context, "logged"), list[int]()
    stop = threading.Event()
    consumes = threading.Thread(target=consumer.drain, args=(delivered, stop))
    with caplog.at_level(logging.WARNING, "spark_jms.expiration"):
        consumes.start()
        try:
            wait_until(lambda: expired(context, "logged") > 0)  # the consumer has found some
            found = search.run()
        finally:
            stop.set()
            consumes.join()
    assert delivered == list(range(10_001, 10_101))
    assert expired(context, "logged") == 20_000
    assert 0 < found < 20_000
    lines = [record.getMessage() for record in caplog.records if record.name == "spark_jms.expiration"]
    assert len(lines) == len(set(lines)) == 20_000


def test_claims_of_a_live_consumer_are_left_alone(context: Context) -> None:
    """T6: what it has does not expire; once it is dead, it does."""
    send(context, "plain", "a", "b")
    busy, search = Later(context, "plain"), Search(context, "plain")
    busy.now_ms = now_ms()
    assert busy.batch(1)[1] == [1]
    assert search.run() == 1
    busy.subscriber.close()
    assert search.run() == 1  # what the dead consumer had claimed


def test_interval_of_the_domain(context: Context) -> None:
    """T6: 30 s; 0 searches never; a change counts from the next round on."""
    domain = domain_of(context)
    assert domain.expiration_scan_interval_ms() == 30_000
    search, found = Search(context, "plain"), []
    for seconds, interval_ms in ((0, 30_000), (29, 30_000), (30, 30_000), (59, 5_000), (100, 0)):
        domain.set_expiration_scan_interval(interval_ms)
        send(context, "plain", "x")
        search.monotonic_s = seconds
        found.append(search.scan.run())
    assert found == [1, 0, 2, 1, 0]
    assert search.run() == 0, "passive"
    assert Later(context, "plain").batch()[0] is None
    assert expired(context, "plain") == 5, "a consumer comes to it"


def test_search_of_messages_that_never_expire_costs_nothing(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T6: the statistics of the files tell; no store is asked and no file is read, nor the interval of the domain."""
    send(context, "plain", "a", time_to_live=None)
    search = Search(context, "plain")
    monkeypatch.setattr(type(domain_of(context)), "expiration_scan_intervals_ms", lambda *_: pytest.fail("read"))
    assert search.run() == 0


def test_file_is_looked_at_when_its_next_message_expires(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T6: not in every round."""
    context.producer("plain").send_many([{"text": "a", "time_to_live": "3 h"}, {"text": "for ever"}])
    search, reads = Search(context, "plain"), []
    read_stored = data_files.read_stored
    monkeypatch.setattr(
        expiration, "read_stored", lambda *given, **more: reads.append(1) or read_stored(*given, **more)
    )
    assert [search.run() for _ in range(5)] == [0] * 5
    assert len(reads) == 1
    search.now_ms += 2 * HOUR_MS
    assert (search.run(), len(reads)) == (1, 2)


def test_file_whose_messages_are_all_over_is_not_opened(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T6, C7: its statistics tell, to the search and to a consumer's plan; not of a topic's selector."""
    send(context, "plain", "a", "b")
    for name in ("messages.scan", "failures.expiration"):
        monkeypatch.setattr(f"spark_jms.claims.{name}.read_stored", lambda *given, **more: pytest.fail("opened"))
    later = Later(context, "plain")
    assert later.batch()[0] is None
    later.subscriber.close()
    send(context, "plain", "c")
    assert Search(context, "plain").run() == 1
    assert expired(context, "plain") == 3


def test_missed_message_does_not_expire(context: Context) -> None:
    """T6, D6: a message that is not persistent, sent while the subscription's server was down, never belonged to it."""
    over = pa.array([now_ms() - 1] * 2, pa.int64())
    rows = pa.table({"text": ["a", "b"], "JMSExpiration": over, "JMSDeliveryMode": pa.array([1, 1], pa.int32())})
    context.producer("plain").send_table(rows)
    question = Question(now_ms=now_ms(), missed=Ranges.of((1, 1)))
    found = scan.scan(domain_of(context).log("plain"), 0, Ranges.of((1, 2)), question)
    assert (found.missed, found.expired, found.picks) == (Ranges.of((1, 1)), Ranges.of((2, 2)), EMPTY)


# -- policies ----------------------------------------------------------------------------------------------------------
def test_log_tells_of_each_message_once(context: Context, caplog: pytest.LogCaptureFixture) -> None:
    """T6: the consumer's part and the search's, in the texts' format."""
    send(context, "logged", "a", properties={"Make": "Honda", "Weight": 2680, "Used": True}, priority=7)
    with caplog.at_level(logging.WARNING, "spark_jms.expiration"):
        later = Later(context, "logged")
        assert later.batch()[0] is None
        later.subscriber.close()
        send(context, "logged", "b")
        assert Search(context, "logged").run() == 1
        assert Search(context, "logged").run() == 0
    lines = [record.getMessage() for record in caplog.records if record.name == "spark_jms.expiration"]
    ids = [line.split("'")[1] for line in lines]
    assert lines == [
        f"<ExpiredJMSMessage JMSMessageID='{ids[0]}' >\n"
        " <HeaderFields JMSPriority='7' />\n"
        " <UserProperties Make='Honda' Weight='2680' Used='true' />\n"
        "</ExpiredJMSMessage>",
        f"<ExpiredJMSMessage JMSMessageID='{ids[1]}' >\n <HeaderFields JMSPriority='4' />\n</ExpiredJMSMessage>",
    ]
    assert expired(context, "logged") == 2


def test_plan_that_is_not_written_logs_nothing(context: Context, caplog: pytest.LogCaptureFixture) -> None:
    """T6: a batch that is prepared and dropped has expired nothing."""
    send(context, "logged", "a")
    later = Later(context, "logged")
    with caplog.at_level(logging.WARNING, "spark_jms.expiration"):
        part_of(later.subscriber).prepare(Batch("later"), Limits(), None)
        assert caplog.records == []
        later.batch()
    assert len(caplog.records) == 1


def test_redirect_moves_the_whole_message_for_good(context: Context) -> None:
    """T6: it keeps id, properties and body, does not expire again, and says where it comes from and when it expired."""
    producer = context.producer("moved")
    sent = producer.send(text="x", properties={"n": 7}, priority=9, group_id="g", time_to_live="1 h")
    send(context, "moved", "y")
    assert Search(context, "moved").run() == 2
    assert (expired(context, "moved"), texts(context, "failed")) == (2, ["x", "y"])
    message = next(iter(context.browser("failed")))
    assert (message.message_id, message.priority, message.group_id) == (sent.message_id, 9, "g")
    assert (message.expiration_ms, message.properties["n"]) == (0, 7)
    assert message.properties["JMS_JMSQ_ErrorExpiration"] == sent.expiration_ms
    assert (message.properties["JMS_JMSQ_ErrorReason"], message.properties["JMS_JMSQ_ErrorDeliveries"]) == (
        "found expired",
        0,
    )
    assert Search(context, "failed").run() == 0
    rows = views.acknowledgements(domain_of(context), records_of(context), "moved")
    assert [(row.consumer, row.messages) for row in rows] == [(EXPIRER, 2)]


def test_consumer_redirects_what_it_finds_expired(context: Context) -> None:
    """T6: and delivers the others."""
    send(context, "moved", "x")
    send(context, "moved", "good", time_to_live=None)
    later = Later(context, "moved")
    assert later.batch()[1] == [2]
    assert (expired(context, "moved"), texts(context, "failed")) == (1, ["x"])


def test_redirect_waits_for_its_error_destination(context: Context) -> None:
    """T6, T14: messages that cannot move yet are kept back from consumers, and counted when they have arrived."""
    send(context, "moved", "x")
    pause(domain_of(context), "failed", (INSERTION,), None)
    search = Search(context, "moved")
    assert search.run() == 0
    later = Later(context, "moved")
    assert (later.batch()[0], expired(context, "moved")) == (None, 0)
    later.subscriber.close()
    resume(domain_of(context), "failed", (INSERTION,), None)
    assert Later(context, "moved").batch()[0] is None, "it finishes the transfer, as housekeeping does"
    assert (expired(context, "moved"), texts(context, "failed"), texts(context, "moved")) == (1, ["x"], [])


def test_redirect_moves_many_messages_in_bounded_transfers(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T6, C18: none is lost, doubled or counted twice."""
    monkeypatch.setattr(expiration, "REDIRECTED", 100)
    send(context, "moved", *map(str, range(950)))
    assert Search(context, "moved").run() == 950
    assert expired(context, "moved") == 950
    assert sorted(int(text or "") for text in texts(context, "failed")) == list(range(950))


def test_message_beyond_its_redelivery_limit_goes_the_way_of_the_limit(context: Context) -> None:
    """T6, C8: it failed before it expired, so no search discards it."""
    with (
        memory_domain(
            orders={"kind": "queue", "redelivery_limit": 0, "error_destination": "failed"}, failed="queue"
        ) as root,
        connect(root, housekeeping=False) as made,
    ):
        send(made, "orders", "x")
        with made.consumer("orders") as consumer:
            message = consumer.receive(5)
            assert message is not None
            message.reject()
        assert Search(made, "orders").run() == 0
        assert (Later(made, "orders").batch()[0], texts(made, "failed")) == (None, ["x"])


# -- topics, units of work, clients --------------------------------------------------------------------------------------
def test_each_subscription_expires_its_own_messages(context: Context) -> None:
    """T6, C10: what a subscription has had, or refuses, or was sent before it began does not expire for it."""
    before = {"properties": {"color": "red"}}
    send(context, "news", "before", **before)
    late = context.consumer("news", subscription="late")
    red = context.consumer("news", subscription="red", selector="color = 'red'")
    passing = context.consumer("news")
    send(context, "news", "a", properties={"color": "red"})
    send(context, "news", "b", properties={"color": "blue"})
    message = late.receive(5)
    assert message is not None
    message.acknowledge()
    for consumer in (late, red):
        consumer.close()
    search = Search(context, "news")
    assert search.run() == 1 + 1 + 2  # late: b; red: a; the one that is not durable: both
    counts: dict[str, int] = {}
    for row in views.subscriptions(domain_of(context), records_of(context), "news"):
        counts[row.subscription] = row.expired
    assert [counts.pop("late"), counts.pop("red"), *counts.values()] == [1, 1, 2]
    assert search.run() == 0
    passing.close()


def part(unit: str, number: int, *, end: bool, **more: Any) -> dict[str, Any]:
    return {
        "text": f"{unit}{number}",
        "properties": {
            "JMS_BEA_UnitOfWork": unit,
            "JMS_BEA_UnitOfWorkSequenceNumber": number,
            **({"JMS_BEA_IsUnitOfWorkEnd": True} if end else {}),
        },
        **more,
    }


def test_unit_of_work_expires_as_a_whole(context: Context) -> None:
    """T6, T12: with its first message that is over; not while a consumer has it; a message of no unit alone."""
    context.producer("works").send_many(
        [
            part("u", 1, end=False, time_to_live="1 h"),
            part("u", 2, end=True),
            part("v", 1, end=True),
            {"text": "single", "time_to_live": "1 h"},
        ]
    )
    search = Search(context, "works")
    with context.consumer("works", prefetch=1) as consumer:
        unit = consumer.receive(5)
        assert unit is not None
        found = search.run()
        assert found == 1 if len(unit.unit_of_work) == 2 else 3
    assert found + search.run() == 3
    assert (expired(context, "works"), texts(context, "works")) == (3, ["v1"])


def test_message_that_expires_while_prefetched_is_counted(context: Context, caplog: pytest.LogCaptureFixture) -> None:
    """T6, C12: the client releases it, and the next plan expires it."""
    producer = context.producer("logged")
    producer.send(text="first")
    soon = producer.send(text="soon", time_to_live=0.5)
    with context.consumer("logged", prefetch=2) as consumer:
        first = consumer.receive(5)
        assert first is not None
        claimed = consumer.statistics().prefetched
        wait_until(lambda: now_ms() > soon.expiration_ms)
        assert consumer.receive(0) is None
        first.acknowledge()
        assert consumer.receive(0) is None
        assert consumer.statistics().expired == claimed
    assert expired(context, "logged") == 1
    assert soon.message_id in caplog.text


# -- tables, servers -----------------------------------------------------------------------------------------------------


def test_table_with_a_policy_is_refused_by_releases_that_would_discard(context: Context) -> None:
    """T6, C16: they would not know it. A table without one stays as it was."""
    versions = {
        name: domain_of(context).log(name).refresh().destination.to_configuration()["jmsq.formatVersion"]
        for name in ("plain", "logged", "moved")
    }
    assert versions == {"plain": "1", "logged": "6", "moved": "6"}


def test_life_cycle_log_tells_of_what_the_search_expires() -> None:
    """T6: as of what a consumer finds expired; its table has the event although there is no consumer to write it."""
    logging_queue = {"kind": "queue", "message_logging_enabled": True}
    with memory_domain(orders=logging_queue) as root, connect(root, housekeeping=False) as made:
        send(made, "orders", "a", "b")
        assert Search(made, "orders").run() == 2
        state = state_of(records_of(made), domain_of(made).log("orders").refresh(), "-", 0)
        table = domain_of(made).life_cycle("orders")
        assert table is not None
        found = [pq.read_table(f"{table.storage.uri}/{path}").to_pylist() for path in table.refresh().files]
        assert [(row["event"], row["messages"]) for rows in found for row in rows] == [(LifeEvent.EXPIRED.value, 2)]
        assert not state.life.waiting


def test_message_of_a_member_that_a_subscription_does_not_have_does_not_expire_there(tmp_path: Path) -> None:
    """T6, C10, D7: a consumer of `a@prices` whose subscription is not durable has only the messages on a."""
    prices = {"kind": "distributed-topic", "servers": ["a", "b"], "expirationPolicy": "Redirect"}
    root = applied(
        tmp_path,
        {
            "servers": {name: {"store": "file"} for name in "ab"},
            "destinations": {"failed": {"kind": "queue"}, "prices": {**prices, "errorDestination": "failed"}},
        },
    )
    with connect(root, housekeeping=False) as context, context.consumer("a@prices"):
        expired_ms = now_ms() - 1
        for server in "ab":
            rows = pa.table({"text": [server, server], "JMSExpiration": [expired_ms, expired_ms]})
            context.producer(f"{server}@prices").send_table(rows)
        housekeeper = Housekeeper(domain_of(context), records_of(context), "prices")
        housekeeper.scans_at_once = True
        assert housekeeper.run()
        assert not housekeeper.health.failures
        housekeeper.close()
        assert domain_of(context).log("failed").refresh().last_sequence(0) == 2
