"""The path service: units of order whose member is down when they begin go to another one, and stay there. Pure.

`unitOfOrderRouting: path-service`. A unit belongs to the member of its slot (slots.py), as with hashing, unless the table has
a *path* for it, which names another member. So only exceptions are kept, and while all members are up there are none:

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

Features: T10 (docs/FEATURES.md)
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

PATH_PREFIX = "path/"  # txn app id of a unit's path; its version is the member + 1, or 0 at the end of the path
_SLOT_BITS = 10  # of the hash: those that the slot has used


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
