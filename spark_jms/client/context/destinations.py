"""The destinations that a context uses, and the temporary ones that it owns.

Of each it has the log and the store, runs the housekeeping, and publishes the usage.

Features: C11, C13, C15, T1 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import TracebackType

import attrs

from spark_jms.claims.upkeep.housekeeping import BackgroundThread, Housekeeper
from spark_jms.claims.upkeep.usage import PUBLISH_EVERY_S, UsagePublisher, UsageRecount
from spark_jms.client.messages.message import OwningProcess
from spark_jms.core.destinations.destination import TEMPORARY_PREFIX, Destination, is_temporary
from spark_jms.core.destinations.routing import DestinationAddress
from spark_jms.core.destinations.subscriptions import ClientIdentity, kept_at
from spark_jms.errors import InvalidDestinationError
from spark_jms.log.destinations.declarations import create_tables
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.destinations.limits import follow_home_quota
from spark_jms.log.destinations.temporary import TemporaryEntry
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.health import BackgroundFailure, Health
from spark_jms.log.upkeep.housekeeping import SenderHousekeeping
from spark_jms.store import MemoryStore, Session, Store

log = logging.getLogger("spark_jms")
HOUSEKEEPING_EVERY_S = 2.0
_GRACE_MS = 60_000  # of its files: no other process reads them


class ContextDestinations:
    """The destinations that a context uses. Thread-safe. `temporary_store` has the record sets of the context's temporary
    destinations. Without `housekeeping` only the senders compact. `background` publishes the usage. `check` raises ClosedError when
    the context is closed."""

    def __init__(
        self,
        domain: Domain,
        identity: ClientIdentity,
        store: Store,
        temporary_store: Store,
        background: BackgroundThread,
        check: Callable[[], None],
        *,
        housekeeping: bool,
    ) -> None:
        self._domain, self._identity, self._housekeeping = domain, identity, housekeeping
        self._store, self._temporary_store = store, temporary_store
        self._background, self._check = background, check
        # A thread of its own: compaction must not delay acknowledgements.
        self._housekeeping_thread = BackgroundThread("client housekeeping")
        self._lock = threading.RLock()
        self._housekeepers: dict[str, Housekeeper] = {}
        self._sending = SenderHousekeeping(domain)
        self._publishers: dict[str, UsagePublisher] = {}
        self._recount = UsageRecount(domain, lambda: nullcontext(self.store_of))
        domain.quotas.recount = self._recount

    def log(self, destination: str) -> DeltaLog:
        """Raises InvalidDestinationError, which lists the existing destinations, and ClosedError."""
        self._check()
        try:
            log = self._domain.log(destination)
        except TypeError as error:
            raise InvalidDestinationError(f"{destination!r} is not a destination: {error}") from None
        log.verify()  # what is made now belongs to the table of now
        return log

    def use(self, destination: str) -> DeltaLog:
        """Its log. From now on the context does its housekeeping. Raises InvalidDestinationError."""
        log = self.log(destination)
        with self._lock:
            if self._housekeeping and destination not in self._housekeepers:
                self._housekeepers[destination] = Housekeeper(self._domain, self.store_of(destination), destination)
                run = self._housekeepers[destination].run
                self._housekeeping_thread.add(f"housekeeping of {destination}", run, HOUSEKEEPING_EVERY_S)
        return log

    def stop_using(self, destination: str) -> None:
        """Before a temporary destination is deleted: ends its housekeeping, and its usage is not published any more."""
        with self._lock:
            housekeeper = self._housekeepers.pop(destination, None)
            publisher = self._publishers.pop(destination, None)
        if publisher is not None:
            self._background.remove(publisher.publish)
        if housekeeper is not None:
            self._housekeeping_thread.remove(housekeeper.run)
            housekeeper.close()

    def store_of(self, destination: str) -> Store:
        """The store with its record sets."""
        return self._temporary_store if is_temporary(destination) else self._store

    def kept(self, log: DeltaLog, subscription: str | None, *, exists: bool = False) -> str | None:
        """What a subscription of this client is kept as. One that `exists` may be named by any context without a client id.
        That a queue has none is found later."""
        given = exists and self._identity.client_id is None
        if subscription is None or given or not log.snapshot.destination.is_topic:
            return subscription
        return self._identity.kept(subscription)

    def kept_at(self, address: DestinationAddress, subscription: str | None) -> str | None:
        """What an existing subscription is kept as, of a topic or on its server. Raises InvalidDestinationError."""
        log = self.log(address.destination)
        kept = self.kept(log, subscription, exists=True)
        declared = log.snapshot.destination
        return None if kept is None else kept_at(declared, address.server_in(declared), kept)

    def sent(self, log: DeltaLog, version: int) -> None:
        """A send has committed this version."""
        if not self._housekeeping:
            self._sending.sent(log, version)

    def publish_usage(self, destination: str) -> None:
        """Of a destination with a consumer here, from now on."""
        with self._lock:
            if destination not in self._publishers:
                publisher = UsagePublisher(self._domain, self.store_of(destination), destination)
                self._publishers[destination] = publisher
                self._background.add(f"usage of {destination}", publisher.publish, PUBLISH_EVERY_S)

    def publish_last_usage(self, destination: str) -> None:
        """A consumer of it is closed."""
        publisher = self._publishers.get(destination)
        if publisher is not None:
            publisher.publish_last()

    def with_housekeeping(self) -> tuple[str, ...]:
        """The names of the destinations whose housekeeping the context does."""
        with self._lock:
            return tuple(sorted(self._housekeepers))

    def failures(self) -> list[BackgroundFailure]:
        """Of the senders' compaction and of the housekeeping: those that last."""
        return [*self._sending.failures, *(failure for one in self._health() for failure in one.failures.values())]

    def failed_attempts(self) -> int:
        return self._sending.failed_attempts + sum(one.failed_attempts for one in self._health())

    def _health(self) -> list[Health]:
        with self._lock:
            return [self._housekeeping_thread.health, *(one.health for one in self._housekeepers.values())]

    def close(self) -> None:
        self._housekeeping_thread.close()
        self._domain.quotas.recount = None
        self._recount.close()
        self._sending.close()
        for housekeeper in self._housekeepers.values():
            housekeeper.finish()
            housekeeper.close()


class TemporaryDestination:
    """A queue or topic that goes with its context. `name` is what `reply_to`, `Context.producer` and `Context.consumer` take;
    every context may send to it, only its own may consume from it."""

    def __init__(self, name: str, kind: str, delete: Callable[[str], None]) -> None:
        self.name, self.kind = name, kind
        self._delete, self._process = delete, OwningProcess()

    def delete(self) -> None:
        """Delete it with its messages; closing the context does the same. Raises IllegalStateException while a consumer of it
        is open."""
        self._process.check()
        self._delete(self.name)

    def __enter__(self) -> TemporaryDestination:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._process.is_parent:
            self.delete()

    def __repr__(self) -> str:
        return f"<TemporaryDestination {self.name}>"


class OwnedDestinations:
    """Creates and deletes a context's temporary destinations. Thread-safe. `store` keeps their record sets in the memory of this
    process: no other process consumes from them, and they end with it."""

    def __init__(self, domain: Domain, domain_store: Store, max_message_bytes: int) -> None:
        """`max_message_bytes`: of the connection; a temporary destination takes messages of this size, if it is more than the
        default."""
        self._domain, self._domain_store = domain, domain_store
        self._max_message_bytes = max_message_bytes
        self._lock = threading.Lock()
        self._session: Session | None = None  # tells other processes that the owner lives
        self.store: Store = MemoryStore()

    @property
    def session_id(self) -> str | None:
        """By which other processes know that the owner lives; None: it has had no temporary destination."""
        with self._lock:
            return None if self._session is None else self._session.session_id

    def create(self, kind: str) -> str:
        """Returns the name."""
        with self._lock:
            if self._session is None or self._session.session_id not in self._domain_store.sessions():
                self._session = self._domain_store.connect("temporary destinations")
                self._delete_abandoned()
            session = self._session.session_id
        name = f"{TEMPORARY_PREFIX}{kind}-{secrets.token_hex(8)}"
        tables = self._domain.temporary
        tables.enter(TemporaryEntry(name, kind, session, now_ms()))
        destination = Destination(
            name, kind, file_grace_ms=_GRACE_MS, acknowledgement_retention_ms=_GRACE_MS, slot_members=1
        )
        if self._max_message_bytes > destination.max_message_bytes:
            destination = attrs.evolve(destination, max_message_bytes=self._max_message_bytes)
        create_tables(self._domain, destination, tables.messages_path(name), tables.acknowledgements_path(name))
        follow_home_quota(self._domain, tables.log(name))
        return name

    def delete(self, name: str) -> None:
        self._domain.temporary.delete(name)

    def _delete_abandoned(self) -> None:
        """Those of dead contexts, in case nothing else runs housekeeping in this domain."""
        try:
            self._domain.temporary.delete_abandoned(self._domain_store.sessions)
        except OSError as error:
            log.info("temporary destinations of dead contexts could not be deleted: %s", error)

    def close(self) -> None:
        """What cannot be deleted now, housekeeping deletes later."""
        for name in sorted(self._domain.temporary.own):
            try:
                self.delete(name)
            except OSError as error:
                log.warning("temporary destination %s could not be deleted yet: %s", name, error)
        with self._lock:
            if self._session is not None:
                self._session.close()
        self.store.close()
