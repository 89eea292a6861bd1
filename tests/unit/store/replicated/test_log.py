"""The log of record sets (R7, R13, R15): small regions, snapshots, a crash between any two objects, a full store."""

from __future__ import annotations

import asyncio

import pytest

from spark_jms.store import Delete, Put
from spark_jms.store.engine.entry_log import LedgerBatch, Loaded
from spark_jms.store.errors import MemoryLimitError, StoreClosedError, StoreFullError
from spark_jms.store.ledger.ledger import Ledger, ScratchLedger
from spark_jms.store.ledger.record import Change, Connected, Entry, Opened, Written
from spark_jms.store.regions.client.object_journal import CHUNK, SnapshotPolicy
from spark_jms.store.regions.client.objects import MemoryObjects
from spark_jms.store.replicated import log as records
from spark_jms.store.replicated.log import RecordLog
from tests.harness.stores.faulty_objects import Refusing

SMALL = 10_485  # an object of a region of 1 MB


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "SNAPSHOTS", SnapshotPolicy(4_096, 20_000))
    monkeypatch.setattr(records, "OUTCOMES", 300)


def entries(count: int, size: int = 700) -> list[Entry]:
    first: list[Entry] = [Connected("a", "x"), Opened("r", 1, "a")]
    return first + [Written((Change("r", 1, (Put(f"k{n % 40}", bytes([n % 256]) * size),)),)) for n in range(count)]


async def write(log: RecordLog, made: list[Entry], ledger: Ledger, position: int) -> int:
    for entry in made:
        scratch = ScratchLedger(ledger)
        scratch.apply(entry)
        await log.append(LedgerBatch(position, (entry,), (f"{position:016x}",), ledger, scratch))
        scratch.keep()
        position += 1
    return position


def folded(loaded: Loaded) -> Ledger:
    ledger = Ledger()
    for entry in loaded.entries:
        ledger.apply(entry)
    return ledger


def test_small_region_holds_ledger_and_tokens() -> None:
    """R7: snapshots and batches fit into the objects of a region of 1 MB, with any number of tokens, and are read again."""

    async def run() -> None:
        objects = MemoryObjects(max_object_bytes=SMALL)
        log, ledger = RecordLog(objects), Ledger()
        position = await write(log, entries(900), ledger, (await log.load()).position)
        assert log.snapshot_count > 3
        loaded = await RecordLog(objects).load()
        assert loaded.position == position
        assert folded(loaded).records["r"].objects == ledger.records["r"].objects
        assert [token for token, _ in loaded.outcomes] == [f"{n:016x}" for n in range(position - 300, position)]
        assert loaded.known_since == position - 300

    asyncio.run(run())


@pytest.mark.parametrize("step", range(0, 60, 7))
def test_crash_between_two_objects_keeps_acknowledged_batches(step: int) -> None:
    """R15: recovery finds everything up to the last acknowledged batch, or the one after it."""

    async def run() -> None:
        objects = MemoryObjects(max_object_bytes=SMALL)
        log, ledger = RecordLog(objects), Ledger()
        made = entries(120, 900)
        position = await write(log, made[:60], ledger, (await log.load()).position)
        left = step
        create, delete = objects.create, objects.delete

        async def dying_create(data: bytes) -> int:
            nonlocal left
            left -= 1
            if left < 0:
                objects.failure = StoreClosedError("dead")
            return await create(data)

        async def dying_delete(handle: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                objects.failure = StoreClosedError("dead")
            await delete(handle)

        update = objects.update

        async def dying_update(handle: int, data: bytes) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                objects.failure = StoreClosedError("dead")
            await update(handle, data)

        objects.create, objects.delete = dying_create, dying_delete  # type: ignore[method-assign]
        objects.update = dying_update  # type: ignore[method-assign]
        acknowledged = position

        async def write_on() -> None:
            nonlocal acknowledged
            for entry in made[60:]:
                ledger.apply(entry)
                await log.append(LedgerBatch(acknowledged, (entry,), ("t",), ledger, ledger))
                acknowledged += 1

        with pytest.raises(StoreClosedError):
            await write_on()
        loaded = await RecordLog(MemoryObjects(max_object_bytes=SMALL, contents=objects.contents)).load()
        assert loaded.position in (acknowledged, acknowledged + 1)
        again = Ledger()
        for entry in made[: loaded.position]:
            again.apply(entry)
        assert folded(loaded).records["r"].objects == again.records["r"].objects

    asyncio.run(run())


def test_refused_snapshot_does_not_fail_the_batch() -> None:
    """R13: the batch is durable, so its append succeeds, and the log is read as before."""

    async def run() -> None:
        objects = MemoryObjects(max_object_bytes=SMALL)
        log, ledger = RecordLog(objects), Ledger()
        update = objects.update

        async def refused_for_ledgers(handle: int, data: bytes) -> None:
            if data.startswith(CHUNK):
                raise MemoryLimitError("no room")
            await update(handle, data)

        objects.update = refused_for_ledgers  # type: ignore[method-assign]
        position = await write(log, entries(80), ledger, (await log.load()).position)
        assert log.snapshot_count == 0
        assert (await RecordLog(objects).load()).position == position

    asyncio.run(run())


def test_refused_batch_leaves_nothing() -> None:
    """R12, R13: the chunks of a refused batch are deleted, because they would take room in a store that has none."""

    async def run() -> None:
        objects = MemoryObjects(max_object_bytes=SMALL)
        log, ledger = RecordLog(objects), Ledger()
        position = await write(log, entries(3), ledger, (await log.load()).position)
        kept, create, left = objects.handles(), objects.create, 3

        async def full(data: bytes) -> int:
            nonlocal left
            left -= 1
            if left < 0:
                raise MemoryLimitError("full")
            return await create(data)

        objects.create = full  # type: ignore[method-assign]
        large = Written((Change("r", 1, (Put("large", bytes(8 * SMALL)),)),))
        with pytest.raises(StoreFullError):
            await write(log, [large], ledger, position)
        assert objects.handles() == kept
        objects.create = create  # type: ignore[method-assign]
        assert folded(await RecordLog(objects).load()).records["r"].objects == ledger.records["r"].objects

    asyncio.run(run())


def test_full_store_keeps_deletions() -> None:
    """R13: a full store refuses a batch that writes values. A snapshot takes the place of a deletion, and makes room."""

    async def run() -> None:
        objects = Refusing(max_object_bytes=SMALL)
        log, ledger = RecordLog(objects), Ledger()
        position = await write(log, entries(10), ledger, (await log.load()).position)
        batches = len(objects.contents)
        growth = Written((Change("r", 1, (Put("more", b"more"),)),))
        objects.refusals = 1
        with pytest.raises(StoreFullError):
            await write(log, [growth], ledger, position)
        objects.refusals = 1
        position = await write(log, [Written((Change("r", 1, (Delete("k0"),)),))], ledger, position)
        assert log.snapshot_count == 1
        assert len(objects.contents) < batches
        kept = await RecordLog(objects).load()
        assert kept.outcomes[-1] == (f"{position - 1:016x}", position), (
            "an engine that repeats it finds that it was kept"
        )
        assert (kept.position, len(kept.outcomes)) == (position, position)
        await write(log, [growth], ledger, position)
        loaded = await RecordLog(objects).load()
        assert folded(loaded).records["r"].objects == ledger.records["r"].objects

    asyncio.run(run())
