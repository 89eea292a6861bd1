"""Leaving safely (R4), and what administrators ask. Pure.

step 1   an open region among those of the leaving daemons       refused, nothing changed
step 2   no room elsewhere for the copies they hold              refused, nothing changed
step 3   opens wait; every copy moves away (primary._want)       as long as it takes
step 4   a daemon that holds no copy stops

Two commands may have been allowed by two daemons that did not know of each other, or a daemon that was counted on may
have died. While nothing moves and the rest has no room, the last of those who leave stays after all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_jms.store.regions.core.directory import RegionEntry
from spark_jms.store.regions.core.placement import fits_without
from spark_jms.store.regions.core.protocol import (
    DaemonHeartbeat,
    DaemonRow,
    Drain,
    Halt,
    RegionRow,
    Regions,
    Remove,
    RemoveRequest,
    Shutdown,
    Usage,
)

if TYPE_CHECKING:
    from spark_jms.store.regions.core.daemon import DaemonCore


ASK_AGAIN_MS = 500.0


@dataclass
class Removal:
    client: int
    message: Remove
    region_id: str
    until_ms: float
    asked_ms: float = -1e9


SERVICE = "service "  # begins the name of a client that is part of a daemon: it closes by itself when that one leaves


class Administration:
    def __init__(self, daemon: DaemonCore) -> None:
        self._daemon = daemon
        self.used: dict[str, int] = {}  # bytes taken of each region, as its store last told (R6)
        self._removals: list[Removal] = []
        self._stuck_ms: float | None = None

    # ---- lists

    def regions(self, client: int, message: Regions) -> None:
        daemon = self._daemon
        found = [
            self._row(entry)
            for name, entry in sorted(daemon.directory.entries().items())
            if name.startswith(message.prefix)
        ]
        daemon.reply(client, message.request, found)

    def _row(self, entry: RegionEntry) -> RegionRow:
        return RegionRow(
            entry.name,
            entry.size,
            self.status(entry),
            entry.epoch,
            entry.primary.daemon,
            entry.secondary.daemon if entry.secondary else None,
            entry.opener or "",
            entry.created_us,
            self.used.get(entry.name, 0),
        )

    def told(self, client: int, used: list[tuple[str, int]]) -> None:
        """By the store that has these regions open. All daemons know it, so it outlives this one."""
        daemon = self._daemon
        for name, used_bytes in used:
            primary = daemon.primaries.get(name)
            if primary is None or primary.client != client or not 0 <= used_bytes <= primary.copy.size:
                continue
            self.used[name] = used_bytes
            for index in daemon.peers:
                daemon.to_peer(index, Usage(name, used_bytes))

    def tell(self, index: int) -> None:
        """A daemon that is new here."""
        for name in sorted(self._daemon.primaries.keys() & self.used.keys()):
            self._daemon.to_peer(index, Usage(name, self.used[name]))

    def keep_used(self, entries: Mapping[str, RegionEntry]) -> None:
        self.used = {name: used for name, used in self.used.items() if name in entries}

    def status(self, entry: RegionEntry) -> str:
        daemon = self._daemon
        alive = [holder for holder in entry.holders() if not daemon.dead(holder)]
        if not alive:
            return "UNAVAILABLE" if any(daemon.maybe_running(h) for h in entry.holders()) else "LOST"
        primary = daemon.primaries.get(entry.name)
        if primary is not None and primary.resilvering:
            return "RESILVERING"
        if len(alive) == 1:
            return "SINGLE"
        return "OPEN" if entry.opener is not None else "CLOSED"

    def daemons(self, client: int, request: int) -> None:
        daemon = self._daemon
        rows: list[DaemonRow | None] = []
        for index in range(daemon.count):
            peer = daemon.peers.get(index)
            beat: DaemonHeartbeat | None = (
                daemon.heartbeat(-1) if index == daemon.index else peer.beat if peer else None
            )
            alive = index == daemon.index or (peer is not None and peer.up)
            rows.append(_daemon_row(beat) if beat is not None and alive else None)
        daemon.reply(client, request, rows)

    # ---- removal: by the primary, or here if the primary's life is over

    def remove(self, client: int, message: Remove) -> None:
        daemon = self._daemon
        entry = daemon.directory.read(message.name)
        if entry is None:
            daemon.fail(client, message.request, "RegionUnavailableError", [f"there is no region {message.name}"])
            return
        removal = Removal(client, message, entry.region_id, daemon.now_ms + 2 * daemon.settings.failure_timeout_ms)
        if not self._removed(removal):
            self._removals.append(removal)

    def _removed(self, removal: Removal) -> bool:
        """True when it was answered. A primary that only seems dead may serve on: its secondary has to take over first."""
        daemon, message = self._daemon, removal.message
        known, entry = daemon.look(message.name)
        if known and (entry is None or entry.region_id != removal.region_id):
            daemon.reply(removal.client, message.request)
            return True
        if entry is not None:
            lost = not any(daemon.maybe_running(holder) for holder in entry.holders())
            if entry.opener is not None and not message.force and not lost:
                detail = f"region {message.name}, by {entry.opener}"
                daemon.fail(removal.client, message.request, "RegionOpenError", [detail])
                return True
            if entry.primary == daemon.me or not daemon.maybe_running(entry.primary):
                self._delete(entry)
            elif daemon.now_ms - removal.asked_ms >= ASK_AGAIN_MS:
                removal.asked_ms = daemon.now_ms
                daemon.to_peer(entry.primary.daemon, RemoveRequest(message.name, message.force, message.request))
        if daemon.now_ms < removal.until_ms:
            return False
        daemon.fail(removal.client, message.request, "RegionUnavailableError", [f"region {message.name}: not removed"])
        return True

    def remove_here(self, message: RemoveRequest) -> None:
        entry = self._daemon.directory.read(message.name)
        if entry is not None and entry.primary == self._daemon.me and (message.force or entry.opener is None):
            self._delete(entry)

    def _delete(self, entry: RegionEntry) -> None:
        daemon = self._daemon
        primary = daemon.primaries.get(entry.name)
        done = daemon.swap(entry.name, entry, None)
        if primary is not None and primary.listed:
            if done:
                primary.fence("the region was removed")
            elif done is None:
                primary.doubt = True
        if done:
            daemon.log(2, f"region {entry.name}: removed")
            for holder in entry.holders():
                daemon.notify(holder.daemon, entry.name)

    def tick(self) -> None:
        """A removal is done when the directory says so."""
        for removal in list(self._removals):
            if self._removed(removal):
                self._removals.remove(removal)
        if self._daemon.draining:
            self._stay_if_stuck()

    def _stay_if_stuck(self) -> None:
        daemon = self._daemon
        leaving = {index for index in range(daemon.count) if daemon.is_draining(index)}
        copies = {
            name: (entry.size, held)
            for name, entry in daemon.entries_seen.items()
            if (held := tuple(h.daemon for h in entry.holders())) and leaving.intersection(held)
        }
        if (
            daemon.index != max(leaving)
            or daemon.resilvers_anywhere()
            or fits_without(leaving, copies, daemon.candidates(with_me=True))
        ):
            self._stuck_ms = None
        elif self._stuck_ms is None:
            self._stuck_ms = daemon.now_ms
        elif daemon.now_ms - self._stuck_ms > 2 * daemon.settings.failure_timeout_ms:
            self._stuck_ms = None
            daemon.stay("the other daemons have no room for its regions any more")

    # ---- shutdown

    def shutdown(self, client: int, message: Shutdown) -> None:
        daemon = self._daemon
        indexes = set(message.indexes)
        if not message.force:
            reason = self._refusal(indexes)
            if reason:
                daemon.fail(client, message.request, "ShutdownRefusedError", [reason])
                return
        daemon.reply(client, message.request)
        for index in sorted(indexes - {daemon.index}):
            daemon.to_peer(index, Halt() if message.force else Drain())
        if daemon.index in indexes:
            daemon.leave(message.force)

    def _refusal(self, indexes: set[int]) -> str:
        daemon = self._daemon
        copies: dict[str, tuple[int, tuple[int, ...]]] = {}
        for name, entry in daemon.directory.entries().items():
            held = tuple(h.daemon for h in entry.holders() if not daemon.dead(h))
            if not indexes.intersection(held):
                continue
            if entry.opener is not None and not entry.opener.startswith(SERVICE):
                return f"region {name} is open, by {entry.opener}"
            copies[name] = (entry.size, held)
        if copies and not fits_without(indexes, copies, daemon.candidates(with_me=True)):
            staying = daemon.candidates(with_me=True).keys() - indexes
            if len(staying) < 2:
                left = f"{len(staying)} daemon" if staying else "no daemon"
                return f"{left} would be left, and {len(copies)} regions need two"
            return f"not enough memory on the other daemons to resilver {len(copies)} regions"
        return ""


def _daemon_row(beat: DaemonHeartbeat) -> DaemonRow:
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
