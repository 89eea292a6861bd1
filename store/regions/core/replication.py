"""The copy of a primary, the writes on it, and the followers that get them. Pure, and without the directory.

Theory. Every write gets the next number of each follower's stream. It is acknowledged when every follower that counts
has it: those IN_SYNC (the directory lists them) and those JOINING (about to be listed). A follower that died stops
counting only after the directory has stopped listing it.

Features: R7, R10 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections import deque

import msgspec

from spark_jms.store.regions.core.copies import RegionCopy
from spark_jms.store.regions.core.directory import Holder, RegionEntry
from spark_jms.store.regions.core.follower import Follower, FollowerEvent, Purpose
from spark_jms.store.regions.core.protocol import MAX_BODY_BYTES, Adopt, Begin, Notice, ReadRegion, WriteRegion
from spark_jms.store.regions.core.shared import Shared


class PendingRequest(msgspec.Struct):
    """A write, until the followers have it, or a read with its bytes, until it is certain that this daemon is primary."""

    order: int  # rises by 1 with each
    client: int
    request: int
    needs: list[tuple[Follower, int]]  # the number that each follower has to acknowledge
    data: bytes | None = None


class Replication:
    def __init__(self, shared: Shared, copy: RegionCopy) -> None:
        self.copy = copy
        self.followers: list[Follower] = []
        self.pending: deque[PendingRequest] = deque()
        self.last_order = 0
        self._shared = shared
        self._refuses_single = shared.settings.single_copy == "refuse"

    # ---- followers

    def begin(self, entry: RegionEntry, holder: Holder, purpose: Purpose) -> None:
        """Starts a new copy."""
        follower = Follower(self._shared, entry.name, holder, purpose, FollowerEvent.WANTED)
        self.followers.append(follower)
        follower.push(Begin(follower.stream, entry.name, entry.region_id, entry.epoch, entry.size))
        if purpose is Purpose.CREATE:
            follower.skip_copying(entry.size)

    def adopt(self, entry: RegionEntry) -> None:
        """Follows the copy that the directory lists as second, unless it follows already."""
        if entry.secondary is None or any(f.holder == entry.secondary for f in self.followers):
            return
        follower = Follower(self._shared, entry.name, entry.secondary, Purpose.SECONDARY, FollowerEvent.ADOPTED)
        self.followers.append(follower)
        follower.push(Adopt(follower.stream, entry.name, entry.region_id, entry.epoch))

    def remove(self, follower: Follower) -> None:
        if follower in self.followers:
            self.followers.remove(follower)
            follower.step(FollowerEvent.REMOVED)

    def give_up(self, follower: Follower) -> None:
        """Its daemon may free the copy."""
        self.remove(follower)
        self._shared.out.to_peer(follower.holder.daemon, Notice(self.copy.name))

    def resend(self, daemon: int) -> None:
        """The connection is new: every unacknowledged item is sent again."""
        for follower in self.followers:
            if follower.holder.daemon == daemon:
                follower.resend()

    @property
    def resilvering(self) -> bool:
        for follower in self.followers:  # noqa: SIM110 - every tick asks it for every region
            if not follower.in_sync:
                return True
        return False

    @property
    def refuses(self) -> bool:
        """Whether writes are refused for want of a complete second copy."""
        return self._refuses_single and not any(f.in_sync for f in self.followers)

    # ---- bytes

    def write(self, client: int, epoch: int, message: WriteRegion) -> None:
        """All steps or, with a ValueError, none of them."""
        size = self._check(message)
        writes: list[tuple[int, bytes]] = []
        for offset, what in message.steps:
            data = what if isinstance(what, bytes) else self.copy.read(*what)
            self.copy.write(offset, data)
            writes.append((offset, data))
        needs = []
        for follower in self.followers:
            follower.replicate(epoch, writes, size)
            if follower.counts:
                needs.append((follower, follower.sent))
        self._hold(client, message.request, needs)

    def _hold(self, client: int, request: int, needs: list[tuple[Follower, int]], data: bytes | None = None) -> None:
        self.last_order += 1
        self.pending.append(PendingRequest(self.last_order, client, request, needs, data))

    def _check(self, message: WriteRegion) -> int:
        size = 0
        for offset, what in message.steps:
            if isinstance(what, bytes):
                length = len(what)
            else:
                self.copy.check(*what)
                length = what[1]
            self.copy.check(offset, length)
            size += length
        if size > MAX_BODY_BYTES:
            raise ValueError(f"region {self.copy.name}: {size} bytes in one write, at most {MAX_BODY_BYTES}")
        return size

    def hold_read(self, client: int, message: ReadRegion) -> None:
        """The bytes as they are now: later writes of the client must not be in the answer."""
        self._hold(client, message.request, [], self.read(message))

    def read(self, message: ReadRegion) -> bytes:
        inside = 0 <= message.offset <= message.offset + message.length <= self.copy.size
        if not inside or message.length > MAX_BODY_BYTES:
            raise ValueError(f"region {self.copy.name}: {message.length} bytes at {message.offset}")
        return self.copy.read(message.offset, message.length)

    def oldest_is_held(self) -> bool:
        """Whether every follower that counts has acknowledged the oldest pending request."""
        if not self.pending:
            return False
        for follower, seq in self.pending[0].needs:  # noqa: SIM110 - on the way of every write, where a generator costs
            if follower.acked < seq and follower in self.followers:
                return False
        return True
