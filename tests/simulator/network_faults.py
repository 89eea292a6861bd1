"""Faults of the network: frames are lost, late or damaged, and connections break."""

from __future__ import annotations

from tests.simulator.cluster import SimCluster
from tests.simulator.draw import Draw


class NetworkFaults:
    def __init__(self, cluster: SimCluster, draw: Draw) -> None:
        self._cluster = cluster
        self._draw = draw

    def partition(self) -> None:
        pair, network = self._draw.pair(), self._cluster.network
        network.blocked.add(pair)
        self._cluster.note(f"partition {sorted(pair)}")
        self._draw.later_one_of((500, 2500, 5000), lambda: network.unblock(pair))

    def clog(self) -> None:
        pair, clogged = self._draw.pair(), self._cluster.network.clogged
        clogged.add(pair)
        self._draw.later_one_of((500, 3000), lambda: clogged.discard(pair))

    def cut(self) -> None:
        self._cluster.network.cut(*sorted(self._draw.pair()))
        if self._cluster.connections and self._draw.chance.random() < 0.5:
            self.cut_a_client()

    def cut_a_client(self) -> None:
        connections = self._cluster.connections
        if connections:
            self._cluster.disconnect(connections[self._draw.chance.choice(sorted(connections))])

    def noise(self) -> None:
        self._cluster.network.noise = 0.02  # until all faults end
