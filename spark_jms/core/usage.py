"""What a destination holds for its consumers: messages that are not finished, and their bytes. Pure.

Senders open no store, so they cannot read what consumers have finished. A process that can, publishes for each member what was
unfinished up to the member's last sequence at that time. A sender adds what its own snapshot of the log has behind that
sequence:

    usage now = the published usage + the messages behind the published last sequences

A subscription that began before these, and of which the publication does not know, may have all of them: then all messages in the
log count until the next publication.

A purge publishes before it takes files out of the log. So the newest publication knows them as finished, and a late one, which does
not, is refused: usage that fell with the files does not rise again.

Messages in flight, delayed and claimed ones are not finished. A topic's message is finished when every subscription has finished
it, and counts once. A publication that is late overstates the usage; nothing understates it.

Bytes are those of the data files. A file counts with all its bytes until all its messages are finished.

Features: T1, T3 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_jms.core.destination import Subscription

FORMAT_VERSION = 1


@dataclass(frozen=True)
class MessageUsage:
    messages: int = 0
    bytes: int = 0

    def __add__(self, other: MessageUsage) -> MessageUsage:
        return MessageUsage(self.messages + other.messages, self.bytes + other.bytes)

    def __sub__(self, other: MessageUsage) -> MessageUsage:
        return MessageUsage(self.messages - other.messages, self.bytes - other.bytes)

    def to_json(self) -> list[int]:
        return [self.messages, self.bytes]

    @staticmethod
    def from_json(value: Any) -> MessageUsage:
        messages, size = value
        return MessageUsage(int(messages), int(size))


def total(usages: Iterable[MessageUsage]) -> MessageUsage:
    return sum(usages, MessageUsage())


@dataclass(frozen=True)
class MemberUsage:
    """What was unfinished of the sequences 1 to `last` of a member on `server`."""

    last: int
    unfinished: MessageUsage
    server: str


@dataclass(frozen=True)
class PublishedUsage:
    """Of one table. A member that is not in it has published nothing."""

    destination: str
    members: Mapping[int, MemberUsage] = field(default_factory=dict)
    subscriptions: Mapping[str, int] = field(default_factory=dict)  # the durable ones, and when each was created, in ms

    def of(self, member: int, subscriptions: Iterable[Subscription]) -> MemberUsage | None:
        """None: nothing is known of the member, as these are the durable subscriptions now."""
        known = self.members.get(member)
        new = (one for one in subscriptions if self.subscriptions.get(one.name) != one.created_ms)
        return None if known is None or any(one.floor(member, known.last) < known.last for one in new) else known

    def on_server(self, server: str) -> MessageUsage:
        return total(member.unfinished for member in self.members.values() if member.server == server)

    def to_json(self) -> dict[str, Any]:
        return {
            "formatVersion": FORMAT_VERSION,
            "destination": self.destination,
            "members": {str(m): [u.last, *u.unfinished.to_json(), u.server] for m, u in sorted(self.members.items())},
            "subscriptions": dict(sorted(self.subscriptions.items())),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> PublishedUsage | None:
        """None: a later version wrote it. Raises KeyError, ValueError or TypeError when it is damaged."""
        if int(value["formatVersion"]) > FORMAT_VERSION:
            return None
        members = {
            int(member): MemberUsage(int(last), MessageUsage(int(messages), int(size)), str(server))
            for member, (last, messages, size, server) in value["members"].items()
        }
        subscriptions = {str(name): int(created_ms) for name, created_ms in value.get("subscriptions", {}).items()}
        return PublishedUsage(str(value["destination"]), members, subscriptions)
