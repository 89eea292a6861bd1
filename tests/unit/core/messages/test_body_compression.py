"""T8: bodies that senders compress, as columns and as messages."""

from __future__ import annotations

import gzip
import pickle
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.client.messages.columns import item_bytes
from spark_jms.client.messages.encoding import decoded, to_batch
from spark_jms.client.messages.message import CompressedMessage, Message
from spark_jms.core.messages import compression
from spark_jms.core.messages.columns import COLUMNS, deliver, normalise
from spark_jms.core.messages.compression import (
    COMPRESSED_PROPERTY,
    columns_to_read,
    compressed,
    decompressed,
    pieces,
    unpack,
)
from spark_jms.errors import MessageFormatError

LIMIT = 2**20
bodies = st.one_of(
    st.builds(lambda text, times: {"text": text * times}, st.text(max_size=5), st.integers(1, 50)),
    st.builds(lambda data, times: {"body": data * times}, st.binary(max_size=5), st.integers(1, 50)),
    st.builds(lambda value: {"map": {"k": value}}, st.text(max_size=50)),
    st.just({}),
)
messages = st.lists(
    st.builds(
        lambda body, properties: Message(**body, properties=properties),
        bodies,
        st.dictionaries(st.sampled_from("abc"), st.integers(0, 9) | st.text(max_size=3), max_size=2),
    ),
    min_size=1,
    max_size=8,
)


def rows_of(made: list[Message]) -> pa.RecordBatch:
    return normalise(to_batch(made), 1, LIMIT)


def received(rows: pa.RecordBatch) -> list[Message]:
    stored = pa.RecordBatch.from_arrays(
        [pa.array([f"ID:{n}" for n in range(rows.num_rows)]), *rows.columns], names=["JMSMessageID", *rows.schema.names]
    )
    sequences = pa.array(range(1, rows.num_rows + 1), pa.int64())
    found = decoded(deliver(stored, tuple(COLUMNS), "orders", 0, sequences, 1), None)
    assert not found.undecodable
    return found.messages


@given(messages, st.none() | st.integers(0, 60))
def test_pieces_are_all_rows_in_their_order(made: list[Message], threshold: int | None) -> None:
    """T8: each decompresses to a bounded size, or is one row."""
    rows = compressed(rows_of(made), threshold)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compression, "MOST_BYTES", 60)
        found = pieces(rows)
    assert pa.Table.from_batches(found).to_pylist() == rows.to_pylist()
    for piece in found:
        sizes = [
            len(row["body"] or (row["text"] or "").encode())
            for row, stored in zip(decompressed(piece).to_pylist(), piece.to_pylist(), strict=True)
            if COMPRESSED_PROPERTY in dict(stored["properties"] or ())
        ]
        assert sum(sizes) <= 60 or len([size for size in sizes if size]) == 1


@given(messages, st.none() | st.integers(0, 60))
def test_compressed_rows_read_as_they_were_sent(made: list[Message], threshold: int | None) -> None:
    """T8: by a query, and message by message; and no row grows."""
    rows = rows_of(made)
    packed = compressed(rows, threshold)
    assert decompressed(packed).to_pylist() == rows.to_pylist()
    assert packed.schema == rows.schema
    assert received(packed) == received(rows)
    for before, after in zip(rows.to_pylist(), packed.to_pylist(), strict=True):
        size = len((before["text"] or "").encode()) + len(before["body"] or b"")
        changed = COMPRESSED_PROPERTY in dict(after["properties"] or ())
        assert not changed or (threshold is not None and size >= threshold and len(after["body"]) < size)


def test_threshold_is_of_each_row() -> None:
    """T8: producers that share a commit have their own; null is never."""
    rows = rows_of([Message(text="a" * 100)] * 4 + [Message(body=bytes(100))])
    packed = compressed(rows, pa.array([100, 101, None, 0, 100], pa.int64()))
    kinds = [dict(row or ()).get(COMPRESSED_PROPERTY) for row in packed.column("properties").to_pylist()]
    assert kinds == ["text", None, None, "text", "body"]
    assert gzip.decompress(packed.column("body")[0].as_py()) == b"a" * 100


def test_bodies_are_left_compressed_where_no_column_asks_for_them() -> None:
    """T8"""
    rows = compressed(rows_of([Message(text="a" * 100)]), 0)
    assert columns_to_read(["JMSPriority"]) == ["JMSPriority"]
    assert columns_to_read(["body"]) == ["body", "properties"]
    assert columns_to_read(["text", "JMSType"]) == ["text", "JMSType", "body", "properties"]
    assert decompressed(rows.select(["properties", "JMSType"])).to_pylist() == [{"properties": None, "JMSType": None}]
    assert decompressed(rows.select(["text", "body", "properties"])).column("text").to_pylist() == ["a" * 100]
    assert decompressed(rows.select(["body", "properties"])).column("body").to_pylist() == [None]


def one(message: Message) -> CompressedMessage:
    (found,) = received(compressed(rows_of([message]), 0))
    assert isinstance(found, CompressedMessage)
    return found


@pytest.mark.parametrize(
    "sent", [Message(text="a" * 500), Message(body=b"b" * 500), Message(map={"k": "c" * 500, "n": 1})], ids=repr
)
def test_body_is_decompressed_when_it_is_read(sent: Message, monkeypatch: pytest.MonkeyPatch) -> None:
    """T8: once; headers and properties leave it compressed."""
    opened: list[int] = []
    real = unpack
    monkeypatch.setattr("spark_jms.client.messages.message.unpack", lambda data: (opened.append(1), real(data))[1])
    message = one(replace(sent, properties={"color": "red"}, priority=7))
    assert (message.properties, message.priority, message.message_id) == ({"color": "red"}, 7, "ID:0")
    assert 0 < message.compressed_bytes == item_bytes(message) < 100
    assert not opened
    for _ in range(2):
        assert (message.text, message.body, message.map) == (sent.text, sent.body, sent.map)
    assert opened == [1]
    assert message.compressed_bytes == 0
    assert item_bytes(message) >= 500


def test_compressed_message_is_a_message() -> None:
    """T8, C2: equal, printed, copied, pickled and sent again as one that was not compressed."""
    sent = Message(text="a" * 500, properties={"n": 1})
    (plain,) = received(rows_of([sent]))
    assert one(sent) == plain
    assert plain == one(sent)
    assert one(sent) == one(sent)
    assert one(sent) != replace(plain, priority=9)
    assert one(sent) != "a"
    assert repr(one(sent)) == repr(plain).replace("Message(", "Message(", 1)
    assert one(sent).to_dict() == plain.to_dict()
    assert pickle.loads(pickle.dumps(one(sent))) == plain
    assert replace(one(sent), priority=9).text == plain.text
    assert to_batch([one(sent)]).to_pylist() == to_batch([plain]).to_pylist()


@pytest.mark.parametrize(
    "damage",
    [b"", b"plain", gzip.compress(b"a" * 100)[:-9], b"\x1f\x8b" + bytes(20)],
    ids=["empty", "not GZIP", "cut off", "zeros"],
)
def test_damaged_body_is_named(damage: bytes) -> None:
    """T8: with the message; its headers can be read."""
    rows = compressed(rows_of([Message(text="a" * 500)]), 0)
    index = rows.schema.get_field_index("body")
    rows = rows.set_column(index, rows.schema.field(index), pa.array([damage], pa.binary()))
    (message,) = received(rows)
    assert message.priority == 4
    with pytest.raises(
        MessageFormatError, match="message ID:0 of orders, member 0, sequence 1: the compressed body is damaged"
    ):
        _ = message.text
    with pytest.raises(ValueError, match="row 0: the compressed body is damaged"):
        decompressed(rows)


def test_senders_cannot_give_the_property() -> None:
    """T8: a plain body with it could not be read."""
    properties = pa.array([[(COMPRESSED_PROPERTY, "text")]], COLUMNS["properties"])
    rows = pa.RecordBatch.from_arrays([pa.array(["a"]), properties], names=["text", "properties"])
    with pytest.raises(MessageFormatError, match="JMS_JMSQ_Compressed is set by spark-jms"):
        normalise(rows, 1, LIMIT)
    with pytest.raises(MessageFormatError, match="JMS_JMSQ_Compressed"):
        rows_of([Message(text="a", properties={COMPRESSED_PROPERTY: "text"})])
