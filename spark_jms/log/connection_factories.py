"""The connection factories of a domain (D2): one small file for each, ROOT/_jmsq/connection-factories/<name>, which `apply`
writes. A connection reads its own once, when it is opened."""

from __future__ import annotations

import json

from spark_jms.errors import DomainError, OptionError
from spark_jms.log.storage import Storage
from spark_jms.settings.connection_factory import ConnectionFactory, from_stored, to_stored

CONNECTION_FACTORIES = "_jmsq/connection-factories"


class ConnectionFactories:
    """Thread-safe: every call reads or writes the storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def names(self) -> list[str]:
        names = (info.path.rsplit("/", 1)[1] for info in self._storage.list(CONNECTION_FACTORIES))
        return sorted(name for name in names if not name.startswith("."))  # a dot marks a temporary file

    def get(self, name: str) -> ConnectionFactory:
        """Raises DomainError, which lists the connection factories."""
        data = self._storage.get(f"{CONNECTION_FACTORIES}/{name}")
        if data is None:
            raise DomainError(
                f"{self._storage.uri} has no connection factory {name!r} (there are: {', '.join(self.names()) or 'none'}): add it "
                "under `connectionFactories:` in the module file"
            )
        try:
            return from_stored(json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError, OptionError) as error:
            raise DomainError(
                f"{self._storage.uri}/{CONNECTION_FACTORIES}/{name} is damaged, or a later spark-jms wrote it ({error!r}): apply "
                "the module file again, or install that version"
            ) from error

    def put(self, name: str, factory: ConnectionFactory) -> None:
        """Durable on return."""
        path = f"{CONNECTION_FACTORIES}/{name}"
        self._storage.put(path, json.dumps(to_stored(factory), indent=1).encode())
        self._storage.sync([path])
