"""The columns of a message table as operands of a selector.

One property may have a different type in every message, so an operand is a set of lanes (longs, doubles, texts,
booleans), each of which is null in the rows whose value has another type; a literal is one lane that is a scalar. No Python
loop runs over rows, only over distinct `JMS_JMSQ_Types` values and over distinct names.

Text of typed properties: byte, short, int and long are decimal digits with an optional minus; float and double what
Java and Python write, Infinity and NaN included (a float is rounded to 32 bits first); boolean is `true` or `false`.
A value that does not read as its declared type, or whose declared type is unknown, is NULL.

Features: C7 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.map_entries import MapEntries
from spark_jms.core.selector.matching import DELIVERY_MODES
from spark_jms.core.selector.tree import LONG_MAX, LONG_MIN
from spark_jms.core.utf8 import readable

_UNKNOWN, _TEXT, _BOOLEAN, _LONG, _DOUBLE, _FLOAT = range(6)  # types in JMS_JMSQ_Types
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
    "boolean": _BOOLEAN,
    "byte": _LONG,
    "short": _LONG,
    "int": _LONG,
    "long": _LONG,
    "float": _FLOAT,
    "double": _DOUBLE,
    "string": _TEXT,
}
_LONG_TEXT = "^-?[0-9]{1,19}$"
_DOUBLE_TEXT = r"^[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|(?i:inf|infinity|nan))$"


@dataclass(frozen=True, slots=True)
class Operand:
    """A value for each row, or one for all: in each lane an Arrow array or scalar, or None where no row has that type. A row
    has a value in one lane at most; in none it is NULL."""

    longs: Any = None
    doubles: Any = None
    texts: Any = None
    booleans: Any = None

    def lanes(self) -> list[Any]:
        return [lane for lane in (self.longs, self.doubles, self.texts, self.booleans) if lane is not None]

    def known(self) -> Any:
        """Where there is a value."""
        return reduce(pc.or_, map(pc.is_valid, self.lanes()), pa.scalar(False))

    def as_doubles(self) -> Any:
        """Java's widening of the numbers; None when there are none."""
        if self.longs is None:
            return self.doubles
        widened = pc.cast(self.longs, pa.float64(), safe=False)
        return widened if self.doubles is None else pc.coalesce(self.doubles, widened)


class Rows:
    """One batch: reads each name once, and the map of properties once. The properties in `promoted` are columns of it."""

    def __init__(self, batch: pa.RecordBatch | None, count: int, promoted: Collection[str] = ()) -> None:
        self.batch, self.count = batch, count
        self._promoted = promoted
        self._operands: dict[str, Operand] = {}
        self._properties: PropertyValues | None = None

    def operand(self, name: str) -> Operand:
        if name not in self._operands:
            self._operands[name] = self._read(name)
        return self._operands[name]

    def _read(self, name: str) -> Operand:
        assert self.batch is not None
        if name in self._promoted:
            return _promoted_operand(self.batch.column(name))
        if name not in HEADER_COLUMNS:
            if self._properties is None:
                self._properties = PropertyValues(self.batch.column(PROPERTIES_COLUMN))
            return self._properties.operand(name)
        column = _plain(self.batch.column(name))
        if name == "JMSDeliveryMode":
            return _delivery_mode(column)
        if pa.types.is_integer(column.type):
            return Operand(longs=pc.cast(column, pa.int64()))
        if _is_text(column.type):
            return Operand(texts=column)
        if pa.types.is_null(column.type):
            return Operand()
        raise ValueError(f"column {name} is {column.type}, a selector needs an integer or string column")


def _promoted_operand(column: Any) -> Operand:
    """A column of core/promoted_columns.py."""
    if pa.types.is_integer(column.type):
        return Operand(longs=pc.cast(column, pa.int64()))
    if pa.types.is_floating(column.type):
        return Operand(doubles=pc.cast(column, pa.float64()))
    return Operand(booleans=column) if pa.types.is_boolean(column.type) else Operand(texts=_plain(column))


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
    return Operand(texts=pa.array(names).take(pc.index_in(column, pa.array(list(DELIVERY_MODES), column.type))))


class PropertyValues:
    """The map of properties of one batch, as selectors see it."""

    def __init__(self, column: Any) -> None:
        self._entries = MapEntries(column)
        keys = _plain(self._entries.keys).dictionary_encode()
        self._codes = keys.indices
        self._names = {name: code for code, name in enumerate(readable(keys.dictionary).to_pylist())}
        self._items = _plain(self._entries.items)
        types = self.texts(TYPES_ENTRY).dictionary_encode()
        self._declared = [_declared_types(text) for text in readable(types.dictionary).to_pylist()]
        self._declared_of_row = pc.fill_null(types.indices, len(self._declared))

    def texts(self, name: str) -> Any:
        """The text of one property for every row, null for rows without it."""
        code = self._names.get(name)
        if code is None:
            return pa.nulls(self._entries.rows, self._items.type)
        return self._items.take(self._entries.of(pc.equal(self._codes, code)))

    def operand(self, name: str) -> Operand:
        texts = self.texts(name)
        types = [*(declared.get(name, _TEXT) for declared in self._declared), _TEXT]
        type_of_row = pa.array(types, pa.int8()).take(self._declared_of_row)
        lanes: dict[str, Any] = {}
        for kind in set(types) - {_UNKNOWN}:
            lane, reader = _READERS[kind]
            chosen = pc.equal(type_of_row, kind)
            values = reader(texts if pc.all(chosen).as_py() else pc.if_else(chosen, texts, None))
            lanes[lane] = pc.coalesce(lanes[lane], values) if lane in lanes else values
        return Operand(**lanes)


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


_READERS: Mapping[int, tuple[str, Callable[[Any], Any]]] = {
    _TEXT: ("texts", lambda texts: texts),
    _BOOLEAN: ("booleans", _read_booleans),
    _LONG: ("longs", _read_longs),
    _DOUBLE: ("doubles", _read_doubles),
    _FLOAT: ("doubles", _read_floats),
}


@lru_cache(maxsize=1024)
def _declared_types(text: str | None) -> Mapping[str, int]:
    """`amount:double,count:long` as kinds; a name that is not in it is a string, an unknown type makes it NULL."""
    entries = (entry.rpartition(":") for entry in (text or "").split(",") if ":" in entry)
    return {name.strip(): _KINDS.get(kind.strip(), _UNKNOWN) for name, _, kind in entries}
