"""Subscriptions that consumers use now: which of them may use one together, and which end with their consumers. Pure.

    name        in the table   ends                        consumers
    ---------   ------------   -------------------------   ------------------------------------------
    billing     yes            when it is dropped          several, or one that is exclusive
    ~billing    no             with its last consumer      several, or one that is exclusive
    ~~3         no             with its consumer           one; the number is used again afterwards

The first is durable. A table's subscriptions are never called `~…`, so the three cannot be confused. On a replicated topic
the server comes before the name or number: `~east@billing` (subscription_name.py).

One that is not durable takes the members that its consumers take: a consumer of `east@prices` leaves the other members to purge.
When a consumer comes that takes more, the subscription begins there with the messages sent from then on.

The store has one record for each topic with all uses. A use counts while its session lives. A subscription that is not
durable is entered *before* its floors are read, and a purge reads the record *after* it has fixed its snapshot. So either
the purge meets the entry, or every message that it removes was sent before the subscription began.

Features: C10 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import count

from spark_jms.core.destination import Subscription
from spark_jms.core.subscription_name import on_server, server_of_subscription
from spark_jms.errors import FormatVersionError, RecordSetError, SubscriptionInUseError

FORMAT_VERSION = 2  # of uses that take some members alone; all others have 1
_SHARED, _ALONE = "~", "~~"


def is_durable(subscription: str) -> bool:
    return not subscription.startswith(_SHARED)


def shared_name(name: str, server: str | None = None) -> str:
    """Under which a subscription that is not durable is kept, if several consumers may share it."""
    return _SHARED + (name if server is None else on_server(server, name))


def alone_name(used: Set[str], server: str | None = None) -> str:
    """For a consumer of its own: the lowest number that is free, so that a store has few names."""
    names = (str(number) if server is None else on_server(server, str(number)) for number in count(1))
    return next(kept for name in names if (kept := _ALONE + name) not in used)


def server_for(
    name: str | None, known: Mapping[str, ActiveSubscription], answering: Sequence[str], home: str | None = None
) -> str:
    """Where a new use of a subscription that is not durable goes, on a replicated topic: to the server that has it, so that
    its consumers share it; otherwise to the consumer's home server, if it has one that answers; otherwise to the one with
    the fewest consumers, the first of several. `name` None: a consumer's own."""
    if name is not None:
        having = [server for server in answering if shared_name(name, server) in known]
        if having:
            return having[0]
    if home is not None and home in answering:
        return home
    consumers = Counter[str]()
    for kept, entry in known.items():
        consumers[server_of_subscription(kept) or ""] += len(entry.users)
    return min(answering, key=lambda server: consumers[server])


@dataclass(frozen=True)
class LiveSubscription:
    """A subscription that is not durable, as one of its consumers knows it: it lasts as long as the session that has entered
    its use."""

    subscription: Subscription
    session_id: str


@dataclass(frozen=True)
class ActiveSubscription:
    """`users`: session -> whether its consumer is exclusive. `floors` are None of a durable subscription, whose table has
    them, and while they are being read. `only`: the members that its consumers take (None: all)."""

    name: str
    users: Mapping[str, bool] = field(default_factory=dict)
    floors: Mapping[int, int] | None = None
    selector: str | None = None
    created_ms: int = 0
    only: frozenset[int] | None = None

    def taking(self, members: frozenset[int] | None) -> ActiveSubscription:
        """With a consumer that takes these members (None: all)."""
        return replace(self, only=None if members is None or self.only is None else self.only | members)

    def with_floors(self, latest: Mapping[int, int], before: ActiveSubscription | None) -> ActiveSubscription:
        """It begins with what is sent after `latest` in the members that it did not take before."""
        if before is None or before.floors is None:
            return replace(self, floors=latest)
        known = {m: floor for m, floor in before.floors.items() if before.only is None or m in before.only}
        return replace(self, floors=known if before.only == self.only else {**latest, **known})

    def joined(self, session: str, *, exclusive: bool) -> ActiveSubscription:
        """With one more consumer. Raises SubscriptionInUseError when there are others, and it or one of them is exclusive."""
        if self.users and (exclusive or any(self.users.values())):
            kind = "an exclusive consumer" if any(self.users.values()) else f"{len(self.users)} consumer(s)"
            raise SubscriptionInUseError(
                f"the subscription {self.name!r} has {kind} already"
                f"{', and this consumer would be exclusive' if exclusive else ''}: nothing was subscribed. Close the other "
                "consumer, or share the subscription (sharing sharable), or use one of another name"
            )
        return replace(self, users={**self.users, session: exclusive})

    def among(self, live: Set[str]) -> ActiveSubscription:
        """With the consumers whose sessions live."""
        return replace(self, users={session: alone for session, alone in self.users.items() if session in live})

    def left(self, session: str) -> ActiveSubscription:
        return self.among(self.users.keys() - {session})

    def as_subscription(self) -> Subscription:
        """What the table would say of it. Without floors nothing is finished."""
        return Subscription(self.name, self.floors or {}, self.created_ms, self.selector, self.only)

    def to_bytes(self) -> bytes:
        floors = None if self.floors is None else {str(member): floor for member, floor in self.floors.items()}
        value: dict[str, object] = {
            "v": 1 if self.only is None else FORMAT_VERSION,
            "users": dict(self.users),
            "floors": floors,
            "selector": self.selector,
            "created_ms": self.created_ms,
        }
        if self.only is not None:
            value["only"] = sorted(self.only)
        return json.dumps(value, separators=(",", ":")).encode()

    @staticmethod
    def from_bytes(name: str, data: bytes) -> ActiveSubscription:
        """Raises RecordSetError or FormatVersionError."""
        try:
            value = json.loads(data)
            if value["v"] > FORMAT_VERSION:
                raise FormatVersionError(
                    f"the use of subscription {name} has format version {value['v']}, this spark-jms reads up to "
                    f"{FORMAT_VERSION}: install a later spark-jms"
                )
            floors, only = value["floors"], value.get("only")
            return ActiveSubscription(
                name,
                {str(session): bool(alone) for session, alone in value["users"].items()},
                None if floors is None else {int(member): int(floor) for member, floor in floors.items()},
                value["selector"],
                int(value["created_ms"]),
                None if only is None else frozenset(int(member) for member in only),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordSetError(f"the use of subscription {name} cannot be read from the store ({error!r})") from error
