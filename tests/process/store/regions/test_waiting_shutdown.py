"""A safe shutdown of real daemons that finds no memory any more (R4, step 3)."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from spark_jms.store import StoreBusyError, open_store
from spark_jms.store.contract import StoreOpening
from spark_jms.store.errors import ShutdownBrokenOffError, StoreError
from spark_jms.store.regions.admin.api import Admin
from spark_jms.store.regions.admin.cluster import stop_daemon as stop
from spark_jms.store.regions.protocol.messages import SHUT_DOWN_SAFELY
from spark_jms.store.replicated import store as replicated
from spark_jms.testing.domain import wait_until
from tests.harness.stores.regions_cluster import FaultyDaemons, Make, has_all_copies, lists, store_at, wait_for_copies


class WaitingShutdown:
    """Of daemon 0, in a thread. Daemon 2, the only one with room, was stopped so shortly before that it counted."""

    def __init__(self, path: Path, daemons: FaultyDaemons) -> None:
        self.told: list[str] = []
        self.ended: list[StoreError | tuple[int, ...]] = []
        self._admin = Admin(str(path), 0)
        daemons.signal(2, signal.SIGSTOP)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._admin as admin:
                self.ended.append(admin.shutdown("local", waits=lambda index, reason: self.told.append(reason)))
        except StoreError as error:
            self.ended.append(error)

    def join(self) -> StoreError | tuple[int, ...]:
        self._thread.join(60)
        [ended] = self.ended
        return ended


@contextmanager
def waiting(daemons: FaultyDaemons) -> Iterator[WaitingShutdown]:
    async def write() -> None:
        async with store_at(daemons.path, "s", 0) as instance:
            await (await instance.connection("c")).create(b"kept")

    asyncio.run(write())
    wait_for_copies(daemons)
    shutdown = WaitingShutdown(daemons.path, daemons)
    try:
        wait_until(lambda: bool(shutdown.told) or bool(shutdown.ended), 60.0)
        yield shutdown
    finally:
        daemons.signal(2, signal.SIGCONT)
        shutdown.join()


def test_safe_shutdown_waits_until_memory_comes(make_daemons: Make) -> None:
    """R4, step 3: the caller and the log are told what it waits for; it ends when the third daemon is back."""
    daemons = make_daemons(3)
    with waiting(daemons) as shutdown:
        assert shutdown.told == ["for memory: no other daemon has room for 1 MB of 1 regions (s.000)"]
        assert "the shutdown waits for memory: no other daemon has room" in daemons.output()
        assert lists(daemons.path, 1)[0][0].draining
        daemons.signal(2, signal.SIGCONT)
        assert shutdown.join() == (0,)
    assert daemons.processes[0].wait(10) == 0
    wait_until(lambda: has_all_copies(daemons.path, [1, 2], 1), 30.0)


def test_store_opens_when_the_waiting_shutdown_has_ended(
    make_daemons: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """R4, step 3: an opening waits longer than any limit of its own, RS_OPEN_TIMEOUT_MS and the client's, until all regions have
    moved. One with a limit of its caller ends at that."""
    caplog.set_level(logging.INFO, "store.replicated")
    monkeypatch.setattr(replicated, "LIMIT_MS", 3_000.0)
    daemons = make_daemons(3, RS_OPEN_TIMEOUT_MS="200")
    uri = daemons.uri("late", region_mb=1)
    with waiting(daemons) as shutdown, ThreadPoolExecutor(1) as threads:
        with pytest.raises(StoreBusyError, match="is being shut down safely"):
            open_store(uri, opening=StoreOpening(0.5))
        caplog.clear()
        opening = threads.submit(open_store, uri)
        wait_until(lambda: caplog.text.count(SHUT_DOWN_SAFELY) > 15, 60.0)  # of 200 ms at least, each
        assert not opening.done()
        daemons.signal(2, signal.SIGCONT)
        assert shutdown.join() == (0,)
        with opening.result(60) as store:
            assert store.names() == []


def test_waiting_shutdown_is_broken_off(make_daemons: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """R4, step 3: by another administrator; the one who waits gets an error, and the store opens again."""
    daemons = make_daemons(3)
    with waiting(daemons) as shutdown:
        assert stop(["-dir", str(daemons.path), "-cancel"]) == 0
        assert capsys.readouterr().out == "daemon 0 stays\n"
        assert isinstance(shutdown.join(), ShutdownBrokenOffError)

        async def read() -> list[bytes]:
            async with store_at(daemons.path, "s", 0) as instance:
                objects = await instance.connection("c")
                return [await objects.read(handle) for handle in objects.handles()]

        assert asyncio.run(read()) == [b"kept"]
    assert daemons.processes[0].poll() is None
