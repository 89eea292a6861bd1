"""Routing: the member that a message goes to, and the members that one sender, receiver or browser uses.

A unit of order (JMSXGroupID) hashes to one of 1,024 slots, and a slot belongs to one member, so its messages stay in order; paths
are the exceptions (ordering/units_of_order.py). Other messages go round robin, at random or by weight. Round robin splits a batch
into equal consecutive shares, which balances as well as single messages do and copies no bodies.

Features: C4, D2, D3, D6, D9 (docs/FEATURES.md)
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate, pairwise

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.destinations.destination import Destination
from spark_jms.core.messages.arrays import arrow_array, repeated
from spark_jms.core.messages.types import readable
from spark_jms.core.ordering.units_of_order import NO_PATHS, UnitPaths, slot_of
from spark_jms.errors import InvalidDestinationError
from spark_jms.settings.connection_factory import ConnectionFactory
from spark_jms.settings.destination import PATH_SERVICE, POLICIES

_MEMBER = re.compile(r"(?P<server>.+)\.(?P<member>[0-9]{1,9})\Z")


@dataclass(frozen=True)
class DestinationAddress:
    """The name of a destination, of its members on a server, or of one of those. `server`: what stands before the @; None: the
    whole destination.

        orders           the destination: all its members
        east@orders      its members on the server `east`; `home` is the domain's own store
        home.2@orders    its member 2, on the server `home`

    A destination that targets servers has one member on each, so there `east@orders` names one member. Without servers all
    members are on `home`. A server that is called `home.2` itself comes first.
    """

    destination: str
    server: str | None = None

    @staticmethod
    def parse(text: str) -> DestinationAddress:
        """Raises InvalidDestinationError."""
        if not isinstance(text, str):
            raise InvalidDestinationError(f"{text!r} is not a destination: give its name, or server@name")
        before, at, after = text.partition("@")
        if not at:
            return DestinationAddress(text)
        if not before or not after:
            raise InvalidDestinationError(
                f"{text!r} names no member: write server@destination, such as east@orders, or server.member@destination"
            )
        return DestinationAddress(after, before)

    def narrowed(self, declared: Destination, members: Sequence[int] | None) -> list[int] | None:
        """The members that it names, when a caller may also list `members`; None: all. Raises InvalidDestinationError when
        both do, or one is not there."""
        if self.server is not None and members:
            raise InvalidDestinationError(f"{self} names its member already: give no other, or name {self.destination}")
        listed = [declared.check_member(member) for member in members] if members else None
        return self.members(declared) if self.server is not None else listed

    def consumed(self, declared: Destination, members: Sequence[int] | None) -> list[int]:
        """The members of which a command takes messages for good, when it may also list `members`: as `narrowed`, and of one
        server of a replicated topic all of them. Raises InvalidDestinationError."""
        listed = self.narrowed(declared, members)
        whole_server = self.server is not None and declared.is_replicated
        return list(declared.member_ids) if listed is None or whole_server else listed

    def __str__(self) -> str:
        return self.destination if self.server is None else f"{self.server}@{self.destination}"

    def read_members(self, declared: Destination) -> list[int] | None:
        """The members whose messages a consumer or browser of this address gets; None: all. A subscription on one server of a
        replicated topic gets those of all members. Raises InvalidDestinationError."""
        members = self.members(declared)
        return None if declared.is_replicated else members

    def server_in(self, declared: Destination) -> str | None:
        """The server that it names, which the destination need not be on; None: it names none."""
        return self._place(declared)[0]

    def member_in(self, declared: Destination) -> int | None:
        """The member that it names by its number, which need not be there; None: it names none."""
        return self._place(declared)[1]

    def members(self, declared: Destination) -> list[int] | None:
        """The members that it names; None: all. Raises InvalidDestinationError, which names the servers or members."""
        server, member = self._place(declared)
        if server is None:
            return None
        found = declared.members_on(server)
        if not found:
            raise InvalidDestinationError(
                f"{self}: {self.destination} has no member on a server {server!r} (it is on: "
                f"{', '.join(declared.servers_in_use())})"
            )
        if member is None:
            return found
        if declared.is_replicated:
            raise InvalidDestinationError(
                f"{self}: every subscription of a replicated topic has the messages of all its members: name a server, "
                f"{server}@{self.destination}"
            )
        if member not in found:
            raise InvalidDestinationError(
                f"{self}: {self.destination} has no member {member} on server {server} (there are: {', '.join(map(str, found))})"
            )
        return [member]

    def _place(self, declared: Destination) -> tuple[str | None, int | None]:
        """The server and the member."""
        servers = declared.servers_in_use()
        numbered = _MEMBER.match(self.server or "")
        if self.server in servers or numbered is None or numbered["server"] not in servers:
            return self.server, None
        return numbered["server"], int(numbered["member"])


@dataclass(frozen=True)
class Routing:
    """The route of one destination. `epoch` rises with every change, so that a send notices that its route is old. `ids` are
    those of the members, () for 0 to `members` - 1; `weights` are in their order."""

    epoch: int
    members: int
    policy: str = "round-robin"
    weights: tuple[int, ...] = ()
    slot_members: int = 0  # the first so many members share the slots; 0 = all
    closed: frozenset[int] = frozenset()  # members that get no message without a unit of order, while others are open
    ids: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()  # slot s belongs to slots[s % len(slots)]; () for the first `slot_members` members
    paths: UnitPaths = NO_PATHS

    def __post_init__(self) -> None:
        if self.members < 1:
            raise ValueError("a destination has at least 1 member")
        if self.policy not in POLICIES:
            raise ValueError(f"routing is one of {', '.join(POLICIES)}, not {self.policy!r}")
        if self.policy == "weighted" and (len(self.weights) != self.members or not sum(self.weights)):
            raise ValueError(f"weighted routing needs {self.members} weights, not all 0")

    def member_of_slot(self, slot: int) -> int:
        """Of the first members; a destination whose slots have moved has a `SlotMap`."""
        if self.slots:
            return self.slots[slot % len(self.slots)]
        return slot % (self.slot_members or self.members)

    def member_of_unit(self, unit: str) -> int:
        return self.paths.member_of(unit, self.member_of_slot(slot_of(unit)))

    @property
    def all_members(self) -> Sequence[int]:
        return self.ids or range(self.members)

    def weights_of(self, members: Collection[int]) -> list[int]:
        """[] when the policy has none."""
        return [w for m, w in zip(self.all_members, self.weights, strict=False) if m in members]

    def open_members(self) -> list[int]:
        """The members that may get messages without a unit of order; all of them when every one is closed."""
        members = self.all_members
        usable = [m for m, w in zip(members, self.weights, strict=True) if w] if self.policy == "weighted" else members
        return [m for m in usable if m not in self.closed] or list(members)

    def only(self, members: Collection[int]) -> Routing:
        """As if the destination had no other members, for units of order too."""
        ids = tuple(m for m in self.all_members if m in members)
        if len(ids) == len(self.all_members):
            return self  # with its slots: units of order go where they always do
        weights = tuple(self.weights_of(ids)) if self.weights else ()
        policy = self.policy if self.policy != "weighted" or any(weights) else "round-robin"
        return replace(self, members=len(ids), policy=policy, weights=weights, ids=ids, slots=ids, paths=NO_PATHS)

    def preferring(self, members: Collection[int]) -> Routing:
        """What has no unit of order goes to these."""
        return replace(self, closed=frozenset(m for m in self.all_members if m not in members))

    def placing(self, down: frozenset[int], leaving: Collection[int]) -> Routing:
        """New units of members that are `down` go to others, by paths."""
        others = tuple(m for m in self.open_members() if m not in down and m not in leaving)
        return replace(self, paths=replace(self.paths, down=down, others=others))

    def placed_units(self, group_ids: pa.Array) -> dict[str, int]:
        """Those of these units of order that go to another member than that of their slot without a path so far, with that
        member."""
        if not self.paths.others or group_ids.null_count == len(group_ids):
            return {}
        units = readable(pc.unique(group_ids)).drop_null().to_pylist()
        return {
            unit: self.member_of_unit(unit)
            for unit in units
            if self.paths.is_placed(unit, self.member_of_slot(slot_of(unit)))
        }


def route_of(declared: Destination) -> Routing:
    """The route of a destination as it is declared now."""
    members, placement = declared.member_ids, declared.placement
    ids, slots = (placement.ids, placement.slots) if placement else ((), ())
    closed = declared.pauses.closed(members) | declared.down_members
    if not set(members) <= closed | declared.leaving:  # else one that is leaving takes messages again
        closed |= declared.leaving
    return Routing(
        declared.epoch,
        declared.members,
        declared.routing,
        declared.weights,
        declared.slot_members,
        closed,
        ids,
        declared.slots.owners if declared.slots else slots,
        UnitPaths(declared.paths) if declared.paths else NO_PATHS,
    )


def route(routing: Routing, group_ids: pa.Array, turn: int) -> pa.Int32Array:
    """The member of each row. Round robin starts at `turn`, which also seeds the random policies: the same batch with the
    same turn takes the same route."""
    rows = len(group_ids)
    free = _free_members(routing, rows, turn)
    if group_ids.null_count == rows:
        return free
    encoded = pc.dictionary_encode(group_ids)  # hashes each distinct id once
    members = [routing.member_of_unit(group_id) for group_id in readable(encoded.dictionary).to_pylist()]
    return pc.coalesce(pa.array(members, pa.int32()).take(encoded.indices), free)


def _free_members(routing: Routing, rows: int, turn: int) -> pa.Int32Array:
    """Of rows without a unit of order."""
    if not routing.closed and not routing.ids:
        return _places(routing.policy, routing.members, routing.weights, rows, turn)
    open_members = routing.open_members()
    weights = routing.weights_of(open_members)
    return arrow_array(open_members, pa.int32()).take(_places(routing.policy, len(open_members), weights, rows, turn))


def _places(policy: str, count: int, weights: Sequence[int], rows: int, turn: int) -> pa.Int32Array:
    """The place of each row among `count` members."""
    if count == 1:
        return _repeated(0, rows)
    if policy == "round-robin":
        if rows <= count:
            return arrow_array([(row * count // rows + turn) % count for row in range(rows)], pa.int32())
        begins = [-(-share * rows // count) for share in range(count + 1)]
        shares = enumerate(pairwise(begins))
        return pa.concat_arrays([_repeated((n + turn) % count, end - begin) for n, (begin, end) in shares])
    drawn = pc.random(rows, initializer=turn % 2**63)
    if policy == "random":
        return pc.cast(pc.min_element_wise(pc.floor(pc.multiply(drawn, count)), count - 1), pa.int32())
    drawn = pc.multiply(drawn, sum(weights))
    return reduce(
        pc.add, (pc.cast(pc.greater_equal(drawn, bound), pa.int32()) for bound in [*accumulate(weights)][:-1])
    )


def _repeated(member: int, rows: int) -> pa.Int32Array:
    return repeated(member, pa.int32(), rows)


def split(batch: pa.RecordBatch, members: pa.Int32Array) -> list[tuple[int, pa.RecordBatch]]:
    """(member, its rows in order). Consecutive shares are slices of the batch; other rows are copied once."""
    runs = pc.run_end_encode(members)
    if len(set(runs.values.tolist())) < len(runs.values):
        order = pc.sort_indices(members)  # rows of equal members keep their order
        batch, runs = batch.take(order), pc.run_end_encode(members.take(order))
    parts, begin = [], 0
    for member, end in zip(runs.values.tolist(), runs.run_ends.tolist(), strict=True):
        parts.append((member, batch.slice(begin, end - begin)))
        begin = end
    return parts


# -- load balancing ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Balancing:
    """Which of the members that routing may use one sender uses. `server`: the address names it. `home`: the server that affinity
    prefers. `sender`: the name by which a sender that is balanced once draws its member; None: each message is balanced. `used`:
    the member that it has used.

    Each rule narrows what the one above has left, unless it would leave nothing:

        the sender ...                                  uses
        --------------                                  ----
        names a server (`east@orders`)                  the members there and no others; the rules below do not matter
        any                                             members that are not down and not paused for senders
        balances per JVM                                of each server the member with the lowest id
        has a home server, and affinity                 the members on that server
        is balanced once, not for each message          the one that it has used; else one drawn by its name

    Units of order go to the member of their slot or path, whatever a sender prefers. A sender that names a server sends them there.

    The draw gives each (sender, member) a number and takes the lowest: a sender whose member is not usable draws another one,
    and all others stay where they are. Tasks of one query draw the same member without asking each other.
    """

    server: str | None = None
    per_jvm: bool = False
    home: str | None = None
    sender: str | None = None
    used: int | None = None

    def routing(self, declared: Destination) -> Routing:
        """Raises InvalidDestinationError when the destination has no member on the named server."""
        route = route_of(declared)
        if self.server is not None:
            return route.only(DestinationAddress(declared.name, self.server).members(declared) or ())
        if declared.unit_of_order_routing == PATH_SERVICE and declared.down_members:
            route = route.placing(declared.down_members, declared.leaving)
        if not (self.per_jvm or self.home is not None or self.sender is not None):
            return route
        return route.preferring(self._used(declared, route))

    def _used(self, declared: Destination, route: Routing) -> list[int]:
        usable = route.open_members()
        if self.per_jvm:
            usable = [*{declared.server_of(m): m for m in sorted(usable, reverse=True)}.values()]
        if self.home is not None:
            usable = [m for m in usable if declared.server_of(m) == self.home] or usable
        if self.sender is not None and self.used in usable:
            return [self.used]
        if self.sender is not None:
            weights = dict(zip(route.all_members, route.weights, strict=False))
            return [min(usable, key=lambda m: (-math.log(self._share(m)) / (weights.get(m, 1) or 1), m))]
        return usable

    def keeping(self, declared: Destination) -> Balancing:
        """Of a sender that is balanced once, before it sends: it keeps the member that it uses now."""
        if self.sender is None or self.server is not None:
            return self
        (used,) = self._used(declared, route_of(declared))
        return self if used == self.used else replace(self, used=used)

    def _share(self, member: int) -> float:
        """Between 0 and 1, evenly."""
        digest = hashlib.blake2b(f"{self.sender}/{member}".encode(), digest_size=6).digest()
        return (int.from_bytes(digest, "big") + 1) / (2**48 + 1)


ANY_MEMBER = Balancing()


def balancing_of(factory: ConnectionFactory, server: str | None, home: str | None, sender: str) -> Balancing:
    """Of one sender. `server`: its address names it; `home`: the home server of its connection."""
    return Balancing(
        server,
        per_jvm=factory.balances_per_jvm,
        home=home if factory.server_affinity_enabled else None,
        sender=None if factory.load_balancing_enabled else sender,
    )


# -- pinning -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Reachable:
    """A member whose server answers. `consumers`: how many hold its record or wait for it."""

    member: int
    server: str
    consumers: int = 0


def chosen(members: Sequence[Reachable], home: str | None, chance: int) -> Reachable:
    """The member of a distributed queue to which a new receiver or browser is pinned. `chance` is any number of 0 or more. `members`
    are not empty.

    Each rule narrows what the one above has left, unless it would leave nothing:

        members that can be reached
        those on the home server of the connection, with affinity; a browser has none
        those without consumers, for a receiver
        one of them by chance
    """
    at_home = [one for one in members if one.server == home] or list(members)
    free = [one for one in at_home if not one.consumers] or at_home
    return free[chance % len(free)]
