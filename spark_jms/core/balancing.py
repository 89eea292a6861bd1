"""Load balancing: which of the members that routing may use one sender uses (D2, D3, D9). Pure.

Each rule narrows what the one above has left, unless it would leave nothing:

    the sender ...                                  uses
    --------------                                  ----
    names a server (`east@orders`)                  the members there and no others; the rules below do not matter
    any                                             members that are not down and not paused for senders
    balances per JVM                                of each server the member with the lowest id
    has a home server, and affinity                 the members on that server
    is balanced once, not for each message          the one that it has used; else one drawn by its name

Units of order go to the member of their slot, whatever a sender prefers. A sender that names a server sends them there.

The draw gives each (sender, member) a number and takes the lowest: a sender whose member is not usable draws another one,
and all others stay where they are. Tasks of one query draw the same member without asking each other.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from spark_jms.core.address import DestinationAddress
from spark_jms.core.destination import Destination
from spark_jms.core.routing import Routing


@dataclass(frozen=True)
class Balancing:
    """`server`: the address names it. `home`: the server that affinity prefers. `sender`: the name by which a sender that is
    balanced once draws its member; None: each message is balanced. `used`: the member that it has used."""

    server: str | None = None
    per_jvm: bool = False
    home: str | None = None
    sender: str | None = None
    used: int | None = None

    def routing(self, declared: Destination) -> Routing:
        """Raises InvalidDestinationError when the destination has no member on the named server."""
        route = declared.route
        if self.server is not None:
            return route.only(DestinationAddress(declared.name, self.server).members(declared) or ())
        if not (self.per_jvm or self.home is not None or self.sender is not None):
            return route
        usable = route.open_members()
        if self.per_jvm:
            usable = [*{declared.server_of(m): m for m in sorted(usable, reverse=True)}.values()]
        if self.home is not None:
            usable = [m for m in usable if declared.server_of(m) == self.home] or usable
        if self.sender is not None:
            usable = [self._one_of(usable, dict(zip(usable, route.weights_of(usable), strict=False)))]
        return route.preferring(usable)

    def _one_of(self, usable: Collection[int], weights: Mapping[int, int]) -> int:
        if self.used in usable:
            assert self.used is not None
            return self.used
        return min(usable, key=lambda m: (-math.log(self._share(m)) / weights.get(m, 1), m))

    def _share(self, member: int) -> float:
        """Between 0 and 1, evenly."""
        digest = hashlib.blake2b(f"{self.sender}/{member}".encode(), digest_size=6).digest()
        return (int.from_bytes(digest, "big") + 1) / (2**48 + 1)


ANY_MEMBER = Balancing()
