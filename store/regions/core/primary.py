"""A region served here, and the copies that follow it (R7, R9, R10). Pure.

Theory. Every write gets the next number of each follower's stream. It is acknowledged when every follower that counts
has it: those IN_SYNC (listed by the directory) and those JOINING (about to be). A follower that is dead is struck off
the directory first, and only then does it no longer count.

    follower   event                       next        what follows
    -          wanted                      COPYING     begin, then the region in chunks, and every write in between
    -          listed, primary is new      IN_SYNC     adopt
    COPYING    the last chunk was sent     JOINING     from here on it counts
    JOINING    all up to here is acked     IN_SYNC     the directory lists it (joined, moved or created)
    any        dead, refused, cancelled    -           a listed one is struck off first
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from spark_jms.store.regions.core import directory as rules
from spark_jms.store.regions.core.directory import Holder, RegionEntry
from spark_jms.store.regions.core.placement import next_daemon
from spark_jms.store.regions.core.protocol import (
    MAX_BODY_BYTES,
    Adopt,
    Begin,
    Notice,
    ReadRegion,
    RegionMessage,
    Replicate,
    Revoked,
    WriteRegion,
)
from spark_jms.store.regions.core.replica import Copy

if TYPE_CHECKING:
    from spark_jms.store.regions.core.daemon import DaemonCore


class State(Enum):
    COPYING = "copying"
    JOINING = "joining"
    IN_SYNC = "in sync"


class Purpose(Enum):
    SECONDARY = "secondary"  # to be listed beside this primary
    MOVE = "move"  # to be listed as primary
    CREATE = "create"  # the region is not in the directory yet


@dataclass
class Follower:
    holder: Holder
    stream: str
    purpose: Purpose
    state: State
    sent: int = 0
    acked: int = 0
    cursor: int = 0
    joining: int = 0
    unacked: deque[tuple[int, RegionMessage, int]] = field(default_factory=deque)
    unacked_bytes: int = 0
    moved_ms: float = 0.0  # when the stream last got on


@dataclass
class Pending:
    client: int
    request: int
    needs: list[tuple[Follower, int]]


class Primary:
    def __init__(self, daemon: DaemonCore, entry: RegionEntry, copy: Copy, listed: bool = True) -> None:
        self._daemon = daemon
        self.entry = entry
        self.copy = copy
        self.listed = listed  # False until the directory knows the region
        self.told = False  # the directory was told of it, and did not answer
        self.followers: list[Follower] = []
        self.pending: deque[Pending] = deque()
        self.client: int | None = None
        self.open_epoch = 0
        self.doubt = False  # a swap may or may not have happened: read before anything else
        self.closing = False
        self.wants_next = False  # the secondary should sit on the next daemon (R9)
        self.declined: set[int] = set()  # had no memory when asked
        if listed and entry.secondary is not None:
            self._adopt(entry.secondary)

    @property
    def resilvering(self) -> bool:
        return any(f.state is not State.IN_SYNC for f in self.followers)

    # ---- the client's requests

    def open(self, client: int, opener: str) -> bool:
        """True when the directory says so. Before it does, both copies hold all that a reader may see."""
        if self.pending or self.doubt or self.closing or not self.listed:
            return False
        if any(f.state is State.IN_SYNC and f.unacked for f in self.followers):
            return False  # it may not have its copy any more: it must have answered
        if not self._swap(rules.opened(self.entry, opener)):
            return False
        for follower in [f for f in self.followers if f.purpose is Purpose.MOVE]:
            self.remove(follower)
        self.client, self.open_epoch, self.wants_next = client, self.entry.epoch, True
        return True

    def close(self) -> None:
        """At once if the directory answers, else as soon as it does."""
        self.client = None
        self.closing = True
        if not self.doubt and self._swap(rules.closed(self.entry)):
            self.closing = False

    def write(self, message: WriteRegion) -> str | None:
        """The name of the error; None when the answer follows."""
        daemon = self._daemon
        if daemon.settings.single_copy == "refuse" and not self._safe():
            return "SingleCopyError"
        writes: list[tuple[int, bytes]] = []
        size = 0
        for offset, what in message.steps:  # all are checked before the first is done
            if isinstance(what, bytes):
                length = len(what)
            else:
                length = what[1]
                self.copy.check(*what)
            self.copy.check(offset, length)
            size += length
        if size > MAX_BODY_BYTES:
            raise ValueError(f"region {self.copy.name}: more than {MAX_BODY_BYTES} bytes in one write")
        for offset, what in message.steps:
            if isinstance(what, bytes):
                self.copy.write(offset, what)
                writes.append((offset, what))
            else:
                start, length = what
                data = bytes(self.copy.memory[start : start + length])
                self.copy.write(offset, data)
                writes.append((offset, data))
        needs = []
        for follower in self.followers:
            self._send(follower, writes, size)
            if follower.state is not State.COPYING:
                needs.append((follower, follower.sent))
        assert self.client is not None
        self.pending.append(Pending(self.client, message.request, needs))
        self.settle()
        return None

    def read(self, message: ReadRegion) -> bytes | None:
        """None when this daemon may have been replaced and could not make sure."""
        if not self._lease() and not self.refresh():
            return None
        whole = 0 <= message.offset <= message.offset + message.length <= self.copy.size
        if not whole or message.length > MAX_BODY_BYTES:
            raise ValueError(f"region {self.copy.name}: {message.length} bytes at {message.offset}")
        return bytes(self.copy.memory[message.offset : message.offset + message.length])

    def _lease(self) -> bool:
        """While the secondary has lately heard from here it does not take over; without one nobody can."""
        secondary = self.entry.secondary
        return not self.doubt and (secondary is None or self._daemon.confirmed(secondary.daemon))

    def _safe(self) -> bool:
        return any(f.state is State.IN_SYNC for f in self.followers)

    def settle(self) -> None:
        """Answers every write, in order, that all who count hold."""
        if self.doubt or (self._daemon.settings.single_copy == "refuse" and not self._safe()):
            return
        sure = self._lease()
        while self.pending:
            head = self.pending[0]
            for follower, seq in head.needs:
                if follower.acked < seq and follower in self.followers:
                    return
            if not sure and not self._still_primary():
                return
            sure = True
            self.pending.popleft()
            self._daemon.reply(head.client, head.request)

    def _still_primary(self) -> bool:
        """The secondary was silent for a while and may have taken over: the directory knows."""
        known, entry = self._daemon.look(self.entry.name)
        if known and (entry is None or entry.region_id != self.entry.region_id or entry.primary != self._daemon.me):
            self.fence("another daemon took over" if entry else "the region was removed")
            return False
        return known

    # ---- streams

    def start(self, holder: Holder, purpose: Purpose) -> None:
        follower = Follower(holder, self._daemon.new_id(), purpose, State.COPYING)
        self._follow(follower)
        entry = self.entry
        self._push(follower, Begin(follower.stream, entry.name, entry.region_id, entry.epoch, entry.size), 0)
        if purpose is Purpose.CREATE:
            # Nothing is in the region yet: an empty copy is a complete one.
            follower.cursor, follower.state, follower.joining = entry.size, State.JOINING, 1

    def _adopt(self, holder: Holder) -> None:
        follower = Follower(holder, self._daemon.new_id(), Purpose.SECONDARY, State.IN_SYNC)
        self._follow(follower)
        self._push(follower, Adopt(follower.stream, self.entry.name, self.entry.region_id, self.entry.epoch), 0)

    def _follow(self, follower: Follower) -> None:
        self.followers.append(follower)
        self._daemon.streams[follower.stream] = (self, follower)

    def _send(self, follower: Follower, writes: list[tuple[int, bytes]], size: int) -> None:
        seq = follower.sent + 1
        self._push(follower, Replicate(follower.stream, self.entry.name, self.entry.epoch, seq, writes), size)

    def _push(self, follower: Follower, message: RegionMessage, size: int) -> None:
        if not follower.unacked:
            follower.moved_ms = self._daemon.now_ms
        follower.sent += 1
        follower.unacked.append((follower.sent, message, size))
        follower.unacked_bytes += size
        self._daemon.to_peer(follower.holder.daemon, message)

    def resend(self, daemon: int) -> None:
        """The connection is new: whatever was not acknowledged goes again, in order."""
        for follower in self.followers:
            if follower.holder.daemon == daemon:
                self._resend(follower)

    def _resend(self, follower: Follower) -> None:
        follower.moved_ms = self._daemon.now_ms
        for _, message, _ in follower.unacked:
            self._daemon.to_peer(follower.holder.daemon, message)

    def _nudge(self, follower: Follower) -> None:
        """The follower could not take an item just then (its directory did not answer): once more."""
        if follower.unacked and self._daemon.now_ms - follower.moved_ms > self._daemon.settings.failure_timeout_ms / 2:
            self._resend(follower)

    def acked(self, follower: Follower, seq: int) -> None:
        if seq > follower.sent:
            return
        if seq > follower.acked:
            follower.acked, follower.moved_ms = seq, self._daemon.now_ms
        while follower.unacked and follower.unacked[0][0] <= seq:
            follower.unacked_bytes -= follower.unacked.popleft()[2]
        self.settle()
        self.advance(follower)
        if self.client is None and not follower.unacked:
            self._daemon.opening.tick()

    def advance(self, follower: Follower) -> None:
        if follower.state is State.COPYING:
            self._copy_on(follower)
        if follower.state is State.JOINING and follower.acked >= follower.joining and not self.doubt:
            self._join(follower)

    def _copy_on(self, follower: Follower) -> None:
        if not follower.acked:
            return  # it has not begun
        daemon, settings, size = self._daemon, self._daemon.settings, self.copy.size
        while follower.cursor < size and follower.unacked_bytes < settings.window_bytes and daemon.may_resilver():
            end = min(follower.cursor + settings.chunk_bytes, size)
            chunk = bytes(self.copy.memory[follower.cursor : end])
            empty = chunk == bytes(len(chunk))
            daemon.spend_resilver(len(chunk) // (8 if empty else 1))
            if not empty:
                self._send(follower, [(follower.cursor, chunk)], len(chunk))
            follower.cursor = end
        if follower.cursor >= size:
            follower.state, follower.joining = State.JOINING, follower.sent

    def _join(self, follower: Follower) -> None:
        entry = self.entry
        if follower.purpose is Purpose.CREATE:
            self._daemon.opening.created(self, follower.holder)
            return
        if follower.purpose is Purpose.MOVE:
            if entry.opener is not None or self.pending:
                self.remove(follower)
                return
            new = rules.moved(entry, follower.holder)
        else:
            new = rules.joined(entry, follower.holder)
        old = entry.secondary
        if not self._swap(new):
            return
        if follower.purpose is Purpose.MOVE:
            self.demote()
        else:
            follower.state, self.wants_next = State.IN_SYNC, False
            self.followers = [f for f in self.followers if f is follower or f.state is not State.IN_SYNC]
            self._daemon.log(2, f"region {entry.name}: second copy on daemon {follower.holder.daemon}")
            self.settle()
        if old is not None and old != follower.holder:
            self._daemon.to_peer(old.daemon, Notice(entry.name))

    def move_to_secondary(self) -> bool:
        """The region is closed and both copies are the same: they change places."""
        secondary = self.entry.secondary
        if secondary is None or self.pending or self.doubt or self.entry.opener is not None:
            return False
        if any(f.holder == secondary and f.acked < f.sent for f in self.followers):
            return False
        if not self._swap(rules.moved(self.entry, secondary)):
            return False
        self.demote()
        return True

    def list_created(self) -> None:
        """The directory has the new region. The follower that joined must answer once more before anybody opens it."""
        for follower in self.followers:
            follower.purpose = Purpose.SECONDARY
            if follower.holder == self.entry.secondary:
                follower.state = State.IN_SYNC
                self._send(follower, [], 0)
        if self.entry.secondary is not None and not any(f.holder == self.entry.secondary for f in self.followers):
            self._adopt(self.entry.secondary)

    def demote(self) -> None:
        """The directory names another primary, and this copy, complete as it is, secondary."""
        daemon, name = self._daemon, self.entry.name
        del daemon.primaries[name]
        daemon.replicas.follow(self.copy, f"-{name}", self.entry.primary.daemon, self.entry.epoch, 0)
        daemon.log(2, f"region {name}: primary is now daemon {self.entry.primary.daemon}")
        daemon.to_peer(self.entry.primary.daemon, Notice(name))

    def remove(self, follower: Follower) -> None:
        """A follower that is dead, refused or not wanted. A listed one is struck off the directory first."""
        if follower not in self.followers or (self.doubt and self.listed):
            return  # in doubt, the directory may list it
        if follower.state is State.IN_SYNC and self.listed:
            if self.entry.secondary != follower.holder or not self._swap(rules.dropped(self.entry)):
                return
            self._daemon.log(1, f"region {self.entry.name}: ONE copy left, daemon {follower.holder.daemon} is gone")
        if follower in self.followers:
            self.followers.remove(follower)
        if follower.purpose is Purpose.CREATE and follower.state is not State.IN_SYNC:
            self._daemon.opening.place(self)
            return
        self._daemon.to_peer(follower.holder.daemon, Notice(self.entry.name))
        self.settle()

    # ---- the directory

    def _swap(self, new: RegionEntry) -> bool:
        done = self._daemon.swap(self.entry.name, self.entry, new)
        if done:
            self.entry = new
            return True
        self.doubt = True
        if done is not None:
            self.refresh()
        return False

    def refresh(self) -> bool:
        """What the directory says is so. False when it does not answer, or says that this is no longer the primary."""
        daemon, name = self._daemon, self.entry.name
        if not self.listed:
            self.doubt = False
            return False
        known, entry = daemon.look(name)
        if not known:
            return False
        if entry is not None and entry.region_id == self.entry.region_id and entry.secondary == daemon.me:
            self.entry = entry  # only a move of its own makes a primary a secondary
            self.demote()
            return False
        if entry is None or entry.region_id != self.entry.region_id or entry.primary != daemon.me:
            self.fence("another daemon took over" if entry else "the region was removed")
            return False
        surprise = entry.epoch != self.entry.epoch
        self.entry, self.doubt = entry, False
        for follower in list(self.followers):
            if follower.holder == entry.secondary:
                follower.state = State.IN_SYNC
            elif follower.state is State.IN_SYNC or surprise:  # a surprise may be that it gave its copy up
                self.followers.remove(follower)
                daemon.to_peer(follower.holder.daemon, Notice(name))
        if entry.secondary is not None and not any(f.holder == entry.secondary for f in self.followers):
            self._adopt(entry.secondary)
        self.settle()
        return True

    def fence(self, reason: str) -> None:
        """This copy is not the truth any more: nothing of it is served, no open write is acknowledged."""
        daemon, name = self._daemon, self.entry.name
        daemon.primaries.pop(name, None)
        for pending in self.pending:
            daemon.fail(pending.client, pending.request, "FencedError", [f"region {name}: {reason}"])
        self.pending.clear()
        if self.client is not None:
            daemon.to_client(self.client, Revoked(name, reason))
        if name in daemon.copies:
            daemon.free_copy(name)
        daemon.log(1, f"region {name}: no longer served here, {reason}")

    # ---- what is due

    def tick(self) -> None:
        if self.doubt and not self.refresh():
            return
        if not self.listed:
            self._tick_new()
            return
        if self.client is None and self.listed and (self.entry.opener is not None or self.closing):
            self.closing = self.entry.opener is not None and not self._swap(rules.closed(self.entry))
        for follower in list(self.followers):
            if self._daemon.dead(follower.holder):
                self.remove(follower)
        if self._daemon.primaries.get(self.entry.name) is not self or self.doubt:
            return
        for follower in list(self.followers):
            self._nudge(follower)
            self.advance(follower)
        if self._daemon.primaries.get(self.entry.name) is self and not self.doubt:
            self._want()

    def _tick_new(self) -> None:
        for follower in list(self.followers):
            if self._daemon.dead(follower.holder):
                self.remove(follower)
            else:
                self._nudge(follower)
                self.advance(follower)
        if not self.followers and not self.listed and self._daemon.primaries.get(self.entry.name) is self:
            self._daemon.opening.created(self, None)

    def _want(self) -> None:
        """Starts the resilvering that is due: a second copy, a better place for it, or a way out of this daemon."""
        daemon = self._daemon
        if self.resilvering or daemon.busy_resilvering():
            return
        secondary = self.entry.secondary
        closed = self.entry.opener is None and not self.pending
        staying = secondary is not None and not daemon.is_draining(secondary.daemon) and not daemon.dead(secondary)
        if daemon.draining and closed and staying:
            self.move_to_secondary()
            return
        leave = secondary is not None and daemon.is_draining(secondary.daemon)
        if secondary is not None and not leave and not self.wants_next:
            return
        taken = {secondary.daemon} if secondary is not None and leave else set()
        target = self._next(taken | self.declined)
        if target is None or (secondary is not None and target == secondary.daemon):
            self.wants_next = self.wants_next and target is None
            self.declined.clear()
            return
        holder = daemon.holder_of(target)
        if holder is not None:
            self.start(holder, Purpose.SECONDARY)

    def _next(self, exclude: set[int]) -> int | None:
        daemon, secondary = self._daemon, self.entry.secondary
        candidates = dict(daemon.candidates())
        if secondary is not None and secondary.daemon in candidates:
            here = candidates[secondary.daemon]
            candidates[secondary.daemon] = type(here)(here.index, here.free_bytes + self.entry.size, here.draining)
        return next_daemon(daemon.index, daemon.count, candidates, self.entry.size, exclude)
