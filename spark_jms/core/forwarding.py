"""Forwarding between the members of a distributed queue: which member's messages go where, and when. Pure.

    a member ...                                                 is
    ------------                                                 --
    has messages, is not paused for consumption, and has had     a source
    no consumers at every look for `forwardDelay`
    has consumers, and is paused for nothing                     a target

Messages whose redelivery is delayed, or that were delivered too often, stay: the store of their member alone knows that.

A member whose server did not answer, or is down, is neither, and its wait begins again. Where no member has consumers, nothing
is forwarded. Each source's messages are shared evenly among the targets.

Features: D5 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from spark_jms.core.ranges import Ranges, union
from spark_jms.core.record_set import RecordSet


@dataclass(frozen=True)
class LookedAt:
    """A member that answered. `messages` are available, belong to no consumer and do not stay."""

    member: int
    messages: int
    consumers: int


def staying(state: RecordSet, redelivery_limit: int, now_ms: int) -> Ranges:
    """Available messages that do not go to another member. Delays that are over count for nothing: without consumers, no
    process ends them."""
    delayed = union(ranges.all() for until_ms, ranges in state.delays.items() if until_ms > now_ms)
    return delayed | state.kept_back(redelivery_limit)


@dataclass(frozen=True)
class Forward:
    """So many of the first messages of `source` go to `target`."""

    source: int
    target: int
    messages: int


@dataclass(frozen=True)
class IdleMembers:
    """Since when members have had messages and no consumers, by the observer's own monotonic clock, in seconds."""

    since_s: Mapping[int, float]

    def after(self, looks: Collection[LookedAt], now_s: float) -> IdleMembers:
        idle = [look.member for look in looks if look.messages and not look.consumers]
        return IdleMembers({member: self.since_s.get(member, now_s) for member in idle})

    def due(self, delay_s: float, now_s: float) -> list[int]:
        return sorted(member for member, since in self.since_s.items() if now_s - since >= delay_s)


def forwards(
    looks: Collection[LookedAt],
    due: Collection[int],
    *,
    not_consuming: Collection[int] = (),
    not_inserting: Collection[int] = (),
    turn: int = 0,
) -> list[Forward]:
    """`not_consuming` and `not_inserting`: members that are paused. The first target of each source changes with `turn`."""
    targets = sorted(
        look.member for look in looks if look.consumers and look.member not in {*not_consuming, *not_inserting}
    )
    sources = [look for look in looks if look.member in due and look.member not in not_consuming]
    found = []
    for look in sources:
        for place in range(len(targets)):
            share = (look.messages + place) // len(targets)
            if share:
                found.append(Forward(look.member, targets[(place + turn) % len(targets)], share))
    return found
