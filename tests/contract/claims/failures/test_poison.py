"""A failing batch is narrowed to its poison message, which is set aside (M4): the source, driven as Spark drives it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from spark_jms import connect
from spark_jms.admin.claims import find_claim, release_claim
from spark_jms.admin.destinations import pause, resume
from spark_jms.admin.transfer import RedriveOrder, redrive
from spark_jms.claims.upkeep import views
from spark_jms.core.destinations.pause import CONSUMPTION
from spark_jms.core.records.endings import ISOLATION
from spark_jms.errors import OptionError, PoisonMessageError
from spark_jms.log.destinations.domain import Domain
from spark_jms.spark import options as spark_options
from spark_jms.spark.options import check_streaming, parse_options
from spark_jms.testing import memory_domain
from tests.harness.messages.poison_query import Query, Row, Sink, drained_by_dying_driver, numbers, received, send

QUEUES: dict[str, Any] = {
    "orders": {"kind": "queue", "error_destination": "failed", "redelivery_limit": 1},
    "spread": {"kind": "distributed-queue", "members": 3, "error_destination": "failed"},
    "drops": {"kind": "queue"},
    "once": {"kind": "queue", "error_destination": "failed", "redelivery_limit": 0},
    "failed": "queue",
}


@pytest.fixture(autouse=True)
def no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_options.signal, "alarm", lambda seconds: None)  # pytest-timeout has it
    monkeypatch.setattr("spark_jms.spark.source.IDLE_WAIT_S", 0.02)


@pytest.fixture
def root() -> Iterator[str]:
    with memory_domain(**QUEUES) as where:
        yield where


# -- isolating ---------------------------------------------------------------------------------------------------------
def test_one_poison_message_among_a_thousand_is_set_aside(root: str) -> None:
    """M4, C8: every other message arrives once and in order; the poison one is in the error destination, with the reason."""
    send(root, "orders", *numbers(1, 1000))
    sink = Sink(bad={"333"})
    query = Query(root, "orders", sink)
    query.drain()
    assert sorted(sink.texts, key=int) == [n for n in numbers(1, 1000) if n != "333"]
    assert sink.texts == sorted(sink.texts, key=int)
    assert sink.sizes[:3] == [1000, 1000, 500]
    assert sink.sizes[-2] == 0, "the batch of the poison message ends without it"
    assert sink.refused[-2:] == [["333"], ["333"]]
    assert sink.refused.count(["333"]) == 2
    assert query.restarts <= 2 + 10 + 1
    (bad,) = received(root, "failed")
    assert bad.text == "333"
    assert bad.properties["JMS_JMSQ_ErrorFrom"] == "orders"
    assert bad.properties["JMS_JMSQ_ErrorPosition"] == "orders/-/0#333"
    assert "failed 2 times with this message alone" in str(bad.properties["JMS_JMSQ_ErrorReason"])
    send(root, "orders", "later")
    query.drain()
    assert sink.texts[-1] == "later"


def test_withheld_messages_are_counted_once_and_never_beyond_the_redelivery_limit(root: str) -> None:
    """M4, C8: a Spark replay raises no delivery count. A withheld message comes flagged, delivered once before, however often
    the batch is narrowed: with a redelivery limit of 1 none but the poison leaves the stream."""
    send(root, "orders", *numbers(1, 50))
    sink = Sink(bad={"17", "40"})
    Query(root, "orders", sink).drain()
    assert {m.text for m in received(root, "failed")} == {"17", "40"}
    assert len(sink.texts) == 48
    counts = {row["text"]: (row["JMSXDeliveryCount"], row["JMSRedelivered"]) for row in sink.rows}
    assert counts["1"] == (1, False)
    assert counts["50"] == (2, True)
    assert set(counts.values()) == {(1, False), (2, True)}


@pytest.mark.parametrize("bad", [{"1"}, {"9"}, {"1", "2", "9"}, set(numbers(1, 9))])
def test_any_messages_may_be_poison(root: str, bad: set[str]) -> None:
    """M4: the first, the last, several, all; a batch of one message too, which follows."""
    send(root, "spread", *numbers(1, 9))
    sink = Sink(bad={*bad, "alone"})
    query = Query(root, "spread", sink)
    query.drain(80)
    send(root, "spread", "alone")
    query.drain()
    assert sorted(sink.texts) == sorted(set(numbers(1, 9)) - bad)
    assert Counter(m.text for m in received(root, "failed")) == Counter({*bad, "alone"})


def test_poison_on_two_members(root: str) -> None:
    """M4: one of each in the same batch; each member keeps its order."""
    send(root, "spread", *numbers(1, 90))
    sink = Sink(bad={"5", "85"})
    Query(root, "spread", sink).drain()
    failed = received(root, "failed")
    assert {m.text for m in failed} == {"5", "85"}
    assert len({m.properties["JMS_JMSQ_ErrorPosition"] for m in failed}) == 2
    assert sorted(sink.texts, key=int) == [n for n in numbers(1, 90) if n not in ("5", "85")]
    for member in range(3):
        mine = [row["sequence"] for row in sink.rows if row["member"] == member]
        assert mine == sorted(mine)


def test_units_of_order_keep_their_order(root: str) -> None:
    """M4, T10: later messages of a withheld message's unit are withheld as well, and another consumer gets none of them."""
    for n in range(1, 41):
        send(root, "spread", f"{'abcd'[n % 4]}{n:02}", group="abcd"[n % 4])
    sink = Sink(bad={"a20"})
    query = Query(root, "spread", sink)
    for _ in range(3):
        assert not query.run()
    assert received(root, "spread") == []  # the other units are claimed as well
    send(root, "spread", "a99", group="a")
    assert received(root, "spread") == []
    query.drain()
    by_unit: dict[str, list[str]] = {}
    for text in sink.texts:
        by_unit.setdefault(text[0], []).append(text)
    assert all(texts == sorted(texts) for texts in by_unit.values())
    assert sum(map(len, by_unit.values())) == 40
    assert by_unit["a"][-1] == "a99"
    assert [m.text for m in received(root, "failed")] == ["a20"]


def test_poison_message_without_error_destination_is_discarded(root: str, caplog: pytest.LogCaptureFixture) -> None:
    """M4: as beyond a redelivery limit: a line in the log and a row in the acknowledgement table."""
    send(root, "drops", *numbers(1, 5))
    sink = Sink(bad={"4"})
    Query(root, "drops", sink).drain()
    assert sink.texts == ["1", "2", "3", "5"]
    assert "(4) were poison" in caplog.text
    assert "an errorDestination would keep them" in caplog.text
    domain = Domain(root)
    with views.opened_store(domain) as store:
        rows = views.acknowledgements(domain, store, "drops")
    (row,) = (row for row in rows if row.consumer == ISOLATION)
    assert (row.first, row.last, row.messages) == (4, 4, 1)


def test_poison_message_can_be_redriven(root: str) -> None:
    """M4, C8: once the sink can take it, `jmsq redrive` sends it to where it failed."""
    send(root, "orders", *numbers(1, 3))
    sink = Sink(bad={"2"})
    query = Query(root, "orders", sink)
    query.drain()
    sink.bad.clear()
    domain = Domain(root)
    with views.opened_store(domain) as store:
        redrive(domain, store, RedriveOrder("failed"), 5.0)
    query.drain()
    assert sink.texts == ["1", "3", "2"]
    assert received(root, "failed") == []


# -- when nothing is narrowed ------------------------------------------------------------------------------------------
def test_batch_is_not_narrowed_without_the_option(root: str) -> None:
    """M4: by default a failing batch is delivered whole, for ever."""
    send(root, "orders", *numbers(1, 10))
    sink = Sink(bad={"3"})
    query = Query(root, "orders", sink, {"onPoison": "fail"})
    for _ in range(5):
        assert not query.run()
    assert sink.sizes == [10] * 5


@pytest.mark.parametrize("option", ["fail", "isolate"])
def test_replay_of_a_batch_raises_no_delivery_count(root: str, option: str) -> None:
    """C8, M4: however often Spark repeats the batch, before or after the sink has failed on it; with a redelivery limit of 1
    no message is taken for poison."""
    send(root, "orders", *numbers(1, 6))
    sink = Sink(dies_before={1, 2, 3, 4})
    Query(root, "orders", sink, {"onPoison": option}).drain()
    assert sink.sizes == [6] * 5
    assert {(row["JMSXDeliveryCount"], row["JMSRedelivered"]) for row in sink.rows} == {(1, False)}
    assert received(root, "failed") == []


@pytest.mark.parametrize("destination", ["orders", "spread"])
def test_withheld_messages_are_stored_before_spark_gets_the_batch(root: str, destination: str) -> None:
    """M4: whatever dies after `partitions`, the store knows which part was delivered."""
    send(root, destination, *numbers(1, 8))
    seen: list[tuple[int, int]] = []
    domain = Domain(root)

    class LookingSink(Sink):
        def take(self, number: int, rows: list[Row]) -> None:
            with views.opened_store(domain) as store:
                seen.append((len(rows), sum(row.withheld for row in views.claims(domain, store, destination))))
            super().take(number, rows)

    query = Query(root, destination, LookingSink(bad={"8"}))
    query.drain()
    assert seen[:3] == [(8, 0), (8, 0), (4, 4)]
    assert len(query.sink.texts) == 7


def test_isolation_needs_an_idempotent_sink() -> None:
    """M4: the user declares it."""
    options = parse_options({"root": "/r", "destination": "d", "onPoison": "isolate"})
    with pytest.raises(OptionError, match="set idempotentSink to true"):
        check_streaming(options)


def test_deaths_of_the_driver_are_counted_apart_and_narrow_nothing(root: str) -> None:
    """M4: `jmsq claims` shows attempts, deaths and what is withheld."""
    send(root, "orders", *numbers(1, 8))
    sink = Sink(bad={"8"}, dies_before={1, 2, 4})
    query = Query(root, "orders", sink)
    seen = []
    domain = Domain(root)
    for _ in range(6):
        assert not query.run()
        with views.opened_store(domain) as store:
            (row,) = views.claims(domain, store, "orders")
        seen.append((row.attempts, row.deaths, row.withheld))
    assert sink.sizes[:6] == [8, 8, 8, 8, 8, 4]
    assert seen[:5] == [(1, 0, 0), (2, 1, 0), (3, 2, 0), (4, 2, 0), (5, 3, 0)]
    query.drain()
    assert [m.text for m in received(root, "failed")] == ["8"]
    assert sink.texts == numbers(1, 7)


def test_trial_is_kept_by_a_run_without_the_option(root: str) -> None:
    """M4: a narrowed batch stays narrowed, or an idempotent sink would drop what comes on top; its rest is not lost."""
    send(root, "orders", *numbers(1, 8))
    sink = Sink(bad={"8"})
    query = Query(root, "orders", sink)
    query.run()
    query.run()
    query.options = {"onPoison": "fail"}
    assert not query.run()
    assert sink.sizes == [8, 8, 8]
    query.options = {}
    sink.dies_before = {4}
    assert not query.run()  # it is narrowed, and the driver dies
    query.options = {"onPoison": "fail"}
    sink.bad.clear()
    query.drain()
    assert sink.sizes[3:] == [4, 4, 2, 1, 1]
    assert sink.texts == numbers(1, 8)


@pytest.mark.parametrize("option", ["fail", "isolate"])
def test_batch_that_its_checkpoint_has_lost_counts_as_delivered(root: str, option: str) -> None:
    """M4, C8: the query has repeated a batch, and starts with a checkpoint that does not know it. The sink may have had its messages,
    so those that may be delivered once only move to the error destination, and others come flagged."""
    sinks = {name: Sink(dies_before={1, 2}) for name in ("once", "orders")}
    for name, sink in sinks.items():
        send(root, name, *numbers(1, 3))
        query = Query(root, name, sink, {"onPoison": option})
        assert not query.run()
        assert not query.run()
        query.offsets.pop()
        query.drain()
    assert sinks["once"].rows == []
    assert sorted(message.text for message in received(root, "failed")) == numbers(1, 3)
    assert {(row["JMSXDeliveryCount"], row["JMSRedelivered"]) for row in sinks["orders"].rows} == {(2, True)}
    assert sinks["orders"].texts == numbers(1, 3)


# -- crashes -----------------------------------------------------------------------------------------------------------
def test_sink_that_committed_before_the_crash_gets_withheld_messages_again_flagged(root: str) -> None:
    """M4: the sink has all of the batch when the query fails behind it; then the narrowed batch succeeds, and what it left
    out comes again, flagged as redelivered. Nothing is lost."""
    send(root, "orders", *numbers(1, 8))
    sink = Sink(fails_after={1, 2})
    Query(root, "orders", sink).drain()
    assert sink.sizes == [8, 8, 4, 2, 1, 1]
    again = sink.rows[8:]
    assert [row["text"] for row in again] == numbers(5, 8)
    assert all(row["JMSRedelivered"] for row in again)
    assert sink.texts[:8] == numbers(1, 8)


def test_driver_that_dies_at_any_attempt_loses_nothing(root: str) -> None:
    """M4: before or after the sink's commit, in every attempt of an isolation: only flagged messages come twice."""
    for number in range(1, 13):
        texts, sink = drained_by_dying_driver(root, number)
        assert set(sink.texts) == set(texts) - sink.bad
        seen = Counter(sink.texts)
        flagged = {row["text"] for row in sink.rows if row["JMSRedelivered"]}
        assert {text for text, times in seen.items() if times > 1} <= flagged
        assert [m.text for m in received(root, "failed")] == [f"{number}/5"]
        assert received(root, "orders") == []


def test_batch_of_withheld_messages_that_spark_never_logged_is_made_again(root: str) -> None:
    """M4, C9: the driver dies between the claim of the withheld messages and Spark's offset log."""
    send(root, "orders", *numbers(1, 8))
    sink = Sink(bad={"8"})
    query = Query(root, "orders", sink)
    query.unlogged = 2
    query.run()
    query.run()
    query.run()  # 1-4 succeed
    assert (sink.sizes, query.unlogged) == ([8, 8, 4], 0)
    assert received(root, "orders") == []
    query.drain()
    assert sink.sizes[3:6] == [2, 1, 1]
    assert sink.texts == numbers(1, 7)
    assert [m.text for m in received(root, "failed")] == ["8"]


# -- the error destination ---------------------------------------------------------------------------------------------
def test_error_destination_that_cannot_take_the_message_is_named(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """M4: the query fails by name, nothing is lost, and it goes on once the destination can."""
    send(root, "orders", *numbers(1, 2))
    sink = Sink(bad={"2"})
    query = Query(root, "orders", sink)

    def unable(*_: Any) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("spark_jms.claims.transactions.transfer.Transfers.begin", unable)
        with pytest.raises(PoisonMessageError, match=r"orders/-/0#2 is a poison message.*failed: the disk is full"):
            query.drain()
    query.drain()
    assert sink.texts == ["1"]
    assert [m.text for m in received(root, "failed")] == ["2"]


# -- other consumers, administrators -----------------------------------------------------------------------------------
def test_withheld_messages_wait_while_consumption_is_paused(root: str) -> None:
    """M4, T14."""
    send(root, "orders", *numbers(1, 4))
    sink = Sink(bad={"1"})
    query = Query(root, "orders", sink)
    query.run()
    query.run()
    sink.bad.clear()
    domain = Domain(root)
    pause(domain, "orders", (CONSUMPTION,), None)
    query.drain()
    assert sink.texts == ["1", "2"]
    resume(domain, "orders", (CONSUMPTION,), None)
    query.drain()
    assert sink.texts == numbers(1, 4)


def test_claim_released_by_an_administrator_ends_the_trial(root: str) -> None:
    """M4, C16: other consumers get its messages, withheld ones too."""
    send(root, "orders", *numbers(1, 9))
    sink = Sink(bad={"1"})
    query = Query(root, "orders", sink)
    for _ in range(3):
        query.run()
    domain = Domain(root)
    with views.opened_store(domain) as store:
        (row,) = views.claims(domain, store, "orders")
        assert row.withheld == 4
        release_claim(domain, store, find_claim(domain, store, ["orders"], row.claim), 1.0)
    delivered = Counter(m.text for m in received(root, "orders"))
    query.drain()
    assert delivered + Counter(sink.texts) == Counter(numbers(1, 9))


def test_query_isolates_beside_another_consumer(root: str) -> None:
    """M4, C9: the other consumer changes the record sets during the isolation; the query gets all it needs at once."""
    texts = numbers(1, 30)
    send(root, "spread", *texts)
    sink = Sink(bad={"30"})
    query = Query(root, "spread", sink)
    with (
        connect(root, housekeeping=False) as context,
        context.consumer("spread", selector="JMSType = 'none'") as other,
    ):
        for _ in range(100):
            assert other.receive(0) is None
            query.drain()
            if len(sink.texts) == 29:
                break
        assert other.receive(0) is None
    assert sorted(sink.texts, key=int) == texts[:-1]
    assert [m.text for m in received(root, "failed")] == ["30"]
