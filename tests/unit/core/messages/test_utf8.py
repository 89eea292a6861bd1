"""Text whose bytes are not UTF-8: a sender is refused, a reader sees it (C2, C20)."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.messages.columns import COLUMNS, PROVIDER_COLUMNS, normalise
from spark_jms.core.messages.types import first_invalid, is_valid, map_column, map_rows, readable, readable_rows
from spark_jms.errors import MessageFormatError

BAD = b"h\xffi"
TEXTS = [name for name, kind in COLUMNS.items() if kind == pa.string() and name not in PROVIDER_COLUMNS]
MAP = pa.map_(pa.string(), pa.string())
DATA = st.one_of(st.none(), st.binary(max_size=6), st.text(max_size=6).map(str.encode))


def text_of(*values: bytes | None) -> pa.Array:
    """As Spark's CAST(value AS STRING) makes it."""
    return pa.array(values, pa.binary()).view(pa.string())


def map_of(names: pa.Array, values: pa.Array) -> pa.Array:
    return pa.MapArray.from_arrays(pa.array(range(len(names) + 1), pa.int32()), names, values)


def refused(**columns: pa.Array) -> str:
    rows = len(next(iter(columns.values())))
    columns = {"text": pa.array(["a"] * rows), **columns}
    with pytest.raises(MessageFormatError) as caught:
        normalise(pa.RecordBatch.from_pydict(columns), 1, 10**6)
    return str(caught.value)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), "dictionary"], ids=str)
@pytest.mark.parametrize("name", TEXTS)
def test_sender_is_refused_by_row_and_column(name: str, kind: pa.DataType | str) -> None:
    """C2, C20: every column of text, in every layout of Arrow."""
    texts = text_of(b"a", None, b"\xc3\xa4", BAD, b"b")
    texts = texts.dictionary_encode() if kind == "dictionary" else texts.cast(kind)
    error = refused(**{name: texts})
    assert error.startswith(f"row 3: column {name!r} is b'h\\xffi', which is not UTF-8: ")
    assert refused(**{name: texts.slice(2)}).startswith("row 1: ")


def test_sender_of_text_is_told_to_send_bytes() -> None:
    """C20: what to do."""
    assert refused(text=text_of(BAD)).endswith("send the bytes as `body`")


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_property_is_refused_by_row_and_name(kind: pa.DataType) -> None:
    """C2, C20: names and values of a map, and values of a struct; slices count from their own first row."""
    wide = pa.map_(kind, kind)
    value = map_of(pa.array(["a", "b", "c"]), text_of(b"x", BAD, b"y")).cast(wide)
    said = "column 'properties': the value of property 'b' is b'h\\xffi', which is not UTF-8"
    assert refused(properties=value).startswith(f"row 1: {said}")
    assert refused(properties=value.slice(1)).startswith(f"row 0: {said}")
    name = map_of(text_of(b"a", b"b", BAD), pa.array(["x", "y", "z"])).cast(wide)
    assert refused(properties=name).startswith("row 2: column 'properties': the name is b'h\\xffi'")
    rows = pa.RecordBatch.from_pydict({"text": pa.array(["a"] * 3), "properties": name})
    assert normalise(rows.slice(0, 2), 1, 100).num_rows == 2
    struct = pa.StructArray.from_arrays([pa.array([1, 2]), text_of(b"x", BAD).cast(kind)], ["n", "b"])
    assert refused(properties=struct).startswith(f"row 1: {said}")


@given(st.lists(DATA))
def test_readable_text_is_valid_and_the_rest_stays(values: list[bytes | None]) -> None:
    """C20: in one chunk and in several."""
    array = text_of(*values)
    for column in (array, pa.chunked_array([array.slice(0, 1), array.slice(1)])):
        shown = readable(column)
        assert is_valid(shown)
        assert shown.type == pa.string()
        assert shown.to_pylist() == [None if v is None else v.decode(errors="backslashreplace") for v in values]
    bad = [n for n, value in enumerate(values) if value is not None and not is_valid(text_of(value))]
    found = first_invalid(array)
    assert (None if found is None else found.row) == (bad[0] if bad else None)


@given(st.lists(st.one_of(st.none(), st.dictionaries(st.binary(max_size=4), DATA, max_size=3))), st.integers(0, 3))
def test_moved_properties_keep_their_bytes(rows: list[dict[bytes, bytes | None] | None], start: int) -> None:
    """C20, C18: rows of Python and back, of slices and with nulls."""
    binary = pa.map_(pa.binary(), pa.binary())
    given_rows = pa.array([None if row is None else list(row.items()) for row in rows], binary).slice(start)
    stored = map_column(
        [
            None if row is None else {_escaped(name): None if v is None else _escaped(v) for name, v in row}
            for row in given_rows.to_pylist()
        ]
    )
    assert stored.type == MAP
    assert stored.cast(binary).equals(pa.array(given_rows.to_pylist(), binary))
    again = map_column(map_rows(stored))
    assert again.cast(binary).equals(stored.cast(binary))
    assert is_valid(readable(stored))
    assert is_valid(readable_rows(pa.RecordBatch.from_arrays([stored], names=["properties"])))


def _escaped(data: bytes) -> str:
    return data.decode(errors="surrogateescape")
