"""The command `services`: what its queries depend on (C14, T6)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from spark_jms.admin.services import ServiceRunner
from spark_jms.cli import services
from spark_jms.testing import wait_until
from spark_jms.testing.domain import PATIENCE


def run(look: Callable[[], None], ends: threading.Event) -> None:
    """As the command does, with --json."""
    settings: Any = SimpleNamespace(as_json=True)
    work, reporter = SimpleNamespace(lag=()), SimpleNamespace(report=lambda *_: "", end=lambda: None)
    services._run(settings, work, ServiceRunner([]), reporter, look, 0.01, ends)  # type: ignore[arg-type]


def test_queries_are_looked_at_while_nobody_reads_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """C14, T6: a query that ends is started again, also when the pipe of the output is full."""
    reads, ends, looks = threading.Event(), threading.Event(), list[int]()
    monkeypatch.setattr(services, "_show", lambda *_: reads.wait())
    running = threading.Thread(target=run, args=(lambda: looks.append(1), ends), daemon=True)
    running.start()
    try:
        wait_until(lambda: len(looks) > 10)
    finally:
        ends.set()
        reads.set()
    running.join(60 * PATIENCE)
    assert not running.is_alive()


def test_a_look_that_fails_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """C14: Spark's Java process has ended."""
    looks = list[int]()
    monkeypatch.setattr(services, "_show", lambda *_: None)

    def look() -> None:
        looks.append(1)
        if len(looks) == 3:
            raise ConnectionError("Java has ended")

    with pytest.raises(ConnectionError, match="Java has ended"):
        run(look, threading.Event())
    assert len(looks) == 3
