"""Python values to message columns and back."""

from __future__ import annotations

import json
import math
import pickle
import re
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jms.client.messages.encoding import ARGUMENTS, compose, from_batch, to_batch
from spark_jms.client.messages.message import Message
from spark_jms.client.receiving.delivery import Delivery
from spark_jms.core.messages.columns import (
    COLUMNS,
    PERSISTENT,
    SELECTOR_KEYWORDS,
    STORED_SCHEMA,
    check_sendable,
    deliver,
    normalise,
)
from spark_jms.errors import IllegalStateException, MessageFormatError

NOW = 1_700_000_000_000
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_$]{0,20}", fullmatch=True).filter(
    lambda n: not n.startswith("JMS") and n.upper() not in SELECTOR_KEYWORDS
)
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=50)
scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | texts
property_values = scalars | st.none()
map_values = scalars | st.binary(max_size=50) | st.none()


def at(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)


def round_trip(*messages: Message) -> list[Message]:
    """The columns as a consumer gets them: normalised, stored, delivered."""
    batch = to_batch(messages)
    check_sendable(batch.schema)
    rows = normalise(batch, NOW, 10 * 2**20)
    numbers = pa.array(range(len(messages)), pa.int64())
    ids = pa.array([f"ID:x-{n}" for n in numbers.tolist()])
    stored = pa.RecordBatch.from_arrays([numbers, ids, *rows.columns], schema=STORED_SCHEMA)
    return from_batch(deliver(stored, tuple(COLUMNS), "orders", 0, pc.add(numbers, 1), 1), None)


def same(left: Any, right: Any) -> bool:
    """Equal in value and type; NaN is NaN."""
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return type(left) is type(right) and left == right


def same_entries(left: Any, right: Any) -> bool:
    return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)


@settings(deadline=None)
@given(properties=st.dictionaries(names, property_values, max_size=6), text=texts)
def test_properties_keep_their_types(properties: dict[str, Any], text: str) -> None:
    """C2, C11"""
    (got,) = round_trip(compose(NOW, {"text": text, "properties": properties}))
    assert same_entries(got.properties, properties)
    assert got.text == text
    assert got.body is None
    assert got.map is None


@settings(deadline=None)
@given(values=st.dictionaries(texts.filter(bool), map_values, max_size=6))
def test_map_messages_keep_names_and_types(values: dict[str, Any]) -> None:
    """C2, C11: including bytes, null, NaN and infinities, which JSON cannot express."""
    (got,) = round_trip(compose(NOW, {"map": values}))
    assert got.map is not None
    assert same_entries(got.map, values)
    assert (got.text, got.body) == (None, None)
    json.dumps(got.to_dict(), allow_nan=False)


@settings(deadline=None)
@given(bodies=st.lists(st.binary(max_size=100), min_size=1, max_size=5))
def test_bytes_messages(bodies: list[bytes]) -> None:
    """C2, C11"""
    assert [m.body for m in round_trip(*(compose(NOW, {"body": body}) for body in bodies))] == bodies


def test_headers_keep_their_values() -> None:
    """C2, C11"""
    arguments = {
        "text": "x",
        "group_id": "g",
        "group_seq": 3,
        "priority": 9,
        "correlation_id": "c",
        "reply_to": "answers",
        "type": "t",
        "expiration": at(NOW + 5),
        "delivery_time": at(NOW + 1),
        "delivery_mode": "NON_PERSISTENT",
    }
    (got,) = round_trip(compose(NOW, arguments))
    assert {name: getattr(got, name) for name in arguments} == {**arguments, "delivery_mode": 1}
    assert (got.expiration_ms, got.delivery_time_ms, got.timestamp) == (NOW + 5, NOW + 1, at(NOW))
    assert (got.destination, got.member, got.sequence, got.timestamp_ms) == ("orders", 0, 1, NOW)
    assert (got.redelivered, got.delivery_count) == (False, 1)


def test_relative_times() -> None:
    """C12, C17: counted from the sender's clock."""
    message = compose(NOW, {"time_to_live": 0.1, "delay": timedelta(milliseconds=50)})
    assert (message.expiration_ms, message.delivery_time_ms) == (NOW + 100, NOW + 50)
    assert compose(NOW, {"time_to_live": "10 s"}).expiration_ms == NOW + 10_000
    assert compose(NOW, {"time_to_live": 0}).expiration is None


def test_messages_of_all_kinds_in_one_batch() -> None:
    """C2: messages of one batch may set different fields."""
    sent = [
        Message(text="a", group_id="g"),
        Message(body=b"b", properties={"n": 1}),
        Message(map={"k": b"v"}),
        Message(),
    ]
    got = round_trip(*sent)
    assert [(m.text, m.body, m.map, m.group_id, dict(m.properties)) for m in got] == [
        ("a", None, None, "g", {}),
        (None, b"b", None, None, {"n": 1}),
        (None, None, {"k": b"v"}, None, {}),
        (None, None, None, None, {}),
    ]


def test_received_message_as_template() -> None:
    """C11: sent again, it differs only in the fields the queue sets."""
    (first,) = round_trip(compose(NOW, {"map": {"a": 1.0}, "properties": {"p": True}, "priority": 7}))
    (second,) = round_trip(first)
    assert (second.map, second.properties, second.priority) == (first.map, first.properties, 7)


def test_numpy_and_subclasses_become_plain_values() -> None:
    """C2"""

    class Name(str):
        __slots__ = ()

    (got,) = round_trip(compose(NOW, {"text": Name("n"), "properties": {"f": np.float64(1.5)}, "body": None}))
    assert got.text == "n"
    assert same(got.properties["f"], 1.5)
    assert round_trip(compose(NOW, {"body": bytearray(b"x")}))[0].body == b"x"


def test_text_marked_as_map_that_is_not_json_stays_text() -> None:
    """C2: a Spark job can set the map marker on any text."""
    batch = pa.RecordBatch.from_pydict({name: [None] for name in COLUMNS}, schema=pa.schema(list(COLUMNS.items())))
    for text, expected in (("[1]", None), ("{", None), ('{"a": {"b": 1}}', {"a": {"b": 1}})):
        columns = {
            "text": pa.array([text]),
            "properties": pa.array([[("JMS_JMSQ_BodyType", "map")]], COLUMNS["properties"]),
        }
        marked = batch
        for name, column in columns.items():
            marked = marked.set_column(marked.schema.get_field_index(name), name, column)
        (got,) = from_batch(marked, None)
        assert (got.map, got.text) == (expected, None if expected else text)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"txt": "x"}, "'txt'"),
        ({"text": b"x"}, "must be str"),
        ({"text": "\ud800"}, "not Unicode"),
        ({"body": "x"}, "must be bytes"),
        ({"text": "x", "body": b"x"}, "both"),
        ({"text": "x", "map": {}}, "one body"),
        ({"map": [1]}, "mapping"),
        ({"map": {"": 1}}, "not empty"),
        ({"map": {"a": [1]}}, "a list"),
        ({"map": {"a": 2**63}}, "64 bits"),
        ({"properties": {"a b": 1}}, "property name"),
        ({"properties": {"JMSfoo": 1}}, "JMSfoo"),
        ({"properties": {1: 1}}, "names are text"),
        ({"properties": {"JMSXGroupID": "g"}}, "group_id"),
        ({"properties": {"JMS_JMSQ_Types": "x"}}, "another name"),
        ({"properties": {"a": [None]}}, "list"),
        ({"properties": {"a": 2**63}}, "64 bits"),
        ({"properties": {"a": "\udfff"}}, "not Unicode"),
        ({"priority": 10}, "JMSPriority is 10"),
        ({"priority": True}, "must be int"),
        ({"group_seq": 2**31}, "JMSXGroupSeq"),
        ({"delivery_mode": "FAST"}, "NON_PERSISTENT"),
        ({"delivery_mode": 3}, "JMSDeliveryMode is 3"),
        ({"expiration": datetime(1969, 1, 1, tzinfo=timezone.utc)}, "JMSExpiration"),
        ({"expiration": datetime(2030, 1, 1)}, "with a time zone"),  # noqa: DTZ001
        ({"delivery_time": NOW}, "must be a datetime"),
        ({"time_to_live": -1}, "time_to_live: -1 is not a duration: give '30 s', a timedelta"),
        ({"time_to_live": "10"}, "10 has no unit: write 10s"),
        ({"time_to_live": 1, "expiration": at(NOW)}, "one of them"),
        ({"delay": math.nan}, "0 or more"),
        ({"time_to_live_ms": 10}, "give durations as '10 s'"),
        ({"propertys": {}}, "did you mean properties"),
        ({"delivery_delay": 5}, "did you mean delay"),
    ],
)
def test_invalid_message_arguments_are_refused_by_name(arguments: dict[str, Any], says: str) -> None:
    """C2, C11"""
    with pytest.raises(MessageFormatError, match=re.escape(says)):
        round_trip(compose(NOW, arguments))


def test_every_argument_is_a_field_or_a_relative_time() -> None:
    """C11"""
    assert {name for name in ARGUMENTS if name not in Message.__dataclass_fields__} == {
        "time_to_live",
        "expiration",
        "delay",
        "delivery_time",
    }


def test_unreceived_message_cannot_be_acknowledged() -> None:
    """C8"""
    with pytest.raises(IllegalStateException, match="not received"):
        Message(text="x").acknowledge()


def test_messages_pickle_and_convert_to_json() -> None:
    """C11, C14"""
    message = Message(body=b"\xff", properties={"x": math.inf}, delivery_mode=PERSISTENT)
    assert pickle.loads(pickle.dumps(message)) == message
    assert json.loads(json.dumps(message.to_dict(), allow_nan=False))["body"] == "/w=="


def test_message_that_expires_while_prefetched_is_not_delivered() -> None:
    """C12, T6: a prefetched message that expires is released, not delivered: the next plan expires it."""
    delivery = Delivery()
    delivery.add([Message(expiration_ms=10, member=0, sequence=1), Message(member=0, sequence=2)], "c")
    taken = delivery.take(now_ms=10)
    assert taken is not None
    assert taken.sequence == 2
    assert not delivery.finished
    assert [(one.picks.first, one.delivered) for one in delivery.returning] == [(1, False)]
    assert (delivery.statistics(0, 10).expired, delivery.statistics(0, 10).returned) == (1, 0)


def test_delivery_releases_each_stage_correctly() -> None:
    """C8, C11: delivered messages flagged, prefetched ones unflagged, finished ones never."""
    delivery = Delivery()
    delivery.add([Message(member=0, sequence=n) for n in (1, 2, 3)], "c")
    delivery.take(0), delivery.finish()
    delivery.take(0)
    delivery.give_back(delivered=True)
    assert [(r.picks.first, r.delivered) for r in delivery.returning] == [(2, True), (3, False)]
    assert list(delivery.finished) == [(0, 1)]
