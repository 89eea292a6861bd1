"""Text that is not UTF-8 and in a table already hides no other message, from no reader (C20)."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import attrs
import pyarrow as pa
import pytest

from spark_jms import connect
from spark_jms.admin.transfer import MoveOrder, RedriveOrder, move, redrive
from spark_jms.claims.failures.error_destination import FROM, REASON, SET_ASIDE
from spark_jms.claims.messages.fetch import fetch
from spark_jms.client.context.context import Context
from spark_jms.client.messages.encoding import UNDECODABLE_PROPERTY
from spark_jms.core.messages.columns import normalise
from spark_jms.core.messages.compression import compressed
from spark_jms.core.messages.ranges import Ranges
from spark_jms.errors import MessageFormatError
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.log.sending.send import send
from spark_jms.log.upkeep.compaction import compact
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.domains.expirations import Search
from tests.unit.core.messages.test_utf8 import BAD, TEXTS, map_of, text_of

PLACES = [*TEXTS, "property", "name"]
PAST = 1_000  # ms since 1970
QUEUES: dict[str, Any] = {
    "orders": "queue",
    "sorted": {"kind": "queue", "destination_keys": ("a descending int", "JMSType ascending", "b ascending string")},
    "works": {"kind": "queue", "unit_of_work_handling_policy": "SingleMessageDelivery"},
    "logged": {"kind": "queue", "expiration_policy": "Log", "expiration_logging_policy": "%header%, %properties%"},
    "moved": {"kind": "queue", "expiration_policy": "Redirect", "error_destination": "errors"},
    "spread": {"kind": "distributed-queue", "members": 3},
    "errors": "queue",
}


@pytest.fixture
def context() -> Iterator[Context]:
    with memory_domain(**QUEUES) as root, connect(root, housekeeping=False) as made:
        yield made


def plant(context: Context, destination: str, place: str, *, bad: bytes = BAD, **columns: pa.Array) -> None:
    """Three messages, the second with bytes in this place, as a version without the sender's check wrote them."""
    log = domain_of(context).log(destination)
    writer = MessageWriter(log.storage, log.refresh().destination, 0)
    rows = normalise(pa.RecordBatch.from_pydict({"text": pa.array(["0", "1", "2"]), **columns}), 1, 10**6)
    values = text_of(b"a", bad, b"z")
    if place == "property":
        name, column = "properties", map_of(pa.array(["b"] * 3), values)
    elif place == "name":
        name, column = "properties", map_of(values, pa.array(["x"] * 3))
    else:
        name, column = place, values
    writer.write_normalised(rows.set_column(rows.schema.names.index(name), name, column))
    send(log, writer.close(), log.snapshot.route_id)


def received(context: Context, destination: str, **arguments: Any) -> list[int]:
    with context.consumer(destination, acknowledge="auto", **arguments) as consumer:
        return [message.sequence for message in consumer.messages(idle_timeout=0.5)]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "selector", [None, "a IS NULL AND (JMSType LIKE '_%' OR JMSType IS NULL OR b NOT LIKE 'q%' OR TRUE)"]
)
def test_neighbours_are_delivered_and_the_message_is_set_aside(
    context: Context, place: str, selector: str | None
) -> None:
    """C20, C7: whatever has the bytes; what was set aside can be received, once, and says where it was and why."""
    plant(context, "orders", place)
    assert received(context, "orders", selector=selector) == [1, 3] or selector
    assert 2 not in received(context, "orders")
    assert list(context.browser("orders")) == []
    (aside,) = context.browser(SET_ASIDE)
    assert aside.properties[FROM] == "orders/-/0#2"
    assert "b'h\\xffi', which is not UTF-8" in str(aside.properties[REASON])
    assert (aside.text, aside.body) == ((None, BAD) if place == "text" else ("1", None))
    assert received(context, SET_ASIDE) == [1]
    assert received(context, SET_ASIDE) == []


@pytest.mark.parametrize("place", PLACES)
def test_browser_shows_it(context: Context, place: str) -> None:
    """C20: readable, with the reason; also through a selector."""
    plant(context, "orders", place)
    for selector in (None, "JMSPriority = 4 AND c IS NULL"):
        first, bad, third = context.browser("orders", selector=selector)
        assert (first.sequence, third.sequence) == (1, 3)
        assert "h\\\\xffi" in json.dumps({**bad.to_dict(), "properties": bad.properties})
        assert "b'h\\xffi', which is not UTF-8" in str(bad.properties[UNDECODABLE_PROPERTY])


@pytest.mark.parametrize("place", PLACES)
def test_expired_message_is_logged(context: Context, place: str, caplog: pytest.LogCaptureFixture) -> None:
    """C20, T6: each of the three."""
    plant(context, "logged", place, JMSExpiration=pa.array([PAST] * 3))
    with caplog.at_level(logging.WARNING, "spark_jms.expiration"):
        assert Search(context, "logged").run() == 3
    assert len(caplog.records) == 3
    assert "h\\xffi" in caplog.records[1].getMessage() or place in ("text", "JMSXGroupID")  # not of the header


@pytest.mark.parametrize("place", PLACES)
def test_expired_message_is_redirected_as_it_is(context: Context, place: str) -> None:
    """C20, T6: with its bytes, so the consumer of the error destination sets it aside."""
    plant(context, "moved", place, JMSExpiration=pa.array([PAST] * 3))
    assert Search(context, "moved").run() == 3
    assert received(context, "errors") == [1, 3]
    (aside,) = context.browser(SET_ASIDE)
    assert aside.properties[FROM] == "errors/-/0#2"


@pytest.mark.parametrize("place", PLACES)
def test_failed_message_is_redriven_as_it_was(context: Context, place: str) -> None:
    """C20, C8: from the error destination back, with its bytes."""
    plant(context, "moved", place, JMSExpiration=pa.array([PAST] * 3))
    assert Search(context, "moved").run() == 3
    assert redrive(domain_of(context), records_of(context), RedriveOrder("errors"), 5).messages == {"moved": 3}
    assert received(context, "moved") == [4, 6]
    (aside,) = context.browser(SET_ASIDE)
    assert aside.properties[FROM] == "moved/-/0#5"


@pytest.mark.parametrize("place", PLACES)
def test_moved_message_keeps_its_bytes(context: Context, place: str) -> None:
    """C20, C18: to a destination with several members."""
    plant(context, "orders", place)
    move(domain_of(context), records_of(context), MoveOrder("orders", "spread"), 5)
    bad = [m for m in context.browser("spread") if UNDECODABLE_PROPERTY in m.properties]
    assert ["b'h\\xffi'" in str(m.properties[UNDECODABLE_PROPERTY]) for m in bad] == [True]
    assert len(received(context, "spread")) == 2


@pytest.mark.parametrize("place", PLACES)
def test_sorted_destination_delivers_the_neighbours(context: Context, place: str) -> None:
    """C20, T15: keys of such text."""
    plant(context, "sorted", place)
    assert sorted(received(context, "sorted")) == [1, 3]


def test_key_of_numbers_is_missing_where_its_text_is_not_utf8(context: Context) -> None:
    """C20, T15: as any text that is no number."""
    log = domain_of(context).log("sorted")
    writer = MessageWriter(log.storage, log.refresh().destination, 0)
    rows = normalise(pa.RecordBatch.from_pydict({"text": ["0", "1", "2"]}), 1, 10**6)
    keys = map_of(pa.array(["a"] * 3), text_of(b"1", BAD, b"3"))
    writer.write_normalised(rows.set_column(rows.schema.names.index("properties"), "properties", keys))
    send(log, writer.close(), log.snapshot.route_id)
    with context.consumer("sorted", acknowledge="auto") as consumer:
        assert [m.text for m in consumer.messages(idle_timeout=0.5)] == ["2", "0"]


def test_unit_of_work_of_such_a_name_is_set_aside(context: Context) -> None:
    """C20, T12: and another unit is delivered."""
    log = domain_of(context).log("works")
    writer = MessageWriter(log.storage, log.refresh().destination, 0)
    names = ["JMS_BEA_UnitOfWork", "JMS_BEA_UnitOfWorkSequenceNumber", "JMS_BEA_IsUnitOfWorkEnd"]
    rows = normalise(pa.RecordBatch.from_pydict({"text": ["0", "1"]}), 1, 10**6)
    values = text_of(BAD, b"1", b"true", b"good", b"1", b"true")
    parts = pa.MapArray.from_arrays(pa.array([0, 3, 6], pa.int32()), pa.array(names * 2), values)
    writer.write_normalised(rows.set_column(rows.schema.names.index("properties"), "properties", parts))
    send(log, writer.close(), log.snapshot.route_id)
    with context.consumer("works", acknowledge="auto") as consumer:
        units = [message.unit_of_work for message in consumer.messages(idle_timeout=0.5)]
    assert [[part.text for part in unit] for unit in units] == [["1"]]
    assert len(list(context.browser(SET_ASIDE))) == 1


@pytest.mark.parametrize("place", PLACES)
def test_compaction_and_promotion_continue(context: Context, place: str) -> None:
    """C20, C13, C7: the file's statistics leave such a column out."""
    log = domain_of(context).log("orders")
    for _ in range(3):
        plant(context, "orders", place, bad=b"\xff")
    apply_destinations(
        domain_of(context),
        [attrs.evolve(log.refresh().destination, promoted_properties=("b:string",))],
        lambda *_: False,
    )
    compact(log)
    assert len(log.refresh().member_files(0).files) == 1
    assert received(context, "orders", selector="b IS NULL OR b <> 'q'") == [1, 3, 4, 6, 7, 9]


def test_compressed_text_reaches_spark_as_it_was_sent(context: Context) -> None:
    """C20, T8: and does not stop the batch."""
    log = domain_of(context).log("orders")
    writer = MessageWriter(log.storage, log.refresh().destination, 0)
    rows = normalise(pa.RecordBatch.from_pydict({"text": ["good" * 99, "bad"]}), 1, 10**6)
    rows = rows.set_column(rows.schema.names.index("text"), "text", text_of(b"good" * 99, b"bad\xff" * 99))
    writer.write_normalised(compressed(rows, 10))
    send(log, writer.close(), log.snapshot.route_id)
    (batch,) = fetch(log, "orders", 0, Ranges.of((1, 2)), {}, columns=("text",), unpacks=True)
    assert batch.column("text").cast(pa.binary()).to_pylist() == [b"good" * 99, b"bad\xff" * 99]


@pytest.mark.parametrize("way", ["send_table", "session"])
def test_table_is_refused_before_anything_is_sent(context: Context, way: str) -> None:
    """C2, C20: also when a later batch has the text."""
    good = pa.RecordBatch.from_pydict({"text": pa.array(["a"] * 3), "JMSType": pa.array(["t"] * 3)})
    bad = pa.RecordBatch.from_pydict({"text": pa.array(["a"] * 3), "JMSType": text_of(b"t", b"t", BAD)})
    table = pa.Table.from_batches([good, bad])
    said = "column 'JMSType' is b'h.xffi', which is not UTF-8"
    if way == "send_table":
        with pytest.raises(MessageFormatError, match=said):
            context.producer("orders").send_table(table)
    else:
        with context.transacted_session() as session:
            with pytest.raises(MessageFormatError, match=said):
                session.producer("orders").send_table(table)
            session.commit()
    assert list(context.browser("orders")) == []
