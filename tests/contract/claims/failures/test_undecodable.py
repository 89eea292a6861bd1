"""A message that cannot be decoded stops nobody: it is named and set aside (C20)."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_jms import connect
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.failures.error_destination import FROM, REASON, SET_ASIDE, TYPES
from spark_jms.claims.servers.stores import store_of
from spark_jms.claims.transactions.transfer import Transfers
from spark_jms.client.context.context import Context
from spark_jms.client.messages.encoding import UNDECODABLE_PROPERTY
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.messages.columns import normalise
from spark_jms.core.messages.properties import TYPES_PROPERTY
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.errors import MessageFormatError, SessionEndedException
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.log.sending.send import send
from spark_jms.log.upkeep.purge import purge
from spark_jms.store import MemoryStore
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.inside import domain_of, members_of, records_of

BAD = {TYPES_PROPERTY: "a:int", "a": "x"}


@pytest.fixture
def context() -> Iterator[Context]:
    with memory_domain(orders="queue", news="topic") as root, connect(root, housekeeping=False) as made:
        yield made


def rows(*properties: dict[str, str]) -> pa.RecordBatch:
    maps = pa.array([list(p.items()) for p in properties], pa.map_(pa.string(), pa.string()))
    return pa.RecordBatch.from_arrays(
        [pa.array([str(n) for n in range(len(properties))]), maps], ["text", "properties"]
    )


def plant(context: Context, destination: str, *properties: dict[str, str]) -> None:
    """As a version without the sender's check wrote them: 0, 1, 2 …"""
    log = domain_of(context).log(destination)
    writer = MessageWriter(log.storage, log.refresh().destination, 0)
    whole = normalise(rows(*({} for _ in properties)), 1, 10**6)
    at = whole.schema.names.index("properties")
    writer.write_normalised(whole.set_column(at, "properties", rows(*properties).column("properties")))
    send(log, writer.close(), log.snapshot.route_id)


@pytest.mark.parametrize("kind", ["int", "long", "double", "boolean", "colour"])
@pytest.mark.parametrize("before", [0, 3])
def test_sender_is_refused(context: Context, kind: str, before: int) -> None:
    """C20, C2: the sink checks the types that a map declares; the error names row, property and type."""
    good = {TYPES_PROPERTY: "a:int,b:double,c:boolean", "a": "7", "b": "nan", "c": "true"}
    batch = rows(*[good] * before, {TYPES_PROPERTY: f"b:double,a:{kind}", "a": "x", "b": "1.5"}, good)
    log = domain_of(context).log("orders")
    writer = MessageWriter(log.storage, log.refresh().destination, 0)
    with pytest.raises(MessageFormatError, match=rf"row {before}: property 'a' is 'x', but JMS_JMSQ_Types declares it"):
        writer.write(batch)
    writer.write(rows(good, {}, {"a": "x"}, good))
    assert sum(file.rows for file in writer.close()) == 4


def test_consumer_whose_session_has_ended_sets_nothing_aside(context: Context) -> None:
    """C20, C9: the message was received by another consumer, and its file is gone: that is no loss of data."""
    plant(context, "orders", {}, {})
    domain, store = domain_of(context), records_of(context)
    first, second = (Subscriber(domain, store, "orders", "-", name, ConsumerSettings()) for name in ("first", "second"))
    batch = first.next_batch(Batch("first"), Limits(max_messages=1))
    assert batch is not None
    memory = store_of(store, HOME)
    assert isinstance(memory, MemoryStore)
    memory.crash(members_of(first).session)
    taken = second.next_batch(Batch("second"), Limits())
    assert taken is not None
    second.acknowledge({taken.claim: {0: taken.members[0].picks}})
    assert purge(domain.log("orders"), lambda *_: True).purged_messages == 2
    with pytest.raises(SessionEndedException):
        first.set_aside(batch.claim, 0, {1: "it is not text"})
    assert SET_ASIDE not in domain.destinations()


def test_neighbours_are_delivered_and_the_message_is_set_aside(context: Context) -> None:
    """C20: receive gets every good message; the bad one is in its queue, named, with its body, and acknowledged here."""
    plant(context, "orders", {}, BAD, {}, {**BAD, "b": "y"}, {})
    with context.consumer("orders", acknowledge="auto") as consumer:
        assert [m.text for m in consumer.messages(idle_timeout=0.5)] == ["0", "2", "4"]
        assert consumer.statistics().set_aside == 2
    assert list(context.browser("orders")) == []
    with context.consumer(SET_ASIDE, acknowledge="auto") as aside:
        first, second = aside.messages(idle_timeout=0.5)
    assert (first.text, second.text) == ("1", "3")
    assert first.properties[FROM] == "orders/-/0#2"
    assert "property 'a' is 'x'" in str(first.properties[REASON])
    assert first.properties[TYPES] == "a:int"
    assert second.properties["a"] == "x"
    assert second.properties["b"] == "y"


def test_listener_gets_the_neighbours(context: Context) -> None:
    """C20: the exception listener is not called, the consumer stays open."""
    plant(context, "orders", BAD, {}, BAD, {})
    seen: list[str | None] = []
    failed: list[Exception] = []
    with context.consumer(
        "orders", listener=lambda m: seen.append(m.text), exception_listener=failed.append
    ) as consumer:
        wait_until(lambda: len(seen) == 2 and consumer.statistics().set_aside == 2)
    assert seen == ["1", "3"]
    assert not failed


def test_browser_shows_it(context: Context) -> None:
    """C20: with its properties as text, and the reason."""
    plant(context, "orders", {}, BAD, {})
    good, bad, other = context.browser("orders")
    assert (good.text, bad.text, other.text) == ("0", "1", "2")
    assert bad.properties["a"] == "x"
    assert "not of its declared type 'int'" in str(bad.properties[UNDECODABLE_PROPERTY])
    assert UNDECODABLE_PROPERTY not in good.properties


def test_each_subscription_sets_its_own_copy_aside(context: Context) -> None:
    """C20, C10: a topic's message is finished for one subscription only."""
    for name in ("a", "b"):
        context.consumer("news", subscription=name, starting_position="earliest").close()
    plant(context, "news", {}, BAD, {})
    for name in ("a", "b"):
        with context.consumer("news", subscription=name, acknowledge="auto") as consumer:
            assert [m.text for m in consumer.messages(idle_timeout=0.5)] == ["0", "2"]
    origins = [m.properties[FROM] for m in context.browser(SET_ASIDE)]
    assert origins == ["news/a/0#2", "news/b/0#2"]


def test_message_that_cannot_be_set_aside_waits(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C20: while its queue cannot be written, neighbours are delivered; it stays claimed and is tried again."""
    plant(context, "orders", {}, BAD, {})

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Transfers, "begin", full)
        with context.consumer("orders", acknowledge="auto") as consumer:
            assert [m.text for m in consumer.messages(idle_timeout=0.5)] == ["0", "2"]
            assert consumer.statistics().set_aside == 0
    with context.consumer("orders", acknowledge="auto") as consumer:
        assert consumer.receive(timeout=0.5) is None
        assert consumer.statistics().set_aside == 1
