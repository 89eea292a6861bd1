"""Objects that crash, and objects that refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from spark_jms.store.errors import DaemonUnavailableError, StoreError, StoreFullError
from spark_jms.store.regions.client.objects import ConnectionStatistics, MemoryObjects, Objects


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

    def check_overload(self) -> None:
        self.inner.check_overload()

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
