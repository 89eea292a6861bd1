"""The stores of a domain, its own and those of its servers, as one.

Features: M10 (docs/FEATURES.md)
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from spark_jms.claims.lane import ServerAwayError, ask_once
from spark_jms.claims.server_keeper import ServerKeeper
from spark_jms.claims.store_questions import monotonic_ms
from spark_jms.claims.timed_store import TimedStore
from spark_jms.core.delivery_sample import effort
from spark_jms.core.placement import HOME
from spark_jms.core.record_names import member_record, members_prefix
from spark_jms.core.subscription_place import record_server
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.domain import Domain, check_owner
from spark_jms.log.snapshot import Snapshot
from spark_jms.store import SessionInfo, Store, StoreError, open_store
from spark_jms.store.absence import absence
from spark_jms.store.opening import StoreOpening
from spark_jms.store.routed import DEFAULT, RoutedStore, address, split_address
from spark_jms.store.uri import lasts, places_of

HOUSEKEEPING_S = 2.0
OPENING_S = 10.0  # of a server's store: whoever needs it asks again
_ANY_RECORD = "jmsq"  # asking for it makes the store prove that it can be read


class DomainStores(RoutedStore):
    """All stores of a domain, and the keeper of the leases of the servers that this process uses. Openings that nobody waits for any
    more end soon: those of servers by their limit, all of them with `close`."""

    def __init__(self, domain: Domain, limit_s: float | None) -> None:
        self._openings: dict[str, StoreOpening] = {}  # server -> the newest
        self._ended = False

        def open_server(server: str) -> Store:
            opening = self._openings[server] = StoreOpening(OPENING_S if limit_s is None else limit_s)
            if self._ended:
                opening.cancel()
            return open_store(domain.server_uri(server), create=False, opening=opening)

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
            lambda server, timeout_s: absence(places_of(domain.server_uri(server)), timeout_s),
            lambda server: sampled_effort(self.store(server)),
        )

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
    """The domain's own store, which `jmsq apply` has made. A new one is made where the old one ends with its processes.
    Raises DomainError when it is the store of another domain."""
    store = open_store(domain.store_uri, create=not lasts(domain.store_uri), opening=opening)
    try:
        check_owner(domain, store)
    except BaseException:
        store.close()
        raise
    return store


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
    """Asks as much as a delivery does: the questions of a batch, and the writes of a claim (core/delivery_sample.py)."""
    begun_ms = monotonic_ms()
    store.infos(_ANY_RECORD)
    store.sessions()
    store.info(_ANY_RECORD)
    read_ms = monotonic_ms()
    store.connect("sample of a delivery").close()
    return effort(read_ms - begun_ms, monotonic_ms() - read_ms)


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
