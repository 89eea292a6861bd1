"""Which units of order are blocked, and from which message on (core/ordering/units_of_order.py has the rules). Pure.

A plan asks of the few units of the messages that it looks at, while a million units may be blocked: by what is delayed, or refused.
So large sets of blocked units are not copied, and a question costs by the smaller side.

Features: T10 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.messages.ranges import FEW
from spark_jms.core.messages.types import readable
from spark_jms.core.ordering.units_of_order import UnitMessages, slot_of

_MOST_LARGE = 8  # sets that are kept apart


class BlockedUnits:
    """unit -> the sequence from which on its messages wait; and slots of units of which the same is known. A pass
    over a member fills it, and nothing is ever taken out: what became available behind the pass must not come after what it
    blocked."""

    def __init__(self, since: Mapping[str, int] | None = None) -> None:
        self._since = dict(since or {})
        self._large: list[
            Mapping[str, int]
        ] = []  # the same of many units each, as they were given: they stay as they are
        self._since_of_slots: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._since or self._large or self._since_of_slots)

    def copy(self) -> BlockedUnits:
        other = BlockedUnits(self._since)
        other._large, other._since_of_slots = [*self._large], dict(self._since_of_slots)
        return other

    def is_like(self, other: BlockedUnits) -> bool:
        """The same is blocked. False also where that takes long to find out."""
        return (
            len(self._large) == len(other._large)
            and all(mine is theirs for mine, theirs in zip(self._large, other._large, strict=True))
            and self._since == other._since
            and self._since_of_slots == other._since_of_slots
        )

    def block_slots(self, slots: Iterable[int], first: int) -> None:
        """The units of these slots, from `first` on."""
        for slot in slots:
            self._since_of_slots[slot] = min(first, self._since_of_slots.get(slot, first))

    def block_units(self, messages: UnitMessages) -> None:
        """The whole units of these messages."""
        self.block_behind(messages.whole_units())

    def block_behind(self, firsts: Mapping[str, int]) -> None:
        """What comes behind these messages, unit by unit. The mapping is not to be changed any more."""
        if len(firsts) < FEW:
            _lower(self._since, firsts)
        elif not any(known is firsts for known in self._large):
            self._large.append(firsts)
        if len(self._large) > _MOST_LARGE:
            for large in self._large:
                _lower(self._since, large)
            self._large = []

    def waiting(self, sequences: pa.Int64Array, units: pa.StringArray) -> pa.BooleanArray | None:
        """Which of these messages wait; None: none of them."""
        if not self:
            return None
        units = readable(units)
        known = self.among(dict.fromkeys(unit for unit in pc.unique(units).to_pylist() if unit is not None))
        if not known:
            return None
        since = pa.array(list(known.values()), pa.int64())
        found = pc.index_in(units, value_set=pa.array(list(known), pa.string()))
        return pc.fill_null(pc.greater_equal(sequences, since.take(found)), False)

    def among(self, units: Mapping[str, object]) -> dict[str, int]:
        """Those of `units` that are blocked, and from which message on."""
        found: dict[str, int] = {}
        for known in (self._since, *self._large):
            for unit in known.keys() & units.keys():
                found[unit] = min(known[unit], found.get(unit, known[unit]))
        if self._since_of_slots:
            for unit in units:
                first = self._since_of_slots.get(slot_of(unit))
                if first is not None:
                    found[unit] = min(first, found.get(unit, first))
        return found


def _lower(since: dict[str, int], firsts: Mapping[str, int]) -> None:
    for unit, sequence in firsts.items():
        if sequence < since.get(unit, sequence + 1):
            since[unit] = sequence
