"""Compares the memory of the daemons with the writes that they acknowledged."""

from __future__ import annotations

from collections.abc import Sequence, Sized

from spark_jms.store.errors import StoreCorruptError
from spark_jms.store.regions.client.space import BLOCK_BYTES, CATALOG, FREE, HEADER_BYTES, Block, walk
from spark_jms.store.regions.protocol.region_entry import Holder, RegionEntry
from tests.models.regions.cluster import SimCluster
from tests.models.regions.errors import Promise, Violation
from tests.models.regions.observer import Observer
from tests.models.regions.stored import Stored

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
        """The first living copy of each region, and the last ones where they differ: equal bytes say the same."""
        first, last = self._bytes(store, 0), self._bytes(store, -1)
        if first is not None:
            self._check_bytes(store, first, "first")
        if last is not None and last != first:
            self._check_bytes(store, last, "last")

    def _bytes(self, store: Stored, which: int) -> dict[str, bytes] | None:
        """Of one living copy of each region; None: a region is lost, or was created, never opened, and has no copy here."""
        found: dict[str, bytes] = {}
        for name, entry in self._cluster.directory.entries.items():
            if not name.startswith(store.name + "."):
                continue
            cores = [core for core in map(self._cluster.living, entry.holders()) if core is not None]
            if not cores:
                return None
            core = cores[which]
            copy = core.copies.get(name)
            if copy is None or copy.region_id != entry.region_id:
                if name in self._cluster.directory.opens:
                    raise Violation(Promise.LISTED, f"region {name}: daemon {core.index} is listed and has no copy")
                return None
            found[name] = bytes(copy.memory)
        return found

    def _check_bytes(self, store: Stored, regions: dict[str, bytes], which: str) -> None:
        found: dict[int, tuple[Block, str]] = {}
        free: dict[str, int] = {}
        for name, data in regions.items():
            blocks = _blocks(name, data, which)
            free[name] = sum(block.size for block in blocks if block.connection == FREE)
            for block in blocks:
                if block.connection not in (FREE, CATALOG) and (
                    block.handle not in found or found[block.handle][0].order < block.order
                ):
                    found[block.handle] = block, name
        if store.objects:
            values = {handle: _payload(block, regions[name]) for handle, (block, name) in found.items()}
            store.acknowledged.check(values, f"copies of {store.name}, {which}")
        maps = store.maps() or {}
        for name in free.keys() & maps.keys():
            if free[name] != maps[name].free_bytes:
                raise Violation(
                    Promise.SPACE,
                    f"region {name}: {free[name]} bytes are free, {maps[name].free_bytes} are known to be",
                )

    # ---- when the directory changes

    def changed(self, by: Holder, name: str, old: RegionEntry | None, new: RegionEntry | None, opened: bool) -> None:
        store = next((store for store in self._stores if name.startswith(store.name + ".")), None)
        if store is None:
            return
        if opened:
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


def _blocks(name: str, data: bytes, which: str) -> Sequence[Block]:
    if data[:HEADER_BYTES] == bytes(HEADER_BYTES):
        return ()
    walker = walk(name, len(data))
    try:
        walker.feed(HEADER_BYTES, data[HEADER_BYTES:])
    except StoreCorruptError as error:
        raise Violation(Promise.INTACT, f"region {name}, its {which} copy: {error}") from error
    return walker.blocks


def _payload(block: Block, data: bytes) -> bytes:
    return data[block.offset + BLOCK_BYTES : block.offset + BLOCK_BYTES + block.length]
