"""Faults of the network: frames are lost, late or damaged, and connections break."""

from __future__ import annotations

from functools import partial

from tests.models.regions.cluster import SimCluster
from tests.models.regions.draw import Draw


class NetworkFaults:
    def __init__(self, cluster: SimCluster, draw: Draw) -> None:
        self._cluster = cluster
        self._draw = draw
        self._until_ms: dict[frozenset[int], float] = {}  # when the last partition of each pair ends

    def partition(self) -> None:
        """In one direction or both. A pair is connected again when its last partition ends."""
        way, network, one_way = self._draw.way(), self._cluster.network, self._draw.chance.random() < 0.4
        pair, for_ms = frozenset(way), self._draw.chance.choice((500.0, 3000.0, 5000.0))
        if one_way:
            network.blocked_ways.add(way)
        else:
            network.blocked.add(pair)
        self._cluster.note(f"partition {way}, {'one way' if one_way else 'both ways'}")
        self._until_ms[pair] = max(self._until_ms.get(pair, 0.0), self._cluster.now_ms + for_ms)
        self._draw.later(for_ms, partial(self._end_partition, pair))

    def _end_partition(self, pair: frozenset[int]) -> None:
        if self._cluster.now_ms >= self._until_ms[pair]:
            self._cluster.network.unblock(pair)

    def clog(self) -> None:
        pair, clogged = self._draw.pair(), self._cluster.network.clogged
        clogged.add(pair)
        self._draw.later_one_of((500, 3000), lambda: clogged.discard(pair))

    def cut(self) -> None:
        self._cluster.network.cut(*sorted(self._draw.pair()))

    def noise(self) -> None:
        network = self._cluster.network
        network.noise = self._draw.chance.choice((0.01, 0.05))
        self._draw.later_one_of((300, 1500, 5000), lambda: setattr(network, "noise", 0.0))

    def lead_nowhere(self) -> None:
        pair = self._draw.pair()
        self._cluster.note(f"the connection of {sorted(pair)} leads nowhere")
        self._cluster.network.lead_nowhere(pair)
