"""A region whose directory entry is damaged is removed by force: no daemon answers for it afterwards (R6, R8, R10, R16)."""

from __future__ import annotations

import pytest

from spark_jms.store.regions.protocol.messages import Failure, Notice, Remove, Reply
from tests.models.regions.stepwise import StepClient, StepCluster, closed_region, opened


def answers_discards_late(cluster: StepCluster, daemon: int) -> None:
    """The directory removes the damaged entry, and then answers no daemon for a second."""
    directory, faults = cluster.directory(daemon), cluster.sim.directory_faults
    discard = directory.discard

    def discard_and_hang(name: str) -> bool:
        faults.hangs_until_ms = cluster.sim.now_ms + 1_000
        return discard(name)

    directory.discard = discard_and_hang  # type: ignore[method-assign]


def remove(client: StepClient) -> int:
    return client.send(lambda n: Remove(n, "s.000", True))


def test_damaged_entry_is_removed_by_force_on_a_slow_directory() -> None:
    """R6, R16: looks of later ticks are answered before the directory says that it has discarded the entry."""
    cluster = StepCluster(2)
    closed_region(cluster)
    directory, delays = cluster.directory(1), [90.0]
    discard, discarded = directory.discard, list[str]()

    def discard_and_answer_late(name: str) -> bool:
        discarded.append(name)
        return discard(name)

    directory.discard = discard_and_answer_late  # type: ignore[method-assign]
    cluster.sim.timing.directory_delay_ms = (  # type: ignore[method-assign]
        lambda: delays.pop() if delays and discarded else 0.0
    )
    cluster.sim.directory_faults.torn.add("s.000")
    assert isinstance(cluster.client(1).remove("s.000", force=True), Reply)
    assert not delays


@pytest.mark.parametrize("asked", [0, 1, 2], ids=["primary", "secondary", "other"])
def test_no_daemon_answers_for_a_region_that_is_removed_with_a_damaged_entry(asked: int) -> None:
    """R6, R8, R10: the administrator's daemon has no answer yet; another client may have created the region again."""
    cluster = StepCluster(3)
    client, epoch = opened(cluster)
    admin = cluster.client(asked)
    answers_discards_late(cluster, asked)
    cluster.sim.directory_faults.torn.add("s.000")
    request = remove(admin)
    assert cluster.until(lambda: "s.000" not in cluster.entries, 1_000)
    assert not client.write(epoch, b"late", wait_ms=500)
    assert client.requests not in client.answers
    assert cluster.until(lambda: request in admin.answers and bool(client.lost), 4_000)
    assert isinstance(admin.answers[request], Reply)
    assert cluster.until(lambda: not any(core.copies for core in map(cluster.core, range(3))), 4_000)


@pytest.mark.parametrize("asked", [0, 2], ids=["primary", "other"])
def test_older_answer_does_not_make_a_primary_serve_again(asked: int) -> None:
    """R8, R10: the primary reads its entry just before that is damaged, and the answer takes long."""
    cluster = StepCluster(3)
    client, epoch = opened(cluster)
    admin, primary = cluster.client(asked), cluster.sim.daemons[0]
    delays = [0.0, 300.0]
    cluster.sim.timing.directory_delay_ms = lambda: delays.pop(0) if delays else 0.0  # type: ignore[method-assign]
    primary.feed(primary.running, primary.running.from_peer, 1, Notice("s.000"))
    cluster.run(10)
    assert not delays
    cluster.sim.directory_faults.torn.add("s.000")
    answers_discards_late(cluster, asked)
    remove(admin)
    assert cluster.until(lambda: "s.000" not in cluster.entries, 1_000)
    assert not client.write(epoch, b"late", wait_ms=500)


def test_region_with_a_damaged_entry_stays_while_an_unreachable_daemon_may_serve_it() -> None:
    """R6, R8: the message names that daemon. Once it has ended, the region is removed."""
    cluster = StepCluster(3)
    client, epoch = opened(cluster)
    cluster.separate(0, 2)
    cluster.sim.directory_faults.torn.add("s.000")
    admin = cluster.client(2)
    answer = admin.remove("s.000", force=True)
    assert isinstance(answer, Failure)
    assert answer.arguments == ["region s.000: not removed: daemon 0 runs and may serve it, and does not answer"]
    assert client.write(epoch, b"kept")
    cluster.kill(0)
    assert isinstance(admin.remove("s.000", force=True), Reply)


def test_primary_serves_again_when_its_damaged_entry_is_restored() -> None:
    """R6, R16: the removal failed."""
    cluster = StepCluster(3)
    client, epoch = opened(cluster)
    cluster.separate(1, 2)
    cluster.sim.directory_faults.torn.add("s.000")
    assert isinstance(cluster.client(2).remove("s.000", force=True), Failure)
    assert not client.write(epoch, b"kept", wait_ms=500)
    cluster.sim.directory_faults.torn.clear()
    assert cluster.until(lambda: client.requests in client.answers, 1_000)
    assert client.read(epoch, 4) == b"kept"


def test_daemon_that_never_came_holds_no_removal_up() -> None:
    """R6: one of three daemons has not been started."""
    cluster = StepCluster(3)
    cluster.kill(2)
    closed_region(cluster)
    cluster.kill(1)
    cluster.start(1)
    cluster.sim.directory_faults.torn.add("s.000")
    assert isinstance(cluster.client(1).remove("s.000", force=True), Reply)
