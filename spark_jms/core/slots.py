"""Which member has which slots of the units of order, and the barriers behind slots that have moved (T10). Pure.

A unit of order hashes to one of 1,024 slots, and a slot belongs to one member. When members are added or removed, slots
move so that each member has its share, and no more of them than that takes. The commit that moves slots sees the last
sequence of every member, so it splits the messages of these slots in two:

    on the old member        up to `old_last`: all that were sent before the move. A sender that routed by the old map routes
                             again at its commit, so none of these slots comes later
    on the new member        from `new_first` on: all that are sent after it

A barrier holds these two numbers. The messages behind it wait until the subscription has finished those before it: done by
whatever means, so a transfer that takes them elsewhere, an expiration or a purge counts. Then the barrier is *passed* by this
subscription: a commit to the table says so, after the store has it. Nothing that is done is ever available again, so a passed
barrier stays passed. It may be passed for some of its slots first: one message that waits for long holds back its own slot.

Barriers chain. When a slot moves from A to B and on to C, its messages on C wait for those on B and for those on A: B may
have none of its own by which C would wait for A. A slot that returns to A waits there from `new_first` on, but not its old
messages. A message may be behind several barriers, and waits for all.

A member that is to be removed and still has messages is *leaving*: its slots move, and it gets nothing new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from types import MappingProxyType
from typing import Any

from spark_jms.core.ranges import Ranges
from spark_jms.core.routing import SLOTS, slot_of


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
        others nothing is left to wait for. `last` is the last sequence of a member. `paths` end (unit_paths.py): the slots
        of these units also move from the paths' members."""
        owners = _shared(self.owners, members)
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
        return SlotMap(owners, tuple(kept))

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
        return SlotMap(self.owners, _joined(kept))

    def without(self, subscription: str) -> SlotMap:
        """The subscription was dropped: another one of its name has passed nothing."""
        return SlotMap(self.owners, _joined(replace(b, passed=b.passed - {subscription}) for b in self.barriers))

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


def _joined(barriers: Iterable[Barrier]) -> tuple[Barrier, ...]:
    """Those that differ in their slots alone as one."""
    found: dict[tuple[tuple[int, int, int, int], frozenset[str]], Barrier] = {}
    for barrier in barriers:
        known = found.get((barrier.place, barrier.passed))
        slots = barrier.slots | known.slots if known else barrier.slots
        found[barrier.place, barrier.passed] = replace(barrier, slots=slots)
    return tuple(found.values())


def _is_passed(barrier: Barrier, subscription: str, floor: Callable[[int], int]) -> bool:
    return subscription in barrier.passed or floor(barrier.old) >= barrier.old_last


def _shared(owners: Sequence[int], members: Sequence[int]) -> tuple[int, ...]:
    """Each member has its share, within one; no slot moves without need."""
    counts = Counter(owner for owner in owners if owner in members)
    larger = sorted(members, key=lambda member: (-counts[member], member))[: SLOTS % len(members)]
    quota = {member: SLOTS // len(members) + (member in larger) for member in members}
    left = dict(quota)
    kept: list[int | None] = []
    for owner in owners:
        stays = left.get(owner, 0) > 0
        left[owner] = left.get(owner, 0) - stays
        kept.append(owner if stays else None)
    heirs = iter([member for member in members for _ in range(max(left[member], 0))])
    return tuple(next(heirs) if owner is None else owner for owner in kept)


def _runs(slots: Iterable[int]) -> list[list[int]]:
    return [[low, high] for low, high in Ranges.from_numbers(slots)]
