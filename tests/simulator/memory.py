"""Shared memory of one daemon."""

from __future__ import annotations

from spark_jms.store.regions.core.daemon import MemoryPort
from tests.simulator.errors import Violation


class SimMemory(MemoryPort):
    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held: dict[str, int] = {}
        self.total = 0

    def allocate(self, region_id: str, size: int) -> memoryview:
        if region_id in self.held:
            raise Violation(f"the memory of {region_id} is taken twice")
        self.held[region_id] = size
        self.total += size
        if self.total > self.limit_bytes:
            raise Violation(f"{self.total} bytes of shared memory, the limit is {self.limit_bytes}")
        return memoryview(bytearray(size))

    def free(self, region_id: str) -> None:
        self.total -= self.held.pop(region_id)
