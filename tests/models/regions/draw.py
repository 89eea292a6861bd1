"""What faults draw from the seed: a daemon, a pair of daemons, a delay."""

from __future__ import annotations

import random
from collections.abc import Callable

from spark_jms.store.regions.protocol.region_entry import RegionEntry
from tests.models.regions.cluster import SimCluster
from tests.models.regions.daemons import SimDaemon


class Draw:
    def __init__(self, cluster: SimCluster, chance: random.Random) -> None:
        self._cluster = cluster
        self.chance = chance
        self.later = cluster.schedule.later

    def any_up(self, keep: int = 1) -> SimDaemon | None:
        """A running daemon, if more than `keep` are running: often the primary of an open region."""
        up = [daemon for daemon in self._cluster.daemons if daemon.core is not None and not daemon.paused]
        if len(up) <= keep:
            return None
        serving = [daemon for entry in self._open() for daemon in up if daemon.is_life(entry.primary)]
        return self.chance.choice(serving if serving and self.chance.random() < 0.5 else up)

    def way(self) -> tuple[int, int]:
        """From one daemon to another: often from the primary of an open region to its second copy, or back."""
        open_ = [entry.holders() for entry in self._open() if entry.secondary is not None]
        if not open_ or self.chance.random() < 0.3:
            a, b = self.chance.sample(range(len(self._cluster.daemons)), 2)
            return a, b
        holders = [holder.daemon for holder in self.chance.choice(open_)]
        a, b = holders if self.chance.random() < 0.6 else reversed(holders)
        return a, b

    def pair(self) -> frozenset[int]:
        return frozenset(self.way())

    def _open(self) -> list[RegionEntry]:
        return [entry for entry in self._cluster.directory.entries.values() if entry.opener is not None]

    def later_one_of(self, delays_ms: tuple[float, ...], step: Callable[[], None]) -> None:
        self.later(self.chance.choice(delays_ms), step)
