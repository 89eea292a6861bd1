"""Shared memory of one daemon."""

from __future__ import annotations

from collections.abc import Callable

from spark_jms.store.regions.core.actions import MemoryPort
from tests.models.regions.errors import Promise, Violation


class SimMemory(MemoryPort):
    """`asks` tells how often a region's memory is asked for in vain before the system has provided it."""

    def __init__(self, limit_bytes: int, asks: Callable[[str], int] = lambda region_id: 0) -> None:
        self.limit_bytes = limit_bytes
        self._asks = asks
        self._awaited: dict[str, int] = {}  # asks that are left
        self.held: dict[str, int] = {}
        self.total = 0

    def allocate(self, region_id: str, size: int) -> memoryview | None:
        if region_id not in self._awaited:
            if region_id in self.held:
                raise Violation(Promise.LIMIT, f"the memory of {region_id} is taken twice")
            self.held[region_id] = size
            self.total += size
            if self.total > self.limit_bytes:
                raise Violation(Promise.LIMIT, f"{self.total} bytes of shared memory, the limit is {self.limit_bytes}")
            self._awaited[region_id] = self._asks(region_id)
        if self._awaited[region_id] > 0:
            self._awaited[region_id] -= 1
            return None
        del self._awaited[region_id]
        return memoryview(bytearray(size))

    def free(self, region_id: str) -> None:
        self._awaited.pop(region_id, None)
        self.total -= self.held.pop(region_id)
