"""M5: the trace context in the properties of messages, given as columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.messages.properties import carried_context, has_context, with_context

MAP = pa.map_(pa.string(), pa.string())
CONTEXTS = ({"traceparent": "T"}, {"traceparent": "T", "tracestate": "S"})
ROW = st.none() | st.dictionaries(
    st.sampled_from(["a", "b", "traceparent", "tracestate"]), st.text(max_size=3), max_size=4
)


def stamped(properties: pa.Array, context: dict[str, str]) -> list[Any]:
    rows = pa.array(range(len(properties)))
    found = with_context(pa.record_batch({"n": rows, "properties": properties}), context)
    assert found.schema.names == ["n", "properties"]
    assert found.column("n").equals(rows)
    found.validate(full=True)
    return found.column("properties").to_pylist()


def expected(row: dict[str, str] | None, context: dict[str, str]) -> dict[str, str]:
    return dict(row) if row and has_context(row) else {**(row or {}), **context}


@given(st.lists(ROW, max_size=8), st.integers(0, 3), st.sampled_from(CONTEXTS))
def test_rows_of_a_map_without_a_context_get_it(
    rows: list[dict[str, str] | None], skip: int, context: dict[str, str]
) -> None:
    """M5: other entries and given contexts stay; also in a slice of a longer column."""
    array = pa.array([row if row is None else list(row.items()) for row in rows], MAP).slice(skip)
    assert [dict(row) for row in stamped(array, context)] == [expected(row, context) for row in rows[skip:]]


@given(st.lists(ROW, max_size=8), st.integers(0, 3), st.sampled_from(CONTEXTS))
def test_rows_of_a_struct_without_a_context_get_it(
    rows: list[dict[str, str] | None], skip: int, context: dict[str, str]
) -> None:
    """M5: a null value is a property that the message lacks."""
    names = sorted({name for row in rows for name in row or ()}) or ["a"]
    array = pa.array(rows, pa.struct([(name, pa.string()) for name in names])).slice(skip)
    found = [{name: value for name, value in dict(row).items() if value is not None} for row in stamped(array, context)]
    assert found == [expected(row, context) for row in rows[skip:]]


def test_table_without_properties_gets_the_column() -> None:
    """M5: also one whose properties are all null, of any type."""
    context = CONTEXTS[1]
    batch = pa.record_batch({"text": ["a", "b"]})
    both = [list(context.items())] * 2
    assert with_context(batch, context).column("properties").to_pylist() == both
    nulls = batch.append_column("properties", pa.nulls(2))
    assert with_context(nulls, context).column("properties").to_pylist() == both


def test_numbers_in_a_struct_keep_their_type() -> None:
    """M5, C2: they are typed properties."""
    array = pa.array([{"count": 7}, {"count": None}])
    found = with_context(pa.record_batch({"properties": array}), CONTEXTS[0]).column("properties")
    assert found.type.field("count").type == pa.int64()
    assert found.to_pylist() == [
        {"count": 7, "traceparent": "T", "tracestate": None},
        {"count": None, "traceparent": "T", "tracestate": None},
    ]


def test_properties_of_another_type_stay() -> None:
    """M5: the sender refuses them, with its own error."""
    batch = pa.record_batch({"properties": [1, 2]})
    assert with_context(batch, CONTEXTS[0]) is batch


@pytest.mark.parametrize("value", [None, 17, True, b"x"])
def test_only_text_is_a_context(value: object) -> None:
    """M5"""
    assert carried_context({"traceparent": value, "other": "x"}) == {}
    assert carried_context({"traceparent": "T", "tracestate": value}) == {"traceparent": "T"}
