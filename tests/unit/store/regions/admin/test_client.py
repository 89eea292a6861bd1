"""An administrator's attachment while it waits (R4)."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from spark_jms.store.errors import ShutdownBrokenOffError
from spark_jms.store.net.event_loop import EventLoopThread
from spark_jms.store.regions.admin import cluster as admin_client
from spark_jms.store.regions.admin.cluster import DaemonAdmin
from spark_jms.store.regions.admin.port import DaemonInfo
from spark_jms.store.regions.directory.global_directory import GlobalDirectory
from spark_jms.store.regions.protocol.messages import BreakOff, Shutdown


class LeavingDaemons(DaemonAdmin):
    """Daemon 1 of a cluster, which is asked to leave: `answers` are what it waits for, one for each look; None: it stays."""

    def __init__(self, path: Path, answers: list[str | None]) -> None:
        self._global, self.local_index = GlobalDirectory(str(path)), 0
        self.answers = answers
        self.asked: list[Any] = []

    def _ask(self, make: Any, shape: Any = None) -> Any:
        self.asked.append(make(1))

    def _reach(self, running: set[int]) -> None:
        pass

    def _running(self, told: Any) -> set[int]:
        return {1} if self.answers else set()

    def daemons(self) -> list[DaemonInfo]:
        waits = self.answers.pop(0)
        info = DaemonInfo(
            1, "127.0.0.1", 7100, 7100, 1 << 30, up=True, draining=waits is not None, waits_for=waits or ""
        )
        return [info]


def test_shutdown_reports_a_daemon_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R4: another administrator broke it off; the one who waits gets ShutdownBrokenOffError."""
    monkeypatch.setattr(admin_client, "GIVEN_UP_S", 0.0)
    admin = LeavingDaemons(tmp_path, ["", "", None, None])
    with pytest.raises(ShutdownBrokenOffError, match="daemon 1 stays"):
        admin.shutdown([1], force=False)
    assert admin.asked == [Shutdown(1, [1], False)]


def test_shutdown_tells_what_a_daemon_waits_for(tmp_path: Path) -> None:
    """R4, step 3: each reason once, and it returns when the daemon is down."""
    admin = LeavingDaemons(tmp_path, ["", "for memory: a", "for memory: a", "", "for memory: b"])
    told: list[Any] = []
    admin.shutdown([1], force=False, waits=lambda index, reason: told.append((index, reason)))
    assert told == [(1, "for memory: a"), (1, ""), (1, "for memory: b")]


def test_interrupted_shutdown_is_broken_off(tmp_path: Path) -> None:
    """R4, step 3: Control-C while it waits."""
    admin = LeavingDaemons(tmp_path, ["for memory: a", "for memory: a"])

    def interrupt(index: int, reason: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(ShutdownBrokenOffError, match="daemon 1 stays: interrupted"):
        admin.shutdown([1], force=False, waits=interrupt)
    assert admin.asked == [Shutdown(1, [1], False), BreakOff(1, [1])]


async def _answers(value: int) -> int:
    if not value:
        raise LookupError("none")
    return value


def test_loop_answers_waiting_threads() -> None:
    """R4: with the value or the error; calls under way at its close get CancelledError."""
    began, failed = threading.Semaphore(0), list[BaseException]()

    async def hangs() -> None:
        began.release()
        await asyncio.Event().wait()

    def wait() -> None:
        try:
            loop.call(hangs())
        except CancelledError as error:
            failed.append(error)

    loop = EventLoopThread("test")
    assert loop.call(_answers(1)) == 1
    with pytest.raises(LookupError):
        loop.call(_answers(0))
    waiting = [threading.Thread(target=wait) for _ in range(10)]
    for thread in waiting:
        thread.start()
        assert began.acquire(timeout=10.0)
    loop.close()
    for thread in waiting:
        thread.join(10.0)
    assert len(failed) == 10


def test_loop_answers_a_call_cancelled_before_it_began() -> None:
    """R4: so that no thread waits for ever."""

    def cancelled(loop: asyncio.AbstractEventLoop, coroutine: Any, **named: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **named)
        task.cancel()
        return task

    loop = EventLoopThread("test")
    loop.loop.set_task_factory(cancelled)
    with pytest.raises(CancelledError):
        loop.call(_answers(1))
    loop.loop.set_task_factory(None)
    loop.close()
