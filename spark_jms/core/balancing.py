"""Load balancing: which of the members that routing may use one sender uses. Pure.

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

Features: D2, D3, D9 (docs/FEATURES.md)
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace

from spark_jms.core.address import DestinationAddress
from spark_jms.core.destination import Destination
from spark_jms.core.routing import Routing, route_of
from spark_jms.settings.connection_factory import ConnectionFactory
from spark_jms.settings.destination import PATH_SERVICE


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
