"""Taking messages: a consumer is offered some, and takes of them what is still to be had. Pure.

Theory. What may be delivered is planned outside of the store's write, on a state that others may have changed by the time of the
write: reading headers takes milliseconds, and a write that waited for it would hold up every consumer. So a plan makes an *offer*:
candidates in the order of delivery. `take` decides on the newest state, in microseconds, without a look at any message.

    the candidate is now                                   the take
    --------------------                                   --------
    available                                              claims it, if it is among the first that are wanted
    finished                                               passes over it
    claimed, moving, pledged, delayed or kept back         passes over it, and over all behind it in its unit of order
    part of a unit of work that is not wholly available    passes over the whole unit

This keeps the order of a unit: when the offer was made, every earlier unfinished message of the unit was a candidate too, or the
consumer had it, or it blocked the unit. Only one that has become available again since could be overtaken. A record set counts how
often that happens (`RecordSet.returns`), so an offer with units of order is taken only while the count is the same, and planned
again otherwise. Where the plan has not read which candidates belong to which unit, the first that is not to be had blocks all
behind it; and in a sorted member those block all that are delivered later, or a message would overtake one of a higher rank.

Features: C8, C9, C12, T12 (docs/FEATURES.md)
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.messages.arrays import arrow_array
from spark_jms.core.messages.ranges import EMPTY, Ranges, view
from spark_jms.core.ordering.blocked_units import BlockedUnits
from spark_jms.core.ordering.units_of_order import NO_UNITS, UnitMessages
from spark_jms.core.records.batch import MAX_RANGES_PER_MEMBER
from spark_jms.core.records.record_set import Noted, RecordSet
from spark_jms.core.records.redelivery import MAX_ORDER, Claim


@dataclass(frozen=True)
class Offer:
    """What one member offers to a batch. `picks` may be claimed. `order`: their sequences in the order of delivery; None:
    ascending. `ends`: behind how many of them a batch may end; None: behind each. `expired` are over: the holder expires them.
    `alone` of the picks are claimed one by one (redelivery.py). `units`: those of the picks that belong to units of order; None:
    some may, and the plan has not read which. `returns`: the record set's count when this was planned."""

    picks: Ranges = EMPTY
    order: pa.Int64Array | None = None
    ends: pa.Int64Array | None = None
    expired: Ranges = EMPTY
    alone: Ranges = EMPTY
    units: UnitMessages | None = NO_UNITS
    returns: int = 0

    @property
    def together(self) -> int:
        """How many of the first messages one claim may have: those before the first that is claimed alone."""
        if not self.alone:
            return self.picks.count
        if self.order is None:
            return self.picks.between(1, self.alone.first - 1).count
        before: int = pc.index(pc.is_in(self.order, self.alone.numbers()), True).as_py()
        if self.ends is None:
            return before
        places = view(self.ends)
        whole = bisect_right(places, before)
        return places[whole - 1] if whole else 0

    @property
    def one(self) -> int:
        """How many messages the consumer shows first: a single one, or a unit of work."""
        return view(self.ends)[0] if self.ends is not None else 1

    def shown(self, picks: Ranges) -> tuple[Ranges, ...] | None:
        """What a consumer with these first picks shows at a time, as `Claim.order` has it."""
        if self.order is None:
            return None
        ends = view(self.ends)[:MAX_ORDER] if self.ends is not None else range(1, MAX_ORDER + 1)
        first, found = 0, list[Ranges]()
        for end in ends:
            if first >= picks.count:
                break
            found.append(Ranges.from_numbers(self.order[first:end]))
            first = end
        return tuple(found)

    def beside(self, expired: Ranges) -> Offer:
        return replace(self, expired=self.expired | expired) if expired else self

    def first(self, count: int) -> Ranges:
        """The first `count` messages, or somewhat fewer if they are too scattered for one claim or belong together with
        later ones. At least one unit of work, however large."""
        if self.order is None:
            return self.picks.take(count).take_ranges(MAX_RANGES_PER_MEMBER)
        if self.ends is not None:
            return self._whole(self.ends, count) if count else EMPTY
        while True:
            chosen = Ranges.from_numbers(self.order[:count])
            if len(chosen) <= MAX_RANGES_PER_MEMBER:
                return chosen
            count = count * MAX_RANGES_PER_MEMBER // len(chosen)

    def _whole(self, ends: pa.Int64Array, count: int) -> Ranges:
        assert self.order is not None
        places = view(ends)
        last = max(bisect_right(places, count) - 1, 0)
        while True:
            chosen = Ranges.from_numbers(self.order[: places[last]])
            if len(chosen) <= MAX_RANGES_PER_MEMBER or not last:
                return chosen
            last = last * MAX_RANGES_PER_MEMBER // len(chosen)

    def cut(self, count: int) -> Offer:
        """Without what comes behind the first `count` messages."""
        if self.picks.count <= count:
            return self
        if self.order is None:
            return self._only(self.picks.take(count))
        end = count if self.ends is None else next((end for end in view(self.ends) if end >= count), len(self.order))
        return self._only(Ranges.from_numbers(self.order[:end]))

    # -- what is left of it ---------------------------------------------------------------------------------------
    def within(self, state: RecordSet, redelivery_limit: int) -> Offer:
        """What may still be claimed of it in this state."""
        if (self.units is None or self.units) and self.returns != state.returns:
            return replace(self, picks=EMPTY, order=None, ends=None, alone=EMPTY, units=NO_UNITS)
        unfinished = state.unfinished_of(self.picks)
        blocking = unfinished & (state.claimed | state.moving | state.waiting | state.kept_back(redelivery_limit))
        free = unfinished - blocking
        if blocking:
            free = free - self._behind(blocking)
        return self if free == self.picks else self._only(free)

    def _behind(self, blocking: Ranges) -> Ranges:
        """The picks that wait for one of the blocking ones."""
        if self.units is None:
            behind = self.picks.between(blocking.first, self.picks.last)
            return behind if self.order is None else behind | self._from(behind - blocking)
        held = self.units.only(pc.is_in(self.units.sequences, blocking.numbers()))
        waiting = BlockedUnits(held.first_of_units()).waiting(
            self.units.sequences, self.units.rows["unit"].combine_chunks()
        )
        return EMPTY if waiting is None else Ranges.from_numbers(self.units.sequences.filter(waiting))

    def _from(self, held: Ranges) -> Ranges:
        """The picks from the first of these on, in the order of delivery."""
        assert self.order is not None
        return (
            Ranges.from_numbers(self.order[pc.index(pc.is_in(self.order, held.numbers()), True).as_py() :])
            if held
            else EMPTY
        )

    def _only(self, free: Ranges) -> Offer:
        if self.order is None:
            return replace(self, picks=free, alone=self.alone & free)
        kept = pc.is_in(self.order, free.numbers())
        if self.ends is None:
            return replace(self, picks=free, order=self.order.filter(kept), alone=self.alone & free)
        order, ends, begin = list[pa.Int64Array](), list[int](), 0
        for end in view(self.ends):
            if pc.all(kept[begin:end]).as_py():
                order.append(self.order[begin:end])
                ends.append(end - begin + (ends[-1] if ends else 0))
            begin = end
        left = pa.concat_arrays(order) if order else self.order[:0]
        picks = Ranges.from_numbers(left)
        return replace(self, picks=picks, order=left, ends=arrow_array(ends, pa.int64()), alone=self.alone & picks)


def take(
    state: RecordSet, offer: Offer, count: int, claim: Claim, redelivery_limit: int, *, leads: bool, sole: bool
) -> tuple[RecordSet, Ranges]:
    """The state with the first `count` of the offer claimed that are still to be had, and which those are. `claim` comes without
    picks. `leads`: its consumer shows this member's messages first. `sole`: the batch is of this member alone, so that it may
    be of a message that is claimed alone."""
    left = offer.within(state, redelivery_limit)
    if not claim.replayable and state.deliveries.alone:
        left = replace(left, alone=state.deliveries.alone & left.picks)
    if not left.picks or not count:
        return state, EMPTY
    together = left.together
    picks = left.first(min(count, together) if together else left.one * sole)
    if not picks:
        return state, picks
    order = None if claim.replayable else (left.shown(picks) if leads else ())
    after = state.claim(replace(claim, picks=picks, order=order))
    again = left.cut(count * (len(state.consumers) + 1))  # others may have the first ones by then
    noted = Noted("take", (again, count, claim, redelivery_limit), {"leads": leads, "sole": sole})
    return after.noting(state, noted), picks
