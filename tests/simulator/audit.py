"""Compares the memory of the daemons with the writes that they acknowledged."""

from __future__ import annotations

from collections.abc import Sized

from spark_jms.store.errors import StoreCorruptError
from spark_jms.store.regions.core.daemon import DaemonCore
from spark_jms.store.regions.core.directory import Holder, RegionEntry
from spark_jms.store.regions.core.instance import CATALOG, walk
from spark_jms.store.regions.core.space import BLOCK_BYTES, FREE, Block
from tests.simulator.cluster import SimCluster
from tests.simulator.errors import Promise, Violation
from tests.simulator.observer import Observer
from tests.simulator.stored import Stored

CALM_MS = 300.0  # by then the daemons of a new world know each other


class StoreAudit(Observer):
    """`faults`: empty until the first fault. `tight`: daemons may have no memory for a second copy."""

    def __init__(self, cluster: SimCluster, stores: list[Stored], faults: Sized, tight: bool) -> None:
        self._cluster = cluster
        self._stores = stores
        self._faults = faults
        self._tight = tight
        self._calm_ms = cluster.now_ms + CALM_MS

    # ---- every store

    def check_stores(self) -> None:
        """R7: any surviving copy alone holds every acknowledged object, and none that was deleted."""
        for store in self._stores:
            self.check_store(store)

    def check_store(self, store: Stored) -> None:
        for last in (False, True):
            self._check_store(store, last)

    def _check_store(self, store: Stored, last: bool) -> None:
        """Reads the first or the last living copy of each region."""
        found: dict[int, tuple[Block, bytes]] = {}
        free: dict[str, int] = {}
        maps = store.maps()
        for name, entry in self._cluster.directory.entries.items():
            if not name.startswith(store.name + "."):
                continue
            cores = [core for core in map(self._cluster.living, entry.holders()) if core is not None]
            if not cores:
                return  # the region is lost
            blocks = self._blocks(entry, cores[-1 if last else 0])
            if blocks is None:
                return
            free[name] = sum(block.size for block, _ in blocks if block.connection == FREE)
            for block, payload in blocks:
                if block.connection not in (FREE, CATALOG) and (
                    block.handle not in found or found[block.handle][0].order < block.order
                ):
                    found[block.handle] = (block, payload)
        if store.objects:
            values = {handle: payload for handle, (_, payload) in found.items()}
            store.acknowledged.check(values, f"copies of {store.name}, {'last' if last else 'first'}")
        for name in free.keys() & (maps or {}).keys():
            if maps and free[name] != maps[name].free_bytes:
                raise Violation(
                    Promise.SPACE,
                    f"region {name}: {free[name]} bytes are free, {maps[name].free_bytes} are known to be",
                )

    def _blocks(self, entry: RegionEntry, core: DaemonCore) -> list[tuple[Block, bytes]] | None:
        """Each block with its payload; None: the region was created and never opened, and has no copy here."""
        name, copy = entry.name, core.copies.get(entry.name)
        if copy is None or copy.region_id != entry.region_id:
            if name in self._cluster.directory.opens:
                raise Violation(Promise.LISTED, f"region {name}: daemon {core.index} is listed and has no copy")
            return None
        data = bytes(copy.memory)
        if data[:64] == bytes(64):
            return []
        walker = walk(name, entry.size)
        try:
            walker.feed(64, data[64:])
        except StoreCorruptError as error:
            raise Violation(Promise.INTACT, f"region {name} on daemon {core.index}: {error}") from error
        return [(b, data[b.offset + BLOCK_BYTES : b.offset + BLOCK_BYTES + b.length]) for b in walker.blocks]

    # ---- when the directory changes

    def changed(self, by: Holder, name: str, old: RegionEntry | None, new: RegionEntry | None, opened: bool) -> None:
        store = next((store for store in self._stores if name.startswith(store.name + ".")), None)
        if store is None:
            return
        if new is None and opened:
            store.region_removed()
        # Two clients that create a region at the same time refuse each other's copies, and the second one comes later.
        calm = (
            self._cluster.now_ms >= self._calm_ms and not self._faults and not self._tight and len(store.processes) == 1
        )
        if new is not None and old is None and calm:
            self._check_placement(new)
        if old is not None and new is not None and old.holders() != new.holders():
            self.check_store(store)

    def _check_placement(self, entry: RegionEntry) -> None:
        """R9, where it can be predicted: before the first fault, with memory everywhere, and a single client."""
        expected = (entry.primary.daemon + 1) % len(self._cluster.daemons)
        if entry.secondary is None or entry.secondary.daemon != expected:
            raise Violation(
                Promise.PLACED,
                f"region {entry.name}: made on {entry.holders()}, the second copy belongs on daemon {expected}",
            )
