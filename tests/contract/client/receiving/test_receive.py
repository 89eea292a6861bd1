"""The plain client in one application, on each store: receiving, acknowledging, listening."""

from __future__ import annotations

import pytest

import spark_jms
from spark_jms.claims.batches import batch
from spark_jms.client import Context, Message
from spark_jms.errors import IllegalStateException
from spark_jms.log.tables.storage import now_ms
from spark_jms.testing import wait_until
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.messages.shorthands import send_texts, texts

pytestmark = pytest.mark.usefixtures("sharing")


# -- acknowledging -----------------------------------------------------------------------------------------------------
def test_client_mode_acknowledges_everything_delivered(context: Context) -> None:
    """C8"""
    send_texts(context, *"abcd")
    with context.consumer("orders") as consumer:
        messages = [consumer.receive(timeout=5) for _ in range(3)]
        assert messages[1] is not None
        messages[1].acknowledge()
        assert [m.text for m in context.browser("orders")] == ["d"]
        messages[1].acknowledge()  # idempotent
        assert consumer.statistics().acknowledged == 3
    with context.consumer("orders") as other:
        message = other.receive(timeout=5)
        assert message is not None
        assert (message.text, message.redelivered) == ("d", False)


def test_individual_mode_acknowledges_one(context: Context) -> None:
    """C8"""
    send_texts(context, *"abc")
    with context.consumer("orders", acknowledge="individual") as consumer:
        messages = [consumer.receive(timeout=5) for _ in range(3)]
        assert messages[1] is not None
        messages[1].acknowledge()
        messages[1].acknowledge()
        assert [m.text for m in context.browser("orders")] == ["a", "c"]
    with context.consumer("orders") as other:
        got = [other.receive(timeout=5) for _ in range(2)]
        assert [(m.text, m.redelivered, m.delivery_count) for m in got if m] == [("a", True, 2), ("c", True, 2)]


@pytest.mark.parametrize("mode", ["auto", "dups-ok"])
def test_automatic_modes_acknowledge_on_the_next_receive(context: Context, mode: str) -> None:
    """C8: a consumer that is not at its end has the last message unacknowledged."""
    send_texts(context, *"abc")
    with context.consumer("orders", acknowledge=mode) as consumer:
        assert texts(consumer, 2) == list("ab")
        assert consumer.statistics().unacknowledged == 1
        assert texts(consumer, 1) == ["c"]
        assert consumer.receive(0) is None
        assert consumer.statistics().unacknowledged == 0


def test_dups_ok_writes_acknowledgements_within_about_a_second(context: Context) -> None:
    """C8: even if the application receives nothing more."""
    send_texts(context, *"ab")
    consumer = context.consumer("orders", acknowledge="dups-ok")
    texts(consumer, 2)
    wait_until(lambda: [m.text for m in context.browser("orders")] == ["b"])


def test_recover_redelivers_flagged_and_in_order(context: Context) -> None:
    """C8"""
    send_texts(context, *"abcdef")
    with context.consumer("orders", acknowledge="individual", prefetch=4) as consumer:
        messages = [consumer.receive(timeout=5) for _ in range(3)]
        assert messages[0] is not None
        messages[0].acknowledge()
        consumer.recover()
        again = [consumer.receive(timeout=5) for _ in range(5)]
        flags = [(m.text, m.redelivered, m.delivery_count) for m in again if m]
        assert flags == [("b", True, 2), ("c", True, 2), ("d", False, 1), ("e", False, 1), ("f", False, 1)]
        assert messages[1] is not None
        messages[1].acknowledge()  # its second delivery is in this consumer's hands: that one is meant
        consumer.recover()
        assert messages[2] is not None
        with pytest.raises(IllegalStateException, match="recover"):
            messages[2].acknowledge()
        assert texts(consumer, 4) == list("cdef")


def test_close_releases_messages_at_once(context: Context) -> None:
    """C8, C9: delivered messages return flagged, prefetched ones unflagged."""
    send_texts(context, *"abc")
    with context.consumer("orders") as first:
        assert texts(first, 1) == ["a"]
        assert first.statistics().prefetched == 2
    with context.consumer("orders") as second:
        got = [second.receive(timeout=5) for _ in range(3)]
        assert [(m.text, m.delivery_count) for m in got if m] == [("a", 2), ("b", 1), ("c", 1)]


def test_acknowledgements_reach_their_table(client_root: str) -> None:
    """C5, C14: at the latest when the consumer closes."""
    from spark_jms.claims.upkeep.views import acknowledgements

    with spark_jms.connect(client_root) as context:
        send_texts(context, *"ab")
        with context.consumer("orders") as consumer:
            texts(consumer, 2)
            message = consumer.receive(0)
            assert message is None
            consumer.recover()
            message = consumer.receive(timeout=5)
            assert message is not None
            message.acknowledge()
        rows = acknowledgements(domain_of(context), records_of(context), "orders")
        assert [(row.messages, row.first, row.last) for row in rows] == [(1, 1, 1)]


# -- receiving ---------------------------------------------------------------------------------------------------------
def test_receive_honours_its_timeout(context: Context) -> None:
    """C11"""
    consumer = context.consumer("orders")
    assert consumer.receive(timeout=0) is None
    assert consumer.receive(timeout=0.05) is None
    send_texts(context, "a")
    assert texts(consumer, 1) == ["a"]


def test_order_is_kept_per_producer_and_member(context: Context) -> None:
    """C4"""
    producers = {name: context.producer("spread") for name in ("one", "two")}
    for n in range(60):
        for name, producer in producers.items():
            producer.send(text=f"{name}/{n}")
    consumer = context.consumer("spread", acknowledge="dups-ok")
    got: dict[tuple[int, str], list[int]] = {}
    for _ in range(120):
        message = consumer.receive(timeout=10)
        assert message is not None
        name, number = (message.text or "").split("/")
        got.setdefault((message.member, name), []).append(int(number))
    assert len(got) == 8
    assert all(numbers == sorted(numbers) for numbers in got.values())


def test_selector_leaves_other_messages_in_the_queue(context: Context) -> None:
    """C7"""
    producer = context.producer("orders")
    for n in range(6):
        producer.send(text=str(n), properties={"even": n % 2 == 0}, priority=n)
    with context.consumer("orders", selector="even AND JMSPriority > 0") as even, context.consumer("orders") as rest:
        assert texts(even, 2) == ["2", "4"]
        assert texts(rest, 4) == ["0", "1", "3", "5"]


def test_delayed_and_expired_messages(context: Context) -> None:
    """C12, C17: a delayed message arrives when it is due, an expired one never."""
    producer = context.producer("orders")
    late = producer.send(text="late", delay=1.5)  # so long that a busy machine asks before it is over
    gone = producer.send(text="gone", time_to_live=0.001)
    producer.send(text="now")
    wait_until(lambda: now_ms() >= gone.expiration_ms)
    consumer = context.consumer("orders", acknowledge="auto")
    assert texts(consumer, 2) == ["now", "late"]
    assert late.delivery_time_ms == late.timestamp_ms + 1500
    assert consumer.receive(0) is None
    assert list(context.browser("orders")) == []


def test_each_subscription_of_a_topic_gets_every_message(context: Context) -> None:
    """C10: a durable subscription keeps messages while it has no consumer."""
    first = context.consumer("prices", subscription="billing")
    with context.consumer("prices", subscription="audit"):
        send_texts(context, "a", to="prices")
    send_texts(context, "b", to="prices")
    assert texts(first, 2) == ["a", "b"]
    with context.consumer("prices", subscription="audit", acknowledge="auto") as again:
        assert texts(again, 2) == ["a", "b"]
    with context.consumer("prices", subscription="late") as late:
        assert late.receive(0) is None
    with context.consumer("prices", subscription="all", starting_position="earliest") as everything:
        assert texts(everything, 2) == ["a", "b"]


def test_consumer_pinned_to_members(context: Context) -> None:
    """D3"""
    producer = context.producer("spread")  # one producer: its round robin gives each of the 4 members 2 of 8
    sent = [producer.send(text=str(n)) for n in range(8)]
    with context.consumer("spread", members=2) as pinned:
        got = [m for m in (pinned.receive(timeout=1) for _ in range(3)) if m]
    assert len(got) == 2
    assert {m.message_id for m in got} == {m.message_id for m in sent if m.member == 2}


# -- listener ----------------------------------------------------------------------------------------------------------
def test_listener_gets_a_message_again_after_raising(context: Context) -> None:
    """C8, C11: the failed message returns flagged, before the later ones; the exception listener gets the error."""
    seen: list[tuple[str | None, int]] = []
    told: list[Exception] = []

    def listen(message: Message) -> None:
        seen.append((message.text, message.delivery_count))
        if message.text == "b" and not message.redelivered:
            raise ValueError("not yet")

    with context.consumer("orders", acknowledge="auto", listener=listen, exception_listener=told.append) as consumer:
        send_texts(context, *"abc")
        wait_until(lambda: len(seen) == 4 and consumer.statistics().acknowledged == 3)
        with pytest.raises(IllegalStateException, match="listener"):
            consumer.receive(0)
        assert consumer.statistics().listener_failures == 1
    assert seen == [("a", 1), ("b", 1), ("b", 2), ("c", 1)]
    assert [str(error) for error in told] == ["not yet"]


def test_listener_may_close_its_consumer(context: Context) -> None:
    """C11"""
    seen: list[str | None] = []

    def listen(message: Message) -> None:
        seen.append(message.text)
        consumer.close()

    consumer = context.consumer("orders", listener=listen)
    send_texts(context, *"ab")
    wait_until(lambda: context.statistics().consumers == 0)
    assert seen == ["a"]
    assert [(m.text, m.redelivered) for m in context.browser("orders")] == [("a", True), ("b", False)]


def test_client_that_never_acknowledges_is_stopped(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C9, C11: its record set stays bounded; the error says what to do, and after it the consumer continues."""
    monkeypatch.setattr(batch, "MAX_OPEN_CLAIMS", 5)
    send_texts(context, *"abcdefgh")
    with context.consumer("orders", acknowledge="individual", prefetch=1) as consumer:
        got = [consumer.receive(timeout=5) for _ in range(5)]
        with pytest.raises(IllegalStateException, match="5 claims with unacknowledged messages on orders/-/0"):
            consumer.receive(timeout=5)
        assert got[0] is not None
        got[0].acknowledge()
        again = consumer.receive(timeout=5)
        assert again is not None
        assert again.text == "f"
