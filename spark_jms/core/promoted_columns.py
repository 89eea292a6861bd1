"""Promoted properties: typed columns of a destination's table beside the map of properties. Pure.

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

Features: C7 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.selector.columns import PROPERTIES_COLUMN, Operand, PropertyValues
from spark_jms.settings.destination_key import DestinationKey
from spark_jms.settings.promoted_property import WHOLE_TYPES, PromotedProperty

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


@dataclass(frozen=True)
class PromotedRows:
    """The promoted columns of some rows, in the order of `PromotedColumns.fields`. `incomplete`: those that lack the value of a
    message that has the property."""

    columns: list[pa.Array]
    incomplete: frozenset[str]


@dataclass(frozen=True)
class PromotedColumns:
    """The promoted properties of one destination."""

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
