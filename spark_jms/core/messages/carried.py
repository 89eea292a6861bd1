"""Delivery counts that forwarded messages bring along.

How often a message was delivered stands in the record set of its member, in the store of that member's server. A forwarded message
leaves that member, and `resetDeliveryCountOnForward: false` wants it to be counted on. So the counts go with the messages: the data
file that brings them to the other member notes them, among its statistics, where Delta readers ignore them. The commit that appends
the file appends the counts, and compaction keeps them. A file of messages without counts notes nothing.

The record set of the other member takes the counts over before a consumer plans, in the write that claims. It may do so any number
of times, by any process: `DeliveryCounts.raised` changes what is lower than the file says, and a count only rises while its message
is unfinished.

Features: C8, D5 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_jms.core.messages.ranges import EMPTY, Ranges, plus, union

CARRIED = "jmsqDeliveries"  # among the statistics of a file
Counts = Mapping[int, Ranges]


@dataclass(frozen=True)
class CarriedCounts:
    """As DeliveryCounts, of the messages of some files: in one file by their places, the first message has 1; in a member by their
    sequences."""

    shown: Counts = field(default_factory=dict)
    perhaps: Counts = field(default_factory=dict)
    alone: Ranges = EMPTY

    def __bool__(self) -> bool:
        return bool(self.shown or self.perhaps)

    @property
    def messages(self) -> Ranges:
        return union((*self.shown.values(), *self.perhaps.values()))

    def within(self, first: int, last: int) -> CarriedCounts:
        """Of these messages alone."""
        return self.of(Ranges.of((first, last)))

    def of(self, some: Ranges) -> CarriedCounts:
        """Of these messages alone."""
        return CarriedCounts(_within(self.shown, some), _within(self.perhaps, some), self.alone & some)

    def shifted(self, by: int) -> CarriedCounts:
        """With another number for each message."""
        shown, perhaps = (
            {times: _shifted(picks, by) for times, picks in counts.items()} for counts in (self.shown, self.perhaps)
        )
        return CarriedCounts(shown, perhaps, _shifted(self.alone, by))

    def to_json(self) -> list[Any]:
        shown, perhaps = (
            [[times, picks.to_json()] for times, picks in sorted(counts.items())]
            for counts in (self.shown, self.perhaps)
        )
        return [shown, perhaps, self.alone.to_json()]

    @staticmethod
    def from_json(value: Sequence[Any]) -> CarriedCounts:
        shown, perhaps, alone = value
        first, second = ({int(times): Ranges.from_json(picks) for times, picks in one} for one in (shown, perhaps))
        return CarriedCounts(first, second, Ranges.from_json(alone))


NOTHING_CARRIED = CarriedCounts()


def joined(parts: Iterable[CarriedCounts]) -> CarriedCounts:
    """Of different messages."""
    shown, perhaps, alone = dict[int, Ranges](), dict[int, Ranges](), list[Ranges]()
    for part in parts:
        for counts, more in ((shown, part.shown), (perhaps, part.perhaps)):
            for times, picks in more.items():
                counts[times] = counts.get(times, EMPTY) | picks
        alone.append(part.alone)
    return CarriedCounts(shown, perhaps, union(alone))


# -- the note of a file ------------------------------------------------------------------------------------------------
def with_note(stats: str, carried: CarriedCounts) -> str:
    """The statistics of a file with what its messages bring along, by their places in it."""
    return json.dumps({**json.loads(stats), CARRIED: carried.to_json()}, separators=(",", ":")) if carried else stats


def is_noted(stats: str) -> bool:
    """These statistics have a note."""
    return f'"{CARRIED}":' in stats


def note_in(stats: str) -> CarriedCounts:
    """By the places in the file."""
    return CarriedCounts.from_json(json.loads(stats)[CARRIED]) if is_noted(stats) else NOTHING_CARRIED


# -- inside ------------------------------------------------------------------------------------------------------------
def _within(counts: Counts, some: Ranges) -> dict[int, Ranges]:
    return {times: found for times, picks in counts.items() if (found := picks & some)}


def _shifted(picks: Ranges, by: int) -> Ranges:
    return Ranges(plus(picks.lo, by), plus(picks.hi, by)) if by and picks else picks
