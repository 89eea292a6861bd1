"""The ledger of record sets as a journal on the objects of one connection (C9, R15).

The engine appends batches of ledger entries; the snapshot is the whole ledger. Each carries the tokens of the appends
that were kept, so that a new engine can tell a client what became of an append whose answer was lost.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

import msgspec

from spark_jms.store.contract import Put
from spark_jms.store.engine import LedgerBatch, Loaded
from spark_jms.store.errors import (
    DaemonUnavailableError,
    FencedError,
    RegionUnavailableError,
    SingleCopyError,
    StoreClosedError,
    StoreError,
)
from spark_jms.store.ledger.codec import DecodeError, decode, encode
from spark_jms.store.ledger.entries import Entry, Prepared, Written
from spark_jms.store.regions.client.object_journal import JournaledState, ObjectJournal, SnapshotPolicy
from spark_jms.store.regions.client.objects import Objects

log = logging.getLogger("store.replicated")

FORMAT_VERSION = 2
OUTCOMES = 1_024
SNAPSHOTS = SnapshotPolicy(batches=4_096, batch_bytes=8 * 1024 * 1024)
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


class _Replay(JournaledState):
    def __init__(self, outcomes: _Outcomes) -> None:
        self.entries: list[Entry] = []
        self._outcomes = outcomes

    def restore(self, snapshot: bytes) -> None:
        self.replay(snapshot, 0, 0)

    def replay(self, payload: bytes, first: int, count: int) -> None:
        kept = _decoder.decode(payload)
        try:
            self.entries += decode(kept.entries)
        except DecodeError as error:
            raise ValueError(str(error)) from error
        self._outcomes.known_since = max(self._outcomes.known_since, kept.known_since)
        self._outcomes.add(kept.tokens)

    def handles(self) -> set[int]:
        return set()


class RecordLog:
    """The engine's entries, made durable. `load` it once, then append; one at a time."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._outcomes = _Outcomes()
        self._journal: ObjectJournal | None = None

    @property
    def snapshot_count(self) -> int:
        return 0 if self._journal is None else self._journal.snapshot_count

    async def load(self) -> Loaded:
        replay = _Replay(self._outcomes)
        initial = _encoder.encode(_Payload(b"", []))
        self._journal = await ObjectJournal.recover(self._objects, replay, initial, FORMAT_VERSION, SNAPSHOTS)
        outcomes = self._outcomes
        return Loaded(self._journal.position, tuple(replay.entries), tuple(outcomes.tokens), outcomes.known_since)

    async def append(self, batch: LedgerBatch) -> None:
        """Durable when it returns. When the store is full, it refuses a batch that writes values and keeps every other
        one, so that values can still be deleted (R13)."""
        journal = self._journal
        assert journal is not None, "load() comes first"
        tokens = [(token, batch.position) for token in batch.tokens]
        was_reserved = journal.reserved
        payload = _encoder.encode(_Payload(encode(batch.entries), tokens))
        await journal.append(payload, len(batch.entries), grows=writes_values(batch.entries))
        self._outcomes.add(tokens)
        if journal.snapshot_due or (was_reserved and not journal.reserved):
            try:
                await self._snapshot(journal, batch)
            except LOST:
                raise
            except StoreError as error:  # the batch is durable all the same
                log.error(
                    "%s: cannot write a snapshot of the ledger, the log keeps growing: %s", journal.objects.name, error
                )

    async def _snapshot(self, journal: ObjectJournal, batch: LedgerBatch) -> None:
        outcomes = self._outcomes
        payload = _Payload(encode(batch.after.snapshot()), list(outcomes.tokens), outcomes.known_since)
        await journal.delete(await journal.snapshot(_encoder.encode(payload), batch.position))


def writes_values(entries: Sequence[Entry]) -> bool:
    """These entries make the ledger larger."""
    return any(
        isinstance(operation, Put)
        for entry in entries
        if isinstance(entry, (Written, Prepared))
        for change in entry.changes
        for operation in change.operations
    )
