"""The servers of a domain: names, each with a store of its own, for the record sets of the members on it.

One small file for each: ROOT/_jmsq/servers/<name>. The store in it is never changed. The server `home` has none: its store is the
domain's own.

Features: D1, T5, M10 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from spark_jms.core.placement import HOME
from spark_jms.core.thresholds import NO_THRESHOLDS, FlowThresholds
from spark_jms.errors import DomainError
from spark_jms.log.named_files import NamedFiles
from spark_jms.log.storage import Storage
from spark_jms.settings.destination import ServerSettings
from spark_jms.settings.environment import SERVER_VARIABLE
from spark_jms.settings.table import settings_of
from spark_jms.store.shown_uri import shown_uri

SERVERS = "_jmsq/servers"
DEFAULT_LEASE_MS = settings_of(ServerSettings)["lease"].default
STOPPED = "_jmsq/stopped-servers"


@dataclass(frozen=True)
class ServerEntry:
    """`store` as the module file has it: `file`, a path or a URI. `lease_ms`: so long a store may be silent before its server
    counts as away. `thresholds`: of flow control."""

    store: str
    lease_ms: int = DEFAULT_LEASE_MS
    thresholds: FlowThresholds = NO_THRESHOLDS


class Servers:
    """Thread-safe: every call reads or writes the storage."""

    def __init__(self, storage: Storage) -> None:
        self._root = storage.uri
        self._files, self._stopped = NamedFiles(storage, SERVERS), NamedFiles(storage, STOPPED)

    def names(self) -> list[str]:
        """Without HOME."""
        return self._files.names()

    def entry(self, name: str) -> ServerEntry:
        """Raises DomainError, which lists the servers."""
        data = self._files.get(name)
        if data is None:
            raise DomainError(
                f"{self._root} has no server {name!r} (there are: {', '.join([HOME, *self.names()])}): add it under "
                "`servers:` in the module file"
            )
        try:
            stored = json.loads(data)
            thresholds = FlowThresholds.from_json(stored.get("thresholds", {}))
            return ServerEntry(str(stored["store"]), int(stored.get("leaseMs", DEFAULT_LEASE_MS)), thresholds)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DomainError(
                f"{self._files.shown(name)} is damaged ({error!r}): restore it from a copy, or write into it "
                '{"store": …} with the store of the module file'
            ) from error

    def stopped(self) -> dict[str, int]:
        """server -> since when, ms. What destinations get that come to a server later. Raises DomainError when a file is damaged."""
        return {name: since_ms for name in self._stopped.names() if (since_ms := self._since(name)) is not None}

    def _since(self, name: str) -> int | None:
        data = self._stopped.get(name)
        try:
            return None if data is None else int(data)
        except ValueError as error:
            raise DomainError(
                f"{self._stopped.shown(name)} is damaged ({error}): server {name} is stopped, and it is not known since when. "
                f"`jmsq server start {name}` ends that; then stop it again if it shall be stopped"
            ) from error

    def stop(self, name: str, since_ms: int) -> None:
        """Leaves an earlier stop unchanged. Durable on return."""
        self._stopped.create(name, str(since_ms).encode())

    def start(self, name: str) -> None:
        self._stopped.delete(name)

    def add(self, name: str, entry: ServerEntry) -> None:
        """Leaves the store of one that exists unchanged. Durable on return. Raises DomainError when it has another store."""
        self._files.create(name, _stored(entry))
        known = self.entry(name)
        if known.store != entry.store:
            raise DomainError(
                f"server {name} of {self._root} keeps its state in the store {shown_uri(known.store)!r}; it cannot be "
                f"changed to {shown_uri(entry.store)!r} by apply: take another name"
            )
        if known != entry:
            self._files.put(name, _stored(entry))


def home_server(servers: Servers, given: str | None) -> str | None:
    """The server that senders and pinned receivers of this process prefer: the one `given`, else that of the environment variable
    JMSQ_SERVER, which need not exist. None: they prefer none. Raises DomainError when the domain has no server that is given."""
    if given is not None and given != HOME:
        servers.entry(given)
    return given or os.environ.get(SERVER_VARIABLE) or None


def _stored(entry: ServerEntry) -> bytes:
    thresholds = {"thresholds": entry.thresholds.to_json()} if entry.thresholds else {}
    return json.dumps({"store": entry.store, "leaseMs": entry.lease_ms, **thresholds}, indent=1).encode()
