"""Servers with stores of their own: members, sessions, batches and what goes on while one is down (D1, D4, D8, M10)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_jms
from spark_jms import admin as administration
from spark_jms.admin.servers import start_server, stop_server
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers import branches
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.records import members
from spark_jms.claims.servers.stores import open_stores, record_of
from spark_jms.claims.servers.stores import read_state as state
from spark_jms.claims.upkeep import views
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.errors import (
    ConsumerClosedException,
    DomainError,
    InvalidDestinationError,
    MemberRemovalError,
    ModuleFileError,
    ServerDownError,
)
from spark_jms.log.destinations.declarations import ServerStates
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.log.sending.send import send as send_files
from spark_jms.spark.options import parse_options
from spark_jms.spark.source import JmsqStreamReader
from spark_jms.store import MemoryStore, open_store
from spark_jms.store.errors import SessionLostError, StoreNotFoundError
from spark_jms.store.kinds.routed import RoutedStore
from spark_jms.testing.domain import PATIENCE, wait_until
from tests.harness.domains.servers import SERVERS, Away, applied, next_batch, queue_on
from tests.harness.messages.source_steps import LIMIT, next_offset, texts_of


@pytest.fixture
def root(tmp_path: Path) -> str:
    return applied(tmp_path, queue_on("a", "b", "c"))


def send(root: str, *texts: str, group: str | None = None) -> list[tuple[int, int]]:
    with spark_jms.connect(root, housekeeping=False) as ctx, ctx.producer("orders") as producer:
        sent = [producer.send(text=text, group_id=group) for text in texts]
    return [(one.member, one.sequence) for one in sent]


def received(consumer: Any, count: int) -> list[str]:
    found = []
    while len(found) < count and (message := consumer.receive(10)) is not None:
        found.append(message.text)
        message.acknowledge()
    return found


@pytest.fixture
def query(root: str) -> Iterator[Any]:
    """Makes instances of one query."""
    opened: list[Subscriber] = []
    domain = Domain(root)
    store = open_stores(domain)

    def instance() -> Subscriber:
        for old in opened:
            old.close()
        made = Subscriber(domain, store, "orders", "-", "q", ConsumerSettings())
        opened.append(made)
        return made

    yield instance
    for one in opened:
        one.close()
    store.close()


def test_uniform_destination_has_a_member_on_each_server(root: str) -> None:
    """D1: one member on each targeted server, whose record set is in that server's store."""
    declared = Domain(root).log("orders").refresh().destination
    assert {m: declared.server_of(m) for m in declared.member_ids} == {0: "a", 1: "b", 2: "c"}
    assert sorted(m for m, _ in send(root, *"123456")) == [0, 0, 1, 1, 2, 2]
    with spark_jms.connect(root) as ctx, ctx.consumer("orders") as consumer:
        assert sorted(received(consumer, 6)) == list("123456")
    domain = Domain(root)
    with views.opened_store(domain) as store:
        rows = views.subscriptions(domain, store, "orders")
        assert [(row.member, row.backlog, row.epoch > 0) for row in rows] == [(0, 0, True), (1, 0, True), (2, 0, True)]
        for server, member in (("a", 0), ("b", 1), ("c", 2)):
            names = store.names(f"@{server}/members/")
            assert [name.rsplit("/", 1)[1] for name in names] == [str(member)]
        assert store.names("members/") == []


def test_member_ids_are_never_used_again(root: str) -> None:
    """D1: a server that is removed and added again gets a member with a new id; the others keep theirs."""
    spark_jms.apply(root, queue_on("a", "c"))
    spark_jms.apply(root, queue_on("a", "c", "b"))
    declared = Domain(root).log("orders").refresh().destination
    assert {m: declared.server_of(m) for m in declared.member_ids} == {0: "a", 2: "c", 3: "b"}
    assert {m for m, _ in send(root, *"123456")} == {0, 2, 3}
    with spark_jms.connect(root) as ctx, ctx.consumer("orders") as consumer:
        assert sorted(received(consumer, 6)) == list("123456")
    assert [change.what for change in spark_jms.apply(root, queue_on("a", "c", "b"))] == ["unchanged"]


def test_member_with_messages_is_not_removed(root: str) -> None:
    """D1, T10: removing a member that holds messages is refused; moved to another one, the messages and their units go on
    there."""
    (sent,) = {member for member, _ in send(root, "1", "2", group="unit")}
    kept = [server for server, member in (("a", 0), ("b", 1), ("c", 2)) if member != sent]
    with pytest.raises(MemberRemovalError, match=f"member {sent} still holds messages"):
        spark_jms.apply(root, queue_on(*kept))
    with spark_jms.connect(root) as ctx, ctx.consumer("orders") as consumer:
        assert received(consumer, 2) == ["1", "2"]
    spark_jms.apply(root, queue_on(*kept))
    ((heir, first),) = send(root, "3", group="unit")
    assert heir != sent
    assert first == 1
    assert {member for member, _ in send(root, *"4567", group="unit")} == {heir}


def test_destination_moves_from_its_domain_store_to_servers(tmp_path: Path) -> None:
    """D1: a destination of before keeps its members; with `servers` it gets new ones, and the old ones go once they are empty."""
    root = str(tmp_path / "root")
    spark_jms.apply(root, {"destinations": {"orders": {"kind": "distributed-queue", "members": 2}}})
    before = Domain(root).log("orders").refresh()
    assert before.destination.placement is None
    assert before.metadata["configuration"]["jmsq.formatVersion"] == "1"
    send(root, "1", "2")
    with pytest.raises(MemberRemovalError):
        spark_jms.apply(root, queue_on("a", "home"))
    with spark_jms.connect(root) as ctx, ctx.consumer("orders") as consumer:
        assert sorted(received(consumer, 2)) == ["1", "2"]
    spark_jms.apply(root, queue_on("a", "home"))
    after = Domain(root).log("orders").refresh()
    assert after.destination.placement.members == ((2, "a"), (0, "home"))
    assert after.metadata["configuration"]["jmsq.formatVersion"] == "4"  # slots of units of order have moved
    assert {member for member, _ in send(root, "3", "4")} == {0, 2}
    with pytest.raises(InvalidDestinationError, match="cannot return to `members`"):
        spark_jms.apply(root, {"destinations": {"orders": {"kind": "distributed-queue", "members": 2}}})


def test_weighted_destination_works_and_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """D1, D2: weights go with the servers in their order; a weighted destination is deprecated, and applying one says so."""
    root = str(tmp_path / "root")
    spark_jms.apply(root, queue_on("b", "a", routing="weighted", weights=[1, 0]))
    assert "weighted distributed destinations are deprecated" in caplog.text
    declared = Domain(root).log("orders").refresh().destination
    assert {declared.server_of(member) for member, _ in send(root, *"123456")} == {"b"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"servers": {"home": {"store": "file"}}}, "home is the domain's own store"),
        ({"servers": {"a": {}}}, "servers.a.store is missing"),
        ({"servers": {"a": {"store": 5}}}, "servers.a.store is 5"),
        ({"servers": {"a": {"shop": "x"}}}, "unknown key 'shop' in servers.a"),
        ({"servers": {"a": {"store": "/x"}, "b": {"store": "/x"}}}, "servers.b.store is that of server a"),
        (queue_on("a", "a"), "must name each server once"),
        (queue_on("a", "b", members=3), "members is 3, but must be 2 or left out"),
        ({"destinations": {"orders": {"kind": "queue", "servers": ["a", "b"]}}}, "a queue is on one server"),
    ],
)
def test_wrong_declarations_of_servers_are_refused(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    """D1: the error names the key and what is allowed."""
    with pytest.raises(ModuleFileError, match=said):
        spark_jms.apply(str(tmp_path), {"destinations": {"orders": {"kind": "queue"}}, **wrong})


def test_server_keeps_its_store(root: str) -> None:
    """D1: an unknown server, another store for a known one and the store of another one are refused by name."""
    with pytest.raises(DomainError, match="no server 'd'"):
        spark_jms.apply(root, queue_on("a", "d"))
    other = {**queue_on("a", "b", "c"), "servers": {"a": {"store": "memory://elsewhere"}}}
    with pytest.raises(DomainError, match="cannot be changed"):
        spark_jms.apply(root, other)
    same = {**queue_on("a", "b", "c"), "servers": {"d": {"store": f"{root}/_jmsq/stores/a"}}}
    with pytest.raises(DomainError, match="has the store of server a"):
        spark_jms.apply(root, same)


def test_store_of_a_server_has_a_folder_of_its_own(root: str, tmp_path: Path) -> None:
    """D1, C18: not inside a destination's, which a drop deletes, nor another server's under another name."""
    for inside in (f"{root}/orders", root, f"file://{root}/_jmsq/servers", f"{root}/../{Path(root).name}/orders/x"):
        with pytest.raises(DomainError, match="would be inside the root"):
            spark_jms.apply(root, {**queue_on("a"), "servers": {"d": {"store": inside}}})
        with pytest.raises(DomainError, match="would be inside the root"):
            spark_jms.apply(
                f"{root}/orders/domain",
                {"store": f"{root}/orders/domain/store", "destinations": {"q": {"kind": "queue"}}},
            )
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    for second in (f"{folder}/", f"{tmp_path}//folder", f"file://{folder}", str(tmp_path / "link")):
        servers = {"d": {"store": str(folder)}, "e": {"store": second}}
        with pytest.raises(DomainError, match="server e has the store of server d"):
            spark_jms.apply(root, {**queue_on("a"), "servers": servers})


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_missing_home_store_is_never_a_new_one(tmp_path: Path, kind: str) -> None:
    """R8, T5: a disk that is not mounted: programs end by name until it is back, and nothing comes again. Only an administrator makes
    an empty store."""
    root, disk = str(tmp_path / "root"), tmp_path / "disk"
    disk.mkdir()
    store = f"{disk}/store" if kind == "file" else f"jdbc:sqlite://{disk}/home.db"
    spark_jms.apply(root, {"store": store, "destinations": {"orders": {"kind": "queue"}}})

    def texts() -> list[str]:
        with (
            spark_jms.connect(root, housekeeping=False) as context,
            context.consumer("orders", acknowledge="auto") as consumer,
        ):
            return [message.text or "" for message in consumer.messages(idle_timeout=0.2)]

    with spark_jms.connect(root, housekeeping=False) as context:
        context.producer("orders").send(text="1")
    assert texts() == ["1"]
    disk.rename(tmp_path / "unmounted")
    disk.mkdir()
    for program in (texts, lambda: administration.connect(root)):
        with pytest.raises(StoreNotFoundError, match="bring .* back.*`jmsq store create"):
            program()
    shutil.rmtree(disk)
    (tmp_path / "unmounted").rename(disk)
    assert texts() == []
    shutil.rmtree(disk)
    disk.mkdir()
    open_store(Domain(root).store_uri).close()  # as `jmsq store create` does
    assert texts() == ["1"]


def test_batch_takes_messages_of_all_servers(root: str, query: Any) -> None:
    """M10, D8: one batch of a query has messages of every server, under one claim, within its limit."""
    send(root, *"123456789")
    subscriber = query()
    batch = next_batch(subscriber, Batch("q", table=subscriber.table_id), Limits(max_messages=5))
    assert batch.count == 5
    assert set(batch.members) == {0, 1, 2}
    assert subscriber.resume(batch) == {}
    rest = next_batch(subscriber, batch, Limits(max_messages=5))
    assert rest.count == 4
    assert rest.delivered.keys() == {0, 1, 2}
    assert subscriber.next_batch(rest, Limits()) is None
    assert subscriber.backlog() == {0: 0, 1: 0, 2: 0}


def test_query_goes_on_with_the_other_servers(root: str, query: Any) -> None:
    """M10, D4: while a server is away, batches have the messages of the others; what it had claimed is carried in the offset,
    acknowledged when it is back, and not delivered again. Its other messages wait, and return with it."""
    send(root, *"123")
    subscriber = query()
    first = next_batch(subscriber, Batch("q", table=subscriber.table_id))
    assert first.delivered.keys() == {0, 1, 2}
    send(root, *"456")
    with Away(root, "b"):
        second = next_batch(subscriber, first)
        assert second.delivered.keys() == {0, 2}
        assert second.members[1].claim == first.claim
        assert second.members[1].picks == first.members[1].picks
        assert Batch.from_json(second.to_json()) == second
        assert subscriber.away().keys() == {"b"}
        assert subscriber.is_unacknowledged(second)
        send(root, *"789")
        third = next_batch(subscriber, second)
        assert third.delivered.keys() == {0, 2}
        assert third.members[1] == second.members[1]
    fourth = next_batch(subscriber, third)
    assert {m: pick.picks.text() for m, pick in fourth.delivered.items()} == {1: "2-3"}
    assert not fourth.delivered[1].redelivered
    wait_until(lambda: subscriber.next_batch(fourth, Limits()) is None and not any(subscriber.backlog().values()))
    assert subscriber.away() == {}


def test_restarted_query_acknowledges_what_its_offset_carries(root: str, query: Any) -> None:
    """M10, C5: an instance that starts with a carried claim acknowledges it when the server is back, and delivers it to none."""
    send(root, *"123")
    subscriber = query()
    first = next_batch(subscriber, Batch("q", table=subscriber.table_id))
    send(root, *"456")
    with Away(root, "b"):
        second = next_batch(subscriber, first)
        restarted = query()
        assert restarted.resume(second) == {}
        assert restarted.next_batch(second, Limits()) is None
    third = next_batch(restarted, second)
    assert {m: pick.picks.text() for m, pick in third.delivered.items()} == {1: "2"}


def test_server_that_hangs_holds_up_no_other(root: str, query: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """M10: a server that does not answer in time is left out of the batch, and takes part again when it answers."""
    import threading

    from spark_jms.claims.consumers.server_part import ServerPart

    send(root, *"123")
    subscriber = query()
    first = next_batch(subscriber, Batch("q", table=subscriber.table_id))
    send(root, *"456")
    proceed, prepare = threading.Event(), ServerPart.prepare

    def hangs(self: ServerPart, *args: Any, **named: Any) -> Any:
        if 1 in self.members.known:
            assert proceed.wait(60)
        return prepare(self, *args, **named)

    monkeypatch.setattr(ServerPart, "prepare", hangs)
    monkeypatch.setattr(branches, "ANSWER_S", 0.5)
    second = next_batch(subscriber, first)
    assert second.delivered.keys() == {0, 2}
    assert subscriber.away().keys() == {"b"}
    proceed.set()
    third = next_batch(subscriber, second)
    assert {m: pick.picks.text() for m, pick in third.delivered.items()} == {1: "2"}


def test_record_set_that_a_late_plan_has_opened_is_closed(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C9, M10: the consumer waits for a record set that another session keeps, and its batch is made without that server meanwhile.
    What a context does once a second closes it, or no other consumer could have it until the next plan."""
    monkeypatch.setattr(members, "SHORT_S", 0.0)
    monkeypatch.setattr(members, "LINE_S", 60.0 * PATIENCE)
    domain = Domain(root)
    store = open_stores(domain)
    one = Subscriber(domain, store, "orders", "-", "c", ConsumerSettings(replayable=False))
    session = store.connect("test")
    name = record_of(domain.log("orders").refresh(), "-", 0)
    handle = session.open(name)
    monkeypatch.setattr(branches, "ANSWER_S", 0.1)
    wait_until(lambda: one.next_batch(Batch("c"), Limits()) is None and handle.waiters())
    handle.close()

    def holder() -> str | None:
        return session.look([name])[name].holder

    wait_until(holder)
    wait_until(lambda: one.flush_outbox() or not holder())
    session.close()
    one.close()
    store.close()


def test_client_loses_a_server_with_unacknowledged_messages(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """M10, D3: the consumer is closed by name; a new one gets the messages of the other servers, and those of the lost one,
    flagged, when it is back. A consumer that owes a server nothing continues without it."""
    monkeypatch.setattr("spark_jms.client.receiving.receiver.WRITE_TIMEOUT_S", 1.0)
    send(root, *"123")
    with spark_jms.connect(root) as ctx:
        consumer, idle = ctx.consumer("orders"), ctx.consumer("orders")
        got = [consumer.receive(30) for _ in range(3)]
        assert sorted(message.text for message in got) == ["1", "2", "3"]
        with Away(root, "b"):
            wait_until(lambda: _raises(consumer))
            consumer.close()
            idle.close()
            send(root, *"456")
            with ctx.consumer("orders") as again:
                others = {"1", "2", "3", "4", "5", "6"} - {m.text for m in got if m.member == 1}
                found = [again.receive(30) for _ in range(4)]
                assert {message.text for message in found} < others
                for message in found:
                    message.acknowledge()
        with ctx.consumer("orders") as last:
            back = [last.receive(30) for _ in range(2)]
            assert {message.member for message in back} == {1}
            assert [message.redelivered for message in back] == [True, False]


def _raises(consumer: Any) -> bool:
    try:
        consumer.receive(0)
    except ConsumerClosedException:
        return True
    return False


def test_stopped_server_gets_no_messages(root: str, query: Any) -> None:
    """D4, T10: senders route to the other servers; a unit of order of the stopped one fails by name, as do all sends when every
    server is stopped. Messages that are there wait, and return when the server is started."""
    member, _ = send(root, "1", group="unit")[0]
    stopped = "abc"[member]
    domain = Domain(root)
    assert stop_server(domain, stopped) == ["orders"]
    assert stop_server(domain, stopped) == []
    assert member not in {m for m, _ in send(root, *"2345")}
    with pytest.raises(ServerDownError, match=f"stopped server {stopped}"):
        send(root, "6", group="unit")
    subscriber = query()
    first = next_batch(subscriber, Batch("q", table=subscriber.table_id))
    assert first.count == 4
    assert subscriber.away() == {stopped: "an administrator has stopped it"}
    for other in "abc":
        stop_server(domain, other)
    with pytest.raises(ServerDownError):
        send(root, "7")
    for other in "abc":
        start_server(domain, other)
    second = next_batch(subscriber, first)
    assert {m: pick.picks.text() for m, pick in second.delivered.items()} == {member: "1"}
    assert send(root, "8", group="unit") == [(member, 2)]


def test_staged_messages_avoid_a_server_that_is_stopped_meanwhile(root: str) -> None:
    """D4: what was routed before the stop and commits after it goes elsewhere, in its order; a transfer too."""
    domain = Domain(root)
    log = domain.log("orders")
    snapshot = log.refresh()
    writer = MessageWriter(log.storage, snapshot.destination, 0)
    bodies = [str(n).encode() for n in range(30)]
    writer.write(pa.record_batch([pa.array(bodies, pa.binary())], names=["body"]))
    staged = writer.close()
    assert {file.member for file in staged} == {0, 1, 2}
    stop_server(domain, "b")
    sent = send_files(log, staged, snapshot.route_id)
    assert {m: picks.count for m, picks in sent.sequences.items()} == {0: 15, 2: 15}
    with spark_jms.connect(root) as ctx:
        texts = [(message.member, int(message.body)) for message in ctx.browser("orders")]
    assert all([n for m, n in texts if m == member] == sorted(n for m, n in texts if m == member) for member in (0, 2))


def test_client_hands_a_stopped_server_back(root: str) -> None:
    """D4, D3: a consumer that owes the stopped server nothing continues with the others; one that does is closed by name."""
    send(root, *"123")
    with spark_jms.connect(root) as ctx:
        consumer = ctx.consumer("orders")
        got = [consumer.receive(30) for _ in range(3)]
        stop_server(Domain(root), "b")
        wait_until(lambda: _raises(consumer))
        consumer.close()
        assert len(got) == 3
        with ctx.consumer("orders") as other:
            found = [other.receive(30) for _ in range(2)]
            assert {message.member for message in found} == {0, 2}
            for message in found:
                message.acknowledge()
            start_server(Domain(root), "b")
            last = other.receive(30)
            assert (last.member, last.redelivered) == (1, True)


def test_server_that_is_stopped_stays_so_for_new_members(root: str) -> None:
    """D4: a destination that comes to a stopped server finds it down; `home` cannot be stopped."""
    domain = Domain(root)
    stop_server(domain, "c")
    more = queue_on("a", "c")
    more["destinations"]["bills"] = {"kind": "queue", "servers": ["c"]}
    spark_jms.apply(root, more)
    assert domain.log("bills").refresh().destination.stopped.keys() == {"c"}
    spark_jms.apply(root, queue_on("a"))
    spark_jms.apply(root, queue_on("a", "c"))
    assert domain.log("orders").refresh().destination.stopped.keys() == {"c"}
    assert start_server(domain, "c") == ["bills", "orders"]
    for wrong in ("home", "d"):
        with pytest.raises(DomainError):
            stop_server(domain, wrong)


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("stops", [True, False])
def test_destination_that_comes_to_a_server_at_that_moment_follows_it(
    root: str, monkeypatch: pytest.MonkeyPatch, new: bool, stops: bool
) -> None:
    """D4: an administrator stops or starts the server when apply has read its state, and before the destination can be found there."""
    domain, of = Domain(root), ServerStates.of
    spark_jms.apply(root, queue_on("a", "b"))
    if not stops:
        stop_server(domain, "c")
    reads = []

    def beside(*given: Any) -> ServerStates:
        found = of(*given)
        reads.append(found)
        if len(reads) == 1:
            (stop_server if stops else start_server)(domain, "c")
        return found

    monkeypatch.setattr(ServerStates, "of", staticmethod(beside))
    name = "bills" if new else "orders"
    module = {**queue_on("a", "b", "c"), "destinations": {name: queue_on("a", "b", "c")["destinations"]["orders"]}}
    spark_jms.apply(root, module)
    found = domain.log(name).refresh().destination
    assert found.servers_in_use() == ["a", "b", "c"]
    assert found.stopped.keys() == ({"c"} if stops else set())


def test_unreadable_destination_keeps_no_other_from_a_stop(root: str) -> None:
    """D4, C16: the others are stopped, and the error names it."""
    domain = Domain(root)
    for name in ("aaa", "zzz"):
        domain.storage.put(f"_jmsq/destinations/{name}", b"?")
    with pytest.raises(
        DomainError, match=r"server b is stopped, and all destinations but 2 know it. aaa: DomainError: .*damaged"
    ):
        stop_server(domain, "b")
    assert domain.log("orders").refresh().destination.stopped.keys() == {"b"}
    with pytest.raises(DomainError, match="server b is started"):
        start_server(domain, "b")
    assert not domain.log("orders").refresh().destination.stopped


@pytest.mark.parametrize("data", [b"", b"?", b"[]", b"null", b"{}"], ids=str)
@pytest.mark.parametrize("folder", ["servers/b", "stopped-servers/b", "lease-terms/b/0000000001"])
def test_damaged_file_of_a_server_is_named(root: str, folder: str, data: bytes) -> None:
    """D4, C16: whatever is in it."""
    domain = Domain(root)
    domain.storage.put(f"_jmsq/{folder}", data)
    with administration.connect(root) as admin, pytest.raises(DomainError, match=f"{folder} is damaged"):
        admin.servers()
    if folder.startswith("stopped"):
        assert start_server(domain, "b") == []
        with administration.connect(root) as admin:
            assert admin.servers()[2].state == "up"


def test_spark_source_delivers_each_claim_once(root: str, caplog: pytest.LogCaptureFixture) -> None:
    """M10, D8, C5: as Spark drives it. The partitions of a batch are what it has claimed, not what its offset carries; a run
    with Trigger.AvailableNow leaves the messages of an away server, and says so."""
    send(root, *"123")
    source = JmsqStreamReader(parse_options({"root": root, "destination": "orders"}))
    try:
        start = source.initialOffset()
        assert source.latestOffset(start, LIMIT) == start
        first = next_offset(source, start)
        assert texts_of(source, start, first) == list("123")
        send(root, *"456")
        with Away(root, "b"):
            second = next_offset(source, first)
            assert len(texts_of(source, first, second)) == 2
        third = next_offset(source, second)
        assert len(texts_of(source, second, third)) == 1
        stop_server(Domain(root), "c")
        source.prepareForTriggerAvailableNow()
        assert source.latestOffset(third, LIMIT) == third
        assert "server c is away" in caplog.text
        assert source.reportLatestOffset() == {"backlog": 0, "members": {"0": 0, "1": 0}}
    finally:
        source.stop()


@pytest.mark.parametrize("durable", [True, False])
def test_topic_on_servers(tmp_path: Path, durable: bool) -> None:
    """D1, C10, D7: a distributed topic has a member on each server, and a message goes to one of them; every subscription gets
    it, also one that is not durable, which leaves nothing behind on any server."""
    root = str(tmp_path / "root")
    news = {"kind": "distributed-topic", "servers": ["a", "b"]}
    spark_jms.apply(root, {"servers": SERVERS, "destinations": {"news": news}})
    with (
        spark_jms.connect(root) as ctx,
        ctx.consumer("news", subscription="one", durable=durable) as one,
        ctx.consumer("news", subscription="two", durable=durable) as two,
    ):
        ctx.producer("news").send_many({"text": str(n)} for n in range(4))  # two on each server
        assert sorted(received(one, 4)) == sorted(received(two, 4)) == list("0123")
    domain = Domain(root)
    with views.opened_store(domain) as store:
        stored = [name for server in "ab" for name in store.names(f"@{server}/members/") if state(store, name).floor]
        assert len(stored) == (4 if durable else 0)


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
