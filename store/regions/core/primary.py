"""A region that this daemon serves. Pure.

Theory. The directory names the primary. While the primary is SERVING and its secondary is confirmed, no other daemon can
have taken over. Otherwise it asks the directory before it acknowledges a write or serves a read; the answer is good for
the requests that came before the question. CHANGING, a change of its entry is under way, and IN_DOUBT it does not know
whether it is still primary, or which copies the directory lists. In both it holds every request, and changes nothing. A
doubt that arises while a change is under way lasts until the change is answered: any read that is answered before is older.

Features: R7, R8, R9, R10 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial

from spark_jms.store.regions.core import directory as rules
from spark_jms.store.regions.core.copies import FollowedStream
from spark_jms.store.regions.core.directory import Holder, RegionEntry
from spark_jms.store.regions.core.entry_requests import Outcome, Seen
from spark_jms.store.regions.core.follower import Follower, FollowerEvent, Purpose, ResilverBudget
from spark_jms.store.regions.core.placement import next_daemon, with_room
from spark_jms.store.regions.core.protocol import Notice, ReadRegion, Revoked, WriteRegion
from spark_jms.store.regions.core.replication import Replication
from spark_jms.store.regions.core.second_place import SECOND_PLACE_STATES, SecondPlace, SecondPlaceEvent
from spark_jms.store.regions.core.shared import Shared
from spark_jms.store.regions.core.state_table import StateTable, StateTransition


class PrimaryState(Enum):
    SERVING = "serving"
    CHANGING = "changing"
    IN_DOUBT = "in doubt"


class PrimaryEvent(Enum):
    NAMED = "the directory names this daemon"
    ASKED = "its entry has to change"
    CHANGED = "the directory has changed it"
    DOUBTED = "no answer, refused, or another daemon may have taken over"
    CONFIRMED = "the directory still names this daemon"
    DEMOTED = "the region moved to its other copy"
    FENCED = "another daemon took over, or the region was removed"


_FREES = "fails the requests it holds, frees the copy"
_FOLLOWS = "the copy follows the new primary"
_ANSWERS = "answers the requests it holds"

PRIMARY_STATES = StateTable(
    StateTransition(None, PrimaryEvent.NAMED, PrimaryState.SERVING, "adopts the second copy that the directory lists"),
    StateTransition(PrimaryState.SERVING, PrimaryEvent.ASKED, PrimaryState.CHANGING, "asks the directory"),
    StateTransition(PrimaryState.CHANGING, PrimaryEvent.CHANGED, PrimaryState.SERVING, _ANSWERS),
    StateTransition(PrimaryState.SERVING, PrimaryEvent.DOUBTED, PrimaryState.IN_DOUBT, "reads the entry on every tick"),
    StateTransition(
        PrimaryState.CHANGING, PrimaryEvent.DOUBTED, PrimaryState.IN_DOUBT, "reads the entry on every tick"
    ),
    StateTransition(PrimaryState.IN_DOUBT, PrimaryEvent.DOUBTED, PrimaryState.IN_DOUBT, "nothing"),
    StateTransition(PrimaryState.IN_DOUBT, PrimaryEvent.CONFIRMED, PrimaryState.SERVING, _ANSWERS),
    StateTransition(PrimaryState.SERVING, PrimaryEvent.CONFIRMED, PrimaryState.SERVING, _ANSWERS),
    *(StateTransition(state, PrimaryEvent.DEMOTED, None, _FOLLOWS) for state in PrimaryState),
    *(StateTransition(state, PrimaryEvent.FENCED, None, _FREES) for state in PrimaryState),
)

# As globals: reading a member from its Enum runs in Python, and every write and every tick does.
_SERVING, _IN_DOUBT = PrimaryState.SERVING, PrimaryState.IN_DOUBT


class Primary:
    def __init__(self, shared: Shared, budget: ResilverBudget, entry: RegionEntry, replication: Replication) -> None:
        self.entry = entry
        self.state: PrimaryState | None = None  # None again once it has ended
        self.client: int | None = None
        self.open_epoch = 0
        self.replication = replication
        self._shared = shared
        self._budget = budget
        self._under_way = False  # a change of its entry, which may wait for a read
        self._covered = 0  # requests up to this one came before the directory named this daemon primary
        self._closing: list[Callable[[], None]] = []  # called once the region is closed
        self._second_place = SECOND_PLACE_STATES.next(None, SecondPlaceEvent.SERVED)
        self._declined: set[int] = set()  # daemons that had no memory when asked
        self._step(PrimaryEvent.NAMED)
        replication.adopt(entry)

    def _step(self, event: PrimaryEvent) -> None:
        self.state = PRIMARY_STATES.next(self.state, event)

    def _step_place(self, event: SecondPlaceEvent) -> None:
        self._second_place = SECOND_PLACE_STATES.next(self._second_place, event)

    @property
    def ended(self) -> bool:
        return self.state is None

    def doubt(self) -> None:
        """Another daemon may have taken over."""
        self._step(PrimaryEvent.DOUBTED)

    # ---- the client's requests

    def open(self, client: int, opener: str, opened: Callable[[], None]) -> None:
        """Calls `opened` once the directory has it. Before that, both copies hold everything that a reader may see. Does
        nothing when that is not certain, or not possible now: ask again."""
        if self.state is not _SERVING or self.replication.pending:
            return
        if any(f.in_sync and f.unacked for f in self.replication.followers):
            return  # it has to answer first: it may have lost its copy
        self._change(rules.opened(self.entry, opener), partial(self._opened, client, opened))

    def _opened(self, client: int, opened: Callable[[], None]) -> None:
        self.client, self.open_epoch = client, self.entry.epoch
        self._step_place(SecondPlaceEvent.OPENED)
        for follower in [f for f in self.replication.followers if f.purpose is Purpose.MOVE]:
            self._remove(follower)
        opened()

    def close(self, closed: Callable[[], None] = lambda: None) -> None:
        """Calls `closed` once the directory has it, or another daemon serves the region."""
        self.client = None
        self._closing.append(closed)
        self._continue_closing()

    def _continue_closing(self) -> None:
        if self.state is not _SERVING or self.client is not None:
            return
        if self.entry.opener is not None:
            self._change(rules.closed(self.entry), self._continue_closing)
        else:
            self._tell_closed()

    def _tell_closed(self) -> None:
        closing, self._closing = self._closing, []
        for closed in closing:
            closed()

    def remove(self, removed: Callable[[], None]) -> bool:
        """Calls `removed` once the directory no longer has the region, or has it as a destroyed one: a store had it open.
        False when it is not possible now."""
        if self.state is not _SERVING:
            return False
        self._change(None if self.entry.opener is None else rules.destroyed(self.entry), removed)
        return True

    def write(self, message: WriteRegion) -> str | None:
        """The name of the error; None when the answer follows."""
        if self._refuses():
            return "SingleCopyError"
        assert self.client is not None
        self.replication.write(self.client, self.entry.epoch, message)
        self.acknowledge()
        return None

    def read(self, message: ReadRegion) -> bytes | None:
        """None when another daemon may have taken over: the answer follows."""
        if self._lease():
            return self.replication.read(message)
        assert self.client is not None
        self.replication.hold_read(self.client, message)
        self.acknowledge()
        return None

    def _refuses(self) -> bool:
        return self._shared.settings.single_copy == "refuse" and not self.replication.safe

    def _lease(self) -> bool:
        """A confirmed secondary does not take over. Without a secondary, no daemon can."""
        if self.state is not _SERVING:
            return False
        secondary = self.entry.secondary
        return secondary is None or self._shared.peers.confirmed(secondary.daemon)

    def acknowledge(self) -> None:
        """Answers the requests it holds, in order: writes that every follower that counts has, and reads."""
        if not self.replication.oldest_is_held() or self.state is not _SERVING or self._refuses():
            return
        sure = self._lease()
        while self.replication.oldest_is_held():
            if not sure and self.replication.pending[0].order > self._covered:
                self.refresh()
                return
            held = self.replication.pending.popleft()
            self._shared.out.reply(held.client, held.request, held.data)

    def confirm(self, then: Callable[[bool], None]) -> None:
        """Calls `then` with whether this daemon is certainly still primary."""
        if self._lease():
            then(True)
            return
        covers = self.replication.last_order

        def looked(seen: Seen) -> None:
            self._looked(covers, seen)
            then(seen.known and not self.ended)

        self._shared.directory.look(self.entry.name, then, looked)

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
        covers = self.replication.last_order

        def looked(seen: Seen) -> None:
            self._looked(covers, seen)
            if seen.known:
                self._remove(follower)

        self._shared.directory.look(self.entry.name, follower, looked)

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
        if follower.purpose is Purpose.MOVE:
            self._change(rules.moved(entry, follower.holder), partial(self._moved, entry.secondary))
        else:
            self._change(rules.joined(entry, follower.holder), partial(self._joined, follower, entry.secondary))

    def _moved(self, before: Holder | None) -> None:
        self._demote()
        self._tell_replaced(before)

    def _joined(self, follower: Follower, before: Holder | None) -> None:
        follower.step(FollowerEvent.LISTED)
        self._step_place(SecondPlaceEvent.JOINED)
        for other in [f for f in self.replication.followers if f is not follower and f.in_sync]:
            self.replication.remove(other)
        self._shared.out.log(2, f"region {self.entry.name}: second copy on daemon {follower.holder.daemon}")
        self._tell_replaced(before)

    def _tell_replaced(self, before: Holder | None) -> None:
        if before is not None and before not in self.entry.holders():
            self._shared.out.to_peer(before.daemon, Notice(self.entry.name))

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
        if not self.replication.pending and not behind:
            self._change(rules.moved(self.entry, secondary), self._demote)

    def _remove(self, follower: Follower) -> None:
        """Because it is dead, refused or no longer wanted. The directory stops listing a listed one first."""
        if follower not in self.replication.followers or self.state is not _SERVING:
            return  # in doubt, the directory may list it
        if not follower.in_sync:
            self._removed(follower)
        elif self.entry.secondary == follower.holder:
            self._change(rules.dropped(self.entry), partial(self._dropped, follower))

    def _dropped(self, follower: Follower) -> None:
        daemon = follower.holder.daemon
        self._shared.out.log(1, f"region {self.entry.name}: ONE copy left, daemon {daemon} was dropped")
        self._removed(follower)

    def _removed(self, follower: Follower) -> None:
        self.replication.remove(follower)
        self._shared.out.to_peer(follower.holder.daemon, Notice(self.entry.name))
        self.acknowledge()

    # ---- the directory

    def _change(self, new: RegionEntry | None, then: Callable[[], None]) -> None:
        """Calls `then` once the directory has the new entry. Otherwise this primary is in doubt."""
        self._step(PrimaryEvent.ASKED)
        self._under_way = True
        changed = partial(self._changed, new, self.replication.last_order, then)
        self._shared.directory.change(self.entry.name, self.entry, new, changed)

    def _changed(self, new: RegionEntry | None, covers: int, then: Callable[[], None], outcome: Outcome) -> None:
        self._under_way = False
        if self.ended:
            return
        if outcome is not Outcome.DONE:
            self.doubt()
            self.refresh()
        elif new is None or new.is_destroyed:
            self.fence("the region was removed")
            then()
        else:
            self.entry, self._covered = new, covers
            if self.state is PrimaryState.CHANGING:
                self._step(PrimaryEvent.CHANGED)
            then()
            self.acknowledge()

    def refresh(self) -> None:
        """Reads the entry and adopts it."""
        if not self.ended:
            self._shared.directory.look(self.entry.name, self, partial(self._looked, self.replication.last_order))

    def _looked(self, covers: int, seen: Seen) -> None:
        if self.ended or not seen.known:
            return
        entry = seen.entry
        if entry is not None and entry.region_id == self.entry.region_id and entry.secondary == self._shared.me:
            self.entry = entry  # only its own move makes a primary the secondary
            self._demote()
        elif entry is None or self._is_lost(entry):
            self.fence("the region was removed" if entry is None or entry.is_destroyed else "another daemon took over")
        else:
            self._covered = max(self._covered, covers)
            if not self._under_way:  # otherwise the change tells more
                self._adopt(entry)

    def _adopt(self, entry: RegionEntry) -> None:
        replication, surprise = self.replication, entry.epoch != self.entry.epoch
        self.entry = entry
        self._step(PrimaryEvent.CONFIRMED)
        incomplete = False
        for follower in list(replication.followers):
            if follower.holder == entry.secondary and (follower.in_sync or follower.may_join):
                follower.step(FollowerEvent.LISTED)
            elif follower.holder == entry.secondary:
                incomplete = True
            elif follower.in_sync or surprise:  # a surprise may be that the follower gave its copy up
                replication.remove(follower)
                self._shared.out.to_peer(follower.holder.daemon, Notice(entry.name))
        replication.adopt(entry)
        self.acknowledge()
        if incomplete:  # a change without an answer came late, and lists a copy that was removed before this one began
            self._change(rules.dropped(entry), self._continue_closing)
        self._continue_closing()

    def _demote(self) -> None:
        """The directory names another primary, and this complete copy as secondary."""
        name, primary, out = self.entry.name, self.entry.primary.daemon, self._shared.out
        self._step(PrimaryEvent.DEMOTED)
        self._shared.copies.follow(
            FollowedStream(self.replication.copy, f"-{name}", primary, self.entry.epoch, 0, self._shared.clock.now_ms)
        )
        self._tell_closed()
        out.log(2, f"region {name}: primary is now daemon {primary}")
        out.to_peer(primary, Notice(name))

    def fence(self, reason: str) -> None:
        """This copy is no longer valid: it serves nothing more, and no pending write is acknowledged."""
        name, out, pending = self.entry.name, self._shared.out, self.replication.pending
        self._step(PrimaryEvent.FENCED)
        for write in pending:
            out.fail(write.client, write.request, "FencedError", f"region {name}: {reason}")
        pending.clear()
        self._tell_closed()
        if self.client is not None:
            out.to_client(self.client, Revoked(name, reason))
        if name in self._shared.copies:
            self._shared.copies.free(name)
        out.log(1, f"region {name}: no longer served here, {reason}")

    # ---- time

    def tick(self, may_resilver: bool) -> None:
        if self.state is _IN_DOUBT:
            self.refresh()
        if self.client is None:
            self._continue_closing()
        dead = self._shared.peers.dead
        for follower in self.replication.followers[:]:
            if dead(follower.holder):
                self._remove(follower)
        for follower in self.replication.followers[:]:
            follower.nudge()
            self._advance(follower)
        if self.replication.pending:
            self.acknowledge()
        if self.state is _SERVING and may_resilver and not self.replication.resilvering:
            self._want()

    def _want(self) -> None:
        """Starts the resilvering that is due: a second copy, a better place for it, or a way out of this daemon."""
        peers, secondary, size = self._shared.peers, self.entry.secondary, self.entry.size
        closed = self.entry.opener is None and not self.replication.pending
        leaves = secondary is not None and peers.is_draining(secondary.daemon)
        if peers.draining and closed and secondary is not None and not leaves and not peers.dead(secondary):
            self._swap_places()
            return
        if secondary is not None and not leaves and self._second_place is SecondPlace.ACCEPTED:
            return
        candidates, exclude = peers.candidates(), set(self._declined)
        if secondary is not None:
            candidates = with_room(candidates, secondary.daemon, size)
            exclude |= {secondary.daemon} if leaves else set()
        target = next_daemon(peers.me.daemon, peers.count, candidates, size, exclude)
        if target is None or (secondary is not None and target == secondary.daemon):
            if target is not None:
                self._step_place(SecondPlaceEvent.IN_PLACE)
            self._declined.clear()
            return
        holder = peers.holder_of(target)
        if holder is not None:
            self.replication.begin(self.entry, holder, Purpose.SECONDARY)
