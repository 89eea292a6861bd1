"""Sorted destinations: priorities, LIFO and destination keys, as consumers meet them (T15, C12)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_jms import apply, connect
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.messages import sort_order
from spark_jms.client.context.context import Context
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records import take
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.errors import ModuleFileError
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.destinations.domain import Domain
from spark_jms.module import declare
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of, records_of

pytestmark = pytest.mark.usefixtures("sharing")

QUEUES: dict[str, Any] = {
    "urgent": {"kind": "queue", "destination_keys": ("JMSPriority descending",)},
    "stack": {"kind": "queue", "destination_keys": ("JMSMessageID descending",)},
    "amounts": {
        "kind": "queue",
        "destination_keys": ("amount descending double", "JMSType ascending", "JMSMessageID descending"),
    },
    "again": {"kind": "queue", "destination_keys": ("JMSRedelivered descending",)},
    "parts": {"kind": "distributed-queue", "members": 3, "destination_keys": ("JMSPriority descending",)},
    "plain": "queue",
}


@pytest.fixture
def context() -> Iterator[Context]:
    with memory_domain(**QUEUES) as root, connect(root, housekeeping=False) as made:
        yield made


def received(context: Context, destination: str, count: int, **how: Any) -> list[str]:
    """The texts of the next messages, acknowledged one by one."""
    out = []
    with context.consumer(destination, acknowledge="auto", prefetch=1, **how) as consumer:
        for _ in range(count):
            message = consumer.receive(5)
            assert message is not None
            out.append(message.text or "")
        assert consumer.receive(0) is None
    return out


def test_higher_priorities_come_first(context: Context) -> None:
    """C12, T15: also those that were sent later, over many files; equal ones in the order of sending."""
    producer = context.producer("urgent")
    chance = random.Random(7)
    sent = []
    for n in range(60):
        priority = chance.randrange(10)
        producer.send(text=f"{priority}-{n}", priority=priority)
        sent.append((-priority, n, f"{priority}-{n}"))
    expected = [text for *_, text in sorted(sent)]
    assert received(context, "urgent", 60) == expected


def test_new_urgent_message_passes_the_backlog(context: Context) -> None:
    """C12: the order is exact over all that is visible when a batch is planned."""
    context.producer("urgent").send_many({"text": f"{n}", "priority": 4} for n in range(500))
    with context.consumer("urgent", acknowledge="auto", prefetch=1) as consumer:
        first = consumer.receive(5)
        context.producer("urgent").send(text="now", priority=9)
        second = consumer.receive(5)
        third = consumer.receive(5)
    assert [m.text for m in (first, second, third) if m] == ["0", "now", "1"]


def test_lifo_delivers_the_newest_first(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T15: and reads no headers for it."""
    for n in range(5):
        context.producer("stack").send(text=f"{n}")

    def read(*_: Any) -> Any:
        raise AssertionError("LIFO needs no keys")

    monkeypatch.setattr(sort_order, "read_stored", read)
    assert received(context, "stack", 5) == ["4", "3", "2", "1", "0"]


def test_several_keys_on_properties_and_headers(context: Context) -> None:
    """T15: a message without the property comes last; within equal keys the last key decides."""
    producer = context.producer("amounts")
    for text, amount, kind in (
        ("a", 10.5, "x"),
        ("b", None, "x"),
        ("c", 9.0, "z"),
        ("d", 9.0, "y"),
        ("e", 9.0, "y"),
        ("f", 100.0, None),
    ):
        producer.send(text=text, type=kind, properties=None if amount is None else {"amount": amount})
    assert received(context, "amounts", 6) == ["f", "a", "e", "d", "c", "b"]


def test_redelivered_messages_may_come_first(context: Context) -> None:
    """T15"""
    context.producer("again").send_many({"text": t} for t in "abc")
    with context.consumer("again") as consumer:
        consumer.receive(5)
        second = consumer.receive(5)
        assert second is not None
        second.reject()
        third = consumer.receive(5)
        assert third is not None
        assert third.text == "b"


def test_known_order_does_not_outlive_a_delivery_that_is_a_key(context: Context) -> None:
    """T15: the same messages are available as before, but two of them were delivered since."""
    context.producer("again").send_many({"text": t} for t in "abcde")
    subscriber = Subscriber(
        domain_of(context), records_of(context), "again", "-", "q", ConsumerSettings(replayable=False)
    )
    batch = subscriber.next_batch(Batch("q"), Limits())
    assert batch is not None
    assert subscriber.release(batch.claim, {0: Ranges.of((4, 5))}, delivered=True)
    assert subscriber.release(batch.claim, {0: Ranges.of((1, 3))}, delivered=False)
    again = subscriber.next_batch(Batch("q"), Limits(max_messages=2))
    assert again is not None
    assert again.members[0].picks == Ranges.of((4, 5))
    subscriber.close()


def test_unit_of_order_keeps_its_order(context: Context) -> None:
    """T15, T10: a message of a unit waits for the earlier ones of its unit, whatever its priority."""
    producer = context.producer("urgent")
    for text, priority, group in (("a1", 1, "a"), ("a2", 9, "a"), ("x", 5, None), ("b1", 8, "b"), ("b2", 1, "b")):
        producer.send(text=text, priority=priority, group_id=group)
    with context.consumer("urgent", prefetch=10, acknowledge="individual") as consumer:
        found = []
        while (message := consumer.receive(0)) is not None:
            found.append(message.text)
            message.acknowledge()
    assert found == ["b1", "x", "a1", "a2", "b2"]


def test_batches_of_members_are_sorted_each(context: Context) -> None:
    """T15, C4: each member delivers its own messages in order."""
    context.producer("parts").send_many({"text": f"{n}", "priority": n % 10} for n in range(300))
    subscriber = Subscriber(
        domain_of(context), records_of(context), "parts", "-", "q", ConsumerSettings(replayable=False)
    )
    batch = subscriber.next_batch(Batch("q"), Limits(max_messages=30))
    assert batch is not None
    assert batch.count == 30
    table = domain_of(context).log("parts")
    for member, pick in batch.members.items():
        rows = domain_of(context).log("parts").snapshot.member_files(member)
        assert rows
        priorities = _priorities(table, member)
        taken = [priorities[n] for n in pick.picks.numbers().tolist()]
        assert min(taken) >= max(p for n, p in priorities.items() if n not in pick.picks.numbers().tolist()) - 0
    subscriber.close()


def _priorities(table: Any, member: int) -> dict[int, int]:
    from spark_jms.log.messages.data_files import read_stored

    out: dict[int, int] = {}
    for file in table.snapshot.member_files(member).files:
        everything = Ranges.of((file.first, file.last))
        for batch, sequences in read_stored(table.storage, file.hint, everything, ["JMSPriority"]):
            out |= dict(zip(sequences.tolist(), batch.column("JMSPriority").to_pylist(), strict=True))
    return out


def test_table_of_a_sender_is_stored_in_order(context: Context) -> None:
    """T15: so that a claim of thousands of messages is a few ranges; no message gets lost or changed."""
    count = 20_000
    rows = pa.table(
        {"text": [str(n) for n in range(count)], "JMSPriority": pa.array([n % 10 for n in range(count)], pa.int32())}
    )
    context.producer("urgent").send_table(rows)
    subscriber = Subscriber(
        domain_of(context), records_of(context), "urgent", "-", "q", ConsumerSettings(replayable=False)
    )
    batch = subscriber.next_batch(Batch("q"), Limits(max_messages=2_000))
    assert batch is not None
    assert batch.count == 2_000
    assert len(batch.members[0].picks) <= 10
    subscriber.close()
    assert sorted(int(m.text or "") for m in context.browser("urgent")) == list(range(count))


def test_scattered_picks_stay_within_the_bound_of_a_claim(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T15, C6: the batch becomes smaller, and stays the first in order."""
    monkeypatch.setattr(take, "MAX_RANGES_PER_MEMBER", 3)
    for n in range(20):
        context.producer("urgent").send(text=f"{n}", priority=9 if n % 2 else 1)
    found = received_batches(context, "urgent")
    assert sorted(found) == list(range(1, 21))
    assert set(found[:9]) < set(range(2, 21, 2))


def received_batches(context: Context, destination: str) -> list[int]:
    """Sequences in the order of the batches; within a batch of one priority they ascend."""
    subscriber = Subscriber(
        domain_of(context), records_of(context), destination, "-", "q", ConsumerSettings(replayable=False)
    )
    out: list[int] = []
    while (batch := subscriber.next_batch(Batch("q"), Limits(max_messages=10))) is not None:
        assert len(batch.members[0].picks) <= 3
        out += batch.members[0].picks.numbers().tolist()
        subscriber.acknowledge({batch.claim: {0: batch.members[0].picks}})
    subscriber.close()
    return out


def test_known_order_is_used_until_something_changes(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T15: a backlog is sorted once, not with every batch; a new message makes it sort again."""
    context.producer("urgent").send_many({"text": f"{n}", "priority": n % 3} for n in range(90))
    sorts = []
    real = sort_order.SortedBacklogs._sorted

    def counted(*arguments: Any) -> Any:
        sorts.append(1)
        return real(*arguments)

    monkeypatch.setattr(sort_order.SortedBacklogs, "_sorted", counted)
    subscriber = Subscriber(
        domain_of(context), records_of(context), "urgent", "-", "q", ConsumerSettings(replayable=False)
    )

    def take(count: int) -> tuple[str, list[int]]:
        batch = subscriber.next_batch(Batch("q"), Limits(max_messages=count))
        assert batch is not None
        return batch.claim, batch.members[0].picks.numbers().tolist()

    found = [n for _ in range(3) for n in take(10)[1]]
    assert sorted(found) == list(range(3, 91, 3))
    assert len(sorts) == 1
    claim, picks = take(5)
    assert subscriber.release(claim, {0: Ranges.from_numbers(picks[2:4])}, delivered=True)
    assert take(2)[1] == picks[2:4]
    assert len(sorts) == 1
    context.producer("urgent").send(text="new", priority=3)
    assert take(1)[1] == [91]
    assert len(sorts) == 2
    context.producer("urgent").send(text="urgent", priority=9)
    assert take(1)[1] == [92]
    assert len(sorts) == 3
    subscriber.close()


def test_keys_may_change_while_a_consumer_runs(context: Context) -> None:
    """T15: the next batch follows the new declaration."""
    context.producer("plain").send_many({"text": f"{n}", "priority": n} for n in range(6))
    with context.consumer("plain", acknowledge="auto", prefetch=1) as consumer:
        texts = []
        for keys in ((), ("JMSPriority descending",), ("JMSMessageID descending", "JMSPriority ascending"), ()):
            apply_destinations(
                domain_of(context),
                [Destination("plain", "queue", destination_keys=keys)],
                lambda destination, member: False,
            )
            message = consumer.receive(5)
            assert message is not None
            texts.append(message.text)
    assert texts == ["0", "5", "4", "1"]


def test_delayed_and_selected_messages_of_a_sorted_queue(context: Context) -> None:
    """T15, C7, C12: only what may be delivered now is sorted."""
    producer = context.producer("urgent")
    producer.send(text="later", priority=9, delay="1 h")
    producer.send(text="other", priority=8, properties={"n": 1})
    producer.send(text="low", priority=1)
    producer.send(text="high", priority=7)
    producer.send(text="over", priority=9, time_to_live=0.001)
    assert received(context, "urgent", 2, selector="n IS NULL") == ["high", "low"]
    assert received(context, "urgent", 1) == ["other"]


def test_keys_come_from_the_module_file(tmp_path: Path) -> None:
    """T15, T18: written in short, shown in full; applying them again changes nothing."""
    module = tmp_path / "module.yaml"
    module.write_text("destinations:\n  q: {kind: queue, destinationKeys: [JMSPriority descending, amount double]}\n")
    root = str(tmp_path / "root")
    apply(root, str(module))
    assert [change.what for change in apply(root, str(module))] == ["unchanged"]
    found = Domain(root).log("q").refresh().destination
    assert found.destination_keys == ("JMSPriority descending", "amount ascending double")
    assert declare(found)["destinationKeys"] == ["JMSPriority descending", "amount ascending double"]
    module.write_text("destinations:\n  q: {kind: queue, destinationKeys: [JMSPriorty]}\n")
    with pytest.raises(
        ModuleFileError, match=r"destinationKeys\[0\] is 'JMSPriorty', but must be .*did you mean JMSPriority"
    ):
        apply(root, str(module))


def test_sorting_is_warned_of_and_lifo_is_not(context: Context, caplog: pytest.LogCaptureFixture) -> None:
    """T15: as the text does."""
    declared = [
        Destination("by-type", "queue", destination_keys=("JMSType ascending",)),
        Destination("newest", "queue", destination_keys=("JMSMessageID descending",)),
    ]
    apply_destinations(domain_of(context), declared, lambda destination, member: False)
    assert [r.getMessage().split(":")[0] for r in caplog.records if r.name == "spark_jms"] == [
        "destination by-type is sorted by JMSType ascending"
    ]


@pytest.mark.parametrize("key", ["JMSPriority up", "JMSReplyTo ascending", "amount descending decimal"])
def test_wrong_key_is_refused_by_name(key: str) -> None:
    """T15"""
    with pytest.raises(ModuleFileError, match="destination q: destinationKeys is "):
        Destination("q", "queue", destination_keys=(key,))
