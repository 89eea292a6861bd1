"""Redelivery: when a claim is revoked, how often and when each of its messages comes again, and when it no longer does
(C8, C9).

A claim whose session died is revoked at once, unless its consumer can replay the batch: then it is in doubt until the
consumer comes back or the in-doubt timeout is over. A revoked message goes to another consumer, flagged and counted.

`Deliveries` maps a number of deliveries to the unfinished messages that were delivered so often without being
acknowledged. A message in no entry has not been delivered yet. `Delays` maps a time to the available messages that no
consumer gets before it.

A message that was delivered more often than the destination's redelivery limit allows (limit 0: once) goes to the error
destination, or is discarded where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

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


def beyond_limit(deliveries: Deliveries, limit: int) -> Ranges:
    """The unfinished messages that must not be delivered again."""
    if limit == UNLIMITED:
        return EMPTY
    return union(ranges.all() for times, ranges in deliveries.items() if times > limit)


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


def delivery_counts(deliveries: Deliveries, picks: Ranges) -> dict[int, Ranges]:
    """The delivery count (above 1) that these messages get when they are delivered now -> those of `picks`."""
    hits = {times + 1: ranges & picks for times, ranges in deliveries.items()}
    return {count: ranges for count, ranges in sorted(hits.items()) if ranges}
