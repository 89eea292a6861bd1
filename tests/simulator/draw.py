"""What faults draw from the seed: a daemon, a pair of daemons, a delay."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.simulator.cluster import SimCluster
from tests.simulator.daemons import SimDaemon


class Draw:
    def __init__(self, cluster: SimCluster, chance: random.Random) -> None:
        self._cluster = cluster
        self.chance = chance
        self.later = cluster.schedule.later

    def any_up(self, keep: int = 1) -> SimDaemon | None:
        """A running daemon, if more than `keep` are running."""
        up = [daemon for daemon in self._cluster.daemons if daemon.core is not None and not daemon.paused]
        return self.chance.choice(up) if len(up) > keep else None

    def pair(self) -> frozenset[int]:
        return frozenset(self.chance.sample(range(len(self._cluster.daemons)), 2))

    def later_one_of(self, delays_ms: tuple[float, ...], step: Callable[[], None]) -> None:
        self.later(self.chance.choice(delays_ms), step)
