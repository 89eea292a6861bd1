"""The threads that keep the sessions of a process fresh."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_jms.store import open_store
from spark_jms.store.disk import Disk
from spark_jms.store.engine.backend import SessionHeartbeat
from spark_jms.store.file.locks import SessionLocks


def of_a_file_store(folder: Path) -> tuple[Callable[[], None], Callable[[], None]]:
    locks = SessionLocks(str(folder), Disk(), 5_000)
    return lambda: locks.attach("s", "test"), locks.close


def of_a_served_store(folder: Path) -> tuple[Callable[[], None], Callable[[], None]]:
    heartbeat = SessionHeartbeat(lambda: None, 5_000)
    return lambda: heartbeat.add("s"), heartbeat.stop


@pytest.mark.parametrize("made", [of_a_file_store, of_a_served_store])
def test_end_waits_for_a_thread_that_is_just_started(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: Callable[[Path], tuple[Callable[[], None], Callable[[], None]]],
) -> None:
    """R8: a store is closed while another thread opens the first session in it."""
    begin, end = made(tmp_path)
    start, starting, ended = threading.Thread.start, threading.Event(), threading.Event()

    def slow_start(thread: threading.Thread) -> None:
        if thread.name.startswith(("store-heartbeat", "store-session-beat")):
            starting.set()
            ended.wait(0.3)
        start(thread)

    def close() -> None:
        try:
            end()
        finally:
            ended.set()

    with ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(threading.Thread, "start", slow_start)
        begun = pool.submit(begin)
        assert starting.wait(10)
        pool.submit(close).result(10)
        begun.result(10)


def test_heartbeats_reach_the_engine_in_the_order_of_their_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C9: each names all sessions of its process, so an older one that came later would end those that have begun since."""
    read, begun, second = SessionHeartbeat.session_ids, threading.Event(), threading.Event()

    def read_slowly(self: SessionHeartbeat) -> tuple[str, ...]:
        ids = read(self)
        if threading.current_thread() is first and not begun.is_set():
            begun.set()
            second.wait(1)
        return ids

    with open_store(f"jdbc:sqlite:///{tmp_path}/store.db") as store:
        first = threading.Thread(target=store.connect)
        monkeypatch.setattr(SessionHeartbeat, "session_ids", read_slowly)
        first.start()
        begun.wait(60)
        session = store.connect()
        second.set()
        first.join()
        assert session.session_id in store.sessions()
        session.close()
