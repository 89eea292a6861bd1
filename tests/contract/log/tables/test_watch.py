"""Receivers are woken by commits of the same host, and poll where they are not (C11)."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import spark_jms
from spark_jms.client import Context
from spark_jms.client.receiving.receiver import pause_s
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.delta_log import LogWatch
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.domain import is_waiting
from spark_jms.testing.inside import receiver_of
from tests.harness.processes import forked

LIMIT_S = 30
needs_inotify = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's")
SEND = "import sys, spark_jms\nwith spark_jms.connect(sys.argv[1]) as c: c.producer('orders').send(text='hello')"


@pytest.fixture
def root() -> Iterator[str]:
    with memory_domain("file", orders="queue", other="queue") as where:
        yield where


@pytest.fixture
def watch() -> Iterator[LogWatch]:
    opened = LogWatch()
    yield opened
    opened.close()
    assert not [t for t in threading.enumerate() if t.name == "jmsq-log-watch"], "the thread has ended"


@needs_inotify
def test_commit_of_another_process_wakes(root: str, watch: LogWatch) -> None:
    """C11: the other destination's receivers are left alone."""
    pytest.importorskip("inotify_simple")
    orders, other = threading.Event(), threading.Event()
    watch.add(Domain(root).log("orders"), orders.set)
    watch.add(Domain(root).log("other"), other.set)
    forked.run([sys.executable, "-c", SEND, root], check=True, timeout=LIMIT_S)
    assert orders.wait(LIMIT_S)
    assert not other.is_set()


@needs_inotify
def test_removed_wakes_are_not_called(root: str, watch: LogWatch) -> None:
    """C11"""
    pytest.importorskip("inotify_simple")
    first, second = threading.Event(), threading.Event()
    log = Domain(root).log("orders")
    for event in (first, second):
        watch.add(log, event.set)
    watch.remove(first.set)
    with spark_jms.connect(root) as context:
        context.producer("orders").send(text="a")
    assert second.wait(LIMIT_S)
    assert not first.is_set()
    watch.remove(second.set)
    assert not watch.folders


def test_without_inotify_receivers_poll(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C11: another operating system."""
    monkeypatch.setitem(sys.modules, "inotify_simple", None)
    check_receives(root)


@pytest.mark.parametrize("call", ["INotify", "add_watch"])
def test_limits_of_the_operating_system_leave_polling(root: str, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C11: too many watches or open files."""
    inotify_simple = pytest.importorskip("inotify_simple")

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    if call == "INotify":
        monkeypatch.setattr(inotify_simple, "INotify", refuse)
    else:
        monkeypatch.setattr(inotify_simple.INotify, "add_watch", refuse)
    check_receives(root)


def check_receives(root: str) -> None:
    with spark_jms.connect(root) as receiving, spark_jms.connect(root) as sending:
        consumer = receiving.consumer("orders")
        assert consumer.receive(timeout=0) is None
        threading.Timer(0.05, lambda: sending.producer("orders").send(text="a")).start()
        message = consumer.receive(timeout=LIMIT_S)
        assert message is not None
        assert message.text == "a"


def test_waiting_receiver_is_woken_without_a_poll(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C11: with pauses that never end, only the watch can bring the message; then close() ends the wait."""
    pytest.importorskip("inotify_simple")
    monkeypatch.setattr("spark_jms.client.receiving.receiver.pause_s", lambda idle_s, watched: float(LIMIT_S))
    with spark_jms.connect(root) as context:
        consumer = context.consumer("orders", acknowledge="auto")
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.extend([consumer.receive(), consumer.receive()]))
        thread.start()
        wait_until(lambda: is_waiting(thread), LIMIT_S)
        forked.run([sys.executable, "-c", SEND, root], check=True, timeout=LIMIT_S)
        wait_until(lambda: receiver_of(consumer).watched and is_waiting(thread), LIMIT_S)
        consumer.close()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        assert [message and message.text for message in got] == ["hello", None]


def test_unannounced_news_return_to_frequent_polls(root: str) -> None:
    """C11: on a network file system another host's commits are not reported."""
    with spark_jms.connect(root) as context:
        consumer = context.consumer("orders", acknowledge="auto")
        receiver = receiver_of(consumer)
        context._consumers._watch.close()
        receiver.watched = True
        threading.Timer(0.05, lambda: context.producer("orders").send(text="a")).start()
        message = consumer.receive(timeout=LIMIT_S)
        assert message is not None
        assert not receiver.watched


def test_pauses() -> None:
    """C11: a watched receiver polls the store only; no pause is longer than 50 ms."""
    assert pause_s(0, False) == 0.002
    assert pause_s(0, True) == 0.05
    assert pause_s(3600, False) == pause_s(3600, True) == 0.05


def test_idle_time_begins_with_the_newest_message(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C11: not with each call, or a consumer that waits in short calls would look at the log as often as beside traffic."""
    pauses: list[tuple[float, bool]] = []

    def noted(idle_s: float, watched: bool) -> float:
        pauses.append((idle_s, watched))
        return pause_s(idle_s, watched)

    monkeypatch.setattr("spark_jms.client.receiving.receiver.pause_s", noted)
    with spark_jms.connect(root) as context:
        consumer = context.consumer("orders", acknowledge="auto")
        for _ in range(3):
            assert consumer.receive(timeout=0.1) is None
        idle = [idle_s for idle_s, _ in pauses]
        assert idle == sorted(idle)
        assert idle[-1] > 0.2
        context.producer("orders").send(text="a")
        before_s = time.monotonic()
        assert consumer.receive(timeout=LIMIT_S) is not None
        pauses.clear()
        assert consumer.receive(timeout=0.001) is None
        assert pauses[0][0] <= time.monotonic() - before_s, "the message has begun it again"


def test_closed_context_ends_the_watch(root: str) -> None:
    """C11"""
    context: Context = spark_jms.connect(root)
    context.consumer("orders")
    context.close()
    assert not [t for t in threading.enumerate() if t.name == "jmsq-log-watch"]
