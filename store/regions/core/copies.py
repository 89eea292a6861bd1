"""The copies that one daemon holds, and their memory; and `Shared`, the leaves of the daemon core in one value. Pure.

Features: R12 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spark_jms.settings.store import DaemonSettings
from spark_jms.store.regions.core.actions import DaemonClock, MemoryPort, Outgoing
from spark_jms.store.regions.core.directory_view import DirectoryView
from spark_jms.store.regions.core.peers import Peers
from spark_jms.store.regions.protocol.region_entry import Holder

AWAITED_MS = 1_000.0


@dataclass
class RegionCopy:
    """The memory of one region on this daemon."""

    name: str
    region_id: str
    size: int
    memory: memoryview

    def check(self, offset: int, length: int) -> None:
        if not 0 <= offset <= offset + length <= self.size:
            raise ValueError(f"region {self.name}: bytes {offset} to {offset + length} of {self.size}")

    def write(self, offset: int, data: bytes) -> None:
        length = len(data)
        self.check(offset, length)
        self.memory[offset : offset + length] = data

    def read(self, offset: int, length: int) -> bytes:
        return bytes(self.memory[offset : offset + length])


@dataclass
class FollowedStream:
    """How a copy follows the primary on another daemon: one stream of numbered items."""

    copy: RegionCopy
    stream: str
    primary: int  # the daemon that sends
    epoch: int
    applied: int  # the number of the last item in the copy
    heard_ms: float


@dataclass
class AwaitedMemory:
    """Memory that the operating system still provides. It counts as used."""

    size: int
    asked_ms: float


class Copies(Mapping[str, RegionCopy]):
    """By region name. A copy follows a primary elsewhere (`followed`), or it is served here, or neither."""

    def __init__(self, limit_bytes: int, memory: MemoryPort, clock: DaemonClock, out: Outgoing) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.followed: dict[str, FollowedStream] = {}  # by region name
        self._by_name: dict[str, RegionCopy] = {}
        self._by_stream: dict[str, FollowedStream] = {}
        self._awaited: dict[str, AwaitedMemory] = {}  # by region id
        self._memory = memory
        self._clock = clock
        self._out = out

    def __getitem__(self, name: str) -> RegionCopy:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def free_bytes(self) -> int:
        return self.limit_bytes - self.used_bytes

    def allocate(self, name: str, region_id: str, size: int) -> RegionCopy | None:
        """None while the operating system provides the memory: ask again with the same id, at least every AWAITED_MS.
        MemoryError when it or the limit refuses."""
        awaited = self._awaited.pop(region_id, None)
        if awaited is not None:
            self.used_bytes -= awaited.size
        elif size > self.free_bytes:
            raise MemoryError(f"{size} bytes wanted, {self.free_bytes} free")
        try:
            memory = self._memory.allocate(region_id, size)
        except MemoryError:
            self._out.log(1, f"region {name}: the operating system refused {size} bytes of shared memory")
            raise
        self.used_bytes += size
        if memory is None:
            self._awaited[region_id] = AwaitedMemory(size, self._clock.now_ms)
            return None
        self._by_name[name] = copy = RegionCopy(name, region_id, size, memory)
        return copy

    def tick(self) -> None:
        """Gives back the memory that no request waits for any more."""
        for region_id, awaited in list(self._awaited.items()):
            if self._clock.now_ms - awaited.asked_ms > AWAITED_MS:
                del self._awaited[region_id]
                self.used_bytes -= awaited.size
                self._memory.free(region_id)

    def free(self, name: str) -> None:
        copy = self._by_name.pop(name)
        self.used_bytes -= copy.size
        self.unfollow(name)
        self._memory.free(copy.region_id)

    def clear(self) -> None:
        """Drops every reference to the memory, which its owner is about to free."""
        self._by_name.clear()

    # ---- following

    def follow(self, followed: FollowedStream) -> None:
        name = followed.copy.name
        self.unfollow(name)
        self.followed[name] = self._by_stream[followed.stream] = followed

    def unfollow(self, name: str) -> None:
        followed = self.followed.pop(name, None)
        if followed is not None:
            del self._by_stream[followed.stream]

    def heard_since(self, name: str, asked_ms: float) -> bool:
        """Whether this daemon may have acknowledged something of the copy's stream since. If it has, an entry that was asked for
        then says nothing: the primary may have entered the region and listed this copy after the directory was read. If it has
        not, the primary learns that the copy is gone before a client opens the region or a write is acknowledged."""
        followed = self.followed.get(name)
        return followed is not None and followed.heard_ms >= asked_ms

    def of_stream(self, stream: str) -> FollowedStream | None:
        return self._by_stream.get(stream)


@dataclass(frozen=True)
class Shared:
    """What the parts of one daemon share, the leaves: none of them knows a primary, an opening or any other part that uses it."""

    me: Holder
    settings: DaemonSettings
    clock: DaemonClock
    out: Outgoing
    directory: DirectoryView
    peers: Peers
    copies: Copies
