"""Subscriptions: their names, where their positions are, which consumers may use one together, and their limit. Pure.

    name        in the table   ends                        consumers
    ---------   ------------   -------------------------   ------------------------------------------
    billing     yes            when it is dropped          several, or one that is exclusive
    ~billing    no             with its last consumer      several, or one that is exclusive
    ~~3         no             with its consumer           one; the number is used again afterwards

The first is durable. A table's subscriptions are never called `~…`, so the three cannot be confused. A client id comes before
the name:

    policy         connections with this client id   the subscription `billing` is kept as
    ------------   -------------------------------   -------------------------------------
    (no id)        –                                 billing
    restricted     one at a time in the domain       app:billing
    unrestricted   any number                        app::billing

A subscription belongs to its client id *and* policy, so the three are different ones. No name has a colon or an @ in it.

    the destination is                     the record set of a subscription and a member is on
    ------------------                     -------------------------------------------------------
    a queue, a topic                       the server of the member
    a partitioned distributed topic        the server of the member: a subscription is on all servers
    a replicated distributed topic         the server of the subscription: that one has a record set for every member

The messages are always in the destination's table, once.

On a replicated topic the server comes before all of the name (`east@app:billing`), so `billing` on one server is another
subscription than `billing` on another, as it would be on two topics:

    kept as          its positions in all members are          durable
    -------          ----------------------------------        -------
    east@billing     on the server `east`                      yes
    ~east@billing    on the server `east`                      no
    ~~east@3         on the server `east`                      no
    billing          each on the server of its member          yes; a topic that is not replicated

Features: C10, D6, D7, T4 (docs/FEATURES.md)
"""

from __future__ import annotations

import heapq
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.destinations.destination import Destination, Subscription, check_name
from spark_jms.core.messages.ranges import EMPTY, Ranges, view
from spark_jms.errors import (
    FormatVersionError,
    InvalidDestinationError,
    ModuleFileError,
    OptionError,
    RecordSetError,
    SubscriptionInUseError,
)

FORMAT_VERSION = 2  # of uses that take some members alone; all others have 1
_SHARED, _ALONE = "~", "~~"  # before the names of those that are not durable
_NOT_DURABLE, _AT = "~", "@"
ClientIdPolicy = Literal["restricted", "unrestricted"]
POLICIES: tuple[ClientIdPolicy, ...] = get_args(ClientIdPolicy)
_SEPARATORS = {"restricted": ":", "unrestricted": "::"}
_KEPT = re.compile(r"(?:(?P<server>[^:@]+)@)?(?:(?P<client>[^:@]+)::?)?(?P<name>[^:@]+)\Z")
LIMIT = "subscription limit"  # the consumer of dropped messages, in the acknowledgement table


# -- names -------------------------------------------------------------------------------------------------------------
def is_durable(subscription: str) -> bool:
    return not subscription.startswith(_SHARED)


def shared_name(name: str, server: str | None = None) -> str:
    """Under which a subscription that is not durable is kept, if several consumers may share it."""
    return _SHARED + (name if server is None else on_server(server, name))


def alone_name(used: Set[str], server: str | None = None) -> str:
    """For a consumer of its own: the lowest number that is free, so that a store has few names."""
    names = (str(number) if server is None else on_server(server, str(number)) for number in count(1))
    return next(kept for name in names if (kept := _ALONE + name) not in used)


@dataclass(frozen=True)
class ClientIdentity:
    """Raises OptionError for a wrong id or policy."""

    client_id: str | None = None
    policy: str = "restricted"

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise OptionError(f"the client id policy is {self.policy!r}, but must be one of {', '.join(POLICIES)}")
        if self.client_id is not None:
            _checked("client id", self.client_id)

    @property
    def is_restricted(self) -> bool:
        """Only one connection may have it at a time."""
        return self.client_id is not None and self.policy == "restricted"

    def kept(self, subscription: str) -> str:
        """What a subscription of this client is kept as."""
        _checked("subscription", subscription)
        return subscription if self.client_id is None else f"{self.client_id}{_SEPARATORS[self.policy]}{subscription}"


def check_kept(subscription: str) -> None:
    """Raises ModuleFileError unless `ClientIdentity.kept` could have returned it, or `on_server` of that."""
    parts = _KEPT.match(subscription)
    if parts is None:
        check_name("subscription", subscription)
        return
    for what, part in (("server", "server"), ("client id", "client"), ("subscription", "name")):
        if parts[part] is not None:
            check_name(what, parts[part])


def _checked(what: str, name: str) -> None:
    try:
        check_name(what, name)
    except ModuleFileError as error:
        raise OptionError(str(error)) from None


def on_server(server: str, name: str) -> str:
    return f"{server}{_AT}{name}"


def server_of_subscription(kept: str) -> str | None:
    """None: its positions are with the members."""
    server, at, _ = kept.lstrip(_NOT_DURABLE).partition(_AT)
    return server if at else None


# -- where the positions are -------------------------------------------------------------------------------------------
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


# -- the uses of a topic's subscriptions -------------------------------------------------------------------------------
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
    """The uses of one subscription by the consumers that it has now. `users`: session -> whether its consumer is exclusive. `floors`
    are None of a durable subscription, whose table has them, and while they are being read. `only`: the members that its consumers
    take (None: all).

    One that is not durable takes the members that its consumers take: a consumer of `east@prices` leaves the other members to
    purge. When a consumer comes that takes more, the subscription begins there with the messages sent from then on.

    The store has one record for each topic with all uses. A use counts while its session lives. A subscription that is not
    durable is entered *before* its floors are read, and a purge reads the record *after* it has fixed its snapshot. So either
    the purge meets the entry, or every message that it removes was sent before the subscription began.
    """

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


# -- the limit ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class LimitAccount:
    """Of a record set. `arrived`: the last sequence that the limit was applied to. `dropped`: how many messages have made room
    since the subscription began (SubscriptionLimitDeletedCount)."""

    arrived: int = 0
    dropped: int = 0


NOTHING_DROPPED = LimitAccount()


@dataclass(frozen=True)
class Droppable:
    """The messages that may be dropped. `order`: their sequences in the order of delivery; None: ascending. `ends`: behind
    how many of them a unit of work or a single message ends; None: behind each."""

    messages: Ranges = EMPTY
    order: pa.Int64Array | None = None
    ends: pa.Int64Array | None = None


def dropped(present: int, arrived: Ranges, droppable: Droppable, limit: int) -> Ranges:
    """What the messages of `arrived` displace in a subscription that had `present` others, all of them unfinished.

    Messages arrive at a subscription in the order of their sequences. One that finds it full takes the place of the *head*, the
    message that would be delivered first among those that were there before:

        for each message that arrives
            while the subscription has `limit` messages or more, and one of them may be dropped
                drop the head of those that may be
            the message joins the subscription

    So the newest message always stays, and if none of the others may be dropped, the subscription exceeds its limit. What may
    not be dropped counts too. A unit of work that is complete is one thing: it is dropped as a whole, and has its place where
    its last part arrived.

    In a log nothing happens at the moment of an arrival. The holder of the record set decides later, for all messages that
    have arrived since it last found too many; `LimitAccount` remembers up to where that was. So a message that was over the limit
    and could not be dropped is not dropped without a new arrival, even when that becomes possible.
    """
    excess = present + arrived.count - limit
    if excess <= 0 or not arrived:
        return EMPTY
    if droppable.order is None:  # the heads are the oldest, so the order of events does not matter
        return (droppable.messages - Ranges.of((arrived.last, arrived.last))).take(excess)
    return _one_by_one(present, arrived, droppable, limit)


def _one_by_one(present: int, arrived: Ranges, droppable: Droppable, limit: int) -> Ranges:
    assert droppable.order is not None
    sequences = view(droppable.order)
    ends = [0, *(range(1, len(sequences) + 1) if droppable.ends is None else view(droppable.ends))]
    heads: list[int] = []  # indices into `ends`, of what is there and may be dropped
    joins: dict[int, int] = {}  # the last sequence of what has yet to arrive -> its index
    for index in range(len(ends) - 1):
        last = max(sequences[ends[index] : ends[index + 1]])
        if last in arrived:
            joins[last] = index
        else:
            heads.append(index)  # ascending, so it is a heap
    count, out = present, []
    for sequence in arrived.numbers().tolist():
        while count >= limit and heads:
            index = heapq.heappop(heads)
            count -= ends[index + 1] - ends[index]
            out.append(index)
        count += 1
        if sequence in joins:
            heapq.heappush(heads, joins[sequence])
    return Ranges.from_numbers([s for index in out for s in sequences[ends[index] : ends[index + 1]]])


@dataclass(frozen=True)
class Arrivals:
    """Messages of all members of a replicated topic that a subscription may drop, row by row: members one after the other, each in the
    order of its sequences. `order`: the rows in the order in which the messages were sent; a member's messages stay in the order of
    their sequences, whatever their senders' clocks say. The newest makes room for no other. There are no units of work: such a topic
    handles none."""

    members: pa.Int64Array
    sequences: pa.Int64Array
    order: pa.Int64Array

    @staticmethod
    def of(found: Mapping[int, tuple[Ranges, pa.Int64Array]]) -> Arrivals:
        """By member, the messages and when each was sent; null for one that is in no file any more."""
        members = pa.concat_arrays([pa.repeat(pa.scalar(m, pa.int64()), each.count) for m, (each, _) in found.items()])
        sequences = pa.concat_arrays([each.numbers() for each, _ in found.values()])
        sent = [pc.cumulative_max(pc.fill_null(times, 0)) for _, times in found.values()]
        rows = pa.table({"sent": pa.chunked_array(sent, pa.int64()), "member": members, "sequence": sequences})
        by_time = [(name, "ascending") for name in rows.column_names]
        return Arrivals(members, sequences, pc.sort_indices(rows, sort_keys=by_time).view(pa.int64()))

    @property
    def ranks(self) -> pa.Int64Array:
        """The place of each row in `order`."""
        return pc.sort_indices(self.order).view(pa.int64())

    def first(self, delivery: pa.Int64Array, excess: int) -> dict[int, Ranges]:
        """By member, the first `excess` in an order of the rows."""
        newest = self.order[-1]
        return self._by_member(delivery.filter(pc.not_equal(delivery, newest))[:excess])

    def _by_member(self, rows: pa.Int64Array) -> dict[int, Ranges]:
        members, sequences = self.members.take(rows), self.sequences.take(rows)
        return {
            member: Ranges.from_numbers(sequences.filter(pc.equal(members, member)))
            for member in pc.unique(members).to_pylist()
        }
