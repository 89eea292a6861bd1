"""The stores of a domain, its own and those of its servers, as one; the record sets in them, and who uses them now.

DomainStores routes each address to the store of its server. A record set is one record with several objects in it. A session's
label tells other processes which consumer and which process it is of; so the live sessions tell who uses a member or a
subscription. The rules for what is found here are core's: subscriptions and their uses in core/destinations/subscriptions.py,
pinning in routing.py.

Features: C9, C10, C14, C16, C18, D3, D5, M10 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial

from spark_jms.claims.servers.lease import ServerKeeper, monotonic_ms
from spark_jms.claims.servers.timed_stores import ServerAwayError, TimedStore, ask_once
from spark_jms.core.destinations.destination import QUEUE_SUBSCRIPTION, Destination, Subscription
from spark_jms.core.destinations.routing import Reachable, chosen
from spark_jms.core.destinations.servers import HOME, effort
from spark_jms.core.destinations.subscriptions import ActiveSubscription, is_durable, record_server
from spark_jms.core.messages.ranges import EMPTY, Ranges, union
from spark_jms.core.records.endings import DROPPED_SUBSCRIPTION, LOST_WITH_THE_POWER, Stamp
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.stored_form import changed_objects, from_objects, member_record, members_prefix, uses_record
from spark_jms.errors import MemberUnavailableError, OptionError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.destinations.owner import owned
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import now_ms
from spark_jms.store import (
    Delete,
    Handle,
    Operation,
    Put,
    RecordHeldError,
    SessionInfo,
    Store,
    StoreAbsentError,
    StoreError,
    open_store,
)
from spark_jms.store.contract import StoreOpening
from spark_jms.store.kinds.opening import absence, lasts, places_of
from spark_jms.store.kinds.routed import DEFAULT, RoutedStore, address, split_address

log = logging.getLogger("spark_jms")
HOUSEKEEPING_S = 2.0
OPENING_S = 10.0  # of a server's store: the next caller asks again
ANSWER_S = 2.0  # of a server that is asked for its members
_STEP_MS = 250  # between two looks for a record that is held
_ANY_RECORD = "jmsq"  # asking for it makes the store prove that it can be read
# In the label of a consumer's session, not in that of a command or of housekeeping.
_OF_A_QUEUE = f"/{QUEUE_SUBSCRIPTION} "
_EMPTY = RecordSet()


class DomainStores(RoutedStore):
    """All stores of a domain, and the keeper of the leases of the servers that this process uses. Openings whose callers have given up
    end soon: those of servers by their limit, all of them with `close`."""

    def __init__(self, domain: Domain, limit_s: float | None) -> None:
        self._openings: dict[str, StoreOpening] = {}  # server -> the newest
        self._ended = False

        def open_server(server: str) -> Store:
            opening = self._openings[server] = StoreOpening(OPENING_S if limit_s is None else limit_s)
            if self._ended:
                opening.cancel()
            return owned(domain.owner(server), open_store(domain.server_uri(server), create=False, opening=opening))

        def timed(server: str) -> Store:
            assert limit_s is not None
            return TimedStore(server, partial(open_server, server), limit_s, owns=True)

        if limit_s is None:
            super().__init__(open_home(domain), open_server, domain.servers.names)
        else:
            opening = self._openings[HOME] = StoreOpening(limit_s)
            home = TimedStore(HOME, partial(open_home, domain, opening), limit_s, owns=True)
            super().__init__(home, timed, domain.servers.names)
        self._timed = RoutedStore(
            self.store(DEFAULT),
            lambda server: TimedStore(server, partial(self.store, server), HOUSEKEEPING_S),
            domain.servers.names,
            owns_default=False,
        )
        self.keeper = ServerKeeper(
            domain,
            lambda server: self.store(server).info(_ANY_RECORD),
            self._begin,
            lambda server, timeout_s: absence(places_of(domain.server_uri(server)), timeout_s),
            lambda server: sampled_effort(self.store(server)),
        )

    def _begin(self, server: str) -> None:
        """Use a server, perhaps again: it may have been removed and added meanwhile, or its administrator has brought another copy of
        its store while it was stopped."""
        try:
            self.store(server).info(_ANY_RECORD)
        except StoreAbsentError:
            self._timed.drop(server)
            self.drop(server)

    @property
    def timed(self) -> Store:
        """The same stores, those of servers with a limit of time for each call. It closes with this one."""
        return self._timed

    def close(self) -> None:
        self._ended = True
        for opening in list(self._openings.values()):
            opening.cancel()
        self.keeper.close()
        self._timed.close()
        super().close()


def open_home(domain: Domain, opening: StoreOpening | None = None) -> Store:
    """The domain's own store, which `jmsq apply` has made. A new one is made where the old one ends with its processes. Raises
    ForeignOwnerError when it is another domain's."""
    return owned(domain.owner(HOME), open_store(domain.store_uri, create=not lasts(domain.store_uri), opening=opening))


def open_stores(domain: Domain, limit_s: float | None = None) -> Store:
    """The domain's own store, which is opened now, and those of its servers, each when it is first used. They
    exist since domain and servers were declared: a missing one is an error, never a new store. With `limit_s`, each call of a store
    raises StoreBusyError when it takes longer, and the domain's own store too is opened when it is first used."""
    return DomainStores(domain, limit_s)


def timed_stores(store: Store) -> Store:
    """For work that one server's hung store must not hold up."""
    return store.timed if isinstance(store, DomainStores) else store


def keep_servers(store: Store, table: DeltaLog) -> None:
    """This process uses the stores of the servers that a destination is on, so it keeps their leases until it closes `store`."""
    if isinstance(store, DomainStores):
        store.keeper.use(table)


def note_late(store: Store, server: str) -> None:
    """A delivery from the server's store was late, or has failed: the keeper finds out whether it is too slow for its users."""
    if isinstance(store, DomainStores):
        store.keeper.note_late(server)


def sampled_effort(store: Store) -> float:
    """Asks as much as a delivery does: the questions of a batch, and the writes of a claim (core/destinations/servers.py)."""
    begun_ms = monotonic_ms()
    store.infos(_ANY_RECORD)
    store.sessions()
    store.info(_ANY_RECORD)
    read_ms = monotonic_ms()
    store.connect("sample of a delivery").close()
    return effort(read_ms - begun_ms, monotonic_ms() - read_ms)


# -- one server's store, and addresses ---------------------------------------------------------------------------------


def store_of(store: Store, server: str) -> Store:
    """The store of one server, whose records have plain names. Raises StoreError when it cannot be opened. A store that is
    not routed is HOME's alone."""
    if isinstance(store, RoutedStore):
        return store.store(_key(server))
    assert server == HOME, f"this store has no servers, and none called {server}"
    return store


def why_silent(store: Store, server: str, wait_s: float) -> str:
    """Why a server's store cannot be asked now; "" when it answers within `wait_s`."""
    try:
        ask_once(server, lambda: store_of(store, server).sessions(), wait_s)
    except ServerAwayError as error:
        return str(error)
    return ""


def sessions_beside(store: Store, record: str) -> dict[str, SessionInfo]:
    """The live sessions of the store that has this record; no other store is asked."""
    of_record = store.store(split_address(record)[0]) if isinstance(store, RoutedStore) else store
    return of_record.sessions()


def home_of(store: Store) -> Store:
    """The domain's own store. What belongs to a whole destination is there."""
    return store_of(store, HOME)


def record_of(snapshot: Snapshot, subscription: str, member: int) -> str:
    """The address of a member's record set."""
    server = record_server(snapshot.destination, subscription, member)
    return address(_key(server), member_record(snapshot.table_id, subscription, member))


def prefix_of(snapshot: Snapshot, subscription: str, server: str) -> str:
    """The addresses of a subscription's record sets on a server begin with it."""
    return address(_key(server), members_prefix(snapshot.table_id, subscription))


def addressed(server: str, name: str) -> str:
    """The address of a record, or of a prefix of records, on a server."""
    return address(_key(server), name)


def names_everywhere(store: Store, prefix: str) -> list[str]:
    """The addresses of the records with this prefix on all servers; those of an away server are left to housekeeping."""
    if not isinstance(store, RoutedStore):
        return store.names(prefix)
    found = store.names(prefix)
    for server in store.others():
        with suppress(StoreError):
            found += store.names(addressed(server, prefix))
    return found


def _key(server: str) -> str:
    return DEFAULT if server == HOME else server


# -- record sets -------------------------------------------------------------------------------------------------------


def read_state(store: Store, record: str, label: str = "") -> RecordSet:
    """A record set as last committed, without opening its record. `label` names it in errors."""
    return from_objects(store.peek(record), label or record)


def state_of(store: Store, snapshot: Snapshot, subscription: str, member: int) -> RecordSet:
    """The record set of one member as last committed, with the start of its subscription applied."""
    destination, start = snapshot.destination, None
    if not is_durable(subscription):
        start = not_durable(store, snapshot.table_id).get(subscription)
    state = read_state(
        store,
        record_of(snapshot, subscription, member),
        label_of(destination.name, subscription, member),
    )
    if start is not None:
        return started(state, snapshot, member, start.floor(member, snapshot.last_sequence(member)))
    return started(state, snapshot, member, destination.start_floor(subscription, member))


def started(state: RecordSet, snapshot: Snapshot, member: int, floor: int) -> RecordSet:
    """The record set from the start of its subscription, with the delivery counts that forwarded messages have brought along."""
    state = state.start_at(floor)
    carried = snapshot.member_files(member).carried(state.floor)
    return state.carry(carried) if carried else state


def opened_state(handle: Handle, label: str = "") -> RecordSet:
    """The record set of an open record."""
    return from_objects(handle.objects(), label or handle.name)


def operations(before: RecordSet, after: RecordSet) -> list[Operation]:
    """What to write when a record set changes. Of a new one nothing is stored, so everything is written."""
    known = None if before == _EMPTY else before
    return [Delete(key) if value is None else Put(key, value) for key, value in changed_objects(known, after).items()]


def label_of(destination: str, subscription: str, member: int) -> str:
    """A record set as people know it."""
    return f"{destination}/{subscription}/{member}"


def without_lost(state: RecordSet, snapshot: Snapshot, member: int, label: str, stamp: Stamp) -> RecordSet:
    """The state of an open record without what went with the power. What is claimed goes when its claim has ended."""
    lost = snapshot.lost_of(member)
    if not (lost and (lost := state.unfinished_of(lost) - state.claimed - state.moving)):
        return state
    log.warning("%s: %d message(s) went with the power (%s) and are skipped", label, lost.count, lost)
    return state.skip(lost, LOST_WITH_THE_POWER, stamp)


# -- who uses them now -------------------------------------------------------------------------------------------------


def active_subscriptions(store: Store, table_id: str) -> dict[str, ActiveSubscription]:
    """The subscriptions of a topic that have a live consumer. The sessions are read after the entries: one that entered lives, or
    has died since."""
    objects = store.peek(uses_record(table_id))
    return live_entries(objects, set(home_of(store).sessions())) if objects else {}


def not_durable(store: Store, table_id: str) -> dict[str, Subscription]:
    """The live subscriptions that no table has."""
    found = active_subscriptions(store, table_id)
    return {name: one.as_subscription() for name, one in found.items() if not is_durable(name)}


def live_entries(objects: Mapping[str, bytes], live: Set[str]) -> dict[str, ActiveSubscription]:
    """Those of these entries that have a live user."""
    found = {name: ActiveSubscription.from_bytes(name, data).among(live) for name, data in objects.items()}
    return {name: one for name, one in found.items() if one.users}


@dataclass(frozen=True)
class AskedMember:
    """A member of a queue, as it is now. `consumers`: live sessions that hold the member's record, wait for it or have taken
    messages from it. `left_behind`: what dead sessions have claimed there."""

    member: int
    server: str
    consumers: int
    state: RecordSet
    left_behind: Ranges = EMPTY


@dataclass(frozen=True)
class AskedMembers:
    """What was found of the members of a queue. `unreachable`: server -> why its members were not asked."""

    members: tuple[AskedMember, ...] = ()
    unreachable: dict[str, str] = field(default_factory=dict)


def ask_members(store: Store, snapshot: Snapshot) -> AskedMembers:
    """How many consumers the members of a queue have now, without those of servers that are down or do not answer within ANSWER_S.
    Only reads."""
    found: list[AskedMember] = []
    unreachable: dict[str, str] = {}
    for server in snapshot.destination.servers_in_use():
        if server in snapshot.destination.down:
            unreachable[server] = "it is down"
            continue
        try:
            found += ask_once(server, partial(_asked, store, snapshot, server), ANSWER_S)
        except ServerAwayError as error:
            unreachable[server] = str(error)
    return AskedMembers(tuple(found), unreachable)


def _asked(store: Store, snapshot: Snapshot, server: str) -> list[AskedMember]:
    infos = store.infos(prefix_of(snapshot, QUEUE_SUBSCRIPTION, server))
    sessions = store_of(store, server).sessions()
    live = {id for id, session in sessions.items() if _OF_A_QUEUE in session.label}
    found = []
    for member in snapshot.destination.members_on(server):
        state = state_of(store, snapshot, QUEUE_SUBSCRIPTION, member)
        info = infos.get(record_of(snapshot, QUEUE_SUBSCRIPTION, member))
        near = {info.holder, *info.waiters} if info is not None else set()
        consumers = len(live & {*near, *state.consumers.values()})
        dead = union(claim.picks for claim in state.claims.values() if claim.session not in sessions)
        found.append(AskedMember(member, server, consumers, state, dead))
    return found


def check_pinning(declared: Destination) -> None:
    """Raises OptionError for a topic: its subscriptions are not in one member."""
    if declared.is_topic:
        raise OptionError(f"{declared.name} is a {declared.kind}: pin is for queues; leave it out")


def pinned_member(store: Store, snapshot: Snapshot, home: str | None = None, *, receives: bool = True) -> Reachable:
    """The member of a distributed queue that a new receiver, or a browser, is pinned to. Raises MemberUnavailableError, which names
    the servers, when none can be reached."""
    check_pinning(snapshot.destination)
    asked = ask_members(store, snapshot)
    reachable = [Reachable(one.member, one.server, one.consumers if receives else 0) for one in asked.members]
    if not reachable:
        reasons = "; ".join(f"server {server}: {why}" for server, why in asked.unreachable.items())
        raise MemberUnavailableError(
            f"no member of {snapshot.destination.name} can be reached, so there is none to pin to: {reasons}. Try again later"
        )
    return chosen(reachable, home, random.randrange(2**31))


# -- record sets that an administrator opens, changes and releases -----------------------------------------------------


class OpenRecords:
    """Open records. `change` and `clear` are one atomic write."""

    def __init__(
        self,
        handles: Mapping[str, Handle],
        labels: Mapping[str, str],
        commit: Callable[[Mapping[Handle, Sequence[Operation]]], None],
        *,
        logged: bool,
    ) -> None:
        self.handles = handles
        now = now_ms()
        self.states = {n: opened_state(h, labels[n]).logging(is_on=logged, now_ms=now) for n, h in handles.items()}
        self._commit = commit

    def change(self, states: Mapping[str, RecordSet]) -> None:
        real = {name: state for name, state in states.items() if state is not self.states[name]}
        if real:
            self._commit({self.handles[name]: operations(self.states[name], state) for name, state in real.items()})
            self.states.update(real)

    def end(self, lasts: Mapping[str, int], floors: Mapping[str, int]) -> None:
        """Of a subscription that is dropped: see `RecordSet.ended`. `lasts` has the last message of each member, `floors` where the
        subscription started."""
        now = now_ms()
        ended = {}
        for name, state in self.states.items():
            stamp = Stamp(self.handles[name].epoch, now)
            ended[name] = state.start_at(floors[name]).ended(lasts[name], DROPPED_SUBSCRIPTION, stamp)
        self.change(ended)


@contextmanager
def opened_records(
    store: Store, labels: Mapping[str, str], wait_s: float, purpose: str, *, logged: bool = False
) -> Iterator[OpenRecords]:
    """Open all records of `labels`, which maps each to what people call it: consumers go on without them meanwhile, and their claims
    stay. Waits for other administrators, and for a consumer of an earlier release, which hands the record over at its next
    boundary. `logged`: the destination has its life-cycle log switched on. After `wait_s`, MemberUnavailableError, and none is
    open."""
    deadline = time.monotonic() + wait_s
    session = store.connect(f"jmsq {purpose}")
    try:
        handles: dict[str, Handle] = {}
        for name in sorted(labels):  # sorted, so that two administrators do not wait for each other
            while True:
                left_ms = max(int((deadline - time.monotonic()) * 1000), 0)
                try:
                    handles[name] = session.open(name, timeout_ms=min(left_ms, _STEP_MS))
                    break
                except RecordHeldError as error:
                    if left_ms == 0:
                        holder = sessions_beside(store, name).get(error.holder or "")
                        raise MemberUnavailableError(
                            f"{labels[name]} has been opened by {holder.label if holder else 'another session'} for "
                            f"{wait_s:g} s: nothing was changed; try again with a longer --wait, or stop that"
                        ) from error
        yield OpenRecords(handles, labels, session.commit, logged=logged)
    finally:
        session.close()


# -- the process in a session's label ----------------------------------------------------------------------------------


def this_process(now_ms: int) -> str:
    """As the label of a session names it, for the error that meets another process there."""
    since = datetime.fromtimestamp(now_ms / 1000, tz=timezone.utc)
    return f"process {os.getpid()} of {_started_here()}, since {since:%Y-%m-%d %H:%M:%S} UTC"


def is_sibling(label: str) -> bool:
    """Whether the process that started this one has started the one of `label` too: a driver starts each of its sources."""
    return f" of {_started_here()}, since " in label


def _started_here() -> str:
    return f"{socket.gethostname()}, started by process {os.getppid()}"
