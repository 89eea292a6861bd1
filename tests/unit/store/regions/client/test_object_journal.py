"""The journal on objects (R12, R13, R16): what a crash, a full store and damage leave."""

from __future__ import annotations

import asyncio
import contextlib
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.store.errors import (
    DaemonUnavailableError,
    SingleCopyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreVersionError,
)
from spark_jms.store.regions.client.object_journal import (
    BATCH,
    CHUNK,
    DATA,
    MAGIC_BYTES,
    ROOT,
    SPARE,
    JournaledState,
    ObjectJournal,
    SnapshotPolicy,
)
from spark_jms.store.regions.client.objects import MemoryObjects, Objects
from tests.harness.stores.faulty_objects import Crashing, Refusing

OBJECT_BYTES = 128  # so that long values are folded twice
POLICY = SnapshotPolicy(batches=1000, batch_bytes=10**9)


class Listed(JournaledState):
    """The state is the list of all entries: (content, handle of a data object or 0)."""

    def __init__(self) -> None:
        self.entries: list[tuple[bytes, int]] = []

    def restore(self, snapshot: bytes) -> None:
        self.entries = msgspec.msgpack.decode(snapshot, type=list[tuple[bytes, int]])

    def replay(self, payload: bytes, first: int, count: int) -> None:
        assert first == len(self.entries)
        self.entries += msgspec.msgpack.decode(payload, type=list[tuple[bytes, int]])
        assert len(self.entries) == first + count

    def handles(self) -> set[int]:
        return {handle for _, handle in self.entries if handle}

    def size(self) -> int:
        return len(encoded(self.entries))


async def recovered(objects: Objects, policy: SnapshotPolicy = POLICY) -> tuple[ObjectJournal, Listed]:
    state = Listed()
    return await ObjectJournal.recover(objects, state, encoded([]), 7, policy), state


def encoded(entries: list[tuple[bytes, int]]) -> bytes:
    return msgspec.msgpack.encode(entries)


def again(objects: MemoryObjects) -> MemoryObjects:
    """The same objects after a restart."""
    return MemoryObjects(max_object_bytes=OBJECT_BYTES, contents=objects.contents)


def kinds(objects: MemoryObjects) -> set[bytes]:
    return {data[:MAGIC_BYTES] for data in objects.contents.values()}


async def live(objects: Objects, seed: int, acknowledged: list[tuple[bytes, int]]) -> list[tuple[bytes, int]]:
    """Append, take snapshots and write data objects at random until the objects fail. `acknowledged` is the state that
    was acknowledged; the answer is what the append in progress would have made of it."""
    rng = random.Random(seed)
    attempt = list(acknowledged)
    try:
        journal, state = await recovered(objects)
        assert state.entries == acknowledged
        for _ in range(12):
            kind = rng.randrange(6)
            if kind == 0:
                await journal.delete(await journal.snapshot(encoded(acknowledged), journal.position))
                continue
            handle = await journal.create_data(rng.randbytes(50)) if kind == 1 else 0
            size = rng.choice([0, 10, 100, 300, 2000])
            fresh = [(rng.randbytes(size // 2), handle), (rng.randbytes(size - size // 2), 0)]
            attempt = acknowledged + fresh
            await journal.append(encoded(fresh), len(fresh), len(encoded(fresh)), grows=rng.random() < 0.5)
            acknowledged[:] = attempt
    except DaemonUnavailableError:
        return attempt
    return acknowledged


async def check_recovery(objects: MemoryObjects, allowed: list[list[tuple[bytes, int]]]) -> list[tuple[bytes, int]]:
    """Recovery finds one of the allowed states, and leaves no garbage for the next."""
    _, state = await recovered(again(objects))
    assert state.entries in allowed
    journal, repeated = await recovered(again(objects))
    assert repeated.entries == state.entries
    assert not journal.garbage_count
    data = {handle for handle, content in objects.contents.items() if content.startswith(DATA)}
    assert data == state.handles()
    return state.entries


@given(seed=st.integers(0, 2**32), crashes=st.lists(st.tuples(st.integers(1, 120), st.booleans()), max_size=4))
def test_recovery_gives_the_acknowledged_entries(seed: int, crashes: list[tuple[int, bool]]) -> None:
    """R12: after a crash between any two object operations the state is what was acknowledged, or that with the append
    that was in progress; several times over."""

    async def run() -> None:
        objects = MemoryObjects(max_object_bytes=OBJECT_BYTES)
        acknowledged: list[tuple[bytes, int]] = []
        for number, (fail_at, done) in enumerate(crashes):
            crashing = Crashing(again(objects), fail_at, done)
            attempt = await live(crashing, seed + number, acknowledged)
            acknowledged[:] = await check_recovery(objects, [acknowledged, attempt])

    asyncio.run(run())


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_crash_at_every_operation(seed: int, done: bool) -> None:
    """R12: the same history is cut at each of its object operations."""

    async def run() -> None:
        for fail_at in range(1, 2000):
            objects = MemoryObjects(max_object_bytes=OBJECT_BYTES)
            crashing = Crashing(objects, fail_at, done)
            acknowledged: list[tuple[bytes, int]] = []
            attempt = await live(crashing, seed, acknowledged)
            await check_recovery(objects, [acknowledged, attempt])
            if crashing.changes < fail_at:
                assert fail_at > 40
                return
        raise AssertionError("the history never ended")

    asyncio.run(run())


def test_long_values_are_folded() -> None:
    """R7: a snapshot and a batch of any length fit into small objects, and their chunks go with them."""

    async def run() -> None:
        objects = MemoryObjects(max_object_bytes=OBJECT_BYTES)
        journal, _ = await recovered(objects)
        entries = [(bytes([n]) * 500, 0) for n in range(100)]
        await journal.append(encoded(entries), len(entries), len(encoded(entries)))
        assert (await recovered(again(objects)))[1].entries == entries
        journal, _ = await recovered(again(objects))
        await journal.delete(await journal.snapshot(encoded(entries), journal.position))
        assert BATCH not in kinds(objects)
        assert (await recovered(again(objects)))[1].entries == entries
        journal, _ = await recovered(again(objects))
        await journal.delete(await journal.snapshot(encoded([]), journal.position))
        assert kinds(objects) == {ROOT, SPARE}
        assert len(objects.contents) < 10, "the room of the longer snapshot was given back"

    asyncio.run(run())


def test_full_store_keeps_deletions() -> None:
    """R13: a full store refuses entries that grow and leaves nothing of them. It refuses the batch of others too, but has
    room for a snapshot of the state with them; growth resumes once there is more room than that snapshot made."""

    async def run() -> None:
        objects = Refusing(max_object_bytes=OBJECT_BYTES)
        journal, state = await recovered(objects)
        assert journal.reserved
        before = dict(objects.contents)
        objects.refusals = 1
        with pytest.raises(StoreFullError):
            await journal.append(encoded([(bytes(150), 0)]), 1, 155, grows=True)
        assert objects.contents == before
        assert journal.reserved
        objects.refusals = 1
        with pytest.raises(StoreFullError):
            await journal.append(encoded([(b"deletion", 0)]), 1, 0)
        objects.refusals = 10**9
        state.entries.append((b"deletion", 0))
        await journal.delete(await journal.snapshot(encoded(state.entries), 1, full=True))
        assert not journal.reserved
        with pytest.raises(StoreFullError, match="room for deletions only"):
            await journal.append(encoded([(b"growth", 0)]), 1, 10, grows=True)
        with pytest.raises(StoreFullError, match="room for deletions only"):
            await journal.create_data(b"data")
        objects.refusals = 0
        await journal.append(encoded([(b"growth", 0)]), 1, 10, grows=True)
        assert journal.reserved
        assert [content for content, _ in (await recovered(again(objects)))[1].entries] == [b"deletion", b"growth"]

    asyncio.run(run())


class RefusingUpdates(MemoryObjects):
    error: StoreError = SingleCopyError("planned")
    left = 10**9

    async def update(self, handle: int, data: bytes) -> None:
        self.left -= 1
        if self.left < 0:
            raise self.error
        await super().update(handle, data)


@pytest.mark.parametrize("left", [0, 1, 5])
def test_refused_snapshot_changes_nothing(left: int) -> None:
    """R13: the batches stay, and the next snapshot is due only after as much again."""

    async def run() -> None:
        objects = RefusingUpdates(max_object_bytes=OBJECT_BYTES)
        journal, state = await recovered(objects, SnapshotPolicy(batches=3, batch_bytes=10**9))
        for n in range(3):
            assert not journal.snapshot_due
            await journal.append(encoded([(bytes([n]) * 300, 0)]), 1, 310)
            state.entries.append((bytes([n]) * 300, 0))
        assert journal.snapshot_due
        batches = {handle: data for handle, data in objects.contents.items() if data.startswith((ROOT, BATCH))}
        objects.left = left
        with pytest.raises(SingleCopyError):
            await journal.snapshot(encoded(state.entries), journal.position)
        assert objects.contents.items() >= batches.items()
        assert not journal.snapshot_due
        copy = MemoryObjects(max_object_bytes=OBJECT_BYTES, contents=dict(objects.contents))
        assert (await recovered(copy))[1].entries == state.entries
        objects.left = 10**9
        await journal.delete(await journal.snapshot(encoded(state.entries), journal.position))
        assert (await recovered(again(objects)))[1].entries == state.entries

    asyncio.run(run())


def test_snapshots_of_a_state_that_does_not_grow_need_no_room() -> None:
    """R13: from whatever state the store refuses every creation, snapshots of it and of smaller ones succeed, also after a
    crash at any of their operations and when the store is opened with another object limit."""

    async def run() -> None:
        for fail_at in range(1, 60):
            objects = Refusing(max_object_bytes=OBJECT_BYTES)
            journal, state = await recovered(objects)
            for n in range(40):
                await journal.append(encoded([(bytes([n]) * 50, 0)]), 1, 60, grows=True)
                state.entries.append((bytes([n]) * 50, 0))
                if n == fail_at % 40:
                    await journal.delete(await journal.snapshot(encoded(state.entries), journal.position))
            crashing = Crashing(objects, fail_at, fail_at % 2 == 0)
            objects.refusals = 10**9
            journal, _ = await recovered(crashing)
            with contextlib.suppress(DaemonUnavailableError):
                await journal.delete(await journal.snapshot(encoded(state.entries), journal.position, full=True))
            journal, found = await recovered(objects)
            assert found.entries == state.entries
            while found.entries:
                del found.entries[: 1 + fail_at % 5]
                await journal.delete(await journal.snapshot(encoded(found.entries), journal.position, full=True))
            assert len(objects.contents) < 10

    asyncio.run(run())


@pytest.mark.parametrize(
    ("kind", "damage", "error"),
    [
        (ROOT, b"????", StoreCorruptError),
        (ROOT, ROOT + b"???", StoreCorruptError),
        (ROOT, ROOT + b"\0\0\0\2" + msgspec.msgpack.encode([99]), StoreVersionError),
        (ROOT, ROOT + b"\0\0\0\x08" + msgspec.msgpack.encode([3, 8, 0, 0, b"\x90"]), StoreVersionError),
        (ROOT, b"OJR2" + msgspec.msgpack.encode([2, 7, 0, 0, b"\x90"]), StoreVersionError),
        (ROOT, b"WHR1" + msgspec.msgpack.encode([1, "hdfs", "supergroup", 0, [], 0]), StoreVersionError),
        (ROOT, msgspec.msgpack.encode(["L", 0, 1, "group", 0, 1, [], b""]), StoreVersionError),
        (BATCH, BATCH + b"???", StoreCorruptError),
        (BATCH, BATCH + msgspec.msgpack.encode([0, 1, 0, b"???"]), StoreCorruptError),
        (BATCH, None, StoreCorruptError),
        (CHUNK, None, StoreCorruptError),
        (CHUNK, DATA + b"no chunk", StoreCorruptError),
        (DATA, None, StoreCorruptError),
    ],
)
def test_damage_and_other_versions_are_refused(kind: bytes, damage: bytes | None, error: type[StoreError]) -> None:
    """R16: a foreign root, another version, a gap and a missing object are refused by name, and nothing is changed."""

    async def run() -> None:
        objects = MemoryObjects(max_object_bytes=OBJECT_BYTES)
        journal, _ = await recovered(objects)
        handle = await journal.create_data(b"data")
        for n in range(3):
            await journal.append(encoded([(bytes([n]) * 300, handle)]), 1, 320)
        await journal.delete(await journal.snapshot(encoded([(b"long" * 50, handle)] * 3), 3))
        for n in range(3):
            await journal.append(encoded([(bytes([n]) * 300, handle)]), 1, 320)
        hit = next(handle for handle, data in sorted(objects.contents.items()) if data.startswith(kind))
        if damage is None:
            del objects.contents[hit]
        else:
            objects.contents[hit] = damage
        before = dict(objects.contents)
        with pytest.raises(error):
            await recovered(again(objects))
        assert objects.contents == before

    asyncio.run(run())
