"""When a primary may answer: the order of a question to the directory and of the requests that it covers (R7, R8, R10)."""

from __future__ import annotations

import pytest

from spark_jms.store.regions.core.primary_state import PrimaryState
from spark_jms.store.regions.protocol.messages import Ack, Open, ReadRegion, WriteRegion
from spark_jms.store.regions.protocol.region_entry import promoted
from tests.models.regions.stepwise import StepClient, StepCluster, closed_region, opened

LISTING_MS = 1_500.0  # the same, long enough for the lease of a copy to expire
DIRECTORY_MS = 200.0  # a question's way there, and its answer's way back


def unconfirmed(cluster: StepCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Daemon 0 does not know any more whether daemon 1 has taken over, and the directory is slow."""
    cluster.separate(0, 1)
    assert cluster.until(lambda: not cluster.core(0).peers.confirmed(1), 5_000)
    monkeypatch.setattr(cluster.sim.timing, "directory_delay_ms", lambda: DIRECTORY_MS)


def take_over(cluster: StepCluster, name: str = "s.000") -> None:
    """Daemon 1 takes the region over, and daemon 0 does not hear of it."""
    entry = cluster.entry(name)
    assert cluster.directory(1).swap(name, entry, promoted(entry, cluster.core(1).me))


def read(client: StepClient, epoch: int) -> int:
    return client.send(lambda n: ReadRegion(n, "s.000", epoch, 0, 4))


def test_directory_answer_covers_no_request_that_came_after_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """R8, R10: another daemon takes over after the directory was read and before its answer arrives."""
    cluster = StepCluster(2)
    client, epoch = opened(cluster)
    assert client.write(epoch, b"kept")
    unconfirmed(cluster, monkeypatch)
    before = read(client, epoch)
    cluster.run(1.2 * DIRECTORY_MS)
    take_over(cluster)
    after = read(client, epoch)
    assert cluster.until(lambda: before in client.answers and after in client.answers, 5_000)
    assert client.answer(before) == b"kept"
    assert client.answer(after) == "FencedError"


def test_change_of_the_entry_covers_no_request_that_came_after_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """R8, R10: the directory lists a second copy, which takes over before the primary has the answer. The twin of the test
    above."""
    cluster = StepCluster(2)
    client, epoch = opened(cluster)
    assert client.write(epoch, b"kept")
    cluster.kill(1)
    assert cluster.until(lambda: cluster.where() == (0, None), 8_000)
    primary = cluster.core(0).primaries["s.000"]
    monkeypatch.setattr(cluster.sim.timing, "directory_delay_ms", lambda: LISTING_MS)
    cluster.start(1)
    assert cluster.until(lambda: primary.state is PrimaryState.CHANGING, 20_000)
    cluster.separate(0, 1)
    assert cluster.until(lambda: cluster.where() == (0, 1), 3 * LISTING_MS)
    take_over(cluster)
    assert not cluster.core(0).peers.confirmed(1)
    after = read(client, epoch)
    assert cluster.until(lambda: after in client.answers, 5 * LISTING_MS)
    assert client.answer(after) == "FencedError"


def test_doubt_during_a_change_lasts_beyond_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """R8, R10: the new second copy takes over before the primary has the answer to its listing, and is confirmed all the time."""
    cluster = StepCluster(2)
    client, epoch = opened(cluster)
    assert client.write(epoch, b"kept")
    cluster.kill(1)
    assert cluster.until(lambda: cluster.where() == (0, None), 8_000)
    primary = cluster.core(0).primaries["s.000"]
    monkeypatch.setattr(cluster.sim.timing, "directory_delay_ms", lambda: DIRECTORY_MS)
    cluster.start(1)
    assert cluster.until(lambda: cluster.where() == (0, 1), 20_000)
    take_over(cluster)
    primary.doubt()
    assert primary.state is PrimaryState.CHANGING_IN_DOUBT
    after = read(client, epoch)
    assert cluster.until(lambda: after in client.answers, 5 * DIRECTORY_MS)
    assert client.answer(after) == "FencedError"


def test_change_without_an_answer_is_logged_once_a_read_shows_it() -> None:
    """R10: the drop of the second copy, and the listing of the next one."""
    cluster = StepCluster(2)
    opened(cluster)
    cluster.directory(0).answering = False
    cluster.kill(1)
    assert cluster.until(lambda: cluster.where() == (0, None), 8_000)
    cluster.directory(0).answering = True
    cluster.run(500)
    assert "0: region s.000: ONE copy left, daemon 1 was dropped" in cluster.log
    cluster.directory(0).answering = False
    cluster.start(1)
    assert cluster.until(lambda: cluster.where() == (0, 1), 20_000)
    cluster.directory(0).answering = True
    cluster.run(500)
    assert "0: region s.000: second copy on daemon 1" in cluster.log


def test_region_opens_once_its_second_copy_has_answered_everything() -> None:
    """R7, R10: a region moves to the daemon of its client. Until the daemon that had it before has answered that it follows, it
    may have lost its copy, and must not be listed as the second one of an open region."""
    cluster = StepCluster(2)
    closed_region(cluster, b"kept")
    cluster.sim.network.hold(lambda source, message: source == 0 and isinstance(message, Ack))
    client = cluster.client(1)
    assert client.open(wait_ms=2_000.0) is None
    assert cluster.where() == (1, 0)
    assert cluster.entry().opener is None
    cluster.sim.network.release()
    assert cluster.until(lambda: client.requests in client.answers, 3_000)
    assert client.read(client.answer(client.requests)[0], 4) == b"kept"


def test_store_that_lost_a_region_gets_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """R8, R10: the store that has the lost region now has listed all regions, and counts on having the others as well."""
    cluster = StepCluster(2)
    closed_region(cluster, b"other", name="s.001")
    client, epoch = opened(cluster)
    assert client.write(epoch, b"kept")
    unconfirmed(cluster, monkeypatch)
    take_over(cluster)
    assert client.open("s.001") == "FencedError"
    assert client.read(epoch, 4) == "FencedError"


def test_store_that_has_its_regions_gets_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """R8: though only the directory can tell that it has them."""
    cluster = StepCluster(2)
    closed_region(cluster, b"other", name="s.001")
    client, epoch = opened(cluster)
    assert client.write(epoch, b"kept")
    unconfirmed(cluster, monkeypatch)
    assert isinstance(client.open("s.001"), list)
    assert client.read(epoch, 4) == b"kept"


def test_region_lost_while_the_others_are_confirmed_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """R8, R10: another daemon takes it over after it was opened here, and before the client has the answer."""
    cluster = StepCluster(2)
    closed_region(cluster, b"other", name="s.001")
    client, _ = opened(cluster)
    unconfirmed(cluster, monkeypatch)
    request = client.send(lambda n: Open(n, "s.001", 0))
    primary, other = (cluster.core(0).primaries[name] for name in ("s.001", "s.000"))
    assert cluster.until(lambda: cluster.entry("s.001").opener is not None, 5_000)
    other.refresh()
    cluster.run(DIRECTORY_MS / 2)
    monkeypatch.setattr(cluster.sim.timing, "directory_delay_ms", lambda: 1.0)  # of all questions but that one
    assert cluster.until(lambda: primary.state is PrimaryState.SERVING, DIRECTORY_MS)
    assert request not in client.answers
    take_over(cluster, "s.001")
    primary.doubt()
    cluster.run(2 * DIRECTORY_MS)
    assert client.lost == ["s.001"]
    assert not isinstance(client.answer(request), list)


def test_waiting_write_is_not_acknowledged_with_one_copy_in_refuse_mode() -> None:
    """R10: its second copy dies before it has acknowledged. The write waits for another one, which has it."""
    cluster = StepCluster(2, single_copy="refuse")
    client, epoch = opened(cluster)
    cluster.freeze(1)
    request = client.send(lambda n: WriteRegion(n, "s.000", epoch, [(0, b"kept")]))
    cluster.kill(1)
    cluster.run(5_000)
    assert cluster.where() == (0, None)
    assert request not in client.answers
    cluster.start(1)
    assert cluster.until(lambda: request in client.answers, 10_000)
    assert cluster.where() == (0, 1)
    assert cluster.bytes_of(1)[:4] == b"kept"
