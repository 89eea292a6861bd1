"""Forwarding of messages from members without consumers to members that have some (D5)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import spark_jms
from spark_jms.admin.destinations import pause, resume
from spark_jms.admin.servers import stop_server
from spark_jms.claims.upkeep import housekeeping, views
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.claims.upkeep.move import Forwarders, MemberForwarder
from spark_jms.cli.__main__ import cli
from spark_jms.client import Context
from spark_jms.errors import MessageFormatError, ModuleFileError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.commit import Decision, commit, metadata_action
from spark_jms.testing.domain import wait_until
from tests.harness.domains.servers import SERVERS
from tests.harness.processes.killed import killed_client

ON_SERVERS = {"kind": "distributed-queue", "servers": ["a", "b", "c"], "forwardDelay": "10 s"}
AT_HOME = {"kind": "distributed-queue", "members": 3, "forwardDelay": "10 s"}


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Bench:
    """A queue with three members, a context, and a forwarder with a clock of its own."""

    def __init__(self, root: str, orders: dict[str, Any]) -> None:
        self.root = root
        spark_jms.apply(root, {"servers": SERVERS, "destinations": {"orders": orders}})
        self.domain, self.clock = Domain(root), Clock()
        self.context: Context = spark_jms.connect(root, housekeeping=False)
        self.placed = "servers" in orders

    def send(self, member: int, *texts: str) -> None:
        """To one member, whether it has a name or not."""
        if self.placed:
            self.context.producer(f"{'abc'[member]}@orders").send_many({"text": text} for text in texts)
            return
        self.context.producer("orders").send_many({"text": text} for text in texts)
        from spark_jms.admin.transfer import MoveOrder
        from spark_jms.admin.transfer import move as carry_out

        with views.opened_store(self.domain) as store:
            carry_out(self.domain, store, MoveOrder("orders", "orders", target_member=member), 5)

    def consumer(self, member: int) -> Any:
        if self.placed:
            return self.context.consumer(f"{'abc'[member]}@orders", acknowledge="auto")
        made = self.context.consumer("orders", members=member, acknowledge="auto")
        made.receive(0)  # it takes up its member when it receives
        return made

    def texts(self) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {0: [], 1: [], 2: []}
        for message in self.context.browser("orders"):
            found[message.member].append(message.text or "")
        return found


@pytest.fixture(params=["servers", "home"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(str(tmp_path / "root"), ON_SERVERS if request.param == "servers" else AT_HOME)
    yield made
    made.context.close()


@pytest.fixture
def forwarder(bench: Bench) -> Iterator[MemberForwarder]:
    with views.opened_store(bench.domain) as store:
        yield MemberForwarder(bench.domain, store, "orders", bench.clock)


def test_idle_messages_go_to_members_with_consumers(bench: Bench, forwarder: MemberForwarder) -> None:
    """D5: after the delay and not before, on one server and across servers; the messages keep their ids and bodies, their delivery
    count begins again, and a member with a consumer keeps its own."""
    bench.send(0, "1", "2", "3", "4")
    before = {message.message_id: message.text for message in bench.context.browser("orders")}
    assert forwarder.run().moves == ()
    bench.clock.now_s += 60
    assert forwarder.run().moves == ()  # no member has consumers
    first, second = bench.consumer(1), bench.consumer(2)
    moves = forwarder.run().moves
    assert sorted((step.source, step.target, step.messages) for step in moves) == [(0, 1, 2), (0, 2, 2)]
    got = [first.receive(30), first.receive(30), second.receive(30), second.receive(30)]
    assert {message.message_id: message.text for message in got} == before
    assert {(message.redelivered, message.delivery_count) for message in got} == {(False, 1)}
    assert forwarder.run().moves == ()


def test_housekeeping_forwards(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """D5: without any command; and the delay begins again for a process that takes over."""
    monkeypatch.setattr(housekeeping, "MemberForwarder", partial(MemberForwarder, monotonic_s=bench.clock))
    bench.send(0, "1", "2")
    consumer = bench.consumer(1)
    with views.opened_store(bench.domain) as store:
        first, second = Housekeeper(bench.domain, store, "orders"), Housekeeper(bench.domain, store, "orders")
        assert first.run()
        assert not second.run()
        bench.clock.now_s += 9
        assert first.run()
        assert sorted(bench.texts()[0]) == ["1", "2"]
        first.close()
        bench.clock.now_s += 9
        assert second.run()
        assert sorted(bench.texts()[0]) == ["1", "2"], "the second one has not seen that the member was idle"
        bench.clock.now_s += 11
        assert second.run()
        assert not second.health.failures
        assert bench.texts()[0] == []
        second.close()
    assert {consumer.receive(30).text for _ in range(2)} == {"1", "2"}


def test_member_with_a_consumer_waits_again_when_it_leaves(bench: Bench, forwarder: MemberForwarder) -> None:
    """D5: the delay counts from the look at which the member had no consumer; one that comes in between begins it again."""
    target = bench.consumer(1)
    bench.send(0, "1")
    forwarder.run()
    bench.clock.now_s += 9
    assert forwarder.run().moves == ()
    with bench.context.consumer("orders", members=0) as own:
        held = own.receive(30)
        assert held is not None
        bench.clock.now_s += 5
        assert forwarder.run().moves == ()
    wait_until(lambda: forwarder.run().moves == () and bench.texts()[0] == ["1"])
    bench.clock.now_s += 9
    assert forwarder.run().moves == ()
    bench.clock.now_s += 2
    assert [(step.source, step.target) for step in forwarder.run().moves] == [(0, 1)]
    message = target.receive(30)
    assert message is not None
    assert (message.text, message.redelivered, message.delivery_count) == (
        "1",
        False,
        1,
    )  # it was delivered on member 0


def test_forwarding_leaves_messages_whose_redelivery_is_delayed(tmp_path: Path) -> None:
    """D5, C8: with `delay`, no consumer gets it before the delay is over."""
    bench = Bench(str(tmp_path / "root"), ON_SERVERS)
    with bench.context, views.opened_store(bench.domain) as store:
        forwarder = MemberForwarder(bench.domain, store, "orders", bench.clock)
        bench.send(0, "1")
        with bench.context.consumer("a@orders", acknowledge="individual") as own:
            message = own.receive(30)
            assert message is not None
            message.reject(delay="1 h")
        target = bench.consumer(1)
        forwarder.run()
        bench.clock.now_s += 60
        assert forwarder.run().moves == ()
        assert target.receive(1) is None


def test_claims_of_a_dead_consumer_are_forwarded(tmp_path: Path) -> None:
    """D5: a member whose only consumer was killed has messages and no consumers."""
    bench = Bench(str(tmp_path / "root"), ON_SERVERS)
    with bench.context, views.opened_store(bench.domain) as store:
        forwarder = MemberForwarder(bench.domain, store, "orders", bench.clock)
        bench.send(0, *"12345")
        with killed_client(bench.root, 'assert context.consumer("a@orders").receive(timeout=60)'):
            pass
        with bench.consumer(1) as target:
            texts = set()
            deadline = time.monotonic() + 30
            while len(texts) < 5 and time.monotonic() < deadline:
                forwarder.run()
                bench.clock.now_s += 60
                message = target.receive(0.2)
                if message is not None:
                    texts.add(message.text)
            assert texts == set("12345"), texts


def test_nothing_comes_from_or_goes_to_a_server_that_cannot_be_asked(tmp_path: Path) -> None:
    """D5, D4: an away server is named, and neither source nor target; a stopped one is left alone."""
    bench = Bench(str(tmp_path / "root"), ON_SERVERS)
    with bench.context, views.opened_store(bench.domain) as store:
        forwarder = MemberForwarder(bench.domain, store, "orders", bench.clock)
        bench.send(0, "1")
        bench.send(1, "2")
        consumer = bench.consumer(2)
        stop_server(bench.domain, "a")
        forwarder.run()
        bench.clock.now_s += 60
        done = forwarder.run()
        assert [(step.source, step.target) for step in done.moves] == [(1, 2)]
        assert done.problems == ("server a: it is down",)
        assert consumer.receive(30).text == "2"
        assert bench.texts()[0] == ["1"]


def test_units_of_order_and_forwarding_exclude_each_other(tmp_path: Path) -> None:
    """D5, T10: a message with a unit is refused by name, from the client and from staged batches; messages that had one before
    stay. Contradicting declarations are refused."""
    root = str(tmp_path / "root")
    plain = {key: value for key, value in AT_HOME.items() if key != "forwardDelay"}
    bench = Bench(root, plain)
    with bench.context as context, views.opened_store(bench.domain) as store:
        unit = context.producer("orders").send(text="unit", group_id="g")
        spark_jms.apply(root, {"destinations": {"orders": {**AT_HOME, "forwardDelay": "0"}}})
        for send in (
            lambda: context.producer("orders").send(text="x", group_id="g"),
            lambda: context.producer("orders").send_many({"text": "x", "group_id": "g"} for _ in range(200)),
        ):
            with pytest.raises(MessageFormatError, match="forwards messages between its members"):
                send()
        with bench.consumer((unit.member + 1) % 3):
            assert MemberForwarder(bench.domain, store, "orders").run().moves == ()
        assert bench.texts()[unit.member] == ["unit"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"kind": "queue"}, "forwardDelay is given, but a queue"),
        ({"kind": "distributed-topic"}, "it is for a distributed-queue"),
        ({"kind": "distributed-queue", "defaultUnitOfOrder": "u"}, "messages of a unit stay on one member"),
        ({"kind": "distributed-queue", "unitOfWorkHandlingPolicy": "SingleMessageDelivery"}, "messages of a unit"),
    ],
)
def test_contradicting_declarations_are_refused(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    """D5: by name, before anything changes."""
    with pytest.raises(ModuleFileError, match=said):
        spark_jms.apply(str(tmp_path), {"destinations": {"orders": {"forwardDelay": "10 s", **more}}})


def test_forward_command(tmp_path: Path) -> None:
    """D5, C14: rounds in which something moved are reported, as text or JSON; a destination without forwardDelay is left alone."""
    root = str(tmp_path / "root")
    bench = Bench(root, {**ON_SERVERS, "forwardDelay": "0"})
    with bench.context, bench.consumer(1):
        bench.send(0, "1", "2")
        command = ["forward", "--times", "1", "--root", root]
        assert "forwarded 2 message(s) of orders, member 0, to member 1" in CliRunner().invoke(cli, command).stdout
        bench.send(0, "3")
        (line,) = CliRunner().invoke(cli, [*command, "--json"]).stdout.splitlines()
        assert json.loads(line)["moves"] == [{"source": 0, "target": 1, "messages": 1}]
        assert CliRunner().invoke(cli, command).stdout == ""


def test_destination_that_fails_holds_up_no_other(tmp_path: Path) -> None:
    """D5: a table that cannot be read is named, and the job continues with the other queues."""
    bench = Bench(str(tmp_path / "root"), {**ON_SERVERS, "forwardDelay": "0"})
    more = {"kind": "distributed-queue", "members": 2, "forwardDelay": "0"}
    spark_jms.apply(bench.root, {"destinations": {"damaged": more}})
    for file in (Path(bench.root) / "damaged" / "_delta_log").iterdir():
        file.unlink()
    with bench.context, bench.consumer(1), views.opened_store(bench.domain) as store:
        bench.send(0, "1")
        first, second = Forwarders(Domain(bench.root), store).run(["damaged", "orders"])
        assert len(first.problems) == 1
        assert [(step.source, step.target) for step in second.moves] == [(0, 1)]


def test_nothing_goes_to_paused_and_leaving_members(tmp_path: Path) -> None:
    """D5, T14: insertion or production paused, or on its way out: such a member gets nothing, although it has a consumer."""
    bench = Bench(str(tmp_path / "root"), {**ON_SERVERS, "forwardDelay": "0"})
    with bench.context, bench.consumer(1), bench.consumer(2), views.opened_store(bench.domain) as store:
        forwarder = MemberForwarder(bench.domain, store, "orders")
        pause(bench.domain, "orders", ["insertion"], [1])
        bench.send(0, "1", "2")
        assert {step.target for step in forwarder.run().moves} == {2}
        resume(bench.domain, "orders")
        log = bench.domain.log("orders")
        changed = log.refresh().destination.with_leaving({2}, log.snapshot.last_sequence)
        commit(log, lambda snapshot: Decision("SET TBLPROPERTIES", [metadata_action(snapshot, changed)]))
        bench.send(0, "3", "4")
        assert {step.target for step in forwarder.run().moves} == {1}
