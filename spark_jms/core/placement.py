"""Where the members of a destination are: their ids, their servers, and the slots of units of order.

A destination that targets servers has one member on each (uniform). Ids are given once: a server that is removed and added
again gets a member with a new id, so no record set, offset or acknowledgement ever means another member than it meant.

    the declaration ...        its member
    -------------------        ----------
    keeps a server             keeps its id and its messages
    adds a server              gets the next id
    removes a server           goes, if it is empty; else it leaves, and goes later

`slots` is the first map of the units of order. When members are added or removed, slots move, and slots.py has the map.

Features: D1, T10 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

HOME = "home"  # the server whose store is the domain's own
_MAX_PATTERN = 1024  # as many as there are slots


@dataclass(frozen=True)
class Placement:
    """`members`: id and server of each member, in the order of the declaration. `next_id` was never used. Slot s of the
    units of order belongs to `slots[s % len(slots)]`."""

    members: tuple[tuple[int, str], ...]
    next_id: int
    slots: tuple[int, ...]

    def __post_init__(self) -> None:
        ids = self.ids
        if not ids or len(set(ids)) < len(ids) or not 0 <= min(ids) <= max(ids) < self.next_id:
            raise ValueError(f"members {self.members} and next id {self.next_id} do not agree")
        if len({server for _, server in self.members}) < len(ids):
            raise ValueError(f"a server has one member of a destination: {self.members}")
        if not self.slots or set(self.slots) - set(ids):
            raise ValueError(f"slots belong to members: {self.slots}")

    @staticmethod
    def first(servers: Sequence[str]) -> Placement:
        """Of a new destination."""
        ids = tuple(range(len(servers)))
        return Placement(tuple(zip(ids, servers, strict=True)), len(ids), ids)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(member for member, _ in self.members)

    @property
    def servers(self) -> Mapping[int, str]:
        return dict(self.members)

    # -- stored form ----------------------------------------------------------------------------------------------
    def to_json(self) -> dict[str, Any]:
        return {"members": [[*pair] for pair in self.members], "next": self.next_id, "slots": list(self.slots)}

    @staticmethod
    def from_json(stored: dict[str, Any]) -> Placement:
        """Raises KeyError, TypeError or ValueError."""
        members = tuple((int(member), str(server)) for member, server in stored["members"])
        return Placement(members, int(stored["next"]), tuple(int(slot) for slot in stored["slots"]))


def placed_on(
    servers: Sequence[str], members: Iterable[tuple[int, str]], slots: Sequence[int], next_id: int
) -> Placement:
    """The placement on `servers` of a destination that has these members and slots now. Of several members on one server the
    first is kept."""
    kept: dict[str, int] = {}
    for member, server in members:
        if server in servers:
            kept.setdefault(server, member)
    placed = []
    for server in servers:
        if server not in kept:
            kept[server], next_id = next_id, next_id + 1
        placed.append((kept[server], server))
    ids = [member for member, _ in placed]
    return Placement(tuple(placed), next_id, _owners(slots, ids))


def _owners(slots: Sequence[int], ids: Sequence[int]) -> tuple[int, ...]:
    """The pattern of slots without removed members, whose slots go to the others in turn. The pattern is repeated first, so
    that each of the others gets its share."""
    if all(owner in ids for owner in slots):
        return tuple(slots)
    repeated = tuple(slots) * max(min(len(ids), _MAX_PATTERN // len(slots)), 1)
    heirs = cycle(ids)
    return tuple(owner if owner in ids else next(heirs) for owner in repeated)
