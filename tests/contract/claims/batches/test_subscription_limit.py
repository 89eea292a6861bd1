"""The limit of subscriptions, as administrators, senders and consumers meet it (T4)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from spark_jms import apply, connect
from spark_jms.admin.statistics import collect
from spark_jms.claims.batches import subscription_limit
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.upkeep import views
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.claims.upkeep.life_cycle_view import events
from spark_jms.client import Consumer, Context
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.subscriptions import LIMIT
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.ordering.units_of_work import END, NUMBER, UNIT
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import Claim
from spark_jms.errors import ModuleFileError
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.tables.storage import now_ms
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of, receiver_of, records_of
from tests.harness.messages.shorthands import texts, texts_now

HOUR_MS = 3_600_000
FIVE: dict[str, Any] = {"kind": "topic", "messages_limit_override": 5}
TOPICS: dict[str, Any] = {
    "prices": FIVE,
    "urgent": {**FIVE, "destination_keys": ("JMSPriority descending",)},
    "stack": {**FIVE, "destination_keys": ("JMSMessageID descending",)},
    "units": {**FIVE, "unit_of_work_handling_policy": "SingleMessageDelivery"},
    "spread": {**FIVE, "kind": "distributed-topic", "members": 2},
    "logged": {**FIVE, "message_logging_enabled": True},
    "reported": {**FIVE, "expiration_policy": "Log"},
    "returned": {**FIVE, "expiration_policy": "Redirect", "error_destination": "orders"},
    "free": "topic",
    "orders": "queue",
}


@pytest.fixture
def context() -> Iterator[Context]:
    with memory_domain(**TOPICS) as root, connect(root, housekeeping=False) as made:
        yield made


def subscribed(context: Context, topic: str, *names: str, **how: Any) -> None:
    for name in names:
        context.consumer(topic, subscription=name, **how).close()


def send(context: Context, topic: str, *messages: str, **headers: Any) -> None:
    producer = context.producer(topic)
    for message in messages:
        producer.send(text=message, **headers)


def numbered(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last + 1)]


def all_texts(context: Context, topic: str, name: str, **how: Any) -> list[str | None]:
    """Of all messages of the subscription, acknowledged."""
    with context.consumer(topic, subscription=name, acknowledge="auto", **how) as consumer:
        found = []
        while (message := consumer.receive(0)) is not None:
            found.append(message.text)
        return found


def rows(context: Context, topic: str) -> dict[tuple[str, int], views.SubscriptionRow]:
    found = views.subscriptions(domain_of(context), records_of(context), topic)
    return {(row.subscription, row.member): row for row in found}


def deleted(context: Context, topic: str, name: str) -> int:
    return sum(
        row.subscription_limit_deleted_count for (found, _), row in rows(context, topic).items() if found == name
    )


def keep_house(context: Context, topic: str) -> None:
    housekeeper = Housekeeper(domain_of(context), records_of(context), topic)
    try:
        assert housekeeper.run()
        assert not housekeeper.health.failures
    finally:
        housekeeper.close()


def test_oldest_message_makes_room_in_full_subscriptions_only(context: Context) -> None:
    """T4: a message that one subscription has dropped is still received by the others."""
    subscribed(context, "prices", "slow", "fast")
    send(context, "prices", *numbered(1, 4))
    assert all_texts(context, "prices", "fast") == numbered(1, 4)
    send(context, "prices", *numbered(5, 8))
    assert all_texts(context, "prices", "slow") == numbered(4, 8)
    assert all_texts(context, "prices", "fast") == numbered(5, 8)
    assert deleted(context, "prices", "slow") == 3
    assert deleted(context, "prices", "fast") == 0


def test_housekeeping_drops_where_there_is_no_consumer(context: Context) -> None:
    """T4: and the acknowledgement table tells which messages were dropped."""
    subscribed(context, "prices", "slow")
    send(context, "prices", *numbered(1, 12))
    keep_house(context, "prices")
    row = rows(context, "prices")["slow", 0]
    assert (row.backlog, row.subscription_messages_limit, row.subscription_limit_deleted_count) == (5, 5, 7)
    acknowledged = views.acknowledgements(domain_of(context), records_of(context), "prices")
    assert [(a.consumer, a.first, a.last) for a in acknowledged] == [(LIMIT, 1, 7)]
    keep_house(context, "prices")
    assert deleted(context, "prices", "slow") == 7
    assert all_texts(context, "prices", "slow") == numbered(8, 12)


def test_messages_of_a_consumer_are_immune(context: Context) -> None:
    """T4: received and not acknowledged, they stay, and the subscription exceeds its limit."""
    with context.consumer("prices", subscription="s", acknowledge="client", prefetch=5) as consumer:
        send(context, "prices", *numbered(1, 5))
        assert texts(consumer, 5) == numbered(1, 5)
        send(context, "prices", *numbered(6, 8))
        receiver_of(consumer).make_room()
        row = rows(context, "prices")["s", 0]
        assert (row.backlog, row.subscription_limit_deleted_count) == (6, 2)
        consumer.recover()
        assert texts(consumer, 6) == [*numbered(1, 5), "8"], "without a new message nothing more is dropped"
    assert deleted(context, "prices", "s") == 2


def test_holder_drops_while_it_does_not_receive(context: Context) -> None:
    """T4: a consumer that is busy with a message does not keep the limit from its subscription."""
    with context.consumer("prices", subscription="s", acknowledge="client", prefetch=1) as consumer:
        send(context, "prices", "first")
        assert texts(consumer, 1) == ["first"]
        send(context, "prices", *numbered(1, 9))
        keep_house(context, "prices")
        assert deleted(context, "prices", "s") == 0, "the record is the consumer's"
        receiver_of(consumer).make_room()
        assert deleted(context, "prices", "s") == 5
        assert texts(consumer, 4) == numbered(6, 9)


def test_head_follows_the_order_of_delivery(context: Context) -> None:
    """T4, T15: with priorities the most urgent one makes room, which would come first; with LIFO the newest."""
    subscribed(context, "urgent", "s")
    producer = context.producer("urgent")
    for n, priority in enumerate([1, 9, 2, 8, 3, 0, 7]):
        producer.send(text=f"{priority}-{n}", priority=priority)
    assert all_texts(context, "urgent", "s") == ["7-6", "3-4", "2-2", "1-0", "0-5"]
    subscribed(context, "stack", "s")
    send(context, "stack", *numbered(1, 8))
    assert all_texts(context, "stack", "s") == ["8", "4", "3", "2", "1"]


def test_incomplete_units_of_work_are_immune(context: Context) -> None:
    """T4, T12: while a part is missing; a complete unit goes as a whole."""

    def part(number: int, *, end: bool = False) -> dict[str, Any]:
        return {"text": f"u{number}", "properties": {UNIT: "u", NUMBER: number, **({END: True} if end else {})}}

    subscribed(context, "units", "s")
    producer = context.producer("units")
    producer.send(**part(1))
    producer.send(**part(2))
    send(context, "units", *numbered(1, 6))
    keep_house(context, "units")
    assert deleted(context, "units", "s") == 3
    producer.send(**part(3, end=True))
    keep_house(context, "units")
    assert deleted(context, "units", "s") == 4
    assert rows(context, "units")["s", 0].backlog == 5
    send(context, "units", "7", "8", "9", "10")
    keep_house(context, "units")
    assert all_texts(context, "units", "s") == ["7", "8", "9", "10"], "5 and 6, then the unit of three"
    assert deleted(context, "units", "s") == 9


def test_refused_messages_take_no_room(context: Context) -> None:
    """T4, C7: a subscription has only what its selector takes."""
    subscribed(context, "prices", "red", selector="color = 'red'")
    producer = context.producer("prices")
    for n in range(12):
        producer.send(text=str(n), properties={"color": "red" if n % 3 == 0 else "blue"})
    keep_house(context, "prices")
    assert deleted(context, "prices", "red") == 0
    for n in range(12, 24):
        producer.send(text=str(n), properties={"color": "red" if n % 3 == 0 else "blue"})
    keep_house(context, "prices")
    assert deleted(context, "prices", "red") == 3
    assert all_texts(context, "prices", "red", selector="color = 'red'") == ["9", "12", "15", "18", "21"]


def test_refused_messages_and_units_of_work_take_no_room(context: Context) -> None:
    """T4, T12, C7: also on a topic that handles units of work."""
    selector = "color = 'red'"
    subscribed(context, "units", "red", selector=selector)
    producer = context.producer("units")
    for n in range(18):
        producer.send(text=str(n), properties={"color": "red" if n % 4 == 0 else "blue"})
    for unit, color in (("u", "blue"), ("v", "red")):
        producer.send_unit_of_work([{"text": f"{unit}{n}", "properties": {"color": color}} for n in (1, 2)], unit)
    keep_house(context, "units")
    assert deleted(context, "units", "red") == 2
    assert all_texts(context, "units", "red", selector=selector) == ["8", "12", "16", None], "None: the unit v"


def test_life_cycle_log_tells_what_made_room_and_what_was_refused(context: Context) -> None:
    """T4, T6: also where housekeeping has dropped it."""
    subscribed(context, "logged", "red", selector="color = 'red'")
    producer = context.producer("logged")
    for n in range(12):
        producer.send(text=str(n), properties={"color": "red" if n % 2 == 0 else "blue"})
    keep_house(context, "logged")
    found = [row for row in events(domain_of(context), records_of(context), "logged", "red") if row.subscription]
    assert [(row.event, row.ranges) for row in found] == [("refused", "2, 4, 6, 8, 10, 12"), ("removed", "1")]


@pytest.mark.parametrize("topic", ["reported", "returned"])
def test_expired_message_leaves_by_its_policy_and_not_by_the_limit(context: Context, topic: str) -> None:
    """T4, T6: it is logged or redirected; what has not expired makes room."""
    subscribed(context, topic, "s")
    send(context, topic, *numbered(1, 3), time_to_live="1 h")
    send(context, topic, *numbered(4, 9))
    later = now_ms() + 2 * HOUR_MS
    query = Subscriber(domain_of(context), records_of(context), topic, "s", "c", ConsumerSettings(), lambda: later)
    query.make_room()
    batch = query.next_batch(Batch("c", table=query.table_id), Limits())
    query.close()
    assert batch is not None
    assert batch.members[0].picks.text() == "5-9"
    assert deleted(context, topic, "s") == 1
    (row,) = rows(context, topic).values()
    if topic == "reported":
        assert row.expired == 3
    else:
        assert [message.text for message in context.browser("orders")] == numbered(1, 3)


def test_each_member_has_the_limit(context: Context) -> None:
    """T4, D7: as each member of a uniform distributed topic is a topic of its own in JMS."""
    subscribed(context, "spread", "s")
    send(context, "spread", *numbered(1, 24))
    keep_house(context, "spread")
    found = rows(context, "spread")
    assert [(row.backlog, row.subscription_limit_deleted_count) for row in found.values()] == [(5, 7), (5, 7)]


def test_subscription_that_is_not_durable_has_the_limit(context: Context) -> None:
    """T4."""
    with context.consumer("prices") as consumer:
        send(context, "prices", *numbered(1, 9))
        assert texts_now(consumer, 6) == [*numbered(5, 9), None]


def test_limit_changes_while_messages_wait(context: Context) -> None:
    """T4: a lower one takes effect with the next message at the latest; -1 removes the limit."""
    apply_destinations(
        domain_of(context), [Destination("free", "topic", messages_limit_override=3)], lambda d, m: False
    )
    subscribed(context, "free", "s")
    send(context, "free", *numbered(1, 3))
    keep_house(context, "free")
    changed = Destination("free", "topic", messages_limit_override=2)
    apply_destinations(domain_of(context), [changed], lambda d, m: False)
    send(context, "free", "4")
    keep_house(context, "free")
    assert rows(context, "free")["s", 0].backlog == 2
    apply_destinations(domain_of(context), [Destination("free", "topic")], lambda d, m: False)
    send(context, "free", *numbered(5, 20))
    assert all_texts(context, "free", "s") == numbered(3, 20)
    row = rows(context, "free")["s", 0]
    assert (row.subscription_messages_limit, row.subscription_limit_deleted_count) == (-1, 2)


def test_many_sorted_arrivals_are_decided_in_bounded_steps(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T4, T15: what is dropped may be scattered, so one decision looks at a bounded number of arrivals."""
    monkeypatch.setattr(subscription_limit, "_MOST_SORTED", 4)
    subscribed(context, "stack", "s")
    send(context, "stack", *numbered(1, 12))
    for _ in range(3):
        keep_house(context, "stack")
    assert all_texts(context, "stack", "s") == ["12", "4", "3", "2", "1"]
    assert deleted(context, "stack", "s") == 7


def test_limit_of_a_queue_is_refused(context: Context) -> None:
    """T4, C3: a queue has no subscriptions."""
    with pytest.raises(ModuleFileError, match="messagesLimitOverride is 5, but a queue has no subscriptions"):
        apply(context.root, {"destinations": {"orders": {"kind": "queue", "messagesLimitOverride": 5}}})


def test_statistics_show_limits(context: Context) -> None:
    """T4: under the texts' names, in words of Python."""
    subscribed(context, "prices", "s")
    send(context, "prices", *numbered(1, 6))
    keep_house(context, "prices")
    (row,) = collect(domain_of(context), records_of(context), "prices").subscriptions
    assert (row.subscription_messages_limit, row.subscription_limit_deleted_count) == (5, 1)
    subscribed(context, "free", "s")
    (row,) = collect(domain_of(context), records_of(context), "free").subscriptions
    assert not row.has_limit


def test_dropped_subscription_counts_from_the_beginning(context: Context) -> None:
    """T4, C10: a new subscription of the same name has deleted nothing."""
    subscribed(context, "prices", "s")
    send(context, "prices", *numbered(1, 9))
    keep_house(context, "prices")
    context.unsubscribe("prices", "s")
    subscribed(context, "prices", "s")
    send(context, "prices", *numbered(10, 11))
    assert all_texts(context, "prices", "s") == ["10", "11"]
    assert deleted(context, "prices", "s") == 0


def test_subscription_that_is_dropped_meanwhile_leaves_nothing(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T4, C10: a later one of its name has every message."""
    subscribed(context, "prices", "s")
    send(context, "prices", *numbered(1, 12))
    is_over, drops = subscription_limit.is_over, iter([True])

    def is_over_and_dropped(*arguments: Any) -> bool:
        found = is_over(*arguments)
        if found and next(drops, False):
            context.unsubscribe("prices", "s")
        return found

    monkeypatch.setattr(subscription_limit, "is_over", is_over_and_dropped)
    keep_house(context, "prices")
    assert next(drops, "dropped") == "dropped"
    apply_destinations(domain_of(context), [Destination("prices", "topic")], lambda d, m: False)
    subscribed(context, "prices", "s", starting_position="earliest")
    assert all_texts(context, "prices", "s") == numbered(1, 12)


@pytest.mark.parametrize("seed", range(12))
def test_random_course_keeps_the_account(context: Context, seed: int) -> None:
    """T4, C5: sent = acknowledged + backlog + dropped for each subscription, at any time; each message is delivered at most
    once, in order; and a subscription without claims is within its limit after each decision."""
    chance, names = random.Random(seed), ["a", "b"]
    subscribed(context, "prices", *names)
    open_ones: dict[str, Consumer] = {}
    received: dict[str, list[int]] = {name: [] for name in names}
    held: dict[str, int] = dict.fromkeys(names, 0)
    sent = 0
    for _ in range(40):
        name, action = (
            chance.choice(names),
            chance.choice(["send", "send", "send", "receive", "receive", "house", "open"]),
        )
        if action == "send":
            count = chance.randrange(1, 5)
            send(context, "prices", *numbered(sent + 1, sent + count))
            sent += count
        elif action == "receive" and name in open_ones:
            if (message := open_ones[name].receive(0)) is not None:
                received[name].append(int(message.text or 0))
                held[name] += 1
                if chance.random() < 0.7:
                    message.acknowledge()
                    held[name] -= 1
        elif action == "house":
            keep_house(context, "prices")
            for consumer in open_ones.values():
                receiver_of(consumer).make_room()
            for (_, _), row in rows(context, "prices").items():
                assert row.backlog <= 5 + held[row.subscription]
        elif action == "open" and name not in open_ones:
            open_ones[name] = context.consumer("prices", subscription=name, acknowledge="client", prefetch=1)
        for (found, _), row in rows(context, "prices").items():
            done = len(received[found]) - held[found]
            assert sent - row.backlog - row.subscription_limit_deleted_count <= done + held[found]
    for name in names:
        assert received[name] == sorted(set(received[name])), "twice, or out of order"
        if name in open_ones:
            while (message := open_ones[name].receive(0)) is not None:
                received[name].append(int(message.text or 0))
                message.acknowledge()
            open_ones[name].close()
        else:
            received[name] += [int(text or 0) for text in all_texts(context, "prices", name)]
        assert len(received[name]) == len(set(received[name]))
        assert deleted(context, "prices", name) == sent - len(received[name])


@dataclass
class Course:
    """A subscription as lists: what is in it, what consumers have of it, and the last message that the limit was applied to."""

    head: Callable[[int], Any]  # the key of the order of delivery
    inside: list[int] = field(default_factory=list)
    claimed: dict[str, list[int]] = field(default_factory=dict)
    begun: int = 0

    @property
    def free(self) -> list[int]:
        taken = {number for claim in self.claimed.values() for number in claim}
        return sorted(set(self.inside) - taken, key=self.head)

    def decide(self, last: int) -> None:
        if last == self.begun or len(self.inside) <= 5:
            return
        arrived, self.inside = [n for n in self.inside if n > self.begun], [n for n in self.inside if n <= self.begun]
        for new in arrived:
            while len(self.inside) >= 5 and self.free:
                self.inside.remove(self.free[0])
            self.inside.append(new)
        self.begun = last


@pytest.mark.parametrize("topic", ["prices", "urgent", "stack"])
def test_random_course_drops_exactly_the_heads(context: Context, topic: str) -> None:
    """T4, T15: after each decision exactly those messages are left that lists have, message after message: whatever was claimed,
    finished and given back since the decision before."""
    chance, log, last = random.Random(topic), domain_of(context).log(topic), 0
    state = RecordSet().attach("reader", "session")
    limit = subscription_limit.SubscriptionLimit(log, "s", None, str, now_ms)
    priorities: dict[int, int] = {}
    heads = {"prices": lambda n: n, "urgent": lambda n: (-priorities[n], n), "stack": lambda n: -n}
    course, claims, decisions = Course(heads[topic]), 0, 0
    with context.producer(topic) as producer:
        for _ in range(200):
            action = chance.choice(["send", "send", "claim", "finish", "give back", "decide"])
            if action == "send":
                new = [chance.randrange(10) for _ in range(chance.randrange(1, 5))]
                producer.send_many({"text": "x", "priority": priority} for priority in new)
                priorities |= {last + 1 + n: priority for n, priority in enumerate(new)}
                course.inside += range(last + 1, last + 1 + len(new))
                last += len(new)
            elif action == "claim" and course.free:
                picks, claims = chance.sample(course.free, chance.randint(1, min(3, len(course.free)))), claims + 1
                state = state.claim(Claim(f"c{claims}", "reader", "session", Ranges.from_numbers(picks), 1, False))
                course.claimed[f"c{claims}"] = picks
            elif action in ("finish", "give back") and course.claimed:
                name = chance.choice(list(course.claimed))
                picks = course.claimed.pop(name)
                if action == "give back":
                    state = state.release(name, delivered=chance.random() < 0.5)
                else:
                    state = state.acknowledge("reader", "session", name, 1, now_ms())
                    course.inside = [number for number in course.inside if number not in picks]
            elif action == "decide":
                before, snapshot = set(course.inside), log.refresh()
                state = limit.enforce(state, snapshot, 0, 1).delivered_to_table(state.position + 1)
                course.decide(last)
                decisions += before != set(course.inside)
                assert set(state.unfinished(1, last).numbers().tolist() if last else ()) == set(course.inside)
    assert decisions > 10, "the course reaches the limit"
