"""What a consumer has read and cannot have now: plans look at it again when the reason ends, and not before. Pure.

    remembered    why it is not delivered                            looked at again
    ----------    -----------------------                            ---------------
    refused       the consumer's selector refuses it, in a queue     never; when it expires, if it belongs to a unit of order
    delayed       its delivery time is to come                       from the second on in which it is due, or expires
    blocked       an earlier message of its unit of order            when its unit is not blocked any more, or not from it on; from
                  cannot be delivered (units_of_order.py)            the second on in which it expires

So a plan costs the same beside any number of them. Times are kept by the minute, those of the next minute by the second: what is due
within the very second is not remembered, and each plan looks at it.

That keeps the order of units. A unit is blocked *from a message on*, so all that comes behind a message which waits waits too, read
or not. And a message that was read before it was delayed or refused blocks what comes behind it as long as it is remembered.

A blocked message stays remembered while its unit is free, and is left out again when the unit is blocked again: consumers that have
a unit by turns read its messages once.

Features: C7, C12, T10 (docs/FEATURES.md)
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from itertools import accumulate
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.messages.arrays import arrow_array, arrow_scalar
from spark_jms.core.messages.chunked_ranges import NONE, ChunkedRanges
from spark_jms.core.messages.ranges import EMPTY, FEW, Ranges, arrow, places, union, view, view_of
from spark_jms.core.ordering.blocked_units import BlockedUnits
from spark_jms.core.ordering.units_of_order import NO_UNITS, UnitMessages
from spark_jms.core.records.record_set import RecordSet

_SECOND_MS, _MINUTE_MS = 1_000, 60_000
_SECOND, _MINUTE, _NEVER = (arrow_scalar(ms, pa.int64()) for ms in (_SECOND_MS, _MINUTE_MS, 0))
_MOST_STALE = 1_000  # finished messages that stay remembered, beside as many as are not finished


class Later(NamedTuple):
    """Messages of one read that cannot be delivered now. `times`: when each is to be looked at again, at its delivery time or its
    expiration, in ms; 0: at no time. `units`: those of them that belong to units of order."""

    sequences: pa.Int64Array
    times: pa.Int64Array
    units: UnitMessages


class _Times:
    """When messages are looked at again."""

    def __init__(self) -> None:
        self._messages: dict[int, Ranges] = {}  # by the time from which on plans look at them, in ms
        self._order: list[int] = []  # a heap of these times
        self._soon_ms: int | None = None  # the first time of those that this second's plans look at

    @property
    def first_ms(self) -> int | None:
        times = [time for time in (self._soon_ms, *self._order[:1]) if time is not None]
        return min(times, default=None)

    def added(self, later: Later, now_ms: int) -> pa.BooleanArray:
        """Which of these can be remembered: the time of the others is within this second."""
        timed = pc.greater(later.times, _NEVER)
        by_the_second_ms = now_ms - now_ms % _MINUTE_MS + 2 * _MINUTE_MS
        near = pc.less(later.times, arrow_scalar(by_the_second_ms, pa.int64()))
        step = pc.if_else(near, _SECOND, _MINUTE)
        begins = pc.multiply(pc.divide(later.times, step), step)
        soon = pc.and_(timed, pc.less_equal(begins, arrow_scalar(now_ms, pa.int64())))
        if (first := pc.min(pc.filter(later.times, soon)).as_py()) is not None:
            self._soon_ms = first if self._soon_ms is None else min(first, self._soon_ms)
        ahead = pc.and_not(timed, soon)
        rows = pa.table({"begin": begins, "sequence": later.sequences}).filter(ahead)
        rows = rows.sort_by([("begin", "ascending"), ("sequence", "ascending")])
        sequences = rows["sequence"].combine_chunks()
        for begin, first_row, end_row in _runs(rows["begin"].combine_chunks()):
            picks = Ranges.from_numbers(sequences[first_row:end_row])
            if begin not in self._messages:
                heappush(self._order, begin)
            self._messages[begin] = self._messages.get(begin, EMPTY) | picks
        return pc.invert(soon)

    def over(self, now_ms: int) -> Ranges:
        """Those that plans look at from now on."""
        self._soon_ms, found = None, list[Ranges]()
        while self._order and self._order[0] <= now_ms:
            found.append(self._messages.pop(heappop(self._order)))
        return union(found)


class RememberedMessages:
    """Messages of one member that cannot be delivered now. With those that belong to units of order it remembers which messages
    wait behind them. Not thread-safe: the subscriber's lock guards it. `stored` is the record set as the store has it, so that
    nothing is forgotten for a change that is not written in the end."""

    def __init__(self) -> None:
        self._messages = NONE
        self._in_units = NO_UNITS
        self._firsts: dict[str, int] = {}
        self._first_messages: Ranges | None = None  # those of `_firsts`; None: they are not known
        self._times = _Times()
        self._added, self._most = 0, _MOST_STALE

    @property
    def messages(self) -> Ranges:
        """Finished ones may be among them."""
        return self._messages.all()

    def without(self, messages: Ranges) -> Ranges:
        """Those of `messages` that are not among these."""
        return self._messages.missing(messages)

    def add(self, stored: RecordSet, later: Later, now_ms: int) -> Ranges:
        """Newly read ones; those that are remembered. `later` has those with a time, and those in units."""
        kept = self._times.added(later, now_ms)
        added = Ranges.from_numbers(later.sequences.filter(kept))
        self.add_timeless(stored, added)
        if later.units and (in_units := later.units.only(pc.is_in(later.units.sequences, added.numbers()))):
            self._in_units = UnitMessages.together([self._in_units, in_units])
            if self._first_messages is not None:
                firsts = in_units.first_of_units()
                new = {unit: n for unit, n in firsts.items() if n < self._firsts.get(unit, n + 1)}
                if new:
                    self._set_firsts({**self._firsts, **new})
        return added

    def add_timeless(self, stored: RecordSet, messages: Ranges) -> None:
        """Newly read ones, of which no plan needs to think again."""
        self._messages |= messages
        self._added += messages.count
        if self._added > self._most:
            unfinished = stored.unfinished_of(self.messages)
            self._messages, self._added, self._most = ChunkedRanges.of(unfinished), 0, unfinished.count + _MOST_STALE

    def looked_at_again(self, now_ms: int) -> Ranges:
        """Those whose time has come. They are forgotten: they block their units no longer, unless they are found to."""
        again = self._times.over(now_ms)
        if again:
            self._messages -= again
            if self._in_units:
                gone = pc.is_in(self._in_units.sequences, again.numbers())
                self._in_units, self._first_messages = self._in_units.only(pc.invert(gone)), None
        return again

    def first_of_units(self, stored: RecordSet) -> dict[str, int]:
        """unit of order -> its first unfinished message among these. The same mapping while they are the same."""
        if not self._in_units:
            return {}
        known = self._first_messages
        if known is None or stored.unfinished_of(known) != known:
            unfinished = stored.unfinished_of(Ranges.from_numbers(self._in_units.sequences))
            self._in_units = self._in_units.only(pc.is_in(self._in_units.sequences, unfinished.numbers()))
            self._set_firsts(self._in_units.first_of_units())
        return self._firsts

    def _set_firsts(self, firsts: dict[str, int]) -> None:
        self._firsts, self._first_messages = firsts, Ranges.from_numbers(firsts.values())


class RefusedMessages(RememberedMessages):
    """Those of a queue that a consumer's selector refuses. They stay for other consumers."""

    def add_refused(self, stored: RecordSet, refused: Ranges, in_units: UnitMessages, now_ms: int) -> Ranges:
        """Newly read ones; those that are remembered. The next plan finds those expired that are, if they block a unit."""
        if not in_units:
            self.add_timeless(stored, refused)
            return refused
        blocking = Ranges.from_numbers(in_units.sequences)
        times = in_units.rows["expires_ms"].combine_chunks()
        soon = blocking - self.add(stored, Later(in_units.sequences, times, in_units), now_ms)
        self.add_timeless(stored, refused - blocking)
        return refused - soon


class DelayedMessages(RememberedMessages):
    """Those whose delivery time is to come."""

    @property
    def due_ms(self) -> int | None:
        """When a plan may find one due."""
        return self._times.first_ms


class Looks(NamedTuple):
    """`again`: messages that plans look at from now on, as far as they are not finished. `not_now`: those that they need not look
    at until then."""

    again: Ranges
    not_now: Ranges


class BlockedMessages:
    """Those that wait behind others of their units of order, and could be delivered but for that. Not thread-safe: the subscriber's
    lock guards it."""

    def __init__(self, most_stale: int = _MOST_STALE) -> None:
        """`most_stale`: so many of them may be finished, and as many as are not, before they are looked for."""
        self._units: dict[str, array[int]] = {}  # unit -> its messages, ascending
        self._new: dict[str, None] = {}  # units that came since the last `looks`
        self._blocked = BlockedUnits()  # of the last `looks`
        self._since: dict[str, int] = {}  # those of `_units` that were blocked then, and from which message on
        self._times = _Times()
        self._expiring = EMPTY  # of `_units`: plans look at them, blocked or not
        self._count, self._most, self._most_stale = 0, most_stale, most_stale

    @property
    def holds(self) -> bool:
        """Some may be free: plans have not looked at them."""
        return bool(self._since)

    def add(self, stored: RecordSet, later: Later, now_ms: int) -> Ranges:
        """Newly read messages, all of them in units. Returns those that plans need not look at."""
        rows = later.units.only(
            pc.is_in(later.units.sequences, later.sequences.filter(self._times.added(later, now_ms)))
        )
        self._expiring -= Ranges.from_numbers(rows.sequences)
        not_now = array("q")
        for unit, new in _by_unit(rows):
            self._add_to(unit, new)
            if unit in self._since:
                not_now.extend(new[bisect_left(new, self._since[unit]) :])
        if self._count > self._most:
            self._forget_finished(stored)
        return _ranges(not_now)

    def looks(self, blocked: BlockedUnits, now_ms: int) -> Looks:
        """What has changed since the last call, by the units that are blocked now."""
        over = self._times.over(now_ms)
        self._expiring |= over
        same = blocked.is_like(self._blocked)
        asked: Mapping[str, object] = self._new if same else self._units
        since = blocked.among(asked) if asked else {}
        again, not_now = array("q"), array("q")
        for unit in self._since.keys() - since.keys() if not same else ():
            again.extend(self._units[unit])
        for unit, first in since.items():
            if (before := self._since.get(unit)) != first:
                messages = self._units[unit]
                if before is not None and before < first:
                    again.extend(messages[: bisect_left(messages, first)])
                not_now.extend(messages[bisect_left(messages, first) :])
        self._since = {**self._since, **since} if same else since
        self._blocked, self._new = blocked.copy(), {}
        return Looks(_ranges(again) | over, _ranges(not_now) - self._expiring)

    def of_units(self, state: RecordSet) -> UnitMessages:
        """The unfinished ones, with their units."""
        bounds = view_of(accumulate(map(len, self._units.values()), initial=0))
        numbers = arrow(memoryview(b"".join(self._units.values())).cast("q"))
        rows = UnitMessages.of(numbers, arrow_array(self._units, pa.string()).take(places(bounds)))
        if not rows:
            return rows
        unfinished = state.unfinished_of(Ranges.from_numbers(rows.sequences))
        return rows.only(pc.is_in(rows.sequences, unfinished.numbers()))

    # -- inside ---------------------------------------------------------------------------------------------------
    def _add_to(self, unit: str, new: array[int]) -> None:
        known = self._units.get(unit)
        if known is None:
            self._units[unit], self._new[unit] = new, None
            self._count += len(new)
        elif known[-1] < new[0]:
            known.extend(new)
            self._count += len(new)
        else:
            self._units[unit] = merged = array("q", view((_ranges(known) | _ranges(new)).numbers()))
            self._count += len(merged) - len(known)

    def _forget_finished(self, stored: RecordSet) -> None:
        left = self.of_units(stored)
        self._units = dict(_by_unit(left))
        self._since = {unit: since for unit, since in self._since.items() if unit in self._units}
        self._expiring = stored.unfinished_of(self._expiring)
        self._new = {unit: None for unit in self._new if unit in self._units}
        self._count = len(left.sequences)
        self._most = 2 * self._count + self._most_stale


def _runs(values: pa.Array) -> Iterator[tuple[Any, int, int]]:
    """Equal values beside each other: the value, its first place, and the place behind its last one."""
    runs, begin = pc.run_end_encode(values, pa.int64()), 0
    for value, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield value, begin, end
        begin = end


def _by_unit(messages: UnitMessages) -> Iterator[tuple[str, array[int]]]:
    """The messages of each unit, ascending."""
    if messages.rows.num_rows < FEW:
        found: dict[str, list[int]] = {}
        for unit, sequence in zip(messages.rows["unit"].to_pylist(), view(messages.sequences), strict=True):
            found.setdefault(unit, []).append(sequence)
        yield from ((unit, array("q", sorted(some))) for unit, some in found.items())
        return
    rows = messages.rows.sort_by([("unit", "ascending"), ("sequence", "ascending")])
    sequences = view(rows["sequence"].combine_chunks())
    for unit, begin, end in _runs(rows["unit"].combine_chunks()):
        yield unit, array("q", sequences[begin:end])


def _ranges(messages: array[int]) -> Ranges:
    return Ranges.from_numbers(arrow(memoryview(messages)))
