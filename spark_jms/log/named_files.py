"""A folder of the domain with one small file for each name: its destinations, servers, connection factories and the like."""

from __future__ import annotations

import re
from contextlib import suppress

from spark_jms.log.storage import Storage

_FILE_NAME = re.compile(r"(?!\.)[!-.0-~]{1,255}\Z")  # visible ASCII without "/"


class NamedFiles:
    """Thread-safe: every call reads or writes the storage. What `create`, `put` and `delete` did is durable when they return."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage, self._folder = storage, folder

    def names(self) -> list[str]:
        names = (info.path.rsplit("/", 1)[1] for info in self._storage.list(self._folder))
        return sorted(name for name in names if not name.startswith("."))  # a dot marks a temporary file

    def get(self, name: str) -> bytes | None:
        """None when there is none. `name` may be anything that a user has given: `../x` and 5 name no file of the folder."""
        return self._storage.get(self._path(name)) if isinstance(name, str) and _FILE_NAME.match(name) else None

    def create(self, name: str, data: bytes) -> bool:
        """False when there is one, which stays as it is."""
        created = self._storage.create(self._path(name), data)
        self._storage.sync([self._path(name)])
        return created

    def put(self, name: str, data: bytes) -> None:
        self._storage.put(self._path(name), data)
        with suppress(FileNotFoundError):  # another process has deleted it, and made that durable
            self._storage.sync([self._path(name)])

    def delete(self, name: str) -> None:
        if self._storage.exists(self._path(name)):  # without any file there is no folder to sync
            self._storage.delete(self._path(name))
            self._storage.sync([self._folder])

    def shown(self, name: str) -> str:
        """Where the file is, for people."""
        return f"{self._storage.uri}/{self._path(name)}"

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"
