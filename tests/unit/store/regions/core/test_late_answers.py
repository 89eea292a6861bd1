"""Directory requests whose answer comes late or never, and what daemons do meanwhile (R4, R8-R10)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spark_jms.store.regions.core.actions import AskDirectory
from spark_jms.store.regions.core.primary import Primary
from spark_jms.store.regions.core.primary_state import PrimaryState
from spark_jms.store.regions.core.replication import FollowerState
from spark_jms.store.regions.protocol.messages import Begin, Close, MoveRequest, Notice, Open, Reply
from spark_jms.store.regions.protocol.region_entry import Absent, ChangeEntry, RegionEntry, perform, promoted
from tests.models.regions.stepwise import SIZE, StepCluster, closed_region, opened


def test_unanswered_take_over_cannot_happen_later() -> None:
    """R10: once the primary is back, the secondary raises the epoch, so that its late change no longer fits."""
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


def test_late_take_over_is_found_by_both_daemons() -> None:
    """R10: the directory does not answer the new primary; until it knows, the old one asks the directory before each read."""
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


def test_secondary_that_hears_again_may_have_taken_over() -> None:
    """R10: the primary heard the secondary all the time, but not the other way round. That the secondary hears it again is
    no lease."""
    cluster = StepCluster(2, audit_ms=60_000.0)  # otherwise the audit would find it
    client, epoch = opened(cluster)
    assert client.write(epoch, b"one")
    cluster.sim.network.hold(lambda source, message: source == 0)
    assert cluster.until(lambda: cluster.where()[0] == 1, 6_000)
    cluster.sim.network.hold(lambda source, message: isinstance(message, Begin))  # which would tell the old primary
    assert cluster.until(lambda: cluster.core(0).peers.confirmed(1), 1_000)
    assert client.read(epoch, 3) == "FencedError"


def test_region_created_too_late_is_removed() -> None:
    """R7, R10: its daemon has created it again by then, or has given it up and removes it."""
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
def test_copy_listed_late_by_a_dead_primary(in_time: bool) -> None:
    """R10: it is complete, so its daemon takes over if the listing lands in time; otherwise the daemon makes the listing
    impossible before it frees the copy."""
    cluster = StepCluster(3)
    closed_region(cluster, b"kept")
    change = cluster.delay_change(
        0,
        lambda new: new is not None and new.secondary is not None and new.secondary.daemon == 2,
        then_unavailable=True,
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


def test_region_never_opened_is_created_again() -> None:
    """R18: its daemon died before the first open; it was empty, so nothing is lost."""
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


def test_shutdown_is_cancelled_when_an_entry_becomes_unreadable() -> None:
    """R4, R16: the copy cannot move away, and opens of all other regions would wait for it forever."""
    cluster = StepCluster(3)
    client = cluster.client(0)
    client.open()
    client.close()
    assert client.shutdown(0) is None
    cluster.sim.directory_faults.torn.add("s.000")
    assert cluster.until(lambda: not cluster.core(0).draining, 10_000)
    assert "0: shutdown cancelled: the entry of region s.000 cannot be read" in cluster.log
    assert client.open("t.000") is not None


def test_primary_fenced_while_it_confirms_itself_changes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """R8, R10: it reads its entry, and once more to acknowledge a held write. Between the two the secondary takes over."""
    cluster = StepCluster(2)
    client, epoch = opened(cluster)
    primary, directory = cluster.core(0).primaries["s.000"], cluster.directory(0)
    cluster.blind(0)
    primary.doubt()
    assert not client.write(epoch, b"held", wait_ms=100)
    client.leave()
    cluster.separate(0, 1)
    cluster.run(1_500)  # the secondary is no longer confirmed, and not dead yet
    assert primary.replication.oldest_is_held()
    read = directory.read

    def read_before_the_take_over(name: str) -> RegionEntry | Absent:
        found = read(name)
        if cluster.entry().epoch == epoch:
            assert cluster.directory(1).swap(name, cluster.entry(), promoted(cluster.entry(), cluster.core(1).me))
        return found

    monkeypatch.setattr(directory, "read", read_before_the_take_over)
    cluster.see(0)
    cluster.run(100)
    assert primary.ended
    assert cluster.entry().primary == cluster.core(1).me


def test_store_opens_a_region_while_its_others_are_confirmed_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """R8, R10: its daemon has no lease on the other regions, so it asks the directory, for longer than a tick."""
    cluster = StepCluster(3)
    client, _ = opened(cluster)
    assert isinstance(client.open("s.001"), list)
    monkeypatch.setattr(Primary, "_lease", lambda self: False)
    monkeypatch.setattr(cluster.sim.timing, "directory_delay_ms", lambda: 40.0)
    assert isinstance(client.open("s.002"), list)


def test_close_is_answered_once_the_directory_has_it() -> None:
    """R8: also by a primary in doubt, so the next store can open the region as soon as the first one has closed it."""
    cluster = StepCluster(2)
    client, _ = opened(cluster)
    cluster.blind(0)
    cluster.core(0).primaries["s.000"].doubt()
    request = client.send(lambda n: Close(n, "s.000"))
    cluster.run(500)
    assert request not in client.answers
    cluster.see(0)
    assert cluster.until(lambda: request in client.answers, 500)
    assert cluster.entry().opener is None
    assert isinstance(cluster.client(0).open(), list)


def test_writes_wait_for_the_directory_only_where_it_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """R7, R10: the directory takes 2 s. A region with both copies works; opening another one takes its time."""
    cluster = StepCluster(3)
    client, epoch = opened(cluster)
    monkeypatch.setattr(cluster.sim.timing, "directory_delay_ms", lambda: 1_000.0)
    other = cluster.client(1)
    request = other.send(lambda n: Open(n, "t.000", SIZE))
    for number in range(10):
        value = b"%d" % number
        assert client.write(epoch, value, wait_ms=0)
        assert client.read(epoch, 1) == value
        cluster.run(500)
    assert request not in other.answers
    assert cluster.until(lambda: request in other.answers, 60_000)
    assert isinstance(other.answer(request), list)


def test_begin_that_waited_does_not_free_a_copy_that_was_listed_since() -> None:
    """R9, R10: the follower's directory answers slowly, and the primary has begun a second time meanwhile."""
    cluster = StepCluster(3)
    cluster.kill(1)
    cluster.kill(2)
    client, epoch = opened(cluster)
    assert client.write(epoch, b"kept")
    cluster.start(1)
    cluster.run(500)
    assert cluster.where() == (0, 1)
    entry = cluster.entry()
    follower, me = cluster.core(1), cluster.sim.daemons[1]
    late = Begin("0-life1-late", "s.000", entry.region_id, 1, SIZE)
    asked = [a for a in follower.from_peer(me.clock_ms(), 0, late) if isinstance(a, AskDirectory)]
    newer = Begin("0-life1-newer", "s.000", entry.region_id, entry.epoch, SIZE)
    follower.from_peer(me.clock_ms(), 0, newer)
    unlisted = replace(entry, secondary=None)
    follower.directory_answered(me.clock_ms(), asked[0].number, unlisted)
    assert bytes(follower.copies["s.000"].memory[:4]) == b"kept"


def test_new_region_that_another_daemon_took_over_is_given_up() -> None:
    """R9, R10: its creation had no answer, happened late, and its daemon stood still until the second copy took over."""
    cluster = StepCluster(3)
    client = cluster.client(0)
    change = cluster.delay_change(0, lambda new: new is not None and new.epoch == 1, then_unavailable=True)
    client.send(lambda n: Open(n, "s.000", SIZE))
    assert cluster.until(lambda: change.given_up, 1_000)
    cluster.freeze(0)
    assert change.land()
    assert cluster.until(lambda: cluster.where() == (1, 2), 10_000)
    cluster.wake(0)
    cluster.run(2_000)
    assert "0: region s.000: no longer served here, another daemon has it" in cluster.log
    assert not [line for line in cluster.log if line.startswith("0: region s.000: created")]


@pytest.mark.parametrize("heard", [True, False])
def test_late_answer_that_there_is_no_region_frees_no_copy_that_counts(heard: bool) -> None:
    """R9, R10: a client wants a new region here, while another daemon creates it and fills the second copy here. The directory
    was asked before the region was entered and answers afterwards."""
    cluster = StepCluster(2)
    client, other, now_ms = cluster.client(0), cluster.core(1), cluster.sim.daemons[1].clock_ms
    change = cluster.delay_change(0, lambda new: True, then_unavailable=True)
    request = client.send(lambda n: Open(n, "t.000", SIZE))
    assert cluster.until(lambda: change.given_up, 1_000)
    assert "t.000" in other.copies.followed
    cluster.run(100)
    other.client_came(now_ms(), 99, "rival")
    asked = [a for a in other.from_client(now_ms(), 99, Open(1, "t.000", SIZE)) if isinstance(a, AskDirectory)]
    if heard:
        assert change.land()
        cluster.see(0)
        assert cluster.until(lambda: request in client.answers, 1_000)
        assert client.write(client.answer(request)[0], b"kept", name="t.000")
    other.directory_answered(now_ms(), asked[0].number, Absent.NOTHING)
    if heard:
        assert bytes(other.copies["t.000"].memory[:4]) == b"kept"
    else:  # the primary learns of it before a client opens the region
        assert "t.000" not in other.copies.followed


def test_late_answer_that_there_is_no_region_gives_up_no_copy_that_counts() -> None:
    """R9, R10: as above. The primary has filled the copy since the directory was asked, and then stood still, so that the copy
    looks abandoned."""
    cluster = StepCluster(2, audit_ms=60_000.0)  # otherwise the list of regions would have told
    client, other, now_ms = cluster.client(0), cluster.core(1), cluster.sim.daemons[1].clock_ms
    change = cluster.delay_change(0, lambda new: True, then_unavailable=True)
    request = client.send(lambda n: Open(n, "t.000", SIZE))
    assert cluster.until(lambda: change.given_up, 1_000)
    cluster.run(100)
    asked = [a for a in other.from_peer(now_ms(), 0, Notice("t.000")) if isinstance(a, AskDirectory)]
    assert change.land()
    cluster.see(0)
    assert cluster.until(lambda: request in client.answers, 1_000)
    assert client.write(client.answer(request)[0], b"kept", name="t.000")
    cluster.freeze(0)
    cluster.run(6_000)
    other.directory_answered(now_ms(), asked[0].number, Absent.NOTHING)
    assert bytes(other.copies["t.000"].memory[:4]) == b"kept"


def test_answer_before_a_change_that_waits_does_not_end_a_doubt() -> None:
    """R10: the primary drops its second copy, and reads the entry at that moment, so the change waits for the answer. Meanwhile
    the second daemon is heard again. The answer is older than the change: a write is not acknowledged after it."""
    cluster = StepCluster(2, single_copy="refuse", audit_ms=60_000.0)
    client, epoch = opened(cluster)
    core, daemon = cluster.core(0), cluster.sim.daemons[0]
    cluster.sim.network.hold(lambda source, message: source == 1)
    cluster.run(1_000)
    (asked,) = [a for a in core.from_peer(daemon.clock_ms(), 1, Notice("s.000")) if isinstance(a, AskDirectory)]
    assert cluster.until(lambda: "0: daemon 1 does not answer" in cluster.log, 4_000)
    cluster.sim.network.release()
    assert cluster.until(lambda: core.peers.confirmed(1), 1_000)
    answered = core.directory_answered(daemon.clock_ms(), asked.number, cluster.entry())
    (change,) = [a for a in answered if isinstance(a, AskDirectory) and isinstance(a.request, ChangeEntry)]
    assert perform(cluster.directory(0), change.request) is True
    assert cluster.where() == (0, None)
    assert not client.write(epoch, b"kept")
    daemon.feed(core, core.directory_answered, change.number, True)
    assert cluster.until(lambda: client.requests in client.answers, 4_000)
    assert isinstance(client.answers[client.requests], Reply)
    assert cluster.where() == (0, 1)
    assert cluster.bytes_of(0)[:4] == cluster.bytes_of(1)[:4] == b"kept"


def test_late_listing_of_a_copy_that_was_removed_is_taken_back() -> None:
    """R9, R10: the region was never opened, so the change could still come. Its daemon has begun another copy there meanwhile,
    which is not complete."""
    cluster = StepCluster(2)
    cluster.kill(1)
    client = cluster.client(0)
    client.send(lambda n: Open(n, "t.000", SIZE))
    assert cluster.until(lambda: cluster.core(0).primaries.in_work("t.000"), 1_000)
    client.leave()
    assert cluster.until(lambda: "t.000" in cluster.entries, 5_000)
    assert cluster.entry("t.000").epoch == 1
    change = cluster.delay_change(0, lambda new: new is not None and new.secondary is not None)
    cluster.start(1)
    primary = cluster.core(0).primaries["t.000"]
    assert cluster.until(lambda: change.given_up, 2_000)
    assert cluster.until(lambda: primary.state is PrimaryState.SERVING, 1_000)
    cluster.core(0).from_peer(cluster.sim.daemons[0].clock_ms(), 1, MoveRequest("t.000"))
    assert [f.state for f in primary.replication.followers] == [FollowerState.COPYING]
    assert change.land()
    assert cluster.until(lambda: cluster.where("t.000") == (0, None), 3_000)
    assert cluster.until(lambda: None not in cluster.where("t.000"), 10_000)
    client, epoch = opened(cluster, 0, "t.000")
    assert client.write(epoch, b"kept", name="t.000")
    assert cluster.bytes_of(0, "t.000") == cluster.bytes_of(1, "t.000")
