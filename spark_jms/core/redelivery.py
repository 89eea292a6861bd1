"""Redelivery: when a claim is revoked, and how often each message has been delivered (C8, C9).

A claim whose session died is revoked at once, unless its consumer can replay the batch: then it is in doubt until the
consumer comes back or the in-doubt timeout is over. A revoked message goes to another consumer, flagged and counted.

`Deliveries` maps a number of deliveries to the unfinished messages that were delivered so often without being
acknowledged. A message in no entry has not been delivered yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from spark_jms.core.chunked_ranges import NONE, ChunkedRanges
from spark_jms.core.claim import Claim
from spark_jms.core.message_state import MessageEvent, MessageState
from spark_jms.core.ranges import Ranges

Deliveries = Mapping[int, ChunkedRanges]


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


def forgotten(deliveries: Deliveries, picks: Ranges) -> Deliveries:
    """Without `picks`, which are done."""
    return {times: left for times, ranges in deliveries.items() if (left := ranges - picks)}


def delivery_counts(deliveries: Deliveries, picks: Ranges) -> dict[int, Ranges]:
    """The delivery count (above 1) that these messages get when they are delivered now -> those of `picks`."""
    hits = {times + 1: ranges & picks for times, ranges in deliveries.items()}
    return {count: ranges for count, ranges in sorted(hits.items()) if ranges}
