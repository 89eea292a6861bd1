"""The administration of a file store."""

from __future__ import annotations

from collections.abc import Callable

from spark_jms.store.administration import OpenedAdministration
from spark_jms.store.file.salvage import salvage_directory
from spark_jms.store.file.store import FileStore
from spark_jms.store.reports import Salvaged


class FileAdministration(OpenedAdministration):
    """`path` raises StoreUriError when the URI has no absolute path."""

    def __init__(self, uri: str, path: Callable[[], str]) -> None:
        super().__init__(uri, lambda: FileStore.shared(path(), create=False))
        self._path = path

    def salvage(self) -> Salvaged:
        return salvage_directory(self._path())
