"""Openings of stores that wait (S5, M10): they hold up no other, end when nobody waits for them, and say how long they try."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spark_jms.claims.servers.timed_stores import TimedStore
from spark_jms.store import (
    DatabaseUnreachableError,
    LockHeldError,
    MemoryStore,
    Store,
    StoreBusyError,
    StoreClosedError,
    open_store,
)
from spark_jms.store.contract import COMMAND_LIMIT_S, StoreOpening
from spark_jms.store.jdbc.database import CONNECT_TIMEOUT_S, Database, DatabaseConnection
from spark_jms.store.jdbc.engine import Clocks
from spark_jms.store.jdbc.settings import parse_jdbc
from spark_jms.store.jdbc.store import JdbcFinder
from spark_jms.store.kinds.routed import RoutedStore
from spark_jms.store.processes import SharedBackends, UserCount
from spark_jms.testing.domain import wait_until
from spark_jms.testing.postgresql import free_port


@pytest.fixture
def free() -> Any:
    """What waits for it ends with the test at the latest."""
    event = threading.Event()
    yield event
    event.set()


def begun(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_opening_that_waits_holds_up_no_other_store(free: threading.Event) -> None:
    """S5: a process whose store `a` cannot be reached opens `b` meanwhile; a second opening of `a` waits no longer than it may, or
    until it is cancelled."""
    backends: SharedBackends[UserCount] = SharedBackends()

    def make_late() -> UserCount:
        free.wait(60)
        return UserCount()

    first = begun(lambda: backends.take(("a", 0), make_late, StoreOpening()))
    wait_until(lambda: ("a", 0) in backends._opening and backends._opening["a", 0].locked())
    other = begun(lambda: backends.take(("b", 0), UserCount, StoreOpening()))
    wait_until(lambda: not other.is_alive(), 10, "b is open")
    with pytest.raises(StoreBusyError, match=r"for 0.05 s"):
        backends.take(("a", 0), UserCount, StoreOpening(0.05))
    given_up = StoreOpening()
    given_up.cancel()
    with pytest.raises(StoreBusyError, match="given up"):
        backends.take(("a", 0), UserCount, given_up)
    free.set()
    first.join(10)
    shared = backends.take(("a", 0), UserCount, StoreOpening())
    assert not shared.release()  # the first one uses it too


def test_all_who_wait_for_an_opening_share_its_outcome(free: threading.Event) -> None:
    """M10: those who have given up do not begin one attempt after the other when it fails, which the next one would wait for."""
    attempts: list[str] = []

    def open_other(name: str) -> Store:
        attempts.append(name)
        free.wait(60)
        raise DatabaseUnreachableError("away")

    routed = RoutedStore(MemoryStore("opening-home"), open_other, lambda: ["a"])
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(routed.store, "a") for _ in range(8)]
        wait_until(lambda: threads._work_queue.empty() and bool(attempts))
        free.set()
        for one in asked:
            with pytest.raises(DatabaseUnreachableError):
                one.result(10)
    assert len(attempts) < 8
    routed.close()


def test_store_that_opens_after_its_owner_was_closed_is_closed(free: threading.Event) -> None:
    """M10: neither a routed store nor a timed one leaves open what it was opening when it was closed: its engine would hold the
    database's lock as long as the process lives."""
    late = [MemoryStore("opening-late-1"), MemoryStore("opening-late-2")]

    def open_late(store: Store) -> Store:
        free.wait(60)
        return store

    routed = RoutedStore(MemoryStore("opening-home-2"), lambda name: open_late(late[0]), lambda: ["a"])
    asking = ThreadPoolExecutor(1).submit(routed.store, "a")
    wait_until(lambda: "a" in routed._opening)
    routed.close()
    timed = TimedStore("b", lambda: open_late(late[1]), 0.05, owns=True)
    with pytest.raises(StoreBusyError):
        timed.names()
    timed.close()
    free.set()
    with pytest.raises(StoreClosedError):
        asking.result(10)
    for store in late:
        wait_until(lambda store=store: _is_closed(store), 10, "it is closed")  # type: ignore[misc]


def _is_closed(store: Store) -> bool:
    try:
        store.names()
    except StoreClosedError:
        return True
    return False


class ManualClock:
    def __init__(self, on_sleep: Callable[[], object] = lambda: None) -> None:
        self.now_ms, self._on_sleep = 0.0, on_sleep

    @property
    def clocks(self) -> Clocks:
        return Clocks(lambda: self.now_ms, self._sleep)

    def _sleep(self, ms: float) -> None:
        self.now_ms += ms
        self._on_sleep()


def test_opening_of_an_unreachable_database_says_how_long_it_tries(caplog: pytest.LogCaptureFixture) -> None:
    """S5: 2 s where it is 2 s, in the log and in the error; and it ends soon after it was cancelled."""
    caplog.set_level(logging.WARNING, "store.jdbc")
    away = parse_jdbc(f"jdbc:postgresql://u@127.0.0.1:{free_port()}/x")
    clocks = ManualClock().clocks
    with pytest.raises(DatabaseUnreachableError, match=r"tried for 2\.0 s"):
        JdbcFinder(away, session_timeout_ms=3_000, clocks=clocks, opening=StoreOpening(2.0))
    assert "retrying for 2 s" in caplog.text
    given_up = StoreOpening()
    with pytest.raises(StoreBusyError, match="given up"):
        JdbcFinder(away, session_timeout_ms=3_000, clocks=ManualClock(given_up.cancel).clocks, opening=given_up)


def test_first_attempt_counts_to_the_limit_of_an_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3, S5: a database that hangs takes a connection and does not answer for 10 s; a second attempt made it 20 s."""
    clock, attempts = ManualClock(), []

    def hangs(database: Database, path: str = "") -> DatabaseConnection:
        attempts.append(path)
        clock.now_ms += CONNECT_TIMEOUT_S * 1000
        raise DatabaseUnreachableError("connection timeout expired")

    monkeypatch.setattr(Database, "connect", hangs)
    with pytest.raises(DatabaseUnreachableError, match=r"tried for 10\.0 s"):
        JdbcFinder(
            parse_jdbc("jdbc:postgresql://u@127.0.0.1/x"),
            session_timeout_ms=3_000,
            clocks=clock.clocks,
            opening=StoreOpening(COMMAND_LIMIT_S),
        )
    assert len(attempts) == 1


def test_opening_that_waits_for_the_lock_says_how_long_it_tries(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5: the wait for the lock of an engine that does not answer has the same limit, and the usual one once the store was open."""
    caplog.set_level(logging.WARNING, "store.jdbc")
    uri = f"jdbc:sqlite:///{tmp_path}/store.db"
    with open_store(uri):
        clock = ManualClock()
        finder = JdbcFinder(parse_jdbc(uri), session_timeout_ms=3_000, clocks=clock.clocks, opening=StoreOpening(2.0))
        monkeypatch.setattr(finder, "_published_engine", lambda failed: None)  # it hangs
        with pytest.raises(LockHeldError, match="waited 2 s for the lock"):
            _find_for_ever(finder)
        assert "retrying up to 2 s" in caplog.text
        assert "900" not in caplog.text
        assert clock.now_ms == pytest.approx(2_000, abs=1_000)
        finder.close()


def _find_for_ever(finder: JdbcFinder) -> None:
    while True:
        finder.find()
