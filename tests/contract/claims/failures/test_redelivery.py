"""Redelivery: delay, limit, error destination and the way back, as consumers meet them (C8)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_jms import connect
from spark_jms.admin.destinations import drop_destination, rename_destination
from spark_jms.admin.transfer import Redriven, RedriveOrder, plan_redrive, redrive
from spark_jms.claims.failures import error_destination
from spark_jms.claims.servers.stores import state_of
from spark_jms.claims.transactions import transfer as claims_transfer
from spark_jms.claims.upkeep import views
from spark_jms.client.context.context import Context
from spark_jms.client.messages.message import Message
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.core.selector import Selector
from spark_jms.errors import (
    DestinationInUseError,
    InvalidDestinationError,
    InvalidSelectorError,
    MessageSizeError,
    ModuleFileError,
)
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.sending import transfer as log_transfer
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of, members_of, records_of
from tests.harness.messages.clocked_consumer import ClockedConsumer
from tests.harness.messages.shorthands import reject_next

pytestmark = pytest.mark.usefixtures("sharing")

QUEUES: dict[str, Any] = {
    "orders": {"kind": "queue", "redelivery_limit": 2, "error_destination": "failed"},
    "bills": {"kind": "distributed-queue", "members": 2, "redelivery_limit": 0, "error_destination": "failed"},
    "drops": {"kind": "queue", "redelivery_limit": 1},
    "late": {"kind": "queue", "redelivery_delay_ms": 60_000},
    "news": {"kind": "topic", "redelivery_limit": 0, "error_destination": "failed"},
    "failed": "queue",
    "plain": "queue",
}


class Killed(BaseException):
    """As kill -9: nothing behind it runs."""


@pytest.fixture
def context() -> Iterator[Context]:
    with memory_domain(**QUEUES) as root, connect(root, housekeeping=False) as made:
        yield made


def take(context: Context, destination: str, *, timeout: float = 0, **how: Any) -> Message | None:
    with context.consumer(destination, **how) as consumer:
        return consumer.receive(timeout)


def fail(context: Context, destination: str, times: int, **how: Any) -> None:
    """Receive the first message and reject it, so often."""
    with context.consumer(destination, **how) as consumer:
        for n in range(times):
            message = consumer.receive(5)
            assert message is not None
            assert message.delivery_count == n + 1
            message.reject()


class Clocked(ClockedConsumer):
    """A consumer of `destination` whose time the test sets."""

    def batch(self, count: int | None = None) -> tuple[Batch | None, list[int]]:
        batch = self.subscriber.next_batch(self.start, Limits(max_messages=count))
        return batch, batch.members[0].picks.numbers().tolist() if batch else []

    def fail(self, count: int | None = None) -> list[int]:
        batch, picks = self.batch(count)
        assert batch is not None
        parts = {0: batch.members[0].picks}
        assert self.subscriber.release(batch.claim, parts, delivered=True)
        return picks


# -- limit and error destination ---------------------------------------------------------------------------------------
def test_message_beyond_its_limit_goes_whole_to_the_error_destination(context: Context) -> None:
    """C8: after the first delivery and two more; its id, headers, properties and body stay, and the reason comes with it."""
    sent = context.producer("orders").send(
        text="bad", properties={"n": 7, "s": "x"}, priority=9, correlation_id="c", group_id="g", time_to_live="1 h"
    )
    context.producer("orders").send(text="good")
    fail(context, "orders", 3)
    good = take(context, "orders")
    assert good is not None
    assert good.text == "good"
    bad = take(context, "failed", timeout=5)
    assert bad is not None
    assert (bad.message_id, bad.text, bad.priority, bad.correlation_id, bad.group_id) == (
        sent.message_id,
        "bad",
        9,
        "c",
        "g",
    )
    assert bad.expiration_ms == 0
    properties = dict(bad.properties)
    assert 0 < properties.pop("JMS_JMSQ_ErrorTime") - sent.timestamp_ms < 600_000
    assert properties == {
        "n": 7,
        "s": "x",
        "JMS_JMSQ_ErrorFrom": "orders",
        "JMS_JMSQ_ErrorPosition": "orders/-/0#1",
        "JMS_JMSQ_ErrorReason": "delivered more often than the redelivery limit 2 allows",
        "JMS_JMSQ_ErrorDeliveries": 3,
        "JMS_JMSQ_ErrorExpiration": sent.expiration_ms,
    }
    assert (bad.redelivered, bad.delivery_count) == (False, 1)
    rows = views.acknowledgements(domain_of(context), records_of(context), "orders")
    assert [row.messages for row in rows if row.consumer == "redelivery limit"] == [1]


def test_message_without_error_destination_is_discarded_and_accounted(
    context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    """C8: a log line and a row of the acknowledgement table tell of it."""
    context.producer("drops").send(text="bad")
    context.producer("drops").send(text="good")
    fail(context, "drops", 2)
    good = take(context, "drops")
    assert good is not None
    assert good.text == "good"
    assert "drops/-/0: 1 message(s) (1) were delivered more often than the redelivery limit 1 allows" in caplog.text
    state = state_of(records_of(context), domain_of(context).log("drops").refresh(), "-", 0)
    assert state.floor == 1
    assert [
        (r.consumer, r.messages) for r in views.acknowledgements(domain_of(context), records_of(context), "drops")
    ] == [("redelivery limit", 1)]


def test_large_batch_that_fails_moves_in_bounded_transfers(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C8, C18: none is lost or doubled, and messages that never failed are delivered meanwhile."""
    monkeypatch.setattr(error_destination, "_MOST", 100)
    with context.producer("orders") as producer:
        producer.send_many({"text": f"{n}"} for n in range(950))
    q = Clocked(context, "orders")
    for _ in range(3):
        assert q.fail(900) == list(range(1, 901))
    assert q.batch()[1] == list(range(901, 951))
    while domain_of(context).log("failed").refresh().last_sequence(0) < 900:
        q.batch()
    found = [m.text for m in context.browser("failed")]
    assert sorted(map(int, found)) == list(range(900))
    state = state_of(records_of(context), domain_of(context).log("orders").refresh(), "-", 0)
    assert (state.floor, state.intents) == (900, {})


def test_limit_of_a_subscription_leaves_the_others_alone(context: Context) -> None:
    """C8, C10"""
    for name in ("a", "b"):
        take(context, "news", subscription=name)
    context.producer("news").send(text="x")
    fail(context, "news", 1, subscription="a")
    assert take(context, "news", subscription="a") is None
    assert take(context, "news", subscription="b") is not None
    bad = take(context, "failed", timeout=5)
    assert bad is not None
    assert bad.properties["JMS_JMSQ_ErrorPosition"] == "news/a/0#1"


def test_new_limit_holds_for_messages_that_failed_before(context: Context) -> None:
    """C8: the limit is looked up when a batch is planned."""
    context.producer("plain").send(text="x")
    fail(context, "plain", 5)
    declared = Destination("plain", "queue", redelivery_limit=4, error_destination="failed")
    apply_destinations(domain_of(context), [declared], lambda destination, member: False)
    assert take(context, "plain") is None
    assert take(context, "failed", timeout=5) is not None


@pytest.mark.parametrize("error", [OSError("disk full"), MessageSizeError("too large")])
def test_messages_are_kept_back_while_the_error_destination_cannot_take_them(
    context: Context, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """C8, C20: they are neither delivered again nor lost, others are delivered, and it is tried again."""
    broken = True
    real = log_transfer.stage_transfer

    def stage(*arguments: Any) -> Any:
        if broken:
            raise error
        return real(*arguments)

    monkeypatch.setattr(claims_transfer, "stage_transfer", stage)
    for text in ("bad", "good"):
        context.producer("orders").send(text=text)
    q = Clocked(context, "orders")
    for _ in range(3):
        assert q.fail(1) == [1]
    assert q.batch()[1] == [2]
    assert q.batch()[1] == []
    assert caplog.text.count("cannot move to failed yet") == 1
    broken = False
    assert q.batch()[1] == []
    assert take(context, "failed") is None, "tried again before the pause was over"
    q.now_ms += 5_000
    q.batch()
    assert take(context, "failed") is not None


@pytest.mark.parametrize("step", ["staged", "moving", "appended"])
def test_consumer_that_dies_on_the_way_neither_loses_nor_doubles(
    context: Context, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """C8, C18: the next consumer finishes the transfer, or begins it again."""
    context.producer("orders").send(text="bad")
    first = Clocked(context, "orders", "first")
    for _ in range(3):
        first.fail()

    def killed(*_: Any, **__: Any) -> Any:
        raise Killed

    def killed_after(real: Any) -> Any:
        def act(*arguments: Any) -> Any:
            real(*arguments)
            raise Killed

        return act

    with monkeypatch.context() as patch:
        if step == "staged":
            patch.setattr(members_of(first.subscriber), "commit", killed)
        elif step == "moving":
            patch.setattr(claims_transfer, "append_transfer", killed)
        else:
            patch.setattr(claims_transfer, "append_transfer", killed_after(log_transfer.append_transfer))
        with pytest.raises(Killed):
            first.batch()
    members_of(first.subscriber).close()
    second = Clocked(context, "orders", "second")
    assert second.batch()[1] == []
    assert second.batch()[1] == []
    assert [m.text for m in context.browser("failed")] == ["bad"]
    assert state_of(records_of(context), domain_of(context).log("orders").refresh(), "-", 0).floor == 1


# -- delay -------------------------------------------------------------------------------------------------------------
def test_redelivery_waits_for_the_delay_of_the_destination(context: Context) -> None:
    """C8: whichever consumer asks, and whether the message was released or its consumer died."""
    context.producer("late").send_many({"text": t} for t in "abc")
    q, other = Clocked(context, "late"), Clocked(context, "late", "other")
    assert q.fail(1) == [1]
    dying = Clocked(context, "late", "dying")
    members_of(q.subscriber).close()
    assert dying.batch(1)[1] == [2]
    members_of(dying.subscriber).close()
    assert other.batch()[1] == [3]
    other.now_ms += 59_000
    assert other.batch()[1] == []
    assert not other.subscriber.has_news()
    other.now_ms += 2_500  # an end is rounded up by at most 2 %
    assert other.subscriber.has_news()
    for sequence in (1, 2):  # what was shown to a consumer that died is claimed alone
        batch, picks = other.batch()
        assert picks == [sequence]
        assert batch is not None
        assert {count: r.numbers().tolist() for count, r in batch.members[0].redelivered.items()} == {2: [sequence]}


def test_rejection_may_set_its_own_delay(context: Context) -> None:
    """C8: 0 overrides the destination's delay."""
    context.producer("late").send(text="a")
    with context.consumer("late") as consumer:
        for delay in (0, 0.0, "0"):
            message = consumer.receive(5)
            assert message is not None
            message.reject(delay)
        message = consumer.receive(5)
        assert message is not None
        message.reject()
        assert consumer.receive(0) is None


def test_unit_of_order_waits_for_its_delayed_message(context: Context) -> None:
    """C8, T10: later messages of the unit wait too, for every consumer; other messages do not."""
    for text, group in (("a1", "a"), ("a2", "a"), ("b1", "b"), ("x", None)):
        context.producer("late").send(text=text, group_id=group)
    q = Clocked(context, "late")
    assert q.fail(1) == [1]
    assert q.batch()[1] == [3, 4]
    q.now_ms += 62_000
    assert q.batch(1)[1] == [1]
    assert q.batch(1)[1] == [2], "the same consumer may have the whole unit"


# -- the way back ------------------------------------------------------------------------------------------------------
def failed_ones(context: Context) -> None:
    for n in range(4):
        context.producer("bills").send(text=f"b{n}", properties={"n": n}, time_to_live="1 h")
    with context.consumer("bills") as consumer:
        reject_next(consumer, 4)
    context.producer("orders").send(text="o", priority=3)
    fail(context, "orders", 3)
    assert take(context, "bills") is None
    assert take(context, "orders") is None


def run(context: Context, order: RedriveOrder) -> Redriven:
    planned = plan_redrive(domain_of(context), records_of(context), order)
    done = redrive(domain_of(context), records_of(context), order, 5)
    assert planned == done
    return done


def test_redrive_brings_every_message_back_to_where_it_failed(context: Context) -> None:
    """C8, C14: as it was first sent, and counted from the beginning."""
    failed_ones(context)
    assert run(context, RedriveOrder("failed")) == Redriven({"bills": 4, "orders": 1}, 0)
    found = {m.text: m for d in ("bills", "orders") for m in context.browser(d)}
    assert {m.properties.get("n") for m in found.values()} == {0, 1, 2, 3, None}
    assert not any(name.startswith("JMS_JMSQ_Error") for m in found.values() for name in m.properties)
    assert found["b0"].expiration_ms > 0
    assert (found["o"].expiration_ms, found["o"].priority) == (0, 3)
    again = take(context, "orders")
    assert again is not None
    assert (again.redelivered, again.delivery_count) == (False, 1)
    assert not list(context.browser("failed"))
    rows = views.acknowledgements(domain_of(context), records_of(context), "failed")
    assert {row.consumer for row in rows} == {"jmsq redrive"}


def test_redrive_is_narrowed_by_selector_time_and_limit(context: Context) -> None:
    """C8, C14"""
    failed_ones(context)
    times = sorted(int(m.properties["JMS_JMSQ_ErrorTime"]) for m in context.browser("failed"))
    assert run(context, RedriveOrder("failed", until_ms=times[0] - 1)).messages == {}
    assert run(context, RedriveOrder("failed", since_ms=times[-1] + 1)).messages == {}
    assert run(context, RedriveOrder("failed", selector="n > 1 OR n IS NULL", limit=2)).messages == {"bills": 2}
    everything = RedriveOrder("failed", since_ms=times[0], until_ms=times[-1])
    assert run(context, everything).messages == {"bills": 2, "orders": 1}


def test_redrive_to_another_destination(context: Context) -> None:
    """C8, C14: messages that never failed stay."""
    failed_ones(context)
    context.producer("failed").send(text="sent here")
    run(context, RedriveOrder("failed", "plain"))
    assert {m.text for m in context.browser("plain")} == {"b0", "b1", "b2", "b3", "o"}
    assert [m.text for m in context.browser("failed")] == ["sent here"]


def test_redrive_refuses_what_it_cannot_do_before_anything_moves(context: Context) -> None:
    """C8, C14: an origin that was dropped, and a topic, whose other subscriptions would get the message again."""
    failed_ones(context)
    take(context, "news", subscription="a")
    context.producer("news").send(text="x")
    fail(context, "news", 1, subscription="a")
    assert take(context, "news", subscription="a") is None
    with pytest.raises(InvalidDestinationError, match="come from news, a topic: sent there again, every subscription"):
        redrive(domain_of(context), records_of(context), RedriveOrder("failed"), 5)
    drop_destination(domain_of(context), records_of(context), "orders")
    without_news = RedriveOrder("failed", selector="JMS_JMSQ_ErrorFrom <> 'news'")
    with pytest.raises(InvalidDestinationError, match="come from orders, which does not exist any more: name another"):
        redrive(domain_of(context), records_of(context), without_news, 5)
    with pytest.raises(InvalidDestinationError, match="news is a topic; an error destination is a queue"):
        plan_redrive(domain_of(context), records_of(context), RedriveOrder("news"))
    with pytest.raises(InvalidSelectorError, match="n =") as caught:
        plan_redrive(domain_of(context), records_of(context), RedriveOrder("failed", selector="n ="))
    assert "JMS_JMSQ" not in str(caught.value)
    assert len(list(context.browser("failed"))) == 6
    only = RedriveOrder("failed", selector="JMS_JMSQ_ErrorFrom = 'bills'")
    assert run(context, only).messages == {"bills": 4}
    assert run(context, RedriveOrder("failed", "news", "JMS_JMSQ_ErrorFrom = 'news'")).messages == {"news": 1}


def test_failures_can_be_selected(context: Context) -> None:
    """C7, C8: by typed properties."""
    failed_ones(context)
    text = "JMS_JMSQ_ErrorFrom = 'orders' AND JMS_JMSQ_ErrorDeliveries = 3 AND JMS_JMSQ_ErrorReason LIKE '%limit 2%'"
    assert Selector.parse(text) is not None
    found = take(context, "failed", selector=text)
    assert found is not None
    assert found.text == "o"


# -- declarations ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "says"),
    [("gone", "does not exist"), ("news", "is a topic"), ("plain", "is itself")],
)
def test_error_destination_must_be_another_queue(context: Context, name: str, says: str) -> None:
    """C8, C3: refused before anything is applied."""
    declared = [Destination("first", "queue"), Destination("plain", "queue", error_destination=name)]
    with pytest.raises(ModuleFileError, match=f"destination plain: errorDestination '{name}' {says}"):
        apply_destinations(domain_of(context), declared, lambda destination, member: False)
    assert "first" not in domain_of(context).destinations()


def test_error_destination_in_use_is_neither_dropped_nor_renamed(context: Context) -> None:
    """C8, C18"""
    with pytest.raises(
        DestinationInUseError, match="is the errorDestination of bills, news, orders: nothing was dropped"
    ):
        drop_destination(domain_of(context), records_of(context), "failed")
    with pytest.raises(
        DestinationInUseError, match="is the errorDestination of bills, news, orders: it was not renamed"
    ):
        rename_destination(domain_of(context), records_of(context), "failed", "errors")
    rename_destination(domain_of(context), records_of(context), "failed", "errors", force=True)
    context.producer("orders").send(text="x")
    q = Clocked(context, "orders")
    for _ in range(3):
        q.fail()
    assert q.batch()[1] == []
    declared = Destination("orders", "queue", redelivery_limit=2, error_destination="errors")
    apply_destinations(domain_of(context), [declared], lambda destination, member: False)
    q.now_ms += 5_000
    assert q.batch()[1] == []
    assert [m.text for m in context.browser("errors")] == ["x"]
