"""The counts of stores, as their instances report them: every daemon knows those of all open stores. Pure.

Features: R14 (docs/FEATURES.md)
"""

from __future__ import annotations

from spark_jms.store.regions.core.directory import DirectoryListing
from spark_jms.store.regions.core.primaries import Primaries
from spark_jms.store.regions.core.protocol import Counted, StoreRow
from spark_jms.store.regions.core.shared import Shared


class StoreCounts:
    def __init__(self, shared: Shared, primaries: Primaries) -> None:
        self._shared = shared
        self._primaries = primaries
        self._rows: dict[str, StoreRow] = {}  # by store

    def reported(self, client: int, row: StoreRow) -> None:
        """By the client that has the store open here."""
        if any(
            primary.use.client == client for name, primary in self._primaries.items() if _store_of(name) == row.name
        ):
            self._rows[row.name] = row
            for index in self._shared.peers.by_index:
                self._shared.out.to_peer(index, Counted(row))

    def reported_elsewhere(self, row: StoreRow) -> None:
        self._rows[row.name] = row

    def linked(self, index: int) -> None:
        """A new connection to this daemon: those of the stores that are open here."""
        here = {_store_of(name) for name, primary in self._primaries.items() if primary.use.client is not None}
        for store in sorted(here & self._rows.keys()):
            self._shared.out.to_peer(index, Counted(self._rows[store]))

    def audit(self, listing: DirectoryListing) -> None:
        """Forgets the stores whose regions were removed."""
        removed = {_store_of(name) for name in listing.removed} - {_store_of(name) for name in listing.entries}
        self._rows = {store: row for store, row in self._rows.items() if store not in removed}

    def show(self, client: int, request: int) -> None:
        """Those of the stores that are open, by name."""
        seen = self._shared.directory.seen
        opened = {_store_of(name) for name, entry in seen.items() if entry.opener is not None}
        rows = [row for store, row in sorted(self._rows.items()) if store in opened]
        self._shared.out.reply(client, request, rows)


def _store_of(region: str) -> str:
    return region.rpartition(".")[0]
