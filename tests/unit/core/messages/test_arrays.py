"""Arrays and scalars made from Python's values without pandas (C1, C5)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.messages.arrays import arrow_array, arrow_scalar, empty_table, repeated

INTEGERS = {pa.int8(): 7, pa.int16(): 15, pa.int32(): 31, pa.int64(): 63}
VALUES = st.one_of(
    *(
        st.tuples(st.just(kind), st.lists(st.none() | st.integers(-(2**bits), 2**bits - 1)))
        for kind, bits in INTEGERS.items()
    ),
    st.tuples(st.just(pa.uint32()), st.lists(st.none() | st.integers(0, 2**32 - 1))),
    st.tuples(st.just(pa.float64()), st.lists(st.none() | st.floats(allow_nan=False))),
    st.tuples(st.just(pa.bool_()), st.lists(st.none() | st.booleans())),
    st.tuples(st.just(pa.string()), st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"])))),
    st.tuples(st.just(pa.binary()), st.lists(st.none() | st.binary())),
)


@given(VALUES)
def test_array_is_the_one_that_pyarrow_makes(typed: tuple[pa.DataType, list[Any]]) -> None:
    """C5: for each type, with nulls in any place."""
    kind, values = typed
    made, expected = arrow_array(values, kind), pa.array(values, kind)
    made.validate(full=True)
    assert made.equals(expected)
    assert made.null_count == expected.null_count
    assert [arrow_scalar(value, kind) for value in values] == list(expected)


def test_values_that_do_not_fit_are_refused() -> None:
    """C5: as the machine's arrays refuse them; nothing is cut off."""
    with pytest.raises(OverflowError):
        arrow_array([2**31], pa.int32())
    with pytest.raises(TypeError):
        arrow_array(["1"], pa.int64())
    with pytest.raises(KeyError):
        arrow_array([1], pa.timestamp("us"))


def test_repeated_value_and_empty_table() -> None:
    """C5: a column of one value, and a table without rows."""
    assert repeated("a", pa.string(), 3).to_pylist() == ["a", "a", "a"]
    assert repeated(None, pa.int32(), 2).to_pylist() == [None, None]
    schema = pa.schema([("a", pa.int64()), ("b", pa.map_(pa.string(), pa.string()))])
    assert empty_table(schema).equals(schema.empty_table())
    assert empty_table(schema).column("a").type == pa.int64()
