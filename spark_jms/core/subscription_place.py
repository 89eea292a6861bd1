"""Where the positions of a subscription are. Pure.

    the destination is                     the record set of a subscription and a member is on
    ------------------                     -------------------------------------------------------
    a queue, a topic                       the server of the member
    a partitioned distributed topic        the server of the member: a subscription is on all servers
    a replicated distributed topic         the server of the subscription: that one has a record set for every member

The messages are always in the destination's table, once.

Features: D6, D7 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_jms.core.destination import Destination
from spark_jms.core.ranges import EMPTY, Ranges
from spark_jms.core.subscription_name import on_server, server_of_subscription
from spark_jms.errors import InvalidDestinationError


def record_server(declared: Destination, subscription: str, member: int) -> str:
    """The server with the record set of this subscription and member."""
    own = _own_server(declared, subscription)
    return declared.server_of(member) if own is None else own


def record_servers(declared: Destination, subscription: str) -> list[str]:
    """The servers with record sets of a subscription, as far as the destination is on them."""
    own = _own_server(declared, subscription)
    return [server for server in declared.servers_in_use() if own in (None, server)]


def recorded_on(declared: Destination, server: str, subscription: str) -> list[int]:
    """The members whose record sets for this subscription are on the server."""
    return [member for member in declared.member_ids if record_server(declared, subscription, member) == server]


def kept_at(declared: Destination, server: str | None, kept: str) -> str:
    """What a subscription is kept as, of which a consumer of `server@topic` (None: of `topic`) speaks."""
    if server is None or not declared.is_replicated or server_of_subscription(kept) is not None:
        return kept
    return on_server(server, kept)


def named_by(declared: Destination, server: str | None, kept: Sequence[str]) -> list[str]:
    """Of these subscriptions, those that `server@topic` (None: `topic`) names: of a replicated topic, those on the server."""
    if server is None or not declared.is_replicated:
        return list(kept)
    return [name for name in kept if server_of_subscription(name) == server]


def missed(declared: Destination, subscription: str, member: int, last: int) -> Ranges:
    """The messages up to `last` that were sent while the subscription's server was down."""
    own = _own_server(declared, subscription)
    return EMPTY if own is None else declared.outages.missed(own, member, last)


def _own_server(declared: Destination, subscription: str) -> str | None:
    """The one that has all its record sets; None: they are with the members."""
    return server_of_subscription(subscription) if declared.is_replicated else None


def check_durable(declared: Destination, kept: str) -> None:
    """That a durable subscription of the topic may be kept under this name. Raises InvalidDestinationError."""
    own, servers = server_of_subscription(kept), declared.servers_in_use()
    if not declared.is_replicated:
        if own is not None:
            raise InvalidDestinationError(
                f"subscription {kept!r} names a server, but the subscriptions of {declared.name} are not on one server each: "
                "only those of a replicated distributed topic are"
            )
    elif own is None:
        raise InvalidDestinationError(
            f"{declared.name} is a replicated distributed topic, and {kept!r} would be a durable subscription on all its "
            f"servers: make it on one, as a consumer of {servers[0]}@{declared.name} (it is on: {', '.join(servers)})"
        )
    elif own not in servers:
        raise InvalidDestinationError(
            f"{declared.name} has no member on a server {own!r} (it is on: {', '.join(servers)})"
        )
    elif not declared.store_enabled:
        raise InvalidDestinationError(
            f"{declared.name} has storeEnabled: false, so its subscriptions are not durable: give the consumer durable=False, or "
            "no subscription"
        )
