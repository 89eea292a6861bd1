"""DaemonCore, feature by feature, with two or three of them (R4, R8-R10, R12, R15, R18)."""

from __future__ import annotations

import pytest

from spark_jms.store.regions.core.protocol import Ack, Begin, Failure, Open, Ping, Regions, Reply, WriteRegion
from tests.simulator.stepwise import SIZE, StepClient, StepCluster


def opened(cluster: StepCluster, daemon: int = 0, name: str = "s.000") -> tuple[StepClient, int]:
    client = cluster.client(daemon)
    answer = client.open(name)
    assert isinstance(answer, list), answer
    return client, answer[0]


def closed_region(cluster: StepCluster, data: bytes = b"kept", daemon: int = 0, name: str = "s.000") -> None:
    client, epoch = opened(cluster, daemon, name)
    assert client.write(epoch, data, name=name)
    client.leave()
    cluster.run(100)


# ---- R4: the safe shutdown in its four steps


def test_step_1_an_open_region_refuses() -> None:
    """R4: nothing has changed."""
    cluster = StepCluster(3)
    opened(cluster)
    assert cluster.client(2).shutdown(0) == "ShutdownRefusedError"
    cluster.run(500)
    assert not cluster.core(0).draining


def test_step_2_no_room_elsewhere_refuses() -> None:
    """R4: of three daemons two have the copies, and the third has no memory."""
    cluster = StepCluster(3, limit=SIZE)
    closed_region(cluster, name="s.000")
    closed_region(cluster, daemon=2, name="t.000")
    assert cluster.where("t.000") == (2, None)
    cluster.run(500)
    assert cluster.client(2).shutdown(0) == "ShutdownRefusedError"
    assert not cluster.core(0).draining


def test_step_2_counts_all_that_leave_at_once() -> None:
    """R4: two copies on two daemons, both leave, one stays."""
    cluster = StepCluster(3)
    closed_region(cluster)
    assert cluster.client(2).shutdown(0, 1) == "ShutdownRefusedError"


def test_step_3_opens_wait_until_the_copies_are_away() -> None:
    """R4: and then they are answered."""
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


def test_step_4_a_daemon_without_copies_stops() -> None:
    """R4: both copies of every region are on those that stay."""
    cluster = StepCluster(3)
    closed_region(cluster)
    cluster.client(2).shutdown(0)
    assert cluster.until(lambda: cluster.cores[0] is None, 3_000)
    cluster.run(500)
    assert sorted(map(str, cluster.where())) == ["1", "2"]
    assert cluster.bytes_of(1)[:4] == cluster.bytes_of(2)[:4] == b"kept"


def test_force_stops_at_once() -> None:
    """R4: with open regions; the second copy takes over."""
    cluster = StepCluster(3)
    client, epoch = opened(cluster)
    assert client.write(epoch, b"kept")
    cluster.client(2).shutdown(0, force=True)
    assert cluster.cores[0] is None
    assert cluster.until(lambda: cluster.where()[0] == 1, 3_000)
    assert cluster.bytes_of(1)[:4] == b"kept"


def test_two_shutdowns_at_once_do_not_wait_for_each_other() -> None:
    """R4: both were allowed, one daemon would be left: the last one stays, opens go on."""
    cluster = StepCluster(3)
    closed_region(cluster, b"kept")
    cluster.core(0).leave(force=False)
    cluster.core(1).leave(force=False)
    assert cluster.until(lambda: cluster.cores[0] is None and not cluster.core(1).draining, 15_000)
    assert sorted(map(str, cluster.where())) == ["1", "2"]
    client, epoch = opened(cluster, 2)
    assert client.read(epoch, 4) == b"kept"


# ---- R8: open for one client


def test_who_wants_a_new_region_gets_no_other_one() -> None:
    """R8: it would be written over as an empty one; two who make it at once get one region, and one of them."""
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
def test_an_open_region_is_not_opened_again(daemon: int) -> None:
    """R8: at its daemon or at another one; after the close it is."""
    cluster = StepCluster(3)
    first, _ = opened(cluster)
    second = cluster.client(daemon)
    assert second.open() == "RegionOpenError"
    first.leave()
    assert isinstance(second.open(), list)
    assert cluster.where()[0] == daemon


def test_the_first_opener_does_nothing_with_an_old_epoch() -> None:
    """R8: nor does anybody who has not opened it."""
    cluster = StepCluster(2)
    client, epoch = opened(cluster)
    assert not cluster.client(0).write(epoch, b"x")
    assert not client.write(epoch - 1, b"x")
    assert client.read(epoch + 1, 4) == "FencedError"
    assert cluster.bytes_of(0) == bytes(SIZE)


def test_a_write_that_is_refused_writes_nothing() -> None:
    """R7: the first step fits, the second one does not: neither copy has any of it, and both stay the same."""
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


def test_how_full_a_region_is_as_its_store_last_told() -> None:
    """R6: at every daemon, after the close, the death of the one that was told, and at one that is started later."""
    cluster = StepCluster(3)
    client, _ = opened(cluster)

    def tell(client: StepClient, *told: tuple[str, int]) -> None:
        client.tell(Ping(list(told)))
        cluster.run(100)

    assert used(cluster, 0) == used(cluster, 2) == 0
    tell(client, ("s.000", 1234), ("nothing.000", 5))
    tell(cluster.client(0), ("s.000", 99))  # by somebody who has not opened it
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


def test_primary_on_the_local_daemon_secondary_on_the_next() -> None:
    """R9: wrapping."""
    cluster = StepCluster(3)
    for daemon in range(3):
        opened(cluster, daemon, f"s.00{daemon}")
        assert cluster.where(f"s.00{daemon}") == (daemon, (daemon + 1) % 3)


def test_the_next_one_without_memory_is_passed_over() -> None:
    """R9, R12."""
    cluster = StepCluster(4, limit=2 * SIZE)
    opened(cluster, 1, "a.000")
    opened(cluster, 1, "a.001")
    cluster.run(500)
    opened(cluster, 0, "b.000")
    assert cluster.where("b.000") == (0, 3), "daemon 1 and daemon 2 are full"


def test_an_open_brings_a_copy_and_the_secondary_moves_to_the_next() -> None:
    """R9: from (0, 1) to (2, 0), by resilvering."""
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


def test_the_second_copy_takes_over_and_another_one_is_made() -> None:
    """R10: though no client comes back; all within three seconds."""
    cluster = StepCluster(3)
    client, epoch = opened(cluster)
    assert client.write(epoch, b"kept")
    cluster.kill(0)
    assert cluster.until(lambda: cluster.where() == (1, 2), 3_000)
    assert cluster.bytes_of(2)[:4] == b"kept"
    again, epoch = opened(cluster, 1)
    assert again.read(epoch, 4) == b"kept"


def test_a_resilver_target_that_dies_is_replaced() -> None:
    """R10."""
    cluster = StepCluster(4, resilver_bytes_per_s=60_000)
    closed_region(cluster, bytes(range(256)) * 200)
    cluster.kill(1)
    assert cluster.until(lambda: "s.000" in cluster.core(2).copies, 3_000)
    cluster.kill(2)
    assert cluster.until(lambda: cluster.where() == (0, 3), 6_000)
    assert cluster.bytes_of(3) == cluster.bytes_of(0)


def test_a_stopped_primary_that_wakes_is_fenced() -> None:
    """R10: what its client wrote meanwhile is not acknowledged, and its copy is freed."""
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


def test_a_primary_cut_off_serves_nobody_once_it_was_replaced() -> None:
    """R10: nobody told it, and its client is still there."""
    cluster = StepCluster(3)
    client, epoch = opened(cluster)
    assert client.write(epoch, b"one")
    cluster.separate(0, 1)
    cluster.separate(0, 2)
    cluster.blind(0)  # else whoever is first strikes the other off
    assert cluster.until(lambda: cluster.where()[0] == 1, 4_000)
    assert client.read(epoch, 3) == "FencedError"
    assert not client.write(epoch, b"two")


def test_a_copy_that_catches_up_is_not_listed_after_it_was_given_up() -> None:
    """R10: the last acknowledgement is on its way to a primary that stands still, and its sender gives the copy up."""
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
    assert cluster.entry().epoch == epoch + 1, "it frees without a word"
    cluster.wake(0)
    for _ in range(100):
        cluster.run(50)
        if cluster.where() == (0, 2):
            break
    assert cluster.where() == (0, 2)
    assert cluster.bytes_of(0) == cluster.bytes_of(2)


def test_a_move_whose_outcome_is_unknown_is_found_out() -> None:
    """R10: the primary asked for the move, the directory did it and did not answer: its copy is the second one now."""
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


def test_memory_grows_with_regions_alone_and_has_a_limit() -> None:
    """R12: a named error at the limit; a removed region gives its memory back."""
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


def test_open_regions_are_removed_by_force_only() -> None:
    """R6, R8: and then their client is told; the same name is another region."""
    cluster = StepCluster(3)
    client, epoch = opened(cluster)
    assert client.write(epoch, b"gone")
    answer = cluster.client(2).remove("s.000")
    assert isinstance(answer, Failure)
    assert answer.error == "RegionOpenError"
    assert isinstance(cluster.client(2).remove("s.000", force=True), Reply)
    assert client.lost == ["s.000"]
    assert not client.write(epoch, b"late")
    again, epoch = opened(cluster, 2)
    assert again.read(epoch, 4) == bytes(4)


def test_a_region_whose_primary_only_seems_dead_is_not_removed() -> None:
    """R8, R10: it may still serve its client; when its life is over for certain, it is removed."""
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


def test_a_store_restarts_at_any_daemon() -> None:
    """R15: in place, and on a host after the other."""
    cluster = StepCluster(3)
    closed_region(cluster, b"kept")
    for daemon in (0, 1, 2, 0, 2):
        client, epoch = opened(cluster, daemon)
        assert cluster.where()[0] == daemon
        assert client.read(epoch, 4) == b"kept"
        client.leave()
        cluster.run(300)


def test_both_copies_gone_is_said_of_exactly_that_region() -> None:
    """R18: RegionLostError, nothing of it is served, the others are; removed, its name is free."""
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


def test_a_region_that_does_not_exist_is_named() -> None:
    """R18: and one of a size below nothing is refused."""
    cluster = StepCluster(2)
    client = cluster.client(0)
    assert client.ask(lambda n: Open(n, "s.000", 0)) == "RegionUnavailableError"
    assert client.ask(lambda n: Open(n, "s.000", -1)) == "ProtocolError"


# ---- one copy


@pytest.mark.parametrize("policy", ["allow", "refuse"])
def test_what_happens_with_one_copy_is_explicit(policy: str) -> None:
    """Issue 4: served and shown as SINGLE, or refused by name until the second copy is back; reads go on."""
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


# ---- R10: a change of the directory that nobody answered, and that happens later


def test_a_take_over_that_was_given_up_does_not_happen_later() -> None:
    """R10: the primary is back, and the secondary has made sure."""
    cluster = StepCluster(2)
    client, epoch = opened(cluster)
    assert client.write(epoch, b"one")
    change = cluster.delay_change(1, lambda new: new is not None and new.primary.daemon == 1, then_unavailable=True)
    cluster.blind(0)
    cluster.separate(0, 1)
    assert cluster.until(lambda: change.given_up, 4_000)
    cluster.join(0, 1)
    cluster.see(0)
    cluster.see(1)
    cluster.run(1_000)
    assert not change.land()
    assert client.write(epoch, b"two")
    assert client.read(epoch, 3) == b"two"
    assert cluster.where() == (0, 1)


def test_a_take_over_that_happens_later_is_found_out_by_both() -> None:
    """R10: until the new primary knows, its directory being away, the old one asks before each read."""
    cluster = StepCluster(2)
    client, epoch = opened(cluster)
    assert client.write(epoch, b"one")
    change = cluster.delay_change(1, lambda new: new is not None and new.primary.daemon == 1, then_unavailable=True)
    cluster.sim.network.hold(lambda source, message: source == 0)
    assert cluster.until(lambda: change.given_up, 4_000)
    cluster.sim.network.release()
    cluster.run(1_000)
    assert client.read(epoch, 3) == b"one"
    assert not cluster.core(0).peers.confirmed(1)
    assert change.land()
    assert client.read(epoch, 3) == "FencedError"
    again, epoch = opened(cluster, 1)
    assert again.read(epoch, 3) == b"one"


def test_who_hears_again_may_have_taken_over_meanwhile() -> None:
    """R10: the primary heard the secondary all the time, the secondary not the primary. That it hears again is no lease."""
    cluster = StepCluster(2, audit_ms=60_000.0)  # which would find out too
    client, epoch = opened(cluster)
    assert client.write(epoch, b"one")
    cluster.sim.network.hold(lambda source, message: source == 0)
    assert cluster.until(lambda: cluster.where()[0] == 1, 6_000)
    cluster.sim.network.hold(lambda source, message: isinstance(message, Begin))  # that would tell
    assert cluster.until(lambda: cluster.core(0).peers.confirmed(1), 1_000)
    assert client.read(epoch, 3) == "FencedError"


def test_a_region_that_is_made_too_late() -> None:
    """R7, R10: its maker has made it anew by then, or has given it up and removes it."""
    cluster = StepCluster(2)
    change = cluster.delay_change(0, lambda new: True)
    opened(cluster)
    assert change.given_up
    assert not change.land()
    change = cluster.delay_change(0, lambda new: True, then_unavailable=True)
    client = cluster.client(0)
    client.open("t.000", wait_ms=0.0)
    assert cluster.until(lambda: change.given_up, 1_000)
    client.leave()
    cluster.run(200)
    cluster.see(0)
    cluster.run(200)
    assert "t.000" not in cluster.core(0).copies
    assert change.land()
    assert cluster.until(lambda: "t.000" not in cluster.entries, 2_000)
    assert isinstance(cluster.client(1).open("t.000"), list)


@pytest.mark.parametrize("in_time", [True, False])
def test_a_copy_that_a_dead_primary_lists_later(in_time: bool) -> None:
    """R10: it is complete, so it takes over if it is listed in time; it is not given up before its listing is impossible."""
    cluster = StepCluster(3)
    closed_region(cluster, b"kept")
    change = cluster.delay_change(
        0, lambda new: new is not None and new.secondary is not None and new.secondary.daemon == 2
    )
    cluster.kill(1)
    assert cluster.until(lambda: change.given_up, 6_000)
    cluster.blind(2)
    cluster.kill(0)
    cluster.run(5_000)
    if in_time:
        assert change.land()
    cluster.see(2)
    cluster.run(4_000)
    if in_time:
        client, epoch = opened(cluster, 2)
        assert client.read(epoch, 4) == b"kept"
    else:
        assert not cluster.core(2).copies
        assert not change.land()


def test_a_region_whose_maker_died_before_anybody_opened_it() -> None:
    """R18: nothing was in it, so nothing is lost: it is made anew."""
    cluster = StepCluster(2)
    cluster.kill(1)
    cluster.run(3_000)
    change = cluster.delay_change(0, lambda new: True)
    client = cluster.client(0)
    client.open(wait_ms=0.0)
    assert cluster.until(lambda: change.given_up, 1_000)
    cluster.kill(0)
    assert change.land()
    cluster.start(1)
    cluster.run(3_000)
    assert cluster.client(1).open() == "RegionUnavailableError"
    assert isinstance(cluster.client(1).open(), list)
