"""A consumer's use of a topic's subscription, for as long as the consumer lives. core/active_subscription.py has the
rules; each topic has one record with all uses.

Features: C10, D6 (docs/FEATURES.md)
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from spark_jms.claims.active_subscriptions import live_entries
from spark_jms.claims.positions import check_selector, start_floors
from spark_jms.claims.record_sets import opened_state, operations
from spark_jms.claims.stores import addressed, home_of, names_everywhere, timed_stores, why_silent
from spark_jms.claims.subscription_request import SubscriptionRequest
from spark_jms.core.active_subscription import (
    ActiveSubscription,
    LiveSubscription,
    alone_name,
    is_durable,
    server_for,
    shared_name,
)
from spark_jms.core.destination import Destination
from spark_jms.core.record_names import members_prefix, uses_record
from spark_jms.core.subscription_name import server_of_subscription
from spark_jms.errors import MemberUnavailableError, SubscriptionInUseError
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.storage import now_ms
from spark_jms.store import Delete, Handle, Put, RecordHeldError, Session, Store, StoreError

JOIN_TIMEOUT_S = 15.0
ANSWER_S = 2.0  # a server that does not answer for so long gets no new subscription
LEAVE_TIMEOUT_S = 1.0  # after that housekeeping does the rest
_STEP_S = 0.25


class SubscriptionUse:
    """`name` is what positions are kept under; `live` is None for a durable one, which the table has. Close it after the
    consumer."""

    def __init__(self, store: Store, session: Session, table_id: str, entry: ActiveSubscription) -> None:
        self._store, self.session, self._table_id = store, session, table_id
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
            left = (
                ActiveSubscription.from_bytes(self.name, known)
                .left(self.session.session_id)
                .among(set(home_of(self._store).sessions()))
            )
            if not left.users and not is_durable(self.name):
                self._leave_nothing()
            record.commit([Put(self.name, left.to_bytes()) if left.users else Delete(self.name)])

    def _leave_nothing(self) -> None:
        """On a server that is away the record sets stay: they are leftovers when it is back."""
        server = server_of_subscription(self.name)
        if server is None or not why_silent(self._store, server, LEAVE_TIMEOUT_S):
            _clear(self._store, self.session, self._table_id, self.name, LEAVE_TIMEOUT_S)


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
                    _clear(store, session, table_id, name, JOIN_TIMEOUT_S)  # what an earlier one of this name has left
                joined = joined.with_floors(start_floors(log.verify(), "latest"), before)
                done = [] if guard.name == name else [Delete(guard.name)]
            record.commit([*done, Put(name, joined.to_bytes())])
    except RecordHeldError as error:
        raise MemberUnavailableError(
            f"the subscriptions of {log.name} are being changed by session {error.holder} for more than "
            f"{JOIN_TIMEOUT_S:g} s: nothing was subscribed; try again"
        ) from error
    return SubscriptionUse(store, session, table_id, joined)


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
    """Remove entries of dead consumers. Their positions are leftovers from then on (leftovers.py)."""
    objects = store.peek(uses_record(table_id))
    if not objects or live_entries(objects, set(home_of(store).sessions())).keys() == objects.keys():
        return
    with suppress(RecordHeldError), _opened(session, uses_record(table_id), 0.0) as record:
        objects = record.objects()
        dead = objects.keys() - live_entries(objects, set(home_of(store).sessions())).keys()
        record.commit([Delete(name) for name in sorted(dead)])


@contextmanager
def _opened(session: Session, name: str, wait_s: float) -> Iterator[Handle]:
    try:
        handle = session.open(name, timeout_ms=int(wait_s * 1000))
    except RecordHeldError:
        session.cancel(name)
        raise
    with handle:
        yield handle


def _clear(store: Store, session: Session, table_id: str, subscription: str, wait_s: float) -> None:
    """The record sets of a subscription that has no consumer. Those on a server that is away stay: a new subscription of this
    name starts behind their messages, and housekeeping clears them."""
    prefix, server = members_prefix(table_id, subscription), server_of_subscription(subscription)
    for name in names_everywhere(store, prefix) if server is None else store.names(addressed(server, prefix)):
        try:
            _clear_one(store, session, name, wait_s)
        except RecordHeldError:
            raise
        except StoreError:
            if server is not None or not name.startswith("@"):
                raise


def _clear_one(store: Store, session: Session, name: str, wait_s: float) -> None:
    if not store.peek(name):
        return
    with _opened(session, name, wait_s) as handle:
        state = opened_state(handle)
        if state != state.cleared():
            handle.commit(operations(state, state.cleared()))
