"""Faults of regions: other stores, administrators, and damaged directory files."""

from __future__ import annotations

from spark_jms.store.regions.protocol.messages import Open, Remove
from tests.models.regions.cluster import SimCluster
from tests.models.regions.draw import Draw


class RegionFaults:
    """`may_lose`: regions with acknowledged writes may be removed."""

    def __init__(self, cluster: SimCluster, draw: Draw, region_bytes: int, may_lose: bool) -> None:
        self._cluster = cluster
        self._draw = draw
        self._region_bytes = region_bytes
        self._may_lose = may_lose
        self._rivals: set[str] = set()

    def rival(self) -> None:
        daemon = self._draw.any_up(keep=0)
        if daemon is None:
            return
        name = f"rival.{len(self._rivals):03d}"
        self._rivals.add(name)
        size = self._draw.chance.choice((1, 2, 4)) * self._region_bytes
        self._cluster.ask_once(daemon, Open(1, name, size))
        self._draw.later_one_of((500, 2500), lambda: self._remove_region(name))

    def remove(self) -> None:
        entries = self._cluster.directory.entries
        names = sorted(name for name in entries if self._may_lose or name.startswith("rival."))
        if names:
            self._remove_region(self._draw.chance.choice(names))

    def _remove_region(self, name: str) -> None:
        daemon = self._draw.any_up(keep=0)
        if daemon is not None:
            self._cluster.ask_once(daemon, Remove(2, name, True))

    def remove_rivals(self) -> None:
        for name in sorted(self._rivals):
            self._remove_region(name)

    def torn(self) -> None:
        entries, torn = self._cluster.directory.entries, self._cluster.directory_faults.torn
        if entries:
            name = self._draw.chance.choice(sorted(entries))
            torn.add(name)
            self._draw.later_one_of((300, 1500), lambda: torn.discard(name))

    def newer(self) -> None:
        """A daemon of a later version has written the entry, and writes it again in the known format."""
        entries, newer = self._cluster.directory.entries, self._cluster.directory_faults.newer
        if entries:
            name = self._draw.chance.choice(sorted(entries))
            newer.add(name)
            self._draw.later_one_of((300, 1500), lambda: newer.discard(name))

    def hang(self) -> None:
        hangs_ms = self._draw.chance.choice((300, 1500, 6000))
        self._cluster.directory_faults.hangs_until_ms = self._cluster.now_ms + hangs_ms
        self._cluster.note(f"the directory hangs for {hangs_ms} ms")

    def directory(self) -> None:
        faults = self._cluster.directory_faults
        faults.failing = self._draw.chance.choice((0.2, 0.5, 1.0))
        self._draw.later_one_of((300, 1500), lambda: setattr(faults, "failing", 0.0))

    def empty(self) -> None:
        faults = self._cluster.directory_faults
        faults.empty = True
        self._cluster.note("the directory is empty")
        self._draw.later_one_of((300, 1500, 8000), self._full)

    def _full(self) -> None:
        self._cluster.directory_faults.empty = False
        self._cluster.note("the directory is no longer empty")

    def late(self) -> None:
        faults = self._cluster.directory_faults
        faults.late = self._draw.chance.choice((0.2, 0.5, 1.0))
        self._draw.later_one_of((300, 1500), lambda: setattr(faults, "late", 0.0))

    def slow(self) -> None:
        faults = self._cluster.directory_faults
        faults.slow_ms = self._draw.chance.choice((50, 500, 3_000, 6_000))
        self._cluster.note(f"the directory takes up to {faults.slow_ms} ms")
        self._draw.later_one_of((300, 1500, 6000), lambda: setattr(faults, "slow_ms", 0.0))
