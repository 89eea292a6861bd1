"""A process that works on the objects of a store: it creates, updates, deletes and reads them, drawn from the seed (R7)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from spark_jms.store.errors import StoreCorruptError, StoreError
from spark_jms.store.regions.client.instance import StoreInstance
from spark_jms.store.regions.client.objects import ObjectConnection
from tests.models.regions.acknowledged import short
from tests.models.regions.errors import Promise, Violation
from tests.models.regions.process import StoreProcess, was_refused

CONNECTION = "objects"
PAUSE_S = 0.12
MOST_OPERATIONS, MOST_READS = 12, 40
SAMPLE = 6  # objects that are read after each recovery, beside those in doubt
MOST_REGIONS = 2.4  # how full it fills the store


class ObjectProcess(StoreProcess):
    _working: StoreInstance | None = None  # the last instance that it used; it may have failed since

    def hurry(self) -> None:
        instance = self._working
        if instance is not None and instance is self.instance and instance.failure is None:
            self._begin_some(instance)

    async def _recovered(self, instance: StoreInstance) -> None:
        self._busy: set[int] = set()
        self._running = self._reading = 0
        self._objects = objects = await instance.connection(CONNECTION)
        acknowledged, handles = self.store.acknowledged, list(objects.handles())
        wanted = handles
        if not self.finishing:
            sample = self._chance.sample(handles, min(SAMPLE, len(handles)))
            wanted = list(dict.fromkeys((*acknowledged.to_read(handles), *sample)))
        try:
            read = await asyncio.gather(*map(objects.read, wanted))
        except StoreCorruptError as error:
            raise Violation(Promise.INTACT, str(error)) from error
        if self.owns and self.store.removals == self._removals:
            found = dict(zip(wanted, read, strict=True))
            acknowledged.check_some(handles, found, self.name)
            acknowledged.become(handles, found)

    async def _work(self, instance: StoreInstance) -> None:
        self._working = instance
        while instance.failure is None and not self.finishing:
            self._begin_some(instance)
            # A client whose writes have no answer still reads, and must not be served by a daemon that is primary no more.
            if self._reading < MOST_READS and self._chance.random() < 0.4:
                self.loop.spawn(self._read())
            await self.loop.sleep(self._chance.expovariate(1 / PAUSE_S))
            if self._chance.random() < 0.025:
                break
        self._working = None
        while self._running or self._reading:
            await self.loop.sleep(0.01)

    def _begin_some(self, instance: StoreInstance) -> None:
        for _ in range(self._chance.randint(1, 4)):
            if self._running < MOST_OPERATIONS:
                self.loop.spawn(self._operate(instance))

    # ---- one operation

    async def _operate(self, instance: StoreInstance) -> None:
        objects, dice = self._objects, self._chance.random()
        free = [handle for handle in objects.handles() if handle not in self._busy]
        full = instance._placement.used_bytes > MOST_REGIONS * self.store.region_bytes
        handle = self._chance.choice(free) if free else None
        self._running += 1
        try:
            if handle is None or (dice < 0.45 and not full):
                await self._create(instance, objects)
            elif dice < 0.7 and not full:
                await self._change(instance, handle, self._value(), lambda value: objects.update(handle, value))
            else:
                await self._change(instance, handle, None, lambda value: objects.delete(handle))
        except StoreCorruptError as error:
            raise Violation(Promise.INTACT, str(error)) from error
        except StoreError:
            pass  # the instance has failed, or refuses what is too much
        finally:
            self._running -= 1

    async def _create(self, instance: StoreInstance, objects: ObjectConnection) -> None:
        value, acknowledged, removals = self._value(), self.store.acknowledged, self.store.removals
        if self.owns:
            acknowledged.unplaced.add(value)
        try:
            handle = await objects.create(value)
        except StoreError as error:
            if was_refused(error, instance):
                acknowledged.unplaced.discard(value)
            raise
        if self.owns:
            if self.store.removals == removals:
                acknowledged.check_new(handle)
            acknowledged.unplaced.discard(value)
            self._acknowledged(handle, value, removals)

    async def _change(
        self, instance: StoreInstance, handle: int, value: bytes | None, change: Callable[[bytes], Awaitable[None]]
    ) -> None:
        acknowledged, removals, owned = self.store.acknowledged, self.store.removals, self.owns
        before = acknowledged.begin(handle, value) if owned else set()
        self._busy.add(handle)
        try:
            await change(value or b"")
        except StoreError as error:
            if owned and self.owns and was_refused(error, instance):
                acknowledged.refuse(handle, before)
            raise
        finally:
            self._busy.discard(handle)
        if owned and self.owns:
            self._acknowledged(handle, value, removals)

    def _acknowledged(self, handle: int, value: bytes | None, removals: int) -> None:
        self.store.acks += 1
        acknowledged = self.store.acknowledged
        acknowledged.acknowledge(handle, value)
        if self.store.removals != removals:  # a region that took it may be the one that was removed
            acknowledged.begin(handle, None)
            acknowledged.used.discard(handle)  # as with those before the removal, see Acknowledged.forget_one

    async def _read(self) -> None:
        free = [handle for handle in self._objects.handles() if handle not in self._busy]
        if not free:
            return
        handle = self._chance.choice(free)
        self._busy.add(handle)
        self._reading += 1
        try:
            data = await self._objects.read(handle)
        except StoreCorruptError as error:
            raise Violation(Promise.INTACT, str(error)) from error
        except StoreError:
            return
        finally:
            self._reading -= 1
            self._busy.discard(handle)
        allowed = self.store.acknowledged.allowed(handle)
        if self.owns and data not in allowed:
            expected = " or ".join(map(short, allowed))
            raise Violation(Promise.READS, f"{self.name}: read {short(data)} of object {handle}, which is {expected}")

    def _value(self) -> bytes:
        """Begins with the process that wrote it, so that a violation shows it."""
        length = self._chance.choice((0, 1, 40, 200, 900, self.store.region_bytes // 12))
        return (self.name.encode() + self._chance.randbytes(8) + bytes(length))[: self._objects.max_object_bytes]
