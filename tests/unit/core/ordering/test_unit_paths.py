"""The path service of units of order, against a model of messages, members that go down, and slots that move (T10)."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from itertools import count as count_up
from itertools import islice

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.routing import ANY_MEMBER, Balancing, Routing, route_of
from spark_jms.core.ordering.units_of_order import (
    NO_PATHS,
    SlotMap,
    UnitPaths,
    end_action,
    path_action,
    paths_of_lost,
    slot_of,
)
from spark_jms.errors import ModuleFileError
from spark_jms.log.tables.files import LayeredMap
from spark_jms.log.tables.snapshot import LogReplay, Snapshot

UNITS = [f"unit {n}" for n in range(12)]


@dataclass
class Stored:
    """A message in the table, until it is purged."""

    unit: str
    number: int
    is_done: bool = False


class World:
    """Messages of units on members, one subscription, members that come and go, and some that are down."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.members = [0, 1, 2]
        self.slots = SlotMap.of(self.members)
        self.down: frozenset[int] = frozenset()
        self.paths: dict[str, int] = {}
        self.last: Counter[int] = Counter()
        self.table: dict[int, dict[int, Stored]] = {}  # member -> sequence -> message
        self.sent: Counter[str] = Counter()
        self.got: dict[str, list[int]] = {}
        self.paths_made = 0

    def waiting(self, member: int) -> dict[int, Stored]:
        return {sequence: one for sequence, one in sorted(self.table.get(member, {}).items()) if not one.is_done}

    def send(self) -> None:
        """As a sender routes and its commit decides: a send that fails leaves nothing."""
        unit = self.random.choice(UNITS)
        ids = tuple(self.members)
        plain = Routing(1, len(ids), closed=self.down, ids=ids, slots=self.slots.owners, paths=UnitPaths(self.paths))
        routing = plain.placing(self.down & frozenset(ids), ())
        member = routing.member_of_unit(unit)
        if member in self.down:
            return
        if unit in routing.placed_units(pa.array([unit])):
            holders = self.slots.holders(slot_of(unit))
            if any(one.unit == unit for m in holders for one in self.table.get(m, {}).values()):
                return
            self.paths[unit] = member
            self.paths_made += 1
        self.last[member] += 1
        self.sent[unit] += 1
        self.table.setdefault(member, {})[self.last[member]] = Stored(unit, self.sent[unit])

    def deliver(self) -> None:
        """A consumer of one member takes the first message that may be delivered; others wait."""
        members = [m for m in self.table if m not in self.down and self.waiting(m)]
        if not members:
            return
        member = self.random.choice(members)
        barriers = self.slots.before(member, "-", lambda m: 0)
        stuck: set[str] = set()
        for sequence, one in self.waiting(member).items():
            behind = any(slot_of(one.unit) in b.slots and sequence >= b.new_first for b in barriers)
            if behind or one.unit in stuck or self.random.random() < 0.3:  # refused, delayed, in other hands
                stuck.add(one.unit)
                continue
            one.is_done = True
            self.got.setdefault(one.unit, []).append(one.number)
            return

    def keep_house(self) -> None:
        """Purge, the ends of paths, and barriers. Of a member that is down nothing is known."""
        for member in self.table.keys() - self.down:
            self.table[member] = self.waiting(member)
            done = []
            for b in self.slots.behind(member, "-", lambda m: 0):
                left = {slot_of(one.unit) for s, one in self.waiting(member).items() if s <= b.old_last}
                if b.slots - left:
                    done.append(replace(b, slots=b.slots - left))
            self.slots = self.slots.pass_by(done, "-", is_last=True)
        present = {(one.unit, m) for m, all_ in self.table.items() for one in all_.values()}
        self.paths = {unit: m for unit, m in self.paths.items() if (unit, m) in present}

    def go_down(self) -> None:
        self.down = frozenset(self.random.sample(range(5), self.random.randrange(3)))

    def change_members(self) -> None:
        self.members = self.random.sample(range(5), self.random.randrange(1, 5))
        present = {*self.members, *(m for m in self.table if self.waiting(m))}
        lost = paths_of_lost(self.paths, self.members)
        self.slots = self.slots.shared(self.members, present, lambda m: self.last[m], lost)
        self.paths = {unit: m for unit, m in self.paths.items() if unit not in lost}


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_units_keep_their_order_with_paths(seed: int) -> None:
    """T10: members go down and come back, are added and removed, and paths begin and end at any moment; each unit is delivered
    in the order of sending, and in the end whole."""
    world = World(seed)
    actions = [world.send, world.deliver, world.keep_house, world.go_down, world.change_members]
    for _ in range(200):
        (action,) = world.random.choices(actions, [8, 8, 3, 1, 0.5])
        action()
    world.down = frozenset()
    for _ in range(4_000):
        if not any(map(world.waiting, world.table)):
            break
        world.deliver()
        world.keep_house()
    assert not any(map(world.waiting, world.table))
    for unit, count in world.sent.items():
        assert world.got[unit] == list(range(1, count + 1))
    world.keep_house()
    assert world.paths == {}


def test_model_makes_paths() -> None:
    """T10: the model above is not empty of what it is for."""
    made = 0
    for seed in range(5):
        world = World(seed)
        for _ in range(200):
            world.random.choice([world.send, world.deliver, world.keep_house, world.go_down])()
        made += world.paths_made
    assert made > 5


ORDERS = Destination("orders", "distributed-queue", 3, servers=("a", "b", "c"), unit_of_order_routing="path-service")


def of_member(member: int, count: int = 40) -> list[str]:
    units = (unit for n in count_up() if slot_of(unit := f"u{n}") % 3 == member)
    return list(islice(units, count))


def down(*servers: str, **more: object) -> Destination:
    import attrs

    return attrs.evolve(ORDERS, stopped=dict.fromkeys(servers, 1), **more)


def test_new_units_of_a_member_that_is_down_share_the_others() -> None:
    """T10: all senders place a unit alike, whatever members they prefer; units of other members stay."""
    placed = ANY_MEMBER.routing(down("a")).placed_units(pa.array([*of_member(0, 400), *of_member(1), None]))
    assert placed.keys() == set(of_member(0, 400))
    assert 130 < Counter(placed.values())[1] < 270
    assert set(placed.values()) == {1, 2}
    for balancing in (Balancing(home="c"), Balancing(per_jvm=True), Balancing(sender="one")):
        assert balancing.routing(down("a")).placed_units(pa.array(of_member(0, 400))) == placed


def test_hashing_transfers_and_named_servers_place_nothing() -> None:
    """T10, D3: nor does a path service while all members are up, or none is."""
    units = pa.array(of_member(0))
    assert ANY_MEMBER.routing(down("a", unit_of_order_routing="hash")).placed_units(units) == {}
    assert Balancing("b").routing(down("a")).placed_units(units) == {}
    assert route_of(down("a")).placed_units(units) == {}
    assert ANY_MEMBER.routing(ORDERS).placed_units(units) == {}
    assert ANY_MEMBER.routing(down("a", "b", "c")).placed_units(units) == {}


def test_leaving_member_gets_no_new_units() -> None:
    """T10, D1: not even while no other is up: its paths would keep it from becoming empty."""
    import attrs

    leaving = ORDERS.with_leaving((1,), lambda member: 5)
    for stopped in ({"a": 1}, {"a": 1, "c": 1}):
        routing = ANY_MEMBER.routing(attrs.evolve(leaving, stopped=stopped))
        assert 1 not in routing.placed_units(pa.array(of_member(0))).values()


def test_path_is_followed_by_every_sender() -> None:
    """T10: while the path's member is down, too, and after the setting has changed to hashing; but not by a name."""
    (unit,) = of_member(0, 1)
    for how in ("hash", "path-service"):
        for stopped in ((), ("a",), ("c",)):
            declared = down(*stopped, unit_of_order_routing=how, paths={unit: 2})
            assert route_of(declared).member_of_unit(unit) == ANY_MEMBER.routing(declared).member_of_unit(unit) == 2
            assert ANY_MEMBER.routing(declared).placed_units(pa.array([unit])) == {}
            assert Balancing("b").routing(declared).member_of_unit(unit) == 1
            assert declared.to_configuration()["jmsq.formatVersion"] == "5"
    assert NO_PATHS.member_of(unit, 0) == 0


def test_paths_of_a_lost_member_become_barriers() -> None:
    """T10, D1: the unit's messages on its slot's member wait for those on the path's member."""
    (unit,) = of_member(0, 1)
    left = down(paths={unit: 2}).with_leaving((2,), lambda member: 7)
    assert left.slots is not None
    owner = left.slots.owners[slot_of(unit)]
    assert owner in (0, 1)
    assert [
        (b.old, b.old_last, b.new_first) for b in left.slots.before(owner, "-", lambda m: 0) if slot_of(unit) in b.slots
    ] == [(2, 7, 8)]
    assert left.slots.holders(slot_of(unit)) == {owner, 2}
    assert paths_of_lost({unit: 2, "x": 1}, {0, 1}) == {unit: 2}


def test_log_has_paths_until_they_end() -> None:
    """T10: the newest action of a unit counts, and what changes paths changes the route of a send."""
    replay = LogReplay(Snapshot("here"))
    replay.apply_actions([path_action("u", 0), path_action("v", 5), {"txn": {"appId": "seq/0", "version": 1}}], 3)
    first = replay.snapshot()
    assert dict(first.paths) == {"u": 0, "v": 5}
    assert dict(first.transactions) == {"seq/0": 1}
    replay = LogReplay(first)
    replay.apply_actions([end_action("u"), end_action("never")], 4)
    assert dict(replay.snapshot().paths) == {"v": 5}
    assert (first.paths_version, replay.snapshot().paths_version) == (3, 4)
    replay = LogReplay(replay.snapshot())
    replay.apply_actions([{"txn": {"appId": "seq/0", "version": 2}}], 5)
    assert replay.snapshot().paths_version == 4
    assert isinstance(first.paths, LayeredMap)


def test_units_of_work_and_path_service_exclude_each_other() -> None:
    """T10, T12."""
    with pytest.raises(ModuleFileError, match="unitOfOrderRouting is path-service"):
        Destination(
            "q", "queue", unit_of_order_routing="path-service", unit_of_work_handling_policy="SingleMessageDelivery"
        )
