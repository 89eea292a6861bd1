"""Faults of clients: their connections break, and their processes die, stand still, or vanish without a word."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tests.models.regions.cluster import SimCluster
from tests.models.regions.draw import Draw
from tests.models.regions.process import StoreProcess


class ClientFaults:
    def __init__(self, cluster: SimCluster, draw: Draw, processes: Sequence[StoreProcess]) -> None:
        self._cluster = cluster
        self._draw = draw
        self._processes = processes

    def cut(self) -> None:
        connections = self._cluster.connections
        if connections:
            self._cluster.disconnect(connections[self._draw.chance.choice(sorted(connections))])

    def fall_silent(self) -> None:
        connections = self._cluster.connections
        if connections:
            fall_silent = self._draw.chance.choice((self._cluster.forget, self._cluster.lose))
            fall_silent(connections[self._draw.chance.choice(sorted(connections))])

    def die_or_stand_still(self) -> None:
        process = self._draw.chance.choice(self._processes)
        if process.loop.paused or process.loop.dead:
            return
        if self._draw.chance.random() < 0.5:
            process.die()
            self._draw.later_one_of((50, 1000), process.start)
        else:
            self._cluster.note(f"{process.name} stands still")
            process.loop.pause()
            self._draw.later_one_of((300, 2500, 6000), partial(self._wake, process))

    def _wake(self, process: StoreProcess) -> None:
        if process.loop.paused:
            self._cluster.note(f"{process.name} wakes")
            process.loop.wake()

    def end(self) -> None:
        for process in self._processes:
            self._wake(process)
