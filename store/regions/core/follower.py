"""A copy on another daemon that follows a primary here: its state and its stream. Pure.

Theory. Replication and resilvering are one stream of numbered items. A follower counts (no write is acknowledged without
it) once it is JOINING. Its copy is complete once it is IN_SYNC, and then the directory lists it.

Features: R9, R10 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from itertools import islice

import msgspec

from spark_jms.store.regions.core.copies import RegionCopy
from spark_jms.store.regions.core.directory import Holder
from spark_jms.store.regions.core.protocol import RegionMessage, Replicate
from spark_jms.store.regions.core.shared import Shared
from spark_jms.store.regions.core.state_table import StateTable, StateTransition


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


class Unacked(msgspec.Struct, frozen=True):
    """An item of the stream; `size` is that of its region bytes."""

    seq: int
    message: RegionMessage
    size: int


class Follower:
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
