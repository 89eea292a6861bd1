"""Units of order that move, and units of work, where something else fails or waits (T10, T12, C16)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from spark_jms import apply, connect
from spark_jms.admin.pause import pause, resume
from spark_jms.claims import barriers as barriers_module
from spark_jms.claims.batches import ConsumerSettings
from spark_jms.claims.subscriber import Subscriber
from spark_jms.client import Context
from spark_jms.core.batch import Batch, Limits
from spark_jms.core.destination import Destination
from spark_jms.core.pause import INSERTION
from spark_jms.core.routing import slot_of
from spark_jms.core.unit_of_work import END, NUMBER, UNIT
from spark_jms.errors import MemberRemovalError
from spark_jms.log.domain import Domain
from spark_jms.testing import memory_domain
from tests.contract.test_slots import UNITS, declared, drained, in_order, put, shape

WHOLE = {"kind": "queue", "unit_of_work_handling_policy": "SingleMessageDelivery"}


@pytest.fixture
def context() -> Iterator[Context]:
    queue = {"kind": "distributed-queue", "members": 2}
    with (
        memory_domain(orders=queue, prices={**queue, "kind": "distributed-topic"}, units=WHOLE, errors="queue") as root,
        connect(root, housekeeping=False) as opened,
    ):
        yield opened


def test_unreadable_file_behind_a_barrier_does_not_swallow_a_claimed_batch(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T10: the look at the barriers comes after the batch is claimed, so what it raises leaves the batch claimed by a living
    consumer that never delivers it."""
    put(context, 0)
    shape(context, 3)
    put(context, 1)
    real, failures = barriers_module.units_of, [OSError(5, "Input/output error")]

    def failing(*arguments: Any, **named: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(*arguments, **named)

    monkeypatch.setattr(barriers_module, "units_of", failing)
    got = []
    with context.consumer("orders", acknowledge="auto") as consumer:
        errors = 0
        while True:
            try:
                message = consumer.receive(0.7)
            except OSError:
                errors += 1
                continue
            if message is None:
                break
            got.append((message.group_id or "", int(message.text or "")))
    assert not failures
    assert (len(got), errors) == (120, 0)
    assert in_order(got)


def test_draining_takes_what_a_barrier_that_is_passed_meanwhile_held_back(context: Context) -> None:
    """T10, C6: Trigger.AvailableNow ends when `next_batch` is None and there is no more. A message that stays on the old member,
    of a slot that has not moved, puts the look at its units off for half a second."""
    before = declared(context).slot_map
    after = before.shared([0, 1, 2], [0, 1, 2], lambda member: 1)
    stays = next(
        u for u in (f"stays {n}" for n in range(999)) if before.owners[slot_of(u)] == after.owners[slot_of(u)] == 0
    )
    context.producer("orders").send(text="later", group_id=stays, delay="1 h")
    put(context, 0)
    shape(context, 3)
    put(context, 1)
    settings = ConsumerSettings(replayable=False)
    subscriber = Subscriber(Domain(context.root), context._store, "orders", "-", "r", settings)
    snapshot = subscriber.table.refresh()
    targets = {m: snapshot.last_sequence(m) for m in snapshot.destination.member_ids}
    count, started = 0, time.monotonic()
    while True:  # as JmsqStreamReader._drain
        batch = subscriber.next_batch(Batch("r"), Limits(max_messages=200), targets)
        if batch is not None:
            count += batch.count
            subscriber.acknowledge({batch.claim: {m: pick.picks for m, pick in batch.members.items()}})
        elif not subscriber.has_more():
            break
    assert not subscriber.left_to_others(targets)
    subscriber.close()
    assert count == 120, f"{time.monotonic() - started:.2f} s"


def test_subscription_that_is_not_durable_waits_for_no_move_before_its_begin(context: Context) -> None:
    """T10, C10: also when it cannot reach the old member: it is pinned, or the member's server is away."""
    context.consumer("prices", subscription="slow", durable=True).close()  # keeps the barriers
    put(context, 0, "prices")
    shape(context, 3, "prices", "distributed-topic")
    with context.consumer("prices", durable=False, members=[2], acknowledge="auto") as late:
        put(context, 1, "prices")
        wanted = [u for u in UNITS if declared(context, "prices").slot_map.owners[slot_of(u)] == 2]
        assert wanted
        assert {m.group_id for _ in wanted if (m := late.receive(1)) is not None} == set(wanted)
    slots = declared(context, "prices").slots
    assert slots is not None
    assert not any(b.passed for b in slots.barriers), "its begin has passed them: no commit is needed"


def test_apply_that_is_refused_for_good_changes_nothing(context: Context) -> None:
    """T10, D1: fewer members than the destination was made with are refused whatever the members hold."""
    for messages in (False, True):
        if messages:
            put(context, 0)
        before = declared(context).to_configuration()
        with pytest.raises(MemberRemovalError, match="was made with 2 members"):
            shape(context, 1)
        assert declared(context).leaving == frozenset()
        assert declared(context).to_configuration() == before


def test_delayed_unit_of_work_obeys_a_pause_of_insertion(context: Context) -> None:
    """T14, T12, C12: a delay that ends during the pause ends with it, as for any message."""
    producer = context.producer("units")
    producer.send(text="a1", properties={UNIT: "a", NUMBER: 1}, delay="300 ms")
    producer.send(text="a2", properties={UNIT: "a", NUMBER: 2, END: True})
    producer.send(text="single", delay="300 ms")
    pause(context._domain, "units", [INSERTION])
    time.sleep(0.5)
    with context.consumer("units", acknowledge="auto") as consumer:
        assert consumer.receive(0.3) is None
        resume(context._domain, "units")
        assert {len(consumer.receive(5).unit_of_work) for _ in range(2)} == {0, 2}  # type: ignore[union-attr]


def test_units_of_work_have_a_format_version_of_their_own(context: Context) -> None:
    """T12, C16: an earlier version would route and deliver the messages of a unit one by one, and forget the setting with its
    next commit to the metadata."""
    plain, units = Destination("q", "queue", 1), Destination("q", **WHOLE, members=1)
    assert plain.to_configuration()["jmsq.formatVersion"] == "1"
    assert int(units.to_configuration()["jmsq.formatVersion"]) > 3


def test_contradictory_message_was_never_delivered(context: Context) -> None:
    """T12, C8: JMS_JMSQ_ErrorDeliveries is how often it was delivered."""
    whole = {"kind": "queue", "unitOfWorkHandlingPolicy": "SingleMessageDelivery", "errorDestination": "errors"}
    apply(context.root, {"destinations": {"units": whole}})
    producer = context.producer("units")
    for _ in range(2):
        producer.send(text="a1", properties={UNIT: "a", NUMBER: 1})
    with context.consumer("units") as consumer:
        assert consumer.receive(0.3) is None
    (failed,) = context.browser("errors")
    assert failed.properties["JMS_JMSQ_ErrorDeliveries"] == 0


def test_dropped_subscription_passes_nothing(context: Context) -> None:
    """T10, C10: its consumer has planned before the drop, and tells the table what it has passed after it."""
    from spark_jms.log.barriers import pass_barriers
    from spark_jms.log.subscriptions import drop_subscription

    context.consumer("prices", subscription="s", durable=True).close()
    put(context, 0, "prices")
    shape(context, 3, "prices", "distributed-topic")
    log = Domain(context.root).log("prices")
    slots = log.refresh().destination.slots
    assert slots is not None
    drop_subscription(log, "s")
    pass_barriers(log, "s", slots.barriers)
    again = {"subscription": "s", "durable": True, "starting_position": "earliest"}
    put(context, 1, "prices")
    assert drained(context, [2], to="prices", **again) == []


def test_one_message_that_waits_holds_back_its_own_slot_alone(context: Context) -> None:
    """T10: a moved unit waits for its own old messages. A delayed message of another unit, whose slot has moved the same way,
    would hold back all units that have moved so, until it is due."""
    before = declared(context).slot_map
    after = before.shared([0, 1, 2], [0, 1, 2], lambda member: 1)
    moved = [
        u for u in (f"moves {n}" for n in range(999)) if (before.owners[slot_of(u)], after.owners[slot_of(u)]) == (0, 2)
    ]
    late = moved[0]
    others = [u for u in moved if slot_of(u) != slot_of(late)][:20]
    producer = context.producer("orders")
    producer.send(text="0", group_id=late, delay="1 h")
    producer.send_many([{"text": "0", "group_id": u} for u in others])
    shape(context, 3)
    producer.send_many([{"text": "1", "group_id": u} for u in [late, *others]])
    got = []
    with context.consumer("orders", acknowledge="auto") as consumer:
        while (message := consumer.receive(2)) is not None:
            got.append((message.group_id or "", int(message.text or "")))
    assert in_order(got)
    assert sorted(got) == sorted([(u, n) for u in others for n in (0, 1)])
