"""The ledger of record sets in the objects of one connection (C9, R15).

    L  a batch of ledger entries, in parts      position before it, number of entries, tokens
    S  the whole ledger at a position, in parts, then what is older is deleted

A part is an object; a batch or a ledger counts when all its parts are there. So a crash between two objects leaves what
was before.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from spark_jms.store.engine import LedgerBatch, Loaded
from spark_jms.store.errors import (
    DaemonUnavailableError,
    FencedError,
    RegionUnavailableError,
    SingleCopyError,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
)
from spark_jms.store.ledger.codec import decode, encode
from spark_jms.store.ledger.ledger import Entry
from spark_jms.store.regions.client.objects import Objects

log = logging.getLogger("store.replicated")

OUTCOMES = 1_024
SNAPSHOT_BYTES = 8 * 1024 * 1024
SNAPSHOT_BATCHES = 4_096
LOST = (FencedError, DaemonUnavailableError, StoreClosedError, RegionUnavailableError, SingleCopyError)  # ownership


class Part(msgspec.Struct, array_like=True):
    kind: str  # L or S
    base: int  # of a batch: the position before it; of a ledger: its position
    count: int  # of a batch: its entries; of a ledger: the position since which all tokens are known
    group: str  # all parts of one
    number: int
    parts: int
    tokens: list[tuple[str, int]]  # (token, position), a share of them
    data: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Part)
PART_TOKENS = 100
PART_OVERHEAD = 3 * 1024  # what is not data, at the most: 256 bytes, and 27 a token
AT_ONCE = 64  # reads and deletions under way


@dataclass
class _Group:
    first: Part
    parts: dict[int, Part]
    handles: list[int]

    @property
    def complete(self) -> bool:
        return len(self.parts) == self.first.parts

    def data(self) -> bytes:
        return b"".join(self.parts[number].data for number in range(self.first.parts))

    def tokens(self) -> list[tuple[str, int]]:
        return [token for number in range(self.first.parts) for token in self.parts[number].tokens]


class RecordLog:
    """The entries in objects, without ownership: it belongs to whoever has the objects."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._handles: list[int] = []
        self._bytes = 0
        self._batches = 0
        self._kept_bytes = 0
        self._outcomes: deque[tuple[str, int]] = deque()
        self._known_since = 0
        self.snapshot_count = 0

    async def load(self) -> Loaded:
        groups = await self._groups()
        ledgers = [group for group in groups.values() if group.first.kind == "S" and group.complete]
        newest = max(ledgers, key=lambda group: group.first.base, default=None)
        entries: list[Entry] = decode(newest.data()) if newest else []
        position = newest.first.base if newest else 0
        self._kept_bytes = len(newest.data()) if newest else 0
        if newest:
            self._known_since = newest.first.count
            self._remember(newest.tokens())
        batches = [group for group in groups.values() if group.first.kind == "L" and group.complete]
        keep = newest.handles.copy() if newest else []
        for group in sorted(batches, key=lambda group: group.first.base):
            first = group.first
            if first.base < position:
                continue
            if first.base > position:
                raise StoreCorruptError(self._objects.name, first.base, f"entries after {position} are missing")
            data = group.data()
            entries += decode(data)
            position += first.count
            self._remember(group.tokens())
            self._bytes += len(data)
            self._batches += 1
            keep += group.handles
        kept = set(keep)
        await self._delete([handle for handle in self._objects.handles() if handle not in kept])
        self._handles = keep
        return Loaded(position, tuple(entries), tuple(self._outcomes), self._known_since)

    def _remember(self, tokens: Sequence[tuple[str, int]]) -> None:
        self._outcomes.extend(tokens)
        while len(self._outcomes) > OUTCOMES:
            self._known_since = self._outcomes.popleft()[1]

    async def _delete(self, handles: Sequence[int]) -> None:
        for at in range(0, len(handles), AT_ONCE):
            await asyncio.gather(*(self._objects.delete(handle) for handle in handles[at : at + AT_ONCE]))

    async def _groups(self) -> dict[str, _Group]:
        groups: dict[str, _Group] = {}
        handles = list(self._objects.handles())
        for at in range(0, len(handles), AT_ONCE):
            some = handles[at : at + AT_ONCE]
            for handle, data in zip(some, await asyncio.gather(*map(self._objects.read, some)), strict=True):
                try:
                    part = _decoder.decode(data)
                except msgspec.DecodeError as error:
                    raise StoreCorruptError(self._objects.name, handle, str(error)) from error
                group = groups.setdefault(part.group, _Group(part, {}, []))
                group.parts[part.number] = part
                group.handles.append(handle)
        return groups

    async def append(self, batch: LedgerBatch) -> None:
        data = encode(batch.entries)
        tokens = [(token, batch.position) for token in batch.tokens]
        self._handles += await self._write("L", batch.base, len(batch.entries), tokens, data)
        self._remember(tokens)
        self._bytes += len(data)
        self._batches += 1
        if self._bytes > max(SNAPSHOT_BYTES, 2 * self._kept_bytes) or self._batches > SNAPSHOT_BATCHES:
            try:
                await self._snapshot(batch)
            except LOST:
                raise
            except StoreError as error:  # the batch is kept all the same; what is there of the ledger is not whole
                log.error(
                    "%s: the ledger cannot be written anew, the log goes on growing: %s", self._objects.name, error
                )
                self._bytes, self._batches = 0, 0

    async def _snapshot(self, batch: LedgerBatch) -> None:
        data = encode(batch.after.snapshot())
        fresh = await self._write("S", batch.position, self._known_since, list(self._outcomes), data)
        old, self._handles = self._handles, fresh
        self._bytes, self._batches, self._kept_bytes = 0, 0, len(data)
        self.snapshot_count += 1
        await self._delete(old)

    async def _write(self, kind: str, base: int, count: int, tokens: list[tuple[str, int]], data: bytes) -> list[int]:
        size = self._objects.max_object_bytes - PART_OVERHEAD
        parts = max(1, -(-len(data) // size), -(-len(tokens) // PART_TOKENS))
        group = secrets.token_hex(8)
        made = [
            Part(kind, base, count, group, number, parts, tokens[number * PART_TOKENS : (number + 1) * PART_TOKENS],
                 data[number * size : (number + 1) * size])
            for number in range(parts)
        ]  # fmt: skip
        handles: list[int] = []
        try:
            for part in made:
                handles.append(await self._objects.create(_encoder.encode(part)))
        except StoreFullError:  # a group that is not whole means nothing, and takes room where there is none
            await self._delete(handles)
            raise
        return handles
