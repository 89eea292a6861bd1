"""Messages that their error destination refuses for good: they stay, alone, and are tried again when that may help (C8)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from spark_jms import apply, connect
from spark_jms.admin.purge import drop_backlog
from spark_jms.admin.statistics import collect
from spark_jms.admin.transfer import MoveOrder, RedriveOrder, move, redrive
from spark_jms.claims.failures.error_destination import SET_ASIDE
from spark_jms.claims.servers.stores import record_of, state_of
from spark_jms.claims.transactions import transfer as claims_transfer
from spark_jms.claims.upkeep import views
from spark_jms.client.context.context import Context
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.ordering.units_of_work import END, NUMBER, UNIT
from spark_jms.core.records.batch import Limits
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.refusal import MESSAGE_SIZE, QUOTA
from spark_jms.core.records.stored_form import from_objects, to_objects
from spark_jms.errors import MessageSizeError
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.sending import transfer as log_transfer
from spark_jms.spark import options
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of, members_of, records_of
from tests.contract.claims.failures.test_undecodable import BAD, plant
from tests.harness.domains.expirations import HOUR_MS, Search
from tests.harness.messages.clocked_consumer import ClockedConsumer
from tests.harness.messages.poison_query import Query, Sink, numbers, received, send
from tests.harness.messages.shorthands import reject_next

MOST, LARGE = 1_000, "x" * 1_500
UNITS = {"unit_of_work_handling_policy": "SingleMessageDelivery"}
QUEUES: dict[str, Any] = {
    "orders": {"kind": "queue", "redelivery_limit": 0, "error_destination": "failed"},
    "twice": {"kind": "queue", "redelivery_limit": 1, "error_destination": "failed"},
    "short": {"kind": "queue", "expiration_policy": "Redirect", "error_destination": "failed"},
    "units": {"kind": "queue", "redelivery_limit": 0, "error_destination": "failed", **UNITS},
    "news": {"kind": "topic", "redelivery_limit": 0, "error_destination": "failed"},
    "failed": {"kind": "queue", "max_message_bytes": MOST, "redelivery_limit": 0, "error_destination": "last"},
    "last": {"kind": "queue", "max_message_bytes": MOST // 2},
    "plain": "queue",
}


@pytest.fixture
def root() -> Iterator[str]:
    with memory_domain(**QUEUES) as where:
        yield where


@pytest.fixture
def context(root: str) -> Iterator[Context]:
    with connect(root, housekeeping=False) as made:
        yield made


class Clocked(ClockedConsumer):
    """A consumer whose time the test sets."""

    def batch(self, count: int | None = None) -> list[int]:
        """The sequences that it gets; it rejects them."""
        batch = self.subscriber.next_batch(self.start, Limits(max_messages=count))
        if batch is None:
            return []
        picks = batch.members[0].picks
        assert self.subscriber.release(batch.claim, {0: picks}, delivered=True)
        return picks.numbers().tolist()

    def rounds(self, most: int = 10) -> list[int]:
        """What it gets until it gets nothing, and rejects."""
        out: list[int] = []
        for _ in range(most):
            if not (found := self.batch()):
                return out
            out += found
        raise AssertionError(f"still getting messages after {most} batches")


def state(context: Context, name: str) -> RecordSet:
    return state_of(records_of(context), domain_of(context).log(name).refresh(), "-", 0)


def texts(context: Context, name: str) -> list[str]:
    return [str(m.text) for m in context.browser(name)]


def declare(context: Context, name: str, **changes: Any) -> None:
    settings = {**QUEUES[name], **changes} if isinstance(QUEUES.get(name), dict) else {"kind": "queue", **changes}
    apply_destinations(domain_of(context), [Destination(name, **settings)], lambda destination, member: False)


def refused(context: Context, name: str) -> list[tuple[str, str]]:
    """(sequences, rule) of what is listed."""
    return [(row.ranges, row.rule) for row in collect(domain_of(context), records_of(context), name).refusals]


def drop(context: Context, name: str) -> int:
    return drop_backlog(domain_of(context), records_of(context), name, None, [0], 5).dropped


# -- what stays, and what moves ----------------------------------------------------------------------------------------
def test_others_move_without_the_refused_message(context: Context, caplog: pytest.LogCaptureFixture) -> None:
    """C8: no consumer gets it again; it is listed with the reason, and the log tells of it once."""
    for text in ("a", LARGE, "b", LARGE, "c"):
        context.producer("orders").send(text=text)
    q = Clocked(context, "orders")
    assert q.rounds() == [1, 2, 3, 4, 5]
    assert texts(context, "failed") == ["a", "b", "c"]
    assert refused(context, "orders") == [("2, 4", MESSAGE_SIZE)]
    q.now_ms += 60_000
    assert q.batch() == []
    members_of(q.subscriber).close()
    other = Clocked(context, "orders", "other")
    assert other.batch() == []
    (row,) = views.refusals(domain_of(context), records_of(context), "orders")
    assert (row.target, row.messages, row.reason) == (
        "failed",
        2,
        "larger than the maxMessageSize of failed, 1000 bytes",
    )
    assert row.failure == "delivered more often than the redelivery limit 0 allows"
    assert caplog.text.count("cannot move to failed, which refuses them for good") == 1
    assert "(2, 4) cannot move to failed" in caplog.text
    shown = collect(domain_of(context), records_of(context), "orders")
    assert (shown.backlog, shown.current, shown.pending) == (2, 0, 2)
    assert [r.refused for r in shown.subscriptions] == [2]
    context.producer("orders").send(text="later")
    assert other.batch() == [6]


def test_what_is_added_does_not_count(context: Context) -> None:
    """C2, C8: a message of exactly the error destination's limit moves there, and from there to a queue of the same limit and back."""
    declare(context, "orders", max_message_bytes=MOST)
    for length in range(MOST, 0, -1):
        with suppress(MessageSizeError):
            context.producer("orders").send(text="x" * length, properties={"n": 7}, time_to_live="1 h")
            break
    assert length > MOST - 50
    declare(context, "orders", max_message_bytes=2 * MOST)
    context.producer("orders").send(text="x" * (length + 1), properties={"n": 7}, time_to_live="1 h")
    Clocked(context, "orders").rounds()
    assert texts(context, "failed") == ["x" * length]
    assert refused(context, "orders") == [("2", MESSAGE_SIZE)]
    declare(context, "plain", max_message_bytes=MOST)
    assert move(domain_of(context), records_of(context), MoveOrder("failed", "plain"), 5).moved == 1
    (message,) = context.browser("plain")
    assert message.properties["JMS_JMSQ_ErrorFrom"] == "orders"
    assert redrive(domain_of(context), records_of(context), RedriveOrder("plain", "failed"), 5).messages == {
        "orders": 1
    }
    assert texts(context, "failed") == ["x" * length]


def test_refused_message_holds_back_its_own_unit_of_order(context: Context) -> None:
    """C8, T10: for every consumer, and no other unit; not after it has left."""
    for text, group in ((LARGE, "a"), ("b1", "b"), ("a2", "a"), ("x", None), ("b2", "b")):
        context.producer("orders").send(text=text, group_id=group)
    q = Clocked(context, "orders")
    assert q.batch(1) == [1]
    assert q.rounds() == [2, 4, 5]
    members_of(q.subscriber).close()
    q = Clocked(context, "orders", "other")
    assert q.batch() == []
    declare(context, "failed", max_message_bytes=2 * MOST)
    q.now_ms += 1_000
    q.batch()
    assert q.rounds() == [3]
    assert sorted(texts(context, "failed")) == sorted([LARGE, "b1", "a2", "x", "b2"])


def test_refused_message_of_a_subscription(context: Context) -> None:
    """C8, C10: another subscription gets its own copy."""
    for name in ("a", "b"):
        context.consumer("news", subscription=name).close()
    for text in (LARGE, "small"):
        context.producer("news").send(text=text)
    with context.consumer("news", subscription="a") as consumer:
        reject_next(consumer, 2)
        assert consumer.receive(0) is None
    with context.consumer("news", subscription="b", acknowledge="auto") as consumer:
        assert [m.text for m in consumer.messages(idle_timeout=0.2)] == [LARGE, "small"]
    (row,) = views.refusals(domain_of(context), records_of(context), "news")
    assert (row.subscription, row.ranges) == ("a", "1")


def test_what_an_earlier_release_does_with_it(context: Context) -> None:
    """C8, C16: it reads past what is stored of refused messages; what it finishes is not refused any more."""
    for text in (LARGE, LARGE):
        context.producer("orders").send(text=text)
    Clocked(context, "orders").rounds()
    record = record_of(domain_of(context).log("orders").snapshot, "-", 0)
    objects = dict(records_of(context).peek(record))
    assert b'"v":2' in objects["head"]
    assert b'"reason"' in objects["refusals"]
    assert str(state(context, "orders").refused) == "1-2"
    known = state(context, "orders")
    older = known.reconsider(known.refused).skip(known.refused.take(1))
    assert str(from_objects({**to_objects(older), "refusals": objects["refusals"]}, "orders").refused) == "2"


# -- the kinds ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("by", ["consumer", "scan"])
def test_expired_message_is_refused(context: Context, by: str) -> None:
    """C8, T6: its neighbours move; it is not searched for again, blocks no unit, and moves when the target takes it."""
    for text in (LARGE, "a", LARGE):
        context.producer("short").send(text=text, group_id="g", time_to_live="1 h")
    context.producer("short").send(text="lives", group_id="g")
    q = Clocked(context, "short")
    q.now_ms += 2 * HOUR_MS
    search = Search(context, "short")
    if by == "scan":
        assert search.run() == 1
        assert search.run() == 0
    else:
        q.batch()
    assert texts(context, "failed") == ["a"]
    assert refused(context, "short") == [("1, 3", MESSAGE_SIZE)]
    assert q.batch() == [4]
    declare(context, "failed", max_message_bytes=2 * MOST)
    q.now_ms += 1_000
    if by == "scan":
        members_of(q.subscriber).close()
        assert search.run() == 2
    else:
        q.batch()
    assert texts(context, "failed") == ["a", LARGE, LARGE]
    assert collect(domain_of(context), records_of(context), "short").expired == 3
    assert refused(context, "short") == []


def test_unit_of_work_stays_together(context: Context) -> None:
    """C8, T12: all its messages are refused with the large one; another unit moves, and so does this one later, whole."""
    parts = [("u", 1, "u1"), ("v", 1, "v1"), ("u", 2, LARGE), ("v", 2, "v2"), ("u", 3, "u3")]
    for unit, number, text in parts:
        last = (unit, number) in {("u", 3), ("v", 2)}
        properties = {UNIT: unit, NUMBER: number, **({END: True} if last else {})}
        context.producer("units").send(text=text, properties=properties)
    q = Clocked(context, "units")
    assert sorted(q.rounds()) == [1, 2, 3, 4, 5]
    assert texts(context, "failed") == ["v1", "v2"]
    assert refused(context, "units") == [("1, 3, 5", MESSAGE_SIZE)]
    declare(context, "failed", max_message_bytes=2 * MOST)
    q.now_ms += 1_000
    assert q.batch() == []
    assert texts(context, "failed") == ["v1", "v2", "u1", LARGE, "u3"]


def test_faulty_part_of_a_unit_of_work_is_refused(context: Context) -> None:
    """C8, T12: its unit is delivered without it; later it moves with its first reason."""
    for number, text, end in ((1, "u1", False), (1, LARGE, False), (2, "u2", True)):
        context.producer("units").send(
            text=text, properties={UNIT: "u", NUMBER: number, **({END: True} if end else {})}
        )
    with context.consumer("units") as consumer:
        message = consumer.receive(5)
        assert message is not None
        assert [part.text for part in message.unit_of_work] == ["u1", "u2"]
        message.acknowledge()
    assert refused(context, "units") == [("2", MESSAGE_SIZE)]
    declare(context, "failed", max_message_bytes=2 * MOST)
    assert Clocked(context, "units").batch() == []
    (bad,) = context.browser("failed")
    assert "has a message 1 already" in str(bad.properties["JMS_JMSQ_ErrorReason"])


def test_poison_message_is_refused_and_the_query_continues(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C8, M4: it comes in no later batch, is counted as delivered, and moves as poison when the target takes it."""
    monkeypatch.setattr(options.signal, "alarm", lambda seconds: None)  # pytest-timeout has it
    monkeypatch.setattr("spark_jms.spark.source.IDLE_WAIT_S", 0.02)
    send(root, "twice", *numbers(1, 4), LARGE, *numbers(5, 8))
    sink = Sink(bad={LARGE})
    query = Query(root, "twice", sink)
    query.drain()
    assert sorted(sink.texts) == numbers(1, 8)
    send(root, "twice", "later")
    query.drain()
    assert sink.texts[-1] == "later"
    assert received(root, "failed") == []
    with connect(root, housekeeping=False) as context:
        assert refused(context, "twice") == [("5", MESSAGE_SIZE)]
        declare(context, "failed", max_message_bytes=2 * MOST)
    query.drain()
    (bad,) = received(root, "failed")
    assert "failed 2 times with this message alone" in str(bad.properties["JMS_JMSQ_ErrorReason"])
    assert bad.properties["JMS_JMSQ_ErrorDeliveries"] >= 1
    assert sorted(sink.texts) == sorted([*numbers(1, 8), "later"])


def test_undecodable_message_is_refused(context: Context) -> None:
    """C8, C20: an administrator has declared `jmsq-set-aside` too small; it moves when that is corrected."""
    apply_destinations(
        domain_of(context), [Destination(SET_ASIDE, "queue", 1, max_message_bytes=3)], lambda destination, member: False
    )
    plant(context, "orders", {}, {**BAD, "b": "long"}, {})
    with context.consumer("orders", acknowledge="auto") as consumer:
        assert [m.text for m in consumer.messages(idle_timeout=0.2)] == ["0", "2"]
    assert refused(context, "orders") == [("2", MESSAGE_SIZE)]
    with context.consumer("orders", acknowledge="auto") as consumer:
        assert consumer.receive(0) is None
        apply_destinations(domain_of(context), [Destination(SET_ASIDE, "queue", 1)], lambda destination, member: False)
        assert consumer.receive(timeout=1.5) is None
    assert texts(context, SET_ASIDE) == ["1"]
    assert refused(context, "orders") == []


# -- quotas ------------------------------------------------------------------------------------------------------------
@pytest.fixture
def limited(tmp_path: Any) -> Iterator[Context]:
    def with_room(bytes_maximum: int) -> None:
        apply(
            str(tmp_path),
            {
                "store": f"memory://refused-{tmp_path.name}",
                "quotas": {"small": {"bytesMaximum": bytes_maximum, "messagesMaximum": 3}},
                "destinations": {
                    "orders": {"kind": "queue", "redeliveryLimit": 0, "errorDestination": "failed"},
                    "failed": {"kind": "queue", "quota": "small"},
                },
            },
        )

    with_room(40_000)
    with connect(str(tmp_path), housekeeping=False) as made:
        made.with_room = with_room  # type: ignore[attr-defined]
        yield made


def test_message_larger_than_the_quota_is_refused(limited: Context) -> None:
    """C8, T1: by the quota of the error destination; the others move. A larger maximum takes it."""
    large = random.Random(1).randbytes(60_000)
    for body in (b"a", large, b"b"):
        limited.producer("orders").send(body=body)
    q = Clocked(limited, "orders")
    q.rounds()
    q.batch()
    assert refused(limited, "orders") == [("2", QUOTA)]
    (row,) = views.refusals(domain_of(limited), records_of(limited), "orders")
    assert row.reason == "larger alone than the maximum of quota small"
    assert [m.body for m in limited.browser("failed")] == [b"a", b"b"]
    limited.with_room(200_000)  # type: ignore[attr-defined]
    q.now_ms += 1_000
    q.batch()
    assert [len(m.body or b"") for m in limited.browser("failed")] == [1, 1, 60_000]


def test_more_messages_than_the_quota_has_room_for_move_in_parts(limited: Context) -> None:
    """C8, T1: as room comes; none is refused."""
    limited.producer("orders").send_many({"text": f"{n}"} for n in range(8))
    q = Clocked(limited, "orders")
    q.rounds()
    found: list[str] = []
    for _ in range(20):
        q.now_ms += 60_000
        q.batch()
        for message in received_now(limited, "failed"):
            found.append(message)
    assert sorted(found) == [f"{n}" for n in range(8)]
    assert refused(limited, "orders") == []


def received_now(context: Context, name: str) -> list[str]:
    with context.consumer(name, acknowledge="auto") as consumer:
        return [str(message.text) for message in consumer.messages(idle_timeout=0)]


# -- the ways out ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("way", ["move", "purge"])
def test_administrator_takes_it(context: Context, way: str) -> None:
    """C8, C14: like any other available message, and then it is not refused any more."""
    for text in (LARGE, "small"):
        context.producer("orders").send(text=text)
    q = Clocked(context, "orders")
    q.rounds()
    assert refused(context, "orders") == [("1", MESSAGE_SIZE)]
    members_of(q.subscriber).close()
    if way == "move":
        assert move(domain_of(context), records_of(context), MoveOrder("orders", "plain"), 5).moved == 1
        assert texts(context, "plain") == [LARGE]
    else:
        assert drop(context, "orders") == 1
    assert refused(context, "orders") == []
    assert state(context, "orders").refusals == ()
    assert state(context, "orders").floor == 2


def test_redrive_takes_it(context: Context) -> None:
    """C8, M2: a message of an error destination whose own error destination refuses it."""
    text = "x" * (MOST - 100)
    context.producer("orders").send(text=text)
    Clocked(context, "orders").rounds()
    q = Clocked(context, "failed")
    assert q.rounds() == [1]
    assert refused(context, "failed") == [("1", MESSAGE_SIZE)]
    members_of(q.subscriber).close()
    assert redrive(domain_of(context), records_of(context), RedriveOrder("failed"), 5).messages == {"orders": 1}
    assert texts(context, "orders") == [text]
    assert state(context, "failed").refusals == ()


def test_move_that_is_refused_leaves_it_refused(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C8, C18: its messages return to the origin, and no consumer gets them."""
    context.producer("orders").send(text=LARGE)
    q = Clocked(context, "orders")
    q.rounds()
    members_of(q.subscriber).close()
    real = log_transfer.append_transfer

    def lost(log: Any, target: Any, *more: Any) -> None:
        for file in target.files:
            log.storage.delete(file.path)

    monkeypatch.setattr(claims_transfer, "append_transfer", lost)
    move(domain_of(context), records_of(context), MoveOrder("orders", "plain", limit=1), 5)
    monkeypatch.setattr(claims_transfer, "append_transfer", real)
    assert refused(context, "orders") == [("1", MESSAGE_SIZE)]
    assert Clocked(context, "orders", "next").batch() == []


# -- tried again -------------------------------------------------------------------------------------------------------
CHANGES: dict[str, Callable[[Context], None]] = {
    "target": lambda context: declare(context, "failed", max_message_bytes=2 * MOST),
    "another target": lambda context: declare(context, "orders", error_destination="plain"),
    "no target": lambda context: declare(context, "orders", error_destination=None),
    "limit": lambda context: declare(context, "orders", redelivery_limit=5),
    "no limit": lambda context: declare(context, "orders", redelivery_limit=-1),
}


@pytest.mark.parametrize("change", CHANGES)
def test_refused_message_follows_the_declarations(context: Context, change: str) -> None:
    """C8: it moves to an error destination that takes it, is discarded without one, or is delivered within a new limit."""
    context.producer("orders").send(text=LARGE)
    q = Clocked(context, "orders")
    assert q.rounds() == [1]
    assert not q.subscriber.has_news() or q.batch() == []
    CHANGES[change](context)
    q.now_ms += 1_000
    assert q.subscriber.has_news()
    assert q.batch() == ([1] if "limit" in change else [])
    where = {name: texts(context, name) for name in ("orders", "failed", "plain")}
    held = {"target": "failed", "another target": "plain", "limit": "orders", "no limit": "orders"}.get(change)
    assert where == {"orders": [], "failed": [], "plain": [], **({held: [LARGE]} if held else {})}
    assert refused(context, "orders") == []


def test_refused_message_is_not_read_again_while_nothing_changes(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C8, C11: however often consumers plan, and whichever consumer."""
    context.producer("orders").send(text=LARGE)
    Clocked(context, "orders").rounds()
    staged: list[object] = []
    monkeypatch.setattr(claims_transfer, "stage_transfer", lambda *arguments, **more: staged.append(arguments))
    q = Clocked(context, "orders", "other")
    for _ in range(5):
        q.now_ms += 10_000
        assert q.batch() == []
    assert not staged


def test_target_that_cannot_be_read_leaves_it_refused(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C8, C20: it is looked at again later."""
    context.producer("orders").send(text=LARGE)
    q = Clocked(context, "orders")
    q.rounds()
    declare(context, "failed", max_message_bytes=2 * MOST)

    def gone(*_: object) -> str:
        raise OSError("not reachable")

    with monkeypatch.context() as patch:
        patch.setattr(claims_transfer.Transfers, "declared", gone)
        q.now_ms += 1_000
        assert q.batch() == []
    assert refused(context, "orders") == [("1", MESSAGE_SIZE)]
    q.now_ms += 1_000
    assert q.batch() == []
    assert texts(context, "failed") == [LARGE]


# -- the warning -------------------------------------------------------------------------------------------------------
def test_apply_warns_of_an_error_destination_that_takes_less(
    context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    """C3, C8: whichever of the two is applied; not when it takes as much."""
    told = "destination plenty has the errorDestination {}, which takes less: its maxMessageSize is 1000 bytes"
    source = Destination("plenty", "queue", error_destination="failed")
    apply_destinations(domain_of(context), [source], lambda destination, member: False)
    assert told.format("failed") in caplog.text
    caplog.clear()
    declare(context, "plain")
    assert not caplog.text
    apply_destinations(
        domain_of(context),
        [Destination("plenty", "queue", error_destination="plain"), Destination("plain", "queue")],
        lambda destination, member: False,
    )
    assert not caplog.text
    declare(context, "plain", max_message_bytes=MOST)
    assert told.format("plain") in caplog.text


def test_apply_warns_of_the_quota_of_an_error_destination(limited: Context, caplog: pytest.LogCaptureFixture) -> None:
    """C3, C8, T1: no message of that size would ever move."""
    caplog.clear()
    limited.with_room(50_000)  # type: ignore[attr-defined]
    assert "its quota small has room for 50000 bytes, and the maxMessageSize of orders is 10485760" in caplog.text
