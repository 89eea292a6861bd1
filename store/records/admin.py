"""What an administrator does to a store on regions."""

from __future__ import annotations

from collections.abc import Callable

from spark_jms.store.administration import OpenedAdministration
from spark_jms.store.contract import Store
from spark_jms.store.records.settings import parse_replicated
from spark_jms.store.regions.admin import Admin
from spark_jms.store.reports import StoreInfo


class ReplicatedAdministration(OpenedAdministration):
    def __init__(self, uri: str, open_existing: Callable[[], Store]) -> None:
        super().__init__(uri, open_existing)
        self._settings = parse_replicated(uri)

    def counts(self) -> StoreInfo | None:
        with Admin(str(self._settings.directory), self._settings.localindex) as admin:
            return next((store for store in admin.stores() if store.name == self._settings.store), None)
