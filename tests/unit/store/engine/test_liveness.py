"""The engine decides which sessions are alive (C9, S3)."""

from __future__ import annotations

import os
import subprocess
import sys

from spark_jms.store.engine.server import Liveness
from spark_jms.store.processes import new_session_id, process_gone, this_host


def test_a_silent_session_dies_after_its_time_only() -> None:
    """C9: no heartbeat for session_timeout_ms."""
    life = Liveness(10_000, 1_000)
    life.connected("c", 0)
    life.beat("c", ["s"], 0)
    for now_ms in range(0, 12_000, 500):
        assert life.alive(["s"], now_ms) == (frozenset("s") if now_ms < 10_000 else frozenset())
    life.beat("c", ["s"], 12_000)
    assert life.alive(["s", "unknown"], 12_000) == {"s"}


def test_a_client_that_hung_up_has_a_grace_to_come_back() -> None:
    """R8: the grace ends it."""
    life = Liveness(10_000, 1_000)
    life.connected("c", 0)
    life.connected("c", 0)
    life.beat("c", ["s"], 0)
    life.disconnected("c", 100)
    assert life.alive(["s"], 1_100) == {"s"}  # one of two connections
    life.disconnected("c", 1_100)
    assert life.alive(["s"], 2_000) == {"s"}
    life.connected("c", 2_050)
    life.beat("c", ["s"], 2_050)
    assert life.alive(["s"], 2_900) == {"s"}
    life.disconnected("c", 2_900)
    assert life.alive(["s"], 3_900) == frozenset()


def test_a_session_whose_process_is_gone_is_dead_at_once() -> None:
    """R8."""
    gone: set[str] = set()
    life = Liveness(10_000, 1_000, process_gone=lambda session_id: session_id in gone)
    life.expect(["s", "t"], 0)
    assert life.alive(["s", "t"], 1) == {"s", "t"}
    gone.add("s")
    assert life.alive(["s", "t"], 2) == {"t"}


def test_a_pause_of_the_engine_kills_no_session() -> None:
    """S7: the engine was stopped, and heartbeats arrived meanwhile that it could not read."""
    life = Liveness(10_000, 1_000)
    life.connected("c", 0)
    life.beat("c", ["s"], 0)
    life.tick(60_000)
    assert life.alive(["s"], 60_001) == {"s"}


def test_a_session_id_tells_its_process() -> None:
    """R8: a dead process is recognised at once; a process id that was used again is not mistaken for it."""
    mine = new_session_id()
    assert not process_gone(mine)
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert process_gone(f"0.{this_host()}.{child.pid}.12345")
    assert process_gone(f"0.{this_host()}.{os.getpid()}.1")
    assert not process_gone(f"0.ffffffff.{child.pid}.12345")
    assert not process_gone("0123456789abcdef")
