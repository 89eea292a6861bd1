"""A server's store that hangs: asked for a limited time (M10, C13, C14). The contract of stores runs on it too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_jms
from spark_jms.admin.housekeeping import Rounds
from spark_jms.claims import stores
from spark_jms.claims.stores import open_stores
from spark_jms.claims.timed_store import TimedStore
from spark_jms.log.domain import Domain
from spark_jms.store import MemoryStore, OutcomeUnknownError, Put, StoreBusyError, StoreClosedError
from spark_jms.store.file.backend import FileBackend
from spark_jms.testing.waiting import wait_until
from tests.contract.cli.commands import Jmsq
from tests.contract.cli.conftest import jmsq, js  # noqa: F401
from tests.contract.servers import applied, queue_on


class Hanging:
    """While it is set, every question to the file store of server b waits."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._free = threading.Event()
        self._free.set()
        real = FileBackend.read

        def read(backend: FileBackend, question: Callable[[Any], Any]) -> Any:
            if Path(backend._directory).name == "b":
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


def test_calls_of_a_hung_store_end_in_time() -> None:
    """M10: a question raises StoreBusyError, a write OutcomeUnknownError, and what follows fails at once; when the store
    answers again, so does this."""
    free = threading.Event()
    inner = MemoryStore("timed-hung")
    timed = TimedStore("b", lambda: inner, 0.05)
    handle = timed.connect().open("r")
    asked = timed._asked

    def hang() -> None:
        free.wait(60)

    with pytest.raises(OutcomeUnknownError, match="server b does not answer within 0.05 s"):
        asked.write(hang)
    for refused in (timed.sessions, handle.objects, lambda: handle.commit([Put("k", b"v")])):
        with pytest.raises(StoreBusyError):
            refused()
    free.set()
    wait_until(lambda: not asked._lane.busy)
    handle.commit([Put("k", b"v")])
    assert timed.peek("r") == {"k": b"v"}
    timed.close()
    with pytest.raises(StoreClosedError):
        timed.sessions()
    assert inner.peek("r") == {"k": b"v"}
    inner.close()


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
    assert "(server b is away)" in shown.stdout
    assert "server b is away" in shown.stderr
    claims = jmsq("claims", "orders")
    assert "server b is away, and what only its store knows is not shown" in claims.stderr
    assert "does not answer within" in jmsq("server", "list").stdout
    hanging.end()
    assert not jmsq("claims", "orders").stderr
