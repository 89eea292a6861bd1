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

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.settings.destination_key import ARRIVAL, REDELIVERED, DestinationKey

Sequences = npt.NDArray[np.int64]
_ARROW = {
    "boolean": pa.int64(),  # false before true
    "byte": pa.int64(),
    "short": pa.int64(),
    "int": pa.int64(),
    "long": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "string": pa.string(),
}


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
    def columns(self) -> list[str]:
        """The stored columns that decide the order of delivery."""
        read = [key.column for key in self.keys if key.name not in (ARRIVAL, REDELIVERED)]
        return list(dict.fromkeys([*read, "JMSXGroupID"])) if self.keys else []

    def delivery(
        self, rows: pa.Table, sequences: Sequences, redelivered: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.int64]:
        """The positions of `rows` in the order of delivery. `rows` has `columns`, and ascending `sequences`."""
        values = [self._values(key, rows, sequences, redelivered) for key in self.keys]
        return _ordered(self.keys, values, rows.column("JMSXGroupID"))

    def storing(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
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
        none = np.zeros(rows.num_rows, dtype=bool)
        values = [self._values(key, table, np.arange(rows.num_rows), none) for key in weighty]
        return _ordered(weighty, values, table.column("JMSXGroupID"))

    @staticmethod
    def _values(
        key: DestinationKey, rows: pa.Table, sequences: Sequences, redelivered: npt.NDArray[np.bool_]
    ) -> pa.ChunkedArray | pa.Array:
        if key.name == ARRIVAL:
            return pa.array(sequences)
        if key.name == REDELIVERED:
            return pa.array(redelivered.astype(np.int64))
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
        return texts.cast(_ARROW[kind])
    except pa.ArrowInvalid:
        return pa.chunked_array([pa.array([_number(text, kind) for text in texts.to_pylist()], _ARROW[kind])])


def _number(text: str | None, kind: str) -> int | float | None:
    try:
        number = None if text is None else float(text) if kind in ("float", "double") else int(text)
    except ValueError:
        return None
    return number if number is None or isinstance(number, float) or -(2**63) <= number < 2**63 else None


def _ordered(keys: Sequence[DestinationKey], values: Sequence[Any], groups: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    names = [f"k{n}" for n in range(len(keys))]
    table = pa.table([*values, pa.array(np.arange(len(groups)))], names=[*names, "row"])
    directions = [
        (name, "descending" if key.descending else "ascending") for name, key in zip(names, keys, strict=True)
    ]
    order = pc.sort_indices(table, sort_keys=[*directions, ("row", "ascending")]).to_numpy()  # missing ones at the end
    if groups.null_count == len(groups):
        return np.asarray(order, dtype=np.int64)
    return _with_units(np.asarray(order, dtype=np.int64), groups)


def _with_units(order: npt.NDArray[np.int64], groups: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """A message of a unit takes the rank of the last-ranked of the unit's messages up to it."""
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    codes = pc.dictionary_encode(groups.combine_chunks()).indices.fill_null(-1).to_numpy(zero_copy_only=False)
    by_unit = np.argsort(codes, kind="stable")
    by_unit = by_unit[codes[by_unit] >= 0]
    if not len(by_unit):
        return order
    of_unit = codes[by_unit].astype(np.int64) * (len(order) + 1)  # so that the maximum begins anew with each unit
    rank[by_unit] = np.maximum.accumulate(of_unit + rank[by_unit]) - of_unit
    return np.lexsort((np.arange(len(order)), rank)).astype(np.int64)
