"""The heartbeats of two daemons that have just connected (R10)."""

from __future__ import annotations

from spark_jms.store.regions.protocol.messages import DaemonHeartbeat, RegionMessage
from tests.models.regions.observer import Observer
from tests.models.regions.stepwise import StepCluster


class Heartbeats(Observer):
    """The daemons that have sent one, in order."""

    def __init__(self) -> None:
        self.senders: list[int] = []

    def sent(self, source: int, target: int, message: RegionMessage) -> None:
        if isinstance(message, DaemonHeartbeat):
            self.senders.append(source)


def connected_again(cluster: StepCluster) -> Heartbeats:
    """Two daemons that stopped hearing each other, at the moment at which they have connected again."""
    beats = Heartbeats()
    cluster.separate(0, 1)
    cluster.run(10_000)
    assert not cluster.core(0).peers.confirmed(1)
    cluster.join(0, 1)
    cluster.sim.observe(beats)
    assert cluster.until(lambda: bool(beats.senders), 1_000)
    return beats


def test_new_connection_is_confirmed_after_one_round_trip() -> None:
    """R10: each daemon answers the first heartbeat at once, so no write waits for the directory until the next one is due."""
    cluster = StepCluster(2, heartbeat_ms=1_000.0)
    connected_again(cluster)
    assert cluster.core(0).peers.confirmed(1)
    assert cluster.core(1).peers.confirmed(0)


def test_only_the_first_heartbeat_of_a_connection_is_answered() -> None:
    """R10"""
    cluster = StepCluster(2, heartbeat_ms=1_000.0)
    beats = connected_again(cluster)
    assert sorted(beats.senders) == [0, 0, 1, 1]
    cluster.run(900)
    assert len(beats.senders) <= 6
