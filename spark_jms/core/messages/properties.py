"""The properties of messages: typed text in a column of maps, columns of their own, operands of selectors, a trace context. Pure.

In the map of properties all values are text; its entry JMS_JMSQ_Types names the types other than string, as in
"amount:double,count:long". Byte, short, int and long are decimal digits with an optional minus; float and double what Java and
Python write, Infinity and NaN included (a float is rounded to 32 bits first); boolean is `true` or `false`. No Python loop runs
over rows, only over values that fail, distinct JMS_JMSQ_Types values and distinct names.

Features: C2, C7, C20, M5 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.messages.arrays import arrow_scalar
from spark_jms.core.messages.ranges import inside, plus, view
from spark_jms.core.messages.types import readable
from spark_jms.errors import MessageFormatError
from spark_jms.settings.fields import WHOLE_TYPES, DestinationKey, PromotedProperty

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1  # of a Java long
DELIVERY_MODES: Mapping[object, str] = {1: "NON_PERSISTENT", 2: "PERSISTENT"}  # as selectors see JMSDeliveryMode
TYPES_PROPERTY = "JMS_JMSQ_Types"
NUMBERS: Mapping[str, pa.DataType] = {
    "byte": pa.int64(),
    "short": pa.int64(),
    "int": pa.int64(),
    "long": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
}
PROPERTIES_COLUMN = "properties"
TYPES_ENTRY = "JMS_JMSQ_Types"
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
_UNKNOWN, _TEXT, _BOOLEAN, _LONG, _DOUBLE, _FLOAT = range(6)  # types in JMS_JMSQ_Types
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
_ARROW_TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
}
TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
_NAMES = (TRACEPARENT, TRACESTATE)
_MAP = pa.map_(pa.string(), pa.string())
_TYPES_KEY = arrow_scalar(TYPES_PROPERTY, pa.string())


class MapEntries:
    """The entries of a column of maps, flat: which row each belongs to, and which entry of a row has a name. Of one array of type
    map<string, string>. `keys`, `items` and `row_of` have one value for each entry."""

    def __init__(self, maps: Any) -> None:
        start, stop = maps.offsets[0].as_py(), maps.offsets[-1].as_py()
        self.rows = len(maps)
        self.keys = maps.keys.slice(start, stop - start)
        self.items = maps.items.slice(start, stop - start)
        self.row_of = pc.list_parent_indices(
            pa.ListArray.from_arrays(pc.subtract(maps.offsets, maps.offsets[0]), pa.nulls(stop - start))
        )
        self._present = maps.is_valid() if maps.null_count else None

    def of(self, chosen: Any) -> Any:
        """For every row the number of its chosen entry, or null: an Int64Array. The last of several counts. `chosen` has
        one bit for each entry."""
        entries = pc.indices_nonzero(chosen).view(pa.int64())
        rows = self.row_of.take(entries)
        if len(rows) > 1:
            last = pa.concat_arrays([pc.not_equal(rows[:-1], rows[1:]), pa.array([True])])
            if not pc.all(last).as_py():
                entries, rows = entries.filter(last), rows.filter(last)
        if len(rows) < self.rows:
            begins = view(rows)
            entries = pc.replace_with_mask(
                pa.nulls(self.rows, pa.int64()), inside(begins, plus(begins, 1), self.rows), entries
            )
        return entries if self._present is None else pc.if_else(self._present, entries, None)


# -- typed properties --------------------------------------------------------------------------------------------------
def declared_types(text: str) -> dict[str, str]:
    """name -> type, from the entry JMS_JMSQ_Types."""
    return dict(part.split(":", 1) for part in text.split(",") if ":" in part)


def decode_property(text: str | None, kind: str) -> object:
    """A property's value from its stored text. Raises ValueError."""
    if text is None or kind == "string":
        return text
    if kind == "boolean":
        if text not in ("true", "false"):
            raise ValueError(f"{text!r} is not a boolean")
        return text == "true"
    if kind in ("float", "double"):
        return float(text)
    if kind not in NUMBERS:
        raise ValueError(f"there is no property type {kind!r}")
    return int(text)


def check_typed_properties(properties: Any) -> None:
    """`properties` is a map array of text. Raises MessageFormatError, which names row, property and type.

    A sender may give the map of properties as it is stored, with the entry JMS_JMSQ_Types ("amount:double,count:long"), as a
    stream does that is piped on. A value that does not have its declared type would make the message undecodable for every
    reader, so the sender gets the error. Values are checked by columns; only a value that fails is looked at by itself.
    """
    if not pc.any(pc.equal(properties.keys, _TYPES_KEY)).as_py():
        return
    entries = MapEntries(properties)
    types = entries.items.take(entries.of(pc.equal(entries.keys, TYPES_PROPERTY))).dictionary_encode()
    types_of_entry = types.indices.take(entries.row_of)
    for code, text in enumerate(types.dictionary.to_pylist()):
        declared = pc.fill_null(pc.equal(types_of_entry, code), False)
        for name, kind in declared_types(text or "").items():
            chosen = pc.and_(declared, pc.equal(entries.keys, name))
            if not _all_read(entries.items.filter(chosen), kind):
                _refuse(entries, pc.indices_nonzero(chosen), name, kind)


def _all_read(values: Any, kind: str) -> bool:
    if kind == "string":
        return True
    if kind == "boolean":
        known = pc.is_in(values, pa.array(["true", "false"], values.type))
        return bool(pc.all(pc.or_(known, pc.is_null(values)), min_count=0).as_py())
    if kind not in NUMBERS:
        return False
    try:
        pc.cast(values, NUMBERS[kind])
    except pa.ArrowInvalid:
        return False
    return True


def _refuse(entries: MapEntries, chosen: Any, name: str, kind: str) -> None:
    """Raises the error for the first value that does not read; there may be none, since Arrow reads less than Python."""
    for entry in chosen.tolist():
        text = entries.items[entry].as_py()
        try:
            decode_property(text, kind)
        except ValueError as error:
            raise MessageFormatError(
                f"row {entries.row_of[entry]}: property {name!r} is {text!r}, but {TYPES_PROPERTY} declares it as {kind!r}: "
                "give the value in that type, or leave the type out"
            ) from error


# -- promoted properties -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PromotedRows:
    """The promoted columns of some rows, in the order of `PromotedColumns.fields`. `incomplete`: those that lack the value of a
    message that has the property."""

    columns: list[pa.Array]
    incomplete: frozenset[str]


@dataclass(frozen=True)
class PromotedColumns:
    """The promoted properties of one destination: typed columns of its table beside the map of properties.

    A column repeats what the map says; the map stays the truth. So a selector's answer, and the order of a sorted destination,
    must be the same with the column and without it, whenever the property was promoted. The rule that makes it so:

        a column is *complete* in a file     it has the value of every message of the file that has the property
        the column of a file is complete     the file's statistics have its number of NULLs (Delta's nullCount)
        a file has such statistics           selectors and destination keys read the column, and skip the file by minimum and
                                             maximum
        it has none                          they read the map of properties

    A file has none when it was written before the promotion (or after its end), or when one of its messages has a value that the
    column cannot take. The column takes the value that a selector sees: whole numbers of any of the four types where they fit,
    float and double where the column has them exactly, text and booleans. A long is no double, as in selectors; text is no
    number. Compaction writes the columns again, by the declaration of that moment.
    """

    properties: tuple[PromotedProperty, ...] = ()

    @staticmethod
    def of(written: Sequence[str]) -> PromotedColumns:
        """From the stored setting."""
        return _parsed(tuple(written))

    def __bool__(self) -> bool:
        return bool(self.properties)

    @property
    def fields(self) -> list[pa.Field]:
        return [pa.field(each.name, _ARROW_TYPES[each.type]) for each in self.properties]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.properties)

    def sorted_by(self, keys: Iterable[DestinationKey]) -> frozenset[str]:
        """The properties whose columns have the values that these keys sort by."""
        types = {each.name: each.type for each in self.properties}
        return frozenset(types) - {key.name for key in keys if not _fits_key(types.get(key.name, ""), key.type)}

    def read(self, rows: pa.RecordBatch) -> PromotedRows:
        """From the map of properties of stored rows."""
        values = PropertyValues(rows.column(PROPERTIES_COLUMN))
        columns, incomplete = [], set()
        for each in self.properties:
            column = _column(values.operand(each.name), each.type)
            column = pa.nulls(rows.num_rows, _ARROW_TYPES[each.type]) if column is None else column
            if column.null_count > values.texts(each.name).null_count:
                incomplete.add(each.name)
            columns.append(column)
        return PromotedRows(columns, frozenset(incomplete))


@lru_cache(maxsize=256)
def _parsed(written: tuple[str, ...]) -> PromotedColumns:
    return PromotedColumns(tuple(map(PromotedProperty.parse, written)))


NOT_PROMOTED = PromotedColumns()


def _fits_key(column: str, key: str) -> bool:
    return column == key or (column in WHOLE_TYPES and key in WHOLE_TYPES)


def _column(value: Operand, kind: str) -> Any:
    """What a column of this type takes of the values that selectors see; None: nothing."""
    if kind == "string":
        return None if value.texts is None else pc.cast(value.texts, pa.string())
    if kind == "boolean":
        return value.booleans
    if kind == "double":
        return value.doubles
    if kind == "float":
        return None if value.doubles is None else _exact_floats(value.doubles)
    return None if value.longs is None else _fitting(value.longs, _ARROW_TYPES[kind])


def _exact_floats(doubles: Any) -> Any:
    floats = pc.cast(doubles, pa.float32(), safe=False)
    same = pc.or_(pc.equal(pc.cast(floats, pa.float64()), doubles), pc.is_nan(doubles))
    return pc.if_else(same, floats, pa.scalar(None, pa.float32()))


def _fitting(longs: Any, kind: pa.DataType) -> Any:
    if kind == pa.int64():
        return longs
    most = 2 ** (kind.bit_width - 1)
    fits = pc.and_(pc.greater_equal(longs, -most), pc.less(longs, most))
    return pc.cast(pc.if_else(fits, longs, pa.scalar(None, pa.int64())), kind)


# -- operands of selectors ---------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Operand:
    """A value for each row, or one for all: in each lane an Arrow array or scalar, or None where no row has that type. A row
    has a value in one lane at most; in none it is NULL.

    One property may have a different type in every message, so an operand is a set of lanes (longs, doubles, texts, booleans); a
    literal is one lane that is a scalar. A value that does not read as its declared type, or whose declared type is unknown, is
    NULL.
    """

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
    """A column of `PromotedColumns`."""
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


# -- trace contexts ----------------------------------------------------------------------------------------------------
def carried_context(properties: Mapping[str, Any]) -> dict[str, str]:
    """The trace context of a message; {} when it has none."""
    return {name: properties[name] for name in _NAMES if isinstance(properties.get(name), str)}


def has_context(properties: Mapping[str, Any]) -> bool:
    return any(name in properties for name in _NAMES)


def with_context(batch: pa.RecordBatch, context: Mapping[str, str]) -> pa.RecordBatch:
    """Columns of messages, where those without a trace context get this one. Properties that are neither a map nor a struct stay as
    they are: the sender refuses them later.

    The names of W3C's trace context are identifiers, so they are property names of JMS, and selectors, `columns` and Spark can use
    them. A message keeps the context that it was given; baggage is not carried.
    """
    rows = batch.num_rows
    if "properties" not in batch.schema.names:
        return batch.append_column("properties", _in_each(context, rows))
    place = batch.schema.get_field_index("properties")
    given = batch.column(place)
    if given.null_count == rows:
        found = _in_each(context, rows)
    elif pa.types.is_struct(given.type):
        found = _struct(given, context)
    elif pa.types.is_map(given.type):
        found = _map(given, context)
    else:
        return batch
    return batch.set_column(place, "properties", found)


def _in_each(context: Mapping[str, str], rows: int) -> pa.MapArray:
    offsets = pa.array(range(0, (rows + 1) * len(context), len(context)), pa.int32())
    keys, values = (pa.array(list(part) * rows, pa.string()) for part in (context.keys(), context.values()))
    return pa.MapArray.from_arrays(offsets, keys, values)


def _struct(given: pa.StructArray, context: Mapping[str, str]) -> pa.StructArray:
    names = [given.type.field(number).name for number in range(given.type.num_fields)]
    columns = dict(zip(names, given.flatten(), strict=True))
    known = {name: pc.cast(columns[name], pa.string()) for name in _NAMES if name in columns}
    has = pa.repeat(pa.scalar(False), len(given))
    for column in known.values():
        has = pc.or_(has, column.is_valid())
    for name in _NAMES:
        before = known.get(name, pa.nulls(len(given), pa.string()))
        columns[name] = pc.if_else(has, before, pa.scalar(context.get(name), pa.string()))
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))


def _map(given: pa.MapArray, context: Mapping[str, str]) -> pa.MapArray:
    """The new entries behind those of their rows, by kernels."""
    maps = given.cast(_MAP)
    entries = MapEntries(maps)
    missing = entries.of(pc.is_in(entries.keys, pa.array(_NAMES))).is_null()
    more = pc.indices_nonzero(missing).cast(pa.int64())
    order = pc.sort_indices(pa.concat_arrays([entries.row_of.cast(pa.int64()), *[more] * len(context)]))  # it is stable
    keys, items = [entries.keys], [entries.items]
    for name, value in context.items():
        keys.append(pa.repeat(pa.scalar(name, pa.string()), len(more)))
        items.append(pa.repeat(pa.scalar(value, pa.string()), len(more)))
    added = pc.multiply(pc.cumulative_sum(pc.cast(missing, pa.int32())), len(context))
    begins = pc.subtract(maps.offsets, maps.offsets[0])
    ends = pc.add(begins[1:], pc.cast(added, pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cast(ends, pa.int32())])
    return pa.MapArray.from_arrays(offsets, pa.concat_arrays(keys).take(order), pa.concat_arrays(items).take(order))
