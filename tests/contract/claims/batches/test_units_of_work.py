"""Units of work, as senders and consumers meet them (T12)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_jms import apply, connect
from spark_jms.admin.destinations import pause, resume
from spark_jms.admin.transfer import MoveOrder, move
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber, open_subscriber
from spark_jms.claims.messages.fetch import fetch
from spark_jms.claims.servers.stores import open_stores
from spark_jms.claims.transactions.transfer import Movement, Transfers
from spark_jms.client import Context, Message
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.pause import INSERTION
from spark_jms.core.ordering.sort_order import delivery_order
from spark_jms.core.ordering.units_of_work import END, NUMBER, UNIT
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.selector import Selector
from spark_jms.errors import (
    IllegalStateException,
    InvalidDestinationError,
    MessageFormatError,
    ModuleFileError,
    OptionError,
)
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.compaction import compact
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.messages.shorthands import reject_next

pytestmark = pytest.mark.usefixtures("sharing")

WHOLE: dict[str, Any] = {"kind": "queue", "unit_of_work_handling_policy": "SingleMessageDelivery"}
QUEUES: dict[str, Any] = {
    "units": WHOLE,
    "limited": {**WHOLE, "incomplete_work_expiration_ms": 60_000},
    "failing": {**WHOLE, "error_destination": "errors", "redelivery_limit": 1},
    "spread": {**WHOLE, "kind": "distributed-queue", "members": 4},
    "prices": {**WHOLE, "kind": "topic"},
    "errors": "queue",
    "plain": "queue",
}


@pytest.fixture
def context() -> Iterator[Context]:
    with memory_domain(**QUEUES) as root, connect(root, housekeeping=False) as made:
        yield made


def part(unit: str, number: int, *, end: bool = False, **more: Any) -> dict[str, Any]:
    properties = {UNIT: unit, NUMBER: number, **({END: True} if end else {}), **more.pop("properties", {})}
    return {"text": f"{unit}{number}", "properties": properties, **more}


def put(context: Context, *messages: dict[str, Any], to: str = "units") -> None:
    """Each in a commit of its own."""
    producer = context.producer(to)
    for message in messages:
        producer.send(**message)


def shown(message: Message | None) -> list[str | None] | str | None:
    if message is None or not message.unit_of_work:
        return message.text if message else None
    return [each.text for each in message.unit_of_work]


def received(context: Context, destination: str = "units", **how: Any) -> list[list[str | None] | str | None]:
    """What can be received now, each acknowledged alone."""
    out = []
    with context.consumer(destination, acknowledge="individual", **how) as consumer:
        while (message := consumer.receive(0)) is not None:
            out.append(shown(message))
            message.acknowledge()
    return out


class Reader:
    """A consumer as a query is one, with a clock of its own."""

    def __init__(
        self, context: Context, where: str = "units", selector: str | None = None, subscription: str = "-"
    ) -> None:
        self.now_ms, self.name, self.where = now_ms() + 10, "reader", where
        settings = ConsumerSettings(Selector.parse(selector), replayable=False)
        self.subscriber = Subscriber(
            Domain(context.root),
            records_of(context),
            where,
            subscription,
            self.name,
            settings,
            clock_ms=lambda: self.now_ms,
        )

    def batch(self, count: int | None = None) -> list[str]:
        """The texts of the next batch, in the order of delivery, acknowledged."""
        batch = self.subscriber.next_batch(Batch(self.name), Limits(max_messages=count))
        if batch is None:
            return []
        order = delivery_order(self.subscriber.table.snapshot.destination)
        texts = [
            text
            for member, pick in sorted(batch.members.items())
            for rows in fetch(self.subscriber.table, self.where, member, pick.picks, pick.redelivered, order=order)
            for text in rows.column("text").to_pylist()
        ]
        self.subscriber.acknowledge({batch.claim: {m: pick.picks for m, pick in batch.members.items()}})
        return texts


def test_unit_is_received_whole_in_its_own_order(context: Context) -> None:
    """T12: nothing of it before all is there, whatever the order of arrival; a complete unit does not wait for another."""
    put(context, part("a", 2), part("b", 1), {"text": "alone"}, part("a", 3, end=True))
    assert received(context) == ["alone"]
    put(context, part("b", 2, end=True), part("a", 1))
    assert received(context) == [["b1", "b2"], ["a1", "a2", "a3"]]
    assert context.producer("units").statistics().messages == 0


def test_unit_is_one_message_for_the_application(context: Context) -> None:
    """T12: headers and properties of its last message; its parts cannot be acknowledged one by one."""
    put(context, part("a", 1, time_to_live="1 h"), part("a", 2, end=True, properties={"color": "red"}, type="last"))
    with context.consumer("units") as consumer:
        message = consumer.receive(5)
        assert message is not None
        assert (message.text, message.type, message.properties["color"]) == (None, "last", "red")
        assert message.expiration_ms == message.unit_of_work[0].expiration_ms > 0
        with pytest.raises(IllegalStateException, match="part of the unit of work 'a'"):
            message.unit_of_work[0].acknowledge()
        with pytest.raises(MessageFormatError, match="send_many"):
            context.producer("plain").send(message)
        assert message.to_dict()["unit_of_work"][1]["text"] == "a2"
        message.acknowledge()
        assert consumer.statistics().acknowledged == 2
    assert received(context) == []


def test_rejected_unit_comes_again_whole_and_flagged(context: Context) -> None:
    """T12, C8: claimed, released and counted as one."""
    put(context, part("a", 1), part("a", 2, end=True), {"text": "alone"})
    with context.consumer("units", acknowledge="individual") as consumer:
        first = consumer.receive(5)
        assert first is not None
        first.reject()
        again = consumer.receive(5)
        assert again is not None
        assert (shown(again), again.redelivered, again.delivery_count) == (["a1", "a2"], True, 2)
        assert [each.delivery_count for each in again.unit_of_work] == [2, 2]
    assert received(context) == [["a1", "a2"], "alone"]


def test_unit_beyond_the_redelivery_limit_moves_whole(context: Context) -> None:
    """T12, C8: to the error destination, which passes its parts through."""
    put(context, part("a", 1), part("a", 2, end=True), to="failing")
    with context.consumer("failing") as consumer:
        reject_next(consumer, 2)
        assert consumer.receive(0) is None
    assert received(context, "errors") == ["a1", "a2"]


def test_batch_never_splits_a_unit(context: Context) -> None:
    """T12: limits count messages, and one unit may exceed them."""
    producer = context.producer("units")
    for unit in "ab":
        producer.send_unit_of_work([{"text": f"{unit}{n}"} for n in range(1, 6)], unit)
    producer.send_many([{"text": str(n)} for n in range(3)])
    reader = Reader(context)
    assert reader.batch(2) == ["a1", "a2", "a3", "a4", "a5"]
    assert reader.batch(7) == ["b1", "b2", "b3", "b4", "b5", "0", "1"]
    assert reader.batch(7) == ["2"]


def test_unit_goes_to_one_member_from_several_senders(context: Context) -> None:
    """T12: routed by its name, as a unit of order is, in single sends, chunks and tables."""
    names = [f"unit {n}" for n in range(20)]
    for name in names:
        context.producer("spread").send(**part(name, 1))
    context.producer("spread").send_many([part(name, 2) for name in names])
    with context.producer("spread") as producer:
        producer.send_many([part(name, 3, end=True) for name in names], transaction=("app", 1))
    members: dict[Any, set[int]] = {}
    for message in context.browser("spread"):
        members.setdefault(message.properties[UNIT], set()).add(message.member)
    assert all(len(where) == 1 for where in members.values())
    assert len(set().union(*members.values())) == 4
    got = received(context, "spread")
    assert sorted(map(str, got)) == sorted(str([f"{name}{n}" for n in (1, 2, 3)]) for name in names)


def test_incomplete_unit_expires(context: Context, caplog: pytest.LogCaptureFixture) -> None:
    """T12: counted from the sending of its first message; without a setting it waits for ever."""
    for queue in ("units", "limited"):
        put(context, part("a", 1), part("a", 2), {"text": "alone"}, to=queue)
    reader, patient = Reader(context, "limited"), Reader(context)
    assert reader.batch() == patient.batch() == ["alone"]
    reader.now_ms += 60_000
    patient.now_ms += 86_400_000
    with caplog.at_level(logging.WARNING):
        assert reader.batch() == patient.batch() == []
    assert "2 message(s) (1-2) of units of work have expired" in caplog.text
    put(context, part("a", 3, end=True), to="units")
    assert patient.batch() == ["a1", "a2", "a3"]
    put(context, part("a", 3, end=True), to="limited")
    assert reader.batch() == []


def test_unit_expires_whole_with_its_first_expired_message(context: Context) -> None:
    """T12: all or nothing."""
    put(context, part("a", 1, time_to_live="10 s"), part("a", 2, end=True), part("b", 1, end=True))
    reader = Reader(context)
    reader.now_ms += 20_000
    assert reader.batch() == ["b1"]
    assert reader.subscriber.backlog() == {0: 0}


def test_delayed_message_delays_its_unit(context: Context) -> None:
    """T12, C12."""
    put(context, part("a", 1, delay="10 s"), part("a", 2, end=True), {"text": "alone"})
    reader = Reader(context)
    assert reader.batch() == ["alone"]
    reader.now_ms += 20_000
    assert reader.batch() == ["a1", "a2"]


def test_delayed_unit_of_work_obeys_a_pause_of_insertion(context: Context) -> None:
    """T14, T12, C12: a delay that ends during the pause ends with it, as for any message."""
    producer = context.producer("units")
    producer.send(text="a1", properties={UNIT: "a", NUMBER: 1}, delay="1 s")
    producer.send(text="a2", properties={UNIT: "a", NUMBER: 2, END: True})
    producer.send(text="single", delay="1 s")
    pause(domain_of(context), "units", [INSERTION])
    time.sleep(1.2)
    with context.consumer("units", acknowledge="auto") as consumer:
        assert consumer.receive(0.3) is None
        resume(domain_of(context), "units")
        assert {len(consumer.receive(5).unit_of_work) for _ in range(2)} == {0, 2}  # type: ignore[union-attr]


def test_selector_takes_a_unit_when_it_takes_all_its_messages(context: Context) -> None:
    """T12, C7: in a queue the others wait for another consumer; a topic's subscription finishes them."""
    red = {"properties": {"color": "red"}}
    messages = [part("a", 1, **red), part("a", 2, end=True), part("b", 1, **red), part("b", 2, end=True, **red)]
    put(context, *messages)
    assert received(context, selector="color = 'red'") == [["b1", "b2"]]
    assert received(context) == [["a1", "a2"]]
    consumer = context.consumer("prices", subscription="s", selector="color = 'red'", durable=True)
    put(context, *messages, to="prices")
    assert shown(consumer.receive(5)) == ["b1", "b2"]
    consumer.close()
    reader = Reader(context, "prices", "color = 'red'", "s")
    assert reader.batch() == ["b1", "b2"]
    assert reader.subscriber.backlog() == {0: 0}


def test_contradictory_message_is_set_aside_by_name(context: Context, caplog: pytest.LogCaptureFixture) -> None:
    """T12: a number that is there, one above the end, an end below a number; its unit is delivered without it."""
    put(context, part("a", 1), part("a", 2), part("a", 2), part("a", 1, end=True), to="failing")
    put(context, part("a", 3, end=True), part("a", 4), to="failing")
    assert received(context, "failing") == [["a1", "a2", "a3"]]
    with context.consumer("errors", acknowledge="auto") as consumer:
        reasons = [m.properties["JMS_JMSQ_ErrorReason"] for m in iter(lambda: consumer.receive(0), None)]
    assert sorted(reasons) == [
        "its number 4 is above that of the end of its unit of work, 3",
        "its unit of work has a message 1 already",
        "its unit of work has a message 2 already",
    ]
    put(context, part("b", 1), part("b", 1), part("b", 2, end=True))
    with caplog.at_level(logging.WARNING):
        assert received(context) == [["b1", "b2"]]
    assert "has a message 1 already and are discarded" in caplog.text


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


@pytest.mark.parametrize(
    "message",
    [
        {"text": "x", "properties": {UNIT: "a"}},
        part("a", 0),
        part("a", 1, group_id="g"),
        {"text": "x", "properties": {UNIT: "", NUMBER: 1}},
    ],
)
def test_faulty_message_is_refused_to_its_sender(context: Context, message: dict[str, Any]) -> None:
    """T12: number from 1 on, a name, and no unit of order beside; a destination that passes through takes them."""
    with pytest.raises(MessageFormatError, match="unit of work"):
        context.producer("units").send(**message)
    with pytest.raises(MessageFormatError, match="unit of work"):
        context.producer("units").send_many([message] * 200)
    context.producer("plain").send(**message)
    assert received(context, "plain") == [message["text"]]


def test_default_policy_passes_parts_through(context: Context) -> None:
    """T12: each is a message like any other."""
    put(context, part("a", 3), part("a", 1), to="plain")
    assert received(context, "plain") == ["a3", "a1"]


def test_units_survive_compaction_and_hand_over(context: Context) -> None:
    """T12, C13: what a consumer has read of a unit is read again by the next one."""
    put(context, part("a", 1))
    assert received(context) == []
    put(context, part("a", 2), *({"text": str(n)} for n in range(20)), part("a", 3, end=True))
    compact(Domain(context.root).log("units"))
    got = received(context)
    assert got[-1] == ["a1", "a2", "a3"]
    assert len(got) == 21


def test_two_consumers_never_share_a_unit(context: Context) -> None:
    """T12: whoever claims a unit has all of it."""
    producer = context.producer("units")
    for n in range(10):
        producer.send_unit_of_work([{"text": "1"}, {"text": "2"}, {"text": "3"}], f"u{n}")
    with context.consumer("units", prefetch=1) as one, context.consumer("units", prefetch=1) as two:
        got = []
        while len(got) < 10:
            for consumer in (one, two):
                if (message := consumer.receive(0.2)) is not None:
                    got.append(shown(message))
                    message.acknowledge()
    assert got == [["1", "2", "3"]] * 10


def plant_undecodable_unit(context: Context) -> None:
    """The unit a, whose first message cannot be decoded, and the unit b."""
    import pyarrow as pa

    from spark_jms.log.messages.message_writer import MessageWriter
    from spark_jms.log.sending.send import send

    log = Domain(context.root).log("units")
    snapshot = log.refresh()
    writer = MessageWriter(log.storage, snapshot.destination, 0)
    rows = pa.table(
        {
            "text": ["a1", "a2", "b1"],
            "properties": pa.array(
                [
                    [(UNIT, "a"), (NUMBER, "1")],
                    [(UNIT, "a"), (NUMBER, "2"), (END, "true")],
                    [(UNIT, "b"), (NUMBER, "1"), (END, "true")],
                ],
                pa.map_(pa.string(), pa.string()),
            ),
        }
    )
    stored = writer.write(rows.combine_chunks().to_batches()[0])
    writer.abort()
    bad = [[*dict(stored.column("properties")[0].as_py()).items(), ("n", "many"), ("JMS_JMSQ_Types", "n:long")]]
    properties = pa.array(bad + stored.column("properties").to_pylist()[1:], stored.schema.field("properties").type)
    stored = stored.set_column(stored.schema.get_field_index("properties"), "properties", properties)
    writer = MessageWriter(log.storage, snapshot.destination, 0)
    writer.write_normalised(stored)
    send(log, writer.close(), snapshot.route_id)


def test_undecodable_message_takes_its_unit_aside(context: Context) -> None:
    """T12, C20: and nothing else."""
    plant_undecodable_unit(context)
    assert received(context) == [["b1"]]
    assert sorted(map(str, received(context, "jmsq-set-aside"))) == ["a1", "a2"]


def test_undecodable_unit_goes_aside_in_one_transfer(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T12, C20: a part that stayed behind, because the process ends or the queue is full, would never be complete."""
    plant_undecodable_unit(context)
    begin, begun = Transfers.begin, []

    def once(self: Transfers, state: RecordSet, movement: Movement) -> RecordSet:
        begun.append(movement.picks.text())
        if len(begun) > 1:
            raise OSError("No space left on device")
        return begin(self, state, movement)

    monkeypatch.setattr(Transfers, "begin", once)
    assert received(context) == [["b1"]]
    assert begun == ["1-2"]
    assert sorted(map(str, received(context, "jmsq-set-aside"))) == ["a1", "a2"]


def test_settings_that_contradict_are_refused(tmp_path: Path) -> None:
    """T12: destination keys; narrowing a batch to its poison message."""
    units = {"kind": "queue", "unitOfWorkHandlingPolicy": "SingleMessageDelivery"}
    with pytest.raises(ModuleFileError, match="unitOfWorkHandlingPolicy is SingleMessageDelivery, and destinationKeys"):
        apply(str(tmp_path), {"destinations": {"q": {**units, "destinationKeys": ["JMSPriority descending"]}}})
    with pytest.raises(ModuleFileError, match="PassThrough"):
        apply(str(tmp_path), {"destinations": {"q": {**units, "unitOfWorkHandlingPolicy": "Whole"}}})
    apply(str(tmp_path), {"destinations": {"q": {**units, "incompleteWorkExpirationTime": "5 min"}}})
    domain = Domain(str(tmp_path))
    assert domain.log("q").snapshot.destination.incomplete_work_expiration_ms == 300_000
    with open_stores(domain) as store, pytest.raises(OptionError, match="delivers units of work"):
        open_subscriber(domain, store, "q", None, "c", ConsumerSettings(isolates_poison=True))
    with connect(str(tmp_path)) as context, pytest.raises(InvalidDestinationError):
        context.producer("nowhere")


def test_units_of_work_have_a_format_version_of_their_own() -> None:
    """T12, C16: an earlier version would route and deliver the messages of a unit one by one, and forget the setting with its
    next commit to the metadata."""
    plain, units = Destination("q", "queue", 1), Destination("q", **WHOLE, members=1)
    assert plain.to_configuration()["jmsq.formatVersion"] == "1"
    assert int(units.to_configuration()["jmsq.formatVersion"]) > 3


def test_message_may_be_moved_into_a_unit(context: Context) -> None:
    """T12, C18: a transfer is routed as a send is, and a faulty message that it brings is set aside."""
    put(context, part("a", 2, end=True), {"text": "x", "properties": {UNIT: "a"}}, part("b", 1, end=True), to="plain")
    put(context, part("a", 1), to="spread")
    move(Domain(context.root), records_of(context), MoveOrder("plain", "spread"), 5)
    assert sorted(map(str, received(context, "spread"))) == ["['a1', 'a2']", "['b1']"]
