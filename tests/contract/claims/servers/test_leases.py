"""A server whose store is away goes down by itself, and comes back (D4, D9): the real keepers, on file stores."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_jms
from spark_jms.admin import servers as admin_servers
from spark_jms.admin.servers import start_server, stop_server
from spark_jms.claims.servers import lease
from spark_jms.claims.servers.lease import ServerKeeper, StoreProbe
from spark_jms.claims.servers.timed_stores import StoreThreadBusyError
from spark_jms.core.destinations.servers import HELD, LeaseTerm
from spark_jms.errors import DomainError, ModuleFileError, ServerDownError
from spark_jms.log.destinations import servers as log_servers
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.destinations.servers import LEASES
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.log.sending.send import send as send_files
from spark_jms.store.kinds.opening import Endpoint, absence, places_of
from spark_jms.testing.domain import wait_until
from tests.harness.domains.servers import Away, applied

MODULE: dict[str, Any] = {
    "servers": {name: {"store": "file", "lease": "2 s"} for name in ("a", "b", "c")},
    "destinations": {
        "orders": {"kind": "distributed-queue", "servers": ["a", "b", "c"]},
        "bills": {"kind": "distributed-queue", "servers": ["b", "c"]},
    },
}
ON_B = 1


@pytest.fixture
def root(tmp_path: Path) -> str:
    return applied(tmp_path, MODULE)


@pytest.fixture
def context(root: str) -> Iterator[spark_jms.Context]:
    with spark_jms.connect(root, housekeeping=False) as opened:
        yield opened


def down(root: str, destination: str = "orders") -> dict[str, int]:
    return Domain(root).log(destination).refresh().destination.down


def members_of(context: spark_jms.Context, count: int, **more: Any) -> set[int]:
    """Where so many messages go."""
    with context.producer("orders") as producer:
        return {producer.send(text="x", **more).member for _ in range(count)}


def group_on(root: str, member: int) -> str:
    from spark_jms.core.destinations.routing import route_of
    from spark_jms.core.ordering.units_of_order import slot_of

    route = route_of(Domain(root).log("orders").refresh().destination)
    return next(group for group in map(str, range(999)) if route.member_of_slot(slot_of(group)) == member)


def test_senders_leave_a_server_whose_store_is_away_and_return_to_it(root: str, context: spark_jms.Context) -> None:
    """D4, D9: a store that is gone takes its server down in every destination, without an administrator; a unit of order that
    belongs to it is refused, and everything else goes to the other servers. When the store is back, so is the server, with the
    messages that waited."""
    group = group_on(root, ON_B)
    assert members_of(context, 3) == {0, 1, 2}
    with context.consumer("orders") as consumer:
        with Away(root, "b"):
            wait_until(lambda: "b" in down(root) and "b" in down(root, "bills"))
            assert members_of(context, 6) == {0, 2}
            with pytest.raises(ServerDownError, match="Server b is away"):
                members_of(context, 1, group_id=group)
            with context.producer("bills") as bills:
                assert bills.send(text="x").member == 1
        wait_until(lambda: not down(root) and not down(root, "bills"))
        assert members_of(context, 1, group_id=group) == {ON_B}
        assert members_of(context, 3) == {0, 1, 2}
        received = 0
        while received < 13:
            message = consumer.receive(30)
            assert message is not None
            message.acknowledge()
            received += 1
        assert consumer.receive(0) is None


def test_messages_staged_before_a_lapse_go_to_other_servers(root: str) -> None:
    """D9: what a sink or client has staged for a server that goes down before the commit is routed again, in the commit."""
    import pyarrow as pa

    log = Domain(root).log("orders")
    snapshot = log.refresh()
    writer = MessageWriter(log.storage, snapshot.destination, 0)
    writer.write(pa.record_batch([pa.array([b"x"] * 6, pa.binary())], names=["body"]))
    staged = writer.close()
    assert {file.member for file in staged} == {0, 1, 2}
    with spark_jms.connect(root, housekeeping=False) as other, other.consumer("orders"), Away(root, "b"):
        wait_until(lambda: "b" in down(root))
        sent = send_files(log, staged, snapshot.route_id)
    assert {member: picks.count for member, picks in sent.sequences.items()} == {0: 3, 2: 3}


def test_stop_and_lapse_end_by_themselves(root: str, context: spark_jms.Context) -> None:
    """D4: a server that is both stopped and away is down until an administrator has started it and its store answers; nothing is
    asked of a stopped server's store."""
    with context.consumer("orders"):
        with Away(root, "b"):
            wait_until(lambda: "b" in down(root))
            stop_server(Domain(root), "b")
        start_server(Domain(root), "b")
        wait_until(lambda: not down(root))
        stop_server(Domain(root), "b")
        with Away(root, "b"):
            start_server(Domain(root), "b")
            wait_until(lambda: "b" in Domain(root).terms.lapsed())
        wait_until(lambda: not down(root))


def test_destination_that_comes_to_a_server_finds_its_state(root: str, context: spark_jms.Context) -> None:
    """D4: a destination that is created on a server that is away, or gets a member there, has it down from the beginning."""
    with context.consumer("orders"), Away(root, "b"):
        wait_until(lambda: "b" in down(root) and Domain(root).terms.newest()["b"].done)
        more = {"kind": "distributed-queue", "servers": ["a", "b"]}
        spark_jms.apply(root, {"destinations": {"late": more, "plain": {"kind": "queue"}}})
        assert down(root, "late") == down(root)
    with context.consumer("orders"):
        wait_until(lambda: not down(root, "late"))


def test_process_that_uses_the_server_finishes_a_term_of_a_dead_one(root: str, context: spark_jms.Context) -> None:
    """D4: a process that began a term and died before all tables had it leaves the rest to the others."""
    domain = Domain(root)
    assert domain.terms.begin("b", HELD.next(7))
    with context.consumer("orders"):
        wait_until(lambda: domain.terms.newest()["b"].term.number == 2 and domain.terms.newest()["b"].done)
        assert {name: Domain(root).log(name).refresh().destination.terms["b"] for name in ("orders", "bills")} == {
            name: LeaseTerm(2) for name in ("orders", "bills")
        }


def test_lost_terms_are_counted_on_from_the_tables(root: str, context: spark_jms.Context) -> None:
    """D4: when the terms in the domain are lost, the tables still have the newest number; the next term is a later one."""
    with context.consumer("orders"):
        with Away(root, "b"):
            wait_until(lambda: "b" in down(root))
            wait_until(lambda: Domain(root).terms.newest()["b"].done)
            storage = Domain(root).storage
            for lost in list(storage.list("_jmsq/lease-terms")):
                storage.delete(lost.path)
        wait_until(lambda: not down(root))
        assert Domain(root).terms.newest()["b"].term.number == 2


def test_lease_is_a_setting_that_apply_changes(root: str) -> None:
    """D4: the length of the lease follows the module file; the limits are named."""
    assert Domain(root).servers.entry("a").lease_ms == 2_000
    spark_jms.apply(root, {**MODULE, "servers": {"a": {"store": "file"}}})
    assert Domain(root).servers.entry("a").lease_ms == 10_000
    with pytest.raises(ModuleFileError, match=r"servers.a.lease is '1 s', but must be 2 s to 1 h"):
        spark_jms.apply(root, {**MODULE, "servers": {"a": {"store": "file", "lease": "1 s"}}})


def test_one_keeper_for_all_consumers_and_housekeepers_of_a_context(root: str) -> None:
    """D4: a context renews the leases of the servers that it uses, and of no others, until it is closed."""
    before = {thread.name for thread in threading.enumerate()}
    with spark_jms.connect(root) as opened, opened.consumer("bills"), opened.consumer("bills"):
        wait_until(lambda: {info.path for info in Domain(root).storage.list(LEASES)} == {f"{LEASES}/b", f"{LEASES}/c"})
        assert sum(thread.name == "jmsq server leases" for thread in threading.enumerate()) == 1
    wait_until(lambda: {thread.name for thread in threading.enumerate()} <= before)


def test_failing_storage_pauses_the_keeper(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """D4: while the domain's storage fails, nothing is decided; afterwards the keeper continues."""
    domain = Domain(root)
    keeper = ServerKeeper(
        domain, lambda server: None, lambda server: None, lambda server, timeout_s: "", lambda server: 0.0
    )
    fail = [True]
    entry = type(domain.servers).entry

    def failing(self: Any, name: str) -> Any:
        if fail[0]:
            raise OSError("the share is away")
        return entry(self, name)

    monkeypatch.setattr(type(domain.servers), "entry", failing)
    keeper.use(domain.log("bills"))
    domain.log("bills").refresh()
    keeper.use(domain.log("bills"))
    wait_until(lambda: bool(keeper.failures))
    assert "the share is away" in keeper.failures[0].error
    fail[0] = False
    wait_until(lambda: not keeper.failures and domain.storage.exists(f"{LEASES}/b"))
    keeper.close()


def test_idle_process_learns_of_a_stop_and_a_start(root: str) -> None:
    """D4: nobody uses the table that the keeper looks at."""
    stop_server(Domain(root), "b")
    domain = Domain(root)
    table = domain.log("orders")
    table.refresh()
    asked: list[str] = []
    keeper = ServerKeeper(domain, asked.append, lambda server: None, lambda server, timeout_s: "", lambda server: 0.0)
    keeper.use(table)
    wait_until(lambda: {"a", "c"} <= set(asked))
    assert "b" not in asked
    start_server(Domain(root), "b")
    wait_until(lambda: "b" in asked)
    stop_server(Domain(root), "b")
    wait_until(lambda: "b" in table.snapshot.destination.stopped)
    keeper.close()


def test_term_reaches_all_destinations_but_the_one_that_fails(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """D4: bills cannot be read, so orders still learns that b is away."""
    real = log_servers.follow_term

    def follow(log: Any, server: str, term: LeaseTerm) -> bool:
        if log.name == "bills":
            raise OSError("damaged")
        return real(log, server, term)

    monkeypatch.setattr(lease, "follow_term", follow)
    keeper = ServerKeeper(
        Domain(root), lambda server: None, lambda server: None, lambda server, timeout_s: "", lambda server: 0.0
    )
    with pytest.raises(OSError, match="damaged"):
        keeper.commit_everywhere("b", LeaseTerm(1, 5))
    keeper.close()
    assert Domain(root).log("orders").refresh().destination.down == {"b": 5}


class BusyLane:
    """A lane whose last work has answered and has not ended."""

    def __init__(self, _: str) -> None:
        self.busy = False

    def run(self, work: Callable[[], Any], timeout_s: float) -> Any:
        if self.busy:
            raise StoreThreadBusyError
        return work()

    def close(self, last: Callable[[], object] | None = None) -> None: ...


def test_question_that_the_lane_refuses_is_not_under_way() -> None:
    """D4: else no question is asked ever again, and the store counts as silent."""
    lane = BusyLane("b")
    questions = StoreProbe("b", lambda: None, lambda: "", lambda: 0.0, lambda _: lane, lambda: 0.0)
    questions.ask(0.0)
    lane.busy = True
    questions.ask(1_000.0)
    lane.busy = False
    assert questions.contact.asked_ms is None


def test_absence_is_known_of_what_refuses_or_is_missing(tmp_path: Path) -> None:
    """D4: a folder that does not exist and an address that refuses connections prove absence; an address that hangs does not,
    and neither does a cluster with one daemon that accepts."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        there = Endpoint("127.0.0.1", listening.getsockname()[1])
        assert absence([there], 1.0) == ""
    gone = there
    assert "refuses connections" in absence([gone], 1.0)
    assert absence([str(tmp_path)], 1.0) == ""
    assert "does not exist" in absence([str(tmp_path / "x" / "y")], 1.0)
    assert absence([], 1.0) == ""
    assert absence([gone, str(tmp_path)], 1.0) == ""
    assert places_of("jdbc:postgresql://u@db:5/x") == [Endpoint("db", 5)]
    assert places_of("jdbc:postgresql://u@%2Frun%2Fpg/x") == ["/run/pg/.s.PGSQL.5432"]
    assert places_of("jdbc:sqlite:///tmp/x.db") == ["/tmp/x.db"]
    assert places_of("memory://x") == ()
    assert places_of("/a/b") == ["/a/b"]
    (tmp_path / "rs_daemons.cfg").write_text("127.0.0.1 4001 7 64M\n127.0.0.1 4002 8 64M\n")
    assert places_of(f"replicated://{tmp_path}?store=s") == [Endpoint("127.0.0.1", 4001), Endpoint("127.0.0.1", 4002)]


def test_root_that_vanished_has_followed_no_term(root: str) -> None:
    """D4: without a register there is no destination to tell, which does not mean that all of them know."""
    domain = Domain(root)
    keeper = ServerKeeper(
        domain, lambda server: None, lambda server: None, lambda server, timeout_s: "", lambda server: 0.0
    )
    Path(root).rename(f"{root}-away")
    with pytest.raises(DomainError):
        keeper.commit_everywhere("b", LeaseTerm(1, 5))
    keeper.close()
    assert not keeper.committed
    assert not Path(root).exists()
    with pytest.raises(DomainError):
        admin_servers._change(domain, "b", 5)
