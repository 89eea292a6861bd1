"""Health of background work: states, pauses, log lines, and which errors reach the application (C13)."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from spark_jms.claims.upkeep.housekeeping import TABLE_RAISES_AFTER_S, BackgroundThread
from spark_jms.log.upkeep.health import Health, Monitor, failures_from_bytes, pause
from spark_jms.testing import wait_until
from spark_jms.testing.domain import PATIENCE


class Clock:
    def __init__(self) -> None:
        self.now = 1000

    def __call__(self) -> int:
        return self.now


def failing(text: str = "disk") -> object:
    raise OSError(text)


def test_pauses_double_up_to_the_longest() -> None:
    """C13: 2, 4, 8 … up to the limit, however many failures there were."""
    assert [pause(2, n, 100) for n in (1, 2, 3, 6, 7, 10_000)] == [2, 4, 8, 64, 100, 100]


def test_health_keeps_failures_until_success() -> None:
    """C13: count, first and last time, next try; the total stays; the stored form ignores keys of later versions."""
    health = Health().failed("a", OSError("x"), 10, 5, 100).failed("a", ValueError("y"), 20, 5, 100)
    failure = health.failures["a"]
    assert (failure.error, failure.count, failure.since_ms, failure.last_ms, failure.retry_ms) == (
        "ValueError: y",
        2,
        10,
        20,
        30,
    )
    assert not health.is_due("a", 29)
    assert health.is_due("a", 30)
    assert health.is_due("b", 0)
    stored = health.to_bytes().replace(b'"what"', b'"later": 1, "what"')
    assert failures_from_bytes(stored) == (failure,)
    assert failures_from_bytes(None) == ()
    cured = health.succeeded("a")
    assert (dict(cured.failures), cured.failed_attempts) == ({}, 2)


def test_stored_health_is_bounded() -> None:
    """C13: ten thousand damaged files with long errors fit the record."""
    health = Health()
    for n in range(60):
        health = health.failed(str(n), OSError("x" * 10_000), n, 1, 1)
    assert len(failures_from_bytes(health.to_bytes())) == 50
    assert len(health.to_bytes()) < 50_000


def test_monitor_logs_each_new_failure_once(caplog: pytest.LogCaptureFixture) -> None:
    """C13: a repeated failure adds no line; one of another kind and the recovery do."""
    clock = Clock()
    monitor = Monitor("orders", clock)
    caplog.set_level(logging.INFO, "spark_jms")
    tries = []

    def work() -> object:
        tries.append(clock.now)
        return failing(f"try {len(tries)}")

    for _ in range(100):
        monitor.run("purge", work)
        clock.now += 1000
    assert tries == [1000, 3000, 7000, 15000, 31000, 63000]
    assert [r.message for r in caplog.records] == ["orders: purge failed and will be retried: OSError: try 1"]
    clock.now = 1_000_000
    monitor.run("purge", lambda: 1 // 0)
    clock.now = 2_000_000
    monitor.run("purge", lambda: None)
    assert [r.levelname for r in caplog.records] == ["WARNING", "WARNING", "INFO"]
    assert not monitor.health.failures
    assert monitor.health.failed_attempts == 7


class Thread(BackgroundThread):
    """Ticked by the test instead of a thread."""

    def __init__(self) -> None:
        self.now_s = 0.0
        super().__init__("test", lambda: self.now_s)
        self._stop.set()

    def at(self, now_s: float) -> None:
        self.now_s = now_s
        self.tick()


def test_failing_tasks_pause_and_others_continue() -> None:
    """C13: 2, 4, 8 … seconds between the attempts of a task that runs every second."""
    thread, tries, others = Thread(), [], []

    def run() -> None:
        tries.append(thread.now_s)
        failing()

    thread.add("a", run, 1.0, longest_pause_s=8.0)
    thread.add("b", lambda: others.append(1), 1.0)
    for n in range(41):
        thread.at(float(n))
    assert tries == [1, 3, 7, 15, 23, 31, 39]
    assert len(others) == 40
    thread.check()
    assert [f.what for f in thread.health.failures.values()] == ["a"]


def test_the_thread_sleeps_until_a_task_is_due_or_added() -> None:
    """C9, C13: it has looked twenty times a second."""

    class Counting(BackgroundThread):
        ticks = 0

        def tick(self) -> None:
            self.ticks += 1
            super().tick()

    thread, ran = Counting("test"), threading.Event()
    try:
        thread.add("in an hour", failing, 3_600.0)
        wait_until(lambda: thread.ticks > 0)
        time.sleep(0.5)
        assert thread.ticks <= 2
        thread.add("soon", ran.set, 0.01)
        assert ran.wait(60 * PATIENCE)
    finally:
        thread.close()


def test_errors_of_overdue_acknowledgements_reach_their_consumer_once_while_they_fail() -> None:
    """C9: only the consumer concerned, once for each series of failures, and not after it works again."""
    thread = Thread()
    broken = [True]

    def write() -> object:
        return failing() if broken[0] else None

    thread.add_consumer("c1", lambda: None, lambda: None, lambda: None, write_overdue=write)
    thread.add_consumer("c2", lambda: None, lambda: None, lambda: None, write_overdue=lambda: None)
    thread.at(0.1)
    thread.check()
    thread.check("c2")
    with pytest.raises(OSError, match="disk"):
        thread.check("c1")
    thread.at(10.0)
    thread.check("c1")  # the same series
    broken[0] = False
    thread.at(20.0)
    broken[0] = True
    thread.at(20.1)
    broken[0] = False
    thread.at(30.0)
    thread.check("c1")  # it works again
    broken[0] = True
    thread.at(30.1)
    with pytest.raises(OSError, match="disk"):
        thread.check("c1")
    thread.remove(write)
    assert not thread.health.failures


def test_acknowledgement_table_errors_reach_the_consumer_after_a_minute() -> None:
    """C5: the store keeps the rows meanwhile."""
    thread = Thread()
    thread.add_consumer("c1", failing, lambda: None, lambda: None)
    thread.at(1.0)
    thread.at(30.0)
    thread.check("c1")
    assert [f.what for f in thread.health.failures.values()] == ["acknowledgement table of c1"]
    thread.at(1.0 + TABLE_RAISES_AFTER_S)
    with pytest.raises(OSError, match="disk"):
        thread.check("c1")
    thread.at(300.0)
    thread.check("c1")
