"""Units of order: which member has the messages of a unit, and which of them wait for an earlier one. Pure.

The messages of a unit are delivered in the order of their sequences, so none is delivered while an earlier one cannot be:

    the earlier message is                          it blocks
    claimed by another consumer, or moving          its whole unit
    on the member that the unit's slot has left     what comes behind the move
    delayed: its delivery time, or a redelivery     what comes behind it
    refused for good by its error destination       what comes behind it
    refused by the consumer's selector, in a queue  what comes behind it, for this consumer

A message that is finished, expired (refused or not) or lost blocks nothing. A topic's subscription finishes what its selector
refuses.

A unit hashes to one of 1,024 slots, and a slot belongs to one member; *paths* are the exceptions.

**Slots move** when members are added or removed, so that each member has its share, and no more of them than that takes. The
commit that moves slots sees the last sequence of every member, so it splits the messages of these slots in two:

    on the old member        up to `old_last`: all that were sent before the move. A sender that routed by the old map routes
                             again at its commit, so none of these slots comes later
    on the new member        from `new_first` on: all that are sent after it

A barrier holds these two numbers. The messages behind it wait until the subscription has finished those before it: done by
whatever means, so a transfer that takes them elsewhere, an expiration or a purge counts. Then the barrier is *passed* by this
subscription: a commit to the table says so, after the store has it. Nothing that is done is ever available again, so a passed
barrier stays passed. It may be passed for some of its slots first: one message that waits for long holds back its own slot.
A barrier that every subscription has passed is forgotten, and so is one that no subscription waits behind.

Barriers chain. When a slot moves from A to B and on to C, its messages on C wait for those on B and for those on A: B may
have none of its own by which C would wait for A. A message may be behind several barriers, and waits for all.

No slot returns to a member whose messages it waits for. So the barriers of a slot never run in a circle, and a slot has at most
one for each pair of members. Those of all slots of a pair are one barrier: from the lowest `new_first` on, for all up to the
highest `old_last`. That adds nothing to wait for: between the two numbers of its own move, a slot has no message that is not
done. Hence a table has at most one barrier for each pair of members and each set of subscriptions that have passed, however often
its members change.

    a slot must leave a member that ...     it goes to
    -----------------------------------     ----------
    goes on, and has more than its share    one that has less; if it waits for messages on all of these, it stays
    is *leaving*: it is to be removed,      one that has less, else to any other; if it waits for messages on all of these, it
    and still has messages                  stays, and its new messages with it
    is removed, and empty                   the member from which it came, if that has less than its share, else as above; never to
                                            one for whose messages it waits: the last one of its chain is not

A slot that had to stay follows when the barriers in its way are passed. A leaving member gets nothing else that is new.

Tables of earlier versions have slots that did return: their barriers run in circles, and are kept as they are until they are
passed, because there the two numbers do split messages that wait.

**Paths.** With `unitOfOrderRouting: path-service` a unit whose member is down when it begins goes to another one, and stays
there. A unit belongs to the member of its slot, as with hashing, unless the table has a *path* for it, which names another
member. So only exceptions are kept, and while all members are up there are none:

    the unit ...                                             its messages go to
    ------------                                             ------------------
    has a path                                               the path's member; while that is down, the send fails
    has none, and the member of its slot is up               that member
    has none, that member is down, and the table has no      another member, which is up; the send makes the path
      message of the unit: it is new
    has none, that member is down, and the table has some    that member: the send fails

Where paths are. Senders open no store, and a service of its own could be away by itself. So a path is an action of the
destination's log: `txn`, application id `path/UNIT`, version member + 1; version 0 ends it. Every sender and task has the
paths with the snapshot by which it routes. Delta's readers keep the newest `txn` of an application id, so the paths survive
checkpoints of other programs too.

Who decides. The commit of the send that begins the unit, and nothing before it. A task or a client only *places* a new unit,
by its name, so that all tasks of a batch place it alike, and notes it with the staged file. The committer decides on the
newest snapshot: it looks for older messages of the unit, and adds the path to the same commit as the messages. A sender that
finds other paths than those by which it routed, or other members, routes again (`RouteId`); of two first senders of a unit
the second follows the path of the first.

Where older messages can be: on the member of the slot, and on the old members of the barriers of that slot. All later ones
are on the path's member.

How a path ends. Housekeeping ends it when the table has no message of the unit on the path's member any more. A file leaves
the table only when every subscription has finished it, so nothing of the unit is left anywhere, and its next message may
go to the member of its slot. The commit that ends the path has looked at every file of the snapshot that it follows, and a
sender that routed by the path routes again. So there are never more paths than units with messages in the table.

When the path's member leaves. The commit that takes its slots ends its paths too, and puts a barrier for the units' slots
between it and their members, as if these slots had moved from it. Other units of these slots may then wait a little longer,
which harms no order. A member that is removed is empty, and needs no barrier.

When the slot moves, a unit with a path stays where it is. `unitOfOrderRouting: hash` makes no new paths, and keeps those that
exist until they end.

Transfers (`jmsq move`, redrive, error destinations) follow the paths that stand when they are appended, and make none. A send to
`server@destination` does neither.

Features: D5, T10 (docs/FEATURES.md)
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.messages.arrays import empty_table, repeated
from spark_jms.core.messages.ranges import FEW, Ranges
from spark_jms.core.messages.types import readable
from spark_jms.errors import MessageFormatError

SLOTS = 1024
_ALL = frozenset(range(SLOTS))
PATH_PREFIX = "path/"  # txn app id of a unit's path; its version is the member + 1, or 0 at the end of the path
_MOST_CHUNKS = 64  # of a table that grows by a few rows at a time
_SLOT_BITS = 10  # of the hash: those that the slot has used


def slot_of(group_id: str) -> int:
    return zlib.crc32(group_id.encode()) % SLOTS


# -- slots, and the barriers behind those that have moved --------------------------------------------------------------
@dataclass(frozen=True)
class Barrier:
    """`passed`: the subscriptions that have finished the slots' messages on `old` up to `old_last`."""

    slots: frozenset[int]
    old: int
    old_last: int
    new: int
    new_first: int
    passed: frozenset[str] = frozenset()

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Several barriers may have it, for different slots."""
        return self.old, self.old_last, self.new, self.new_first

    def to_json(self) -> dict[str, Any]:
        return {
            "slots": _runs(self.slots),
            "old": [self.old, self.old_last],
            "new": [self.new, self.new_first],
            "passed": sorted(self.passed),
        }

    @staticmethod
    def from_json(stored: dict[str, Any]) -> Barrier:
        slots = frozenset(slot for low, high in stored["slots"] for slot in range(low, high + 1))
        (old, old_last), (new, new_first) = stored["old"], stored["new"]
        return Barrier(slots, old, old_last, new, new_first, frozenset(stored["passed"]))


@dataclass(frozen=True)
class SlotMap:
    """`owners` has the member of each slot."""

    owners: tuple[int, ...]
    barriers: tuple[Barrier, ...] = ()

    def __post_init__(self) -> None:
        if len(self.owners) != SLOTS:
            raise ValueError(f"there are {SLOTS} slots, not {len(self.owners)}")

    @staticmethod
    def of(pattern: Sequence[int]) -> SlotMap:
        """Slot s belongs to `pattern[s % len(pattern)]`."""
        return SlotMap(tuple(pattern[slot % len(pattern)] for slot in range(SLOTS)))

    def shared(
        self,
        members: Sequence[int],
        present: Collection[int],
        last: Callable[[int], int],
        paths: Mapping[str, int] = MappingProxyType({}),
    ) -> SlotMap:
        """Shared out among `members`. `present` are those that the destination still has, with members that are leaving; of
        others nothing is left to wait for. `last` is the last sequence of a member. `paths` end: the slots
        of these units also move from the paths' members."""
        owners = _Sharing(self, members, present).owners()
        moves: dict[tuple[int, int], set[int]] = {}
        for slot, (old, new) in enumerate(zip(self.owners, owners, strict=True)):
            if old != new:
                moves.setdefault((old, new), set()).add(slot)
        for unit, old in paths.items():
            if old != (new := owners[slot_of(unit)]):
                moves.setdefault((old, new), set()).add(slot_of(unit))
        added = [
            Barrier(frozenset(slots), old, last(old), new, last(new) + 1)
            for (old, new), slots in sorted(moves.items())
            if last(old)
        ]
        inherited = [
            replace(b, slots=common, new=new, new_first=last(new) + 1)
            for (old, new), slots in sorted(moves.items())
            for b in self.barriers
            if b.new == old and b.old != new and (common := b.slots & slots)
        ]
        kept = (b for b in (*self.barriers, *inherited, *added) if b.old in present and b.new in present)
        return SlotMap(owners, _joined(kept))

    def inherited(self, members: Sequence[int]) -> SlotMap:
        """Only slots of members that the destination does not have any more go to others, in turn; such a member was empty."""
        heirs = cycle(members)
        owners = tuple(owner if owner in members else next(heirs) for owner in self.owners)
        return SlotMap(owners, tuple(b for b in self.barriers if b.old in members and b.new in members))

    def holders(self, slot: int) -> set[int]:
        """The members that can have messages of the slot's units: its own, and those for whose messages it waits."""
        return {self.owners[slot], *(barrier.old for barrier in self.barriers if slot in barrier.slots)}

    def before(self, member: int, subscription: str, floor: Callable[[int], int]) -> list[Barrier]:
        """The barriers on the way of a subscription's messages on `member`. `floor` is where the subscription starts on a
        member."""
        return [b for b in self.barriers if b.new == member and not _is_passed(b, subscription, floor)]

    def behind(self, member: int, subscription: str, floor: Callable[[int], int]) -> list[Barrier]:
        """The barriers that wait for what the subscription has on `member`."""
        return [b for b in self.barriers if b.old == member and not _is_passed(b, subscription, floor)]

    def pass_by(self, passed: Iterable[Barrier], subscription: str, *, is_last: bool) -> SlotMap:
        """`passed`: barriers, each with all or some of its slots: those of which nothing is left before it. `is_last`: no other
        subscription will ever come, as in a queue."""
        done: dict[tuple[int, int, int, int], frozenset[int]] = {}
        for barrier in passed:
            done[barrier.place] = done.get(barrier.place, frozenset()) | barrier.slots
        kept = []
        for barrier in self.barriers:
            common = barrier.slots & done.get(barrier.place, frozenset())
            if not common or subscription in barrier.passed:
                kept.append(barrier)
                continue
            if rest := barrier.slots - common:
                kept.append(replace(barrier, slots=rest))
            if not is_last:
                kept.append(replace(barrier, slots=common, passed=barrier.passed | {subscription}))
        return self if tuple(kept) == self.barriers else SlotMap(self.owners, _joined(kept))

    def without(self, subscription: str) -> SlotMap:
        """The subscription was dropped: another one of its name has passed nothing."""
        return SlotMap(self.owners, _joined(replace(b, passed=b.passed - {subscription}) for b in self.barriers))

    def forgotten(
        self, known: Collection[Barrier], subscriptions: Collection[str], floor: Callable[[str, int], int]
    ) -> SlotMap:
        """Without those of the `known` barriers that all these subscriptions have passed, and without the names of others, which
        have ended. `floor` is where a subscription starts on a member."""
        kept = []
        for b in self.barriers:
            if b not in known:
                kept.append(b)
            elif not all(_is_passed(b, name, partial(floor, name)) for name in subscriptions):
                kept.append(replace(b, passed=b.passed.intersection(subscriptions)))
        return SlotMap(self.owners, _joined(kept))

    def to_json(self) -> dict[str, Any]:
        slots: dict[int, list[int]] = {}
        for slot, owner in enumerate(self.owners):
            slots.setdefault(owner, []).append(slot)
        owners = {str(member): _runs(slots[member]) for member in sorted(slots)}
        return {"owners": owners, "barriers": [barrier.to_json() for barrier in self.barriers]}

    @staticmethod
    def from_json(stored: dict[str, Any]) -> SlotMap:
        """Raises KeyError, TypeError or ValueError."""
        owners = [-1] * SLOTS
        for member, runs in stored["owners"].items():
            for low, high in runs:
                owners[low : high + 1] = [int(member)] * (high + 1 - low)
        if -1 in owners:
            raise ValueError("a slot has no member")
        return SlotMap(tuple(owners), tuple(map(Barrier.from_json, stored["barriers"])))


class _Sharing:
    """Shares slots out among `members`; see the table at the top."""

    def __init__(self, slots: SlotMap, members: Sequence[int], present: Collection[int]) -> None:
        self._slots, self._members, self._present = slots, members, present
        self._open = [_Open(members, frozenset())] * SLOTS
        for alike, barriers in _alike(b for b in slots.barriers if b.old in present):
            waits_for = frozenset(b.old for b in barriers if b.new in present)
            known: dict[int, _Open] = {}
            for slot in alike:
                owner = slots.owners[slot]
                if owner not in known:
                    known[owner] = _open(members, waits_for, {b.old for b in barriers if b.new == owner})
                self._open[slot] = known[owner]
        counts = Counter(owner for owner in slots.owners if owner in members)
        larger = sorted(members, key=lambda member: (-counts[member], member))[: SLOTS % len(members)]
        self._room = {m: SLOTS // len(members) + (m in larger) - counts[m] for m in members}

    def owners(self) -> tuple[int, ...]:
        """Each member has its share, within one, unless slots wait; no slot moves without need."""
        owners = list(self._slots.owners)
        lost = [slot for slot, owner in enumerate(owners) if owner not in self._room]
        for slot in sorted(lost, key=lambda slot: not self._open[slot].waits_for):
            owners[slot] = self._heir(slot, owners[slot])
            if owners[slot] in self._room:
                self._room[owners[slot]] -= 1
        for slot in reversed(range(SLOTS)):
            if self._room.get(owners[slot], 0) < 0:
                heir = next((m for m in self._open[slot].members if self._room[m] > 0), owners[slot])
                self._room[owners[slot]] += 1
                self._room[heir] -= 1
                owners[slot] = heir
        return tuple(owners)

    def _heir(self, slot: int, owner: int) -> int:
        """Of a slot whose owner does not stay."""
        found = self._open[slot]
        if found.members:
            roomy = (m for m in found.members if self._room[m] > 0)
            return next(roomy, max(found.members, key=self._room.__getitem__))
        if owner in self._present:
            return owner
        last = (m for m in sorted(self._present) if m not in found.waits_for)
        return next(last, self._last_of_circle(slot))

    def _last_of_circle(self, slot: int) -> int:
        """Where a slot was last whose barriers run in a circle: it has left no message there since it came."""
        found = [b for b in self._slots.barriers if slot in b.slots]
        came = {member: max((b.new_first for b in found if b.new == member), default=0) for member in self._present}
        went = {member: max((b.old_last for b in found if b.old == member), default=0) for member in self._present}
        return min(self._present, key=lambda member: (went[member] >= came[member], member not in self._room, member))


class _Open(NamedTuple):
    """`members` that a slot may go to; and those for whose messages it waits."""

    members: Sequence[int]
    waits_for: frozenset[int]


def _open(members: Sequence[int], waits_for: frozenset[int], came_from: Collection[int]) -> _Open:
    """Those from which the slot came go first: nothing new is to wait for there."""
    return _Open(sorted((m for m in members if m not in waits_for), key=lambda m: m not in came_from), waits_for)


def _alike(barriers: Iterable[Barrier]) -> list[tuple[frozenset[int], list[Barrier]]]:
    """The slots that have the same barriers, with these."""
    found: list[tuple[frozenset[int], list[Barrier]]] = [(_ALL, [])]
    for b in barriers:
        split = []
        for slots, own in found:
            common = slots & b.slots
            if common:
                split.append((common, [*own, b]))
            if len(common) < len(slots):
                split.append((slots - common, own))
        found = split
    return [(slots, own) for slots, own in found if own]


def _joined(barriers: Iterable[Barrier]) -> tuple[Barrier, ...]:
    """Each slot has one for a pair of members, if its barriers do not run in a circle, and then slots have it together."""
    ends: dict[tuple[int, int], tuple[int, int]] = {}  # old, new -> old_last, new_first
    lines: list[tuple[tuple[int, int], frozenset[str], frozenset[int]]] = []
    found: dict[tuple[tuple[int, int, int, int], frozenset[str]], set[int]] = {}
    for slots, own in _alike(barriers):
        if _runs_in_circle({(b.old, b.new) for b in own}):
            for b in _needed(own):
                found.setdefault((b.place, b.passed), set()).update(slots)
            continue
        passed: dict[tuple[int, int], frozenset[str]] = {}
        for b in own:
            pair = b.old, b.new
            passed[pair] = passed.get(pair, b.passed) & b.passed
            old_last, new_first = ends.get(pair, (b.old_last, b.new_first))
            ends[pair] = max(old_last, b.old_last), min(new_first, b.new_first)
        lines += [(pair, names, slots) for pair, names in passed.items()]
    for (old, new), names, slots in lines:
        old_last, new_first = ends[old, new]
        found.setdefault(((old, old_last, new, new_first), names), set()).update(slots)
    return tuple(
        Barrier(frozenset(slots), *place, passed)
        for (place, passed), slots in sorted(found.items(), key=lambda item: (item[0][0], sorted(item[0][1])))
    )


def _runs_in_circle(pairs: Collection[tuple[int, int]]) -> bool:
    """Whether a member comes after itself: members before which none is left are taken away until all are, or none can be."""
    left = set(pairs)
    while left:
        behind = {new for _, new in left}
        first = {pair for pair in left if pair[0] not in behind}
        if not first:
            return True
        left -= first
    return False


def _needed(barriers: Collection[Barrier]) -> list[Barrier]:
    """Of one slot: without those that another one implies."""
    kept: list[Barrier] = []
    for b in sorted(barriers, key=lambda b: (b.old, b.new, -b.old_last, b.new_first, len(b.passed))):
        if not any(
            k.old == b.old and k.new == b.new and k.new_first <= b.new_first and k.passed <= b.passed for k in kept
        ):
            kept.append(b)
    return kept


def _is_passed(barrier: Barrier, subscription: str, floor: Callable[[int], int]) -> bool:
    return subscription in barrier.passed or floor(barrier.old) >= barrier.old_last


def _runs(slots: Iterable[int]) -> list[list[int]]:
    return [[low, high] for low, high in Ranges.from_numbers(slots)]


# -- messages that wait for an earlier one of their unit ---------------------------------------------------------------
@dataclass(frozen=True)
class UnitMessages:
    """Messages that belong to units of order. `rows` has the columns `sequence` (int64), `unit` (string) and `expires_ms`
    (int64; 0: never)."""

    rows: pa.Table

    @staticmethod
    def of(
        sequences: pa.Int64Array,
        units: pa.StringArray,
        expires_ms: pa.Int64Array | None = None,
        *,
        among: pa.BooleanArray | None = None,
    ) -> UnitMessages:
        """Those of `sequences` that belong to a unit, and are `among` the chosen ones."""
        ends = repeated(0, pa.int64(), len(sequences)) if expires_ms is None else expires_ms
        rows = pa.Table.from_arrays([sequences, readable(units), ends], schema=_ROWS)
        chosen = pc.is_valid(units) if units.null_count else None
        if among is not None:
            chosen = among if chosen is None else pc.and_(chosen, among)
        return UnitMessages(rows if chosen is None else rows.filter(chosen))

    @staticmethod
    def together(parts: Iterable[UnitMessages]) -> UnitMessages:
        filled = [part.rows for part in parts if part]
        if not filled:
            return NO_UNITS
        rows = pa.concat_tables(filled)
        return UnitMessages(rows.combine_chunks() if rows["sequence"].num_chunks > _MOST_CHUNKS else rows)

    def __bool__(self) -> bool:
        return self.rows.num_rows > 0

    def only(self, mask: pa.BooleanArray) -> UnitMessages:
        return UnitMessages(self.rows.filter(mask))

    @property
    def sequences(self) -> pa.Int64Array:
        return self.rows["sequence"].combine_chunks()

    def expired(self, now_ms: int) -> pa.BooleanArray:
        ends = self.rows["expires_ms"]
        return pc.and_(pc.greater(ends, 0), pc.less_equal(ends, now_ms))

    def whole_units(self) -> dict[str, int]:
        """unit -> 0, for `BlockedUnits.block_behind`."""
        if not self:
            return {}
        units = self.rows["unit"]
        return dict.fromkeys((units if self.rows.num_rows < FEW else pc.unique(units)).to_pylist(), 0)

    def first_of_units(self) -> dict[str, int]:
        """unit -> its lowest sequence."""
        if self.rows.num_rows < FEW:
            found: dict[str, int] = {}
            for unit, sequence in zip(self.rows["unit"].to_pylist(), self.rows["sequence"].to_pylist(), strict=True):
                found[unit] = min(sequence, found.get(unit, sequence))
            return found
        firsts = self.rows.group_by("unit", use_threads=False).aggregate([("sequence", "min")])
        return dict(zip(firsts["unit"].to_pylist(), firsts["sequence_min"].to_pylist(), strict=True))


_ROWS = pa.schema([("sequence", pa.int64()), ("unit", pa.string()), ("expires_ms", pa.int64())])
NO_UNITS = UnitMessages(empty_table(_ROWS))


def with_default_unit(rows: pa.RecordBatch, unit: str | None) -> pa.RecordBatch:
    """Messages of one producer: those without a unit get this one; None: they stay without."""
    groups = rows.column("JMSXGroupID")
    if unit is None or not groups.null_count:
        return rows
    return rows.set_column(rows.schema.get_field_index("JMSXGroupID"), "JMSXGroupID", pc.fill_null(groups, unit))


def refuse_units(rows: pa.RecordBatch, destination: str) -> None:
    """For a destination that forwards messages between its members. Raises MessageFormatError when a sender's row belongs
    to a unit."""
    units = rows.column("JMSXGroupID")
    if units.null_count < len(units):
        row = pc.index(pc.is_valid(units), True).as_py()
        raise MessageFormatError(
            f"row {row}: JMSXGroupID is {units[row].as_py()!r}, but {destination} forwards messages between its members "
            "(forwardDelay), where a unit of order would lose its order: nothing was sent. Leave the unit out, or forwardDelay"
        )


# -- the path service --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class UnitPaths:
    """How one sender finds the members of units. `known`: unit -> member. While a member is `down`, new units go to `others`;
    () for a sender that makes no paths."""

    known: Mapping[str, int] = field(default_factory=dict)
    down: frozenset[int] = frozenset()
    others: tuple[int, ...] = ()

    def member_of(self, unit: str, owner: int) -> int:
        """`owner` is the member of the unit's slot."""
        found = self.known.get(unit)
        if found is not None:
            return found
        if not self.is_placed(unit, owner):
            return owner
        return self.others[(zlib.crc32(unit.encode()) >> _SLOT_BITS) % len(self.others)]

    def is_placed(self, unit: str, owner: int) -> bool:
        """It goes to another member if it is new, which only the commit finds out."""
        return bool(self.others) and owner in self.down and unit not in self.known


NO_PATHS = UnitPaths()


def path_action(unit: str, member: int) -> dict[str, dict[str, object]]:
    """Without `lastUpdated`: readers of Delta let only those expire that have it."""
    return {"txn": {"appId": PATH_PREFIX + unit, "version": member + 1}}


def end_action(unit: str) -> dict[str, dict[str, object]]:
    return {"txn": {"appId": PATH_PREFIX + unit, "version": 0}}


def by_member(units: Mapping[str, int]) -> dict[int, set[str]]:
    """unit -> member, turned round."""
    found: dict[int, set[str]] = {}
    for unit, member in units.items():
        found.setdefault(member, set()).add(unit)
    return found


def paths_of_lost(known: Mapping[str, int], members: Collection[int]) -> dict[str, int]:
    """The paths to other members than these, which stay."""
    return {unit: member for unit, member in known.items() if member not in members}
