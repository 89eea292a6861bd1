"""What must hold of a cluster at any time, with any clients. Violations name the region and the daemons."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass

from spark_jms.store.regions.core.directory import Holder, RegionEntry
from tests.simulator.cluster import SimCluster
from tests.simulator.daemons import SimDaemon
from tests.simulator.errors import Violation
from tests.simulator.observer import Observer

MAX_HISTORY = 1_000  # changes of a region


@dataclass(frozen=True)
class PastEntry:
    """What the directory had from this moment on. `opens`: the epoch of the last OPENED."""

    since_ms: float
    entry: RegionEntry | None
    opens: int | None


class Invariants(Observer):
    """`may_lose`: both copies of a region may die. `may_force`: daemons may be shut down by force. `lost` counts the
    regions that clients found lost."""

    def __init__(self, cluster: SimCluster, may_lose: bool, may_force: bool = False) -> None:
        self._cluster = cluster
        self.may_lose = may_lose
        self.may_force = may_force
        self.lost = 0
        self._history: defaultdict[str, deque[PastEntry]] = defaultdict(lambda: deque(maxlen=MAX_HISTORY))

    # ---- after every event

    def handled(self, daemon: SimDaemon) -> None:
        """R12: a daemon stays within its limit, and its count of bytes is correct."""
        if daemon.core is None or daemon.memory is None:
            return
        used = daemon.core.copies.used_bytes
        if used > daemon.limit_bytes:
            raise Violation(f"daemon {daemon.index} holds {used} bytes, its limit is {daemon.limit_bytes}")
        if used != daemon.memory.total:
            raise Violation(f"daemon {daemon.index} counts {used} bytes and holds {daemon.memory.total}")

    def stopping(self, daemon: SimDaemon) -> None:
        """R4: a safe shutdown leaves no copy behind."""
        if self.may_force:
            return
        for name, entry in self._cluster.directory.entries.items():
            # A late write may just have created a region that was never opened: its next opener creates it again.
            if daemon.running.me in entry.holders() and name in self._cluster.directory.opens:
                raise Violation(f"daemon {daemon.index} left safely with a listed copy of {name}")

    # ---- when a client gets an answer

    def changed(self, by: Holder, name: str, old: RegionEntry | None, new: RegionEntry | None, opened: bool) -> None:
        opens = self._cluster.directory.opens.get(name)
        self._history[name].append(PastEntry(self._cluster.now_ms, new, opens))

    def check_answer(self, daemon: SimDaemon, client: str, region: str, epoch: int | None, asked_ms: float) -> None:
        """R8, R10: only the daemon that the directory names answers, and only the client that opened the region last, at
        some moment between the request and the answer."""
        where = f"daemon {daemon.index} answered {client} for {region}"
        for past in reversed(self._history[region]):
            entry = past.entry
            named = entry is not None and daemon.is_life(entry.primary)
            if entry is not None and named and past.opens == epoch and entry.opener == client:
                return
            if past.since_ms <= asked_ms:
                break
        entry = self._cluster.directory.entries.get(region)
        if entry is None:
            raise Violation(f"{where}, which was removed")
        if not daemon.is_life(entry.primary):
            raise Violation(f"{where}, which daemon {entry.primary.daemon} serves")
        opens = self._cluster.directory.opens.get(region)
        raise Violation(f"{where}, which {entry.opener} opened at epoch {opens}")

    def check_lost(self, name: str) -> None:
        """R18: a daemon told a client that this region is lost."""
        if not self.may_lose:
            raise Violation(f"region {name} is lost, though one copy always lived")
        entry = self._cluster.directory.entries.get(name)
        if entry is not None and any(holder in self._cluster.directory.alive for holder in entry.holders()):
            raise Violation(f"region {name} is said to be lost, and a copy lives: {entry}")
        self.lost += 1

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
                    raise Violation(f"region {name}: the copies on {a.index} and {b.index} do not come to rest")
                continue
            if a.copies[name].memory.obj != b.copies[name].memory.obj:
                raise Violation(f"region {name}: the copies on {a.index} and {b.index} differ")

    def check_end(self) -> None:
        """Once all faults are over: two copies of each region, and no other ones."""
        for entry in self._cluster.directory.entries.values():
            self._check_region(entry)
        for daemon in self._cluster.daemons:
            for name in daemon.running.copies:
                listed = self._cluster.directory.entries.get(name)
                if listed is None or daemon.running.me not in listed.holders():
                    raise Violation(f"daemon {daemon.index} keeps a copy of {name} that the directory does not list")

    def _check_region(self, entry: RegionEntry) -> None:
        name = entry.name
        cores = [core for core in map(self._cluster.living, entry.holders()) if core is not None]
        if not cores:
            if not self.may_lose:
                raise Violation(f"region {name} has no living copy: {entry}")
            return
        for core in cores:
            if name not in core.copies:
                raise Violation(f"region {name}: daemon {core.index} is listed and has no copy")
        others = (daemon.core for daemon in self._cluster.daemons)
        room = any(core and core not in cores and core.copies.free_bytes >= entry.size for core in others)
        if len(cores) < 2 and room:
            raise Violation(f"region {name} has one copy, with all daemons well again: {entry}")
