"""A region that this daemon serves (R7-R10). Pure.

Theory. The directory names the primary. While the primary is SERVING and its secondary is confirmed, no other daemon can
have taken over. Otherwise it asks the directory before it acknowledges a write or serves a read. IN_DOUBT it does not
know whether it is still primary, or which copies the directory lists, and does nothing before it has read the entry.
"""

from __future__ import annotations

from enum import Enum

from spark_jms.store.regions.core import directory as rules
from spark_jms.store.regions.core.copies import FollowedStream
from spark_jms.store.regions.core.directory import Holder, RegionEntry
from spark_jms.store.regions.core.follower import Follower, FollowerEvent, Purpose, ResilverBudget
from spark_jms.store.regions.core.placement import next_daemon, with_room
from spark_jms.store.regions.core.protocol import Notice, ReadRegion, Revoked, WriteRegion
from spark_jms.store.regions.core.replication import Replication
from spark_jms.store.regions.core.shared import Shared
from spark_jms.store.regions.core.state_table import StateTable, StateTransition


class PrimaryState(Enum):
    SERVING = "serving"
    IN_DOUBT = "in doubt"


class PrimaryEvent(Enum):
    NAMED = "the directory names this daemon"
    DOUBTED = "no answer, or another daemon may have taken over"
    CONFIRMED = "the directory still names this daemon"
    DEMOTED = "the region moved to its other copy"
    FENCED = "another daemon took over, or the region was removed"


PRIMARY_STATES = StateTable(
    StateTransition(None, PrimaryEvent.NAMED, PrimaryState.SERVING, "adopts the second copy that the directory lists"),
    StateTransition(PrimaryState.SERVING, PrimaryEvent.DOUBTED, PrimaryState.IN_DOUBT, "reads the entry on every tick"),
    StateTransition(PrimaryState.IN_DOUBT, PrimaryEvent.DOUBTED, PrimaryState.IN_DOUBT, "nothing"),
    StateTransition(PrimaryState.IN_DOUBT, PrimaryEvent.CONFIRMED, PrimaryState.SERVING, "acknowledges what is held"),
    StateTransition(PrimaryState.SERVING, PrimaryEvent.CONFIRMED, PrimaryState.SERVING, "acknowledges what is held"),
    StateTransition(PrimaryState.SERVING, PrimaryEvent.DEMOTED, None, "the copy follows the new primary"),
    StateTransition(PrimaryState.IN_DOUBT, PrimaryEvent.DEMOTED, None, "the copy follows the new primary"),
    StateTransition(PrimaryState.SERVING, PrimaryEvent.FENCED, None, "fails pending writes, frees the copy"),
    StateTransition(PrimaryState.IN_DOUBT, PrimaryEvent.FENCED, None, "fails pending writes, frees the copy"),
)

_SERVING = PrimaryState.SERVING  # as a global: reading a member from its Enum runs in Python, and every write does


class Primary:
    def __init__(self, shared: Shared, budget: ResilverBudget, entry: RegionEntry, replication: Replication) -> None:
        self.entry = entry
        self.state: PrimaryState | None = None  # None again once it has ended
        self.client: int | None = None
        self.open_epoch = 0
        self.replication = replication
        self._shared = shared
        self._budget = budget
        self._closing = False
        self._wants_next = False  # the second copy should be on the next daemon (R9)
        self._declined: set[int] = set()  # daemons that had no memory when asked
        self._step(PrimaryEvent.NAMED)
        replication.adopt(entry)

    def _step(self, event: PrimaryEvent) -> None:
        self.state = PRIMARY_STATES.next(self.state, event)

    @property
    def ended(self) -> bool:
        return self.state is None

    def doubt(self) -> None:
        """Another daemon may have taken over."""
        self._step(PrimaryEvent.DOUBTED)

    # ---- the client's requests

    def open(self, client: int, opener: str) -> bool:
        """True once the directory has it. Before that, both copies hold everything that a reader may see."""
        if self.state is not _SERVING or self.replication.pending or self._closing:
            return False
        if any(f.in_sync and f.unacked for f in self.replication.followers):
            return False  # it has to answer first: it may have lost its copy
        if not self._swap(rules.opened(self.entry, opener)):
            return False
        for follower in [f for f in self.replication.followers if f.purpose is Purpose.MOVE]:
            self._remove(follower)
        self.client, self.open_epoch, self._wants_next = client, self.entry.epoch, True
        return True

    def close(self) -> None:
        """At once if the directory answers, otherwise as soon as it does."""
        self.client = None
        self._closing = True
        if self.state is _SERVING and self._swap(rules.closed(self.entry)):
            self._closing = False

    def write(self, message: WriteRegion) -> str | None:
        """The name of the error; None when the answer follows."""
        if self._refuses():
            return "SingleCopyError"
        assert self.client is not None
        self.replication.write(self.client, self.entry.epoch, message)
        self.acknowledge()
        return None

    def read(self, message: ReadRegion) -> bytes | None:
        """None when another daemon may have taken over and the directory does not answer."""
        return self.replication.read(message) if self._lease() or self.refresh() else None

    def _refuses(self) -> bool:
        return self._shared.settings.single_copy == "refuse" and not self.replication.safe

    def _lease(self) -> bool:
        """A confirmed secondary does not take over. Without a secondary, no daemon can."""
        if self.state is not _SERVING:
            return False
        secondary = self.entry.secondary
        return secondary is None or self._shared.peers.confirmed(secondary.daemon)

    def acknowledge(self) -> None:
        """Answers the pending writes, in order, that every follower that counts holds."""
        if not self.replication.oldest_is_held() or self.state is not _SERVING or self._refuses():
            return
        sure = self._lease()
        while self.replication.oldest_is_held():
            if not sure and not self._still_primary():
                return
            sure = True
            write = self.replication.pending.popleft()
            self._shared.out.reply(write.client, write.request)

    def _still_primary(self) -> bool:
        """The secondary was silent for a while and may have taken over: the directory knows."""
        known, entry = self._shared.directory.look(self.entry.name)
        if known and self._is_lost(entry):
            self.fence("another daemon took over" if entry else "the region was removed")
            return False
        return known

    def _is_lost(self, entry: RegionEntry | None) -> bool:
        return entry is None or entry.region_id != self.entry.region_id or entry.primary != self._shared.me

    # ---- followers

    def acked(self, follower: Follower, seq: int) -> bool:
        """True when a client that waits for the region may have become able to open it."""
        if not follower.ack(seq):
            return False
        self.acknowledge()
        self._advance(follower)
        return self.client is None and not follower.unacked

    def refused(self, follower: Follower, reason: str) -> None:
        if reason == "memory":
            self._declined.add(follower.holder.daemon)
        if self.refresh():
            self._remove(follower)

    def _advance(self, follower: Follower) -> None:
        if not follower.counts:
            follower.copy_chunks(self.replication.copy, self.entry.epoch, self._budget)
        if follower.may_join and self.state is _SERVING:
            self._join(follower)

    def _join(self, follower: Follower) -> None:
        entry = self.entry
        if follower.purpose is Purpose.MOVE and (entry.opener is not None or self.replication.pending):
            self._remove(follower)
            return
        change = rules.moved if follower.purpose is Purpose.MOVE else rules.joined
        if not self._swap(change(entry, follower.holder)):
            return
        if follower.purpose is Purpose.MOVE:
            self._demote()
        else:
            follower.step(FollowerEvent.LISTED)
            self._wants_next = False
            for other in [f for f in self.replication.followers if f is not follower and f.in_sync]:
                self.replication.remove(other)
            self._shared.out.log(2, f"region {entry.name}: second copy on daemon {follower.holder.daemon}")
            self.acknowledge()
        if entry.secondary is not None and entry.secondary != follower.holder:
            self._shared.out.to_peer(entry.secondary.daemon, Notice(entry.name))

    def move_to(self, holder: Holder) -> bool:
        """The closed region is wanted there. False when this daemon cannot move it now."""
        if self.state is not _SERVING or self.entry.opener is not None:
            return False
        if self.entry.secondary == holder:
            self._swap_places()
        elif not any(f.purpose is Purpose.MOVE for f in self.replication.followers):
            for follower in [f for f in self.replication.followers if f.holder == holder]:
                self._remove(follower)
            self.replication.begin(self.entry, holder, Purpose.MOVE)
        return True

    def _swap_places(self) -> None:
        """Primary and secondary change roles, when both copies are the same."""
        secondary = self.entry.secondary
        assert secondary is not None
        behind = any(f.holder == secondary and f.acked < f.sent for f in self.replication.followers)
        if not self.replication.pending and not behind and self._swap(rules.moved(self.entry, secondary)):
            self._demote()

    def _remove(self, follower: Follower) -> None:
        """Because it is dead, refused or no longer wanted. The directory stops listing a listed one first."""
        if follower not in self.replication.followers or self.state is not _SERVING:
            return  # in doubt, the directory may list it
        name, out = self.entry.name, self._shared.out
        if follower.in_sync:
            if self.entry.secondary != follower.holder or not self._swap(rules.dropped(self.entry)):
                return
            out.log(1, f"region {name}: ONE copy left, daemon {follower.holder.daemon} was dropped")
        self.replication.remove(follower)
        out.to_peer(follower.holder.daemon, Notice(name))
        self.acknowledge()

    # ---- the directory

    def _swap(self, new: RegionEntry) -> bool:
        done = self._shared.directory.swap(self.entry.name, self.entry, new)
        if done:
            self.entry = new
            return True
        self.doubt()
        if done is not None:
            self.refresh()
        return False

    def refresh(self) -> bool:
        """Adopts the directory's entry. False when it does not answer, or no longer names this daemon."""
        if self.ended:
            return False
        me, replication = self._shared.me, self.replication
        known, entry = self._shared.directory.look(self.entry.name)
        if not known:
            return False
        if entry is not None and entry.region_id == self.entry.region_id and entry.secondary == me:
            self.entry = entry  # only its own move makes a primary the secondary
            self._demote()
            return False
        if entry is None or self._is_lost(entry):
            self.fence("another daemon took over" if entry else "the region was removed")
            return False
        surprise = entry.epoch != self.entry.epoch
        self.entry = entry
        self._step(PrimaryEvent.CONFIRMED)
        for follower in list(replication.followers):
            if follower.holder == entry.secondary:
                follower.step(FollowerEvent.LISTED)
            elif follower.in_sync or surprise:  # a surprise may be that the follower gave its copy up
                replication.remove(follower)
                self._shared.out.to_peer(follower.holder.daemon, Notice(entry.name))
        replication.adopt(entry)
        self.acknowledge()
        return not self.ended  # acknowledging reads the entry again, and another daemon may have just taken over

    def _demote(self) -> None:
        """The directory names another primary, and this complete copy as secondary."""
        name, primary, out = self.entry.name, self.entry.primary.daemon, self._shared.out
        self._step(PrimaryEvent.DEMOTED)
        self._shared.copies.follow(
            FollowedStream(self.replication.copy, f"-{name}", primary, self.entry.epoch, 0, self._shared.clock.now_ms)
        )
        out.log(2, f"region {name}: primary is now daemon {primary}")
        out.to_peer(primary, Notice(name))

    def fence(self, reason: str) -> None:
        """This copy is no longer valid: it serves nothing more, and no pending write is acknowledged."""
        name, out, pending = self.entry.name, self._shared.out, self.replication.pending
        self._step(PrimaryEvent.FENCED)
        for write in pending:
            out.fail(write.client, write.request, "FencedError", f"region {name}: {reason}")
        pending.clear()
        if self.client is not None:
            out.to_client(self.client, Revoked(name, reason))
        if name in self._shared.copies:
            self._shared.copies.free(name)
        out.log(1, f"region {name}: no longer served here, {reason}")

    # ---- time

    def tick(self, may_resilver: bool) -> None:
        if self.state is PrimaryState.IN_DOUBT and not self.refresh():
            return
        if self.client is None and (self.entry.opener is not None or self._closing):
            self._closing = self.entry.opener is not None and not self._swap(rules.closed(self.entry))
        for follower in list(self.replication.followers):
            if self._shared.peers.dead(follower.holder):
                self._remove(follower)
        if self.state is not _SERVING:
            return
        for follower in list(self.replication.followers):
            follower.nudge()
            self._advance(follower)
        if self.state is _SERVING and may_resilver and not self.replication.resilvering:
            self._want()

    def _want(self) -> None:
        """Starts the resilvering that is due: a second copy, a better place for it, or a way out of this daemon."""
        peers, secondary, size = self._shared.peers, self.entry.secondary, self.entry.size
        closed = self.entry.opener is None and not self.replication.pending
        leaves = secondary is not None and peers.is_draining(secondary.daemon)
        stays = secondary is not None and not leaves and not peers.dead(secondary)
        if peers.draining and closed and stays:
            self._swap_places()
            return
        if secondary is not None and not leaves and not self._wants_next:
            return
        candidates, exclude = peers.candidates(), set(self._declined)
        if secondary is not None:
            candidates = with_room(candidates, secondary.daemon, size)
            exclude |= {secondary.daemon} if leaves else set()
        target = next_daemon(peers.me.daemon, peers.count, candidates, size, exclude)
        if target is None or (secondary is not None and target == secondary.daemon):
            self._wants_next = self._wants_next and target is None
            self._declined.clear()
            return
        holder = peers.holder_of(target)
        if holder is not None:
            self.replication.begin(self.entry, holder, Purpose.SECONDARY)
