"""The ledger of record sets as a journal on the objects of one connection.

The engine appends batches of ledger entries; the snapshot is the whole ledger. Each carries the tokens of the appends
that were kept, so that a new engine can tell a client what became of an append whose answer was lost.

A full store refuses values that make the ledger larger. It keeps everything else: when there is no room for the
batch, the log writes a snapshot of the ledger with the batch instead, for which the journal always has room.

Features: C9, R13, R15 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, islice

import msgspec

from spark_jms.store.contract import Put
from spark_jms.store.engine.entry_log import LedgerBatch, Loaded
from spark_jms.store.errors import (
    DaemonUnavailableError,
    FencedError,
    RegionUnavailableError,
    SingleCopyError,
    StoreClosedError,
    StoreError,
    StoreFullError,
)
from spark_jms.store.ledger.codec import DecodeError, decode, encode
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.record import Cancelled, Closed, Ended, Entry, Opened, Prepared, Resolved, Restored, Written
from spark_jms.store.regions.client.object_journal import JournaledState, ObjectJournal, SnapshotPolicy
from spark_jms.store.regions.client.objects import Objects

log = logging.getLogger("store.replicated")

FORMAT_VERSION = 3
OUTCOMES = 1_024
SNAPSHOTS = SnapshotPolicy(batches=4_096, batch_bytes=8 * 1024 * 1024)
OBJECT_BYTES = 6  # of an object in a snapshot, beside its key and value
ENTRY_BYTES = 32  # by which an entry may be longer in a snapshot than in its batch
TOKEN_BYTES = 16
PAYLOAD_BYTES = 32  # of a snapshot, beside its entries and tokens
SHORTER = (Written, Resolved, Closed, Ended, Cancelled)  # a snapshot has no more of them than the objects they change
LOST = (FencedError, DaemonUnavailableError, StoreClosedError, RegionUnavailableError, SingleCopyError)  # ownership


class _Payload(msgspec.Struct, array_like=True):
    """Of a batch or a snapshot. `known_since`, of a snapshot: every append kept after this position has its token here."""

    entries: bytes
    tokens: list[tuple[str, int]]  # (token, position after the append)
    known_since: int = 0


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Payload)


class _Outcomes:
    """The tokens of the newest appends. Every append kept after `known_since` is among them."""

    def __init__(self) -> None:
        self.tokens: deque[tuple[str, int]] = deque()
        self.known_since = 0

    def add(self, tokens: Sequence[tuple[str, int]]) -> None:
        self.tokens.extend(tokens)
        while len(self.tokens) > OUTCOMES:
            self.known_since = self.tokens.popleft()[1]

    def growth(self, tokens: Sequence[tuple[str, int]]) -> int:
        """By how many bytes `add` makes them longer in a snapshot, at most."""
        forgotten = islice(chain(self.tokens, tokens), max(0, len(self.tokens) + len(tokens) - OUTCOMES))
        return _tokens_size(tokens) - _tokens_size(forgotten)


class _Replay(JournaledState):
    def __init__(self, outcomes: _Outcomes) -> None:
        self.entries: list[Entry] = []
        self._outcomes = outcomes

    def restore(self, snapshot: bytes) -> None:
        self.replay(snapshot, 0, 0)

    def replay(self, payload: bytes, first: int, count: int) -> None:
        kept = _decoder.decode(payload)
        try:
            entries = decode(kept.entries)
        except DecodeError as error:
            raise ValueError(str(error)) from error
        self.entries += entries
        self._outcomes.known_since = max(self._outcomes.known_since, kept.known_since)
        self._outcomes.add(kept.tokens)

    def handles(self) -> set[int]:
        return set()

    def size(self) -> int:
        """Of what is alive after all entries: a full store admits values by it. What was replaced or deleted since the
        snapshot does not count, or a store that was emptied would stay full after each opening."""
        ledger = Ledger()
        for entry in self.entries:
            ledger.apply(entry)
        bare = [replace(entry, objects=()) if isinstance(entry, Restored) else entry for entry in ledger.snapshot()]
        return _objects_size(ledger) + len(encode(bare)) + _tokens_size(self._outcomes.tokens) + PAYLOAD_BYTES


class RecordLog:
    """The engine's entries, made durable. `load` it once, then append; one at a time."""

    def __init__(self, objects: Objects, snapshots: SnapshotPolicy | None = None) -> None:
        self._objects = objects
        self._snapshots = snapshots or SNAPSHOTS
        self._outcomes = _Outcomes()
        self._journal: ObjectJournal | None = None

    @property
    def snapshot_count(self) -> int:
        return 0 if self._journal is None else self._journal.snapshot_count

    @property
    def size_bytes(self) -> int:
        """Of a snapshot taken now, at most."""
        return 0 if self._journal is None else self._journal.size

    @property
    def reclaimable_bytes(self) -> int:
        return 0 if self._journal is None else self._journal.reclaimable_bytes

    async def load(self) -> Loaded:
        replay = _Replay(self._outcomes)
        initial = _encoder.encode(_Payload(b"", []))
        self._journal = await ObjectJournal.recover(self._objects, replay, initial, FORMAT_VERSION, self._snapshots)
        outcomes = self._outcomes
        return Loaded(self._journal.position, tuple(replay.entries), tuple(outcomes.tokens), outcomes.known_since)

    async def append(self, batch: LedgerBatch) -> None:
        """Durable when it returns. StoreFullError for a batch that writes values and makes the ledger larger."""
        journal = self._journal
        assert journal is not None, "load() comes first"
        tokens = [(token, batch.position) for token in batch.tokens]
        payload = _encoder.encode(_Payload(encode(batch.entries), tokens))
        growth = _growth(batch) + self._outcomes.growth(tokens)
        try:
            await self._append(journal, batch, payload, growth)
        except StoreFullError:
            if _grows(batch):
                raise
            await self._snapshot(journal, batch.after, batch.position, tokens, full=True)
        self._outcomes.add(tokens)
        if journal.snapshot_due:
            try:
                await self._snapshot(journal, batch.after, batch.position)
            except LOST:
                raise
            except StoreError as error:  # the batch is durable all the same
                log.error(
                    "%s: cannot write a snapshot of the ledger, the log keeps growing: %s", journal.objects.name, error
                )

    async def _append(self, journal: ObjectJournal, batch: LedgerBatch, payload: bytes, growth: int) -> None:
        grows = _grows(batch)
        try:
            await journal.append(payload, len(batch.entries), growth, grows=grows)
        except StoreFullError:
            if not grows or not journal.worth_snapshot:
                raise
            await self._snapshot(journal, batch.before, batch.base)
            await journal.append(payload, len(batch.entries), growth, grows=grows)

    async def _snapshot(
        self,
        journal: ObjectJournal,
        ledger: Ledger,
        position: int,
        new_tokens: Sequence[tuple[str, int]] = (),
        *,
        full: bool = False,
    ) -> None:
        outcomes = self._outcomes
        payload = _Payload(encode(ledger.snapshot()), [*outcomes.tokens, *new_tokens], outcomes.known_since)
        await journal.delete(await journal.snapshot(_encoder.encode(payload), position, full=full))


def _writes_values(entries: Sequence[Entry]) -> bool:
    return any(
        isinstance(operation, Put)
        for entry in entries
        if isinstance(entry, (Written, Prepared))
        for change in entry.changes
        for operation in change.operations
    )


def _grows(batch: LedgerBatch) -> bool:
    """It adds values or records, so a full store refuses it."""
    return (_objects_size(batch.after) > _objects_size(batch.before) and _writes_values(batch.entries)) or any(
        (isinstance(entry, Opened) and entry.name not in batch.before.records)
        or (isinstance(entry, Prepared) and _writes_values((entry,)))
        for entry in batch.entries
    )


def _growth(batch: LedgerBatch) -> int:
    """By how many bytes the ledger becomes longer in a snapshot, at most. What sessions leave behind is not subtracted."""
    longer = [entry for entry in batch.entries if not isinstance(entry, SHORTER)]
    return (
        _objects_size(batch.after)
        - _objects_size(batch.before)
        + (len(encode(longer)) + ENTRY_BYTES * len(longer) if longer else 0)
    )


def _objects_size(ledger: Ledger) -> int:
    return ledger.object_bytes + OBJECT_BYTES * ledger.object_count


def _tokens_size(tokens: Iterable[tuple[str, int]]) -> int:
    return sum(len(token.encode()) + TOKEN_BYTES for token, _ in tokens)
