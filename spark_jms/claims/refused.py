"""The messages of one member of a queue that a consumer's selector refuses.

They stay for other consumers. The planner remembers them, so that it reads none of them again, and with those that belong
to units of order it remembers which messages wait behind them.

Features: C7, T10 (docs/FEATURES.md)
"""

from __future__ import annotations

import pyarrow.compute as pc

from spark_jms.core.ranges import EMPTY, Ranges
from spark_jms.core.record_set import RecordSet
from spark_jms.core.unit_order import NO_UNITS, UnitMessages


class RefusedMessages:
    """Not thread-safe: the subscriber's lock guards it."""

    def __init__(self) -> None:
        self.messages = EMPTY
        self._in_units = NO_UNITS
        self._firsts: dict[str, int] = {}
        self._firsts_of: Ranges | None = None  # the messages that `_firsts` was computed from

    def add(self, state: RecordSet, refused: Ranges, in_units: UnitMessages) -> None:
        """Newly refused messages. Finished ones are forgotten."""
        self.messages = state.unfinished_of(self.messages) | refused
        self._in_units = UnitMessages.together([self._in_units, in_units])
        self._firsts_of = None

    def forget_expired(self, now_ms: int) -> None:
        """The next plan looks at them again, and finds them expired: they block their units no longer."""
        if self._in_units:
            over = self._in_units.expired(now_ms)
            if expired := Ranges.from_numbers(self._in_units.only(over).sequences):
                self.messages = self.messages - expired
                self._in_units, self._firsts_of = self._in_units.only(pc.invert(over)), None

    def first_of_units(self, state: RecordSet) -> dict[str, int]:
        """unit of order -> its first unfinished refused message."""
        if not self._in_units:
            return {}
        unfinished = state.unfinished_of(self.messages)
        if unfinished != self._firsts_of:
            self._in_units = self._in_units.only(pc.is_in(self._in_units.sequences, unfinished.numbers()))
            self._firsts, self._firsts_of = self._in_units.first_of_units(), unfinished
        return self._firsts
