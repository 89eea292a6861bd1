"""Which subscription a consumer asks for, checked.

Features: C10 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from spark_jms.claims.positions import ensure_subscription
from spark_jms.core.client_identity import check_kept
from spark_jms.core.selector import Selector
from spark_jms.core.subscription_place import kept_at
from spark_jms.errors import ModuleFileError, OptionError
from spark_jms.log.delta_log import DeltaLog

Sharing = Literal["sharable", "exclusive"]
SHARING: tuple[Sharing, ...] = get_args(Sharing)


@dataclass(frozen=True)
class SubscriptionRequest:
    """`name` None: a subscription of this consumer alone, which is not durable. `selector`: the text, of a subscription that
    is not durable. `server`: where one that is not durable shall be, of a replicated topic; None: on any server that answers,
    preferably `home`. The name of a durable one tells its server. `members`: those that the consumer takes (None: all), of one
    that is not durable."""

    name: str | None
    durable: bool = True
    exclusive: bool = False
    selector: str | None = None
    server: str | None = None
    home: str | None = None
    members: frozenset[int] | None = None


def subscription_request(
    log: DeltaLog,
    name: str | None,
    starting_position: str | None,
    selector: Selector | None,
    *,
    durable: bool | None = None,
    sharing: str = "sharable",
    server: str | None = None,
    home: str | None = None,
    members: frozenset[int] | None = None,
) -> SubscriptionRequest | None:
    """None for a queue. A durable subscription that is new is made. `server`: the consumer names it (`server@topic`); `home`:
    its connection's home server; `members`: those that it is pinned to. Raises OptionError, InvalidDestinationError."""
    if sharing not in SHARING:
        raise OptionError(f"sharing is {sharing!r}, but must be one of {', '.join(SHARING)}")
    destination = log.snapshot.destination
    destination.refuse_subscription(name)
    if not destination.is_topic:
        if durable is not None or sharing != "sharable":
            raise OptionError(
                f"{destination.name} is a {destination.kind}: durable and sharing are for a topic's subscription"
            )
        ensure_subscription(log, name, starting_position)
        return None
    text = selector.text.strip() if selector else None
    if durable or (durable is None and name is not None):
        kept = None if name is None else kept_at(destination, server, name)
        try:
            ensure_subscription(log, kept, starting_position, selector)
        except ModuleFileError as error:
            raise OptionError(str(error)) from None
        return SubscriptionRequest(kept, exclusive=sharing == "exclusive")
    if starting_position not in (None, "latest"):
        raise OptionError(
            f"the starting position is {starting_position!r}, but a subscription that is not durable starts with the messages "
            "that are sent from now on: leave the position out, or make a durable subscription"
        )
    if name is not None:
        try:
            check_kept(name)
        except ModuleFileError as error:
            raise OptionError(str(error)) from None
    where = server if destination.is_replicated else None
    if server is not None and destination.placement is not None and not destination.is_replicated:
        members = frozenset(destination.members_on(server))
    return SubscriptionRequest(name, False, sharing == "exclusive", text, where, home, members)
