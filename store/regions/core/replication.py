"""The copy of a primary, the writes on it, and the followers that get them. Pure, and without the directory.

Theory. Replication and resilvering are one stream of numbered items for each follower, a copy on another daemon. Every write
gets the next number of each stream. It is acknowledged when every follower that counts has it: a follower counts once it is
JOINING (about to be listed); once it is IN_SYNC its copy is complete, and the directory lists it. A follower that died stops
counting only after the directory has stopped listing it.

Features: R7, R9, R10 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from itertools import islice

import msgspec

from spark_jms.store.regions.core.copies import RegionCopy, Shared
from spark_jms.store.regions.protocol.messages import (
    MAX_BODY_BYTES,
    Adopt,
    Begin,
    Notice,
    ReadRegion,
    RegionMessage,
    Replicate,
    WriteRegion,
)
from spark_jms.store.regions.protocol.region_entry import Holder, RegionEntry
from spark_jms.store.state_table import StateTable, StateTransition


class FollowerState(Enum):
    COPYING = "copying"
    JOINING = "joining"
    IN_SYNC = "in sync"


_COPYING, _JOINING, _IN_SYNC = FollowerState  # as globals: reading a member from its Enum runs in Python


class FollowerEvent(Enum):
    WANTED = "a copy is wanted"
    ADOPTED = "the directory lists it and the primary is new"
    COPIED = "the last chunk was sent"
    LISTED = "it acknowledged all of that, and the directory lists it"
    REMOVED = "dead, refused or cancelled"


FOLLOWER_STATES = StateTable(
    StateTransition(
        None,
        FollowerEvent.WANTED,
        FollowerState.COPYING,
        "Begin, then the region in chunks, and every write in between",
    ),
    StateTransition(None, FollowerEvent.ADOPTED, FollowerState.IN_SYNC, "Adopt"),
    StateTransition(
        FollowerState.COPYING, FollowerEvent.COPIED, FollowerState.JOINING, "writes wait for it from here on"
    ),
    StateTransition(FollowerState.JOINING, FollowerEvent.LISTED, FollowerState.IN_SYNC, "it may take over"),
    StateTransition(FollowerState.IN_SYNC, FollowerEvent.LISTED, FollowerState.IN_SYNC, "nothing"),
    StateTransition(FollowerState.COPYING, FollowerEvent.REMOVED, None, "Notice"),
    StateTransition(FollowerState.JOINING, FollowerEvent.REMOVED, None, "Notice"),
    StateTransition(FollowerState.IN_SYNC, FollowerEvent.REMOVED, None, "the directory stops listing it first; Notice"),
)


class Purpose(Enum):
    SECONDARY = "secondary"  # to be listed beside this primary
    MOVE = "move"  # to be listed as primary
    CREATE = "create"  # the region is not in the directory yet


class Unacked(msgspec.Struct, frozen=True):
    """An item of the stream; `size` is that of its region bytes."""

    seq: int
    message: RegionMessage
    size: int


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


class Follower:
    """A copy on another daemon that follows a primary here: its state and its stream."""

    def __init__(self, shared: Shared, region: str, holder: Holder, purpose: Purpose, event: FollowerEvent) -> None:
        self.holder = holder
        self.stream = shared.out.new_id()
        self.purpose = purpose
        self.state: FollowerState | None = None
        self.sent = 0  # items
        self.acked = 0
        self.unacked: deque[Unacked] = deque()
        self._joining = 0  # the item that ends the copying
        self._cursor = 0  # bytes of the region that were sent
        self._unacked_bytes = 0
        self._moved_ms = 0.0  # when the stream last advanced
        self._region = region
        self._out, self._clock, self._settings = shared.out, shared.clock, shared.settings
        self.step(event)

    def step(self, event: FollowerEvent) -> None:
        self.state = FOLLOWER_STATES.next(self.state, event)

    @property
    def counts(self) -> bool:
        return self.state is not _COPYING

    @property
    def in_sync(self) -> bool:
        return self.state is _IN_SYNC

    @property
    def may_join(self) -> bool:
        return self.state is _JOINING and self.acked >= self._joining

    # ---- the stream

    def push(self, message: RegionMessage, size: int = 0) -> None:
        if not self.unacked:
            self._moved_ms = self._clock.now_ms
        self.sent += 1
        self.unacked.append(Unacked(self.sent, message, size))
        self._unacked_bytes += size
        if self.acked or self.sent == 1:  # it asks its directory before it begins
            self._out.to_peer(self.holder.daemon, message)

    def replicate(self, epoch: int, writes: list[tuple[int, bytes]], size: int) -> None:
        self.push(Replicate(self.stream, self._region, epoch, self.sent + 1, writes), size)

    def ack(self, seq: int) -> bool:
        """All items up to `seq` are in the copy. False when they were never sent."""
        if seq > self.sent:
            return False
        begins = not self.acked and seq > 0
        if seq > self.acked:
            self.acked, self._moved_ms = seq, self._clock.now_ms
        while self.unacked and self.unacked[0].seq <= seq:
            self._unacked_bytes -= self.unacked.popleft().size
        if begins:
            self.resend()
        return True

    def resend(self) -> None:
        """Sends every unacknowledged item again, in order. Until the first is acknowledged, only that one."""
        self._moved_ms = self._clock.now_ms
        for item in self.unacked if self.acked else islice(self.unacked, 1):
            self._out.to_peer(self.holder.daemon, item.message)

    def nudge(self) -> None:
        """Resends when the stream is stuck: the follower may have had no answer from its directory."""
        if self.unacked and self._clock.now_ms - self._moved_ms > self._settings.failure_timeout_ms / 2:
            self.resend()

    # ---- copying

    def skip_copying(self, size: int) -> None:
        """The region is new and empty, so an empty copy is complete."""
        self._cursor = size
        self._copied()

    def copy_chunks(self, copy: RegionCopy, epoch: int, budget: ResilverBudget) -> None:
        """Sends the region as far as the window and the budget allow. Chunks of zeros are skipped, and cost an eighth."""
        if not self.acked:
            return  # the follower has not begun
        while self._cursor < copy.size and self._unacked_bytes < self._settings.window_bytes and budget:
            end = min(self._cursor + self._settings.chunk_bytes, copy.size)
            chunk = copy.read(self._cursor, end - self._cursor)
            empty = chunk == bytes(len(chunk))
            budget.spend(len(chunk) // (8 if empty else 1))
            if not empty:
                self.replicate(epoch, [(self._cursor, chunk)], len(chunk))
            self._cursor = end
        if self._cursor >= copy.size:
            self._copied()

    def _copied(self) -> None:
        self.step(FollowerEvent.COPIED)
        self._joining = self.sent


class ResilverBudget:
    """How many bytes this daemon may send for resilvering now; every tick refills it."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._left = 0.0

    def refill(self, passed_ms: float) -> None:
        self._left = min(self._left + self._bytes_per_s * passed_ms / 1000.0, self._bytes_per_s / 4)

    def spend(self, size: int) -> None:
        self._left -= size

    def __bool__(self) -> bool:
        return self._left > 0
