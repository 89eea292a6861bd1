"""One connection of a client to its store: the objects in its open regions, and its requests without an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from spark_jms.store.regions.core.instance import InstanceCore, Planned
from spark_jms.store.regions.core.protocol import Close, Open, ReadRegion, RegionMessage, Remove
from spark_jms.store.regions.core.space import BLOCK_BYTES, Block, RegionSpace, Step, check_payload
from tests.simulator.acknowledged import Acknowledged, Write, Writes, short
from tests.simulator.errors import Violation
from tests.simulator.recovery import Recovery
from tests.simulator.requests import Requests


class StoreSession:
    """`epochs`: of every region that it has open."""

    def __init__(
        self,
        store: str,
        region_bytes: int,
        acknowledged: Acknowledged,
        send: Callable[[RegionMessage], None],
        numbers: Iterator[int],
        now_ms: Callable[[], float],
    ) -> None:
        self.store = store
        self._region_bytes = region_bytes
        self._acknowledged = acknowledged
        self.requests = Requests(send, numbers, now_ms)
        self.core = InstanceCore()
        self.epochs: dict[str, int] = {}
        self.writes = Writes()
        self.recovery = Recovery(store, self.requests, self.core, self.epochs)
        self._reads: dict[int, tuple[Block, bytes | None]] = {}

    # ---- regions

    def new_region(self) -> None:
        numbers = [int(name.rpartition(".")[2]) for name in self.core.regions]
        name = f"{self.store}.{max(numbers, default=-1) + 1:03d}"
        self.requests.ask("new", lambda n: Open(n, name, self._region_bytes), name)

    def created_region(self, name: str, epoch: int, size: int) -> None:
        self.epochs[name] = epoch
        self._write(name, self.core.add_region(name, size))

    def remove_region(self, name: str) -> None:
        self.requests.ask("remove", lambda n: Remove(n, name, True), name)

    def close(self) -> None:
        for name in list(self.epochs):
            self.requests.ask("close", partial(Close, name=name))

    def free_stale_blocks(self) -> None:
        for region, steps in self.core.recovered():
            self._write(region, steps)

    # ---- objects

    def _write(self, region: str, steps: list[Step]) -> int:
        return self.requests.write(region, self.epochs[region], steps)

    def _write_all(self, planned: Planned) -> set[int]:
        return {self._write(region, steps) for region, steps in planned}

    def _begin(self, handle: int, value: bytes | None, planned: Planned, leftover: str | None = None) -> None:
        (region, _), *others = planned
        assert not others, "a write of one object goes to one region"
        self.writes.add(Write(handle, value, region, self._write_all(planned), leftover))

    def create(self, value: bytes) -> None:
        """RegionFullError: no region has room."""
        handle, planned = self.core.plan_create(1, value)
        self._begin(handle, value, planned)

    def update(self, handle: int, value: bytes) -> None:
        """RegionFullError: no region has room."""
        planned, leftover = self.core.plan_update(handle, value)
        self._begin(handle, value, planned, leftover)

    def delete(self, handle: int) -> None:
        self._begin(handle, None, self.core.plan_delete(handle))

    def forget(self, region: str, handle: int) -> set[int]:
        return self._write_all(self.core.plan_forget(region, handle))

    def read(self, handle: int) -> None:
        """Reads the object unless a write of it is under way, when either value would be right."""
        if handle in self.writes.handles():
            return
        region, block = self.core.where(handle)
        length, epoch = BLOCK_BYTES + block.length, self.epochs[region]
        request = self.requests.ask(
            "read", lambda n: ReadRegion(n, region, epoch, block.offset, length), (handle, region)
        )
        self._reads[request] = (block, self._acknowledged.values.get(handle))

    def check_read(self, request: int, handle: int, data: bytes) -> None:
        block, expected = self._reads.pop(request)
        payload = check_payload("read", block, data[:BLOCK_BYTES], data[BLOCK_BYTES:])
        if payload != expected:
            raise Violation(f"{self.store}: read {short(payload)} of object {handle}")

    # ---- for audits

    def handles_to_doubt(self, region: str) -> set[int]:
        """The acknowledged objects that are lost with this region, or may be."""
        places, moving = self.core.places, self.writes.handles()
        return {h for h in self._acknowledged.values if h not in places or places[h].region == region or h in moving}

    def maps(self) -> dict[str, RegionSpace] | None:
        """The maps of its regions, unless a write is under way."""
        return None if self.requests.waits_for("write") else self.core.regions
