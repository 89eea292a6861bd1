"""DaemonCore, feature by feature, in clusters of two to four (R8-R10, R12, R15, R18)."""

from __future__ import annotations

import pytest

from spark_jms.store.regions.protocol.messages import Ack, Failure, Open, Ping, Regions, Reply, WriteRegion
from tests.models.regions.stepwise import SIZE, StepClient, StepCluster, closed_region, opened

# ---- R8: open for one client


def test_open_of_a_new_region_refuses_an_existing_one() -> None:
    """R8: its client would overwrite it. Of two clients that create a region at once, one gets it."""
    cluster = StepCluster(3)
    closed_region(cluster, b"kept")
    for daemon in range(3):
        assert cluster.client(daemon).ask(lambda n: Open(n, "s.000", SIZE)) == "RegionOpenError"
    one, two = cluster.client(0), cluster.client(1)
    for client in (one, two):
        client.send(lambda n: Open(n, "t.000", SIZE))
    assert cluster.until(lambda: None not in (one.answer(1), two.answer(1)), 3_000)
    assert sorted(type(client.answer(1)).__name__ for client in (one, two)) == ["list", "str"]


@pytest.mark.parametrize("daemon", [0, 1, 2])
def test_open_region_is_not_opened_again(daemon: int) -> None:
    """R8: at its daemon or at another one; once it is closed, it opens."""
    cluster = StepCluster(3)
    first, _ = opened(cluster)
    second = cluster.client(daemon)
    assert second.open() == "RegionOpenError"
    first.leave()
    assert isinstance(second.open(), list)
    assert cluster.where()[0] == daemon


def test_requests_at_a_wrong_epoch_are_refused() -> None:
    """R8: and those of clients that have not opened the region."""
    cluster = StepCluster(2)
    client, epoch = opened(cluster)
    assert not cluster.client(0).write(epoch, b"x")
    assert not client.write(epoch - 1, b"x")
    assert client.read(epoch + 1, 4) == "FencedError"
    assert cluster.bytes_of(0) == bytes(SIZE)


def test_refused_write_changes_neither_copy() -> None:
    """R7: its first step fits, and its second one does not."""
    cluster = StepCluster(2)
    client, epoch = opened(cluster)
    for bad in ((SIZE - 2, b"long"), (-1, b"x"), (0, (SIZE - 1, 2)), (0, (0, -1)), (SIZE, (0, 1))):
        assert client.ask(lambda n, bad=bad: WriteRegion(n, "s.000", epoch, [(0, b"first"), bad])) == "ProtocolError"
    assert cluster.bytes_of(0) == cluster.bytes_of(1) == bytes(SIZE)
    assert client.write(epoch, b"good")


# ---- R6: how full a region is


def used(cluster: StepCluster, daemon: int, name: str = "s.000") -> int:
    rows = cluster.client(daemon).ask(lambda n: Regions(n, name))
    return int(rows[0].used_bytes)


def test_daemons_know_how_full_a_region_is() -> None:
    """R6: as its store last reported it: at every daemon, after the close, after the death of the daemon that was told, and
    at a daemon that starts later."""
    cluster = StepCluster(3)
    client, _ = opened(cluster)

    def tell(client: StepClient, *told: tuple[str, int]) -> None:
        client.tell(Ping(list(told)))
        cluster.run(100)

    assert used(cluster, 0) == used(cluster, 2) == 0
    tell(client, ("s.000", 1234), ("nothing.000", 5))
    tell(cluster.client(0), ("s.000", 99))  # from a client that has not opened it
    tell(client, ("s.000", SIZE + 1))
    assert [used(cluster, daemon) for daemon in range(3)] == [1234] * 3
    client.leave()
    cluster.run(100)
    cluster.kill(0)
    assert cluster.until(lambda: cluster.where() == (1, 2), 3_000)
    cluster.start(0)
    cluster.run(2_000)
    assert [used(cluster, daemon) for daemon in range(3)] == [1234] * 3
    cluster.client(2).remove("s.000")
    cluster.run(2_000)
    opened(cluster, 2)
    assert [used(cluster, daemon) for daemon in range(3)] == [0] * 3


# ---- R9: placement


def test_new_region_lies_on_the_local_daemon_and_the_next() -> None:
    """R9: the order wraps."""
    cluster = StepCluster(3)
    for daemon in range(3):
        opened(cluster, daemon, f"s.00{daemon}")
        assert cluster.where(f"s.00{daemon}") == (daemon, (daemon + 1) % 3)


def test_daemon_without_memory_gets_no_copy() -> None:
    """R9, R12: the next one does."""
    cluster = StepCluster(4, limit=2 * SIZE)
    opened(cluster, 1, "a.000")
    opened(cluster, 1, "a.001")
    cluster.run(500)
    opened(cluster, 0, "b.000")
    assert cluster.where("b.000") == (0, 3), "daemon 1 and daemon 2 are full"


def test_open_moves_a_region_to_its_daemon() -> None:
    """R9: and the second copy to the next one, by resilvering: from (0, 1) to (2, 3)."""
    cluster = StepCluster(4)
    closed_region(cluster, b"moved")
    assert cluster.where() == (0, 1)
    client, epoch = opened(cluster, 2)
    assert client.read(epoch, 5) == b"moved"
    assert cluster.until(lambda: cluster.where() == (2, 3), 3_000)
    assert cluster.until(lambda: "s.000" not in cluster.core(0).copies and "s.000" not in cluster.core(1).copies, 5_000)
    assert client.write(epoch, b"again")
    assert cluster.bytes_of(2) == cluster.bytes_of(3)


# ---- R10: failure


def test_secondary_takes_over_and_resilvers() -> None:
    """R10: within three seconds, even if no client returns."""
    cluster = StepCluster(3)
    client, epoch = opened(cluster)
    assert client.write(epoch, b"kept")
    cluster.kill(0)
    assert cluster.until(lambda: cluster.where() == (1, 2), 3_000)
    assert cluster.bytes_of(2)[:4] == b"kept"
    again, epoch = opened(cluster, 1)
    assert again.read(epoch, 4) == b"kept"


def test_resilver_target_that_dies_is_replaced() -> None:
    """R10: by the next daemon."""
    cluster = StepCluster(4, resilver_bytes_per_s=60_000)
    closed_region(cluster, bytes(range(256)) * 200)
    cluster.kill(1)
    assert cluster.until(lambda: "s.000" in cluster.core(2).copies, 3_000)
    cluster.kill(2)
    assert cluster.until(lambda: cluster.where() == (0, 3), 6_000)
    assert cluster.bytes_of(3) == cluster.bytes_of(0)


def test_stopped_primary_that_wakes_is_fenced() -> None:
    """R10: it does not acknowledge what its client wrote meanwhile, and it frees its copy."""
    cluster = StepCluster(3)
    client, epoch = opened(cluster)
    assert client.write(epoch, b"one")
    cluster.freeze(0)
    assert cluster.until(lambda: cluster.where()[0] == 1, 4_000)
    cluster.wake(0)
    assert not client.write(epoch, b"two")
    assert client.read(epoch, 3) == "FencedError"
    cluster.run(2_000)
    assert client.lost == ["s.000"]
    assert cluster.bytes_of(1)[:3] == b"one"


def test_primary_cut_off_does_not_serve_once_replaced() -> None:
    """R10: though no daemon told it, and its client is still connected."""
    cluster = StepCluster(3)
    client, epoch = opened(cluster)
    assert client.write(epoch, b"one")
    cluster.separate(0, 1)
    cluster.separate(0, 2)
    cluster.blind(0)  # otherwise the first of the two strikes the other one off
    assert cluster.until(lambda: cluster.where()[0] == 1, 4_000)
    assert client.read(epoch, 3) is None
    assert not client.write(epoch, b"two")
    cluster.see(0)
    cluster.run(100)
    assert [client.answer(client.requests - back) for back in (1, 0)] == ["FencedError", "FencedError"]


def test_copy_that_was_given_up_is_not_listed() -> None:
    """R10: it had caught up, and its last acknowledgement was on its way to a primary that stood still."""
    cluster = StepCluster(3, resilver_bytes_per_s=1_000_000, chunk_bytes=8192)
    closed_region(cluster, bytes(range(256)) * 200)
    cluster.sim.network.hold(lambda source, message: isinstance(message, Ack) and message.seq > 1 and source == 2)
    cluster.kill(1)
    assert cluster.until(
        lambda: "s.000" in cluster.core(2).copies and cluster.bytes_of(2) == cluster.bytes_of(0), 4_000
    )
    cluster.freeze(0)
    epoch = cluster.entry().epoch
    assert cluster.until(lambda: "s.000" not in cluster.core(2).copies, 8_000)
    cluster.sim.network.release()
    assert cluster.entry().epoch == epoch + 1, "it freed the copy without renouncing it"
    cluster.wake(0)
    for _ in range(100):
        cluster.run(50)
        if cluster.where() == (0, 2):
            break
    assert cluster.where() == (0, 2)
    assert cluster.bytes_of(0) == cluster.bytes_of(2)


def test_primary_resolves_a_move_without_an_answer() -> None:
    """R10: the directory made the change and did not answer: the former primary is now the secondary."""
    cluster = StepCluster(2)
    closed_region(cluster, b"kept")
    cluster.directory(0).answering = False
    client = cluster.client(1)
    assert isinstance(client.open(), list)
    cluster.directory(0).answering = True
    assert not any("no longer served" in line for line in cluster.log), "it gave up a listed copy"
    cluster.run(2_000)
    assert cluster.where() == (1, 0)
    assert cluster.bytes_of(0)[:4] == b"kept"


# ---- R12: memory


def test_memory_depends_on_regions_and_has_a_limit() -> None:
    """R12: MemoryLimitError at the limit; a removed region frees its memory."""
    cluster = StepCluster(2, limit=2 * SIZE)
    client, epoch = opened(cluster, name="s.000")
    assert cluster.core(0).copies.used_bytes == SIZE
    assert client.write(epoch, b"x" * 1000)
    assert cluster.core(0).copies.used_bytes == SIZE
    assert isinstance(client.open("s.001"), list)
    assert client.open("s.002") == "MemoryLimitError"
    client.leave()
    cluster.run(200)
    assert isinstance(cluster.client(1).remove("s.000"), Reply)
    cluster.run(3_000)
    assert cluster.core(0).copies.used_bytes == cluster.core(1).copies.used_bytes == SIZE


def test_other_regions_are_served_while_memory_is_provided() -> None:
    """R7, R12: the system takes seconds for a large region; the open waits, and no other region does."""
    cluster = StepCluster(2)
    client, epoch = opened(cluster)
    cluster.sim.timing.memory_asks = lambda region_id: 60  # type: ignore[method-assign]
    waiting = cluster.client(0)
    request = waiting.send(lambda n: Open(n, "t.000", 2 * SIZE))
    for number in range(10):
        cluster.run(200)
        assert client.write(epoch, b"%d" % number)
    assert waiting.answer(request) is None
    assert cluster.core(0).copies.used_bytes == 3 * SIZE
    assert cluster.until(lambda: isinstance(waiting.answer(request), list), 10_000)
    assert cluster.where("t.000") == (0, 1)
    assert [cluster.core(index).copies.used_bytes for index in (0, 1)] == [3 * SIZE, 3 * SIZE]


WAITED = "region t.000: waited 5 s (RS_OPEN_TIMEOUT_MS) "


def failed_open(cluster: StepCluster, daemon: int, size: int = 2 * SIZE) -> Failure:
    client = cluster.client(daemon)
    client.send(lambda n: Open(n, "t.000", size))
    assert cluster.until(lambda: 1 in client.answers, 10_000)
    failure = client.answers[1]
    assert isinstance(failure, Failure)
    return failure


@pytest.mark.parametrize("here", [True, False], ids=["first copy", "second copy"])
def test_open_names_the_memory_that_it_waited_for(here: bool) -> None:
    """R9, R12: the system takes longer than the open's time for a large region; that is not a region without copies."""
    cluster = StepCluster(3, open_timeout_ms=5_000)
    slow = set[str]()

    def memory_asks(region_id: str) -> int:
        asked_before = region_id in slow
        slow.add(region_id)
        return 10_000 if here or asked_before else 0

    cluster.sim.timing.memory_asks = memory_asks  # type: ignore[method-assign]
    failure = failed_open(cluster, 0)
    assert failure.error == "RegionUnavailableError"
    size = 2 * SIZE
    assert failure.arguments == [
        f"{WAITED}for the operating system to provide {size} bytes of shared memory on daemon 0"
        if here
        else f"{WAITED}for its second copy of {size} bytes, and then its entry in the Global Directory"
    ]


def test_open_names_the_error_of_the_directory() -> None:
    """R8, R10: a name that the file system refuses is not a region without copies."""
    cluster = StepCluster(3, open_timeout_ms=5_000)
    cluster.blind(0)
    assert failed_open(cluster, 0).arguments == [f"{WAITED}for the Global Directory: the directory is away"]


def test_open_names_the_daemon_that_it_waited_for() -> None:
    """R9: the primary of a closed region, or those that may have a copy while it is dead."""
    cluster = StepCluster(3, open_timeout_ms=5_000)
    closed_region(cluster, daemon=1, name="t.000")
    assert cluster.where("t.000") == (1, 2)
    cluster.blind(1)
    assert failed_open(cluster, 0, 0).arguments == [f"{WAITED}for daemon 1 to move it here"]
    cluster.blind(2)
    cluster.kill(1)
    assert failed_open(cluster, 0, 0).arguments == [f"{WAITED}for daemon 1 or 2, which may hold its copy"]


def test_memory_that_no_request_waits_for_is_given_back() -> None:
    """R12: the client left, or the daemon that wanted a second copy died."""
    cluster = StepCluster(3, limit=2 * SIZE)
    cluster.sim.timing.memory_asks = lambda region_id: 1_000  # type: ignore[method-assign]
    client = cluster.client(0)
    client.send(lambda n: Open(n, "s.000", SIZE))
    cluster.run(100)
    assert cluster.core(0).copies.used_bytes == SIZE
    client.leave()
    assert cluster.until(lambda: cluster.core(0).copies.used_bytes == 0, 5_000)
    cluster.sim.timing.memory_asks = lambda region_id: 0  # type: ignore[method-assign]
    closed_region(cluster)
    cluster.sim.timing.memory_asks = lambda region_id: 1_000  # type: ignore[method-assign]
    cluster.kill(1)
    assert cluster.until(lambda: cluster.core(2).copies.used_bytes == SIZE, 10_000)
    assert cluster.where() == (0, None)
    cluster.kill(0)
    assert cluster.until(lambda: cluster.core(2).copies.used_bytes == 0, 10_000)


def test_memory_that_is_provided_is_used_at_once() -> None:
    """R12: without waiting for the next tick."""
    cluster = StepCluster(1)
    core, me = cluster.core(0), cluster.sim.daemons[0]
    cluster.sim.timing.memory_asks = lambda region_id: 1  # type: ignore[method-assign]
    core.client_came(me.clock_ms(), 99, "store")
    me.feed(core, core.from_client, 99, Open(1, "s.000", SIZE))
    cluster.run(0)
    assert not cluster.entries
    me.feed(core, core.memory_provided)
    cluster.run(0)
    assert cluster.where() == (0, None)


def test_open_region_is_removed_by_force_only() -> None:
    """R6, R8, R18: its client is then told, and the region is lost until it is removed again: then its name is free."""
    cluster = StepCluster(3)
    client, epoch = opened(cluster)
    assert client.write(epoch, b"gone")
    answer = cluster.client(2).remove("s.000")
    assert isinstance(answer, Failure)
    assert answer.error == "RegionOpenError"
    assert isinstance(cluster.client(2).remove("s.000", force=True), Reply)
    assert client.lost == ["s.000"]
    assert not client.write(epoch, b"late")
    for daemon in range(3):
        assert cluster.client(daemon).open("s.000", wait_ms=3_000.0) == "RegionLostError"
        assert cluster.client(daemon).ask(lambda n: Open(n, "s.000", 0), 3_000.0) == "RegionLostError"
        assert cluster.client(daemon).status() == "LOST"
    cluster.run(5_000)
    text = "region s.000 is LOST: it was removed by force while"
    assert len([line for line in cluster.log if text in line]) == 3
    assert [cluster.core(daemon).copies.used_bytes for daemon in range(3)] == [0, 0, 0]
    assert isinstance(cluster.client(2).remove("s.000"), Reply)
    again, epoch = opened(cluster, 2)
    assert again.read(epoch, 4) == bytes(4)


def test_open_region_of_a_dead_primary_is_lost_when_it_is_removed() -> None:
    """R6, R8, R18: also before its secondary has taken over, which then frees its copy."""
    cluster = StepCluster(3)
    opened(cluster)
    cluster.freeze(1)
    cluster.kill(0)
    cluster.run(100)
    assert isinstance(cluster.client(2).remove("s.000", force=True), Reply)
    cluster.wake(1)
    cluster.run(5_000)
    for daemon in (1, 2):
        assert cluster.client(daemon).open("s.000", wait_ms=3_000.0) == "RegionLostError"
    assert cluster.core(1).copies.used_bytes == 0
    assert isinstance(cluster.client(1).remove("s.000", force=True), Reply)
    opened(cluster, 1)


def test_region_with_a_suspected_primary_is_not_removed() -> None:
    """R8, R10: the primary may still serve its client."""
    cluster = StepCluster(2)
    client, epoch = opened(cluster)
    cluster.kill(1)
    cluster.run(3_000)
    assert cluster.where() == (0, None)
    cluster.start(1)
    cluster.separate(0, 1)
    cluster.run(3_000)
    assert isinstance(cluster.client(1).remove("s.000", force=True), Failure)
    assert client.write(epoch, b"kept")


# ---- R15, R18


def test_region_opens_at_any_daemon() -> None:
    """R15: in place, and on one host after the other."""
    cluster = StepCluster(3)
    closed_region(cluster, b"kept")
    for daemon in (0, 1, 2, 0, 2):
        client, epoch = opened(cluster, daemon)
        assert cluster.where()[0] == daemon
        assert client.read(epoch, 4) == b"kept"
        client.leave()
        cluster.run(300)


def test_region_without_copies_is_lost() -> None:
    """R18: RegionLostError for that region alone; once it is removed, its name is free."""
    cluster = StepCluster(3)
    closed_region(cluster, name="s.000")
    closed_region(cluster, daemon=1, name="t.000")
    cluster.freeze(2)
    for core in (0, 1):
        cluster.kill(core)
    cluster.wake(2)
    cluster.run(3_000)
    client = cluster.client(2)
    assert client.status() == "LOST"
    assert client.ask(lambda n: Open(n, "s.000", 0)) == "RegionLostError"
    assert isinstance(client.open("t.000"), list)
    assert isinstance(client.remove("s.000"), Reply)
    assert isinstance(client.open(), list)


def test_open_of_an_unknown_region_fails() -> None:
    """R18: as does one with a negative size."""
    cluster = StepCluster(2)
    client = cluster.client(0)
    assert client.ask(lambda n: Open(n, "s.000", 0)) == "RegionUnavailableError"
    assert client.ask(lambda n: Open(n, "s.000", -1)) == "ProtocolError"


# ---- one copy


@pytest.mark.parametrize("policy", ["allow", "refuse"])
def test_single_copy_setting_decides_about_writes(policy: str) -> None:
    """R7: a region with one copy is shown as SINGLE; its writes are accepted, or refused until the second copy is back.
    Reads continue."""
    cluster = StepCluster(2, single_copy=policy)
    client, epoch = opened(cluster)
    assert client.write(epoch, b"two")
    assert client.status() == "OPEN"
    cluster.kill(1)
    cluster.run(3_000)
    assert client.status() == "SINGLE"
    assert client.read(epoch, 3) == b"two"
    assert client.write(epoch, b"one") == (policy == "allow")
    if policy == "refuse":
        assert client.answer(client.requests) == "SingleCopyError"
    cluster.start(1)
    assert cluster.until(lambda: cluster.where() == (0, 1), 3_000)
    assert client.write(epoch, b"two")
    assert cluster.bytes_of(0) == cluster.bytes_of(1)
