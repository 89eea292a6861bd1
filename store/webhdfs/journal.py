"""The namespace in objects: a root, a snapshot in chunks, journal batches, and the blocks that files are made of.

    WHR1  root      the first object of the connection, for ever. Names the snapshot and the first record after it.
    WHS1  snapshot  a chunk of the encoded tree
    WHJ1  journal   one batch of records, numbered without gaps
    WHB1  block     bytes of one file
    WHX1  reserve   room kept free, so that a full store can still delete

Every kind is written once and deleted; only the root is updated. Theory of a crash, between any two operations: a
batch is one object, so it is there or not. A new snapshot counts from the moment the root names it; before, its chunks
are garbage, after, the old chunks and batches are. A block counts when a record names it. So recovery reads the root,
the snapshot, and what the snapshot does not name; replays the batches that follow without a gap; deletes the rest.
Objects are checked by their checksum when they are read (the port's promise), so none is added here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from spark_jms.store.errors import StoreCorruptError, StoreFullError, StoreVersionError
from spark_jms.store.regions.client.objects import Objects
from spark_jms.store.webhdfs.namespace import Namespace
from spark_jms.store.webhdfs.record import FORMAT_VERSION, Batch, decode_batch, encode_batch

ROOT, SNAPSHOT, JOURNAL, BLOCK, RESERVE = b"WHR1", b"WHS1", b"WHJ1", b"WHB1", b"WHX1"
MAGIC_BYTES = 4
WINDOW = 16  # objects read or deleted at once
RESERVE_BYTES = 64 * 1024
BATCH_OVERHEAD_BYTES = 64


class _Root(msgspec.Struct, frozen=True, array_like=True):
    version: int
    owner: str
    group: str
    created_us: int
    snapshot: tuple[int, ...]
    first_record: int


class Journal:
    """One namespace's objects. `append` is durable when it returns; the caller never has two operations under way,
    blocks apart. When one fails, close and recover anew: what it did is not known."""

    def __init__(self, objects: Objects, root_handle: int, root: _Root) -> None:
        self.objects = objects
        self._root_handle = root_handle
        self._root = root
        self._batches: list[int] = []
        self._reserve: int | None = None
        self._reserving = False
        self.next_record = root.first_record
        self.journal_bytes = 0
        self.block_bytes = 0  # written since the snapshot: recovery reads them
        self.snapshot_bytes = 0
        self.snapshot_count = 0
        self.garbage_count = 0  # objects that recovery swept

    @property
    def batch_count(self) -> int:
        """Objects that a recovery would replay now."""
        return len(self._batches)

    @property
    def reserved(self) -> bool:
        """False: the store is so full that only deletions go on."""
        return self._reserve is not None

    @property
    def max_record_bytes(self) -> int:
        return self.objects.max_object_bytes - MAGIC_BYTES - BATCH_OVERHEAD_BYTES

    @classmethod
    async def recover(cls, objects: Objects, owner: str, group: str, now_us: int) -> tuple[Journal, Namespace]:
        """The namespace as of the last durable record, with all garbage deleted. An empty connection begins one."""
        handles = objects.handles()
        if not handles:
            root = _Root(FORMAT_VERSION, owner, group, now_us, (), 0)
            journal = cls(objects, await objects.create(ROOT + msgspec.msgpack.encode(root)), root)
            namespace = Namespace(owner, group, now_us)
        else:
            journal = cls(objects, handles[0], _decode_root(objects.name, await objects.read(handles[0])))
            namespace = await journal._load(set(handles))
        await journal.reserve()
        return journal, namespace

    async def append(self, records: list[bytes]) -> None:
        """Make them durable, in as few objects as they fit in. All of one object is durable at once."""
        while records:
            size = count = 0
            while count < len(records) and (not count or size + len(records[count]) <= self.max_record_bytes):
                size += len(records[count])
                count += 1
            data = JOURNAL + encode_batch(self.next_record, records[:count])
            self._batches.append(await self._create(data))
            self.journal_bytes += len(data)
            self.next_record += count
            records = records[count:]

    async def snapshot(self, data: bytes, next_record: int) -> list[int]:
        """Let `data`, the tree before record `next_record`, take the place of all batches. Durable when it returns; the
        objects that it returns are garbage, to be deleted at leisure."""
        size = self.objects.max_object_bytes - MAGIC_BYTES
        chunks = [
            await self.objects.create(SNAPSHOT + data[start : start + size]) for start in range(0, len(data), size)
        ]
        old = [*self._root.snapshot, *self._batches]
        root = msgspec.structs.replace(self._root, snapshot=tuple(chunks), first_record=next_record)
        await self.objects.update(self._root_handle, ROOT + msgspec.msgpack.encode(root))
        self._root, self._batches, self.next_record = root, [], next_record
        self.journal_bytes = self.block_bytes = 0
        self.snapshot_bytes = len(data)
        self.snapshot_count += 1
        return old

    async def create_block(self, data: bytes) -> int:
        self.block_bytes += len(data)
        return await self.objects.create(BLOCK + data)

    async def read_block(self, handle: int) -> memoryview:
        data = await self.objects.read(handle)
        if data[:MAGIC_BYTES] != BLOCK:
            raise StoreCorruptError(self.objects.name, handle, "the object is no block of a file")
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

    async def _create(self, data: bytes) -> int:
        try:
            return await self.objects.create(data)
        except StoreFullError:
            if self._reserve is None:
                raise
            handle, self._reserve = self._reserve, None
            await self.objects.delete(handle)
            return await self.objects.create(data)

    async def _load(self, handles: set[int]) -> Namespace:
        """The tree; what nothing names is deleted before anybody is served, so that no later recovery meets it."""
        name, root = self.objects.name, self._root
        missing = [handle for handle in root.snapshot if handle not in handles]
        if missing:
            raise StoreCorruptError(name, missing[0], "a chunk of the snapshot is missing")
        namespace = Namespace(root.owner, root.group, root.created_us)
        if root.snapshot:
            chunks = [await self.objects.read(handle) for handle in root.snapshot]
            if any(chunk[:MAGIC_BYTES] != SNAPSHOT for chunk in chunks):
                raise StoreCorruptError(name, root.snapshot[0], "the object is no chunk of a snapshot")
            data = b"".join(chunk[MAGIC_BYTES:] for chunk in chunks)
            self.snapshot_bytes = len(data)
            try:
                namespace = Namespace.restored(data)
            except (ValueError, KeyError) as error:
                raise StoreCorruptError(name, root.snapshot[0], f"the snapshot is damaged: {error}") from error
        known = {self._root_handle, *root.snapshot}
        others = sorted(handles - known - namespace.handles())
        replayed = {handle for handle, batch in await self._batches_of(others) if self._replay(namespace, batch)}
        used = namespace.handles()
        lost = used - handles
        if lost:
            raise StoreCorruptError(name, min(lost), "a block of a file is missing")
        self._batches = sorted(replayed)
        garbage = sorted(handles - known - used - replayed)
        self.garbage_count = len(garbage)
        await self.delete(garbage)
        return namespace

    async def _batches_of(self, handles: Sequence[int]) -> list[tuple[int, Batch]]:
        """Those among the objects that are batches after the snapshot, by record number."""
        found: list[tuple[int, Batch]] = []
        for start in range(0, len(handles), WINDOW):
            window = handles[start : start + WINDOW]
            for handle, data in zip(window, await asyncio.gather(*map(self.objects.read, window)), strict=True):
                if data[:MAGIC_BYTES] == BLOCK:
                    self.block_bytes += len(data)
                if data[:MAGIC_BYTES] != JOURNAL:
                    continue
                try:
                    batch = decode_batch(data[MAGIC_BYTES:])
                except ValueError as error:
                    raise StoreCorruptError(self.objects.name, handle, f"a batch is damaged: {error}") from error
                if batch.first >= self._root.first_record:
                    found.append((handle, batch))
        return sorted(found, key=lambda item: item[1].first)

    def _replay(self, namespace: Namespace, batch: Batch) -> bool:
        """False for what comes after a gap: it was never acknowledged."""
        if batch.first != self.next_record:
            return False
        for record in batch.records:
            namespace.apply(record)
        self.next_record += len(batch.records)
        return True


def _decode_root(name: str, data: bytes) -> _Root:
    if data[: MAGIC_BYTES - 1] != ROOT[:-1]:
        raise StoreCorruptError(name, 0, "the first object is not the root of a namespace")
    try:
        root = msgspec.msgpack.decode(data[MAGIC_BYTES:], type=_Root)
    except ValueError as error:
        raise StoreCorruptError(name, 0, f"the root is damaged: {error}") from error
    if root.version != FORMAT_VERSION:
        raise StoreVersionError(name, root.version, FORMAT_VERSION)
    return root
