"""Slots of units of order that move between members, and their barriers: against a model of messages (T10)."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jms.core.ordering.units_of_order import SLOTS, Barrier, SlotMap

memberships = st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True)


@given(st.lists(memberships, min_size=1, max_size=6))
def test_members_share_the_slots_and_no_slot_moves_without_need(history: list[list[int]]) -> None:
    """T10: within one slot; a member keeps as many as its share allows."""
    slots = SlotMap.of([0, 1])
    for members in history:
        after = slots.shared(members, members, lambda member: 5)
        counts = Counter(after.owners)
        assert set(counts) == set(members)
        assert max(counts.values()) - min(counts.values()) <= 1
        had = Counter(slots.owners)
        moved = sum(a != b for a, b in zip(slots.owners, after.owners, strict=True))
        assert moved == sum(max(had[m] - counts.get(m, 0), 0) for m in had)
        assert SlotMap.from_json(after.to_json()) == after
        slots = after


class World:
    """Messages of units on members, one subscription, and members that come and go. Each unit has a slot of its own."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.members = [0, 1]
        self.slots = SlotMap.of(self.members)
        self.last: Counter[int] = Counter()
        self.waiting: dict[int, dict[int, tuple[int, int]]] = {}  # member -> sequence -> unit, number
        self.sent: Counter[int] = Counter()
        self.got: dict[int, list[int]] = {}

    def send(self) -> None:
        unit = self.random.randrange(0, SLOTS, 97)
        member = self.slots.owners[unit]
        self.last[member] += 1
        self.sent[unit] += 1
        self.waiting.setdefault(member, {})[self.last[member]] = unit, self.sent[unit]

    def deliver(self) -> None:
        """A consumer of one member takes the first message of it that may be delivered; others wait."""
        member = self.random.choice([m for m in self.waiting if self.waiting[m]] or [0])
        barriers = self.slots.before(member, "-", lambda m: 0)
        stuck: set[int] = set()
        for sequence, (unit, number) in sorted(self.waiting.get(member, {}).items()):
            behind = any(unit in b.slots and sequence >= b.new_first for b in barriers)
            if behind or unit in stuck or self.random.random() < 0.3:  # refused, delayed, in other hands
                stuck.add(unit)
                continue
            del self.waiting[member][sequence]
            self.got.setdefault(unit, []).append(number)
            return

    def pass_barriers(self) -> None:
        """Slot by slot: the slots of a barrier have moved at different times."""
        for member in [*self.waiting]:
            done = []
            for b in self.slots.behind(member, "-", lambda m: 0):
                left = {u for s, (u, _) in self.waiting[member].items() if s <= b.old_last}
                if b.slots - left:
                    done.append(replace(b, slots=b.slots - left))
            self.slots = self.slots.pass_by(done, "-", is_last=self.random.random() < 0.5)

    def change_members(self) -> None:
        self.members = self.random.sample(range(5), self.random.randrange(1, 5))
        present = {*self.members, *(m for m in self.waiting if self.waiting[m])}
        self.slots = self.slots.shared(self.members, present, lambda m: self.last[m])


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_units_keep_their_order_while_slots_move(seed: int) -> None:
    """T10: members are added and removed at any moment, slots move on before their barrier is passed, and return; each unit
    is delivered in the order of sending, and in the end whole."""
    world = World(seed)
    for _ in range(150):
        (action,) = world.random.choices(
            [world.send, world.deliver, world.pass_barriers, world.change_members], [8, 8, 2, 1]
        )
        action()
    for _ in range(4_000):
        if not any(world.waiting.values()):
            break
        world.deliver()
        world.pass_barriers()
    assert not any(world.waiting.values())
    for unit, numbers in world.got.items():
        assert numbers == sorted(numbers)
        assert len(numbers) == world.sent[unit]


def test_subscription_that_begins_behind_the_move_waits_for_nothing() -> None:
    """T10, C10: nor does one that has passed; another one of its name does again."""
    slots = SlotMap.of([0]).shared([0, 1], [0, 1], lambda member: 10)
    (barrier,) = slots.before(1, "s", lambda member: 9)
    assert (barrier.old, barrier.old_last, barrier.new, barrier.new_first) == (0, 10, 1, 11)
    assert slots.before(1, "s", lambda member: 10) == []
    passed = slots.pass_by([barrier], "s", is_last=False)
    assert passed.before(1, "s", lambda member: 0) == []
    assert len(passed.before(1, "t", lambda member: 0)) == len(passed.without("s").before(1, "s", lambda m: 0)) == 1
    assert slots.pass_by([barrier], "-", is_last=True).barriers == ()


def test_empty_member_leaves_no_barrier() -> None:
    """T10: nor does one that is removed, because it is empty for every subscription."""
    assert SlotMap.of([0]).shared([0, 1], [0, 1], lambda member: 0).barriers == ()
    assert SlotMap.of([0, 1]).shared([0], [0], lambda member: 9).barriers == ()
    assert len(SlotMap.of([0, 1]).shared([0], [0, 1], lambda member: 9).barriers) == 1


@pytest.mark.parametrize("stored", [{}, {"owners": {}, "barriers": []}, {"owners": {"0": [[0, 9]]}, "barriers": []}])
def test_damaged_map_is_refused(stored: dict[str, Any]) -> None:
    """T10, C20."""
    with pytest.raises((KeyError, ValueError)):
        SlotMap.from_json(stored)
    assert Barrier.from_json(Barrier(frozenset((1, 2, 7)), 0, 1, 2, 3, frozenset("s")).to_json()).slots == {1, 2, 7}
