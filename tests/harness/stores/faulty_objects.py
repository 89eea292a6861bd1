"""Objects that crash, and objects that refuse."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Sequence

from spark_jms.store.errors import DaemonUnavailableError, StoreError, StoreFullError
from spark_jms.store.regions.client.objects import ConnectionStatistics, MemoryObjects, Objects
from spark_jms.store.regions.client.space import InstanceCore


class Crashing(Objects):
    """Objects that fail at the k-th change and ever after. With `done`, that change is made but not acknowledged."""

    def __init__(self, inner: MemoryObjects, fail_at: int, done: bool) -> None:
        self.inner, self.fail_at, self.done = inner, fail_at, done
        self.name, self.max_object_bytes = inner.name, inner.max_object_bytes
        self.changes = 0
        self.kinds: list[str] = []

    async def _change(self, kind: str, make: Callable[[], Awaitable[int | None]]) -> int | None:
        self.changes += 1
        self.kinds.append(kind)
        await asyncio.sleep(0)  # other tasks run in between, as they would
        if self.changes == self.fail_at and self.done:
            await make()
        if self.changes >= self.fail_at:
            raise DaemonUnavailableError("planned")
        return await make()

    async def create(self, data: bytes) -> int:
        handle = await self._change("create", lambda: self.inner.create(data))
        assert handle is not None
        return handle

    async def update(self, handle: int, data: bytes) -> None:
        await self._change("update", lambda: self.inner.update(handle, data))

    async def delete(self, handle: int) -> None:
        await self._change("delete", lambda: self.inner.delete(handle))

    async def check_overload(self) -> None:
        await self.inner.check_overload()

    async def read(self, handle: int) -> bytes:
        await asyncio.sleep(0)
        return await self.inner.read(handle)

    def handles(self) -> Sequence[int]:
        return self.inner.handles()

    def statistics(self) -> ConnectionStatistics:
        return self.inner.statistics()


class Refusing(MemoryObjects):
    """Refuses the next `refusals` creations with `error`."""

    error: StoreError = StoreFullError("planned")
    refusals = 0

    async def create(self, data: bytes) -> int:
        if self.refusals > 0:
            self.refusals -= 1
            raise self.error
        return await super().create(data)


class FiniteObjects(MemoryObjects):
    """Objects in regions of a fixed number and size, allocated as a store does it: full means full. `restart` ends this
    connection and returns the next, which fails at the change `crash_at` and ever after; with `done`, that change is made
    but not acknowledged."""

    def __init__(self, region_bytes: int, regions: int, max_object_bytes: int) -> None:
        super().__init__(max_object_bytes=max_object_bytes)
        self._core = InstanceCore()
        for number in range(regions):
            self._core.add_region(f"r{number}", region_bytes)
        self.changes = 0
        self.crash_at, self.done = 0, False

    def restart(self, crash_at: int = 0, done: bool = False) -> FiniteObjects:
        self.failure = DaemonUnavailableError("planned")
        following = copy.copy(self)
        following.failure, following.changes, following.crash_at, following.done = None, 0, crash_at, done
        return following

    @property
    def free_bytes(self) -> int:
        return self._core.size_bytes - self._core.used_bytes

    async def _changing(self, data: bytes = b"") -> bool:
        """Whether to crash once the change is made."""
        await asyncio.sleep(0)  # other tasks run in between, as they would
        self._begin(data)
        self.changes += 1
        if self.changes != self.crash_at:
            return False
        self.failure = DaemonUnavailableError("planned")
        if not self.done:
            raise self.failure
        return True

    def _changed(self, crash: bool) -> None:
        if crash:
            raise DaemonUnavailableError("planned")

    async def create(self, data: bytes) -> int:
        crash = await self._changing(data)
        handle, _ = self._core.plan_create(1, data)
        self.contents[handle] = data
        self._changed(crash)
        return handle

    async def update(self, handle: int, data: bytes) -> None:
        crash = await self._changing(data)
        _, leftover = self._core.plan_update(handle, data)
        if leftover is not None:
            self._core.plan_forget(leftover, handle)
        self.contents[handle] = data
        self._changed(crash)

    async def delete(self, handle: int) -> None:
        crash = await self._changing()
        self._core.plan_delete(handle)
        del self.contents[handle]
        self._changed(crash)
