"""A durable log with snapshots on the objects of one connection (R12, R16).

A service keeps its state in memory. It makes each change durable as an *entry* of this journal, and from time to time
replaces all entries by a *snapshot* of the state. Record sets and the WebHDFS namespace are such services.

    OJR2  root     the first object of the connection, updated in place: the snapshot and its position
    OJB2  batch    the entries of one append: position of the first, how many, the service's payload
    OJC2  chunk    a piece of a snapshot or payload that is larger than an object
    OJD2  data     an object of the service, which its snapshot or a payload names (a block of a file)
    OJX2  reserve  room kept free, so that a full store can still record deletions

Only the root is ever updated; everything else is created once and deleted. The journal has one user, who never has two
appends or snapshots in progress at the same time.

Theory of crashes. One object operation is atomic, and the connection acknowledges operations in the order in which they
were issued. Every step below becomes effective with exactly one operation, its last:

    append     creates the chunks of a long payload, then the batch that names them. The entries exist once the batch does.
    snapshot   creates the chunks of a long snapshot, then updates the root to name them and the position. From then on
               the old chunks and all batches before that position are garbage.
    data       is created before the entry that names it, and deleted after an entry or snapshot that no longer does.

So at any moment the acknowledged state is: the snapshot that the root names, then the batches from its position on,
without a gap. A crash leaves that, perhaps with the one append that was in progress, and garbage. Recovery reads the
root, the snapshot, and every object that the snapshot does not name; it replays the batches in order and deletes all
else before it returns, so that garbage never meets a later recovery. A gap, or an object that is named and missing, is
damage and is refused by name. The objects carry checksums of their own, so the journal adds none.

A value longer than an object is folded: its pieces become chunks, and the list of their handles takes its place, as
often as needed until the rest fits. `levels` counts the folds.

When an operation fails with a StoreWriteError the store refused it, nothing was changed, and the user may continue. After
any other error it is unknown what happened: recover on a new connection.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from spark_jms.store.errors import StoreCorruptError, StoreFullError, StoreVersionError, StoreWriteError
from spark_jms.store.regions.client.objects import Objects

ROOT, BATCH, CHUNK, DATA, RESERVE = b"OJR2", b"OJB2", b"OJC2", b"OJD2", b"OJX2"
MAGIC_BYTES = 4
FORMAT_VERSION = 2
FIRST_VERSION = (b"WHR1", b"\x98\xa1L", b"\x98\xa1S")  # how the first object began before the two journals were one
HEAD_BYTES = 64  # of an object, everything but the service's bytes
RESERVE_BYTES = 64 * 1024
WINDOW = 16  # objects read or deleted at once
BYTES_PER_BATCH = 4096  # reading one more batch costs a recovery about as much as this many bytes of a snapshot


class _Root(msgspec.Struct, frozen=True, array_like=True):
    version: int
    service_version: int
    position: int  # of the first entry after the snapshot
    levels: int
    snapshot: bytes


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    first: int
    count: int
    levels: int
    payload: bytes


_ENCODER = msgspec.msgpack.Encoder()
_BATCH = msgspec.msgpack.Decoder(_Batch)
_HANDLES = msgspec.msgpack.Decoder(list[int])


class JournaledState(ABC):
    """The service's state while it is recovered. A ValueError from `restore` or `replay` means damage."""

    @abstractmethod
    def restore(self, snapshot: bytes) -> None:
        """Begin with this snapshot. Called once, before `replay`."""

    @abstractmethod
    def replay(self, payload: bytes, first: int, count: int) -> None:
        """Apply the entries `first` to `first + count - 1`."""

    @abstractmethod
    def handles(self) -> set[int]:
        """Of all data objects that the state names now."""


@dataclass(frozen=True)
class SnapshotPolicy:
    """How much a recovery may have to read before a snapshot is due: batches, their bytes, bytes of data objects. The
    first two grow with the last snapshot, so that writing snapshots costs a bounded share."""

    batches: int
    batch_bytes: int
    data_bytes: int = 2**63 - 1


@dataclass
class JournalGrowth:
    """What was written since the snapshot, and a recovery would read now."""

    batches: int = 0
    batch_bytes: int = 0
    data_bytes: int = 0


class ObjectJournal:
    """Made by `await ObjectJournal.recover(...)`. One event loop."""

    def __init__(self, objects: Objects, root_handle: int, root: _Root, policy: SnapshotPolicy) -> None:
        self.objects = objects
        self.position = root.position  # of the next entry
        self.snapshot_bytes = 0
        self.snapshot_count = 0
        self.garbage_count = 0  # objects that the recovery deleted
        self._root_handle = root_handle
        self._root = root
        self._policy = policy
        self._chunks: list[int] = []  # of the snapshot
        self._batches: list[int] = []  # and their chunks
        self.growth = JournalGrowth()
        self._refused = JournalGrowth()  # when the store last refused a snapshot
        self._reserve: int | None = None
        self._reserving = False

    @property
    def reserved(self) -> bool:
        """False: the store is so full that only deletions are recorded."""
        return self._reserve is not None

    @property
    def snapshot_due(self) -> bool:
        policy, growth, refused = self._policy, self.growth, self._refused
        return (
            growth.batches - refused.batches >= max(policy.batches, self.snapshot_bytes // BYTES_PER_BATCH)
            or growth.batch_bytes - refused.batch_bytes >= max(policy.batch_bytes, 2 * self.snapshot_bytes)
            or growth.data_bytes - refused.data_bytes >= policy.data_bytes
        )

    # ---- recovery

    @classmethod
    async def recover(
        cls, objects: Objects, state: JournaledState, initial: bytes, service_version: int, policy: SnapshotPolicy
    ) -> ObjectJournal:
        """Bring `state` to the last acknowledged entry and delete all garbage. An empty connection becomes a journal
        whose snapshot is `initial`. StoreCorruptError, StoreVersionError: nothing was changed."""
        if not objects.handles():
            await objects.create(_encoded(_Root(FORMAT_VERSION, service_version, 0, 0, initial)))
        handles = set(objects.handles())
        root_handle = min(handles)
        root = _decode_root(objects.name, await objects.read(root_handle), service_version)
        journal = cls(objects, root_handle, root, policy)
        await journal._load(state, handles)
        await journal.reserve()
        return journal

    async def _load(self, state: JournaledState, handles: set[int]) -> None:
        root_handle, root = self._root_handle, self._root
        snapshot = await self._unfold(root.levels, root.snapshot, handles, self._chunks)
        self.snapshot_bytes = len(snapshot)
        try:
            state.restore(snapshot)
        except ValueError as error:
            raise StoreCorruptError(self.objects.name, root_handle, f"the snapshot is damaged: {error}") from error
        known = {root_handle, *self._chunks}
        for handle, batch in await self._find_batches(sorted(handles - known - state.handles())):
            if batch.first != self.position:
                reason = f"the next entries begin at {batch.first} instead of {self.position}"
                raise StoreCorruptError(self.objects.name, handle, reason)
            payload = await self._unfold(batch.levels, batch.payload, handles, self._batches)
            try:
                state.replay(payload, batch.first, batch.count)
            except ValueError as error:
                raise StoreCorruptError(self.objects.name, handle, f"a batch is damaged: {error}") from error
            self.position += batch.count
            self._batches.append(handle)
            self._grow(batches=1, batch_bytes=len(payload))
        used = state.handles()
        if used - handles:
            raise StoreCorruptError(self.objects.name, min(used - handles), "a data object is missing")
        garbage = sorted(handles - known - used - set(self._batches))
        self.garbage_count = len(garbage)
        await self.delete(garbage)

    async def _find_batches(self, handles: Sequence[int]) -> list[tuple[int, _Batch]]:
        """The batches among these objects that the snapshot does not cover, in order."""
        found: list[tuple[int, _Batch]] = []
        for start in range(0, len(handles), WINDOW):
            window = handles[start : start + WINDOW]
            for handle, data in zip(window, await asyncio.gather(*map(self.objects.read, window)), strict=True):
                if data[:MAGIC_BYTES] == DATA:
                    self._grow(data_bytes=len(data) - MAGIC_BYTES)
                if data[:MAGIC_BYTES] != BATCH:
                    continue
                try:
                    batch = _BATCH.decode(memoryview(data)[MAGIC_BYTES:])
                except ValueError as error:
                    raise StoreCorruptError(self.objects.name, handle, f"a batch is damaged: {error}") from error
                if batch.first >= self._root.position:
                    found.append((handle, batch))
        return sorted(found, key=lambda item: item[1].first)

    # ---- writing

    async def append(self, payload: bytes, count: int, *, grows: bool = False) -> None:
        """Make `count` entries durable at once. With `grows`, they make the state larger: a full store refuses them
        (StoreFullError). Without, they may use up the reserve."""
        if grows and not await self.reserve():
            raise StoreFullError(f"{self.objects.name}: there is room for deletions only")
        made: list[int] = []
        try:
            levels, rest = await self._fold(payload, made, spend=not grows)
            data = BATCH + _ENCODER.encode(_Batch(self.position, count, levels, rest))
            made.append(await self._create(data, spend=not grows))
        except StoreWriteError as error:
            await self._take_back(made, error)
            raise
        self._batches += made
        self.position += count
        self._grow(batches=1, batch_bytes=len(payload))

    async def snapshot(self, data: bytes, position: int) -> list[int]:
        """Let `data`, the state before the entry at `position`, replace all batches. Durable when it returns; the caller
        deletes the objects whose handles it returns. A StoreWriteError leaves everything as it was, and the next
        snapshot is due only after as much again was written."""
        made: list[int] = []
        try:
            levels, rest = await self._fold(data, made, spend=False)
            root = msgspec.structs.replace(self._root, position=position, levels=levels, snapshot=rest)
            await self.objects.update(self._root_handle, _encoded(root))
        except StoreWriteError as error:
            self._refused = replace(self.growth)
            await self._take_back(made, error)
            raise
        garbage = self._chunks + self._batches
        self._root, self._chunks, self._batches, self.position = root, made, [], position
        self.growth, self._refused = JournalGrowth(), JournalGrowth()
        self.snapshot_bytes = len(data)
        self.snapshot_count += 1
        return garbage

    async def create_data(self, data: bytes) -> int:
        handle = await self.objects.create(DATA + data)
        self._grow(data_bytes=len(data))
        return handle

    async def read_data(self, handle: int) -> memoryview:
        data = await self.objects.read(handle)
        if data[:MAGIC_BYTES] != DATA:
            raise StoreCorruptError(self.objects.name, handle, "the object is not a data object")
        return memoryview(data)[MAGIC_BYTES:]

    async def delete(self, handles: Sequence[int]) -> None:
        for start in range(0, len(handles), WINDOW):
            await asyncio.gather(*map(self.objects.delete, handles[start : start + WINDOW]))

    async def reserve(self) -> bool:
        """Keep room for deletions; False when there is none."""
        if self._reserve is None and not self._reserving:
            size = min(RESERVE_BYTES, self.objects.max_object_bytes) - MAGIC_BYTES
            self._reserving = True
            try:
                self._reserve = await self.objects.create(RESERVE + bytes(size))
            except StoreFullError:
                return False
            finally:
                self._reserving = False
        return self._reserve is not None

    # ---- parts

    def _grow(self, batches: int = 0, batch_bytes: int = 0, data_bytes: int = 0) -> None:
        self.growth.batches += batches
        self.growth.batch_bytes += batch_bytes
        self.growth.data_bytes += data_bytes

    async def _create(self, data: bytes, spend: bool) -> int:
        try:
            return await self.objects.create(data)
        except StoreFullError:
            if self._reserve is None or not spend:
                raise
            handle, self._reserve = self._reserve, None
            await self.objects.delete(handle)
            return await self.objects.create(data)

    async def _fold(self, data: bytes, made: list[int], spend: bool) -> tuple[int, bytes]:
        """How often it was folded, and what is left; the handles of the chunks are added to `made` as they are created."""
        levels, size = 0, self.objects.max_object_bytes - HEAD_BYTES
        while len(data) > size:
            handles = []
            for start in range(0, len(data), size):
                handles.append(await self._create(CHUNK + data[start : start + size], spend))
                made.append(handles[-1])
            levels, data = levels + 1, _ENCODER.encode(handles)
        return levels, data

    async def _unfold(self, levels: int, data: bytes, handles: set[int], found: list[int]) -> bytes:
        """The value before it was folded; the handles of its chunks are added to `found`."""
        for _ in range(levels):
            chunks = _HANDLES.decode(data)
            missing = [handle for handle in chunks if handle not in handles]
            if missing:
                raise StoreCorruptError(self.objects.name, missing[0], "a chunk is missing")
            found += chunks
            pieces: list[bytes] = []
            for start in range(0, len(chunks), WINDOW):
                pieces += await asyncio.gather(*map(self.objects.read, chunks[start : start + WINDOW]))
            for handle, piece in zip(chunks, pieces, strict=True):
                if piece[:MAGIC_BYTES] != CHUNK:
                    raise StoreCorruptError(self.objects.name, handle, "the object is not a chunk")
            data = b"".join(piece[MAGIC_BYTES:] for piece in pieces)
        return data

    async def _take_back(self, made: list[int], error: StoreWriteError) -> None:
        """Chunks that nothing names yet: a full store needs their room now, in others they stay until the next snapshot."""
        if isinstance(error, StoreFullError):
            await self.delete(made)
        else:
            self._batches += made


def _encoded(root: _Root) -> bytes:
    return ROOT + _ENCODER.encode(root)


def _decode_root(name: str, data: bytes, service_version: int) -> _Root:
    if data.startswith(FIRST_VERSION):
        raise StoreVersionError(name, 1, FORMAT_VERSION)
    if data[:MAGIC_BYTES] != ROOT:
        raise StoreCorruptError(name, 0, "the first object is not the root of a journal")
    try:
        fields = msgspec.msgpack.decode(data[MAGIC_BYTES:], type=list)
        if fields[0] != FORMAT_VERSION:
            raise StoreVersionError(name, fields[0], FORMAT_VERSION)
        root = msgspec.convert(fields, _Root)
    except (ValueError, IndexError) as error:
        raise StoreCorruptError(name, 0, f"the root is damaged: {error}") from error
    if root.service_version != service_version:
        raise StoreVersionError(name, root.service_version, service_version)
    return root
