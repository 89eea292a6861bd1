"""The order of delivery of a sorted destination: its destination keys (T15, C12). Pure.

A destination without keys is FIFO: messages come in the order of their sequences. With keys, the first key decides, then the
next, and last the sequence. Messages that lack a key come after the others. Within a unit of order the order of sending
stays: a message comes no earlier than those of its unit that were sent before it, whatever its own keys say.

A key is written `JMSPriority descending` or, for a user property, `amount descending double`. JMSMessageID stands for the
order of arrival, so `JMSMessageID descending` is LIFO; it costs no more than FIFO.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.integers import counting
from spark_jms.core.typed_properties import NUMBERS, decode_property
from spark_jms.settings.destination_key import ARRIVAL, REDELIVERED, DestinationKey


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
        read = [key.column for key in self.keys if key.name not in (ARRIVAL, REDELIVERED)]
        return list(dict.fromkeys([*read, "JMSXGroupID"])) if self.keys else []

    def delivery(self, rows: pa.Table, sequences: pa.Int64Array, redelivered: pa.BooleanArray) -> pa.Int64Array:
        """The positions of `rows` in the order of delivery. `rows` has `columns`, and ascending `sequences`."""
        values = [self._values(key, rows, sequences, redelivered) for key in self.keys]
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
        table = pa.Table.from_batches([rows])
        none = pa.repeat(False, rows.num_rows)
        values = [self._values(key, table, counting(0, rows.num_rows), none) for key in weighty]
        return _ordered(weighty, values, table.column("JMSXGroupID"))

    @staticmethod
    def _values(
        key: DestinationKey, rows: pa.Table, sequences: pa.Int64Array, redelivered: pa.BooleanArray
    ) -> pa.ChunkedArray | pa.Array:
        if key.name == ARRIVAL:
            return sequences
        if key.name == REDELIVERED:
            return pc.cast(redelivered, pa.int64())
        column = rows.column(key.column)
        if key.column != "properties":
            return column
        texts = pc.map_lookup(column, key.name, "first")
        return _typed(texts, key.type)


FIFO = SortOrder()


def _typed(texts: pa.ChunkedArray, kind: str) -> pa.ChunkedArray:
    """Property texts as values of the key's type; a text that is none is as a missing property."""
    if kind == "string":
        return texts
    if kind == "boolean":
        return pc.if_else(pc.is_in(texts, pa.array(["true", "false"])), pc.equal(texts, "true"), None).cast(pa.int64())
    try:
        return texts.cast(NUMBERS[kind])
    except pa.ArrowInvalid:
        return pa.chunked_array([pa.array([_number(text, kind) for text in texts.to_pylist()], NUMBERS[kind])])


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
