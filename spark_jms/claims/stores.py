"""The stores of a domain, its own and those of its servers, as one (M10)."""

from __future__ import annotations

from contextlib import suppress

from spark_jms.claims.lane import Lane, LaneBusyError
from spark_jms.claims.server_keeper import ServerKeeper
from spark_jms.core.placement import HOME
from spark_jms.core.record_names import member_record, members_prefix
from spark_jms.core.subscription_place import record_server
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.domain import Domain
from spark_jms.log.snapshot import Snapshot
from spark_jms.store import Store, StoreError, open_store
from spark_jms.store.absence import absence
from spark_jms.store.routed import DEFAULT, RoutedStore, address
from spark_jms.store.uri import places_of

_ANY_RECORD = "jmsq"  # asking for it makes the store prove that it can be read


class DomainStores(RoutedStore):
    """All stores of a domain, and the keeper of the leases of the servers that this process uses."""

    def __init__(self, domain: Domain) -> None:
        super().__init__(
            open_store(domain.store_uri),
            lambda server: open_store(domain.server_uri(server), create=False),
            domain.servers.names,
        )
        self.keeper = ServerKeeper(
            domain,
            lambda server: self.store(server).info(_ANY_RECORD),
            lambda server, timeout_s: absence(places_of(domain.server_uri(server)), timeout_s),
        )

    def close(self) -> None:
        self.keeper.close()
        super().close()


def open_stores(domain: Domain) -> Store:
    """The domain's own store, which is opened now, and those of its servers, each when it is first used. A server's store
    exists since its server was declared: a missing one is an error, never a new store."""
    return DomainStores(domain)


def keep_servers(store: Store, table: DeltaLog) -> None:
    """This process uses the stores of the servers that a destination is on, so it keeps their leases until it closes `store`."""
    if isinstance(store, DomainStores):
        store.keeper.use(table)


def store_of(store: Store, server: str) -> Store:
    """The store of one server, whose records have plain names. Raises StoreError when it cannot be opened. A store that is
    not routed is HOME's alone."""
    if isinstance(store, RoutedStore):
        return store.store(_key(server))
    assert server == HOME, f"this store has no servers, and none called {server}"
    return store


def why_silent(store: Store, server: str, wait_s: float) -> str:
    """Why a server's store cannot be asked now; "" when it answers within `wait_s`."""
    lane = Lane(f"server {server}")
    try:
        lane.run(lambda: store_of(store, server).sessions(), wait_s)
    except LaneBusyError:
        return f"its store does not answer within {wait_s:g} s"
    except StoreError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        lane.close()
    return ""


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
