"""Leaving safely (R4). Pure.

    step 1   one of the leaving daemons has an open region         refused, nothing has changed
    step 2   the copies they hold have no room elsewhere           refused, nothing has changed
    step 3   opens wait; every copy moves away (Primary._want)     takes as long as the copying
    step 4   a daemon without copies stops

Two daemons that did not know of each other may each have allowed a shutdown, or a daemon that was counted on may have
died. When no copy moves and the other daemons have no room, the leaving daemon with the highest number stays after all.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from spark_jms.store.errors import DirectoryUnavailableError
from spark_jms.store.regions.core.actions import Stop
from spark_jms.store.regions.core.directory import DirectoryListing
from spark_jms.store.regions.core.heartbeats import Heartbeats
from spark_jms.store.regions.core.placement import Candidate, HeldCopies, fits_without
from spark_jms.store.regions.core.primaries import Primaries
from spark_jms.store.regions.core.protocol import Drain, Halt, Shutdown
from spark_jms.store.regions.core.shared import Shared

SERVICE = "service "  # begins the name of a client that is part of a daemon: it closes its regions when that one leaves
NO_ROOM = "the other daemons have no room for this daemon's regions any more"


class Leaving:
    def __init__(self, shared: Shared, primaries: Primaries, heartbeats: Heartbeats) -> None:
        self._shared = shared
        self._primaries = primaries
        self._heartbeats = heartbeats
        self._stuck_ms: float | None = None
        self._stopped = False

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

    def _refusal(self, indexes: set[int], listing: DirectoryListing) -> str:
        if self._shared.me.daemon in indexes and (unreadable := self._unreadable(listing.unreadable)):
            return f"region {unreadable} cannot move away: {listing.unreadable[unreadable]}"
        copies: dict[str, HeldCopies] = {}
        for name, entry in listing.entries.items():
            held = tuple(h.daemon for h in entry.holders() if not self._shared.peers.dead(h))
            if not indexes.intersection(held):
                continue
            if entry.opener is not None and not entry.opener.startswith(SERVICE):
                return f"region {name} is open, by {entry.opener}"
            copies[name] = HeldCopies(entry.size, held)
        candidates = self._candidates()
        if not copies or fits_without(indexes, copies, candidates):
            return ""
        staying = candidates.keys() - indexes
        if len(staying) < 2:
            left = f"{len(staying)} daemon" if staying else "no daemon"
            return f"{left} would be left, and {len(copies)} regions need two"
        return f"not enough memory on the other daemons to resilver {len(copies)} regions"

    def _unreadable(self, unreadable: Mapping[str, DirectoryUnavailableError]) -> str | None:
        """A region with a copy here that no daemon can move away, because its entry cannot be read."""
        return next((name for name in sorted(self._shared.copies) if name in unreadable), None)

    def _candidates(self) -> Mapping[int, Candidate]:
        peers, me = self._shared.peers, self._shared.me.daemon
        return {**peers.candidates(), me: Candidate(me, self._shared.copies.free_bytes, peers.draining)}

    # ---- this daemon

    def leave(self, force: bool) -> None:
        if force:
            self._stop("by force")
        elif (name := self._unreadable(self._shared.directory.unreadable)) is not None:
            self._shared.out.log(1, f"not shutting down: region {name} cannot move away, its entry cannot be read")
        elif not self._shared.peers.draining:
            self._drain(True)
            self._shared.out.log(2, "shutting down: regions move to other daemons")

    def tick(self) -> None:
        if self._shared.peers.draining:
            self._stay_if_stuck()

    def stop_if_empty(self) -> None:
        if self._shared.peers.draining and not self._shared.copies and not self._stopped:
            self._stop("all regions are on other daemons")

    def _stay_if_stuck(self) -> None:
        shared, peers = self._shared, self._shared.peers
        leaving = {index for index in range(peers.count) if peers.is_draining(index)}
        copies = {
            name: HeldCopies(entry.size, held)
            for name, entry in shared.directory.seen.items()
            if (held := tuple(h.daemon for h in entry.holders())) and leaving.intersection(held)
        }
        unreadable = self._unreadable(shared.directory.unreadable)
        if (
            shared.me.daemon != max(leaving)
            or self._primaries.resilvers
            or peers.any_resilvering()
            or (unreadable is None and fits_without(leaving, copies, self._candidates()))
        ):
            self._stuck_ms = None
        elif self._stuck_ms is None:
            self._stuck_ms = shared.clock.now_ms
        elif shared.clock.now_ms - self._stuck_ms > 2 * shared.settings.failure_timeout_ms:
            self._stuck_ms = None
            self._drain(False)
            reason = f"the entry of region {unreadable} cannot be read" if unreadable else NO_ROOM
            shared.out.log(1, f"shutdown cancelled: {reason}")

    def _drain(self, draining: bool) -> None:
        self._shared.peers.draining = draining
        self._heartbeats.soon()

    def _stop(self, reason: str) -> None:
        self._stopped = True
        self._shared.out.log(2, f"stopped, {reason}")
        self._shared.out.add(Stop())
