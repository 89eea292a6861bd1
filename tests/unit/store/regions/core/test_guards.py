"""Guards of a daemon that chance seldom shows: each holds in the moment for which it is there (R8-R10).

`make planted` takes each of them away and expects its test to fail.
"""

from __future__ import annotations

from spark_jms.store.regions.protocol.messages import Ack, Adopt, Begin, Refused, RegionMessage, Replicate
from tests.models.regions.observer import Observer
from tests.models.regions.stepwise import SIZE, StepCluster, opened


class Sent(Observer):
    """What daemons sent to each other, with the sender."""

    def __init__(self, cluster: StepCluster) -> None:
        self.messages: list[tuple[int, RegionMessage]] = []
        cluster.sim.observe(self)

    def sent(self, source: int, target: int, message: RegionMessage) -> None:
        self.messages.append((source, message))


def test_primary_does_not_follow_a_daemon_that_was_primary_before() -> None:
    """R10: an Adopt may be late, and its receiver has taken over meanwhile."""
    cluster = StepCluster(2)
    client, epoch = opened(cluster)
    assert client.write(epoch, b"one")
    sent, entry = Sent(cluster), cluster.entry()
    cluster.sim.network.send(1, 0, Adopt("late", "s.000", entry.region_id, entry.epoch))
    cluster.run(100)
    assert (0, Refused("late", "unknown")) in sent.messages
    cluster.sim.network.send(1, 0, Replicate("late", "s.000", entry.epoch, 2, [(0, b"two")]))
    cluster.run(100)
    assert cluster.bytes_of(0)[:3] == b"one"


def test_listed_copy_is_not_begun_again() -> None:
    """R10: the directory lists it, so it may have to take over at any moment."""
    cluster = StepCluster(2)
    client, epoch = opened(cluster)
    assert client.write(epoch, b"one")
    sent, entry = Sent(cluster), cluster.entry()
    cluster.sim.network.send(0, 1, Begin("again", "s.000", entry.region_id, entry.epoch, SIZE))
    cluster.run(100)
    assert (1, Refused("again", "stale")) in sent.messages
    assert cluster.bytes_of(1)[:3] == b"one"


def test_only_the_primary_begins_a_copy() -> None:
    """R10: a daemon that was primary before may not know yet that it is not."""
    cluster = StepCluster(3)
    opened(cluster)
    assert cluster.where() == (0, 1)
    sent, entry = Sent(cluster), cluster.entry()
    cluster.sim.network.send(1, 2, Begin("foreign", "s.000", entry.region_id, entry.epoch, SIZE))
    cluster.run(100)
    assert (2, Refused("foreign", "stale")) in sent.messages
    assert "s.000" not in cluster.core(2).copies


def test_region_opens_again_once_its_writes_are_on_both_copies() -> None:
    """R8, R10: otherwise the new client reads what is lost when the primary dies."""
    cluster = StepCluster(2)
    first, epoch = opened(cluster)
    cluster.sim.network.hold(lambda source, message: isinstance(message, Ack))
    assert not first.write(epoch, b"one", wait_ms=100)
    first.leave()
    second = cluster.client(0)
    assert second.open(wait_ms=400) is None
    cluster.sim.network.release()
    assert cluster.until(lambda: second.answer(1) is not None, 1_000)
    assert second.read(second.answer(1)[0], 3) == b"one"
