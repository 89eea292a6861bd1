"""The temporary destinations that a context owns.

Features: C15 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from types import TracebackType

import attrs

from spark_jms.client.closing import OwningProcess
from spark_jms.core.destination import TEMPORARY_PREFIX, Destination
from spark_jms.log.declarations import create_tables
from spark_jms.log.domain import Domain
from spark_jms.log.storage import now_ms
from spark_jms.log.temporary import TemporaryEntry
from spark_jms.store import MemoryStore, Session, Store

log = logging.getLogger("spark_jms")
_GRACE_MS = 60_000  # of its files: no other process reads them


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
    """Creates and deletes them. Thread-safe. `store` keeps their record sets in the memory of this process: no other process
    consumes from them, and they end with it."""

    def __init__(self, domain: Domain, domain_store: Store, max_message_bytes: int) -> None:
        """`max_message_bytes`: of the connection; a temporary destination takes messages of this size, if it is more than the
        default."""
        self._domain, self._domain_store = domain, domain_store
        self._max_message_bytes = max_message_bytes
        self._lock = threading.Lock()
        self._session: Session | None = None  # tells other processes that the owner lives
        self.store: Store = MemoryStore()

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
