"""A server's store that hangs: asked for a limited time (C10, C13, C14, D4, M10). The contract of stores runs on it too."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_jms
from spark_jms.admin.servers import stop_server
from spark_jms.admin.services import Rounds
from spark_jms.admin.transfer import MoveOrder, move
from spark_jms.claims.servers import stores
from spark_jms.claims.servers.stores import open_stores, record_of
from spark_jms.claims.servers.timed_stores import TimedStore
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.errors import MemberUnavailableError
from spark_jms.log.destinations.domain import Domain
from spark_jms.store import MemoryStore, OutcomeUnknownError, Put, StoreBusyError, StoreClosedError
from spark_jms.store.file.store import FileBackend
from spark_jms.store.testing import directory_of
from spark_jms.testing.domain import wait_until
from spark_jms.testing.inside import domain_of, records_of
from tests.contract.cli.conftest import jmsq, js  # noqa: F401
from tests.harness.domains.commands import Jmsq
from tests.harness.domains.servers import SERVERS, applied, queue_on


class Hanging:
    """While it is set, every question to the file store of server b waits."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._free = threading.Event()
        self._free.set()
        real = FileBackend.read

        def read(backend: FileBackend, question: Callable[[Any], Any]) -> Any:
            if directory_of(backend).name == "b":
                self._free.wait(60)
            return real(backend, question)

        patch.setattr(FileBackend, "read", read)

    def begin(self) -> None:
        self._free.clear()

    def end(self) -> None:
        self._free.set()


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    made = Hanging(monkeypatch)
    yield made
    made.end()


@pytest.fixture
def root(tmp_path: Path) -> str:
    return applied(tmp_path, queue_on("a", "b", "c"))


def answers(store: TimedStore) -> bool:
    try:
        store.names()
    except StoreBusyError:
        return False
    return True


def test_calls_of_a_hung_store_end_in_time() -> None:
    """M10: a question raises StoreBusyError, a write OutcomeUnknownError, and what follows fails at once; when the store
    answers again, so does this."""
    free = threading.Event()
    inner = MemoryStore("timed-hung")
    timed = TimedStore("b", lambda: inner, 0.05)
    handle = timed.connect().open("r")
    inner.resolve = lambda *_: bool(free.wait(60))  # type: ignore[assignment,method-assign]
    with pytest.raises(OutcomeUnknownError, match="server b does not answer within 0.05 s"):
        timed.resolve("a", commit=True)
    for refused in (timed.sessions, handle.objects, lambda: handle.commit([Put("k", b"v")])):
        with pytest.raises(StoreBusyError):
            refused()
    free.set()
    wait_until(lambda: answers(timed))
    handle.commit([Put("k", b"v")])
    assert timed.peek("r") == {"k": b"v"}
    timed.close()
    with pytest.raises(StoreClosedError):
        timed.sessions()
    assert inner.peek("r") == {"k": b"v"}
    inner.close()


def test_record_of_a_handle_that_was_closed_while_the_store_hung_is_free() -> None:
    """M10: housekeeping holds no record for ever because its close found the store busy."""
    free, inner = threading.Event(), MemoryStore("away-close")
    timed = TimedStore("b", lambda: inner, 0.05)
    handle = timed.connect().open("r")
    inner.peek = lambda _: {"": b""} if free.wait(60) else {}  # type: ignore[method-assign]
    with pytest.raises(StoreBusyError):
        timed.peek("r")
    handle.close()
    free.set()
    inner.connect().open("r", 2_000)


def test_record_that_was_opened_too_late_is_free() -> None:
    """M10: what a caller has given up opens later, for nobody: it is closed then."""
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
    wait_until(lambda: answers(timed))
    inner.connect().open("r", 2_000)


def test_housekeeping_continues_beside_a_hung_store(
    root: str, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M10, C13: the finished messages of the other servers are removed; those of the hung one wait, and the failure is named."""
    monkeypatch.setattr(stores, "HOUSEKEEPING_S", 0.05)
    with spark_jms.connect(root, housekeeping=False) as context:
        with context.producer("orders") as producer:
            for _ in range(3):
                producer.send(text="x")
        with context.consumer("orders", acknowledge="auto") as consumer:
            assert all(consumer.receive(10) is not None for _ in range(3))
            assert consumer.receive(0) is None
    domain = Domain(root)
    with open_stores(domain) as store:
        rounds = Rounds(domain, store, clean_up=True)
        hanging.begin()
        removed = 0

        def two_are_removed() -> bool:
            nonlocal removed
            (done,) = rounds.run(["orders"])
            removed += done.purged_messages
            assert "housekeeping on server b" in {failure.what for failure in done.failures}
            return removed == 2

        wait_until(two_are_removed)
        hanging.end()

        def third_is_removed() -> bool:
            (done,) = rounds.run(["orders"])
            return done.purged_messages == 1

        wait_until(third_is_removed, 30)
        rounds.close()


def test_housekeeping_asks_no_stopped_server(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """D4, C13: nothing asks its store."""
    with spark_jms.connect(root, housekeeping=False) as context:
        for server in "ab":
            context.producer(f"{server}@orders").send(text="x")
        stop_server(Domain(root), "b")
        housekeeper = Housekeeper(domain_of(context), records_of(context), "orders")
        asked: list[str] = []
        real = FileBackend.read

        def read(backend: FileBackend, question: Any) -> Any:
            if directory_of(backend).name == "b":
                asked.append(threading.current_thread().name)
            return real(backend, question)

        monkeypatch.setattr(FileBackend, "read", read)
        deadline = time.monotonic() + 10
        while not housekeeper.run() and time.monotonic() < deadline:
            pass
        monkeypatch.undo()
        housekeeper.close()
        assert not [name for name in asked if "timed" in name], asked


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
    hanging: Hanging,
    monkeypatch: pytest.MonkeyPatch,
    topic: str,
) -> None:
    """C10, M10: a consumer without a durable subscription is made, and closed, while the store of server b hangs."""
    monkeypatch.setattr(stores, "HOUSEKEEPING_S", 0.2)
    prices = {"kind": "distributed-topic", "servers": ["a", "b"]}
    topics = {"prices": prices, "local": {"kind": "topic"}}
    root = applied(tmp_path, {"servers": SERVERS, "destinations": topics})
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


def test_move_whose_record_is_held_asks_no_other_server(root: str, hanging: Hanging) -> None:
    """C14, M10: MemberUnavailableError in time: the name of the holder comes from the record's own store."""
    domain = Domain(root)
    with spark_jms.connect(root, housekeeping=False) as context, open_stores(domain) as store:
        context.producer("a@orders").send(text="1")
        store.sessions()
        snapshot = domain.log("orders").refresh()
        with records_of(context).connect("holder") as holder:
            holder.open(record_of(snapshot, "-", 0))
            hanging.begin()
            try:
                found = in_time(
                    lambda: move(domain, store, MoveOrder("orders", "orders", members=(0,), target_member=2), 0.3)
                )
                assert found
                assert isinstance(found[0], MemberUnavailableError)
            finally:
                hanging.end()


def test_commands_name_a_server_that_hangs(
    root: str,
    hanging: Hanging,
    monkeypatch: pytest.MonkeyPatch,
    jmsq: Jmsq,  # noqa: F811
) -> None:
    """M10, C14: `jmsq stat`, `claims` and `server list` end although a store hangs, show the others, and name it."""
    for where in ("LOOK_S", "ANSWER_S"):
        monkeypatch.setattr(f"spark_jms.admin.servers.{where}", 0.2)
    hanging.begin()
    shown = jmsq("stat", "orders")
    assert "(its server is away)" in shown.stdout
    assert "server b is away" in shown.stderr
    claims = jmsq("claims", "orders")
    assert "server b is away, and what only its store knows is not shown" in claims.stderr
    assert "does not answer within" in jmsq("server", "list").stdout
    hanging.end()
    assert not jmsq("claims", "orders").stderr
