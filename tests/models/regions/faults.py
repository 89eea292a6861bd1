"""What goes wrong in the simulated world, one thing after another."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial

from tests.models.regions.client_faults import ClientFaults
from tests.models.regions.cluster import SimCluster
from tests.models.regions.daemon_faults import DaemonFaults
from tests.models.regions.draw import Draw
from tests.models.regions.network_faults import NetworkFaults
from tests.models.regions.process import StoreProcess
from tests.models.regions.region_faults import RegionFaults

WORKED_MS = 4.0  # a fault comes up to this long after the processes have begun some work: frames take as long


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
    CLIENT = "client"  # connections of clients break
    PROCESS = "process"  # a client's process dies, or stands still for a while
    RIVAL = "rival"  # another store takes memory, and frees it again
    REMOVE = "remove"  # an administrator removes regions by force
    MASSACRE = "massacre"  # all daemons but one die at nearly the same time
    STALL = "stall"  # a daemon stands still while the directory works on its request
    TORN = "torn"  # the file of one region cannot be read
    EMPTY = "empty"  # the directory is away for a while, and its path leads to an empty mount point
    SLOW = "slow"  # the directory takes long for requests and answers
    MOMENT = "moment"  # a daemon dies between a change of the directory and its answer, or before one of its frames
    HANG = "hang"  # the directory answers nothing for a while, and then everything
    NEWER = "newer"  # the file of one region has a newer format
    NOWHERE = "nowhere"  # nothing comes through a connection of two daemons any more
    SILENT = "silent"  # a client is gone without a word
    LATE = "late"  # a directory change is not answered and happens later, even after its writer's death


class Faults:
    """Draws faults of these kinds until they end. `may_lose`: the last copy of a region may die. `counts`: the faults so
    far, by kind. `before_death`: called before a daemon is killed."""

    def __init__(
        self,
        cluster: SimCluster,
        chance: random.Random,
        kinds: frozenset[Fault],
        *,
        region_bytes: int,
        may_lose: bool,
        counts: Counter[str],
        before_death: Callable[[], None],
        processes: Sequence[StoreProcess],
    ) -> None:
        self._cluster = cluster
        self._draw = draw = Draw(cluster, chance)
        self._kinds = sorted(kinds, key=lambda kind: kind.value)
        self._counts = counts
        self._processes = processes
        self._ended = False
        self._daemons = daemons = DaemonFaults(cluster, draw, may_lose, before_death)
        network = NetworkFaults(cluster, draw)
        self._clients = clients = ClientFaults(cluster, draw, processes)
        self._regions = regions = RegionFaults(cluster, draw, region_bytes, may_lose)
        self._begin: dict[Fault, Callable[[], None]] = {
            Fault.CRASH: daemons.crash,
            Fault.PAUSE: daemons.pause,
            Fault.PARTITION: network.partition,
            Fault.CLOG: network.clog,
            Fault.CUT: network.cut,
            Fault.NOISE: network.noise,
            Fault.DIRECTORY: regions.directory,
            Fault.CLOCK: daemons.clock,
            Fault.DRAIN: daemons.drain,
            Fault.MEMORY: lambda: None,  # the limit is tight from the start
            Fault.CLIENT: clients.cut,
            Fault.PROCESS: clients.die_or_stand_still,
            Fault.RIVAL: regions.rival,
            Fault.REMOVE: regions.remove,
            Fault.MASSACRE: daemons.massacre,
            Fault.STALL: daemons.stall,
            Fault.TORN: regions.torn,
            Fault.EMPTY: regions.empty,
            Fault.MOMENT: daemons.die_at_a_moment,
            Fault.HANG: regions.hang,
            Fault.NEWER: regions.newer,
            Fault.NOWHERE: network.lead_nowhere,
            Fault.SILENT: clients.fall_silent,
            Fault.LATE: regions.late,
            Fault.SLOW: regions.slow,
        }

    def turn(self) -> None:
        if self._ended:
            return
        fault = self._draw.chance.choice(self._kinds)
        self._counts[fault.value] += 1
        for process in self._processes:
            process.hurry()
        self._draw.later(self._draw.chance.uniform(0, WORKED_MS), partial(self._strike, fault))
        self._draw.later(self._draw.chance.expovariate(1 / 1000.0) + 50, self.turn)

    def _strike(self, fault: Fault) -> None:
        if not self._ended:
            self._begin[fault]()

    def end(self) -> None:
        """Heals the network, the directory and the daemons."""
        self._ended = True
        network = self._cluster.network
        network.noise = 0.0
        self._cluster.directory_faults.end()
        network.clogged.clear()
        for pair in (*network.blocked, *map(frozenset, network.blocked_ways)):
            network.unblock(pair)
        for daemon in self._cluster.daemons:
            self._cluster.wake(daemon)
            daemon.fate = None
            daemon.continue_clock()
            if daemon.core is None:
                self._cluster.start(daemon)
        self._regions.remove_rivals()
        self._daemons.end()
        self._clients.end()
