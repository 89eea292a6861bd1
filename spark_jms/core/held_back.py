"""Which messages a selector takes and a consumer does not get, because an earlier message of their unit of order is refused. Pure.

In a queue, a message that a consumer's selector refuses holds back the later ones of its unit, for this consumer, until another
consumer has finished it, or it expires. That keeps the unit's order, and it is easily taken for a loss: hence the texts here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.unit_order import UnitMessages

SHOWN = 3  # units that a text names
WHAT_TO_DO = (
    "They wait until another consumer has finished those, or they expire: receive those with another selector or without one, "
    "`jmsq move` or purge them, or send without JMSXGroupID what need not be in order"
)


@dataclass(frozen=True)
class HeldBack:
    """So many messages of a unit, which the selector takes, wait behind the message `refused`, which it refuses."""

    member: int
    unit: str
    refused: int
    messages: int


def held_back(member: int, refused: Mapping[str, int], waiting: UnitMessages) -> list[HeldBack]:
    """`refused`: unit -> its first unfinished message that the selector refuses; `waiting`: messages that the selector takes. The
    units with the most messages first."""
    place = pc.index_in(waiting.rows["unit"], value_set=pa.array(list(refused), pa.string()))
    firsts = pa.array(list(refused.values()), pa.int64()).take(place.combine_chunks())
    behind = waiting.only(pc.fill_null(pc.greater(waiting.rows["sequence"], firsts), False))
    counts = pc.value_counts(behind.rows["unit"]).to_pylist()
    found = [HeldBack(member, each["values"], refused[each["values"]], each["counts"]) for each in counts]
    return sorted(found, key=lambda one: (-one.messages, one.refused))


def behind(found: Sequence[HeldBack]) -> str:
    """How many wait behind which message of which unit."""
    shown = ", ".join(
        f"{one.messages:,} behind message {one.refused:,} of unit {one.unit!r} on member {one.member}"
        for one in found[:SHOWN]
    )
    return f"{shown}, and the rest in {len(found) - SHOWN:,} more unit(s)" if len(found) > SHOWN else shown


def told(found: Sequence[HeldBack]) -> str:
    """What is held back behind what, and what to do; "" where nothing is."""
    if not found:
        return ""
    return (
        f"{sum(one.messages for one in found):,} message(s) that the selector takes wait behind earlier ones of their units of "
        f"order that it refuses: {behind(found)}. {WHAT_TO_DO}"
    )
