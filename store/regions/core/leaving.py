"""Leaving safely. Pure.

    step 1   one of the leaving daemons has an open region         refused, nothing has changed
    step 2   the copies they hold have no room elsewhere           refused, nothing has changed
    step 3   opens wait; every copy moves away (Primary._want)     takes as long as the copying, and waits for memory
    step 4   a daemon without copies stops

Theory of step 3. The memory that step 2 counted on may be used up meanwhile: a daemon died, a region was created, or
another daemon leaves as well. Then the leaving daemon is WAITING. It says so in its log and in its heartbeats, until there
is room again or an administrator breaks the shutdown off. What it waits for is judged again at every tick.

Features: R4 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import partial

from spark_jms.store.errors import DirectoryUnavailableError
from spark_jms.store.regions.core.actions import Stop
from spark_jms.store.regions.core.administration import Heartbeats
from spark_jms.store.regions.core.copies import Shared
from spark_jms.store.regions.core.peers import Candidate, HeldCopies, refusal_to_leave, without_room
from spark_jms.store.regions.core.primaries import Primaries
from spark_jms.store.regions.protocol.messages import BreakOff, Drain, Halt, Shutdown, Stay
from spark_jms.store.regions.protocol.region_entry import DirectoryListing
from spark_jms.store.state_table import StateTable, StateTransition

NAMED_REGIONS = 3  # of those without room, in the text


class LeavingState(Enum):
    STAYING = "staying"
    MOVING = "moving"
    WAITING = "waiting"
    STOPPED = "stopped"


class LeavingEvent(Enum):
    STARTED = "the daemon starts"
    ASKED = "it is asked to leave safely"
    NO_ROOM = "no copy moves, and the other daemons have no room"
    ROOM = "there is room again"
    BROKEN_OFF = "an administrator breaks the shutdown off"
    UNREADABLE = "the entry of one of its regions cannot be read"
    EMPTY = "it holds no copy any more"
    FORCED = "it is asked to stop at once"


_OPENS_WAIT = "opens wait, every copy moves away"
_SAYS = "says what it waits for"
_CONTINUE = "opens continue"
_STAYING, _MOVING, _WAITING, _STOPPED = LeavingState

LEAVING_STATES = StateTable(
    StateTransition(None, LeavingEvent.STARTED, _STAYING, "nothing"),
    StateTransition(_STAYING, LeavingEvent.ASKED, _MOVING, _OPENS_WAIT),
    StateTransition(_MOVING, LeavingEvent.NO_ROOM, _WAITING, _SAYS),
    StateTransition(_WAITING, LeavingEvent.ROOM, _MOVING, "every copy moves away"),
    *(StateTransition(state, LeavingEvent.BROKEN_OFF, _STAYING, _CONTINUE) for state in (_MOVING, _WAITING)),
    *(StateTransition(state, LeavingEvent.UNREADABLE, _STAYING, _CONTINUE) for state in (_MOVING, _WAITING)),
    *(StateTransition(state, LeavingEvent.EMPTY, _STOPPED, "stops") for state in (_MOVING, _WAITING)),
    *(StateTransition(state, LeavingEvent.FORCED, _STOPPED, "stops") for state in LeavingState),
)


class Leaving:
    def __init__(self, shared: Shared, primaries: Primaries, heartbeats: Heartbeats) -> None:
        self._shared = shared
        self._primaries = primaries
        self._heartbeats = heartbeats
        self._stuck_ms: float | None = None  # since when no copy moves
        self.state = LEAVING_STATES.next(None, LeavingEvent.STARTED)

    def _step(self, event: LeavingEvent) -> None:
        self.state = LEAVING_STATES.next(self.state, event)
        peers = self._shared.peers
        peers.draining, peers.waits_for = self.state in (_MOVING, _WAITING), ""
        self._heartbeats.soon()

    # ---- the command

    def shutdown(self, client: int, message: Shutdown) -> None:
        if message.force:
            self._allow(client, message)
        else:
            self._shared.directory.entries(partial(self._listed, client, message))

    def _listed(self, client: int, message: Shutdown, listing: DirectoryListing | DirectoryUnavailableError) -> None:
        out = self._shared.out
        if isinstance(listing, DirectoryUnavailableError):
            out.fail(client, message.request, "DirectoryUnavailableError", *listing.args)
        elif reason := self._refusal(set(message.indexes), listing):
            out.fail(client, message.request, "ShutdownRefusedError", reason)
        else:
            self._allow(client, message)

    def _allow(self, client: int, message: Shutdown) -> None:
        me, out, indexes = self._shared.me.daemon, self._shared.out, set(message.indexes)
        out.reply(client, message.request)
        for index in sorted(indexes - {me}):
            out.to_peer(index, Halt() if message.force else Drain())
        if me in indexes:
            self.leave(message.force)

    def break_off(self, client: int, message: BreakOff) -> None:
        me, out, indexes = self._shared.me.daemon, self._shared.out, set(message.indexes)
        for index in sorted(indexes - {me}):
            out.to_peer(index, Stay())
        if me in indexes:
            self.stay()
        out.reply(client, message.request)

    def _refusal(self, indexes: set[int], listing: DirectoryListing) -> str:
        if self._shared.me.daemon in indexes and (unreadable := self._unreadable(listing.unreadable)):
            return f"region {unreadable} cannot move away: {listing.unreadable[unreadable]}"
        dead, entries = self._shared.peers.dead, listing.entries
        copies = {
            name: HeldCopies(entry.size, tuple(h.daemon for h in entry.holders() if not dead(h)))
            for name, entry in entries.items()
        }
        openers = {name: entry.opener for name, entry in entries.items() if entry.opener is not None}
        return refusal_to_leave(indexes, copies, openers, self._candidates())

    def _unreadable(self, unreadable: Mapping[str, DirectoryUnavailableError]) -> str | None:
        """A region with a copy here that no daemon can move away, because its entry cannot be read."""
        return next((name for name in sorted(self._shared.copies) if name in unreadable), None)

    def _candidates(self) -> Mapping[int, Candidate]:
        peers, me = self._shared.peers, self._shared.me.daemon
        return {**peers.candidates(), me: Candidate(me, self._shared.copies.free_bytes, peers.draining)}

    # ---- this daemon

    def leave(self, force: bool) -> None:
        if force:
            self._stop(LeavingEvent.FORCED, "by force")
        elif (name := self._unreadable(self._shared.directory.unreadable)) is not None:
            self._shared.out.log(1, f"not shutting down: region {name} cannot move away, its entry cannot be read")
        elif self.state is _STAYING:
            self._step(LeavingEvent.ASKED)
            self._shared.out.log(2, "shutting down: regions move to other daemons")

    def stay(self) -> None:
        if self._leaves:
            self._step(LeavingEvent.BROKEN_OFF)
            self._shared.out.log(1, "shutdown broken off: this daemon stays")

    @property
    def _leaves(self) -> bool:
        return self.state in (_MOVING, _WAITING)

    def tick(self) -> None:
        if not self._leaves:
            return
        out, peers = self._shared.out, self._shared.peers
        unreadable, reason = self._unreadable(self._shared.directory.unreadable), self._reason_to_wait()
        if not self._is_stuck(unreadable is not None or bool(reason)):
            if self.state is _WAITING:
                self._step(LeavingEvent.ROOM)
                out.log(1, "the shutdown continues")
        elif unreadable is not None:
            self._step(LeavingEvent.UNREADABLE)
            out.log(1, f"shutdown cancelled: the entry of region {unreadable} cannot be read")
        else:
            if self.state is _MOVING:
                self._step(LeavingEvent.NO_ROOM)
            if peers.waits_for != reason:
                peers.waits_for = reason
                self._heartbeats.soon()
                out.log(1, f"the shutdown waits {reason}; make room, or break it off (storeadmin shutdown -cancel)")

    def _is_stuck(self, cannot_move: bool) -> bool:
        """Whether that has been so for as long as the daemons need to notice each other."""
        moving = self._primaries.resilvers or self._shared.peers.any_resilvering()
        if not cannot_move or moving:
            self._stuck_ms = None
        elif self._stuck_ms is None:
            self._stuck_ms = self._shared.clock.now_ms
        elif self._shared.clock.now_ms - self._stuck_ms > 2 * self._shared.settings.failure_timeout_ms:
            return True
        return False

    def _reason_to_wait(self) -> str:
        """For which memory; "" when there is room."""
        shared, peers = self._shared, self._shared.peers
        copies = {
            name: HeldCopies(entry.size, tuple(h.daemon for h in entry.holders()))
            for name, entry in shared.directory.seen.items()
            if shared.me in entry.holders()
        }
        leaving = {index for index in range(peers.count) if peers.is_draining(index)}
        names = without_room(leaving, copies, self._candidates())
        if not names:
            return ""
        needed = sum(copies[name].size for name in names)
        which = ", ".join(names[:NAMED_REGIONS]) + (", …" if len(names) > NAMED_REGIONS else "")
        return f"for memory: no other daemon has room for {_size(needed)} of {len(names)} regions ({which})"

    def stop_if_empty(self) -> None:
        if self._leaves and not self._shared.copies:
            self._stop(LeavingEvent.EMPTY, "all regions are on other daemons")

    def _stop(self, event: LeavingEvent, reason: str) -> None:
        self._step(event)
        self._shared.out.log(2, f"stopped, {reason}")
        self._shared.out.add(Stop())


def _size(size: int) -> str:
    return f"{size >> 20} MB" if size >> 20 else f"{size} bytes"
