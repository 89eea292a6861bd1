"""What a destination holds for its consumers: messages that are not finished, and their bytes (T1, T3). Pure.

Senders open no store, so they cannot read what consumers have finished. A process that can, publishes for each member what was
unfinished up to the member's last sequence at that time. A sender adds what its own snapshot of the log has behind that
sequence:

    usage now = the published usage + the messages behind the published last sequences

Messages in flight, delayed and claimed ones are not finished. A topic's message is finished when every subscription has finished
it, and counts once. A publication that is late overstates the usage; nothing understates it.

Bytes are those of the data files. A file counts with all its bytes until all its messages are finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

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

    def on_server(self, server: str) -> MessageUsage:
        return total(member.unfinished for member in self.members.values() if member.server == server)

    def to_json(self) -> dict[str, Any]:
        return {
            "formatVersion": FORMAT_VERSION,
            "destination": self.destination,
            "members": {str(m): [u.last, *u.unfinished.to_json(), u.server] for m, u in sorted(self.members.items())},
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
        return PublishedUsage(str(value["destination"]), members)
