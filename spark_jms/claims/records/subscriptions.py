"""A topic's subscriptions, from a consumer's request to what is left of them; and claims to restricted client ids.

    request     which subscription a consumer asks for, checked; a durable one that is new is made
    start       earliest, latest, a sequence or a time: the messages up to there do not belong to the subscription
    use         for as long as the consumer lives. Each topic has one record with all uses; core/destinations/subscriptions.py has
                the rules. A subscription that is not durable ends with its last use
    leftovers   positions of subscriptions that no longer exist, which housekeeping clears

Features: C6, C10, C13, D6 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal, get_args

from spark_jms.claims.servers.stores import (
    active_subscriptions,
    addressed,
    home_of,
    live_entries,
    names_everywhere,
    opened_state,
    operations,
    read_state,
    timed_stores,
    why_silent,
)
from spark_jms.core.destinations.destination import QUEUE_SUBSCRIPTION, Destination, Subscription
from spark_jms.core.destinations.subscriptions import (
    ActiveSubscription,
    ClientIdentity,
    LiveSubscription,
    alone_name,
    check_durable,
    check_kept,
    is_durable,
    kept_at,
    server_for,
    server_of_subscription,
    shared_name,
)
from spark_jms.core.records.endings import DROPPED_SUBSCRIPTION, OVER_SUBSCRIPTION, Stamp
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.stored_form import client_record, members_prefix, uses_record
from spark_jms.errors import (
    InvalidClientIDException,
    JmsqError,
    MemberUnavailableError,
    ModuleFileError,
    OptionError,
    SubscriptionInUseError,
)
from spark_jms.log.destinations.declarations import create_subscription
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import now_ms
from spark_jms.store import Delete, Handle, Put, RecordHeldError, Session, Store, StoreError

if TYPE_CHECKING:
    from spark_jms.core.selector import Selector

_STEP_MS = 250
_STEP_S = 0.25
JOIN_TIMEOUT_S = 15.0
ANSWER_S = 2.0  # a server that does not answer for so long gets no new subscription
LEAVE_TIMEOUT_S = 1.0  # after that housekeeping does the rest
_ACCEPTED = (
    'earliest, latest, {"sequence": 17}, {"sequence": {"0": 17, "2": 5}} by member, or {"time": "2026-01-31T08:00:00Z"}'
)
Sharing = Literal["sharable", "exclusive"]
SHARING: tuple[Sharing, ...] = get_args(Sharing)

# -- request -----------------------------------------------------------------------------------------------------------


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
    if members is None and server is not None and destination.placement is not None and not destination.is_replicated:
        members = frozenset(destination.members_on(server))
    return SubscriptionRequest(name, False, sharing == "exclusive", text, where, home, members)


def ensure_subscription(
    log: DeltaLog, subscription: str | None, starting_position: str | None, selector: Selector | None = None
) -> str:
    """The name under which positions are kept. Makes a topic's subscription at `starting_position` (default: latest, as
    in JMS) if it is new; an existing one keeps its position. All consumers of a queue share one set of positions.

    A subscription keeps the selector it was made with: messages that the selector refuses are finished for all its
    consumers, so they would lose messages with another one. Raises OptionError, InvalidDestinationError.
    """
    destination = log.refresh().destination
    destination.refuse_subscription(subscription)
    if not destination.is_topic:
        if starting_position not in (None, "earliest"):
            raise OptionError(
                f"the starting position is {starting_position!r}, but {destination.name} is a queue, whose consumers share "
                "its messages from the earliest on: leave the position out, or purge old messages"
            )
        return QUEUE_SUBSCRIPTION
    subscription = _named(destination, subscription)
    text = selector.text.strip() if selector else None
    known = destination.subscriptions.get(subscription)
    if known is None:
        _parse(starting_position, destination)
        check_durable(destination, subscription)
        known = create_subscription(log, subscription, lambda snapshot: start_floors(snapshot, starting_position), text)
    check_selector(known, destination.name, text)
    return subscription


def find_subscription(log: DeltaLog, subscription: str | None, selector: Selector | None) -> str | None:
    """The name under which positions are kept; None when the topic's subscription was dropped. Raises OptionError."""
    destination = log.refresh().destination
    destination.refuse_subscription(subscription)
    if not destination.is_topic:
        return QUEUE_SUBSCRIPTION
    known = destination.subscriptions.get(_named(destination, subscription))
    if known is None:
        return None
    check_selector(known, destination.name, selector.text.strip() if selector else None)
    return known.name


def check_selector(known: Subscription, topic: str, text: str | None) -> None:
    if known.selector != text and not _same(known.selector, text):
        raise OptionError(
            f"subscription {known.name!r} of topic {topic} was made {_with(known.selector)}, not {_with(text)}: its consumers "
            f"share one selector. Use that one, or another subscription; or drop it with `jmsq subscriptions --drop "
            f"{topic}/{known.name}` and make it again"
        )


def _named(topic: Destination, subscription: str | None) -> str:
    if not subscription:
        raise OptionError(
            f"{topic.name} is a topic: a consumer needs `subscription`, the name of a durable subscription; a new name creates one"
        )
    return subscription


def _same(known: str | None, text: str | None) -> bool:
    from spark_jms.core.selector import Selector

    one, other = Selector.parse(known), Selector.parse(text)
    return one is other if one is None or other is None else one.means(other)


def _with(selector: str | None) -> str:
    return f"with the selector {selector!r}" if selector else "without a selector"


# -- start -------------------------------------------------------------------------------------------------------------


def start_floors(snapshot: Snapshot, starting_position: str | None) -> dict[int, int]:
    """The starting position of a subscription: member -> the last sequence before the start. A removed member may be added again:
    what it has by now is over."""
    kind, value = _parse(starting_position, snapshot.destination)
    floors = {member: snapshot.last_sequence(member) for member in snapshot.lasting_members()}
    for member in snapshot.destination.member_ids:
        files = snapshot.member_files(member).files
        before_first = files[0].first - 1 if files else snapshot.last_sequence(member)
        last = snapshot.last_sequence(member)
        if kind == "latest":
            floors[member] = last
        elif kind == "earliest":
            floors[member] = before_first
        elif kind == "sequence":
            wanted = value.get(member, last + 1) if isinstance(value, dict) else value
            floors[member] = min(max(int(wanted) - 1, before_first), last)
        else:  # the first file with a message sent at that time or later
            late = [f.first for f in files if int(f.statistics["maxValues"].get("JMSTimestamp", 0)) >= value]
            floors[member] = late[0] - 1 if late else last
    return floors


def _parse(text: str | None, destination: Destination) -> tuple[str, Any]:
    if text is None or text in ("latest", "earliest"):
        return text or "latest", None
    try:
        value = json.loads(text)
        kind, inner = next(iter(value.items()))
        if len(value) == 1 and kind == "sequence":
            if isinstance(inner, dict):
                return kind, {int(member): int(sequence) for member, sequence in inner.items()}
            return kind, int(inner)
        if len(value) == 1 and kind == "time":
            if isinstance(inner, int):
                return kind, inner
            moment = datetime.fromisoformat(inner.replace("Z", "+00:00"))
            moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
            return kind, int(moment.timestamp() * 1000)
    except (ValueError, AttributeError, TypeError, StopIteration):
        pass
    raise OptionError(f"the starting position of {destination.name} is {text!r}, but must be {_ACCEPTED}")


# -- use ---------------------------------------------------------------------------------------------------------------


class SubscriptionUse:
    """A consumer's use of a topic's subscription. `name` is what positions are kept under; `live` is None for a durable one, which
    the table has. Close it after the consumer."""

    def __init__(self, store: Store, session: Session, log: DeltaLog, entry: ActiveSubscription) -> None:
        self._store, self.session, self._log, self._table_id = store, session, log, log.snapshot.table_id
        self.name = entry.name
        self.live: LiveSubscription | None = None
        if not is_durable(entry.name):
            self.live = LiveSubscription(entry.as_subscription(), session.session_id)

    def close(self) -> None:
        """A subscription that is not durable ends with its last use, and leaves nothing behind. Never waits long and raises
        nothing of the store's: what it cannot do now housekeeping does later, because the session has ended."""
        with (
            suppress(StoreError),
            self.session,
            _opened(self.session, uses_record(self._table_id), LEAVE_TIMEOUT_S) as record,
        ):
            known = record.read(self.name)
            if known is None:
                return
            entry = ActiveSubscription.from_bytes(self.name, known)
            left = entry.left(self.session.session_id).among(set(home_of(self._store).sessions()))
            if not left.users and not is_durable(self.name):
                self._leave_nothing(entry.as_subscription())
            record.commit([Put(self.name, left.to_bytes()) if left.users else Delete(self.name)])

    def _leave_nothing(self, known: Subscription) -> None:
        """On a server that is away the record sets stay: they are leftovers when it is back."""
        server = server_of_subscription(self.name)
        if server is None or not why_silent(self._store, server, LEAVE_TIMEOUT_S):
            cleared = _Cleared(self._log, self._table_id, known)
            _clear(self._store, self.session, cleared, self.name, LEAVE_TIMEOUT_S)


def use_subscription(
    store: Store, log: DeltaLog, request: SubscriptionRequest, *, wait_s: float = 0.0
) -> SubscriptionUse:
    """Enter a use of a topic's subscription. While another consumer excludes this one, it waits up to `wait_s`, then raises
    SubscriptionInUseError. A durable subscription must exist. On a replicated topic, one that is not durable goes to a server
    that answers; when there is none, MemberUnavailableError. A server's store that hangs holds up nothing: the record with the
    uses is open meanwhile, and all consumers of the topic need it."""
    store, deadline = timed_stores(store), time.monotonic() + wait_s
    while True:
        answering = answering_servers(store, log.snapshot.destination, request)
        session = store.connect(f"subscription {request.name or '(its own)'} of {log.name}")
        try:
            return _joined(store, session, log, request, answering)
        except SubscriptionInUseError:
            session.close()
            if time.monotonic() >= deadline:
                raise
            time.sleep(_STEP_S)
        except BaseException:
            session.close()
            raise


def answering_servers(store: Store, declared: Destination, request: SubscriptionRequest) -> list[str]:
    """The servers on which the subscription may be made, in random order; [] when it has its place."""
    if request.durable or not declared.is_replicated:
        return []
    wanted = declared.servers_in_use() if request.server is None else [request.server]
    silent = {server: _why_down(declared, server) or why_silent(store, server, ANSWER_S) for server in wanted}
    answering = [server for server, why in silent.items() if not why]
    if not answering:
        why = "; ".join(f"{server}: {why}" for server, why in silent.items())
        raise MemberUnavailableError(f"{declared.name}: no server can take the subscription ({why}): try again later")
    return random.sample(answering, len(answering))


def _why_down(declared: Destination, server: str) -> str:
    if server in declared.stopped:
        return "it is stopped"
    return "its lease has lapsed" if server in declared.down else ""


def _joined(
    store: Store, session: Session, log: DeltaLog, request: SubscriptionRequest, answering: Sequence[str]
) -> SubscriptionUse:
    table_id = log.snapshot.table_id
    try:
        with _opened(session, uses_record(table_id), JOIN_TIMEOUT_S) as record:
            known = live_entries(record.objects(), set(home_of(store).sessions()))
            name = _name(request, known, answering)
            before = known.get(name)
            entry = before or ActiveSubscription(
                name, selector=request.selector, created_ms=now_ms(), only=request.members
            )
            joined = entry.joined(session.session_id, exclusive=request.exclusive).taking(request.members)
            for other in _elsewhere(request, name, known):
                other.joined(session.session_id, exclusive=request.exclusive)
            if not is_durable(name):
                check_selector(entry.as_subscription(), log.name, request.selector)
            done: list[Put | Delete] = []
            if not is_durable(name) and (joined.floors is None or joined.only != entry.only):
                guard = joined if joined.floors is None else _guard(joined, session, known)
                record.commit([Put(guard.name, guard.to_bytes())])  # before the floors are read
                if joined.floors is None:
                    _clear(
                        store, session, _Cleared(log, table_id), name, JOIN_TIMEOUT_S
                    )  # what an earlier one of this name has left
                joined = joined.with_floors(start_floors(log.verify(), "latest"), before)
                done = [] if guard.name == name else [Delete(guard.name)]
            record.commit([*done, Put(name, joined.to_bytes())])
    except RecordHeldError as error:
        raise MemberUnavailableError(
            f"the subscriptions of {log.name} are being changed by session {error.holder} for more than "
            f"{JOIN_TIMEOUT_S:g} s: nothing was subscribed; try again"
        ) from error
    return SubscriptionUse(store, session, log, joined)


def _guard(joined: ActiveSubscription, session: Session, known: Mapping[str, ActiveSubscription]) -> ActiveSubscription:
    """A subscription of this session alone. It keeps the messages of the members that are new to `joined`, whose entry says
    that it takes them only once it has their floors: else a crash in between would leave it with floors of messages that a
    purge has removed."""
    name = alone_name(known.keys(), server_of_subscription(joined.name))
    return ActiveSubscription(name, {session.session_id: True}, created_ms=joined.created_ms, only=joined.only)


def _name(request: SubscriptionRequest, known: Mapping[str, ActiveSubscription], answering: Sequence[str]) -> str:
    server = server_for(request.name, known, answering, request.home) if answering else None
    if request.name is None:
        return alone_name(known.keys(), server)
    return request.name if request.durable else shared_name(request.name, server)


def _elsewhere(
    request: SubscriptionRequest, name: str, known: Mapping[str, ActiveSubscription]
) -> list[ActiveSubscription]:
    """Those of this name on other servers of a replicated topic, when the consumer names no server: an exclusive one excludes
    it there too, although its server does not answer this process."""
    if request.durable or request.name is None or request.server is not None:
        return []
    found = ((kept, shared_name(request.name, server_of_subscription(kept))) for kept in known)
    return [known[kept] for kept, same in found if kept == same != name]


def forget_dead_uses(store: Store, session: Session, table_id: str) -> None:
    """Remove entries of dead consumers. Their positions are leftovers from then on."""
    objects = store.peek(uses_record(table_id))
    if not objects or live_entries(objects, set(home_of(store).sessions())).keys() == objects.keys():
        return
    with suppress(RecordHeldError), _opened(session, uses_record(table_id), 0.0) as record:
        objects = record.objects()
        dead = objects.keys() - live_entries(objects, set(home_of(store).sessions())).keys()
        record.commit([Delete(name) for name in sorted(dead)])


# -- leftovers ---------------------------------------------------------------------------------------------------------


def clear_leftovers(store: Store, session: Session, log: DeltaLog) -> list[str]:
    """Clear the record sets of subscriptions that no longer exist and that no session holds; returns their names. Those were
    dropped, or were not durable and their consumers have died. `jmsq subscriptions --drop` clears the positions itself, but a
    consumer that was stopped in the wrong moment may write them once more, and a new subscription of the same name would take the
    messages they name for finished. A server that is away does not hold up the others: its error is raised at the end.

    While we hold a record no consumer can write it. So if neither the log nor a live use has the subscription then, the record's
    content is from an earlier one, also when a new one of that name is created meanwhile."""
    if not log.refresh().destination.is_topic:
        return []
    forget_dead_uses(store, session, log.snapshot.table_id)
    live = active_subscriptions(store, log.snapshot.table_id).keys()  # once: each look at it reads all uses
    cleared, errors = [], []
    declared = log.snapshot.destination
    for server in (server for server in declared.servers_in_use() if server not in declared.stopped):
        try:
            cleared += _clear_on(server, store, session, log, live)
        except StoreError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return cleared


def _clear_on(server: str, store: Store, session: Session, log: DeltaLog, live: Collection[str]) -> list[str]:
    """`live` may be old: whether a record is left over is decided while it is open."""
    cleared = []
    for name in store.names(addressed(server, f"members/{log.snapshot.table_id}/")):
        if _subscription_of(name) in live or _subscription_of(name) in log.snapshot.destination.subscriptions:
            continue
        known = read_state(store, name)
        if known == known.cleared():
            continue
        try:
            handle = session.open(name)
        except RecordHeldError:
            session.cancel(name)
            continue
        with handle:
            state = opened_state(handle)
            log.refresh()
            if _is_dropped(store, log, name) and state != state.cleared():
                cleared_set = _Cleared(log, log.snapshot.table_id)
                handle.commit(operations(state, cleared_set.ended(state, name, handle.epoch)))
                cleared.append(name)
    return cleared


def _is_dropped(store: Store, log: DeltaLog, name: str) -> bool:
    subscription = _subscription_of(name)
    if not is_durable(subscription):
        return subscription not in active_subscriptions(store, log.snapshot.table_id)
    return subscription not in log.snapshot.destination.subscriptions


def _subscription_of(record: str) -> str:
    return record.rsplit("/", 2)[-2]


# -- record sets without a consumer ------------------------------------------------------------------------------------


@contextmanager
def _opened(session: Session, name: str, wait_s: float) -> Iterator[Handle]:
    try:
        handle = session.open(name, timeout_ms=int(wait_s * 1000))
    except RecordHeldError:
        session.cancel(name)
        raise
    with handle:
        yield handle


class _Cleared:
    """Clears record sets of the table `table_id`, and tells what their subscription leaves. `known` None: where it started is what
    the record set knows."""

    def __init__(self, log: DeltaLog, table_id: str, known: Subscription | None = None) -> None:
        self.table_id, self._log, self._known = table_id, log, known
        self._snapshot: Snapshot | None = None

    def ended(self, state: RecordSet, record: str, epoch: int) -> RecordSet:
        """The record set of a subscription that is no more."""
        name, number = record.rsplit("/", 2)[-2:]
        last = self._last_sequence(int(number))
        started = state if self._known is None else state.start_at(self._known.floor(int(number), last))
        why = DROPPED_SUBSCRIPTION if is_durable(name) else OVER_SUBSCRIPTION
        return started.ended(last, why, Stamp(epoch, now_ms()))

    def _last_sequence(self, member: int) -> int:
        """As this process knows the log, if it cannot be read now; 0 when there is another table in its place."""
        if self._snapshot is None:
            self._snapshot = self._log.snapshot
            with suppress(JmsqError, OSError):
                self._snapshot = self._log.refresh()
        return self._snapshot.last_sequence(member) if self._snapshot.table_id == self.table_id else 0


def _clear(store: Store, session: Session, cleared: _Cleared, subscription: str, wait_s: float) -> None:
    """The record sets of a subscription that has no consumer. Those on a server that is away stay: a new subscription of this
    name starts behind their messages, and housekeeping clears them."""
    prefix, server = members_prefix(cleared.table_id, subscription), server_of_subscription(subscription)
    for name in names_everywhere(store, prefix) if server is None else store.names(addressed(server, prefix)):
        try:
            _clear_one(store, session, cleared, name, wait_s)
        except RecordHeldError:
            raise
        except StoreError:
            if server is not None or not name.startswith("@"):
                raise


def _clear_one(store: Store, session: Session, cleared: _Cleared, name: str, wait_s: float) -> None:
    if not store.peek(name):
        return
    with _opened(session, name, wait_s) as handle:
        state = opened_state(handle)
        if state != state.cleared():
            handle.commit(operations(state, cleared.ended(state, name, handle.epoch)))


# -- client ids --------------------------------------------------------------------------------------------------------


def claim_client_id(store: Store, identity: ClientIdentity, *, wait_s: float = 0.0) -> Session | None:
    """The session that has the client id until it is closed or dies; None where any number may have it. While another
    connection has it, waits up to `wait_s`, then raises InvalidClientIDException."""
    if not identity.is_restricted:
        return None
    assert identity.client_id is not None
    record, deadline = client_record(identity.client_id), time.monotonic() + wait_s
    session = store.connect(f"client {identity.client_id}")
    try:
        while True:
            left_ms = max(int((deadline - time.monotonic()) * 1000), 0)
            try:
                session.open(record, timeout_ms=min(left_ms, _STEP_MS))
                return session
            except RecordHeldError as error:
                if left_ms == 0:
                    raise InvalidClientIDException(
                        f"the client id {identity.client_id!r} is in use by another connection (session {error.holder}): close "
                        "that one, take another id, or let both be unrestricted"
                    ) from error
    except BaseException:
        session.close()
        raise
