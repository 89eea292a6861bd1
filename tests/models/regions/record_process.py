"""A process that runs the engine of a store's record sets: the real record log, journal, entry log and read lease (C9, R8).

It does what `Server` does in its threads (store/engine/server.py), on one event loop: it begins after a while, a batch is
appended and then kept, a read needs a proof. The engine's clients are its own tasks: one session that writes keys of one
record. Keys 0 and 1 are always written together, with the same value.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from spark_jms.store.contract import Delete, Operation, Put
from spark_jms.store.engine.entry_log import EntryLog, Proposal, Verdict
from spark_jms.store.errors import StoreClosedError, StoreCorruptError, StoreError
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.record import Change, Connected, Entry, Opened, Written
from spark_jms.store.processes import START_WAIT_MS, ReadLease
from spark_jms.store.regions.client.instance import StoreInstance
from spark_jms.store.regions.client.object_journal import SnapshotPolicy
from spark_jms.store.replicated.log import RecordLog
from tests.models.regions.acknowledged import short
from tests.models.regions.errors import Promise, Violation
from tests.models.regions.process import StoreProcess, was_refused

CONNECTION = "jmsq.records"
SESSION, RECORD = "session", "record"
KEYS = 24
PAIR = (0, 1)
SNAPSHOTS = SnapshotPolicy(batches=30, batch_bytes=12 * 1024)
PAUSE_S = 0.12


def keys_of(ledger: Ledger) -> dict[int, bytes]:
    record = ledger.records.get(RECORD)
    return {int(key): value for key, value in record.objects.items()} if record is not None else {}


class RecordProcess(StoreProcess):
    async def _recovered(self, instance: StoreInstance) -> None:
        if self.store.spoiled:
            await self._renew(instance)
        self._lease = ReadLease(lambda: self.loop.time() * 1000.0)
        owner_ms = self._lease.now_ms()
        self._log = RecordLog(await instance.connection(CONNECTION), SNAPSHOTS)
        try:
            loaded = await self._log.load()
        except StoreCorruptError as error:
            if self.store.spoiled or not self.owns:
                raise
            raise Violation(Promise.INTACT, f"{self.name}: {error.detail()}") from error
        if not instance.is_new:
            await asyncio.sleep(max(0.0, owner_ms + START_WAIT_MS - self._lease.now_ms()) / 1000.0)
        self._entries = EntryLog(f"{self.name}.{self._attachments}", loaded)
        self._tokens = 0
        if self.owns and not self.store.spoiled:
            found = keys_of(self._entries.ledger)
            self.store.acknowledged.check(found, self.name)
            self.store.acknowledged.become(found, found)
            self._check_pair(found)

    async def _renew(self, instance: StoreInstance) -> None:
        """A region was removed by force, and the journal with it: the others are of no use."""
        if not instance.is_new:
            names = list(instance._placement.regions)
            await instance.close()
            await self._remove(self._daemon, *names)
            raise StoreClosedError("its store begins anew")
        self.store.renew()

    async def _work(self, instance: StoreInstance) -> None:
        self._leaving = False
        await asyncio.gather(self._repeat(instance, self._write), self._repeat(instance, self._read))

    async def _repeat(self, instance: StoreInstance, work: Callable[[StoreInstance], Awaitable[None]]) -> None:
        while instance.failure is None and not self.finishing and not self._leaving:
            with contextlib.suppress(StoreError):
                await work(instance)
            await self.loop.sleep(self._chance.expovariate(1 / PAUSE_S))
            self._leaving = self._leaving or self._chance.random() < 0.0125

    # ---- writes

    async def _write(self, instance: StoreInstance) -> None:
        operations = self._operations()
        shared = self._entries.begin(self._token())
        for operation in operations:
            proposal = Proposal(self._token(), self._entries.position, self._entries_of(shared.ledger, operation))
            if self._entries.propose(proposal, shared) is not Verdict.TAKEN:
                raise Violation(Promise.DURABLE, f"{self.name}: {proposal} does not fit the ledger")
        acknowledged, owned, removals = self.store.acknowledged, self.owns, self.store.removals
        values = {int(op.key): op.value if isinstance(op, Put) else None for ops in operations for op in ops}
        before = {key: acknowledged.begin(key, value) for key, value in values.items()} if owned else {}
        batch = shared.batch()
        asked_ms = self._lease.now_ms()
        try:
            await self._log.append(batch)
        except StoreError as error:
            if self.owns and was_refused(error, instance):
                for key, was in before.items():
                    acknowledged.refuse(key, was)
            raise
        self._lease.proved(asked_ms)
        self._entries.keep(batch)
        if owned and self.owns and self.store.removals == removals:
            self.store.acks += 1
            for key, value in values.items():
                acknowledged.acknowledge(key, value)

    def _operations(self) -> list[list[Operation]]:
        """What each proposal of one physical write does."""
        return [self._one_operation() for _ in range(self._chance.randint(1, 3))]

    def _one_operation(self) -> list[Operation]:
        if self._chance.random() < 0.2:
            value = self._value()
            return [Put(str(key), value) for key in PAIR]
        key = str(self._chance.randrange(len(PAIR), KEYS))
        return [Delete(key)] if self._chance.random() < 0.3 else [Put(key, self._value())]

    def _entries_of(self, ledger: Ledger, operations: list[Operation]) -> tuple[Entry, ...]:
        entries: list[Entry] = []
        record = ledger.records.get(RECORD)
        if record is None:
            entries += [Connected(SESSION, ""), Opened(RECORD, 1, SESSION)]
        epoch = record.epoch if record is not None else 1
        return (*entries, Written((Change(RECORD, epoch, tuple(operations)),)))

    def _token(self) -> str:
        self._tokens += 1
        return f"{self.name}x{self._attachments}x{self._tokens}"

    def _value(self) -> bytes:
        return self.name.encode() + self._chance.randbytes(8) + bytes(self._chance.choice((0, 40, 300, 1200)))

    # ---- reads

    async def _read(self, instance: StoreInstance) -> None:
        """The answer of an engine that may have been replaced meanwhile was right at some moment since the question."""
        acknowledged, removals = self.store.acknowledged, self.store.removals
        key = self._chance.randrange(KEYS)
        allowed, acks = set(acknowledged.allowed(key)), self.store.acks
        value = keys_of(self._entries.ledger).get(key)
        if not self._lease.holds():
            asked_ms = self._lease.now_ms()
            await instance.prove()
            self._lease.proved(asked_ms)
        if self.store.removals != removals or self.store.spoiled:
            return
        if value not in allowed | acknowledged.allowed(key) and self.store.acks <= acks + 1:
            expected = " or ".join(map(short, allowed))
            raise Violation(Promise.READS, f"{self.name}: read {short(value)} of key {key}, which is {expected}")

    def _check_pair(self, found: dict[int, bytes]) -> None:
        values = [found.get(key) for key in PAIR]
        if len(set(values)) > 1:
            raise Violation(Promise.WHOLE, f"{self.name}: keys {PAIR}, always written together, are {values}")
