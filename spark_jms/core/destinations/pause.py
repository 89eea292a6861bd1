"""Pauses: operations of a destination that an administrator has stopped.

A pause is of one operation, and of the whole destination, of one member, or of the server that a member is on. A member is paused
while one of them stands; each ends by itself. Pauses lie in the table's metadata, beside the subscriptions and apart from the
declaration, so each is a commit to the log that also orders the messages: whatever commits after it obeys it.

    a sender ...                           production paused            insertion paused
    ------------                           -----------------            ----------------
    planned after the pause                refused                      waits for its time-out, then refused
    planned before it (in flight)          commits                      waits for its time-out, then refused
    is a transfer                          commits                      waits, however long; the transfer stays open

A message whose delay ends while insertion is paused, that of its sender or of a redelivery, becomes available after the
resume, unless it was due before the pause.

Each pause notes the routing epoch that it began, and a sender the epoch by which it planned; so "before" needs no clock.
While consumption is paused, no message is claimed. Acknowledging, releasing and browsing continue.

Features: T14 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_jms.errors import FormatVersionError

PRODUCTION, INSERTION, CONSUMPTION = "production", "insertion", "consumption"
OPERATIONS = {
    PRODUCTION: "new messages are refused",
    INSERTION: "nothing becomes available: senders and transfers that are under way wait, new messages are refused",
    CONSUMPTION: "no message is claimed",
}


@dataclass(frozen=True)
class Pause:
    """`member` None: of the whole destination. `epoch` is the first routing epoch with it. `server`: it is that of the server which
    the member is on; None: the destination's own."""

    operation: str
    member: int | None
    epoch: int
    since_ms: int
    server: str | None = None

    def covers(self, operation: str, member: int) -> bool:
        return self.operation == operation and self.member in (None, member)


@dataclass(frozen=True)
class Pauses:
    """All pauses of a destination, at most one for each operation and scope. A member may also be under one of its server."""

    all: tuple[Pause, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.all)

    def find(self, operation: str, member: int) -> Pause | None:
        """The earliest pause of this operation that the member is under."""
        found = (pause for pause in self.all if pause.covers(operation, member))
        return min(found, key=lambda pause: (pause.epoch, pause.since_ms), default=None)

    def members(self, operation: str, ids: Collection[int]) -> frozenset[int]:
        """Which of these members are paused."""
        return frozenset(m for m in ids if self.find(operation, m)) if self.all else frozenset()

    def closed(self, ids: Collection[int]) -> frozenset[int]:
        """The members that routing avoids: those paused for production or insertion. If that were all of them, those paused
        for insertion, which transfers have to avoid. If that were all of them too, none: then the commit decides."""
        for operations in ((PRODUCTION, INSERTION), (INSERTION,)):
            members = frozenset().union(*(self.members(operation, ids) for operation in operations))
            if len(members) < len(ids):
                return members
        return frozenset()

    # -- changes --------------------------------------------------------------------------------------------------
    def pause(self, operations: Collection[str], members: Collection[int] | None, epoch: int, now_ms: int) -> Pauses:
        """With these; the ones that stand already stay as they are. `members` None: the whole destination."""
        standing = {(pause.operation, pause.member) for pause in self.all if pause.server is None}
        scopes: list[int | None] = [None] if members is None else [*sorted(members)]
        new = (Pause(o, m, epoch, now_ms) for o in operations for m in scopes if (o, m) not in standing)
        return _sorted((*self.all, *new))

    def resume(self, operations: Collection[str], members: Collection[int] | None) -> Pauses:
        """Without these. `members` None: neither the destination's nor any member's own stays."""
        return Pauses(
            tuple(
                pause
                for pause in self.all
                if pause.server is not None
                or pause.operation not in operations
                or (members is not None and pause.member not in members)
            )
        )

    def of_servers(
        self, paused: Mapping[str, Mapping[str, int]], members_on: Callable[[str], Collection[int]], epoch: int
    ) -> Pauses:
        """With those of these servers (server -> operation -> since when, ms), and of no others; those that stand keep their epoch."""
        wanted = {
            (operation, member, server): since_ms
            for server, operations in paused.items()
            for operation, since_ms in operations.items()
            for member in members_on(server)
        }
        kept = tuple(p for p in self.all if p.server is None or (p.operation, p.member, p.server) in wanted)
        standing = {(p.operation, p.member, p.server) for p in kept}
        new = (Pause(o, m, epoch, since, s) for (o, m, s), since in wanted.items() if (o, m, s) not in standing)
        return _sorted((*kept, *new))

    def within(self, ids: Collection[int]) -> Pauses:
        """Without those of removed members."""
        return Pauses(tuple(pause for pause in self.all if pause.member is None or pause.member in ids))

    # -- stored form ----------------------------------------------------------------------------------------------
    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "operation": pause.operation,
                **_scope(pause),
                "epoch": pause.epoch,
                "sinceMs": pause.since_ms,
            }
            for pause in self.all
        ]

    @staticmethod
    def from_json(stored: Iterable[dict[str, Any]]) -> Pauses:
        """Raises FormatVersionError for an operation or a scope that this version does not know, and ValueError, KeyError or
        TypeError for anything else that is wrong."""
        found = []
        for entry in stored:
            operation, scope = str(entry["operation"]), str(entry["scope"])
            if operation not in OPERATIONS or scope not in ("destination", "member", "server"):
                raise FormatVersionError(
                    f"a pause of {operation} for a {scope} is unknown to this spark-jms: install a later spark-jms"
                )
            member = None if scope == "destination" else int(entry["member"])
            server = str(entry["server"]) if scope == "server" else None
            found.append(Pause(operation, member, int(entry["epoch"]), int(entry["sinceMs"]), server))
        return _sorted(found)


def _scope(pause: Pause) -> dict[str, Any]:
    if pause.member is None:
        return {"scope": "destination"}
    own = {"scope": "member", "member": pause.member}
    return own if pause.server is None else {**own, "scope": "server", "server": pause.server}


def _sorted(pauses: Iterable[Pause]) -> Pauses:
    order = list(OPERATIONS)

    def place(pause: Pause) -> tuple[int, int, str]:
        return order.index(pause.operation), -1 if pause.member is None else pause.member, pause.server or ""

    return Pauses(tuple(sorted(pauses, key=place)))
