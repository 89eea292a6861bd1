"""Arrow of other libraries: every layout of a value is taken, and is stored as the plain one (C2)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_jms.core.messages.columns import COLUMNS, IN_ARROW, PROVIDER_COLUMNS, check_sendable, normalise
from spark_jms.core.messages.types import plain, plain_type
from spark_jms.errors import MessageFormatError

TEXT: list[pa.DataType] = [pa.string(), pa.large_string(), pa.string_view()]
BYTES: list[pa.DataType] = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(3)]
VALUES = {pa.string(): ["one", None, "two"], pa.binary(): [b"one", None, b"two"], pa.int32(): [1, None, 2]}


def layouts(array: pa.Array) -> list[pa.Array]:
    """The same values as they are, as a dictionary, in runs, and as a type with a name of its own."""
    dictionary = pa.DictionaryArray.from_arrays(pa.array([0, None, 2], pa.int8()), array)
    found = [array, dictionary, pa.RunEndEncodedArray.from_arrays(pa.array([1, 2, 3], pa.int16()), array)]
    if pa.types.is_string(array.type):
        found += [pa.ExtensionArray.from_storage(pa.json_(), array)]
    return found


def all_layouts(want: pa.DataType) -> list[pa.Array]:
    kinds = TEXT if want == pa.string() else BYTES if want == pa.binary() else [want]
    return [each for kind in kinds for each in layouts(pa.array(VALUES[want], kind))]


ARRAYS = [(want, array) for want in VALUES for array in all_layouts(want)]


def stored(**columns: Any) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_pydict({"text": pa.array(["t"] * 3)} | columns)
    check_sendable(batch.schema, IN_ARROW)
    return normalise(batch, 1, 1000)


@pytest.mark.parametrize(("want", "array"), ARRAYS, ids=lambda value: str(getattr(value, "type", value))[:60])
def test_layout_is_taken(want: pa.DataType, array: pa.Array) -> None:
    """C2: of every column of that type, also of a slice."""
    assert plain_type(array.type) == want == plain(array).type
    names = [n for n, kind in COLUMNS.items() if kind == want and n not in (*PROVIDER_COLUMNS, "JMSDeliveryMode")]
    for name in names:
        more = {"text": pa.nulls(3)} if name in ("text", "body") else {}
        column = stored(**{**more, name: array}).column(name)
        assert column.type == want
        assert [value or 4 for value in column.to_pylist()] == [value or 4 for value in VALUES[want]]
        sliced = pa.RecordBatch.from_pydict({"text": pa.array(["t"] * 3)} | more | {name: array}).slice(2)
        assert normalise(sliced, 1, 1000).column(name).to_pylist() == VALUES[want][2:]


@pytest.mark.parametrize("kind", [*TEXT, *(pa.dictionary(pa.int8(), kind) for kind in TEXT)], ids=str)
def test_properties_are_taken(kind: pa.DataType) -> None:
    """C2: in a map and in a struct."""
    maps = pa.array([[("a", "x")], None, [("a", "y"), ("b", None)]], pa.map_(pa.string(), pa.string()))
    wide = pa.MapArray.from_arrays(
        maps.offsets, as_kind(maps.keys, kind), as_kind(maps.items, kind), mask=maps.is_null()
    )
    assert stored(properties=wide).column("properties").to_pylist() == maps.to_pylist()
    sliced = pa.RecordBatch.from_pydict({"text": pa.array(["t"] * 3), "properties": wide}).slice(1)
    assert normalise(sliced, 1, 1000).column("properties").to_pylist() == maps.to_pylist()[1:]
    texts = as_kind(pa.array(["x", None, "y"]), kind)
    struct = pa.StructArray.from_arrays([texts, pa.array([1, 2, 3])], ["a", "n"], mask=pa.array([False, True, False]))
    found = stored(properties=struct).column("properties").to_pylist()
    assert [dict(row).get("a") for row in found] == ["x", None, "y"]


def as_kind(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_dictionary(kind):
        return texts.cast(kind)
    encoded = texts.dictionary_encode()
    return pa.DictionaryArray.from_arrays(
        encoded.indices.cast(kind.index_type), encoded.dictionary.cast(kind.value_type)
    )


@pytest.mark.parametrize(
    ("columns", "advice"),
    [
        ({"text": [1]}, "column 'text' is int64, but must be string: column.cast(pa.string())"),
        ({"text": ["a"], "JMSPriority": ["4"]}, "but must be int: column.cast(pa.int32())"),
        ({"text": ["a"], "JMSExpiration": ["4"]}, "but must be bigint: column.cast(pa.int64())"),
        ({"body": ["a"]}, "but must be binary: column.cast(pa.binary())"),
        ({"text": ["a"], "properties": ["a"]}, "column.cast(pa.map_(pa.string(), pa.string()))"),
    ],
)
def test_other_types_are_refused_with_a_cast_of_arrow(columns: dict[str, Any], advice: str) -> None:
    """C2: SQL would not help the sender of an Arrow table."""
    batch = pa.RecordBatch.from_pydict({name: pa.array(values) for name, values in columns.items()})
    with pytest.raises(MessageFormatError) as caught:
        check_sendable(batch.schema, IN_ARROW)
    assert str(caught.value).endswith(advice)
    assert "cast(col" not in str(caught.value)
