"""How throughput grows with the number of daemons (R20): one store on each daemon, and nothing fails.

The machines that run the tests have few cores, so bytes are counted instead of time: those that each daemon receives and
sends for one acknowledged write. A cluster is as fast as its busiest daemon. `speed_up` is what the cluster acknowledges
while its busiest daemon handles as many bytes as the busiest of two daemons does, relative to those two.

python -m tests.models.regions.growth
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial

from spark_jms.store.regions.protocol.messages import RegionMessage, WriteRegion, encode
from tests.models.regions.connections import ClientConnection
from tests.models.regions.observer import Observer
from tests.models.regions.stepwise import StepCluster

REGION_BYTES = 1 << 20
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


class Traffic(Observer):
    """Bytes that each daemon received or sent."""

    def __init__(self) -> None:
        self.bytes: Counter[int] = Counter()

    def sent(self, source: int, target: int, message: RegionMessage) -> None:
        size = len(encode(0, message))
        self.bytes[source] += size
        self.bytes[target] += size

    def asked(self, connection: ClientConnection, message: RegionMessage) -> None:
        self.bytes[connection.daemon.index] += len(encode(0, message))

    def answered(self, connection: ClientConnection, message: RegionMessage) -> None:
        self.bytes[connection.daemon.index] += len(encode(0, message))


def measure(daemons: int, frames: int = 50) -> Growth:
    """One store on each daemon, each writing so many frames."""
    cluster = StepCluster(daemons, limit=16 * REGION_BYTES)
    stores = [cluster.client(index, f"store{index}") for index in range(daemons)]
    epochs = [store.open(f"{store.name}.000", size=REGION_BYTES)[0] for store in stores]
    cluster.run(2_000.0)
    traffic = Traffic()
    cluster.sim.observe(traffic)
    data: list[tuple[int, bytes | tuple[int, int]]] = [(n * 1024, bytes(1024)) for n in range(FRAME_WRITES)]
    for _ in range(frames):
        for store, epoch in zip(stores, epochs, strict=True):
            store.ask(partial(WriteRegion, name=f"{store.name}.000", epoch=epoch, steps=data))
    return Growth(daemons, frames * FRAME_WRITES * daemons, max(traffic.bytes.values()))


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
