"""What administrators ask: lists of regions and daemons, and the removal of a region (R6). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from spark_jms.store.errors import RegionEntryDamagedError
from spark_jms.store.regions.core.directory import RegionEntry
from spark_jms.store.regions.core.heartbeats import Heartbeats
from spark_jms.store.regions.core.primaries import Primaries
from spark_jms.store.regions.core.protocol import (
    DaemonHeartbeat,
    DaemonRow,
    Notice,
    RegionRow,
    Regions,
    Remove,
    RemoveRequest,
    Usage,
)
from spark_jms.store.regions.core.reconciliation import Reconciliation
from spark_jms.store.regions.core.shared import Shared

ASK_AGAIN_MS = 500.0


@dataclass
class PendingRemoval:
    client: int
    message: Remove
    region_id: str
    until_ms: float
    asked_ms: float = -1e9


class RegionAdministration:
    def __init__(
        self, shared: Shared, primaries: Primaries, heartbeats: Heartbeats, reconciliation: Reconciliation
    ) -> None:
        self._shared = shared
        self._primaries = primaries
        self._heartbeats = heartbeats
        self._reconciliation = reconciliation
        self._used: dict[str, int] = {}  # bytes taken of each region, as its store last reported (R6)
        self._removals: list[PendingRemoval] = []

    # ---- lists

    def regions(self, client: int, message: Regions) -> None:
        listing = self._shared.directory.entries()
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
        beats[self._shared.me.daemon] = self._heartbeats.to(-1)
        rows = [_daemon_row(beats.get(index)) for index in range(self._shared.peers.count)]
        self._shared.out.reply(client, request, rows)

    # ---- how full regions are

    def used(self, client: int, used: list[tuple[str, int]]) -> None:
        """As the store that has these regions open reports. All daemons know it, so it outlives this one."""
        for name, used_bytes in used:
            primary = self._primaries.get(name)
            if primary is None or primary.client != client or not 0 <= used_bytes <= primary.entry.size:
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

    def forget_removed(self) -> None:
        seen = self._shared.directory.seen.keys() | self._shared.directory.unreadable.keys()
        self._used = {name: used for name, used in self._used.items() if name in seen}

    # ---- removal: by the primary, or here if the primary has certainly ended

    def tick(self) -> None:
        """A removal is done when the directory no longer has the region."""
        for removal in list(self._removals):
            if self._removed(removal):
                self._removals.remove(removal)

    def remove(self, client: int, message: Remove) -> None:
        try:
            entry = self._shared.directory.read(message.name)
        except RegionEntryDamagedError:
            if not message.force:
                raise
            self._discard(client, message)
            return
        if entry is None:
            detail = f"there is no region {message.name}"
            self._shared.out.fail(client, message.request, "RegionUnavailableError", detail)
            return
        until_ms = self._shared.clock.now_ms + 2 * self._shared.settings.failure_timeout_ms
        removal = PendingRemoval(client, message, entry.region_id, until_ms)
        if not self._removed(removal):
            self._removals.append(removal)

    def _discard(self, client: int, message: Remove) -> None:
        """A damaged entry does not name the daemons with a copy: all of them look."""
        if not self._shared.directory.discard(message.name):
            detail = f"region {message.name}: its entry changed in this moment"
            self._shared.out.fail(client, message.request, "DirectoryUnavailableError", detail)
            return
        self._shared.out.log(2, f"region {message.name}: removed by force, its entry was damaged")
        self._reconciliation.region(message.name)
        for index in self._shared.peers.by_index:
            self._shared.out.to_peer(index, Notice(message.name))
        self._shared.out.reply(client, message.request)

    def _removed(self, removal: PendingRemoval) -> bool:
        """True when it was answered. A primary that only seems dead may still serve: its secondary takes over first."""
        message, out, peers, now_ms = removal.message, self._shared.out, self._shared.peers, self._shared.clock.now_ms
        known, entry = self._shared.directory.look(message.name)
        if known and (entry is None or entry.region_id != removal.region_id):
            out.reply(removal.client, message.request)
            return True
        if entry is not None:
            lost = not any(peers.may_run(holder) for holder in entry.holders())
            if entry.opener is not None and not message.force and not lost:
                detail = f"region {message.name}, by {entry.opener}"
                out.fail(removal.client, message.request, "RegionOpenError", detail)
                return True
            if entry.primary == self._shared.me or not peers.may_run(entry.primary):
                self._delete(entry)
            elif now_ms - removal.asked_ms >= ASK_AGAIN_MS:
                removal.asked_ms = now_ms
                out.to_peer(entry.primary.daemon, RemoveRequest(message.name, message.force, message.request))
        if now_ms < removal.until_ms:
            return False
        out.fail(removal.client, message.request, "RegionUnavailableError", f"region {message.name}: not removed")
        return True

    def remove_here(self, message: RemoveRequest) -> None:
        entry = self._shared.directory.read(message.name)
        if entry is not None and entry.primary == self._shared.me and (message.force or entry.opener is None):
            self._delete(entry)

    def _delete(self, entry: RegionEntry) -> None:
        primary = self._primaries.get(entry.name)
        done = self._shared.directory.swap(entry.name, entry, None)
        if primary is not None:
            if done:
                primary.fence("the region was removed")
            elif done is None:
                primary.doubt()
        if done:
            self._shared.out.log(2, f"region {entry.name}: removed")
            for holder in entry.holders():
                if holder.daemon == self._shared.me.daemon:
                    self._reconciliation.region(entry.name)
                else:
                    self._shared.out.to_peer(holder.daemon, Notice(entry.name))


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
    )
