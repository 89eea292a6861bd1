"""The connection factories of a domain: one small file for each, ROOT/_jmsq/connection-factories/<name>, which `apply`
writes. A connection reads its own once, when it is opened.

Features: D2 (docs/FEATURES.md)
"""

from __future__ import annotations

import json

from spark_jms.errors import DomainError, OptionError
from spark_jms.log.named_files import NamedFiles
from spark_jms.log.storage import Storage
from spark_jms.settings.connection_factory import ConnectionFactory, from_stored, to_stored

CONNECTION_FACTORIES = "_jmsq/connection-factories"


class ConnectionFactories:
    """Thread-safe: every call reads or writes the storage."""

    def __init__(self, storage: Storage) -> None:
        self._root, self._files = storage.uri, NamedFiles(storage, CONNECTION_FACTORIES)

    def names(self) -> list[str]:
        return self._files.names()

    def get(self, name: str) -> ConnectionFactory:
        """Raises DomainError, which lists the connection factories."""
        data = self._files.get(name)
        if data is None:
            raise DomainError(
                f"{self._root} has no connection factory {name!r} (there are: {', '.join(self.names()) or 'none'}): add it "
                "under `connectionFactories:` in the module file"
            )
        try:
            return from_stored(json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError, OptionError) as error:
            raise DomainError(
                f"{self._files.shown(name)} is damaged, or a later spark-jms wrote it ({error!r}): apply "
                "the module file again, or install that version"
            ) from error

    def put(self, name: str, factory: ConnectionFactory) -> None:
        """Durable on return."""
        self._files.put(name, json.dumps(to_stored(factory), indent=1).encode())
