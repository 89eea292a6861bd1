"""Redelivery: when a claim is revoked, how often and when each of its messages comes again, and when it no longer does
.

A claim whose session died is revoked at once, unless its consumer can replay the batch: then it is in doubt until the
consumer comes back or the in-doubt timeout is over. A revoked message goes to another consumer, flagged and counted.

`Delays` maps a time to the available messages that no consumer gets before it.

**Two numbers.** A claim has more messages than its consumer has shown to the application, and a consumer that dies does not tell
how many. So `DeliveryCounts` has, of each unfinished message, how often it was *shown* for certain, and how often besides it was
*perhaps* shown:

    what happens                                              shown   perhaps   is claimed alone next time
    ------------                                              -----   -------   --------------------------
    a live consumer gives it back that has delivered it       + 1               no
    a live consumer gives it back that has not                                  as before
    a transaction with it is rolled back                      + 1               no
    the claim's session died: the first message in the        + 1               yes
    order of delivery that is not acknowledged
    the claim's session died: any other message                       + 1       yes
    a query's claim is revoked: each message, since tasks     + 1               no
    get all of them at once
    the store was restored from a copy                                + 1       as before

The flag and the delivery count of a message cover both numbers: an application may have seen it. The redelivery limit and the
redelivery delay go by what was shown: a message that no application has seen is never discarded, moved or held back because others of
its claim killed their consumers. A claim of a message that is claimed *alone* has no other message (a unit of work whole), so what it
does to its consumer is counted for it and for no other. It is claimed alone until it is acknowledged, or a live consumer gives it back
that has delivered it: claimed with others, a message that kills its consumers could stand behind them, and not be counted, each
second time.

A message that was shown more often than the destination's redelivery limit allows (limit 0: once) goes to the error
destination, or is discarded where there is none.

Features: C8, C9 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace

from spark_jms.core.chunked_ranges import NONE, ChunkedRanges
from spark_jms.core.claim import Claim
from spark_jms.core.message_state import MessageEvent, MessageState
from spark_jms.core.ranges import EMPTY, Ranges, union
from spark_jms.settings.destination import UNLIMITED

Deliveries = Mapping[int, ChunkedRanges]
Delays = Mapping[int, ChunkedRanges]  # ms since 1970 -> messages
_SHORTEST_STEP_MS, _STEPS = 100, 64


def event_of_session(
    claim: Claim, live_sessions: Set[str], now_ms: int, in_doubt_timeout_ms: int
) -> MessageEvent | None:
    """What the life or death of its session does to a claim; None when nothing changes. `in_doubt_timeout_ms` is the
    destination's, for claims without one of their own."""
    in_doubt = claim.state is MessageState.IN_DOUBT
    if claim.session in live_sessions:
        return MessageEvent.RECOVER if in_doubt else None
    since_ms = claim.in_doubt_since_ms or now_ms
    own_ms = claim.in_doubt_timeout_ms
    if not claim.replayable or now_ms - since_ms >= (in_doubt_timeout_ms if own_ms is None else own_ms):
        return MessageEvent.REDELIVER
    return None if in_doubt else MessageEvent.DOUBT


def counted(deliveries: Deliveries, picks: Ranges) -> Deliveries:
    """After one more delivery of `picks` that was not acknowledged."""
    counts: dict[int, ChunkedRanges] = dict(deliveries)
    first_time = picks
    for times in sorted(deliveries, reverse=True):  # from above: a message rises by one
        again = deliveries[times] & picks
        if again:
            first_time = first_time - again
            counts[times] = counts[times] - again
            counts[times + 1] = counts.get(times + 1, NONE) | again
    if first_time:
        counts[1] = counts.get(1, NONE) | first_time
    return {times: ranges for times, ranges in counts.items() if ranges}


def forgotten(numbered: Mapping[int, ChunkedRanges], picks: Ranges) -> Mapping[int, ChunkedRanges]:
    """Deliveries without `picks`, which are done; or delays without those that are claimed or done."""
    if not numbered:
        return numbered
    return {number: left for number, ranges in numbered.items() if (left := ranges - picks)}


@dataclass(frozen=True)
class DeliveryCounts:
    """Of the unfinished messages that were delivered without being acknowledged: how often each was shown to an application, how
    often besides it was perhaps shown, and which of them are claimed alone. A message in no entry has not been delivered yet."""

    shown: Deliveries = field(default_factory=dict)
    perhaps: Deliveries = field(default_factory=dict)
    alone: ChunkedRanges = NONE

    def __bool__(self) -> bool:
        return bool(self.shown or self.perhaps)

    def sets(self) -> tuple[ChunkedRanges, ...]:
        return (*self.shown.values(), *self.perhaps.values(), self.alone)

    def delivered(self, shown: Ranges) -> DeliveryCounts:
        """`shown` were delivered once more, for certain, and harmed no consumer."""
        if not shown:
            return self
        return replace(self, shown=counted(self.shown, shown), alone=self.alone - shown if self.alone else NONE)

    def died(self, shown: Ranges, rest: Ranges) -> DeliveryCounts:
        """The consumer died: it had delivered `shown` for certain, and `rest` perhaps."""
        after = self.perhaps_delivered(rest, alone=True)
        return replace(after, shown=counted(after.shown, shown), alone=after.alone | shown) if shown else after

    def perhaps_delivered(self, picks: Ranges, *, alone: bool) -> DeliveryCounts:
        """`picks` were delivered once more, or not."""
        if not picks:
            return self
        return replace(self, perhaps=counted(self.perhaps, picks), alone=self.alone | picks if alone else self.alone)

    def without(self, picks: Ranges) -> DeliveryCounts:
        """`picks` are done."""
        if not self:
            return self
        alone = self.alone - picks if self.alone else NONE
        return DeliveryCounts(forgotten(self.shown, picks), forgotten(self.perhaps, picks), alone)

    def beyond(self, limit: int) -> Ranges:
        """The messages that must not be delivered again."""
        if limit == UNLIMITED or not self.shown:
            return EMPTY
        return union(ranges.all() for times, ranges in self.shown.items() if times > limit)

    def counts(self, picks: Ranges) -> dict[int, Ranges]:
        """The delivery count (above 1) that these messages get when they are delivered now -> those of `picks`."""
        if not self.perhaps:
            hits = {times + 1: ranges & picks for times, ranges in self.shown.items()}
            return {count: found for count, found in sorted(hits.items()) if found}
        made: dict[int, Ranges] = {}
        for shown, part in _parts(self.shown, picks):
            for perhaps, found in _parts(self.perhaps, part):
                if shown + perhaps:
                    made[shown + perhaps + 1] = made.get(shown + perhaps + 1, EMPTY) | found
        return dict(sorted(made.items()))


NOT_DELIVERED = DeliveryCounts()


def _parts(deliveries: Deliveries, picks: Ranges) -> Iterator[tuple[int, Ranges]]:
    """`picks` by their number, 0 included."""
    rest = picks
    for times, ranges in deliveries.items():
        if found := ranges & picks:
            rest = rest - found
            yield times, found
    if rest:
        yield 0, rest


def delay_end_ms(now_ms: int, delay_ms: int) -> int:
    """When a delay that begins now ends; 0: at once. Ends are rounded up by at most 0.1 s or 2 % of the delay, so that a
    record set has few of them."""
    if delay_ms <= 0:
        return 0
    step = max(_SHORTEST_STEP_MS, delay_ms // _STEPS)
    return -(-(now_ms + delay_ms) // step) * step


def delayed(delays: Delays, picks: Ranges, until_ms: int) -> Delays:
    """With `picks` kept back until then. They have no other delay."""
    return {**delays, until_ms: delays.get(until_ms, NONE) | picks} if until_ms and picks else delays
