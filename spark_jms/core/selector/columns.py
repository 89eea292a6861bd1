"""The columns of a message table as operands of a selector (feature C7).

One property may have a different type in every message, so an operand is a set of lanes (longs, doubles, texts,
booleans) with one kind per row; a literal is lanes of length one that broadcast. No Python loop runs over rows, only
over distinct `JMS_JMSQ_Types` values and over distinct names.

Text of typed properties: byte, short, int and long are decimal digits with an optional minus; float and double what
Java and Python write, Infinity and NaN included (a float is rounded to 32 bits first); boolean is `true` or `false`.
A value that does not read as its declared type, or whose declared type is unknown, is NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.selector.matching import DELIVERY_MODES
from spark_jms.core.selector.tree import LONG_MAX, LONG_MIN

Bits = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]

NULL, TEXT, BOOLEAN, LONG, DOUBLE, _FLOAT = range(6)  # _FLOAT only while a property is read
HEADER_COLUMNS = (
    "JMSMessageID",
    "JMSTimestamp",
    "JMSPriority",
    "JMSDeliveryMode",
    "JMSCorrelationID",
    "JMSType",
    "JMSXGroupID",
    "JMSXGroupSeq",
)
PROPERTIES_COLUMN = "properties"
TYPES_ENTRY = "JMS_JMSQ_Types"
_KINDS = {
    "boolean": BOOLEAN,
    "byte": LONG,
    "short": LONG,
    "int": LONG,
    "long": LONG,
    "float": _FLOAT,
    "double": DOUBLE,
    "string": TEXT,
}
_LONG_TEXT = "^-?[0-9]{1,19}$"
_DOUBLE_TEXT = r"^[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf|infinity|nan))$"


@dataclass(frozen=True, slots=True)
class Operand:
    """One value per row (or one for all rows): `kinds` says which lane holds it; the other lanes are undefined there."""

    kinds: npt.NDArray[np.int8]
    longs: npt.NDArray[np.int64] | None = None
    doubles: npt.NDArray[np.float64] | None = None
    texts: Any = None  # pyarrow string array, or str for a literal
    booleans: Bits | None = None

    def numbers(self) -> Bits:
        return self.kinds >= LONG

    def as_doubles(self) -> npt.NDArray[np.float64]:
        """Java's widening of the numbers."""
        if self.longs is None:
            assert self.doubles is not None
            return self.doubles
        if self.doubles is None:
            return self.longs.astype(np.float64)
        return np.where(self.kinds == LONG, self.longs.astype(np.float64), self.doubles)


class Rows:
    """One batch: reads each name once, and the map of properties once."""

    def __init__(self, batch: pa.RecordBatch | None, count: int) -> None:
        self.batch, self.count = batch, count
        self._operands: dict[str, Operand] = {}
        self._entries: _Entries | None = None

    def operand(self, name: str) -> Operand:
        if name not in self._operands:
            self._operands[name] = self._read(name)
        return self._operands[name]

    def _read(self, name: str) -> Operand:
        assert self.batch is not None
        if name not in HEADER_COLUMNS:
            if self._entries is None:
                self._entries = _Entries(self.batch.column(PROPERTIES_COLUMN))
            return self._entries.operand(name)
        column = _plain(self.batch.column(name))
        if name == "JMSDeliveryMode":
            return _delivery_mode(column)
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        if pa.types.is_integer(column.type):
            kinds = np.where(valid, LONG, NULL).astype(np.int8)
            return Operand(kinds, longs=pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64))
        if _is_text(column.type):
            return Operand(np.where(valid, TEXT, NULL).astype(np.int8), texts=column)
        if pa.types.is_null(column.type):
            return Operand(np.full(self.count, NULL, np.int8))
        raise ValueError(f"column {name} is {column.type}, a selector needs an integer or string column")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _plain(column: Any) -> Any:
    """Without dictionary encoding and string views, which few kernels accept."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.string()) if pa.types.is_string_view(column.type) else column


def _delivery_mode(column: Any) -> Operand:
    """JMS compares the delivery mode with the strings PERSISTENT and NON_PERSISTENT; it is stored as 2 and 1."""
    names = list(DELIVERY_MODES.values())
    texts = pa.array(names).take(pc.index_in(column, pa.array(list(DELIVERY_MODES), column.type)))
    valid = texts.is_valid().to_numpy(zero_copy_only=False)
    return Operand(np.where(valid, TEXT, NULL).astype(np.int8), texts=texts)


class _Entries:
    """The map of properties of one batch, as flat entries: which row and which key each belongs to."""

    def __init__(self, column: Any) -> None:
        offsets = column.offsets.to_numpy()
        start, stop = int(offsets[0]), int(offsets[-1])
        self.count = len(column)
        keys = _plain(column.keys.slice(start, stop - start)).dictionary_encode()
        self._codes = keys.indices.to_numpy(zero_copy_only=False)
        self._names = {name: code for code, name in enumerate(keys.dictionary.to_pylist())}
        self._items = _plain(column.items.slice(start, stop - start))
        self._row_of_entry = np.repeat(np.arange(self.count), np.diff(offsets))
        self._absent = column.is_null().to_numpy(zero_copy_only=False)
        types = self._texts(TYPES_ENTRY).dictionary_encode()
        self._declared = [_declared_types(text) for text in types.dictionary.to_pylist()]
        self._declared_of_row = pc.fill_null(types.indices, -1).to_numpy(zero_copy_only=False)

    def _texts(self, name: str) -> Any:
        """The text of one property for every row, null for rows without it; the last of two equal keys counts."""
        code = self._names.get(name)
        if code is None:
            return pa.nulls(self.count, self._items.type)
        entries = np.flatnonzero(self._codes == code)
        index = np.full(self.count, -1, np.int64)
        index[self._row_of_entry[entries]] = entries
        return self._items.take(pa.array(index, mask=(index < 0) | self._absent))

    def operand(self, name: str) -> Operand:
        texts = self._texts(name)
        kind_of = np.array([types.get(name, TEXT) for types in self._declared] + [TEXT], np.int8)
        kinds = kind_of[self._declared_of_row]
        kinds[texts.is_null().to_numpy(zero_copy_only=False)] = NULL
        lanes: dict[int, Array] = {}
        for kind in (BOOLEAN, LONG, DOUBLE, _FLOAT):
            chosen = kinds == kind
            if chosen.any():
                _read_lane(kind, texts, chosen, kinds, lanes)
        return Operand(kinds, lanes.get(LONG), lanes.get(DOUBLE), texts, lanes.get(BOOLEAN))


def _read_lane(kind: int, texts: Any, chosen: Bits, kinds: npt.NDArray[np.int8], lanes: dict[int, Array]) -> None:
    """Read the chosen rows as `kind` into its lane; rows that do not read become NULL."""
    own, reader, dtype = _READERS[kind]
    values = reader(texts if chosen.all() else texts.filter(pa.array(chosen)))
    lane = lanes.setdefault(own, np.zeros(len(kinds), dtype))
    lane[chosen] = pc.fill_null(values, pa.scalar(0).cast(values.type)).to_numpy(zero_copy_only=False)
    kinds[chosen] = np.where(values.is_valid().to_numpy(zero_copy_only=False), own, NULL)


def _matching(texts: Any, pattern: str) -> Any:
    """The texts that match; null for the others."""
    return pc.if_else(pc.match_substring_regex(texts, pattern), texts, pa.scalar(None, texts.type))


def _read_booleans(texts: Any) -> Any:
    return pc.if_else(pc.is_in(texts, pa.array(["true", "false"], texts.type)), pc.equal(texts, "true"), None)


def _read_longs(texts: Any) -> Any:
    texts = _matching(texts, _LONG_TEXT)
    try:
        return texts.cast(pa.int64())
    except pa.ArrowInvalid:  # 19 digits that do not fit a long
        wide = texts.cast(pa.decimal128(19, 0))
        fits = pc.and_(pc.greater_equal(wide, _wide(LONG_MIN)), pc.less_equal(wide, _wide(LONG_MAX)))
        return pc.if_else(fits, wide, pa.scalar(None, wide.type)).cast(pa.int64())


def _wide(value: int) -> Any:
    return pa.scalar(str(value)).cast(pa.decimal128(19, 0))


def _read_doubles(texts: Any) -> Any:
    return _matching(texts, _DOUBLE_TEXT).cast(pa.float64())


def _read_floats(texts: Any) -> Any:
    return _read_doubles(texts).cast(pa.float32()).cast(pa.float64())


_READERS: Mapping[int, tuple[int, Callable[[Any], Any], type]] = {
    BOOLEAN: (BOOLEAN, _read_booleans, np.bool_),
    LONG: (LONG, _read_longs, np.int64),
    DOUBLE: (DOUBLE, _read_doubles, np.float64),
    _FLOAT: (DOUBLE, _read_floats, np.float64),
}


@lru_cache(maxsize=1024)
def _declared_types(text: str | None) -> Mapping[str, int]:
    """`amount:double,count:long` as kinds; a name that is not in it is a string, an unknown type makes it NULL."""
    entries = (entry.rpartition(":") for entry in (text or "").split(",") if ":" in entry)
    return {name.strip(): _KINDS.get(kind.strip(), NULL) for name, _, kind in entries}
