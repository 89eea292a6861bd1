"""Servers that go away: an older session of the query, a store that hangs, a destination that cannot be read (C5, C9, D4, M10)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spark_jms
from spark_jms.admin.backup import back_up
from spark_jms.admin.claims import find_claim, release_claim
from spark_jms.admin.restore import restore
from spark_jms.admin.servers import list_servers
from spark_jms.claims import distributed, server_keeper, stores
from spark_jms.claims.batches import ConsumerSettings
from spark_jms.claims.branch import Branch
from spark_jms.claims.distributed import DistributedSubscriber
from spark_jms.claims.lane import Inline, LaneBusyError, ServerAwayError
from spark_jms.claims.left_out import LEFT_OUT
from spark_jms.claims.server_keeper import ServerKeeper
from spark_jms.claims.store_questions import StoreQuestions
from spark_jms.claims.stores import open_stores
from spark_jms.claims.timed_store import TimedStore
from spark_jms.core.batch import Batch, Limits
from spark_jms.core.lease_term import LeaseTerm
from spark_jms.errors import QueryRunningError
from spark_jms.log.domain import Domain
from spark_jms.store import MemoryStore, StoreBusyError, StoreError
from spark_jms.store.errors import SessionLostError
from spark_jms.store.routed import RoutedStore
from spark_jms.testing.waiting import wait_until

SERVERS: dict[str, Any] = {name: {"store": "file", "lease": "3 s"} for name in ("a", "b", "c")}
MODULE: dict[str, Any] = {
    "servers": SERVERS,
    "destinations": {
        "orders": {"kind": "distributed-queue", "servers": ["a", "b", "c"]},
        "bills": {"kind": "distributed-queue", "servers": ["b", "c"]},
    },
}
ON_B = 1


@pytest.fixture
def root(tmp_path: Path) -> str:
    where = str(tmp_path / "root")
    spark_jms.apply(where, MODULE)
    with spark_jms.connect(where, housekeeping=False) as context, context.producer("orders") as producer:
        for _ in range(3):
            producer.send(text="x")
    return where


def first_batch(subscriber: DistributedSubscriber) -> Batch:
    found: list[Batch] = []

    def look() -> bool:
        batch = subscriber.next_batch(Batch("q", table=subscriber.table_id), Limits())
        found.extend([batch] if batch else [])
        return bool(found)

    wait_until(look)
    return Batch.from_json(found[0].to_json())


def test_copied_checkpoint_leaves_nothing_out(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C9: a copy beside its running original is refused. It makes no mark, which the original would obey."""
    monkeypatch.setattr(distributed, "RESUME_S", 0.2)
    domain = Domain(root)
    with open_stores(domain) as store, open_stores(domain) as other:
        original = DistributedSubscriber(domain, store, "orders", "-", "q", ConsumerSettings())
        batch = first_batch(original)
        assert original.resume(batch) == {}
        copied = DistributedSubscriber(domain, other, "orders", "-", "q", ConsumerSettings())
        try:
            with pytest.raises(QueryRunningError):
                copied.resume(batch)
        finally:
            copied.close()
        assert not list(domain.storage.list(LEFT_OUT))
        wait_until(lambda: original.next_batch(batch, Limits()) is None and not any(original.backlog().values()))
        original.close()


def test_older_session_after_an_outage_is_waited_for_again() -> None:
    """M10: the time that a branch gives its older session begins again when the store was away in between."""
    times, answers = iter((0.0, 10.0, 60.0)), [QueryRunningError("old"), StoreError("gone"), QueryRunningError("old")]

    def act(_: Any) -> None:
        raise answers.pop(0)

    class Own:
        def close(self) -> None: ...

    now = [0.0]
    branch = Branch("b", lambda: Own(), Inline(), lambda: now[0])  # type: ignore[arg-type,return-value]
    for now[0] in times:
        with pytest.raises(ServerAwayError):
            branch.call(act, 1.0)


def test_messages_of_a_removed_member_are_not_delivered_again(root: str) -> None:
    """C5: others have finished them since the query died, and its server was removed."""
    domain = Domain(root)
    with open_stores(domain) as store:
        old = DistributedSubscriber(domain, store, "orders", "-", "q", ConsumerSettings())
        batch = first_batch(old)
        old.close()
        rows = [row for row in find_claim(domain, store, ["orders"], batch.claim) if row.member == ON_B]
        release_claim(domain, store, rows, 5.0)
        with spark_jms.connect(root, housekeeping=False) as context, context.consumer("b@orders") as consumer:
            message = consumer.receive(30)
            assert message is not None
            message.acknowledge()
        orders = {"kind": "distributed-queue", "servers": ["a", "c"]}
        spark_jms.apply(root, {"servers": SERVERS, "destinations": {"orders": orders}})
        restarted = DistributedSubscriber(domain, store, "orders", "-", "q", ConsumerSettings())
        assert restarted.resume(batch).keys() == {ON_B}
        restarted.close()


def test_record_of_a_handle_that_was_closed_while_the_store_hung_is_free() -> None:
    """M10: housekeeping holds no record for ever because its close found the store busy."""
    free, inner = threading.Event(), MemoryStore("away-close")
    timed = TimedStore("b", lambda: inner, 0.05)
    handle = timed.connect().open("r")
    with pytest.raises(StoreBusyError):
        timed._asked.run(lambda: free.wait(60))
    handle.close()
    free.set()
    inner.connect().open("r", 2_000)


def test_record_that_was_opened_too_late_is_free() -> None:
    """M10."""
    free, inner = threading.Event(), MemoryStore("away-open")
    timed = TimedStore("b", lambda: inner, 0.05)
    session: Any = timed.connect()
    real = session.inner.open

    def late(name: str) -> Any:
        free.wait(60)
        return real(name)

    session.inner.open = late
    with pytest.raises(StoreBusyError):
        session.open("r")
    free.set()
    wait_until(lambda: not timed._asked._lane.busy)
    inner.connect().open("r", 2_000)


class _Busy:
    """A lane whose last work has answered and has not ended."""

    def __init__(self, _: str) -> None:
        self.busy = False

    def run(self, work: Callable[[], Any], timeout_s: float) -> Any:
        if self.busy:
            raise LaneBusyError
        return work()

    def close(self, last: Callable[[], object] | None = None) -> None: ...


def test_question_that_the_lane_refuses_is_not_under_way() -> None:
    """D4: else no question is asked ever again, and the store counts as silent."""
    questions = StoreQuestions("b", lambda: None, lambda: "", _Busy, lambda: 0.0)
    questions.ask(0.0)
    questions._asking.busy = True  # type: ignore[misc]
    questions.ask(1_000.0)
    questions._asking.busy = False  # type: ignore[misc]
    assert questions.contact.asked_ms is None


def test_term_reaches_all_destinations_but_the_one_that_fails(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """D4: bills cannot be read, so orders still learns that b is away."""
    real = server_keeper.follow_term

    def follow(log: Any, server: str, term: LeaseTerm) -> bool:
        if log.name == "bills":
            raise OSError("damaged")
        return real(log, server, term)

    monkeypatch.setattr(server_keeper, "follow_term", follow)
    keeper = ServerKeeper(Domain(root), lambda server: None, lambda server, timeout_s: "")
    with pytest.raises(OSError, match="damaged"):
        keeper._commit_everywhere("b", LeaseTerm(1, 5))
    keeper.close()
    assert Domain(root).log("orders").refresh().destination.down == {"b": 5}


def test_restored_servers_have_their_leases(root: str, tmp_path: Path) -> None:
    """C19, D4: the length of a lease is a setting of the server."""
    domain = Domain(root)
    with open_stores(domain) as store:
        back_up(domain, store, str(tmp_path / "backup"))
    restore(str(tmp_path / "backup"), str(tmp_path / "again"))
    assert Domain(str(tmp_path / "again")).servers.entry("b").lease_ms == 3_000


def test_server_list_tells_servers_from_an_away_home(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C14, M10: the servers are asked although the domain's own store is away."""
    real, domain = stores.open_store, Domain(root)

    def opened(uri: str, **more: Any) -> Any:
        if uri == domain.store_uri:
            raise StoreError("home is away")
        return real(uri, **more)

    monkeypatch.setattr(stores, "open_store", opened)
    away = {row.server: row.away for row in list_servers(domain)}
    assert "home is away" in away["home"]
    assert away["b"] == ""


def test_routed_session_begins_another_where_its_own_has_ended() -> None:
    """M10: housekeeping goes on with a server that has lost its session."""
    home, other = MemoryStore("away-home"), MemoryStore("r1-other")
    session: Any = RoutedStore(home, lambda name: other).connect()
    session.open("@b/r").close()

    def lost(*_: Any) -> Any:
        raise SessionLostError("session gone")

    session._sessions["b"].open = lost
    with pytest.raises(SessionLostError):
        session.open("@b/r")
    session.open("@b/r").close()
