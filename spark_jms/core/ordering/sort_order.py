"""The order in which a destination delivers: FIFO, by its destination keys, or units of work together. Pure.

A destination without keys is FIFO: messages come in the order of their sequences. With keys, the first key decides, then the
next, and last the sequence. Messages that lack a key come after the others. Within a unit of order the order of sending
stays: a message comes no earlier than those of its unit that were sent before it, whatever its own keys say.

A key is written `JMSPriority descending` or, for a user property, `amount descending double`. JMSMessageID stands for the
order of arrival, so `JMSMessageID descending` is LIFO; it costs no more than FIFO.

Features: C12, T12, T15 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.messages.columns import COLUMNS
from spark_jms.core.messages.properties import NUMBERS, decode_property
from spark_jms.core.messages.ranges import counting
from spark_jms.core.messages.types import readable
from spark_jms.core.ordering.units_of_work import UnitOfWorkOrder
from spark_jms.settings.destination import DestinationSettings
from spark_jms.settings.fields import ARRIVAL, REDELIVERED, DestinationKey


@dataclass(frozen=True)
class SortOrder:
    """`keys` in the order of their weight; none: FIFO."""

    keys: tuple[DestinationKey, ...] = ()

    @staticmethod
    def of(written: Sequence[str]) -> SortOrder:
        """From the stored setting."""
        return SortOrder(tuple(map(DestinationKey.parse, written)))

    def __bool__(self) -> bool:
        return bool(self.keys)

    @property
    def is_costly(self) -> bool:
        """Neither FIFO nor LIFO: keys are read and sorted."""
        return bool(self.keys) and self.keys[0].name != ARRIVAL

    @property
    def follows_deliveries(self) -> bool:
        """A message may change its place when it is delivered again."""
        return any(key.name == REDELIVERED for key in self.keys)

    @property
    def columns(self) -> list[str]:
        """The stored columns that decide the order of delivery."""
        return self.columns_with(())

    def columns_with(self, promoted: Collection[str]) -> list[str]:
        """The same of rows that have these properties as columns, whose values the keys sort by."""
        names = [key.name if key.name in promoted else key.column for key in self._weights]
        return list(dict.fromkeys([*names, "JMSXGroupID"])) if self.keys else []

    @property
    def key_schema(self) -> pa.Schema:
        """Of `key_rows`."""
        kinds = [_key_type(key) for key in self._weights]
        return pa.schema([*((f"k{n}", kind) for n, kind in enumerate(kinds)), ("JMSXGroupID", pa.string())])

    def key_rows(self, rows: pa.RecordBatch, promoted: Collection[str] = ()) -> pa.RecordBatch:
        """What decides the order of these rows, which have `columns_with(promoted)`: far smaller than maps of properties."""
        schema = self.key_schema
        values = [_value(key, rows, promoted).cast(schema.field(n).type) for n, key in enumerate(self._weights)]
        return pa.RecordBatch.from_arrays([*values, rows.column("JMSXGroupID")], schema=schema)

    def delivery(self, rows: pa.Table, sequences: pa.Int64Array, redelivered: pa.BooleanArray) -> pa.Int64Array:
        """The positions of `rows` in the order of delivery. `rows` has `columns`, and ascending `sequences`."""
        keys = [self.key_rows(batch) for batch in rows.to_batches()]
        return self.by_keys(pa.Table.from_batches(keys, self.key_schema), sequences, redelivered)

    def by_keys(self, rows: pa.Table, sequences: pa.Int64Array, redelivered: pa.BooleanArray) -> pa.Int64Array:
        """The same of rows as `key_rows`."""
        given = {ARRIVAL: sequences, REDELIVERED: pc.cast(redelivered, pa.int64())}
        weights = iter(range(len(self.keys)))
        values = [given[key.name] if key.name in given else rows.column(next(weights)) for key in self.keys]
        return _ordered(self.keys, values, rows.column("JMSXGroupID"))

    def storing(self, rows: pa.RecordBatch) -> pa.Int64Array | None:
        """The positions of a sender's rows as they are stored, so that a consumer's picks are few runs; None: as they are.
        Messages that are equal in the keys stay in the order of sending, and so do those of a unit of order."""
        weighty = []
        for key in self.keys:
            if key.name == ARRIVAL:
                break
            if key.name != REDELIVERED:
                weighty.append(key)
        if not weighty or rows.num_rows < 2:
            return None
        values = pa.Table.from_batches([SortOrder(tuple(weighty)).key_rows(rows)])
        return _ordered(weighty, values.columns[:-1], values.column("JMSXGroupID"))

    @property
    def _weights(self) -> list[DestinationKey]:
        """The keys that messages have values for."""
        return [key for key in self.keys if key.name not in (ARRIVAL, REDELIVERED)]


FIFO = SortOrder()
DeliveryOrder = SortOrder | UnitOfWorkOrder


def delivery_order(destination: DestinationSettings) -> DeliveryOrder:
    return UnitOfWorkOrder() if destination.handles_units_of_work else SortOrder.of(destination.destination_keys)


def _key_type(key: DestinationKey) -> pa.DataType:
    if key.column != "properties":
        return COLUMNS[key.name]
    return NUMBERS.get(key.type) or (pa.int64() if key.type == "boolean" else pa.string())


def _value(key: DestinationKey, rows: pa.RecordBatch, promoted: Collection[str]) -> Any:
    if key.name in promoted:
        return rows.column(key.name)
    column = rows.column(key.column)
    return column if key.column != "properties" else _typed(pc.map_lookup(column, key.name, "last"), key.type)


def _typed(texts: pa.Array, kind: str) -> pa.Array:
    """Property texts as values of the key's type; a text that is none is as a missing property."""
    if kind == "string":
        return texts
    if kind == "boolean":
        return pc.if_else(pc.is_in(texts, pa.array(["true", "false"])), pc.equal(texts, "true"), None)
    try:
        numbers = texts.cast(NUMBERS[kind])
    except pa.ArrowInvalid:
        numbers = pa.array([_number(text, kind) for text in readable(texts).to_pylist()], NUMBERS[kind])
    return numbers.cast(pa.float32(), safe=False) if kind == "float" else numbers


def _number(text: str | None, kind: str) -> object:
    try:
        number = decode_property(text, kind)
    except ValueError:
        return None
    return None if isinstance(number, int) and not -(2**63) <= number < 2**63 else number


def _ordered(keys: Sequence[DestinationKey], values: Sequence[Any], groups: pa.ChunkedArray) -> pa.Int64Array:
    names = [f"k{n}" for n in range(len(keys))]
    table = pa.table([*values, counting(0, len(groups))], names=[*names, "row"])
    directions = [
        (name, "descending" if key.descending else "ascending") for name, key in zip(names, keys, strict=True)
    ]
    order = pc.sort_indices(table, sort_keys=[*directions, ("row", "ascending")])  # missing ones at the end
    return order.view(pa.int64()) if groups.null_count == len(groups) else _with_units(order, groups)


def _with_units(order: Any, groups: pa.ChunkedArray) -> pa.Int64Array:
    """A message of a unit takes the rank of the last-ranked of the unit's messages up to it."""
    rank = _inverse(order)
    codes = pc.cast(pc.dictionary_encode(groups.combine_chunks()).indices, pa.int64())
    by_unit = pc.sort_indices(codes)  # keeps the order within a unit; messages without one at the end
    codes, ranks = codes.take(by_unit), rank.take(by_unit)
    of_unit = pc.multiply(codes, len(order) + 1)  # so that the maximum begins again with each unit
    latest = pc.subtract(pc.cumulative_max(pc.add(of_unit, ranks), skip_nulls=True), of_unit)
    return pc.sort_indices(pc.coalesce(latest, ranks).take(_inverse(by_unit))).view(pa.int64())


def _inverse(permutation: Any) -> Any:
    """Where each position went: an Int64Array."""
    return pc.sort_indices(permutation).view(pa.int64())
