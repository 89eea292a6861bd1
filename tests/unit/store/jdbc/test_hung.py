"""Which sessions of a hung engine the database ends (S7)."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from spark_jms.store.jdbc.locks import LockHolder, end_hung, has_engine, holders, to_end
from spark_jms.store.jdbc.persistence import JdbcPersistence
from spark_jms.store.jdbc.protocol import ProcessRole, acquire
from spark_jms.store.jdbc.settings import parse_jdbc
from spark_jms.store.jdbc.store import JdbcFinder, open_backend
from spark_jms.testing.domain import wait_until
from tests.harness.stores.jdbc_raw import Raw, fill

ENGINE, WRITE, START = "ShareLock", "RowShareLock", "ExclusiveLock"


@pytest.mark.parametrize(
    ("found", "ended"),
    [
        ([], []),
        ([(1, ENGINE, 40.0)], [1]),
        ([(1, ENGINE, 40.0), (2, WRITE, 35.0)], [1, 2]),
        ([(1, ENGINE, 1.0), (2, WRITE, 35.0)], []),  # the engine lives, and its write takes long
        ([(1, ENGINE, None)], []),  # another user's, of whom nothing is known
        ([(1, ENGINE, 40.0), (2, START, 0.01)], [1]),  # another process tries to start
        ([(1, START, 40.0)], [1]),  # a process that was stopped between two steps of its start
        ([(1, START, 40.0), (1, ENGINE, 40.0)], [1]),
    ],
)
def test_silent_sessions_end_unless_the_database_hears_an_engine(
    found: list[tuple[int, str, float | None]], ended: list[int]
) -> None:
    """S7"""
    assert to_end([LockHolder(*one) for one in found], 30.0) == ended


def test_engine_that_loads_for_long_is_heard(postgresql: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """S7, S5: it answers no client yet, and those who wait do not end it."""
    uri = postgresql.uri(hang_limit_s=1, verify_interval_ms=50, retry_interval_ms=50)
    fill(uri)
    loading, loaded = threading.Event(), threading.Event()
    real = JdbcPersistence.load

    def slow(self: JdbcPersistence) -> Any:
        loading.set()
        assert loaded.wait(60)
        return real(self)

    monkeypatch.setattr(JdbcPersistence, "load", slow)
    waiting = JdbcFinder(parse_jdbc(uri), session_timeout_ms=3_000)
    with ThreadPoolExecutor(1) as threads:
        opening = threads.submit(open_backend, uri)
        assert loading.wait(60)
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < 2.5:
            assert waiting.find() is None
        loaded.set()
        backend = opening.result(60)
    finder = backend._route.finder
    assert isinstance(finder, JdbcFinder)
    assert finder.role is ProcessRole.ENGINE
    assert waiting.find() is not None
    waiting.close()
    backend.release()


def test_database_ends_what_is_silent_and_nothing_else(postgresql: Any) -> None:
    """S7: the lock of an engine that no thread verifies any more is free afterwards."""
    uri = postgresql.uri()
    fill(uri)
    raw = Raw(uri)
    ownership = acquire(raw.database, raw.tables, "")
    connection = raw.database.connect()
    found = holders(connection, raw.tables, raw.settings.schema)
    connection.rollback()
    assert has_engine(found)
    assert end_hung(connection, raw.tables, raw.settings.schema, 3600.0) == []
    begun_s = time.monotonic()
    ended: list[int] = []

    def hung() -> bool:
        if time.monotonic() - begun_s < 1:
            assert ownership.verify()  # it is heard: not ended, though it is older than the limit
        ended.extend(end_hung(connection, raw.tables, raw.settings.schema, 0.5))
        connection.commit()
        return bool(ended)

    wait_until(hung)
    assert ended == [ownership.server_pid()]
    assert time.monotonic() - begun_s > 1
    wait_until(lambda: not has_engine(holders(connection, raw.tables, raw.settings.schema)))
    connection.close()
    acquire(raw.database, raw.tables, "").release()
    ownership.release()
