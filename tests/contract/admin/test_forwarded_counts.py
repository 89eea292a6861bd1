"""Delivery counts that go along with forwarded messages: `resetDeliveryCountOnForward: false` (D5)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import spark_jms
from spark_jms.admin.transfer import MoveOrder, move
from spark_jms.claims.transactions import transfer as claims_transfer
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.claims.upkeep.move import MemberForwarder
from spark_jms.client import Consumer, Context
from spark_jms.errors import ModuleFileError
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.upkeep.compaction import compact
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.domains.servers import SERVERS
from tests.harness.processes.killed import killed_client

LIMIT = 3
ORDERS = {"kind": "distributed-queue", "redelivery_limit": LIMIT, "error_destination": "failed", "forward_delay_ms": 0}


class Killed(BaseException):
    """As kill -9: nothing behind it runs."""


class Orders:
    """A queue with three members, and what is done to it."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def send(self, *texts: str) -> None:
        """To member 0."""
        self.context.producer("orders").send_many({"text": text, "correlation_id": text} for text in texts)
        self.move(0)

    def move(self, target: int) -> None:
        move(domain_of(self.context), records_of(self.context), MoveOrder("orders", "orders", target_member=target), 5)

    def reject(self, member: int, text: str, times: int) -> None:
        """A consumer of the member gives the message back so often."""
        selector = f"JMSCorrelationID = '{text}'"
        with self.context.consumer("orders", members=member, selector=selector, acknowledge="individual") as consumer:
            for _ in range(times):
                message = consumer.receive(30)
                assert message is not None
                message.reject()

    def receiver(self, member: int) -> Consumer:
        return self.context.consumer("orders", members=member, acknowledge="individual")

    @contextmanager
    def waiting(self, member: int) -> Iterator[Consumer]:
        """A consumer of a member without messages: it takes up its member when it receives."""
        with self.receiver(member) as made:
            assert made.receive(0) is None
            yield made

    def forward(self) -> list[tuple[int, int, int]]:
        forwarder = MemberForwarder(domain_of(self.context), records_of(self.context), "orders")
        return [(step.source, step.target, step.messages) for step in forwarder.run().moves]


@pytest.fixture(params=["memory", "file", "servers"])
def orders(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Orders]:
    """With counts that go along: on a fake, on a real store, and each member in a store of its own."""
    with ExitStack() as stack:
        if request.param == "servers":
            root = str(tmp_path / "root")
            declared = {
                "kind": "distributed-queue",
                "servers": ["a", "b", "c"],
                "redeliveryLimit": LIMIT,
                "errorDestination": "failed",
                "forwardDelay": "0",
                "resetDeliveryCountOnForward": False,
            }
            spark_jms.apply(
                root, {"servers": SERVERS, "destinations": {"orders": declared, "failed": {"kind": "queue"}}}
            )
        else:
            queue = {**ORDERS, "members": 3, "reset_delivery_count_on_forward": False}
            root = stack.enter_context(memory_domain(request.param, orders=queue, failed="queue"))
        yield Orders(stack.enter_context(spark_jms.connect(root, housekeeping=False)))


def received(consumer: Consumer, count: int) -> dict[str, tuple[bool, int]]:
    """text -> its flag and its delivery count."""
    found = {}
    for _ in range(count):
        message = consumer.receive(30)
        assert message is not None
        assert message.text is not None
        assert message.text not in found, "a message came twice"
        found[message.text] = (message.redelivered, message.delivery_count)
    return found


@pytest.mark.parametrize("compacted", [False, True])
def test_forwarded_message_keeps_its_delivery_count(orders: Orders, *, compacted: bool) -> None:
    """D5, C8: whether the other member's consumer or compaction, which makes one file of those that brought the messages, comes first;
    a message without a count has none there. Browsers show what the next consumer gets."""
    for text in "12":
        orders.send(text)
        orders.reject(0, text, 3 - int(text))
    orders.send(*"3456789")
    with orders.waiting(1) as consumer:
        assert orders.forward() == [(0, 1, 9)]
        if compacted:
            orders.context.producer("orders").send_many({"text": f"later {number}"} for number in range(90))
            orders.move(1)
            log = domain_of(orders.context).log("orders")
            assert compact(log).compacted_files > 1
        expected = {"1": (True, 3), "2": (True, 2), **dict.fromkeys("3456789", (False, 1))}
        browsed = {m.text: (m.redelivered, m.delivery_count) for m in orders.context.browser("orders") if m.member == 1}
        assert {text: browsed[text] for text in expected} == expected
        assert received(consumer, 9) == expected


def test_redelivery_limit_counts_on_after_a_forward(orders: Orders) -> None:
    """D5, C8: two deliveries here and two there are four, and the limit is three; the error destination says so."""
    orders.send("1", "2")
    orders.reject(0, "1", 2)
    with orders.waiting(1):
        assert orders.forward() == [(0, 1, 2)]
    orders.reject(1, "1", 2)
    with orders.receiver(1) as consumer, orders.context.consumer("failed") as failed:
        assert received(consumer, 1) == {"2": (False, 1)}
        message = failed.receive(30)
        assert message is not None
        assert (message.text, message.properties["JMS_JMSQ_ErrorDeliveries"]) == ("1", LIMIT + 1)


def test_counts_of_several_members_add_up(orders: Orders) -> None:
    """D5: a message that is forwarded again has been delivered on both members."""
    orders.send("1")
    orders.reject(0, "1", 1)
    with orders.waiting(1):
        assert orders.forward() == [(0, 1, 1)]
    orders.reject(1, "1", 1)
    with orders.waiting(2) as consumer:
        assert orders.forward() == [(1, 2, 1)]
        assert received(consumer, 1) == {"1": (True, 3)}


STEPS = {
    "before the intent": (claims_transfer, "stage_transfer"),
    "after the intent": (claims_transfer, "append_transfer"),
    "before the end": (claims_transfer.Transfers, "finish"),
}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("where", STEPS)
def test_killed_forward_keeps_each_message_and_its_count(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, where: str, *, after: bool
) -> None:
    """D5, C18: killed before and after each step; housekeeping finishes, and each message comes once, with its count."""
    orders.send("1", "2")
    orders.reject(0, "1", 2)
    module, name = STEPS[where]
    real = getattr(module, name)

    def die(*args: Any, **named: Any) -> Any:
        if after:
            real(*args, **named)
        raise Killed

    with orders.waiting(1) as consumer:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, die)
            with pytest.raises(Killed):
                orders.forward()
        housekeeper = Housekeeper(domain_of(orders.context), records_of(orders.context), "orders")
        housekeeper.run()
        housekeeper.close()
        assert received(consumer, 2) == {"1": (True, 3), "2": (False, 1)}
        assert consumer.receive(0) is None
    assert [message.text for message in orders.context.browser("orders") if message.member == 0] == []


def test_count_goes_along_when_the_member_is_removed_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """D5, C18, T15: after the intent the target is removed; the files are written again for another member."""
    from attrs import evolve

    queue = {**ORDERS, "members": 3, "reset_delivery_count_on_forward": False}
    with (
        memory_domain(orders={**queue, "members": 2}, failed="queue") as root,
        spark_jms.connect(root, housekeeping=False) as context,
    ):
        orders = Orders(context)
        declared = domain_of(context).log("orders").refresh().destination
        apply_destinations(domain_of(context), [evolve(declared, members=3)], lambda d, m: True)
        orders.send("1", "2")
        orders.reject(0, "2", 2)

        def die(*args: Any, **named: Any) -> Any:
            raise Killed

        with orders.waiting(2), monkeypatch.context() as patch:
            patch.setattr(claims_transfer, "append_transfer", die)
            with pytest.raises(Killed):
                orders.forward()
        apply_destinations(domain_of(context), [evolve(declared, members=2)], lambda d, m: True)
        with context.consumer("orders", acknowledge="individual") as consumer:
            assert received(consumer, 2) == {"1": (False, 1), "2": (True, 3)}


def test_what_a_dead_consumer_may_have_shown_goes_along(tmp_path: Path) -> None:
    """D5, C8: `perhaps` is counted, and does not use up the limit; what was certainly shown stays: with
    limit 0 it is never delivered again."""
    queue = {**ORDERS, "members": 2, "redelivery_limit": 0, "reset_delivery_count_on_forward": False}
    with (
        memory_domain("file", orders=queue, failed="queue") as root,
        spark_jms.connect(root, housekeeping=False) as context,
    ):
        orders = Orders(context)
        orders.send("1", "2", "3")
        shown, *others = [message.text for message in context.browser("orders")]
        with killed_client(root, 'assert context.consumer("orders", members=0).receive(timeout=60)'):
            pass
        with orders.waiting(1) as consumer:
            assert orders.forward() == [(0, 1, 2)]
            assert received(consumer, 2) == dict.fromkeys(others, (True, 2))
        assert [m.text for m in context.browser("orders") if m.member == 0] == [shown]


def test_moved_message_begins_again_in_such_a_queue(orders: Orders) -> None:
    """D5, C18: an administrator's move is no forward."""
    orders.send("1")
    orders.reject(0, "1", 2)
    orders.move(2)
    with orders.receiver(2) as consumer:
        assert received(consumer, 1) == {"1": (False, 1)}


@pytest.mark.parametrize("kind", ["queue", "topic", "distributed-topic"])
def test_destinations_that_forward_nothing_refuse_the_key(tmp_path: Path, kind: str) -> None:
    """D5: by name, before anything changes."""
    declared = {"kind": kind, "resetDeliveryCountOnForward": False}
    with pytest.raises(ModuleFileError, match=f"resetDeliveryCountOnForward is false, but a {kind} has no members"):
        spark_jms.apply(str(tmp_path), {"destinations": {"orders": declared}})
