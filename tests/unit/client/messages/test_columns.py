"""Many messages as columns at once: the same columns and errors as one by one (C2, C11)."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jms.client.messages.columns import carried_bytes, slices, to_columns
from spark_jms.client.messages.encoding import compose, to_batch
from spark_jms.client.messages.message import Message
from spark_jms.core.messages.columns import normalise
from spark_jms.errors import MessageFormatError

NOW = 1_700_000_000_000
names = st.sampled_from(["a", "b", "color", "JMSXAppID", "bad-name", "JMSXGroupID", "JMS_JMSQ_Types", "JMSType", ""])
texts = st.text(st.characters(), max_size=5)
scalars = (
    st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats()
    | texts
    | st.none()
    | st.binary(max_size=2)
    | st.just([1])
)


class Name(str):
    """A text of another type."""


items = st.fixed_dictionaries(
    {},
    optional={
        "text": texts | st.none() | st.builds(Name, st.just("x")) | st.just(5),
        "body": st.binary(max_size=5) | st.none() | st.just(bytearray(b"x")),
        "properties": st.none() | st.just([]) | st.just(0) | st.dictionaries(names, scalars, max_size=3),
        "group_id": texts | st.none(),
        "group_seq": st.integers(-(2**33), 2**33) | st.none(),
        "priority": st.integers(-1, 10) | st.none() | st.booleans(),
        "expiration_ms": st.sampled_from([0, 1, None]),
        "delivery_mode": st.sampled_from([1, 2, "PERSISTENT", None, 3]),
        "time_to_live": st.sampled_from([0, 10, None, -1, "5 s"]),
        "map": st.none() | st.just({"k": 1}),
        "unknown": st.just(1),
    },
)
plain = st.fixed_dictionaries(
    {"text": st.text(st.characters(exclude_categories=("Cs",)), max_size=5)},
    optional={
        "properties": st.dictionaries(
            st.sampled_from(["a", "b", "c"]), st.booleans() | st.integers(0, 9) | st.floats() | st.just("x"), max_size=3
        ),
        "priority": st.integers(0, 9),
        "group_id": st.just("g"),
        "delivery_mode": st.sampled_from([1, 2]),
    },
)


def outcome(make: Any) -> Any:
    """The stored rows, or the kind of error."""
    try:
        rows = normalise(make(), NOW, 2**20).to_pylist()
    except MessageFormatError as error:
        return type(error)
    return rows


@settings(deadline=None, max_examples=400)
@given(given_items=st.lists(plain, min_size=1, max_size=6) | st.lists(items | plain, min_size=1, max_size=3))
def test_columns_of_many_are_those_of_each(given_items: list[dict[str, Any]]) -> None:
    """C2, C11: any dicts, good and bad, in any mixture."""
    times = [NOW + n for n in range(len(given_items))]
    at_once = outcome(lambda: to_columns(given_items, times))
    one_by_one = outcome(lambda: to_batch([compose(now, item) for now, item in zip(times, given_items, strict=True)]))
    assert at_once == one_by_one


def test_properties_that_are_no_mapping_are_refused() -> None:
    """C2: by name, not from deep inside."""
    with pytest.raises(MessageFormatError, match="properties is a int"):
        to_columns([{"text": "a", "properties": 5}], [NOW])


def test_messages_and_dicts_may_be_mixed() -> None:
    """C11: a relative time counts from the time of each."""
    rows = to_columns([Message(text="a"), {"text": "b", "time_to_live": 0.005}], [NOW, NOW + 1]).to_pylist()
    assert [row["text"] for row in rows] == ["a", "b"]
    assert rows[1]["JMSExpiration"] == NOW + 6


def test_large_property_is_named() -> None:
    """C2: the error names the property, although the columns are built at once."""
    with pytest.raises(MessageFormatError, match="'n' is 9223372036854775808"):
        to_columns([{"text": "a", "properties": {"n": 2**63}}], [NOW])


def test_non_finite_properties_keep_their_values() -> None:
    """C2"""
    batch = to_columns([{"text": "a", "properties": {"x": math.inf, "y": math.nan, "z": True}}], [NOW])
    assert dict(batch.column("properties").to_pylist()[0]) == {
        "x": "inf",
        "y": "nan",
        "z": "true",
        "JMS_JMSQ_Types": "x:double,y:double,z:boolean",
    }


def test_slices_are_small_and_whole() -> None:
    """C11: a large batch is sent in parts of a row group's size."""
    table = pa.table({"text": ["x" * 1024] * 30_000})
    parts = list(slices(table))
    assert sum(part.num_rows for part in parts) == 30_000
    assert max(part.nbytes for part in parts) <= 9 * 2**20
    assert list(slices(pa.table({"text": pa.array([], pa.string())}))) == []


def test_carried_bytes_counts_bodies_and_properties() -> None:
    """C11"""
    batch = normalise(to_columns([{"text": "ab", "properties": {"c": "def"}}, {"body": b"g"}], [NOW, NOW]), NOW, 100)
    assert carried_bytes(batch) == 7
