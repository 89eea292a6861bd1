"""What goes wrong in the simulated world, one thing after another."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from enum import Enum

from spark_jms.store.regions.core.daemon import DaemonCore
from spark_jms.store.regions.core.directory import Holder
from spark_jms.store.regions.core.protocol import Open, RegionMessage, Remove, Shutdown
from tests.simulator.cluster import Cluster
from tests.simulator.daemons import SimDaemon
from tests.simulator.errors import DiedInCall

MAX_STALLED = 2
ADMINISTRATOR_STAYS_MS = 5_000.0


class Fault(Enum):
    CRASH = "crash"
    PAUSE = "pause"
    PARTITION = "partition"
    CLOG = "clog"  # frames between two daemons take seconds
    CUT = "cut"  # connections break
    NOISE = "noise"  # frames are dropped, doubled, reordered, flipped
    DIRECTORY = "directory"  # calls to the directory fail
    CLOCK = "clock"  # wall clocks jump
    DRAIN = "drain"  # safe shutdowns
    MEMORY = "memory"  # tight limits
    CLIENT = "client"  # clients die
    RIVAL = "rival"  # another store takes memory, and gives it back
    REMOVE = "remove"  # an administrator removes regions by force
    MASSACRE = "massacre"  # all daemons but one die at nearly the same time
    STALL = "stall"  # a daemon stands still in the middle of a call to the directory
    TORN = "torn"  # the file of one region cannot be read
    LATE = "late"  # a directory change is not answered and happens later, even after its writer's death


class Faults:
    """Draws faults of these kinds until they end. `may_lose`: the last copy of a region may die. `counts`: the faults so
    far, by kind. `before_death`: called before a daemon is killed."""

    def __init__(
        self,
        cluster: Cluster,
        chance: random.Random,
        kinds: frozenset[Fault],
        *,
        region_bytes: int,
        may_lose: bool,
        counts: Counter[str],
        before_death: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._chance = chance
        self._kinds = sorted(kinds, key=lambda kind: kind.value)
        self._region_bytes = region_bytes
        self._may_lose = may_lose
        self._counts = counts
        self._before_death = before_death
        self._ended = False
        self._stalled = 0
        self._rivals: set[str] = set()
        self._later = cluster.schedule.later
        cluster.directory_faults.stall = self.stall_in_call
        self._begin: dict[Fault, Callable[[], None]] = {
            Fault.CRASH: self._crash,
            Fault.PAUSE: self._pause,
            Fault.PARTITION: self._partition,
            Fault.CLOG: self._clog,
            Fault.CUT: self._cut,
            Fault.NOISE: self._noise,
            Fault.DIRECTORY: self._directory,
            Fault.CLOCK: self._clock,
            Fault.DRAIN: self._drain,
            Fault.MEMORY: lambda: None,  # the limit is tight from the start
            Fault.CLIENT: self._cut_a_client,
            Fault.RIVAL: self._rival,
            Fault.REMOVE: self._remove,
            Fault.MASSACRE: self._massacre,
            Fault.STALL: self._stall,
            Fault.TORN: self._torn,
            Fault.LATE: self._late,
        }

    def turn(self) -> None:
        if self._ended:
            return
        fault = self._chance.choice(self._kinds)
        self._counts[fault.value] += 1
        self._begin[fault]()
        self._later(self._chance.expovariate(1 / 1000.0) + 50, self.turn)

    def end(self) -> None:
        """Heals the network, the directory and the daemons."""
        self._ended = True
        network = self._cluster.network
        network.noise = 0.0
        self._cluster.directory_faults.end()
        network.clogged.clear()
        for pair in list(network.blocked):
            network.unblock(pair)
        for daemon in self._cluster.daemons:
            self._cluster.wake(daemon)
            if daemon.core is None:
                self._cluster.start(daemon)

    def remove_rivals(self) -> None:
        for name in sorted(self._rivals):
            self._remove_region(name)

    def _later_one_of(self, delays_ms: tuple[float, ...], step: Callable[[], None]) -> None:
        self._later(self._chance.choice(delays_ms), step)

    # ---- daemons

    def _any_up(self, keep: int = 1) -> SimDaemon | None:
        """A running daemon, if more than `keep` are running."""
        up = [daemon for daemon in self._cluster.daemons if daemon.core is not None and not daemon.paused]
        return self._chance.choice(up) if len(up) > keep else None

    def _holds_a_last_copy(self, daemon: SimDaemon) -> bool:
        me, alive = daemon.running.me, self._cluster.directory.alive
        entries = (*self._cluster.directory.entries.values(), *self._cluster.directory_faults.pending)
        return any(
            me in entry.holders() and not any(h != me and h in alive for h in entry.holders()) for entry in entries
        )

    def _crash(self) -> None:
        daemon = self._any_up()
        if daemon is not None:
            self._kill(daemon)

    def _kill(self, daemon: SimDaemon) -> None:
        if daemon.core is not None and (self._may_lose or not self._holds_a_last_copy(daemon)):
            self._before_death()
            self._cluster.crash(daemon)
            self._cluster.start_later(daemon, self._chance.choice((50, 1000, 4000)))

    def _massacre(self) -> None:
        spared = self._chance.choice(self._cluster.daemons)
        for daemon in self._cluster.daemons:
            if daemon is not spared and daemon.core is not None:
                self._later(self._chance.uniform(0, 20), lambda daemon=daemon: self._kill(daemon))  # type: ignore[misc]

    def _pause(self) -> None:
        daemon = self._any_up()
        if daemon is not None:
            core = daemon.running
            self._cluster.pause(daemon)
            self._later_one_of((300, 1500, 2500, 6000), lambda: self._wake(daemon, core))

    def _wake(self, daemon: SimDaemon, core: DaemonCore) -> None:
        if daemon.core is core:
            self._cluster.wake(daemon)

    def _stall(self) -> None:
        faults = self._cluster.directory_faults
        faults.stalling = 0.05
        self._later(1_500, lambda: setattr(faults, "stalling", 0.0))

    def stall_in_call(self, holder: Holder) -> None:
        """The daemon stands still in the middle of an event while the world continues; it may even die there."""
        cluster, daemon = self._cluster, self._cluster.daemons[holder.daemon]
        core = daemon.core
        if core is None or core.me != holder or daemon.paused or self._stalled >= MAX_STALLED:
            return
        self._stalled += 1
        daemon.paused = True
        cluster.note(f"daemon {daemon.index} stands still in the middle of a call")
        cluster.schedule.run_until(cluster.now_ms + self._chance.choice((300, 1500, 3000, 6000)))
        self._stalled -= 1
        if daemon.core is not core:
            raise DiedInCall
        cluster.note(f"daemon {daemon.index} continues")
        daemon.late = True
        self._later(0.0, lambda: self._wake(daemon, core))

    def _clock(self) -> None:
        daemon = self._chance.choice(self._cluster.daemons)
        daemon.wall_skew_us += self._chance.choice((-3_600_000_000, 5_000_000, 86_400_000_000))

    def _drain(self) -> None:
        daemon = self._any_up(keep=2)
        if daemon is None:
            return
        entries = self._cluster.directory.entries.values()
        if any(daemon.running.me in entry.holders() and entry.opener for entry in entries):
            for connection in list(self._cluster.connections.values()):
                if connection.daemon is daemon:
                    self._cluster.disconnect(connection)
        self._ask_once(daemon, Shutdown(1, [daemon.index], False))

    # ---- regions

    def _rival(self) -> None:
        daemon = self._any_up(keep=0)
        if daemon is None:
            return
        name = f"rival.{len(self._rivals):03d}"
        self._rivals.add(name)
        size = self._chance.choice((1, 2, 4)) * self._region_bytes
        self._ask_once(daemon, Open(1, name, size))
        self._later_one_of((500, 2500), lambda: self._remove_region(name))

    def _remove(self) -> None:
        entries = self._cluster.directory.entries
        names = sorted(name for name in entries if self._may_lose or name.startswith("rival."))
        if names:
            self._remove_region(self._chance.choice(names))

    def _remove_region(self, name: str) -> None:
        daemon = self._any_up(keep=0)
        if daemon is not None:
            self._ask_once(daemon, Remove(2, name, True))

    def _ask_once(self, daemon: SimDaemon, message: RegionMessage) -> None:
        """From an administrator who does not wait for the answer, but stays connected for a while."""
        core, number = daemon.running, self._cluster.next_connection()
        daemon.feed(core, lambda: core.client_came(daemon.clock_ms(), number, f"admin{number}"))
        daemon.feed(core, lambda: core.from_client(daemon.clock_ms(), number, message))
        self._later(
            ADMINISTRATOR_STAYS_MS,
            lambda: daemon.feed(core, lambda: core.client_gone(daemon.clock_ms(), number)),
        )

    # ---- network

    def _pair(self) -> frozenset[int]:
        return frozenset(self._chance.sample(range(len(self._cluster.daemons)), 2))

    def _partition(self) -> None:
        pair, network = self._pair(), self._cluster.network
        network.blocked.add(pair)
        self._cluster.note(f"partition {sorted(pair)}")
        self._later_one_of((500, 2500, 5000), lambda: network.unblock(pair))

    def _clog(self) -> None:
        pair, clogged = self._pair(), self._cluster.network.clogged
        clogged.add(pair)
        self._later_one_of((500, 3000), lambda: clogged.discard(pair))

    def _cut(self) -> None:
        self._cluster.network.cut(*sorted(self._pair()))
        if self._cluster.connections and self._chance.random() < 0.5:
            self._cut_a_client()

    def _cut_a_client(self) -> None:
        connections = self._cluster.connections
        if connections:
            self._cluster.disconnect(connections[self._chance.choice(sorted(connections))])

    def _noise(self) -> None:
        self._cluster.network.noise = 0.02  # until all faults end

    # ---- directory

    def _torn(self) -> None:
        entries, torn = self._cluster.directory.entries, self._cluster.directory_faults.torn
        if entries:
            name = self._chance.choice(sorted(entries))
            torn.add(name)
            self._later_one_of((300, 1500), lambda: torn.discard(name))

    def _directory(self) -> None:
        faults = self._cluster.directory_faults
        faults.failing = self._chance.choice((0.2, 0.5, 1.0))
        self._later_one_of((300, 1500), lambda: setattr(faults, "failing", 0.0))

    def _late(self) -> None:
        faults = self._cluster.directory_faults
        faults.late = self._chance.choice((0.2, 0.5, 1.0))
        self._later_one_of((300, 1500), lambda: setattr(faults, "late", 0.0))
