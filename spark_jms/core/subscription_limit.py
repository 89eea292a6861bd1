"""The limit of a subscription: which of its messages make room for new ones. Pure.

Messages arrive at a subscription in the order of their sequences. One that finds it full takes the place of the *head*, the
message that would be delivered first among those that were there before:

    for each message that arrives
        while the subscription has `limit` messages or more, and one of them may be dropped
            drop the head of those that may be
        the message joins the subscription

So the newest message always stays, and if none of the others may be dropped, the subscription exceeds its limit. What may
not be dropped counts too. A unit of work that is complete is one thing: it is dropped as a whole, and has its place where
its last part arrived.

In a log nothing happens at the moment of an arrival. The holder of the record set decides later, for all messages that
have arrived since it last found too many; `LimitAccount` remembers up to where that was. So a message that was over the limit
and could not be dropped is not dropped without a new arrival, even when that becomes possible.

Features: T4 (docs/FEATURES.md)
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import pyarrow as pa

from spark_jms.core.integers import view
from spark_jms.core.ranges import EMPTY, Ranges

LIMIT = "subscription limit"  # the consumer of dropped messages, in the acknowledgement table


@dataclass(frozen=True)
class LimitAccount:
    """Of a record set. `arrived`: the last sequence that the limit was applied to. `dropped`: how many messages have made room
    since the subscription began (SubscriptionLimitDeletedCount)."""

    arrived: int = 0
    dropped: int = 0


NOTHING_DROPPED = LimitAccount()


@dataclass(frozen=True)
class Droppable:
    """The messages that may be dropped. `order`: their sequences in the order of delivery; None: ascending. `ends`: behind
    how many of them a unit of work or a single message ends; None: behind each."""

    messages: Ranges = EMPTY
    order: pa.Int64Array | None = None
    ends: pa.Int64Array | None = None


def dropped(present: int, arrived: Ranges, droppable: Droppable, limit: int) -> Ranges:
    """What the messages of `arrived` displace in a subscription that had `present` others, all of them unfinished."""
    excess = present + arrived.count - limit
    if excess <= 0 or not arrived:
        return EMPTY
    if droppable.order is None:  # the heads are the oldest, so the order of events does not matter
        return (droppable.messages - Ranges.of((arrived.last, arrived.last))).take(excess)
    return _one_by_one(present, arrived, droppable, limit)


def _one_by_one(present: int, arrived: Ranges, droppable: Droppable, limit: int) -> Ranges:
    assert droppable.order is not None
    sequences = view(droppable.order)
    ends = [0, *(range(1, len(sequences) + 1) if droppable.ends is None else view(droppable.ends))]
    heads: list[int] = []  # indices into `ends`, of what is there and may be dropped
    joins: dict[int, int] = {}  # the last sequence of what has yet to arrive -> its index
    for index in range(len(ends) - 1):
        last = max(sequences[ends[index] : ends[index + 1]])
        if last in arrived:
            joins[last] = index
        else:
            heads.append(index)  # ascending, so it is a heap
    count, out = present, []
    for sequence in arrived.numbers().tolist():
        while count >= limit and heads:
            index = heapq.heappop(heads)
            count -= ends[index + 1] - ends[index]
            out.append(index)
        count += 1
        if sequence in joins:
            heapq.heappush(heads, joins[sequence])
    return Ranges.from_numbers([s for index in out for s in sequences[ends[index] : ends[index + 1]]])
