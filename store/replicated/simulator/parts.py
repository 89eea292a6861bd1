"""What the simulator puts in place of a machine: the directory, memory, and connections."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from store.errors import DirectoryUnavailableError, ProtocolError
from store.replicated.core.daemon import MemoryPort
from store.replicated.core.directory import DirectoryPort, Holder, RegionEntry
from store.replicated.core.protocol import FrameReader, Message, encode


class Violation(AssertionError):
    """A promise was broken."""


class Truth:
    """The Global Directory itself, and who lives."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.entries: dict[str, RegionEntry] = {}
        self.alive: set[Holder] = set()
        self.failing = 0.0  # the share of calls that fail, half of the swaps among them after they happened
        self.swaps = 0
        self.seen: dict[tuple[str, str], int] = {}


class SimDirectory(DirectoryPort):
    def __init__(self, truth: Truth, me: Holder) -> None:
        self.truth = truth
        self.me = me

    def _fail(self) -> bool:
        return self.truth.failing > 0 and self.truth.chance.random() < self.truth.failing

    def read(self, name: str) -> RegionEntry | None:
        if self._fail():
            raise DirectoryUnavailableError("read")
        return self.truth.entries.get(name)

    def entries(self) -> Mapping[str, RegionEntry]:
        if self._fail():
            raise DirectoryUnavailableError("read")
        return dict(self.truth.entries)

    def swap(self, name: str, old: RegionEntry | None, new: RegionEntry | None) -> bool:
        failing = self._fail()
        if failing and self.truth.chance.random() < 0.5:
            raise DirectoryUnavailableError("write: refused")
        current = self.truth.entries.get(name)
        if (current.tag if current else None) != (old.tag if old else None):
            if failing:
                raise DirectoryUnavailableError("write: torn")
            return False
        self.apply(name, current, new)
        if failing:
            raise DirectoryUnavailableError("write: no answer")
        return True

    def apply(self, name: str, current: RegionEntry | None, new: RegionEntry | None) -> None:
        truth = self.truth
        truth.swaps += 1
        if new is None:
            truth.entries.pop(name, None)
            return
        key = (name, new.region_id)
        if new.epoch <= truth.seen.get(key, 0):
            raise Violation(f"region {name}: epoch {new.epoch} was used before")
        truth.seen[key] = new.epoch
        if new.secondary is not None and new.secondary.daemon == new.primary.daemon:
            raise Violation(f"region {name}: both copies on daemon {new.primary.daemon}")
        if current is not None and current.region_id == new.region_id and new.opener and current.opener:
            if new.opener != current.opener:
                raise Violation(f"region {name}: {new.opener} opened what {current.opener} has open")
        truth.entries[name] = new

    def running(self, holder: Holder) -> bool:
        if self._fail():
            raise DirectoryUnavailableError("read")
        return holder in self.truth.alive


class SimMemory(MemoryPort):
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held: dict[str, int] = {}

    def allocate(self, region_id: str, size: int) -> memoryview:
        self.held[region_id] = size
        if sum(self.held.values()) > self.limit:
            raise Violation(f"{sum(self.held.values())} bytes of shared memory, the limit is {self.limit}")
        return memoryview(bytearray(size))

    def free(self, region_id: str) -> None:
        del self.held[region_id]


class Wire:
    """One direction of one connection: frames in flight, with a reader at the end. `cut` is called when it breaks."""

    def __init__(self, deliver: Callable[[Message], None], cut: Callable[[], None]) -> None:
        self.number = 0
        self.reader = FrameReader()
        self.deliver = deliver
        self.cut = cut
        self.last_ms = 0.0
        self.open = True

    def pack(self, message: Message) -> bytes:
        data = encode(self.number, message)
        self.number += 1
        return data

    def arrive(self, data: bytes) -> None:
        if not self.open:
            return
        try:
            messages = self.reader.feed(data)
        except ProtocolError:
            self.cut()
            return
        for message in messages:
            if self.open:
                self.deliver(message)
