"""A full record log (R13): what is readable is deletable, always, and then there is room for new values."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jms.store import Delete, Put
from spark_jms.store.engine.entry_log import LedgerBatch
from spark_jms.store.errors import DaemonUnavailableError, StoreFullError
from spark_jms.store.ledger.codec import encode
from spark_jms.store.ledger.ledger import Ledger, ScratchLedger
from spark_jms.store.ledger.record import Change, Closed, Connected, Ended, Entry, Opened, Prepared, Resolved, Written
from spark_jms.store.regions.client.object_journal import SnapshotPolicy
from spark_jms.store.replicated import log as records
from spark_jms.store.replicated.log import RecordLog
from tests.harness.stores.faulty_objects import FiniteObjects

OBJECT_BYTES = 512
KEYS = 60


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "SNAPSHOTS", SnapshotPolicy(batches=200, batch_bytes=6_000))
    monkeypatch.setattr(records, "OUTCOMES", 20)


class Engine:
    """What an engine does with the log: one entry a batch, and its ledger changes once the batch is durable."""

    def __init__(self, objects: FiniteObjects, policy: SnapshotPolicy | None = None) -> None:
        self.log = RecordLog(objects, policy)
        self.ledger = Ledger()
        self.attempted = Ledger()
        self.position = 0

    async def open(self) -> Engine:
        loaded = await self.log.load()
        for entry in loaded.entries:
            self.ledger.apply(entry)
        self.position = loaded.position
        return self

    async def write(self, *entries: Entry) -> None:
        scratch = ScratchLedger(self.ledger)
        for entry in entries:
            scratch.apply(entry)
        self.attempted = folded(scratch)
        tokens = (f"{self.position:012x}",)
        await self.log.append(LedgerBatch(self.position, entries, tokens, self.ledger, scratch))
        scratch.keep()
        self.position += len(entries)

    async def take(self) -> Change:
        """The record, by a session of its own: what a process does before it deletes."""
        session = f"session-{self.position}"
        await self.write(Ended(tuple(self.ledger.sessions)))
        await self.write(Connected(session, "label"))
        record = self.ledger.records.get("r")
        epoch = 1 if record is None else record.epoch + 1
        await self.write(Opened("r", epoch, session))
        return Change("r", epoch, ())

    async def empty(self) -> None:
        """Resolves and deletes everything, each alone, and writes again."""
        taken = await self.take()
        for xid in list(self.ledger.prepared):
            await self.write(Resolved(xid, commit=False))
        for key in list(self.ledger.records["r"].objects):
            await self.write(Written((Change("r", taken.epoch, (Delete(key),)),)))
        await self.write(Written((Change("r", taken.epoch, (Put("new", bytes(100)),)),)))
        await self.write(Written((Change("r", taken.epoch, (Delete("new"),)),)))


def folded(ledger: Ledger) -> Ledger:
    copy = Ledger()
    for entry in ledger.snapshot():
        copy.apply(entry)
    return copy


def state(ledger: Ledger) -> list[Entry]:
    return list(ledger.snapshot())


async def live(engine: Engine, rng: random.Random, steps: int) -> int:
    """Random changes; how many of them the full store refused. After each refusal a deletion succeeds."""
    refused = 0
    epoch = (await engine.take()).epoch
    for _ in range(steps):
        kind = rng.randrange(12)
        objects = engine.ledger.records["r"].objects
        key = f"k{rng.randrange(KEYS)}é"
        xid = next(iter(engine.ledger.prepared), None)
        size = rng.choice([0, 30, 200, 700]) + rng.randrange(40)
        try:
            if kind == 0 and objects:
                key = rng.choice(list(objects))
                if engine.ledger.prepared.locked_by((Change("r", epoch, (Delete(key),)),)) is None:
                    await engine.write(Written((Change("r", epoch, (Delete(key),)),)))
            elif kind == 1:
                await engine.write(Closed("r", epoch))
                epoch = (await engine.take()).epoch
            elif kind == 2 and xid is None:
                await engine.write(Prepared("x", (Change("r", epoch, (Put(key, bytes(size)), Delete("k1é"))),)))
            elif kind == 3 and xid is not None:
                await engine.write(Resolved(xid, commit=rng.random() < 0.5))
            else:
                put = Change("r", epoch, (Put(key, bytes(size)),))
                if engine.ledger.prepared.locked_by((put,)) is None:
                    await engine.write(Written((put,)))
        except StoreFullError:
            refused += 1
            free = [k for k in objects if engine.ledger.prepared.locked_by((Change("r", epoch, (Delete(k),)),)) is None]
            if free and rng.random() < 0.5:
                await engine.write(Written((Change("r", epoch, (Delete(rng.choice(free)),)),)))
    return refused


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 3), st.lists(st.tuples(st.integers(1, 400), st.booleans()), max_size=3))
def test_full_log_can_be_emptied(seed: int, regions: int, crashes: list[tuple[int, bool]]) -> None:
    """R13: after any history in a store with a hard limit, with crashes between any two object operations, every deletion
    succeeds, then a new value does, and again after another opening."""

    async def run() -> None:
        rng = random.Random(seed)
        objects = FiniteObjects(24_000 // regions, regions, OBJECT_BYTES)
        for crash_at, done in crashes:
            objects = objects.restart(crash_at, done)
            engine = Engine(objects)
            before = state(Ledger())
            try:
                await engine.open()
                before = state(engine.ledger)
                await live(engine, rng, 60)
            except DaemonUnavailableError:
                objects = objects.restart()
                found = state((await Engine(objects).open()).ledger)
                assert found in (state(engine.ledger), state(engine.attempted)) or found[: len(before)] == before
        objects = objects.restart()
        engine = await Engine(objects).open()
        await live(engine, rng, 120)
        if rng.random() < 0.5:
            engine = await Engine(objects).open()
        await engine.empty()
        engine = await Engine(objects).open()
        await live(engine, rng, 20)
        await engine.empty()

    asyncio.run(run())


@settings(max_examples=int(os.environ.get("JMSQ_EXAMPLES", "40")))
@given(
    region_bytes=st.integers(10_000, 60_000),
    share=st.floats(0.3, 1.0),
    snapshot_batches=st.integers(5, 400),
    kill=st.booleans(),
    openings=st.integers(1, 4),
    value_bytes=st.integers(100, 900),
)
def test_full_log_takes_values_again_after_each_opening(
    region_bytes: int, share: float, snapshot_batches: int, kill: bool, openings: int, value_bytes: int
) -> None:
    """R13, R15: once a share of the values is deleted, wherever the last snapshot fell, however the engine ended, and though
    no opening but the last writes. The size that decides is that of the living values, and never less than a snapshot."""

    async def run() -> None:
        policy = SnapshotPolicy(batches=snapshot_batches, batch_bytes=10**9)
        objects = FiniteObjects(region_bytes, 1, OBJECT_BYTES)
        engine = await Engine(objects, policy).open()
        epoch = (await engine.take()).epoch
        with contextlib.suppress(StoreFullError):
            for n in range(10_000):
                await engine.write(Written((Change("r", epoch, (Put(f"k{n}", bytes(value_bytes)),)),)))
        keys = list(engine.ledger.records["r"].objects)
        for key in keys[: math.ceil(share * len(keys))]:
            await engine.write(Written((Change("r", epoch, (Delete(key),)),)))
        if kill:
            objects.crash_at = objects.changes + 1
            with contextlib.suppress(DaemonUnavailableError):
                await engine.write(Written((Change("r", epoch, (Delete("none"),)),)))
        else:
            await engine.write(Ended(tuple(engine.ledger.sessions)))
        for _ in range(openings):
            objects = objects.restart()
            engine = await Engine(objects, policy).open()
            assert engine.log.size_bytes >= len(encode(engine.ledger.snapshot()))
            assert engine.log.size_bytes <= len(encode(engine.ledger.snapshot())) + 40 * records.OUTCOMES
        epoch = (await engine.take()).epoch
        await engine.write(Written((Change("r", epoch, (Put("new", b"1"),)),)))
        await engine.write(Written((Change("r", epoch, (Put("new", bytes(value_bytes // 2)),)),)))

    asyncio.run(run())


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_full_log_survives_a_crash_at_every_operation(done: bool) -> None:
    """R13, R15: while a full store is emptied; recovery finds what was acknowledged, and continues."""

    async def run() -> None:
        for crash_at in range(1, 10_000, 7):
            objects = FiniteObjects(12_000, 2, OBJECT_BYTES)
            engine = await Engine(objects).open()
            assert await live(engine, random.Random(7), 250) > 20
            objects.crash_at, objects.done = objects.changes + crash_at, done
            try:
                await engine.empty()
            except DaemonUnavailableError:
                objects = objects.restart()
                again = await Engine(objects).open()
                assert state(again.ledger) in (state(engine.ledger), state(engine.attempted))
                await again.empty()
            else:
                assert crash_at > 50
                return
        raise AssertionError("it never ended")

    asyncio.run(run())


def test_update_in_a_full_log_does_not_write_a_snapshot_each_time() -> None:
    """R13: values that do not grow are accepted for ever, and a snapshot makes room for many of them."""

    async def run() -> None:
        objects = FiniteObjects(100_000, 1, OBJECT_BYTES)
        engine = await Engine(objects).open()
        epoch = (await engine.take()).epoch
        with contextlib.suppress(StoreFullError):
            for n in range(10_000):
                await engine.write(Written((Change("r", epoch, (Put(f"k{n}", bytes(500)),)),)))
        live_bytes = engine.ledger.object_bytes
        assert live_bytes > 35_000
        snapshots = engine.log.snapshot_count
        for n in range(3_000):
            await engine.write(Written((Change("r", epoch, (Put("k0", bytes([n % 256]) * 500),)),)))
        assert engine.log.snapshot_count - snapshots < 3_000 / 10
        assert engine.ledger.object_bytes == live_bytes
        await engine.empty()

    asyncio.run(run())
