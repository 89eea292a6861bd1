"""A model of a destination with units of order whose members come and go: what each subscription waits for, against the order
of sending. The declaration changes by the decisions of the product, and goes through its stored form each time."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import attrs

from spark_jms.core.destinations.destination import Destination, Subscription
from spark_jms.core.ordering.units_of_order import SLOTS, Barrier, SlotMap, slot_of
from spark_jms.log.destinations.declarations import decide_change, decide_leaving
from spark_jms.log.sending.units_of_order import decide_forgotten, decide_passed
from spark_jms.log.tables.commit import Decision
from spark_jms.log.tables.snapshot import Snapshot

QUEUE = "-"
UNITS = [f"unit {n}" for n in range(40)]


class Table:
    """What the decisions ask a snapshot for."""

    def __init__(self, declared: Destination) -> None:
        self.last: Counter[int] = Counter()
        self.paths: Mapping[str, int] = {}
        self.metadata: dict[str, Any] = {"configuration": declared.to_configuration()}
        self.destination = declared
        self.entry_bytes = 0  # of the newest entry of the log

    def last_sequence(self, member: int) -> int:
        return self.last[member]

    def numbered_members(self) -> set[int]:
        return set(self.last)

    def commit(self, decision: Decision | None) -> bool:
        for action in decision.actions if decision else ():
            self.entry_bytes = len(json.dumps(action))
            self.metadata = action["metaData"]
            self.destination = Destination.from_configuration(self.metadata["configuration"], "here")
        return decision is not None

    @property
    def snapshot(self) -> Snapshot:
        return cast(Snapshot, self)


@dataclass(frozen=True)
class Sent:
    unit: str
    number: int


@dataclass
class Reader:
    """One subscription. `left`: by member, its unfinished messages by sequence. `floors` are None if the table knows it."""

    name: str
    floors: dict[int, int] | None = None
    left: dict[int, dict[int, Sent]] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)  # unit -> its number when the subscription began
    got: dict[str, int] = field(default_factory=dict)  # unit -> the newest number since then


class MembersModel:
    def __init__(self, kind: str, seed: int, *, servers: bool) -> None:
        self.random = random.Random(seed)
        self.servers = servers
        self.table = Table(self.declared(kind, 2))
        self.readers = {} if "topic" in kind else {QUEUE: Reader(QUEUE)}
        self.kept: dict[int, dict[int, Sent]] = {}  # what the table has not purged
        self.sent: Counter[str] = Counter()
        self.units = UNITS
        self.most_barriers = self.most_bytes = 0
        self.is_uneven = False  # `apply_as_before` does not share out evenly

    def declared(self, kind: str, *members: int) -> Destination:
        """Of so many members; or of those on these servers."""
        if self.servers:
            names = members if len(members) > 1 else range(members[0])
            on = tuple(f"s{n}" for n in names)
            return Destination("d", kind, len(on), servers=on)
        return Destination("d", kind, members[0])

    @property
    def slots(self) -> SlotMap:
        return self.table.destination.slot_map

    # -- messages -------------------------------------------------------------------------------------------------
    def send(self, count: int = 1) -> None:
        for _ in range(count):
            unit = self.random.choice(self.units)
            member = self.slots.owners[slot_of(unit)]
            self.table.last[member] += 1
            self.sent[unit] += 1
            one = Sent(unit, self.sent[unit])
            self.kept.setdefault(member, {})[self.table.last[member]] = one
            for reader in self.readers.values():
                reader.left.setdefault(member, {})[self.table.last[member]] = one

    def deliver(self, reader: Reader, refuses: float = 0.3) -> int:
        """A consumer of one member takes what may be delivered there; the units of what it refuses wait."""
        filled = [m for m, left in reader.left.items() if left]
        if not filled:
            return 0
        member = self.random.choice(filled)
        since: dict[int, int] = {}
        for b in self.table.destination.barriers_before(reader.name, member, reader.floors):
            since |= {slot: min(b.new_first, since.get(slot, b.new_first)) for slot in b.slots}
        stuck, done = set[str](), list[int]()
        for sequence, one in reader.left[member].items():
            waits = sequence >= since.get(slot_of(one.unit), sequence + 1)
            if waits or one.unit in stuck or self.random.random() < refuses:
                stuck.add(one.unit)
                continue
            self.check_order(reader, one)
            done.append(sequence)
        for sequence in done:
            del reader.left[member][sequence]
        return len(done)

    def check_order(self, reader: Reader, one: Sent) -> None:
        """Each number follows the one before it. Messages sent before the subscription began are in the order of each member."""
        if one.number > reader.begun.get(one.unit, 0):
            newest = reader.got.get(one.unit, reader.begun.get(one.unit, 0))
            assert newest + 1 == one.number, f"{reader.name}: {one} after {newest}"
            reader.got[one.unit] = one.number

    # -- barriers -------------------------------------------------------------------------------------------------
    def look(self, reader: Reader) -> None:
        """Slot by slot, as consumers and housekeeping do."""
        passed = []
        for member in {b.old for b in self.slots.barriers}:
            left = reader.left.get(member, {})
            for b in self.table.destination.barriers_behind(reader.name, member, reader.floors):
                waiting = {slot_of(one.unit) for sequence, one in left.items() if sequence <= b.old_last}
                if free := b.slots - waiting:
                    passed.append(replace(b, slots=free))
        if passed:
            self.table.commit(decide_passed(self.table.snapshot, reader.name, passed))

    def keep_house(self) -> None:
        known = frozenset(self.slots.barriers)
        for reader in self.readers.values():
            self.look(reader)
        known = known if self.random.random() < 0.3 else frozenset(self.slots.barriers)
        live = {r.name: Subscription(r.name, r.floors, 0) for r in self.readers.values() if r.floors is not None}
        self.table.commit(decide_forgotten(known, live, self.table.snapshot))
        for member, kept in self.kept.items():
            finished = [n for n in kept if all(n not in r.left.get(member, {}) for r in self.readers.values())]
            for sequence in finished if self.readers else ():
                del kept[sequence]

    # -- subscriptions --------------------------------------------------------------------------------------------
    def subscribe(self, name: str, *, durable: bool = True, earliest: bool = False) -> Reader:
        """`earliest`: a subscription that begins with what the table has."""
        reader = Reader(name)
        first = {m: min(kept, default=self.table.last[m] + 1) for m, kept in self.kept.items()}
        floors = {m: first[m] - 1 if earliest and m in first else last for m, last in self.table.last.items()}
        reader.left = {m: {n: one for n, one in kept.items() if n > floors[m]} for m, kept in self.kept.items()}
        if durable:
            known = {**self.table.destination.subscriptions, name: Subscription(name, floors, 0)}
            self.evolve(subscriptions=known)
        else:
            reader.floors = floors
        reader.begun = dict(self.sent)
        self.readers[name] = reader
        return reader

    def drop(self, name: str) -> None:
        if self.readers.pop(name).floors is None:
            declared = self.table.destination
            rest = {n: s for n, s in declared.subscriptions.items() if n != name}
            self.evolve(subscriptions=rest, slots=declared.slots and declared.slots.without(name))

    def evolve(self, **changes: Any) -> None:
        declared = attrs.evolve(self.table.destination, **changes)
        configuration = declared.to_configuration()
        self.table.commit(Decision("", [{"metaData": {**self.table.metadata, "configuration": configuration}}]))

    # -- members --------------------------------------------------------------------------------------------------
    def apply(self, *members: int, bounded: bool = True) -> bool:
        """As `jmsq apply`; False when a member that is to be removed has messages."""
        now = self.table.destination
        wanted = self.declared(now.kind, *members)
        kept = now.changed_to(wanted, self.table.numbered_members()).member_ids
        removed = [m for m in now.member_ids if m not in kept] if not now.same_declaration(wanted) else []
        if any(reader.left.get(m) for m in removed for reader in self.readers.values()):
            self.table.commit(decide_leaving(wanted, self.table.snapshot))
            if bounded:
                self.check()
            return False
        self.table.commit(decide_change(wanted, self.table.snapshot, None))
        for member in removed:
            self.kept.pop(member, None)
        if bounded:
            self.check()
        return True

    def apply_as_before(self, *members: int) -> None:
        """As a program of an earlier version does, which joins no barriers and lets slots return. Adds members only."""
        self.is_uneven = True
        now = self.table.destination
        wanted = self.declared(now.kind, *members)
        if not set(now.member_ids) - set(now.changed_to(wanted, self.table.numbered_members()).member_ids):
            after = now.changed_to(wanted, self.table.numbered_members())
            slots = shared_as_before(self.slots, after.member_ids, self.table.last)
            self.evolve(**{f.name: getattr(after, f.name) for f in attrs.fields(Destination)} | {"slots": slots})

    # -- what holds -----------------------------------------------------------------------------------------------
    def check(self) -> None:
        """At most one barrier for each pair of members and each set of subscriptions that have passed."""
        barriers = self.slots.barriers
        members = set(self.table.destination.member_ids)
        pairs = {(b.old, b.new) for b in barriers}
        assert all({*pair} <= members for pair in pairs)
        assert len(barriers) == len({(b.old, b.new, b.passed) for b in barriers})
        for pair in pairs:
            of_pair = [b.slots for b in barriers if (b.old, b.new) == pair]
            assert sum(map(len, of_pair)) == len(frozenset[int]().union(*of_pair)) <= SLOTS
        if not self.table.destination.is_topic:
            assert len(barriers) <= len(members) * (len(members) - 1)
        self.most_barriers = max(self.most_barriers, len(barriers))
        self.most_bytes = max(self.most_bytes, self.table.entry_bytes)

    def drain(self) -> None:
        """Everything is consumed, and then nothing waits for anything."""
        for _ in range(3_000):
            if not any(any(reader.left.values()) for reader in self.readers.values()):
                break
            for reader in self.readers.values():
                self.deliver(reader, 0.0)
                self.look(reader)
        assert not any(any(reader.left.values()) for reader in self.readers.values()), "messages wait for each other"
        for reader in self.readers.values():
            assert {**reader.begun, **reader.got} == self.sent
        for _ in range(3):
            self.keep_house()
        assert self.slots.barriers == ()
        staying = set(self.table.destination.member_ids) - self.table.destination.leaving
        shares = Counter(self.slots.owners)
        assert set(shares) == staying
        assert self.is_uneven or max(shares.values()) - min(shares.values()) <= 1


def shared_as_before(slots: SlotMap, members: Sequence[int], last: Mapping[int, int]) -> SlotMap:
    """Before barriers were joined: the members' slots are shared out, whatever waits."""
    owners, heirs = list(slots.owners), _turns(members)
    for slot, owner in enumerate(owners):
        if owner not in members or slot % len(members) == 0:
            owners[slot] = next(heirs)
    moves: dict[tuple[int, int], set[int]] = {}
    for slot, pair in enumerate(zip(slots.owners, owners, strict=True)):
        if pair[0] != pair[1]:
            moves.setdefault(pair, set()).add(slot)
    added = [
        Barrier(frozenset(moved), old, last[old], new, last[new] + 1)
        for (old, new), moved in moves.items()
        if last[old]
    ]
    inherited = [
        replace(b, slots=common, new=new, new_first=last[new] + 1)
        for (old, new), moved in moves.items()
        for b in slots.barriers
        if b.new == old and b.old != new and (common := b.slots & moved)
    ]
    kept = [b for b in (*slots.barriers, *inherited, *added) if b.old in members and b.new in members]
    return SlotMap(tuple(owners), tuple(kept))


def _turns(members: Sequence[int]) -> Iterator[int]:
    while True:
        yield from members
