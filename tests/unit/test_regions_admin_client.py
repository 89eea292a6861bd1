"""An administrator's attachment while it waits (R4)."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from spark_jms.store.errors import ShutdownRefusedError
from spark_jms.store.net.event_loop import EventLoopThread
from spark_jms.store.regions.admin import client as admin_client
from spark_jms.store.regions.admin.client import DaemonAdmin
from spark_jms.store.regions.admin.port import DaemonInfo
from spark_jms.store.regions.global_directory import GlobalDirectory


def test_shutdown_reports_a_daemon_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R4: the daemon gave its shutdown up; the administrator who waits gets ShutdownRefusedError."""
    monkeypatch.setattr(admin_client, "GIVEN_UP_S", 0.0)
    admin = DaemonAdmin.__new__(DaemonAdmin)
    admin._global, admin.local_index = GlobalDirectory(str(tmp_path)), 0
    asked: list[Any] = []
    monkeypatch.setattr(admin, "_ask", lambda make, shape=None: asked.append(make(1)))
    monkeypatch.setattr(admin._global, "is_running", lambda index, incarnation=None: True)
    leaving = [True, True, False]

    def daemons() -> list[DaemonInfo]:
        return [DaemonInfo(1, "127.0.0.1", 7100, 7100, 1 << 30, up=True, draining=leaving.pop(0))]

    monkeypatch.setattr(admin, "daemons", daemons)
    with pytest.raises(ShutdownRefusedError, match="daemon 1 did not stop"):
        admin.shutdown([1], force=False)
    assert leaving == []
    assert len(asked) == 1


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
