"""What must hold of a cluster at any time, with any clients. Violations name the region and the daemons."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from dataclasses import dataclass

from spark_jms.store.regions.protocol.messages import Failure, Open, RegionMessage, Reply
from spark_jms.store.regions.protocol.region_entry import Holder, RegionEntry
from tests.models.regions.cluster import SimCluster
from tests.models.regions.connections import ClientConnection
from tests.models.regions.daemons import SimDaemon
from tests.models.regions.errors import Promise, Violation
from tests.models.regions.observer import Observer

MAX_HISTORY = 1_000  # changes of a region
LOGGED_LOST = re.compile(r"region (\S+) is LOST")
SLACK_MS = 500.0  # a few ticks, frames, and moments in which a clock stands


@dataclass(frozen=True)
class PastEntry:
    """What the directory had from this moment on. `opens`: the epoch of the last OPENED."""

    since_ms: float
    entry: RegionEntry | None
    opens: int | None


@dataclass(frozen=True)
class AskedOpen:
    connection: ClientConnection
    name: str
    asked_ms: float


class Invariants(Observer):
    """`may_lose`: both copies of a region may die. `may_force`: daemons may be shut down by force. `lost` counts the
    regions that clients found lost."""

    def __init__(self, cluster: SimCluster, may_lose: bool, may_force: bool = False) -> None:
        self._cluster = cluster
        self.may_lose = may_lose
        self.may_force = may_force
        self.lost = 0
        self._history: defaultdict[str, deque[PastEntry]] = defaultdict(lambda: deque(maxlen=MAX_HISTORY))
        self._told_lost: set[tuple[int, int, str]] = set()  # by daemon, its life, and the id of the region
        self._said_lost: set[str] = set()  # ids of regions that a client had opened
        self._opens: dict[tuple[int, int], AskedOpen] = {}  # without an answer, by connection and request

    # ---- after every event

    def handled(self, daemon: SimDaemon) -> None:
        """R12: a daemon stays within its limit, and its count of bytes is correct."""
        core, memory = daemon.core, daemon.memory
        if core is None or memory is None:
            return
        used = core.copies.used_bytes
        if used > daemon.limit_bytes:
            raise Violation(
                Promise.LIMIT, f"daemon {daemon.index} holds {used} bytes, its limit is {daemon.limit_bytes}"
            )
        if used != memory.total:
            raise Violation(Promise.LIMIT, f"daemon {daemon.index} counts {used} bytes and holds {memory.total}")

    def stopping(self, daemon: SimDaemon) -> None:
        """R4: a safe shutdown leaves no copy behind."""
        if self.may_force:
            return
        for name, entry in self._cluster.directory.entries.items():
            # A late write may just have created a region that was never opened: its next opener creates it again.
            if daemon.running.me in entry.holders() and name in self._cluster.directory.opens:
                raise Violation(Promise.SAFE_LEAVING, f"daemon {daemon.index} left safely with a listed copy of {name}")

    # ---- when a client gets an answer

    def changed(self, by: Holder, name: str, old: RegionEntry | None, new: RegionEntry | None, opened: bool) -> None:
        opens = self._cluster.directory.opens.get(name)
        self._history[name].append(PastEntry(self._cluster.now_ms, new, opens))
        if new is not None and new.region_id in self._said_lost and self._lives(new):
            raise Violation(Promise.LOST, f"region {name} was said to be lost, and now a copy lives: {new}")

    def check_answer(
        self, daemon: SimDaemon, client: str, region: str, epoch: int | None, asked_ms: float, wrote: bool = False
    ) -> None:
        """Each is true at some moment between the request and the answer."""
        two = not wrote or self._cluster.settings.single_copy != "refuse"
        fenced = True
        for past in reversed(self._history[region]):
            entry = past.entry
            if entry is not None:
                two = two or entry.secondary is not None
                named = daemon.is_life(entry.primary) and past.opens == epoch and entry.opener == client
                fenced = fenced and not named
            if two and not fenced:
                return
            if past.since_ms <= asked_ms:
                break
        where = f"daemon {daemon.index} answered {client} for {region}"
        entry = self._cluster.directory.entries.get(region)
        if not fenced:
            raise Violation(Promise.REFUSES, f"{where}, a write, while the directory lists one copy")
        if entry is None:
            raise Violation(Promise.FENCED, f"{where}, which was removed")
        if not daemon.is_life(entry.primary):
            raise Violation(Promise.FENCED, f"{where}, which daemon {entry.primary.daemon} serves")
        opens = self._cluster.directory.opens.get(region)
        raise Violation(Promise.FENCED, f"{where}, which {entry.opener} opened at epoch {opens}")

    def check_lost(self, name: str) -> None:
        """R18: a daemon told a client that this region is lost."""
        self._check_lost(name, [self._cluster.directory.entries.get(name)])
        self.lost += 1

    def logged(self, daemon: int, text: str) -> None:
        """R18: so it does in its log."""
        found = LOGGED_LOST.match(text)
        if found is not None:
            entry = self._check_lost(found[1], self._seen(self._cluster.daemons[daemon], found[1]))
            if entry is not None:
                self._told_lost.add((daemon, self._cluster.daemons[daemon].lives, entry.region_id))

    def _seen(self, daemon: SimDaemon, name: str) -> list[RegionEntry | None]:
        """What the daemon may have read of a region that it speaks of now, newest first: while it stood still an answer of the
        directory waited for it, and the name may belong to another region since."""
        seen = [self._cluster.directory.entries.get(name)]
        if daemon.woke_ms == self._cluster.now_ms:
            for past in reversed(self._history[name]):
                seen.append(past.entry)
                if past.since_ms <= daemon.slept_ms:
                    break
        return seen

    def _check_lost(self, name: str, seen: list[RegionEntry | None]) -> RegionEntry | None:
        """The newest of these that is lost."""
        destroyed = any(past.entry is not None and past.entry.is_destroyed for past in self._history[name])
        if not self.may_lose and not destroyed:
            raise Violation(Promise.LOST, f"region {name} is lost, though one copy always lived")
        for entry in seen:
            if entry is None or not self._lives(entry):
                if entry is not None and entry.epoch > 1:
                    self._said_lost.add(entry.region_id)
                return entry
        raise Violation(Promise.LOST, f"region {name} is said to be lost, and a copy lives: {seen[0]}")

    def _lives(self, entry: RegionEntry) -> bool:
        return any(holder in self._cluster.directory.alive for holder in entry.holders())

    # ---- requests to open

    def asked(self, connection: ClientConnection, message: RegionMessage) -> None:
        if isinstance(message, Open):
            asked = AskedOpen(connection, message.name, self._cluster.now_ms)
            self._opens[connection.number, message.request] = asked

    def answered(self, connection: ClientConnection, message: RegionMessage) -> None:
        if isinstance(message, (Reply, Failure)):
            self._opens.pop((connection.number, message.request), None)

    def check_opens(self) -> None:
        """While the daemon stands still, time does not count."""
        now_ms, limit_ms = self._cluster.now_ms, 1.1 * self._cluster.settings.open_timeout_ms + SLACK_MS
        self._opens = {key: asked for key, asked in self._opens.items() if key[0] in self._cluster.connections}
        for asked in self._opens.values():
            daemon = asked.connection.daemon
            if not daemon.paused and now_ms - max(asked.asked_ms, daemon.woke_ms) > limit_ms:
                raise Violation(
                    Promise.ANSWERED,
                    f"daemon {daemon.index} has not answered {asked.connection.end.name}, which asked to open "
                    f"{asked.name} {now_ms - asked.asked_ms:.0f} ms ago",
                )

    # ---- now and then, and at the end

    def check_copies(self, final: bool = False) -> None:
        """Two listed copies hold the same bytes whenever nothing is on its way between them; at the end, always."""
        for name, entry in self._cluster.directory.entries.items():
            if entry.secondary is None:
                continue
            a, b = self._cluster.living(entry.primary), self._cluster.living(entry.secondary)
            if a is None or b is None or name not in a.copies or name not in b.copies:
                continue
            primary = a.primaries.get(name)
            if primary is None or any(f.unacked for f in primary.replication.followers if f.holder == entry.secondary):
                if final:
                    raise Violation(
                        Promise.EQUAL, f"region {name}: the copies on {a.index} and {b.index} do not come to rest"
                    )
                continue
            if a.copies[name].memory.obj != b.copies[name].memory.obj:
                raise Violation(Promise.EQUAL, f"region {name}: the copies on {a.index} and {b.index} differ")

    def check_end(self) -> None:
        """Once all faults are over: two copies of each region, and no other ones."""
        for entry in self._cluster.directory.entries.values():
            self._check_region(entry)
        for daemon in self._cluster.daemons:
            for name in daemon.running.copies:
                listed = self._cluster.directory.entries.get(name)
                if listed is None or daemon.running.me not in listed.holders():
                    raise Violation(
                        Promise.NO_OTHERS,
                        f"daemon {daemon.index} keeps a copy of {name} that the directory does not list",
                    )

    def _check_region(self, entry: RegionEntry) -> None:
        name = entry.name
        cores = [core for core in map(self._cluster.living, entry.holders()) if core is not None]
        if not cores:
            if not self.may_lose and not entry.is_destroyed:
                raise Violation(Promise.LISTED, f"region {name} has no living copy: {entry}")
            for daemon in self._cluster.daemons:
                if (daemon.index, daemon.lives, entry.region_id) not in self._told_lost:
                    raise Violation(Promise.LOST, f"daemon {daemon.index} has not logged that region {name} is lost")
            return
        for core in cores:
            if name not in core.copies:
                raise Violation(Promise.LISTED, f"region {name}: daemon {core.index} is listed and has no copy")
        others = (daemon.core for daemon in self._cluster.daemons)
        room = any(core and core not in cores and core.copies.free_bytes >= entry.size for core in others)
        if len(cores) < 2 and room:
            raise Violation(Promise.TWO_COPIES, f"region {name} has one copy, with all daemons well again: {entry}")
