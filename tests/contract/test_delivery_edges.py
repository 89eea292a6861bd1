"""Delivery beside servers that hang or are stopped, and members that come and go (D1, D2, D3, D5, D6, C10)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import spark_jms
from spark_jms.admin.forward import MemberForwarder
from spark_jms.admin.move import MoveOrder, move
from spark_jms.claims import stores, subscription_use, views
from spark_jms.claims.housekeeper import Housekeeper
from spark_jms.claims.stores import record_of
from spark_jms.core.active_subscription import ActiveSubscription
from spark_jms.core.balancing import Balancing
from spark_jms.errors import MemberLostException, MemberUnavailableError, SubscriptionInUseError
from spark_jms.log.domain import Domain
from spark_jms.log.server_state import stop_server
from spark_jms.store.file.backend import FileBackend
from tests.contract.test_forward import ON_SERVERS, Bench
from tests.contract.test_timed_store import Hanging, hanging  # noqa: F401
from tests.unit.test_balancing import orders

SERVERS = {name: {"store": "file"} for name in "abc"}


def in_time(work: Any, limit_s: float = 12.0) -> list[Any]:
    """What it returns or raises, in a list; [] when it takes longer."""
    done: list[Any] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001
            done.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    return list(done)


@pytest.mark.parametrize("topic", ["local", "prices"])
def test_new_subscription_beside_a_hung_store(
    tmp_path: Path,
    hanging: Hanging,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    topic: str,
) -> None:
    """C10, M10: a consumer without a durable subscription is made, and closed, while the store of server b hangs."""
    monkeypatch.setattr(stores, "HOUSEKEEPING_S", 0.2)
    root = str(tmp_path / "root")
    prices = {"kind": "distributed-topic", "servers": ["a", "b"]}
    spark_jms.apply(root, {"servers": SERVERS, "destinations": {"prices": prices, "local": {"kind": "topic"}}})
    with spark_jms.connect(root, housekeeping=False) as context:
        context.consumer("prices").close()  # all stores are open
        before = context.consumer("local", subscription="s", durable=False)
        hanging.begin()
        try:
            made = in_time(lambda: context.consumer(topic))
            assert made
            assert not isinstance(made[0], BaseException)
            assert in_time(before.close), "closing the last consumer hangs"
        finally:
            hanging.end()


def test_move_whose_record_is_held_asks_no_other_server(
    tmp_path: Path,
    hanging: Hanging,  # noqa: F811
) -> None:
    """C14, M10: MemberUnavailableError in time: the name of the holder comes from the record's own store."""
    bench = Bench(str(tmp_path / "root"), ON_SERVERS)
    with bench.context, views.opened_store(bench.domain) as store:
        bench.send(0, "1")
        store.sessions()
        snapshot = bench.domain.log("orders").refresh()
        with bench.context._store.connect("holder") as holder:
            holder.open(record_of(snapshot, "-", 0))
            hanging.begin()
            try:
                found = in_time(
                    lambda: move(bench.domain, store, MoveOrder("orders", "orders", members=(0,), target_member=2), 0.3)
                )
                assert found
                assert isinstance(found[0], MemberUnavailableError)
            finally:
                hanging.end()


def test_weights_belong_to_their_members_per_jvm() -> None:
    declared = orders("a", "b", routing="weighted", weights=(1, 9))
    found = Counter(Balancing(per_jvm=True, sender=str(n)).keeping(declared).used for n in range(300))
    assert found[1] > 2 * found[0], found


def test_receiver_pinned_at_home_loses_a_removed_member(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    for members in (2, 3):
        spark_jms.apply(root, {"destinations": {"orders": {"kind": "distributed-queue", "members": members}}})
    with spark_jms.connect(root, housekeeping=False) as context:
        receivers = [context.consumer("orders", pin=True) for _ in range(3)]
        spark_jms.apply(root, {"destinations": {"orders": {"kind": "distributed-queue", "members": 2}}})
        lost = 0
        for one in receivers:
            try:
                assert one.receive(1) is None
            except MemberLostException:
                lost += 1
        assert lost == 1


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


def test_housekeeping_asks_no_stopped_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D4: a stopped server: nothing asks its store."""
    root = str(tmp_path / "root")
    queue = {"kind": "distributed-queue", "servers": ["a", "b"]}
    spark_jms.apply(root, {"servers": SERVERS, "destinations": {"orders": queue}})
    with spark_jms.connect(root, housekeeping=False) as context:
        for server in "ab":
            context.producer(f"{server}@orders").send(text="x")
        stop_server(Domain(root), "b")
        housekeeper = Housekeeper(context._domain, context._store, "orders")
        asked: list[str] = []
        real = FileBackend.read

        def read(backend: FileBackend, question: Any) -> Any:
            name = Path(backend._directory).name
            if name == "b":
                asked.append(threading.current_thread().name)
            return real(backend, question)

        monkeypatch.setattr(FileBackend, "read", read)
        deadline = time.monotonic() + 10
        while not housekeeper.run() and time.monotonic() < deadline:
            pass
        monkeypatch.undo()
        housekeeper.close()
        assert not [name for name in asked if "timed" in name], asked


def test_uses_are_not_read_for_each_record_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C10, C13: a round of housekeeping reads each use a few times, however many subscriptions there are."""
    root, count = str(tmp_path / "root"), 12
    spark_jms.apply(root, {"destinations": {"prices": {"kind": "topic"}}})
    with spark_jms.connect(root, housekeeping=False) as context:
        for _ in range(count):
            context.consumer("prices")
        context.producer("prices").send(text="x")
        housekeeper = Housekeeper(context._domain, context._store, "prices")
        read = 0
        real = ActiveSubscription.from_bytes

        def counted(name: str, data: bytes) -> ActiveSubscription:
            nonlocal read
            read += 1
            return real(name, data)

        monkeypatch.setattr(ActiveSubscription, "from_bytes", staticmethod(counted))
        housekeeper.run()
        monkeypatch.undo()
        housekeeper.close()
        assert read <= 4 * count, read


def test_exclusive_consumer_excludes_on_all_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D6, C10: with sharing="exclusive" a consumer is the only one, durable or not."""
    root = str(tmp_path / "root")
    prices = {"kind": "distributed-topic", "servers": ["a", "b"], "forwarding": "replicated"}
    spark_jms.apply(root, {"servers": SERVERS, "destinations": {"prices": prices}})

    def exclusive(context: Any) -> Any:
        return context.consumer("prices", subscription="audit", durable=False, sharing="exclusive")

    with spark_jms.connect(root, housekeeping=False) as first, spark_jms.connect(root, housekeeping=False) as second:
        one = exclusive(first)
        own = one._receiver._subscriber.settings.server
        real = subscription_use.why_silent
        monkeypatch.setattr(
            subscription_use,
            "why_silent",
            lambda store, server, wait_s: "slow" if server == own else real(store, server, wait_s),
        )
        with pytest.raises(SubscriptionInUseError):
            exclusive(second)


_CHILD = """
import sys, time
from spark_jms import connect
context = connect(sys.argv[1], housekeeping=False)
assert context.consumer("a@orders").receive(timeout=60)
print("ready", flush=True)
time.sleep(600)
"""


def test_claims_of_a_dead_consumer_are_forwarded(tmp_path: Path) -> None:
    """D5: a member whose only consumer was killed has messages and no consumers."""
    bench = Bench(str(tmp_path / "root"), ON_SERVERS)
    with bench.context, views.opened_store(bench.domain) as store:
        forwarder = MemberForwarder(bench.domain, store, "orders", bench.clock)
        bench.send(0, *"12345")
        child = subprocess.Popen([sys.executable, "-c", _CHILD, bench.root], stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        finally:
            os.kill(child.pid, signal.SIGKILL)
            child.communicate()
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


def test_refused_removal_changes_nothing(tmp_path: Path) -> None:
    """C3: units of order are bound to the first members, so the removal can never succeed: it must not leave members on their
    way out."""
    from spark_jms.errors import MemberRemovalError

    root = str(tmp_path / "root")
    spark_jms.apply(root, {"destinations": {"orders": {"kind": "distributed-queue", "members": 4}}})
    with pytest.raises(MemberRemovalError, match="was made with 4 members"):
        spark_jms.apply(root, {"destinations": {"orders": {"kind": "distributed-queue", "members": 2}}})
    declared = Domain(root).log("orders").refresh().destination
    assert declared.leaving == frozenset()
    assert declared.route.open_members() == [0, 1, 2, 3]
