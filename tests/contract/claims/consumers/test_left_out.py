"""A query that is restarted while a server of its last batch is away (C5, C9, D4, M10): claims/left_out.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import spark_jms
from spark_jms.admin.backup import back_up, restore
from spark_jms.admin.claims import find_claim, release_claim
from spark_jms.admin.destinations import drop_destination
from spark_jms.admin.servers import start_server, stop_server
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers import branches
from spark_jms.claims.consumers.absent_servers import LEFT_OUT
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.servers.stores import open_stores
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.errors import FormatVersionError, MemberUnavailableError, QueryRunningError
from spark_jms.log.destinations.domain import Domain
from spark_jms.testing.domain import wait_until
from spark_jms.testing.inside import records_of
from tests.harness.domains.servers import Away, applied, next_batch, queue_on

Instance = Callable[..., Subscriber]
ON_B = 1


@pytest.fixture
def root(tmp_path: Path) -> str:
    where = applied(tmp_path, queue_on("a", "b", "c"))
    with spark_jms.connect(where, housekeeping=False) as context, context.producer("orders") as producer:
        for _ in range(3):
            producer.send(text="x")
    return where


@pytest.fixture
def instance(root: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    """Makes instances of one query; the one before has died."""
    monkeypatch.setattr(branches, "RESUME_S", 0.2)
    domain = Domain(root)
    opened: list[Subscriber] = []
    with open_stores(domain) as store:

        def made(**settings: bool) -> Subscriber:
            for old in opened:
                old.close()
            opened.append(Subscriber(domain, store, "orders", "-", "q", ConsumerSettings(**settings)))
            return opened[-1]

        yield made
        for one in opened:
            one.close()


def logged_batch(subscriber: Subscriber, start: Batch) -> Batch:
    """The next one, as Spark's offset log gives it back."""
    return Batch.from_json(next_batch(subscriber, start).to_json())


def first_batch(subscriber: Subscriber) -> Batch:
    batch = logged_batch(subscriber, Batch("q", table=subscriber.table_id))
    assert batch.delivered.keys() == {0, 1, 2}
    return batch


def marks(root: str) -> int:
    return len(list(Domain(root).storage.list(LEFT_OUT)))


def check_they_come_again_flagged(subscriber: Subscriber, start: Batch) -> Batch:
    """The messages of b, once: in the next batch, flagged."""
    again = logged_batch(subscriber, start)
    pick = again.delivered[ON_B]
    assert {m: p.picks.text() for m, p in again.delivered.items()} == {ON_B: "1"}
    assert [picks.text() for picks in pick.redelivered.values()] == ["1"]
    return again


def test_restarted_query_continues_without_an_away_server(root: str, instance: Instance) -> None:
    """C5, D4, M10: the batch is delivered without the away server's messages; they come when it is back, flagged, and are
    acknowledged then. Nothing else comes again."""
    batch = first_batch(instance())
    restarted = instance()
    with Away(root, "b"):
        withheld = restarted.resume(batch)
        assert {m: picks.text() for m, picks in withheld.items()} == {ON_B: "1"}
        assert restarted.next_batch(batch, Limits()) is None
        assert not restarted.is_unacknowledged(batch)
        assert marks(root) == 1
    again = check_they_come_again_flagged(restarted, batch)
    assert marks(root) == 1  # Spark may ask for the batch once more
    assert restarted.resume(again) == {}
    wait_until(lambda: restarted.next_batch(again, Limits()) is None and not any(restarted.backlog().values()))
    assert marks(root) == 0


def test_left_out_messages_stay_left_out_when_the_server_is_back(root: str, instance: Instance) -> None:
    """C5: a sink may have kept the batch without them, so another replay leaves them out too, and the batch's acknowledgement
    does not finish them, in whichever instance."""
    batch = first_batch(instance())
    with Away(root, "b"):
        assert instance().resume(batch).keys() == {ON_B}
    second = instance()
    assert second.resume(batch).keys() == {ON_B}
    check_they_come_again_flagged(instance(), batch)


def test_instance_that_stood_still_acknowledges_nothing_that_was_left_out(root: str, instance: Instance) -> None:
    """C5: an instance that has delivered the whole batch finds, before it acknowledges, that a replay has left messages out:
    the sink may have kept that one."""
    first = instance()
    batch = first_batch(first)
    assert first.resume(batch) == {}
    marker = Subscriber(Domain(root), records_of(first), "orders", "-", "q", ConsumerSettings())
    marker._left_out.add(batch.claim, [ON_B])
    check_they_come_again_flagged(first, batch)


def test_replay_waits_a_moment_for_a_server(root: str, instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """M10: a server that answers in time takes part; one that is down by its table is not waited for."""
    batch = first_batch(instance())
    monkeypatch.setattr(branches, "RESUME_S", 60.0)
    restarted = instance()
    away = Away(root, "b")
    away.__enter__()
    pauses = 0

    def pause(seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 2:
            away.__exit__()
        time.sleep(seconds)

    monkeypatch.setattr(branches, "time", SimpleNamespace(sleep=pause, monotonic=time.monotonic))
    assert restarted.resume(batch) == {}
    assert marks(root) == 0
    stop_server(Domain(root), "b")
    down = instance()
    assert down.resume(batch).keys() == {ON_B}
    start_server(Domain(root), "b")
    check_they_come_again_flagged(down, batch)


def test_away_servers_are_waited_for_at_once(root: str, instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """M10, D8: a restart without two servers waits as long as one without one of them."""
    first = instance()
    batch = first_batch(first)
    first.close()
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(branches, "RESUME_S", 60.0)
    monkeypatch.setattr(branches, "time", SimpleNamespace(sleep=sleep))
    restarted = Subscriber(
        Domain(root), records_of(first), "orders", "-", "q", ConsumerSettings(), monotonic_s=lambda: now[0]
    )
    with Away(root, "b"), Away(root, "c"):
        assert restarted.resume(batch).keys() == {1, 2}
    restarted.close()
    assert 60 < now[0] < 90


def test_mark_of_a_later_version_is_refused_by_name(root: str, instance: Instance) -> None:
    """C16: what a later spark-jms means by it is not guessed."""
    batch = first_batch(instance())
    with Away(root, "b"):
        instance().resume(batch)
    storage = Domain(root).storage
    (mark,) = storage.list(LEFT_OUT)
    for unchanged in (b"", b"?"):  # of the first marks, and a damaged one: its name says all
        storage.put(mark.path, unchanged)
        assert instance().resume(batch).keys() == {ON_B}
    storage.put(mark.path, b'{"v": 2}')
    with pytest.raises(FormatVersionError, match="format version 2.*install a later spark-jms"):
        instance().resume(batch)


def test_copied_checkpoint_leaves_nothing_out(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C9: a copy beside its running original is refused. It makes no mark, which the original would obey."""
    monkeypatch.setattr(branches, "RESUME_S", 0.2)
    domain = Domain(root)
    with open_stores(domain) as store, open_stores(domain) as other:
        original = Subscriber(domain, store, "orders", "-", "q", ConsumerSettings())
        batch = first_batch(original)
        assert original.resume(batch) == {}
        copied = Subscriber(domain, other, "orders", "-", "q", ConsumerSettings())
        try:
            with pytest.raises(QueryRunningError):
                copied.resume(batch)
        finally:
            copied.close()
        assert not list(domain.storage.list(LEFT_OUT))
        wait_until(lambda: original.next_batch(batch, Limits()) is None and not any(original.backlog().values()))
        original.close()


def test_messages_of_a_removed_member_are_not_delivered_again(root: str) -> None:
    """C5, D1: others have finished them since the query died, and its server was removed."""
    domain = Domain(root)
    with open_stores(domain) as store:
        old = Subscriber(domain, store, "orders", "-", "q", ConsumerSettings())
        batch = first_batch(old)
        old.close()
        rows = [row for row in find_claim(domain, store, ["orders"], batch.claim) if row.member == ON_B]
        release_claim(domain, store, rows, 5.0)
        with spark_jms.connect(root, housekeeping=False) as context, context.consumer("b@orders") as consumer:
            message = consumer.receive(30)
            assert message is not None
            message.acknowledge()
        spark_jms.apply(root, queue_on("a", "c"))
        restarted = Subscriber(domain, store, "orders", "-", "q", ConsumerSettings())
        assert restarted.resume(batch).keys() == {ON_B}
        restarted.close()


def test_narrowing_query_waits_for_its_servers(root: str, instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """M4: with onPoison=isolate a batch is not delivered in part, because its trial is stored on all its servers."""
    batch = first_batch(instance())
    restarted = instance(isolates_poison=True)
    with Away(root, "b"), pytest.raises(MemberUnavailableError, match="server b, which is away"):
        restarted.resume(batch)
    monkeypatch.setattr(branches, "RESUME_S", 60.0)
    assert restarted.resume(batch) == {}


def test_drop_removes_the_marks(root: str, instance: Instance) -> None:
    """C14: nothing of a dropped destination stays."""
    batch = first_batch(instance())
    restarted = instance()
    with Away(root, "b"):
        restarted.resume(batch)
    restarted.close()
    assert marks(root) == 1
    domain = Domain(root)
    with open_stores(domain) as store:
        drop_destination(domain, store, "orders", force=True)
    assert marks(root) == 0


def test_backup_has_the_marks(root: str, instance: Instance, tmp_path: Path) -> None:
    """C19, C5: a restored query does not acknowledge what it has left out."""
    batch = first_batch(instance())
    restarted = instance()
    with Away(root, "b"):
        restarted.resume(batch)
    domain = Domain(root)
    with open_stores(domain) as store:
        back_up(domain, store, str(tmp_path / "backup"))
    restore(str(tmp_path / "backup"), str(tmp_path / "again"))
    assert marks(str(tmp_path / "again")) == 1
