"""How throughput grows with the number of daemons (R20): the very cores, one store on each daemon, nothing fails.

Machines here have few cores, so it is counted instead of timed: the bytes that each daemon receives and sends for one
acknowledged write. A cluster is as fast as its busiest daemon; `speed_up` is what the cluster acknowledges while its
busiest daemon handles as many bytes as the busiest of two daemons does, against those two.

python -m tests.simulator.growth
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass

from spark_jms.store.regions.core.daemon import Action, DaemonCore, DaemonSettings, ToClient, ToPeer
from spark_jms.store.regions.core.directory import Holder
from spark_jms.store.regions.core.protocol import Open, RegionMessage, Reply, WriteRegion, encode
from tests.simulator.parts import SimDirectory, SimMemory, Truth

REGION_BYTES = 1 << 20
TICK_MS = 50.0
FRAME_WRITES = 16  # of 1 KiB in one frame


@dataclass(frozen=True)
class Growth:
    daemons: int
    acknowledged: int
    busiest_bytes: int

    @property
    def bytes_a_write(self) -> float:
        """What the busiest daemon handles for one write of the cluster."""
        return self.busiest_bytes / self.acknowledged


class _Cluster:
    def __init__(self, daemons: int) -> None:
        self.now_ms = 0.0
        self.truth = Truth(random.Random(0))
        self.load: Counter[int] = Counter()
        self.replies: dict[int, list[Reply]] = {}
        self._wire: deque[tuple[int, int, RegionMessage]] = deque()
        self.cores = [self._core(index, daemons) for index in range(daemons)]
        for a in self.cores:
            for b in self.cores:
                if a is not b:
                    self.carry(a.index, a.linked(self.now_ms, b.index, b.incarnation))
        self.run(1_000.0)

    def _core(self, index: int, daemons: int) -> DaemonCore:
        me, limit = Holder(index, f"life{index}"), 16 * REGION_BYTES
        self.truth.alive.add(me)
        return DaemonCore(
            index, me.incarnation, daemons, limit, SimDirectory(self.truth, me), SimMemory(limit), DaemonSettings(), 0.0
        )

    def carry(self, source: int, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case ToPeer(daemon, message):
                    self._wire.append((source, daemon, message))
                case ToClient(client, message):
                    self.load[source] += len(encode(0, message))
                    if isinstance(message, Reply):
                        self.replies.setdefault(client, []).append(message)
        while self._wire:
            sender, target, message = self._wire.popleft()
            size = len(encode(0, message))
            self.load[sender] += size
            self.load[target] += size
            self.carry(target, self.cores[target].from_peer(self.now_ms, sender, message))

    def ask(self, client: int, message: RegionMessage) -> Reply:
        """Of the client with the daemon of its own number."""
        self.load[client] += len(encode(0, message))
        self.carry(client, self.cores[client].from_client(self.now_ms, client, message))
        while not self.replies.get(client):
            self.run(TICK_MS)
        return self.replies[client].pop()

    def run(self, duration_ms: float) -> None:
        end_ms = self.now_ms + duration_ms
        while self.now_ms < end_ms:
            self.now_ms += TICK_MS
            for core in self.cores:
                self.carry(core.index, core.tick(self.now_ms, int(self.now_ms * 1000)))


def measure(daemons: int, frames: int = 50) -> Growth:
    """One store on each daemon, each writing so many frames."""
    cluster = _Cluster(daemons)
    epochs = []
    for index in range(daemons):
        cluster.carry(index, cluster.cores[index].client_came(cluster.now_ms, index, f"store{index}"))
        epochs.append(cluster.ask(index, Open(1, f"store{index}.000", REGION_BYTES)).value[0])
    cluster.run(2_000.0)
    cluster.load.clear()
    data = [(n * 1024, bytes(1024)) for n in range(FRAME_WRITES)]
    for _ in range(frames):
        for index in range(daemons):
            cluster.ask(index, WriteRegion(2, f"store{index}.000", epochs[index], list(data)))
    return Growth(daemons, frames * FRAME_WRITES * daemons, max(cluster.load.values()))


def speed_up(two: Growth, many: Growth) -> float:
    return two.bytes_a_write / many.bytes_a_write


def main() -> None:
    two = measure(2)
    print("daemons   busiest daemon, bytes a write   speed-up against 2")
    for daemons in (2, 3, 4, 6, 8, 12, 16):
        found = measure(daemons)
        print(f"{daemons:7}   {found.bytes_a_write:29.0f}   {speed_up(two, found):18.2f}")


if __name__ == "__main__":
    main()
