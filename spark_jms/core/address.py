"""Names of destinations and of their members.

    orders         the destination: all its members
    east@orders    its members on the server `east`; `home` is the domain's own store

A destination that targets servers has one member on each, so there the address names one member. Without servers all
members are on `home`.

Features: D3, D6 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_jms.core.destination import Destination
from spark_jms.errors import InvalidDestinationError


@dataclass(frozen=True)
class DestinationAddress:
    """`server` None: the whole destination."""

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
            raise InvalidDestinationError(f"{text!r} names no member: write server@destination, such as east@orders")
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

    def members(self, declared: Destination) -> list[int] | None:
        """The members that it names; None: all. Raises InvalidDestinationError, which names the servers."""
        if self.server is None:
            return None
        found = declared.members_on(self.server)
        if not found:
            raise InvalidDestinationError(
                f"{self}: {self.destination} has no member on a server {self.server!r} (it is on: "
                f"{', '.join(declared.servers_in_use())})"
            )
        return found
