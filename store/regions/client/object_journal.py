"""A durable log with snapshots on the objects of one connection.

A service keeps its state in memory. It makes each change durable as an *entry* of this journal, and from time to time
replaces all entries by a *snapshot* of the state. Record sets and the WebHDFS namespace are such services.

    OJR3  root     the first object of the connection, updated in place: the snapshot and its position
    OJB3  batch    the entries of one append: position of the first, how many, the service's payload
    OJC3  chunk    a piece of a snapshot, or of a payload that is larger than an object
    OJD3  data     an object of the service, which its snapshot or a payload names (a block of a file)
    OJX3  spare    room for a chunk of a later snapshot

The root and the spares are updated in place, always with their own length, so an update needs no room. Everything else is
created once and deleted. The journal has one user, who never has two appends or snapshots in progress at the same time;
`reserve` and the data objects may run beside them.

Theory of crashes. One object operation is atomic, and the connection acknowledges operations in the order in which they
were issued. Every step below becomes effective with exactly one operation, its last:

    append     creates the chunks of a long payload, then the batch that names them. The entries exist once the batch does.
    snapshot   updates spares to become chunks, then the root to name them and the position. From then on the old chunks
               are spares, and all batches before that position are garbage.
    data       is created before the entry that names it, and deleted after an entry or snapshot that no longer does.

So at any moment the acknowledged state is: the snapshot that the root names, then the batches from its position on,
without a gap. A crash leaves that, perhaps with the one append that was in progress, and garbage. Recovery reads the
root, the snapshot, and every object that the snapshot does not name; it replays the batches in order, keeps the spares
and deletes all else before it returns, so that garbage never meets a later recovery. A gap, or an object that is named
and missing, is damage and is refused by name. The objects carry checksums of their own, so the journal adds none.

Theory of a full store. Let need(S) be the number of chunks of a snapshot of S bytes, and the *pool* the chunks of
the last snapshot and the spares together. The state never has more than `size` bytes, and this always holds:

    pool >= 2 * need(size)                                                                                   (1)

An append first makes the pool large enough for the size after it, and only then creates its batch; a snapshot leaves the
pool as it is, and only then gives away what (1) does not need. Because the last snapshot took at most need(its size)
chunks of a pool that was twice that, the spares hold the next one. So a snapshot of a state that does not grow succeeds
in a store without a free byte, and recovery finds the pool as the crash left it.

    an append that grows the state  is refused unless the pool also has `margin_bytes` twice, and one eighth more
    any other append                needs (1) only. When the store has no room for its batch, the user takes a snapshot of
                                    the state with these entries instead, which makes them durable

That snapshot frees all batches, and gives the eighth away: room for batches, so that an update in a full store does not
write a snapshot each time. Growth resumes when the pool can have a quarter more, which this eighth alone cannot give. The
margin is for entries without values: a session has to connect before it can delete.

A value longer than an object is folded: its pieces become chunks, and the list of their handles takes its place, as
often as needed until the rest fits. `levels` counts the folds.

When an operation fails with a StoreWriteError the store refused it, no entry was kept, and the user may continue. After
any other error it is unknown what happened: recover on a new connection.

Features: R12, R13, R16 (docs/FEATURES.md)
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from spark_jms.store.errors import StoreCorruptError, StoreFullError, StoreVersionError, StoreWriteError
from spark_jms.store.regions.client.objects import Objects

ROOT, BATCH, CHUNK, DATA, SPARE = b"OJR3", b"OJB3", b"OJC3", b"OJD3", b"OJX3"
MAGIC_BYTES = 4
FORMAT_VERSION = 3
FIRST_VERSION = (b"WHR1", b"\x98\xa1L", b"\x98\xa1S")  # how the first object began before the two journals were one
SECOND_VERSION = b"OJR2"
FRAME_BYTES = 8  # of a root or chunk: the magic and the length of its content
HEAD_BYTES = 64  # of an object, everything but the service's bytes
ROOT_BYTES = 4096
CHUNK_BYTES = 64 * 1024
HANDLE_BYTES = 9  # of a handle in a list of handles, at most
EXTRA_SHARE = 8  # growth needs one chunk more for so many
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

    @abstractmethod
    def size(self) -> int:
        """Bytes of a snapshot of the state, at most."""


@dataclass(frozen=True)
class SnapshotPolicy:
    """How much a recovery may have to read before a snapshot is due: batches, their bytes, bytes of data objects. The
    first two grow with the last snapshot, so that writing snapshots costs a bounded share. The margin is at most an
    object."""

    batches: int
    batch_bytes: int
    data_bytes: int = 2**63 - 1
    margin_bytes: int = 64 * 1024  # by which entries without values may grow the state of a full store


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
        self.size = 0  # of a snapshot taken now, at most
        self.snapshot_bytes = 0
        self.snapshot_count = 0
        self.garbage_count = 0  # objects that the recovery deleted
        self.growth = JournalGrowth()
        self._root_handle = root_handle
        self._root_bytes = min(ROOT_BYTES, objects.max_object_bytes)
        self._chunk_bytes = min(CHUNK_BYTES, objects.max_object_bytes)
        self._root = root
        self._policy = policy
        self._margin = min(policy.margin_bytes, objects.max_object_bytes)
        self._chunks: list[int] = []  # of the snapshot
        self._other_chunks: list[int] = []  # of the snapshot, of another length: the store's object limit was changed
        self._batches: list[int] = []  # and their chunks
        self._spares: list[int] = []
        self._refused = JournalGrowth()  # when the store last refused a snapshot
        self._pressed = False  # the eighth was given away
        self._pool_lock = asyncio.Lock()

    @property
    def reserved(self) -> bool:
        """False: the store is so full that the state may not grow."""
        return self._pool >= self._pool_for_growth(self.size)

    @property
    def worth_snapshot(self) -> bool:
        """A snapshot would free enough to be worth its writing: growth that was refused may succeed after it."""
        return self.reclaimable_bytes >= self._extra(self.size) * self._chunk_bytes

    @property
    def reclaimable_bytes(self) -> int:
        """What the next snapshot gives back: the batches, and the spares that a smaller state does not need."""
        log_bytes = self.growth.batch_bytes + HEAD_BYTES * self.growth.batches
        excess = max(0, self._pool - self._pool_for_growth(self.size))
        return log_bytes + excess * self._chunk_bytes

    def admits(self, growth: int) -> bool:
        """The state may grow by so many bytes without more room in the store, except for the batch itself."""
        return self._pool >= 2 * self._need(self.size + growth)

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
        whose snapshot is `initial`, which fits into its root. StoreCorruptError, StoreVersionError: nothing was changed."""
        if not objects.handles():
            first = _Root(FORMAT_VERSION, service_version, 0, 0, initial)
            await objects.create(_framed(ROOT, _ENCODER.encode(first), min(ROOT_BYTES, objects.max_object_bytes)))
        handles = set(objects.handles())
        root_handle = min(handles)
        data = await objects.read(root_handle)
        journal = cls(objects, root_handle, _decode_root(objects.name, data, service_version), policy)
        journal._root_bytes = len(data)
        await journal._load(state, handles)
        if not journal._pool:
            await journal.reserve()
        return journal

    async def _load(self, state: JournaledState, handles: set[int]) -> None:
        root_handle, root = self._root_handle, self._root
        chunks: dict[int, int] = {}
        snapshot = await self._unfold(root.levels, root.snapshot, handles, chunks)
        self._chunks = [handle for handle, length in chunks.items() if length == self._chunk_bytes]
        self._other_chunks = [handle for handle, length in chunks.items() if length != self._chunk_bytes]
        self.snapshot_bytes = len(snapshot)
        try:
            state.restore(snapshot)
        except ValueError as error:
            raise StoreCorruptError(self.objects.name, root_handle, f"the snapshot is damaged: {error}") from error
        known = {root_handle, *chunks}
        for handle, batch in await self._find_batches(sorted(handles - known - state.handles())):
            if batch.first != self.position:
                reason = f"the next entries begin at {batch.first} instead of {self.position}"
                raise StoreCorruptError(self.objects.name, handle, reason)
            pieces: dict[int, int] = {}
            payload = await self._unfold(batch.levels, batch.payload, handles, pieces)
            try:
                state.replay(payload, batch.first, batch.count)
            except ValueError as error:
                raise StoreCorruptError(self.objects.name, handle, f"a batch is damaged: {error}") from error
            self.position += batch.count
            self._batches += [*pieces, handle]
            self._grow(batches=1, batch_bytes=len(payload))
        used = state.handles()
        if used - handles:
            raise StoreCorruptError(self.objects.name, min(used - handles), "a data object is missing")
        self.size = state.size()
        self._spares = sorted(set(self._spares) - used - set(self._batches))
        garbage = sorted(handles - known - used - set(self._batches) - set(self._spares))
        self.garbage_count = len(garbage)
        await self.delete(garbage)

    async def _find_batches(self, handles: Sequence[int]) -> list[tuple[int, _Batch]]:
        """The batches among these objects that the snapshot does not cover, in order; the spares are added to `_spares`."""
        found: list[tuple[int, _Batch]] = []
        for start in range(0, len(handles), WINDOW):
            window = handles[start : start + WINDOW]
            for handle, data in zip(window, await asyncio.gather(*map(self.objects.read, window)), strict=True):
                if data[:MAGIC_BYTES] == DATA:
                    self._grow(data_bytes=len(data) - MAGIC_BYTES)
                if data[:MAGIC_BYTES] in (SPARE, CHUNK) and len(data) == self._chunk_bytes:
                    self._spares.append(handle)
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

    async def append(self, payload: bytes, count: int, growth: int, *, grows: bool = False) -> None:
        """Make `count` entries durable at once. They make a snapshot larger by at most `growth` bytes, or smaller by at
        least as many when it is negative. StoreFullError: there is no room for them. With `grows` they add values, which a
        full store refuses; otherwise a snapshot of the state with them is sure to fit."""
        async with self._pool_lock:
            if not await self._fill_pool(self.size + growth, grows):
                raise StoreFullError(f"{self.objects.name}: there is room for deletions only")
        made: list[int] = []
        try:
            levels, rest = await self._fold(payload, made)
            made.append(await self.objects.create(BATCH + _ENCODER.encode(_Batch(self.position, count, levels, rest))))
        except StoreWriteError as error:
            await self._take_back(made, error)
            raise
        self._batches += made
        self.position += count
        self.size = max(0, self.size + growth)
        self._grow(batches=1, batch_bytes=len(payload))

    async def snapshot(self, data: bytes, position: int, *, full: bool = False) -> list[int]:
        """Let `data`, the state before the entry at `position`, replace all batches. Durable when it returns; the caller
        deletes the objects whose handles it returns. `full`: the store refused a batch, so they are as many as possible. A
        StoreWriteError leaves everything as it was, and the next snapshot is due only after as much again was written."""
        async with self._pool_lock:
            try:
                need = self._need(len(data))
                if not await self._extend_pool(max(2 * need, len(self._chunks) + need)):
                    raise StoreFullError(f"{self.objects.name}: there is no room for a snapshot of {len(data)} bytes")
                made, levels, rest = await self._fold_into_spares(data)
                root = msgspec.structs.replace(self._root, position=position, levels=levels, snapshot=rest)
                await self.objects.update(self._root_handle, _framed(ROOT, _ENCODER.encode(root), self._root_bytes))
            except StoreWriteError:
                self._refused = replace(self.growth)
                raise
            garbage = self._batches + self._other_chunks
            self._spares = self._spares[len(made) :] + self._chunks
            self._root, self._chunks, self._other_chunks, self._batches, self.position = root, made, [], [], position
            self.growth, self._refused = JournalGrowth(), JournalGrowth()
            self.size = self.snapshot_bytes = len(data)
            self.snapshot_count += 1
            self._pressed = self._pressed or full
            wanted = 2 * self._need(self.size + self._margin) + (0 if self._pressed else self._extra(self.size))
            return garbage + self._take_spares(self._pool - wanted)

    async def create_data(self, data: bytes) -> int:
        """StoreFullError also while the room that is left belongs to deletions."""
        if not await self.reserve():
            raise StoreFullError(f"{self.objects.name}: there is room for deletions only")
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

    async def reserve(self, growth: int = 0) -> bool:
        """Whether the state may grow by so many bytes, once there is room for that."""
        if not self._pressed and self._pool >= self._pool_for_growth(self.size + growth):
            return True
        # A caller that is cancelled must not leave spares that are not counted.
        return await asyncio.shield(self._reserve(growth))

    async def _reserve(self, growth: int) -> bool:
        async with self._pool_lock:
            return await self._fill_pool(self.size + growth, True)

    # ---- the pool

    @property
    def _pool(self) -> int:
        return len(self._chunks) + len(self._spares)

    def _need(self, size: int) -> int:
        """How many chunks a snapshot of so many bytes has, at most."""
        count, piece = 0, self._chunk_bytes - FRAME_BYTES
        while size > self._root_bytes - HEAD_BYTES:
            pieces = -(-size // piece)
            count, size = count + pieces, HANDLE_BYTES * pieces + 5
        return count

    def _extra(self, size: int) -> int:
        return max(1, 2 * self._need(size) // EXTRA_SHARE)

    def _pool_for_growth(self, size: int) -> int:
        return 2 * self._need(size + self._margin) + self._extra(size) * (2 if self._pressed else 1)

    async def _fill_pool(self, size: int, grows: bool) -> bool:
        """Make the pool large enough for a state of so many bytes. False: the store has no room for that."""
        if not await self._extend_pool(self._pool_for_growth(size) if grows else 2 * self._need(size)):
            return False
        if grows and self._pressed:
            self._pressed = False
            await self.delete(self._take_spares(min(self._extra(size), self._pool - 2 * len(self._chunks))))
        return True

    async def _extend_pool(self, count: int) -> bool:
        """To so many chunks and spares, or not at all."""
        missing, made = count - self._pool, list[int]()
        failure: BaseException | None = None
        spare = _framed(SPARE, b"", self._chunk_bytes)
        while len(made) < missing and failure is None:
            window = [self.objects.create(spare) for _ in range(min(WINDOW, missing - len(made)))]
            for done in await asyncio.gather(*window, return_exceptions=True):
                if isinstance(done, BaseException):
                    failure = failure or done
                else:
                    made.append(done)
        if isinstance(failure, StoreFullError):
            await self.delete(made)
            return False
        self._spares += made
        if failure is not None:
            raise failure
        return True

    def _take_spares(self, count: int) -> list[int]:
        """So many spares, which are no longer part of the pool."""
        kept = len(self._spares) - max(0, min(count, len(self._spares)))
        taken, self._spares = self._spares[kept:], self._spares[:kept]
        return taken

    async def _fold_into_spares(self, data: bytes) -> tuple[list[int], int, bytes]:
        """The spares that became chunks, the first ones; how often it was folded; and what is left."""
        used, levels, piece = 0, 0, self._chunk_bytes - FRAME_BYTES
        while len(data) > self._root_bytes - HEAD_BYTES:
            starts = range(0, len(data), piece)
            handles = self._spares[used : used + len(starts)]
            for first in range(0, len(handles), WINDOW):
                await asyncio.gather(
                    *(
                        self.objects.update(handle, _framed(CHUNK, data[start : start + piece], self._chunk_bytes))
                        for handle, start in zip(handles[first : first + WINDOW], starts[first:], strict=False)
                    )
                )
            used, levels, data = used + len(handles), levels + 1, _ENCODER.encode(handles)
        return self._spares[:used], levels, data

    # ---- parts

    def _grow(self, batches: int = 0, batch_bytes: int = 0, data_bytes: int = 0) -> None:
        self.growth.batches += batches
        self.growth.batch_bytes += batch_bytes
        self.growth.data_bytes += data_bytes

    async def _fold(self, data: bytes, made: list[int]) -> tuple[int, bytes]:
        """How often it was folded, and what is left; the handles of the chunks are added to `made` as they are created."""
        levels, size = 0, self.objects.max_object_bytes - HEAD_BYTES
        while len(data) > size:
            handles = []
            for start in range(0, len(data), size):
                handles.append(await self.objects.create(_framed(CHUNK, data[start : start + size])))
                made.append(handles[-1])
            levels, data = levels + 1, _ENCODER.encode(handles)
        return levels, data

    async def _unfold(self, levels: int, data: bytes, handles: set[int], found: dict[int, int]) -> bytes:
        """The value before it was folded; the chunks and their lengths are added to `found`."""
        for _ in range(levels):
            chunks = _HANDLES.decode(data)
            missing = [handle for handle in chunks if handle not in handles]
            if missing:
                raise StoreCorruptError(self.objects.name, missing[0], "a chunk is missing")
            pieces: list[bytes] = []
            for start in range(0, len(chunks), WINDOW):
                pieces += await asyncio.gather(*map(self.objects.read, chunks[start : start + WINDOW]))
            for handle, piece in zip(chunks, pieces, strict=True):
                if piece[:MAGIC_BYTES] != CHUNK:
                    raise StoreCorruptError(self.objects.name, handle, "the object is not a chunk")
                found[handle] = len(piece)
            data = b"".join(map(_content, pieces))
        return data

    async def _take_back(self, made: list[int], error: StoreWriteError) -> None:
        """Chunks that nothing names yet: a full store needs their room now, in others they stay until the next snapshot."""
        if isinstance(error, StoreFullError):
            await self.delete(made)
        else:
            self._batches += made


def _framed(magic: bytes, content: bytes, size: int = 0) -> bytes:
    """With zeros behind it, up to `size` bytes."""
    return b"".join((magic, len(content).to_bytes(4, "big"), content)).ljust(size, b"\0")


def _content(data: bytes) -> bytes:
    return data[FRAME_BYTES : FRAME_BYTES + int.from_bytes(data[MAGIC_BYTES:FRAME_BYTES], "big")]


def _decode_root(name: str, data: bytes, service_version: int) -> _Root:
    if data.startswith((*FIRST_VERSION, SECOND_VERSION)):
        raise StoreVersionError(name, 2 if data.startswith(SECOND_VERSION) else 1, FORMAT_VERSION)
    if data[:MAGIC_BYTES] != ROOT:
        raise StoreCorruptError(name, 0, "the first object is not the root of a journal")
    try:
        fields = msgspec.msgpack.decode(_content(data), type=list)
        if fields[0] != FORMAT_VERSION:
            raise StoreVersionError(name, fields[0], FORMAT_VERSION)
        root = msgspec.convert(fields, _Root)
    except (ValueError, IndexError) as error:
        raise StoreCorruptError(name, 0, f"the root is damaged: {error}") from error
    if root.service_version != service_version:
        raise StoreVersionError(name, root.service_version, service_version)
    return root
