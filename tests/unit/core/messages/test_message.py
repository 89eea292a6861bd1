"""Messages as columns: accepted and refused columns and values, and delivered ones (C2)."""

from __future__ import annotations

from datetime import datetime, timezone

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.messages.columns import (
    COLUMNS,
    SELECTOR_KEYWORDS,
    arrow_schema,
    check_sendable,
    decode_properties,
    deliver,
    encode_properties,
    normalise,
    spark_schema,
)
from spark_jms.errors import MessageFormatError, MessageSizeError

NOW = 1_700_000_000_000
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True).filter(
    lambda n: not n.startswith("JMS") and n.upper() not in SELECTOR_KEYWORDS
)
values = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text())


def batch(**columns: object) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({k: v if isinstance(v, pa.Array) else pa.array(v) for k, v in columns.items()})


def test_message_has_nineteen_columns() -> None:
    """C2: the documented message columns, with their Spark types."""
    assert len(COLUMNS) == 19
    assert (
        spark_schema(("text", "sequence", "properties"))
        == "text string, sequence bigint, properties map<string,string>"
    )


def test_body_alone_makes_a_message() -> None:
    """C2: all other columns get the defaults of JMS."""
    out = normalise(batch(text=["a", "b"]), NOW, 100).to_pylist()
    assert out[0]["JMSPriority"] == 4
    assert out[0]["JMSDeliveryMode"] == 2
    assert out[0]["JMSExpiration"] == 0
    assert out[0]["JMSTimestamp"] == NOW == out[0]["JMSDeliveryTime"]
    assert out[1]["text"] == "b"
    assert out[1]["body"] is None


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"value": ["a"], "key": ["k"], "topic": ["t"]},
            r"column\(s\) 'value' \(did you mean 'text'\?\), 'key' \(did you mean 'JMSXGroupID'\?\), 'topic': accepted",
        ),
        ({"TEXT": ["a"]}, r"column\(s\) 'TEXT' \(did you mean 'text'\?\): accepted are JMSMessageID"),
        ({"text": ["a"], "priority": [1]}, r"'priority' \(did you mean 'JMSPriority'\?\)"),
        ({"text": ["a"], "colour": ["red"]}, r"unknown message column\(s\) 'colour': accepted are JMSMessageID"),
        ({"JMSPriority": [4]}, "needs a `text` .* or a `body`"),
        ({"text": [1]}, r"column 'text' is int64, but must be string: cast\(col as string\)"),
        ({"body": ["x"]}, r"column 'body' is string, but must be binary: cast\(col as binary\)"),
        ({"text": ["a"], "JMSPriority": ["4"]}, "'JMSPriority' is string, but must be int"),
        ({"text": ["a"], "properties": [{"x": {"y": 1}}]}, "cannot be message properties"),
        ({"text": ["a"], "properties": ["x"]}, "or a struct of simple values"),
    ],
)
def test_wrong_columns_are_refused(columns: dict[str, list[object]], message: str) -> None:
    """C2: the error of an unknown column lists the accepted ones; that of a wrong type names the cast to use."""
    with pytest.raises(MessageFormatError, match=message):
        check_sendable(batch(**columns).schema)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a"], "JMSPriority": [10]}, "JMSPriority is 10, but must be 0 to 9"),
        ({"text": ["a"], "JMSDeliveryMode": [0]}, "JMSDeliveryMode is 0, but must be 1 to 2"),
        ({"text": ["a"], "JMSExpiration": [-1]}, "JMSExpiration is -1"),
        ({"text": [None, "a"], "body": [b"x", b"y"]}, "row 1 has both `text` and `body`"),
        ({"text": ["a"], "JMSXGroupSeq": [2**40]}, "does not fit int"),
        ({"text": ["a"], "properties": [{"JMSFoo": "x"}]}, "'JMSFoo' cannot be a property name"),
        ({"text": ["a"], "properties": [{"a b": "x"}]}, "'a b' cannot be a property name"),
        ({"text": ["a"], "properties": [{"AND": "x"}]}, "'AND' cannot be a property name: it is a word of selectors"),
        ({"text": ["a"], "properties": [{"not": "x"}]}, "'not' cannot be a property name: it is a word of selectors"),
    ],
)
def test_wrong_values_are_refused(columns: dict[str, list[object]], message: str) -> None:
    """C2: a sender refuses values out of range before it writes anything."""
    with pytest.raises(MessageFormatError, match=message):
        normalise(batch(**columns), NOW, 100)


def test_oversized_messages_are_refused() -> None:
    """C2: the error names the row, its size and the limit."""
    with pytest.raises(MessageSizeError, match=r"row 1 carries 101 bytes \(`body` 101\), more than .* 100 bytes"):
        normalise(batch(body=[b"", b"x" * 101]), NOW, 100)


TYPED = {"n": 1, "m": "v"}  # as a struct: its types are a property, too


@pytest.mark.parametrize(
    ("columns", "size"),
    [
        ({"text": ["a", "é" * 50 + "a"]}, "`text` 101"),
        ({"text": ["a", "b"], "JMSCorrelationID": ["", "x" * 100]}, "`JMSCorrelationID` 100, `text` 1"),
        (
            {"text": ["a", None], "JMSType": ["", "x" * 60], "JMSReplyTo": ["", "y" * 41]},
            "`JMSReplyTo` 41, `JMSType` 60",
        ),
        ({"text": ["a", None], "JMSXGroupID": ["", "x" * 101]}, "`JMSXGroupID` 101"),
        ({"text": ["a", ""], "properties": [None, {"n" * 50: "v" * 51}]}, "`properties` 101"),
        ({"text": ["a", "bb"], "properties": [TYPED, {"n": 10**18, "m": "v" * 58}]}, "`properties` 99, `text` 2"),
    ],
)
def test_everything_a_message_carries_counts(columns: dict[str, list[object]], size: str) -> None:
    """C2: headers of text, names, values and types of properties, and the body; 100 bytes pass, 101 do not."""
    with pytest.raises(MessageSizeError, match=f"row 1 carries 101 bytes .{size}., more than"):
        normalise(batch(**columns), NOW, 100)
    assert normalise(batch(**columns), NOW, 101).num_rows == 2


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.text(max_size=9)),
            st.one_of(st.none(), st.text(max_size=9)),
            st.one_of(st.none(), st.dictionaries(names, st.text(max_size=9), max_size=3)),
        ),
        min_size=1,
    ),
    st.integers(0, 5),
    st.integers(0, 30),
)
def test_sizes_are_those_of_each_row(rows: list[tuple[str, str, dict[str, str]]], start: int, limit: int) -> None:
    """C2: the kernels agree with a count by row, on slices and with nulls."""
    text, kind, properties = zip(*rows, strict=True)
    columns = {
        "text": pa.array(text, pa.string()),
        "JMSType": pa.array(kind, pa.string()),
        "properties": pa.array(
            [None if entry is None else list(entry.items()) for entry in properties], pa.map_(pa.string(), pa.string())
        ),
    }
    sizes = [
        sum(len(part.encode()) for part in (a or "", b or "", *(p or {}).keys(), *(p or {}).values()))
        for a, b, p in rows[start:]
    ]
    given_rows = batch(**columns).slice(start)
    if any(size > limit for size in sizes):
        with pytest.raises(MessageSizeError, match=f"row {sizes.index(max(sizes))} carries {max(sizes)} bytes"):
            normalise(given_rows, NOW, limit)
    else:
        assert normalise(given_rows, NOW, limit).num_rows == len(sizes)


def test_struct_properties_keep_their_types() -> None:
    """C2: a struct becomes typed properties; a null value becomes no property."""
    given_rows = [
        {"color": "red", "amount": 1.5, "n": 3, "ok": True},
        {"color": None, "amount": None, "n": -1, "ok": False},
    ]
    out = normalise(batch(text=["a", "b"], properties=given_rows), NOW, 100).column("properties").to_pylist()
    assert [decode_properties(row) for row in out] == [given_rows[0], {"n": -1, "ok": False}]
    big = [{"i": i, "s": f"v{i}"} for i in range(1000)]
    out = normalise(batch(text=["x"] * 1000, properties=big), NOW, 100).column("properties").to_pylist()
    assert [decode_properties(row) for row in out] == big


def test_times_accept_timestamps() -> None:
    """C2: JMSExpiration and JMSDeliveryTime accept timestamps as well as milliseconds."""
    moment = pa.array([datetime(2030, 1, 1, tzinfo=timezone.utc)], pa.timestamp("us", "UTC"))
    out = normalise(batch(text=["a"], JMSExpiration=moment, JMSDeliveryTime=moment), NOW, 100).to_pylist()[0]
    assert out["JMSExpiration"] == out["JMSDeliveryTime"] == 1_893_456_000_000


@given(st.dictionaries(names, values, max_size=6))
def test_typed_properties_round_trip(properties: dict[str, object]) -> None:
    """C2: Python values come back equal and of the same type."""
    back = decode_properties(encode_properties(properties))
    assert back == properties
    assert {k: type(v) for k, v in back.items()} == {k: type(v) for k, v in properties.items()}


def test_delivered_columns_carry_delivery_counts() -> None:
    """C8: redelivered messages are flagged and counted, in exactly the requested columns."""
    stored = pa.RecordBatch.from_pydict({"text": ["a", "b"]})
    columns = ("sequence", "JMSRedelivered", "text", "JMSXDeliveryCount", "member", "JMSDestination")
    out = deliver(stored, columns, "orders", 3, pa.array([7, 8]), pa.array([1, 3], pa.int32()))
    assert out.schema == arrow_schema(columns)
    assert out.to_pylist()[1] == {
        "sequence": 8,
        "JMSRedelivered": True,
        "text": "b",
        "JMSXDeliveryCount": 3,
        "member": 3,
        "JMSDestination": "orders",
    }
    assert deliver(stored, columns, "orders", 3, pa.array([7, 8]), 1).column("JMSRedelivered").to_pylist() == [
        False,
        False,
    ]
