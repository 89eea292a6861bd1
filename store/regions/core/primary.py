"""A region that this daemon serves. Pure.

Theory. The directory names the primary. While the primary is SERVING and its secondary is confirmed, no other daemon can
have taken over. Otherwise it asks the directory before it acknowledges a write or serves a read; the answer is good for
the requests that came before the question. In every other state it holds all requests, and changes nothing.

Its state is three tables: whether it is primary and who has the region open (core/primary_state.py), and whether its second
copy should be elsewhere (SecondPlace). All answers of the directory come in by one door.

Features: R7, R8, R9, R10 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from spark_jms.store.regions.core.copies import FollowedStream, Shared
from spark_jms.store.regions.core.directory_view import Outcome, Seen
from spark_jms.store.regions.core.peers import Peers, next_daemon, with_room
from spark_jms.store.regions.core.primary_state import (
    CHANGES,
    ENDS,
    PRIMARY_STATES,
    Answer,
    PrimaryEvent,
    PrimaryState,
    RegionUse,
)
from spark_jms.store.regions.core.replication import Follower, FollowerEvent, Purpose, Replication, ResilverBudget
from spark_jms.store.regions.protocol import region_entry as rules
from spark_jms.store.regions.protocol.messages import Notice, ReadRegion, Revoked, WriteRegion
from spark_jms.store.regions.protocol.region_entry import Holder, RegionEntry
from spark_jms.store.state_table import StateTable, StateTransition

# As globals: reading a member from its Enum runs in Python, and every write and every tick does.
_SERVING, _IN_DOUBT = PrimaryState.SERVING, PrimaryState.IN_DOUBT


class SecondPlaceState(Enum):
    ACCEPTED = "accepted"
    SOUGHT = "sought"


class SecondPlaceEvent(Enum):
    SERVED = "the directory names this daemon primary"
    OPENED = "a client has opened the region"
    JOINED = "the directory lists a copy that was made for it"
    IN_PLACE = "the second copy is on the next daemon"


_ACCEPTED, _SOUGHT = SecondPlaceState
_MOVES = "makes a copy on the next daemon, as soon as one has room"


SECOND_PLACE_STATES = StateTable(
    StateTransition(None, SecondPlaceEvent.SERVED, _ACCEPTED, "the second copy stays where it is"),
    *(StateTransition(state, SecondPlaceEvent.OPENED, _SOUGHT, _MOVES) for state in SecondPlaceState),
    *(
        StateTransition(state, SecondPlaceEvent.JOINED, _ACCEPTED, "the other copy is given up")
        for state in SecondPlaceState
    ),
    *(StateTransition(state, SecondPlaceEvent.IN_PLACE, _ACCEPTED, "nothing") for state in SecondPlaceState),
)


def _nothing() -> None:
    pass


class Primary:
    def __init__(self, shared: Shared, budget: ResilverBudget, entry: RegionEntry, replication: Replication) -> None:
        self.entry = entry
        self.state: PrimaryState | None = None
        self.ended = False  # whether the state is one of ENDS
        self.use = RegionUse(entry.opener)
        self.replication = replication
        self._shared = shared
        self._budget = budget
        self._second_place = SecondPlace()
        self._covered = 0  # requests up to this one came before the directory named this daemon primary
        self._step(PrimaryEvent.NAMED)
        replication.adopt(entry)

    def _step(self, event: PrimaryEvent) -> None:
        self.state = PRIMARY_STATES.next(self.state, event)
        self.ended = self.state in ENDS

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
        self.use.ask(client, opened)
        self._change(rules.opened(self.entry, opener), self._opened)

    def _opened(self) -> None:
        self._second_place.step(SecondPlaceEvent.OPENED)
        for follower in [f for f in self.replication.followers if f.purpose is Purpose.MOVE]:
            self._remove(follower)
        self.use.opened(self.entry.epoch)

    def close(self, closed: Callable[[], None] = _nothing) -> None:
        """Calls `closed` once the directory has it, or another daemon serves the region."""
        self.use.leave(closed)
        self._continue_closing()

    def _continue_closing(self) -> None:
        if self.state is not _SERVING or not self.use.closing:
            return
        if self.entry.opener is not None:
            self._change(rules.closed(self.entry))
        else:
            self.use.closed()

    def remove(self, removed: Callable[[], None]) -> bool:
        """Calls `removed` once the directory no longer has the region, or has it as a destroyed one: a store had it open.
        False when it is not possible now."""
        if self.state is not _SERVING:
            return False
        self._change(None if self.entry.opener is None else rules.destroyed(self.entry), removed)
        return True

    def write(self, message: WriteRegion) -> str | None:
        """The name of the error; None when the answer follows."""
        if self.replication.refuses:
            return "SingleCopyError"
        assert self.use.client is not None
        self.replication.write(self.use.client, self.entry.epoch, message)
        self.acknowledge()
        return None

    def read(self, message: ReadRegion) -> bytes | None:
        """None when another daemon may have taken over: the answer follows."""
        if self._lease():
            return self.replication.read(message)
        assert self.use.client is not None
        self.replication.hold_read(self.use.client, message)
        self.acknowledge()
        return None

    def _lease(self) -> bool:
        """A confirmed secondary does not take over. Without a secondary, no daemon can."""
        if self.state is not _SERVING:
            return False
        secondary = self.entry.secondary
        return secondary is None or self._shared.peers.confirmed(secondary.daemon)

    def acknowledge(self) -> None:
        """Answers the requests it holds, in order: writes that every follower that counts has, and reads."""
        if not self.replication.oldest_is_held() or self.state is not _SERVING or self.replication.refuses:
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
        else:
            self._look(then, lambda known: then(known and not self.ended))

    # ---- followers

    def acked(self, follower: Follower, seq: int) -> bool:
        """True when a client that waits for the region may have become able to open it."""
        if not follower.ack(seq):
            return False
        self.acknowledge()
        self._advance(follower)
        return self.use.client is None and not follower.unacked

    def refused(self, follower: Follower, reason: str) -> None:
        if reason == "memory":
            self._second_place.decline(follower.holder.daemon)

        def looked(known: bool) -> None:
            if known:
                self._remove(follower)

        self._look(follower, looked)

    def _advance(self, follower: Follower) -> None:
        if not follower.counts:
            follower.copy_chunks(self.replication.copy, self.entry.epoch, self._budget)
        if not follower.may_join or self.state is not _SERVING:
            return
        if follower.purpose is not Purpose.MOVE:
            self._change(rules.joined(self.entry, follower.holder))
        elif self.entry.opener is not None or self.replication.pending:
            self._remove(follower)
        else:
            self._change(rules.moved(self.entry, follower.holder))

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
            self._change(rules.moved(self.entry, secondary))

    def _remove(self, follower: Follower) -> None:
        """Because it is dead, refused or no longer wanted. The directory stops listing a listed one first."""
        if follower not in self.replication.followers or self.state is not _SERVING:
            return  # in doubt, the directory may list it
        if not follower.in_sync:
            self.replication.give_up(follower)
            self.acknowledge()
        elif self.entry.secondary == follower.holder:
            self._change(rules.dropped(self.entry))

    # ---- the directory

    def _change(self, new: RegionEntry | None, then: Callable[[], None] = _nothing) -> None:
        """Calls `then` once the directory has the new entry."""
        covers = self.replication.last_order

        def changed(outcome: Outcome) -> None:
            self._answered(Answer(covers, outcome is Outcome.DONE, new, then))

        self._step(PrimaryEvent.ASKED)
        self._shared.directory.change(self.entry.name, self.entry, new, changed)

    def refresh(self) -> None:
        """Reads the entry and adopts it."""
        if not self.ended:
            self._look(self)

    def _look(self, key: object, then: Callable[[bool], None] = lambda known: None) -> None:
        """Calls `then` with whether the directory has answered. `key` is that of the question, see EntryRequests."""
        covers = self.replication.last_order

        def looked(seen: Seen) -> None:
            self._answered(Answer(covers, seen.known, seen.entry))
            then(seen.known)

        self._shared.directory.look(self.entry.name, key, looked)

    def _answered(self, answer: Answer) -> None:
        """The door: every answer of the directory comes in here."""
        event = answer.means(self._shared.me, self.entry.region_id)
        if self.ended or event is None:
            return
        self._step(event)
        if event is PrimaryEvent.UNCHANGED:
            self.use.unchanged()
        else:
            self._covered = max(self._covered, answer.covers)
            self._learn(answer)
        if self.state is _IN_DOUBT:
            self.refresh()

    def _learn(self, answer: Answer) -> None:
        entry = answer.entry
        if entry is None or self.state in ENDS:
            self._end(entry)
        elif self.state not in CHANGES:
            self._adopt(entry, surprise=answer.then is None and entry.epoch != self.entry.epoch)
        if answer.then is not None:
            answer.then()

    def _adopt(self, entry: RegionEntry, surprise: bool) -> None:
        """A surprise, a change that is not known here, may be that a follower gave its copy up."""
        replication, secondary, self.entry = self.replication, entry.secondary, entry
        listed = next((f for f in replication.followers if f.holder == secondary), None)
        complete = listed is None or listed.in_sync or listed.may_join
        if listed is not None and complete:
            if not listed.in_sync:
                self._second_place.step(SecondPlaceEvent.JOINED)
                self._shared.out.log(2, f"region {entry.name}: second copy on daemon {listed.holder.daemon}")
            listed.step(FollowerEvent.LISTED)
        for other in [f for f in replication.followers if f is not listed and (f.in_sync or surprise)]:
            if other.in_sync and secondary is None:
                daemon = other.holder.daemon
                self._shared.out.log(1, f"region {entry.name}: ONE copy left, daemon {daemon} was dropped")
            replication.give_up(other)
        replication.adopt(entry)
        self.acknowledge()
        if not complete and self.state is _SERVING:
            # A change without an answer came late, and lists a copy that was removed before this one began.
            self._change(rules.dropped(entry))
        self._continue_closing()

    def _end(self, entry: RegionEntry | None) -> None:
        """The directory names another daemon, or none. If it names this one secondary, the copy here is complete. Otherwise it
        is no longer valid, and no pending request is answered with success."""
        name, out, copies = self.entry.name, self._shared.out, self._shared.copies
        if entry is not None and self.state is PrimaryState.DEMOTED:
            before, new, now_ms = self.entry.secondary, entry.primary.daemon, self._shared.clock.now_ms
            self.entry = entry
            copies.follow(FollowedStream(self.replication.copy, f"-{name}", new, entry.epoch, 0, now_ms))
            self.use.end()
            out.log(2, f"region {name}: primary is now daemon {new}")
            out.to_peer(new, Notice(name))
            if before is not None and before not in entry.holders():
                out.to_peer(before.daemon, Notice(name))
            return
        reason = "the region was removed" if self.state is PrimaryState.REMOVED else "another daemon took over"
        for held in self.replication.pending:
            out.fail(held.client, held.request, "FencedError", f"region {name}: {reason}")
        self.replication.pending.clear()
        client = self.use.end()
        if client is not None:
            out.to_client(client, Revoked(name, reason))
        if name in copies:
            copies.free(name)
        out.log(1, f"region {name}: no longer served here, {reason}")

    # ---- time

    def tick(self, may_resilver: bool) -> None:
        if self.state is _IN_DOUBT:
            self.refresh()
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
        peers, secondary = self._shared.peers, self.entry.secondary
        closed = self.entry.opener is None and not self.replication.pending
        stays = secondary is not None and not peers.is_draining(secondary.daemon) and not peers.dead(secondary)
        if peers.draining and closed and stays:
            self._swap_places()
        elif (holder := self._second_place.seek(self.entry, peers)) is not None:
            self.replication.begin(self.entry, holder, Purpose.SECONDARY)


class SecondPlace:
    """Whether a region's second copy should be on another daemon than it is, and on which.

    Theory. The second copy belongs on the next daemon with room after the primary's. It is moved there only after a client has
    opened the region, so that daemons which come and go move no copies of regions that are not used. Until a copy has joined,
    or is found on the next daemon already, the next daemon is SOUGHT.
    """

    def __init__(self) -> None:
        self.state: SecondPlaceState | None = None
        self._declined: set[int] = set()  # daemons that had no memory when asked
        self.step(SecondPlaceEvent.SERVED)

    def step(self, event: SecondPlaceEvent) -> None:
        self.state = SECOND_PLACE_STATES.next(self.state, event)

    def decline(self, daemon: int) -> None:
        self._declined.add(daemon)

    def seek(self, entry: RegionEntry, peers: Peers) -> Holder | None:
        """Where another second copy should be made now."""
        secondary, size = entry.secondary, entry.size
        leaves = secondary is not None and peers.is_draining(secondary.daemon)
        if secondary is not None and not leaves and self.state is _ACCEPTED:
            return None
        candidates, exclude = peers.candidates(), set(self._declined)
        if secondary is not None:
            candidates = with_room(candidates, secondary.daemon, size)
            exclude |= {secondary.daemon} if leaves else set()
        target = next_daemon(peers.me.daemon, peers.count, candidates, size, exclude)
        if target is not None and (secondary is None or target != secondary.daemon):
            return peers.holder_of(target)
        if target is not None:
            self.step(SecondPlaceEvent.IN_PLACE)
        self._declined.clear()
        return None
