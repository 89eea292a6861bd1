"""The limit of a subscription of a replicated topic is that of the whole subscription, in all members (T4, D6)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_jms import connect
from spark_jms.claims.upkeep import views
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.client import Consumer, Context
from spark_jms.testing.domain import wait_until
from spark_jms.testing.inside import domain_of, receiver_of, records_of
from tests.harness.domains.servers import SERVERS, applied

TOPIC: dict[str, Any] = {
    "kind": "distributed-topic",
    "forwarding": "replicated",
    "servers": ["a", "b", "c"],
    "messagesLimitOverride": 5,
}
TOPICS = {
    "prices": TOPIC,
    "urgent": {**TOPIC, "destinationKeys": ["JMSPriority descending"]},
    "one": {**TOPIC, "messagesLimitOverride": 0},
}


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    root = applied(tmp_path, {"servers": SERVERS, "destinations": TOPICS})
    with connect(root, housekeeping=False) as opened:
        yield opened


def subscribed(context: Context, topic: str, *servers: str, **how: Any) -> None:
    for server in servers:
        context.consumer(f"{server}@{topic}", subscription="s", **how).close()


def send(context: Context, topic: str, first: int, last: int, **headers: Any) -> None:
    """Each message to the next member."""
    for number in range(first, last + 1):
        context.producer(f"{'abc'[number % 3]}@{topic}").send(text=str(number), **headers)


def received(consumer: Consumer) -> list[int]:
    found = []
    while (message := consumer.receive(0)) is not None:
        found.append(int(message.text or ""))
    return sorted(found)


def all_of(context: Context, address: str, **how: Any) -> list[int]:
    with context.consumer(address, subscription="s", acknowledge="auto", **how) as consumer:
        return received(consumer)


def deleted(context: Context, topic: str, server: str) -> int:
    rows = views.subscriptions(domain_of(context), records_of(context), topic)
    return sum(row.subscription_limit_deleted_count for row in rows if row.subscription == f"{server}@s")


def keep_house(context: Context, topic: str) -> None:
    housekeeper = Housekeeper(domain_of(context), records_of(context), topic)
    try:
        assert housekeeper.run()
        assert not housekeeper.health.failures
    finally:
        housekeeper.close()


@pytest.mark.parametrize("where", ["consumer", "housekeeping"])
def test_whole_subscription_keeps_as_many_as_the_limit_says(context: Context, where: str) -> None:
    """T4, D6: the newest of all members, whichever has how many; each server's subscription by itself; and again with what
    arrives later."""
    subscribed(context, "prices", "a", "b")
    send(context, "prices", 1, 9)
    for number in (10, 11, 12, 13):
        context.producer("c@prices").send(text=str(number))
    if where == "housekeeping":
        keep_house(context, "prices")
        assert deleted(context, "prices", "a") == deleted(context, "prices", "b") == 8
    assert all_of(context, "a@prices") == [9, 10, 11, 12, 13]
    assert deleted(context, "prices", "a") == 8
    send(context, "prices", 14, 19)
    if where == "housekeeping":
        keep_house(context, "prices")
    assert all_of(context, "a@prices") == [15, 16, 17, 18, 19]
    assert all_of(context, "b@prices") == [15, 16, 17, 18, 19]
    assert (deleted(context, "prices", "a"), deleted(context, "prices", "b")) == (9, 14)


def test_messages_within_the_limit_stay_whichever_member_they_are_in(context: Context) -> None:
    """T4: a member of its own may have all of them."""
    subscribed(context, "prices", "a")
    for number in range(1, 6):
        context.producer("b@prices").send(text=str(number))
    keep_house(context, "prices")
    assert (all_of(context, "a@prices"), deleted(context, "prices", "a")) == ([1, 2, 3, 4, 5], 0)


def test_messages_of_a_consumer_are_immune_and_count(context: Context) -> None:
    """T4: in whatever member they are; what comes back is not dropped without a new arrival."""
    with context.consumer("a@prices", subscription="s", acknowledge="client", prefetch=3) as consumer:
        send(context, "prices", 1, 3)
        assert sorted(int(consumer.receive(30).text or "") for _ in range(3)) == [1, 2, 3]  # type: ignore[union-attr]
        send(context, "prices", 4, 9)
        receiver_of(consumer).make_room()
        assert deleted(context, "prices", "a") == 4
        consumer.recover()
        assert received(consumer) == [1, 2, 3, 8, 9]
    assert deleted(context, "prices", "a") == 4


def test_consumers_that_share_the_members_drop_no_message_twice(context: Context) -> None:
    """T4: each holder drops the part of its members; together they keep the limit."""
    consumers = [context.consumer("a@prices", subscription="s", acknowledge="auto", prefetch=1) for _ in range(3)]
    for one in consumers:
        assert one.receive(0) is None
    send(context, "prices", 1, 12)
    for _ in range(2):
        for one in consumers:
            receiver_of(one).make_room()
    found: list[int] = []

    def all_came() -> bool:
        for one in consumers:
            found.extend(received(one))
        return len(found) + deleted(context, "prices", "a") == 12

    wait_until(all_came)
    assert sorted(found)[-5:] == [8, 9, 10, 11, 12]
    assert len(set(found)) == len(found)
    for one in consumers:
        one.close()


def test_selector_keeps_others_out_of_the_count(context: Context) -> None:
    """T4: in each member."""
    subscribed(context, "prices", "a", selector="JMSPriority > 4")
    for number in range(1, 31):
        context.producer(f"{'abc'[number % 3]}@prices").send(text=str(number), priority=9 if number % 5 == 0 else 1)
    assert all_of(context, "a@prices", selector="JMSPriority > 4") == [10, 15, 20, 25, 30]
    assert deleted(context, "prices", "a") == 1


def test_head_of_a_sorted_subscription_is_that_of_all_members(context: Context) -> None:
    """T4, T15: the message that would be delivered first; the newest stays."""
    subscribed(context, "urgent", "a")
    priorities = [9, 0, 5, 1, 8, 2, 7, 3, 6]
    for number, priority in enumerate(priorities):
        context.producer(f"{'abc'[number % 3]}@urgent").send(text=str(priority), priority=priority)
    assert all_of(context, "a@urgent") == [0, 1, 2, 3, 6]


def test_newest_message_always_stays(context: Context) -> None:
    """T4: with a limit of 0 too."""
    subscribed(context, "one", "a")
    send(context, "one", 1, 6)
    keep_house(context, "one")
    assert all_of(context, "a@one") == [6]


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_keep_the_newest(context: Context, seed: int) -> None:
    """T4, D6: whatever the order of sends to the members, of receives and of housekeeping: never fewer than the limit allows, and
    always the newest."""
    chance, number = random.Random(seed), 0
    subscribed(context, "prices", "a")
    waiting: list[int] = []
    for _ in range(6):
        for _ in range(chance.randrange(8)):
            number += 1
            context.producer(f"{chance.choice('abc')}@prices").send(text=str(number))
            waiting.append(number)
        if chance.random() < 0.5:
            keep_house(context, "prices")
            waiting = waiting[-5:]
        if chance.random() < 0.5:
            assert all_of(context, "a@prices") == waiting[-5:]
            waiting = []
    assert all_of(context, "a@prices") == waiting[-5:]
