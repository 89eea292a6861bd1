"""The safe shutdown of daemons in its four steps, in clusters of two to four (R4)."""

from __future__ import annotations

import pytest

from spark_jms.store.regions.core.leaving import LeavingState
from spark_jms.store.regions.protocol.messages import Daemons, Failure, Reply
from tests.models.regions.stepwise import SIZE, StepCluster, closed_region, opened


def test_safe_shutdown_is_refused_with_an_open_region() -> None:
    """R4, step 1: nothing changes."""
    cluster = StepCluster(3)
    opened(cluster)
    assert cluster.client(2).shutdown(0) == "ShutdownRefusedError"
    cluster.run(500)
    assert not cluster.core(0).draining


def test_safe_shutdown_is_refused_without_room_elsewhere() -> None:
    """R4, step 2: of three daemons two have the copies, and the third has no memory."""
    cluster = StepCluster(3, limit=SIZE)
    closed_region(cluster, name="s.000")
    closed_region(cluster, daemon=2, name="t.000")
    assert cluster.where("t.000") == (2, None)
    cluster.run(500)
    assert cluster.client(2).shutdown(0) == "ShutdownRefusedError"
    assert not cluster.core(0).draining


def test_safe_shutdown_counts_all_leaving_daemons() -> None:
    """R4, step 2: two daemons with the two copies leave, and one stays."""
    cluster = StepCluster(3)
    closed_region(cluster)
    assert cluster.client(2).shutdown(0, 1) == "ShutdownRefusedError"


def test_opens_wait_during_a_safe_shutdown() -> None:
    """R4, step 3: until the copies have moved; then the daemon answers them."""
    cluster = StepCluster(3, resilver_bytes_per_s=100_000)
    closed_region(cluster, bytes(range(256)) * 200)
    admin, client = cluster.client(2), cluster.client(2)
    cluster.run(500)
    admin.shutdown(0)
    cluster.run(100)
    assert client.open(wait_ms=100) is None
    assert cluster.until(lambda: client.answer(1) is not None, 5_000)
    assert cluster.cores[0] is None
    assert cluster.where()[0] == 2
    assert client.read(client.answer(1)[0], 256) == bytes(range(256))


def test_daemon_without_copies_stops() -> None:
    """R4, step 4: both copies of every region are on the daemons that stay."""
    cluster = StepCluster(3)
    closed_region(cluster)
    cluster.client(2).shutdown(0)
    assert cluster.until(lambda: cluster.cores[0] is None, 3_000)
    cluster.run(500)
    assert sorted(map(str, cluster.where())) == ["1", "2"]
    assert cluster.bytes_of(1)[:4] == cluster.bytes_of(2)[:4] == b"kept"


def test_forced_shutdown_stops_at_once() -> None:
    """R4: with open regions; the secondary takes over."""
    cluster = StepCluster(3)
    client, epoch = opened(cluster)
    assert client.write(epoch, b"kept")
    cluster.client(2).shutdown(0, force=True)
    assert cluster.cores[0] is None
    assert cluster.until(lambda: cluster.where()[0] == 1, 3_000)
    assert cluster.bytes_of(1)[:4] == b"kept"


def waiting_to_leave() -> StepCluster:
    """Daemon 0 leaves; daemon 2, where its copy of the region could go, dies before it has got it."""
    cluster = StepCluster(3, resilver_bytes_per_s=100_000)
    closed_region(cluster, bytes(range(256)) * 200)
    assert cluster.client(1).shutdown(0) is None
    cluster.kill(2)
    assert cluster.until(lambda: cluster.core(0).leaving is LeavingState.WAITING, 30_000)
    return cluster


def test_safe_shutdown_waits_for_memory_and_says_so() -> None:
    """R4, step 3: it never gives up, and neither loses a copy nor stops; its heartbeats tell the others what it waits for."""
    cluster = waiting_to_leave()
    cluster.run(60_000)
    assert cluster.core(0).leaving is LeavingState.WAITING
    rows = cluster.client(1).ask(Daemons)
    assert rows[0].draining
    assert rows[0].waits_for == "for memory: no other daemon has room for 65536 bytes of 1 regions (s.000)"
    assert sum("the shutdown waits for memory" in line for line in cluster.log) == 1
    assert sorted(map(str, cluster.where())) == ["0", "1"]


def test_safe_shutdown_ends_when_memory_comes() -> None:
    """R4, step 3: a daemon with room starts."""
    cluster = waiting_to_leave()
    cluster.start(2)
    assert cluster.until(lambda: cluster.cores[0] is None, 10_000)
    assert "0: the shutdown continues" in cluster.log
    cluster.run(500)
    assert sorted(map(str, cluster.where())) == ["1", "2"]
    client, epoch = opened(cluster, 1)
    assert client.read(epoch, 256) == bytes(range(256))


def test_safe_shutdown_ends_when_a_region_is_removed() -> None:
    """R4, step 3: "until more memory is made available"."""
    cluster = waiting_to_leave()
    assert isinstance(cluster.client(1).remove("s.000"), Reply)
    assert cluster.until(lambda: cluster.cores[0] is None, 10_000)


def test_opens_wait_for_a_waiting_shutdown_and_say_why() -> None:
    """R4, step 3: a named error when their time is over."""
    cluster = waiting_to_leave()
    client = cluster.client(1)
    client.open(wait_ms=60_000)
    failure = client.answers[1]
    assert isinstance(failure, Failure)
    assert failure.error == "RegionUnavailableError"
    assert failure.arguments == ["region s.000: opens wait while daemon 0 is being shut down safely"]


@pytest.mark.parametrize("asked", [0, 1])
def test_waiting_shutdown_is_broken_off(asked: int) -> None:
    """R4, step 3: at the leaving daemon or at another one; it stays, and opens continue."""
    cluster = waiting_to_leave()
    assert cluster.client(asked).break_off(0) is None
    assert cluster.until(lambda: cluster.core(0).leaving is LeavingState.STAYING, 1_000)
    assert "0: shutdown broken off: this daemon stays" in cluster.log
    cluster.run(500)
    client, epoch = opened(cluster, 0)
    assert client.read(epoch, 256) == bytes(range(256))
    client.leave()
    cluster.start(2)
    cluster.run(1_000)
    assert cluster.client(1).shutdown(0) is None
    assert cluster.until(lambda: cluster.cores[0] is None, 10_000)


def test_daemon_that_does_not_leave_ignores_a_break_off() -> None:
    """R4."""
    cluster = StepCluster(2)
    assert cluster.client(0).break_off(0, 1) is None
    cluster.run(200)
    assert not [line for line in cluster.log if "broken off" in line]


def test_simultaneous_shutdowns_lose_nothing() -> None:
    """R4: both were allowed, and one daemon would be left. One stops, and the other waits until there are two again."""
    cluster = StepCluster(3)
    closed_region(cluster, b"kept")
    cluster.core(0).leave(force=False)
    cluster.core(1).leave(force=False)
    assert cluster.until(lambda: sum(core is not None for core in cluster.cores) == 2, 15_000)
    cluster.run(20_000)
    [waiting] = [index for index in (0, 1) if cluster.cores[index] is not None]
    assert cluster.core(waiting).leaving is LeavingState.WAITING
    cluster.start(1 - waiting)
    assert cluster.until(lambda: cluster.cores[waiting] is None, 15_000)
    client, epoch = opened(cluster, 2)
    assert client.read(epoch, 4) == b"kept"
