"""A copy that follows a primary elsewhere (R9, R10). Pure.

A follower keeps one stream: numbered items, applied in order, each once, acknowledged by the highest number. Whether
its copy is complete is not its own knowledge: it is when the directory lists it.

    event      needs                                                       then
    begin      the directory's primary is the sender, or there is no       an empty copy, acknowledged as item 1
               region yet; memory within the limit; not listed itself
    adopt      the directory names the sender primary and this secondary   the copy stays, the stream is new
    replicate  the stream is known, its epoch not older, the next number   written, acknowledged
    struck     the directory lists another                                 the memory is freed
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_jms.store.regions.core.directory import Holder, RegionEntry
from spark_jms.store.regions.core.protocol import Ack, Adopt, Begin, Refused, Replicate

if TYPE_CHECKING:
    from spark_jms.store.regions.core.daemon import DaemonCore


@dataclass
class Copy:
    """The memory of one region here."""

    name: str
    region_id: str
    size: int
    memory: memoryview

    def check(self, offset: int, length: int) -> None:
        if not 0 <= offset <= offset + length <= self.size:
            raise ValueError(f"region {self.name}: bytes {offset} to {offset + length} of {self.size}")

    def write(self, offset: int, data: bytes) -> None:
        self.check(offset, len(data))
        self.memory[offset : offset + len(data)] = data


@dataclass
class Replica:
    copy: Copy
    stream: str
    primary: int  # who sends
    epoch: int
    applied: int
    heard_ms: float


class Replicas:
    def __init__(self, daemon: DaemonCore) -> None:
        self._daemon = daemon
        self.by_name: dict[str, Replica] = {}
        self._by_stream: dict[str, Replica] = {}

    def begin(self, sender: int, message: Begin) -> None:
        daemon = self._daemon
        known = self._by_stream.get(message.stream)
        if known is not None:
            daemon.to_peer(sender, Ack(message.stream, known.applied))
            return
        entry = daemon.directory.read(message.name)
        if not self._may_begin(sender, message, entry):
            daemon.to_peer(sender, Refused(message.stream, "stale"))
            return
        if message.name in daemon.copies:
            daemon.free_copy(message.name)
        copy = daemon.allocate_copy(message.name, message.region_id, message.size)
        if copy is None:
            daemon.to_peer(sender, Refused(message.stream, "memory"))
            return
        self.follow(copy, message.stream, sender, message.epoch, applied=1)
        daemon.to_peer(sender, Ack(message.stream, 1))

    def _may_begin(self, sender: int, message: Begin, entry: RegionEntry | None) -> bool:
        daemon = self._daemon
        if message.name in daemon.primaries:
            return False
        if entry is None:
            return message.name not in daemon.copies or daemon.abandoned(message.name)
        return (
            entry.region_id == message.region_id
            and entry.primary == daemon.holder_of(sender)
            and entry.secondary != daemon.me
            and entry.epoch >= message.epoch
        )

    def adopt(self, sender: int, message: Adopt) -> None:
        daemon = self._daemon
        known = self._by_stream.get(message.stream)
        if known is not None:
            daemon.to_peer(sender, Ack(message.stream, known.applied))
            return
        entry = daemon.directory.read(message.name)
        copy = daemon.copies.get(message.name)
        if (
            entry is None
            or copy is None
            or message.name in daemon.primaries
            or entry.region_id != message.region_id
            or copy.region_id != message.region_id
            or entry.primary != daemon.holder_of(sender)
            or entry.secondary != daemon.me
        ):
            daemon.to_peer(sender, Refused(message.stream, "unknown"))
            return
        self.follow(copy, message.stream, sender, message.epoch, applied=1)
        daemon.to_peer(sender, Ack(message.stream, 1))

    def replicate(self, sender: int, message: Replicate) -> None:
        daemon = self._daemon
        replica = self._by_stream.get(message.stream)
        if replica is None or message.epoch < replica.epoch:
            daemon.to_peer(sender, Refused(message.stream, "stale"))
            return
        replica.heard_ms = daemon.now_ms
        if message.seq == replica.applied + 1:
            for offset, data in message.writes:
                replica.copy.write(offset, data)
            replica.epoch = message.epoch
            replica.applied = message.seq
        if message.seq <= replica.applied:
            daemon.to_peer(sender, Ack(message.stream, replica.applied))

    def follow(self, copy: Copy, stream: str, sender: int, epoch: int, applied: int) -> None:
        self.forget(copy.name)
        replica = Replica(copy, stream, sender, epoch, applied, self._daemon.now_ms)
        self.by_name[copy.name] = self._by_stream[stream] = replica

    def forget(self, name: str) -> None:
        replica = self.by_name.pop(name, None)
        if replica is not None:
            self._by_stream.pop(replica.stream, None)

    def primary_holder(self, replica: Replica) -> Holder | None:
        return self._daemon.holder_of(replica.primary)
