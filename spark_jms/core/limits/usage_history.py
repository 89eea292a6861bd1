"""What passed through each destination, minute by minute, and the most that destinations and servers have held. Pure.

The counts come from the change feed (core/changes/usage_fold.py). `used` is no sum but what was seen last in the window; a window in
which it did not change and nothing passed has no row.

Features: T3, T17 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_jms.core.limits.quota import MessageUsage

WINDOW_MS = 60_000
KEPT_MS = 30 * 86_400_000
FORMAT_VERSION = 1  # of high marks


# -- the history -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class UsageWindow:
    """One destination in the minute that begins at `start_ms`. `used` None: no process looked, or nothing had changed."""

    destination: str
    start_ms: int
    sent: int = 0
    finished: int = 0
    expired: int = 0
    dropped: int = 0
    used: MessageUsage | None = None

    def __add__(self, later: UsageWindow) -> UsageWindow:
        """Both of the same window."""
        return UsageWindow(
            self.destination,
            self.start_ms,
            self.sent + later.sent,
            self.finished + later.finished,
            self.expired + later.expired,
            self.dropped + later.dropped,
            self.used if later.used is None else later.used,
        )


def merged(windows: Iterable[UsageWindow]) -> list[UsageWindow]:
    """One for each destination and minute, in order; earlier ones come first."""
    found: dict[tuple[int, str], UsageWindow] = {}
    for one in windows:
        key = (one.start_ms, one.destination)
        found[key] = found[key] + one if key in found else one
    return [found[key] for key in sorted(found)]


# -- high marks --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class HeldMessages:
    """What is not finished: messages, those of them that are pending (claimed, or waiting for a redelivery), and bytes."""

    messages: int = 0
    pending: int = 0
    bytes: int = 0

    def __add__(self, other: HeldMessages) -> HeldMessages:
        return HeldMessages(self.messages + other.messages, self.pending + other.pending, self.bytes + other.bytes)

    def raised_to(self, other: HeldMessages) -> HeldMessages:
        """The higher one of each."""
        return HeldMessages(
            max(self.messages, other.messages), max(self.pending, other.pending), max(self.bytes, other.bytes)
        )


NOTHING = HeldMessages()


@dataclass(frozen=True)
class ReceivedBytes:
    """Of a member: the bytes of its messages up to sequence `last`, since the marks were made."""

    last: int
    bytes: int = 0


@dataclass(frozen=True)
class DestinationLook:
    """One look at a destination. `arrived` are, by member, its last sequence now and the bytes of the messages behind the last
    sequence of the look before."""

    table_id: str
    held: HeldMessages
    members: Mapping[int, HeldMessages] = field(default_factory=dict)
    subscriptions: Mapping[str, HeldMessages] = field(default_factory=dict)
    arrived: Mapping[int, ReceivedBytes] = field(default_factory=dict)


@dataclass(frozen=True)
class DestinationMarks:
    """`since_ms`: when they were made, or reset. Those of a table; another table of the same name begins again."""

    table_id: str
    since_ms: int
    high: HeldMessages = NOTHING
    members: Mapping[int, HeldMessages] = field(default_factory=dict)
    subscriptions: Mapping[str, HeldMessages] = field(default_factory=dict)
    received: Mapping[int, ReceivedBytes] = field(default_factory=dict)

    @property
    def received_bytes(self) -> int:
        return sum(member.bytes for member in self.received.values())

    def after(self, look: DestinationLook) -> DestinationMarks:
        """Members and subscriptions that are no more lose theirs."""
        return DestinationMarks(
            self.table_id,
            self.since_ms,
            self.high.raised_to(look.held),
            {name: self.members.get(name, NOTHING).raised_to(held) for name, held in look.members.items()},
            {name: self.subscriptions.get(name, NOTHING).raised_to(held) for name, held in look.subscriptions.items()},
            {
                member: ReceivedBytes(
                    now.last, self.received[member].bytes + now.bytes if member in self.received else 0
                )
                for member, now in look.arrived.items()
            },
        )


@dataclass(frozen=True)
class ServerMarks:
    since_ms: int
    high: HeldMessages = NOTHING


@dataclass(frozen=True)
class DomainMarks:
    """The most that destinations and servers have held, also while no process watches.

    A service looks at the domain every few seconds. A look raises marks and adds to what was received:

        mark         the highest of all looks since the marks were made, or reset: a peak between two looks is not seen
        received     bytes of the files of the messages behind the last sequence of the look before; what came and was removed
                     between two looks is not counted

    Marks are a maximum, and what was received stands beside the sequence that it reaches to. So looks of several processes, and
    looks that are repeated, add nothing twice; a look that is lost is made up for by the next.
    """

    destinations: Mapping[str, DestinationMarks] = field(default_factory=dict)
    servers: Mapping[str, ServerMarks] = field(default_factory=dict)

    def after(
        self, looks: Mapping[str, DestinationLook], servers: Mapping[str, HeldMessages], now_ms: int
    ) -> DomainMarks:
        """`looks` by destination; `servers` of those of which every destination was seen."""
        destinations, known = dict(self.destinations), dict(self.servers)
        for name, look in looks.items():
            marks = destinations.get(name)
            if marks is None or marks.table_id != look.table_id:
                marks = DestinationMarks(look.table_id, now_ms)
            destinations[name] = marks.after(look)
        for server, held in servers.items():
            before = known.get(server, ServerMarks(now_ms))
            known[server] = ServerMarks(before.since_ms, before.high.raised_to(held))
        return DomainMarks(destinations, known)

    def only(self, destinations: Iterable[str], servers: Iterable[str]) -> DomainMarks:
        """Without those that were dropped."""
        return DomainMarks(
            {name: self.destinations[name] for name in destinations if name in self.destinations},
            {name: self.servers[name] for name in servers if name in self.servers},
        )

    def reset(self, destinations: Iterable[str], servers: Iterable[str]) -> DomainMarks:
        """These begin again with the next look."""
        gone, gone_servers = set(destinations), set(servers)
        return DomainMarks(
            {name: marks for name, marks in self.destinations.items() if name not in gone},
            {name: marks for name, marks in self.servers.items() if name not in gone_servers},
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "formatVersion": FORMAT_VERSION,
            "destinations": {name: _of_destination(marks) for name, marks in sorted(self.destinations.items())},
            "servers": {name: [marks.since_ms, *_held(marks.high)] for name, marks in sorted(self.servers.items())},
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> DomainMarks | None:
        """None: a later version wrote it. Raises KeyError, ValueError, TypeError or AttributeError when it is damaged."""
        if int(value["formatVersion"]) > FORMAT_VERSION:
            return None
        return DomainMarks(
            {str(name): _to_destination(marks) for name, marks in value["destinations"].items()},
            {
                str(name): ServerMarks(int(since_ms), HeldMessages(*map(int, held)))
                for name, (since_ms, *held) in value["servers"].items()
            },
        )


def _held(held: HeldMessages) -> list[int]:
    return [held.messages, held.pending, held.bytes]


def _of_destination(marks: DestinationMarks) -> dict[str, Any]:
    return {
        "tableId": marks.table_id,
        "since": marks.since_ms,
        "high": _held(marks.high),
        "members": {str(member): _held(held) for member, held in sorted(marks.members.items())},
        "subscriptions": {name: _held(held) for name, held in sorted(marks.subscriptions.items())},
        "received": {str(member): [one.last, one.bytes] for member, one in sorted(marks.received.items())},
    }


def _to_destination(value: Mapping[str, Any]) -> DestinationMarks:
    return DestinationMarks(
        str(value["tableId"]),
        int(value["since"]),
        HeldMessages(*map(int, value["high"])),
        {int(member): HeldMessages(*map(int, held)) for member, held in value["members"].items()},
        {str(name): HeldMessages(*map(int, held)) for name, held in value["subscriptions"].items()},
        {int(member): ReceivedBytes(*map(int, one)) for member, one in value["received"].items()},
    )
