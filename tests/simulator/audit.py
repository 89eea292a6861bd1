"""Looks into the memory of the daemons, which no part of the core can do: are listed copies what they should be?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_jms.store.errors import StoreCorruptError
from spark_jms.store.regions.core.directory import RegionEntry
from spark_jms.store.regions.core.instance import walk
from spark_jms.store.regions.core.space import BLOCK_BYTES, FREE, Block
from tests.simulator.client import SimClient
from tests.simulator.parts import Violation

if TYPE_CHECKING:
    from spark_jms.store.regions.core.daemon import DaemonCore
    from tests.simulator.world import World

CALM_MS = 300.0  # by then the daemons of a new world know each other


class Audit:
    def __init__(self, world: World) -> None:
        self._world = world

    def copies(self, final: bool = False) -> None:
        """Two listed copies are the same bytes whenever nothing is on the way between them; at the end, always."""
        for name, entry in self._world.truth.entries.items():
            if entry.secondary is None:
                continue
            a, b = self._world.living(entry.primary), self._world.living(entry.secondary)
            if a is None or b is None or name not in a.copies or name not in b.copies:
                continue
            primary = a.primaries.get(name)
            if primary is None or any(f.unacked for f in primary.followers if f.holder == entry.secondary):
                if final:
                    raise Violation(f"region {name}: the copies on {a.index} and {b.index} do not come to rest")
                continue
            if a.copies[name].memory.obj != b.copies[name].memory.obj:
                raise Violation(f"region {name}: the copies on {a.index} and {b.index} differ")

    def stores(self) -> None:
        """Whoever survives, alone, has every acknowledged object, and none that was deleted."""
        for store in {client.store for client in self._world.clients}:
            owners = [c for c in self._world.clients if c.store == store]
            owner = next((c for c in owners if c.owner), owners[0])
            for last in (False, True):
                self._store(store, owner, last)

    def _store(self, store: str, owner: SimClient, last: bool) -> None:
        found: dict[int, tuple[Block, bytes]] = {}
        free: dict[str, int] = {}
        book, maps = owner.state()
        for name, entry in self._world.truth.entries.items():
            if not name.startswith(store + "."):
                continue
            cores = [core for core in map(self._world.living, entry.holders()) if core is not None]
            if not cores:
                return  # the region is lost
            blocks = self._region(name, entry, cores[-1 if last else 0])
            if blocks is None:
                return
            free[name] = sum(block.size for block, _ in blocks if block.connection == FREE)
            for block, payload in blocks:
                if block.connection != FREE and (
                    block.handle not in found or found[block.handle][0].order < block.order
                ):
                    found[block.handle] = (block, payload)
        book.check(
            {handle: payload for handle, (_, payload) in found.items()},
            f"copies of {store}, {'last' if last else 'first'}",
        )
        for name in free.keys() & (maps or {}).keys():
            if maps and free[name] != maps[name].free_bytes:
                raise Violation(f"region {name}: {free[name]} bytes are free, {maps[name].free_bytes} are known to be")

    def _region(self, name: str, entry: RegionEntry, core: DaemonCore) -> list[tuple[Block, bytes]] | None:
        copy = core.copies.get(name)
        if copy is None or copy.region_id != entry.region_id:
            if name in self._world.truth.opens:
                raise Violation(f"region {name}: daemon {core.index} is listed and has no copy")
            return None
        data = bytes(copy.memory)
        if data[:64] == bytes(64):
            return []
        walker = walk(name, entry.size)
        try:
            walker.feed(64, data[64:])
        except StoreCorruptError as error:
            raise Violation(f"region {name} on daemon {core.index}: {error}") from error
        return [(b, data[b.offset + BLOCK_BYTES : b.offset + BLOCK_BYTES + b.length]) for b in walker.blocks]

    def made(self, entry: RegionEntry) -> None:
        """R9, where it can be told: nothing has failed yet, there is room everywhere, and nobody else makes it."""
        world = self._world
        if world.now_ms < 1_000.0 + CALM_MS or world.outcome.faults or world.tight:
            return
        if sum(entry.name.startswith(client.store + ".") for client in world.clients) != 1:
            return  # two who make it at the same time refuse each other's copies, and the second one comes later
        expected = (entry.primary.daemon + 1) % len(world.nodes)
        if entry.secondary is None or entry.secondary.daemon != expected:
            raise Violation(
                f"region {entry.name}: made on {entry.holders()}, the second copy belongs on daemon {expected}"
            )
