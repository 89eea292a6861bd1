"""Outages: which messages of a replicated distributed topic were sent while a server was down. Pure.

Such a topic stores a message once, in one of its members, and each server has subscriptions with positions in all members.
So a server that is down misses a part of each member:

    a commit ...                    for this server and each member
    ------------                    -------------------------------
    takes the server down           an outage begins behind the last message
    of a sender                     (it needs to note nothing)
    brings the server up            the outage ends with the last message; without messages it leaves nothing behind

All three are commits to the log that numbers the messages, so on one version of the table each message is inside an outage or
outside, and no clock matters. A member that is added while a server is down belongs to the outage as a whole.

Once the server is up, its subscriptions get the persistent messages of an outage. They skip the others, which a JMS server
would have kept in memory alone. With `storeEnabled: false` they skip them all.

An outage whose messages have been removed from the table is forgotten with the next commit that takes a server down or up.

Features: D6 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spark_jms.core.ranges import EMPTY, Ranges


class Span(NamedTuple):
    """The messages of a member: the first that the table still has, and the last ever sent."""

    first: int
    last: int


@dataclass(frozen=True)
class Outages:
    """`over`: server -> member -> messages sent while it was down. `begun`: server that is down -> member -> the first message
    since."""

    over: Mapping[str, Mapping[int, Ranges]] = field(default_factory=dict)
    begun: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def missed(self, server: str, member: int, last: int) -> Ranges:
        """Those up to `last` that were sent while the server was down."""
        found = self.over.get(server, {}).get(member, EMPTY).between(1, last)
        if server not in self.begun:
            return found
        return found | _messages(self.begun[server].get(member, 1), last)

    def following(self, down: Collection[str], servers: Collection[str], members: Mapping[int, Span]) -> Outages:
        """After a commit by which exactly `down` are down, of the servers that the topic is on; `members` are its members
        before that commit's messages."""
        begun = {server: self.begun.get(server) or _behind(members) for server in servers if server in down}
        over: dict[str, dict[int, Ranges]] = {}
        for server in servers:
            for member, span in members.items():
                missed = self.over.get(server, {}).get(member, EMPTY)
                if server in self.begun and server not in down:
                    missed |= _messages(self.begun[server].get(member, 1), span.last)
                if kept := missed.between(span.first, span.last):
                    over.setdefault(server, {})[member] = kept
        return Outages(over, begun)

    # -- stored form ----------------------------------------------------------------------------------------------
    def to_json(self) -> list[list[Any]]:
        """[server, member, first, last], with null for the last while the server is down."""
        over = [
            [server, member, first, last]
            for server, missed in self.over.items()
            for member, ranges in missed.items()
            for first, last in ranges
        ]
        begun = [
            [server, member, first, None] for server, firsts in self.begun.items() for member, first in firsts.items()
        ]
        return sorted(over + begun, key=lambda row: (row[0], row[1], row[2]))

    @staticmethod
    def from_json(stored: Iterable[Any]) -> Outages:
        """Raises ValueError or TypeError."""
        over: dict[str, dict[int, Ranges]] = {}
        begun: dict[str, dict[int, int]] = {}
        for server, member, first, last in stored:
            if last is None:
                begun.setdefault(str(server), {})[int(member)] = int(first)
            else:
                missed = over.setdefault(str(server), {})
                missed[int(member)] = missed.get(int(member), EMPTY) | Ranges.of((int(first), int(last)))
        return Outages(over, begun)


NO_OUTAGES = Outages()


def _messages(first: int, last: int) -> Ranges:
    return Ranges.of((first, last)) if first <= last else EMPTY


def _behind(members: Mapping[int, Span]) -> dict[int, int]:
    return {member: span.last + 1 for member, span in members.items()}
