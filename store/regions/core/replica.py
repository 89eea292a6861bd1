"""The follower's side of a stream. Pure.

A follower applies the numbered items of one stream in order, each once, and acknowledges the highest number. It does not
know whether its copy is complete: the copy is complete when the directory lists it.

    message    accepted when                                               then
    Begin      the directory names the sender primary, or has no region    an empty copy, acknowledged as item 1 once
               yet; there is memory; this daemon is not listed itself      the operating system has provided its memory
    Adopt      the directory names the sender primary and this secondary   the copy stays, the stream is new
    Replicate  the stream is known, its epoch not older, the next number   written, acknowledged

Features: R9, R10 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from spark_jms.store.regions.core.copies import FollowedStream, RegionCopy
from spark_jms.store.regions.core.directory import Holder, RegionEntry
from spark_jms.store.regions.core.entry_requests import Seen
from spark_jms.store.regions.core.primaries import Primaries
from spark_jms.store.regions.core.protocol import Ack, Adopt, Begin, Refused, Replicate
from spark_jms.store.regions.core.shared import Shared


@dataclass(frozen=True, eq=False)
class Beginning:
    """A Begin that waits for the directory or for its memory. A later one of the same region replaces it: by then the copy
    may be listed that the later one has filled, and must not be freed for the earlier one."""

    holder: Holder
    message: Begin


class Replicas:
    def __init__(self, shared: Shared, primaries: Primaries) -> None:
        self._shared = shared
        self._primaries = primaries
        self._beginning: dict[str, Beginning] = {}  # by region name

    def tick(self) -> None:
        for name, beginning in list(self._beginning.items()):
            if self._shared.peers.dead(beginning.holder):
                del self._beginning[name]
            else:
                self._look_to_begin(beginning)

    def begin(self, sender: int, message: Begin) -> None:
        holder = self._shared.peers.holder_of(sender)
        known = self._beginning.get(message.name)
        if holder is None or self._acknowledged(sender, message.stream):
            return
        if known is None or known.message.stream != message.stream:
            self._beginning[message.name] = beginning = Beginning(holder, message)
            self._look_to_begin(beginning)

    def _look_to_begin(self, beginning: Beginning) -> None:
        name = beginning.message.name
        asked_ms = self._shared.clock.now_ms
        self._shared.directory.look(name, beginning, partial(self._looked_to_begin, beginning, asked_ms))

    def _looked_to_begin(self, beginning: Beginning, asked_ms: float, seen: Seen) -> None:
        message, sender, copies = beginning.message, beginning.holder.daemon, self._shared.copies
        if self._beginning.get(message.name) is not beginning or not seen.known:
            return
        if not self._may_begin(sender, message, seen.entry, asked_ms):
            self._refuse(sender, message, "stale")
            return
        if message.name in copies:
            copies.free(message.name)
        try:
            copy = copies.allocate(message.name, message.region_id, message.size)
        except MemoryError:
            self._refuse(sender, message, "memory")
            return
        if copy is not None:
            del self._beginning[message.name]
            self._follow(sender, message, copy)

    def _refuse(self, sender: int, message: Begin, reason: str) -> None:
        del self._beginning[message.name]
        self._shared.out.to_peer(sender, Refused(message.stream, reason))

    def _may_begin(self, sender: int, message: Begin, entry: RegionEntry | None, asked_ms: float) -> bool:
        if self._primaries.in_work(message.name):
            return False
        if entry is None:
            name, copies = message.name, self._shared.copies
            return name not in copies or (self.abandoned(name) and not copies.heard_since(name, asked_ms))
        return (
            entry.region_id == message.region_id
            and entry.primary == self._shared.peers.holder_of(sender)
            and entry.secondary != self._shared.me
            and entry.epoch >= message.epoch
        )

    def adopt(self, sender: int, message: Adopt) -> None:
        if not self._acknowledged(sender, message.stream):
            looked = partial(self._looked_to_adopt, sender, message)
            self._shared.directory.look(message.name, message.stream, looked)

    def _looked_to_adopt(self, sender: int, message: Adopt, seen: Seen) -> None:
        if not seen.known or self._acknowledged(sender, message.stream):
            return
        entry, copy = seen.entry, self._shared.copies.get(message.name)
        if (
            entry is None
            or copy is None
            or self._primaries.in_work(message.name)
            or entry.region_id != message.region_id
            or copy.region_id != message.region_id
            or entry.primary != self._shared.peers.holder_of(sender)
            or entry.secondary != self._shared.me
        ):
            self._shared.out.to_peer(sender, Refused(message.stream, "unknown"))
        else:
            self._follow(sender, message, copy)

    def replicate(self, sender: int, message: Replicate) -> None:
        followed = self._shared.copies.of_stream(message.stream)
        if followed is None or message.epoch < followed.epoch:
            self._shared.out.to_peer(sender, Refused(message.stream, "stale"))
            return
        followed.heard_ms = self._shared.clock.now_ms
        if message.seq == followed.applied + 1:
            for offset, data in message.writes:
                followed.copy.write(offset, data)
            followed.epoch, followed.applied = message.epoch, message.seq
        if message.seq <= followed.applied:
            self._shared.out.to_peer(sender, Ack(message.stream, followed.applied))

    def abandoned(self, name: str) -> bool:
        """Whether no primary fills this copy any more. An unlisted copy is kept only while one does."""
        followed, peers = self._shared.copies.followed.get(name), self._shared.peers
        if followed is None:
            return True
        holder = peers.holder_of(followed.primary)
        quiet_ms = self._shared.clock.now_ms - followed.heard_ms
        return holder is None or peers.dead(holder) or quiet_ms > self._shared.settings.failure_timeout_ms

    def _acknowledged(self, sender: int, stream: str) -> bool:
        """A stream that has begun before is acknowledged again."""
        known = self._shared.copies.of_stream(stream)
        if known is not None:
            self._shared.out.to_peer(sender, Ack(stream, known.applied))
        return known is not None

    def _follow(self, sender: int, message: Begin | Adopt, copy: RegionCopy) -> None:
        now_ms = self._shared.clock.now_ms
        self._shared.copies.follow(FollowedStream(copy, message.stream, sender, message.epoch, 1, now_ms))
        self._shared.out.to_peer(sender, Ack(message.stream, 1))
