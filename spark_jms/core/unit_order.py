"""Units of order: which messages wait for an earlier one of their unit. Pure.

The messages of a unit are delivered in the order of their sequences, so none is delivered while an earlier one cannot be:

    the earlier message is                          it blocks
    claimed by another consumer, or moving          its whole unit
    on the member that the unit's slot has left     what comes behind the move (slots.py)
    delayed: its delivery time, or a redelivery     what comes behind it
    refused for good by its error destination       what comes behind it
    refused by the consumer's selector, in a queue  what comes behind it, for this consumer

A message that is finished, expired (refused or not) or lost blocks nothing. A topic's subscription finishes what its selector
refuses.

Features: D5, T10 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.integers import FEW
from spark_jms.core.slots import slot_of
from spark_jms.core.utf8 import readable
from spark_jms.errors import MessageFormatError


@dataclass(frozen=True)
class UnitMessages:
    """Messages that belong to units of order. `rows` has the columns `sequence` (int64), `unit` (string) and `expires_ms`
    (int64; 0: never)."""

    rows: pa.Table

    @staticmethod
    def of(
        sequences: pa.Int64Array,
        units: pa.StringArray,
        expires_ms: pa.Int64Array | None = None,
        *,
        among: pa.BooleanArray | None = None,
    ) -> UnitMessages:
        """Those of `sequences` that belong to a unit, and are `among` the chosen ones."""
        ends = pa.repeat(pa.scalar(0, pa.int64()), len(sequences)) if expires_ms is None else expires_ms
        rows = pa.Table.from_arrays([sequences, readable(units), ends], schema=_ROWS)
        chosen = pc.is_valid(units) if units.null_count else None
        if among is not None:
            chosen = among if chosen is None else pc.and_(chosen, among)
        return UnitMessages(rows if chosen is None else rows.filter(chosen))

    @staticmethod
    def together(parts: Iterable[UnitMessages]) -> UnitMessages:
        filled = [part.rows for part in parts if part]
        return UnitMessages(pa.concat_tables(filled)) if filled else NO_UNITS

    def __bool__(self) -> bool:
        return self.rows.num_rows > 0

    def only(self, mask: pa.BooleanArray) -> UnitMessages:
        return UnitMessages(self.rows.filter(mask))

    @property
    def sequences(self) -> pa.Int64Array:
        return self.rows["sequence"].combine_chunks()

    def expired(self, now_ms: int) -> pa.BooleanArray:
        ends = self.rows["expires_ms"]
        return pc.and_(pc.greater(ends, 0), pc.less_equal(ends, now_ms))

    def first_of_units(self) -> dict[str, int]:
        """unit -> its lowest sequence."""
        if self.rows.num_rows < FEW:
            found: dict[str, int] = {}
            for unit, sequence in zip(self.rows["unit"].to_pylist(), self.rows["sequence"].to_pylist(), strict=True):
                found[unit] = min(sequence, found.get(unit, sequence))
            return found
        firsts = self.rows.group_by("unit", use_threads=False).aggregate([("sequence", "min")])
        return dict(zip(firsts["unit"].to_pylist(), firsts["sequence_min"].to_pylist(), strict=True))


_ROWS = pa.schema([("sequence", pa.int64()), ("unit", pa.string()), ("expires_ms", pa.int64())])
NO_UNITS = UnitMessages(_ROWS.empty_table())


def with_default_unit(rows: pa.RecordBatch, unit: str | None) -> pa.RecordBatch:
    """Messages of one producer: those without a unit get this one; None: they stay without."""
    groups = rows.column("JMSXGroupID")
    if unit is None or not groups.null_count:
        return rows
    return rows.set_column(rows.schema.get_field_index("JMSXGroupID"), "JMSXGroupID", pc.fill_null(groups, unit))


def refuse_units(rows: pa.RecordBatch, destination: str) -> None:
    """For a destination that forwards messages between its members. Raises MessageFormatError when a sender's row belongs
    to a unit."""
    units = rows.column("JMSXGroupID")
    if units.null_count < len(units):
        row = pc.index(pc.is_valid(units), True).as_py()
        raise MessageFormatError(
            f"row {row}: JMSXGroupID is {units[row].as_py()!r}, but {destination} forwards messages between its members "
            "(forwardDelay), where a unit of order would lose its order: nothing was sent. Leave the unit out, or forwardDelay"
        )


class BlockedUnits:
    """unit -> the sequence from which on its messages wait; and slots of units of which the same is known (slots.py). A pass
    over a member fills it, and nothing is ever taken out: what became available behind the pass must not come after what it
    blocked."""

    def __init__(self, since: Mapping[str, int] | None = None) -> None:
        self._since = dict(since or {})
        self._since_of_slots: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._since or self._since_of_slots)

    def block_slots(self, slots: Iterable[int], first: int) -> None:
        """The units of these slots, from `first` on."""
        for slot in slots:
            self._since_of_slots[slot] = min(first, self._since_of_slots.get(slot, first))

    def block_units(self, messages: UnitMessages) -> None:
        """The whole units of these messages."""
        self._since.update(dict.fromkeys(pc.unique(messages.rows["unit"]).to_pylist(), 0))

    def block_behind(self, firsts: Mapping[str, int]) -> None:
        """What comes behind these messages, unit by unit."""
        for unit, sequence in firsts.items():
            if sequence < self._since.get(unit, sequence + 1):
                self._since[unit] = sequence

    def waiting(self, sequences: pa.Int64Array, units: pa.StringArray) -> pa.BooleanArray | None:
        """Which of these messages wait; None: none of them."""
        if not self:
            return None
        units = readable(units)
        known = {
            unit: since
            for unit in pc.unique(units).to_pylist()
            if unit is not None and (since := self._first(unit)) is not None
        }
        if not known:
            return None
        since = pa.array(list(known.values()), pa.int64())
        found = pc.index_in(units, value_set=pa.array(list(known), pa.string()))
        return pc.fill_null(pc.greater_equal(sequences, since.take(found)), False)

    def _first(self, unit: str) -> int | None:
        since = self._since.get(unit)
        if not self._since_of_slots:
            return since
        of_slot = self._since_of_slots.get(slot_of(unit))
        return since if of_slot is None else of_slot if since is None else min(since, of_slot)
