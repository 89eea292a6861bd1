"""What units of order keep from a consumer: messages behind barriers, and messages behind refused ones.

A barrier: the holder of a record looks after each of its writes, housekeeping looks at all records: what is done stays done, so an
old state is good enough. core/ordering/units_of_order.py has the rules.

A refused message: in a queue, a message that a consumer's selector refuses holds back the later ones of its unit, for this
consumer, until another consumer has finished it, or it expires. That keeps the unit's order, and it is easily taken for a loss:
hence the texts here.

Features: T10 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.claims.messages.scan import units_of
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.ordering.units_of_order import Barrier, UnitMessages, slot_of
from spark_jms.core.records.record_set import RecordSet
from spark_jms.errors import JmsqError
from spark_jms.log.sending.units_of_order import pass_barriers
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.upkeep.health import give_way

log = logging.getLogger("spark_jms")
MAX_ROWS_READ = 200_000  # unfinished messages whose units are read at once; with more, a consumer leaves the barrier to housekeeping
_LOOK_S = 0.5  # at least, between two looks at unfinished messages
_LOOK_SHARE = 9  # and so often the time that the look took
_NARROW_S = 5.0  # between two commits for a part of the slots, unless it is half of them
SHOWN = 3  # units that a text names
WHAT_TO_DO = (
    "They wait until another consumer has finished those, or they expire: receive those with another selector or without one, "
    "`jmsq move` or purge them, or send without JMSXGroupID what need not be in order"
)


class BarrierWatch:
    """Which barriers a subscription has passed. Of one consumer or housekeeper; the latter looks at `all_rows`, so that no backlog
    is too long for a barrier to be passed. Not thread-safe."""

    def __init__(self, table: DeltaLog, look_s: float = _LOOK_S, *, all_rows: bool = False) -> None:
        self._table, self._look_s, self._all_rows = table, look_s, all_rows
        self._looked: dict[tuple[str, int], _Look] = {}  # subscription, old member -> the newest look at its units

    def look(
        self,
        snapshot: Snapshot,
        subscription: str,
        states: Mapping[int, Callable[[], RecordSet]],
        floors: Mapping[int, int] | None = None,
        *,
        at_once: bool = False,
    ) -> bool:
        """Whether slots have passed a barrier: plan again. `states` are record sets by member, as the store has them; `floors` see
        `Destination.start_floor`. `at_once`: however short ago it looked. A table that cannot be read or written is tried
        again with the next look: the consumer has claimed its batch by now, so this may not fail it."""
        declared = snapshot.destination
        if declared.slots is None or not declared.slots.barriers:
            return False
        passed: list[Barrier] = []
        for member, state in states.items():
            behind = declared.barriers_behind(subscription, member, floors)
            if not behind:
                continue
            held = state()
            try:
                passed += self._done(snapshot, subscription, member, behind, held, at_once)
            except (JmsqError, OSError) as error:
                log.warning(
                    "%s/%s/%d: whether barriers of units of order are passed is not known yet: %s",
                    declared.name,
                    subscription,
                    member,
                    error,
                )
        if not passed:
            return False
        try:
            pass_barriers(self._table, subscription, passed)  # or another process has, behind this snapshot
        except (JmsqError, OSError) as error:
            log.warning(
                "%s/%s has passed %d barrier(s) of units of order, and could not tell its table yet: %s",
                declared.name,
                subscription,
                len(passed),
                error,
            )
            return False
        return True

    def _done(
        self,
        snapshot: Snapshot,
        subscription: str,
        member: int,
        behind: Sequence[Barrier],
        state: RecordSet,
        at_once: bool,
    ) -> list[Barrier]:
        """The units are read once for all barriers behind the member, and not again while the same messages are unfinished."""
        left = state.unfinished(1, max(b.old_last for b in behind))
        counts = {b: left.between(1, b.old_last).count for b in behind}
        done = [b for b in behind if not counts[b]]
        open_ = [b for b in behind if counts[b] and (self._all_rows or counts[b] <= MAX_ROWS_READ)]
        if not open_:
            return done
        wanted = left.between(1, max(b.old_last for b in open_))
        known, now_s = self._looked.get((subscription, member)), time.monotonic()
        if known is not None:
            same = known.left == wanted and known.barriers == open_
            if same or (not at_once and now_s < known.again_s):
                return done
        firsts = self._first_of_slots(snapshot, member, wanted)
        hurries = at_once or known is None or now_s - known.passed_s >= _NARROW_S
        found, pending = [], False
        for b in open_:
            free = frozenset(slot for slot in b.slots if firsts.get(slot, b.old_last + 1) > b.old_last)
            if free and (hurries or 2 * len(free) >= len(b.slots)):
                found.append(replace(b, slots=free))
            pending |= bool(free)
        ended_s = time.monotonic()
        self._looked[subscription, member] = _Look(
            EMPTY if pending else wanted,
            open_,
            ended_s + max(self._look_s, _LOOK_SHARE * (ended_s - now_s)),
            now_s if found or known is None else known.passed_s,
        )
        return done + found

    def _first_of_slots(self, snapshot: Snapshot, member: int, wanted: Ranges) -> dict[int, int]:
        """slot -> the first of these messages."""
        found: dict[int, int] = {}
        while wanted:
            part = wanted.take(MAX_ROWS_READ)
            wanted -= part
            units = units_of(self._table, member, part, table_id=snapshot.table_id)
            for unit, sequence in units.first_of_units().items():
                slot = slot_of(unit)
                found[slot] = min(sequence, found.get(slot, sequence))
            if wanted:
                give_way()
        return found


class _Look(NamedTuple):
    """`left`: the unfinished messages, of which each slot of `barriers` has some. `passed_s`: when slots passed last."""

    left: Ranges
    barriers: list[Barrier]
    again_s: float
    passed_s: float


@dataclass(frozen=True)
class HeldBack:
    """So many messages of a unit, which the selector takes, wait behind the message `refused`, which it refuses."""

    member: int
    unit: str
    refused: int
    messages: int


def held_back(member: int, refused: Mapping[str, int], waiting: UnitMessages) -> list[HeldBack]:
    """Pure. `refused`: unit -> its first unfinished message that the selector refuses; `waiting`: messages that the selector takes.
    The units with the most messages first."""
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
