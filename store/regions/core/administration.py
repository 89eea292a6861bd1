"""What administrators ask, and what lets any daemon answer: heartbeats and the counts of stores. Pure.

RegionAdministration lists regions and daemons, and removes a region. The heartbeats that this daemon sends have what the others
need for placement, and for `lsd`. The counts of a store are those that its instance reports: every daemon knows those of all
open stores.

Features: R6, R10, R14 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec.structs import replace

from spark_jms.store.errors import DirectoryUnavailableError, RegionEntryDamagedError
from spark_jms.store.regions.core.copies import Shared
from spark_jms.store.regions.core.directory_view import UNREADABLE, Outcome, Seen
from spark_jms.store.regions.core.primaries import Primaries
from spark_jms.store.regions.core.replicas import Reconciliation
from spark_jms.store.regions.protocol import region_entry as rules
from spark_jms.store.regions.protocol.messages import (
    Counted,
    DaemonHeartbeat,
    DaemonRow,
    Notice,
    RegionRow,
    Regions,
    Remove,
    RemoveRequest,
    StoreRow,
    Unserved,
    Usage,
)
from spark_jms.store.regions.protocol.region_entry import DirectoryListing, RegionEntry

ASK_AGAIN_MS = 500.0


@dataclass(eq=False)
class PendingRemoval:
    client: int
    message: Remove
    until_ms: float
    region_id: str = ""  # once it is known
    was_destroyed: bool = False  # when it was first seen: then its entry goes
    asked_ms: float = -1e9
    unserved: set[int] = field(default_factory=set)  # the daemons that do not serve it, if its entry is damaged
    discarding: bool = False  # the damaged entry; a look in the meantime may find none


class RegionAdministration:
    """Lists, and the removal of a region."""

    def __init__(
        self, shared: Shared, primaries: Primaries, heartbeats: Heartbeats, reconciliation: Reconciliation
    ) -> None:
        self._shared = shared
        self._primaries = primaries
        self._heartbeats = heartbeats
        self._reconciliation = reconciliation
        self._used: dict[str, int] = {}  # bytes taken of each region, as its store last reported
        self._removals: list[PendingRemoval] = []

    # ---- lists

    def regions(self, client: int, message: Regions) -> None:
        self._shared.directory.entries(partial(self._listed, client, message))

    def _listed(self, client: int, message: Regions, listing: DirectoryListing | DirectoryUnavailableError) -> None:
        if isinstance(listing, DirectoryUnavailableError):
            self._shared.out.fail(client, message.request, "DirectoryUnavailableError", *listing.args)
            return
        dead = self._shared.peers.dead
        holders = {holder for entry in listing.entries.values() for holder in entry.holders() if dead(holder)}
        self._shared.directory.look_which_run(holders, partial(self._show, client, message, listing))

    def _show(self, client: int, message: Regions, listing: DirectoryListing) -> None:
        rows = [self._row(entry) for entry in listing.entries.values()]
        rows += [_unreadable_row(name, str(error)) for name, error in listing.unreadable.items()]
        chosen = [row for row in rows if row.name.startswith(message.prefix)]
        self._shared.out.reply(client, message.request, sorted(chosen, key=lambda row: row.name))

    def _row(self, entry: RegionEntry) -> RegionRow:
        return RegionRow(
            entry.name,
            entry.size,
            self._status(entry),
            entry.epoch,
            entry.primary.daemon,
            entry.secondary.daemon if entry.secondary else None,
            entry.opener or "",
            entry.created_us,
            self._used.get(entry.name, 0),
        )

    def _status(self, entry: RegionEntry) -> str:
        peers = self._shared.peers
        alive = [holder for holder in entry.holders() if not peers.dead(holder)]
        if not alive:
            return "UNAVAILABLE" if any(peers.may_run(h) for h in entry.holders()) else "LOST"
        primary = self._primaries.get(entry.name)
        if primary is not None and primary.replication.resilvering:
            return "RESILVERING"
        if len(alive) == 1:
            return "SINGLE"
        return "OPEN" if entry.opener is not None else "CLOSED"

    def daemons(self, client: int, request: int) -> None:
        beats = {index: peer.beat for index, peer in self._shared.peers.by_index.items() if peer.up}
        beats[self._shared.me.daemon] = self._heartbeats.mine()
        rows = [_daemon_row(beats.get(index)) for index in range(self._shared.peers.count)]
        self._shared.out.reply(client, request, rows)

    # ---- how full regions are

    def used(self, client: int, used: list[tuple[str, int]]) -> None:
        """As the store that has these regions open reports. All daemons know it, so it outlives this one."""
        for name, used_bytes in used:
            primary = self._primaries.get(name)
            if primary is None or primary.use.client != client or not 0 <= used_bytes <= primary.entry.size:
                continue
            self._used[name] = used_bytes
            for index in self._shared.peers.by_index:
                self._shared.out.to_peer(index, Usage(name, used_bytes))

    def used_elsewhere(self, name: str, used_bytes: int) -> None:
        self._used[name] = used_bytes

    def linked(self, index: int) -> None:
        """A new connection to this daemon."""
        for name in sorted(self._primaries.keys() & self._used.keys()):
            self._shared.out.to_peer(index, Usage(name, self._used[name]))

    def audit(self, listing: DirectoryListing) -> None:
        self._used = {name: used for name, used in self._used.items() if name not in listing.removed}

    # ---- removal: by the primary; here if the primary has certainly ended, or its entry is damaged and no daemon serves it

    def tick(self) -> None:
        """A removal is done when the directory no longer has the region."""
        for removal in self._removals:
            self._continue(removal)

    def remove(self, client: int, message: Remove) -> None:
        until_ms = self._shared.clock.now_ms + 2 * self._shared.settings.failure_timeout_ms
        removal = PendingRemoval(client, message, until_ms)
        self._removals.append(removal)
        self._continue(removal)

    def _continue(self, removal: PendingRemoval) -> None:
        self._shared.directory.look(removal.message.name, removal, partial(self._looked, removal))

    def _looked(self, removal: PendingRemoval, seen: Seen) -> None:
        message, now_ms = removal.message, self._shared.clock.now_ms
        if removal not in self._removals or removal.discarding:
            return
        if seen.known:
            self._act(removal, seen.entry)
        elif isinstance(seen.error, RegionEntryDamagedError) and message.force:
            self._discard(removal)
        elif not removal.region_id or isinstance(seen.error, UNREADABLE):
            self._fail(removal, type(seen.error).__name__, *(seen.error.args if seen.error else ()))
        if removal in self._removals and now_ms >= removal.until_ms:
            self._fail(removal, "RegionUnavailableError", f"region {message.name}: not removed")

    def _act(self, removal: PendingRemoval, entry: RegionEntry | None) -> None:
        """A primary that only seems dead may still serve: its secondary takes over first."""
        message, out, peers, now_ms = removal.message, self._shared.out, self._shared.peers, self._shared.clock.now_ms
        if entry is None and not removal.region_id:
            self._fail(removal, "RegionUnavailableError", f"there is no region {message.name}")
            return
        if not removal.region_id and entry is not None:
            removal.region_id, removal.was_destroyed = entry.region_id, entry.is_destroyed
        if entry is None or entry.region_id != removal.region_id or entry.is_destroyed > removal.was_destroyed:
            self._done(removal)
            return
        lost = not any(peers.may_run(holder) for holder in entry.holders())
        if entry.opener is not None and not message.force and not lost:
            self._fail(removal, "RegionOpenError", f"region {message.name}, by {entry.opener}")
        elif entry.primary == self._shared.me or not peers.may_run(entry.primary):
            self._delete(entry, partial(self._continue, removal))
        elif now_ms - removal.asked_ms >= ASK_AGAIN_MS:
            removal.asked_ms = now_ms
            out.to_peer(entry.primary.daemon, RemoveRequest(message.name, message.force, message.request))

    def _done(self, removal: PendingRemoval) -> None:
        self._removals.remove(removal)
        self._shared.out.reply(removal.client, removal.message.request)

    def _fail(self, removal: PendingRemoval, error: str, *arguments: Any) -> None:
        self._removals.remove(removal)
        self._shared.out.fail(removal.client, removal.message.request, error, *arguments)

    def _discard(self, removal: PendingRemoval) -> None:
        """A damaged entry does not name the primary, so no daemon may answer for the region before it is removed."""
        name, peers, now_ms = removal.message.name, self._shared.peers, self._shared.clock.now_ms
        self._stop_serving(name)
        waits_for = [index for index in peers.by_index if index not in removal.unserved and not peers.ended(index)]
        if not waits_for:
            removal.discarding = True
            self._shared.directory.discard(name, partial(self._discarded, removal))
        elif now_ms >= removal.until_ms:
            detail = f"not removed: daemon {waits_for[0]} runs and may serve it, and does not answer"
            self._fail(removal, "RegionUnavailableError", f"region {name}: {detail}")
        elif now_ms - removal.asked_ms >= ASK_AGAIN_MS:
            removal.asked_ms = now_ms
            for index in waits_for:
                self._shared.out.to_peer(index, RemoveRequest(name, True, removal.message.request))

    def _stop_serving(self, name: str) -> None:
        """Its entry is damaged. The primary holds all requests until it has read another one, or the removal."""
        primary = self._primaries.get(name)
        if primary is not None:
            primary.doubt()

    def unserved(self, sender: int, name: str) -> None:
        for removal in self._removals:
            if removal.message.name == name:
                removal.unserved.add(sender)
                self._continue(removal)

    def _discarded(self, removal: PendingRemoval, answer: bool | DirectoryUnavailableError) -> None:
        """A damaged entry does not name the daemons with a copy: all of them look."""
        name = removal.message.name
        if removal not in self._removals:
            return
        if answer is not True:
            self._fail(removal, "DirectoryUnavailableError", f"region {name}: its entry changed in this moment")
            return
        self._shared.out.log(2, f"region {name}: removed by force, its entry was damaged")
        self._reconciliation.region(name)
        for index in self._shared.peers.by_index:
            self._shared.out.to_peer(index, Notice(name))
        self._done(removal)

    def remove_here(self, sender: int, message: RemoveRequest) -> None:
        def looked(seen: Seen) -> None:
            entry = seen.entry
            if entry is not None and entry.primary == self._shared.me and (message.force or entry.opener is None):
                self._delete(entry, lambda: None)
            elif isinstance(seen.error, RegionEntryDamagedError) and message.force:
                self._stop_serving(message.name)
                self._shared.out.to_peer(sender, Unserved(message.name))

        self._shared.directory.look(message.name, self, looked)

    def _delete(self, entry: RegionEntry, then: Callable[[], None]) -> None:
        primary = self._primaries.get(entry.name)
        if primary is not None:
            primary.remove(partial(self._deleted, entry, then))
            return

        def changed(outcome: Outcome) -> None:
            if outcome is Outcome.DONE:
                self._deleted(entry, then)

        lost = not any(map(self._shared.peers.may_run, entry.holders()))
        new = None if lost or entry.opener is None else rules.destroyed(entry)
        self._shared.directory.change(entry.name, entry, new, changed)

    def _deleted(self, entry: RegionEntry, then: Callable[[], None]) -> None:
        self._shared.out.log(2, f"region {entry.name}: removed")
        for holder in entry.holders():
            if holder.daemon == self._shared.me.daemon:
                self._reconciliation.region(entry.name)
            else:
                self._shared.out.to_peer(holder.daemon, Notice(entry.name))
        then()


class Heartbeats:
    """Those that this daemon sends."""

    def __init__(self, shared: Shared, primaries: Primaries) -> None:
        self._shared = shared
        self._primaries = primaries
        self._started_us = shared.clock.now_us
        self._sent_ms = -1e9

    def tick(self) -> None:
        if self._shared.clock.now_ms - self._sent_ms >= self._shared.settings.heartbeat_ms:
            self._sent_ms = self._shared.clock.now_ms
            mine = self.mine()
            for index in self._shared.peers.by_index:
                self._send(index, mine)

    def send(self, index: int) -> None:
        self._send(index, self.mine())

    def _send(self, index: int, mine: DaemonHeartbeat) -> None:
        """While this daemon is in doubt about a region of daemon `index`, that daemon's clock is not echoed."""
        shared = self._shared
        if index in shared.out.daemons:
            echo_ms = -1.0 if shared.directory.doubts(index) else shared.peers.by_index[index].their_ms
            shared.out.to_peer(index, replace(mine, echo_ms=echo_ms))

    def soon(self) -> None:
        """The next tick sends one."""
        self._sent_ms = -1e9

    def mine(self) -> DaemonHeartbeat:
        """The heartbeat, before a clock is echoed in it."""
        shared = self._shared
        entries = (shared.directory.seen.get(name) for name in shared.copies.followed)
        opened, replicas_open = self._primaries.opened, sum(e is not None and e.opener is not None for e in entries)
        return DaemonHeartbeat(
            used_bytes=shared.copies.used_bytes,
            limit_bytes=shared.copies.limit_bytes,
            draining=shared.peers.draining,
            started_us=self._started_us,
            now_us=shared.clock.now_us,
            regions_closed=len(shared.copies) - opened - replicas_open,
            regions_open_primary=opened,
            regions_open_replica=replicas_open,
            resilvers=self._primaries.resilvers,
            clock_ms=shared.clock.now_ms,
            echo_ms=-1.0,
            waits_for=shared.peers.waits_for,
        )


class StoreCounts:
    """The counts of stores, as their instances report them."""

    def __init__(self, shared: Shared, primaries: Primaries) -> None:
        self._shared = shared
        self._primaries = primaries
        self._rows: dict[str, StoreRow] = {}  # by store

    def reported(self, client: int, row: StoreRow) -> None:
        """By the client that has the store open here."""
        if any(
            primary.use.client == client for name, primary in self._primaries.items() if _store_of(name) == row.name
        ):
            self._rows[row.name] = row
            for index in self._shared.peers.by_index:
                self._shared.out.to_peer(index, Counted(row))

    def reported_elsewhere(self, row: StoreRow) -> None:
        self._rows[row.name] = row

    def linked(self, index: int) -> None:
        """A new connection to this daemon: those of the stores that are open here."""
        here = {_store_of(name) for name, primary in self._primaries.items() if primary.use.client is not None}
        for store in sorted(here & self._rows.keys()):
            self._shared.out.to_peer(index, Counted(self._rows[store]))

    def audit(self, listing: DirectoryListing) -> None:
        """Forgets the stores whose regions were removed."""
        removed = {_store_of(name) for name in listing.removed} - {_store_of(name) for name in listing.entries}
        self._rows = {store: row for store, row in self._rows.items() if store not in removed}

    def show(self, client: int, request: int) -> None:
        """Those of the stores that are open, by name."""
        seen = self._shared.directory.seen
        opened = {_store_of(name) for name, entry in seen.items() if entry.opener is not None}
        rows = [row for store, row in sorted(self._rows.items()) if store in opened]
        self._shared.out.reply(client, request, rows)


def _unreadable_row(name: str, reason: str) -> RegionRow:
    return RegionRow(name, 0, "UNAVAILABLE", 0, -1, None, reason, 0, 0)


def _daemon_row(beat: DaemonHeartbeat | None) -> DaemonRow | None:
    if beat is None:
        return None
    return DaemonRow(
        beat.used_bytes,
        beat.limit_bytes,
        beat.draining,
        beat.started_us,
        beat.now_us,
        beat.regions_closed,
        beat.regions_open_primary,
        beat.regions_open_replica,
        beat.resilvers,
        beat.waits_for,
    )


def _store_of(region: str) -> str:
    return region.rpartition(".")[0]
