"""The four fail-over scenarios on a real PostgreSQL (S7): the holder of the lock, the log, the time they take, no
acknowledged write lost, never two owners. The tests print the measured times (-rP), which docs/DATA-STORES quotes.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jms.store.jdbc.engine import read_published
from spark_jms.store.jdbc.settings import parse_jdbc
from spark_jms.store.jdbc.store import JdbcFinder
from spark_jms.store.kinds.administration import lock_status
from spark_jms.testing.domain import wait_until
from spark_jms.testing.postgresql import PrivatePostgresql
from tests.harness.services.proxy import Proxy
from tests.harness.stores.jdbc_raw import Raw
from tests.harness.stores.jdbc_writers import LIMIT_S, Watch, WriterProcess, check_account, engine_pids, schema_of

QUICK = {"retry_interval_ms": 100, "verify_interval_ms": 200, "statement_limit_s": 2}


class Scene:
    """A is the engine and reaches the database through the proxy; B is its client and reaches the database directly."""

    def __init__(self, server: PrivatePostgresql, directory: Path, **options: object) -> None:
        self.server = server
        self.proxy = Proxy("127.0.0.1", server.port)
        self.uri = server.uri(**{**QUICK, **options})
        self.schema = schema_of(self.uri)
        self.watch = Watch(server, self.schema)
        self.a = WriterProcess(
            self.uri.replace(f":{server.port}/", f":{self.proxy.port}/"), "a", directory
        ).wait_ready()
        self.b = WriterProcess(self.uri, "b", directory).wait_ready()
        assert (self.a.is_engine_at_start, self.b.is_engine_at_start) == (True, False)
        assert self.engine() == self.a.process.pid
        for writer in (self.a, self.b):
            writer.wait_writes()

    def engine(self) -> int | None:
        pids = engine_pids(self.server, self.schema)
        return pids[0] if pids else None

    def wait_take_over(self, begun_s: float) -> float:
        """Seconds until B has the lock; it writes then."""
        wait_until(lambda: self.engine() == self.b.process.pid, LIMIT_S, "B has the lock")
        self.b.wait_writes()
        return time.monotonic() - begun_s

    def finish(self, name: str, take_over_s: float) -> None:
        self.a.close()
        self.b.stop()
        count = check_account(self.uri, [self.a, self.b])
        assert self.watch.most == 1, "two sessions held the engine's lock at once"
        print(f"scenario {name}: take-over {take_over_s * 1000:.0f} ms, {count} acknowledged, 0 lost, 0 double owners")

    def close(self) -> None:
        for writer in (self.a, self.b):
            writer.close()
        self.watch.close()
        self.proxy.close()


@pytest.fixture
def scene(postgresql: PrivatePostgresql, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    made = Scene(postgresql, tmp_path, **getattr(request, "param", {}))
    yield made
    made.close()


def test_scenario_1_a_clean_stop(scene: Scene) -> None:
    """S7, S4: A releases the lock, B takes it with another incarnation id."""
    begun_s = time.monotonic()
    scene.a.stop()
    took_s = scene.wait_take_over(begun_s)
    assert "stopped and released its lock" in scene.a.log()
    assert "PANIC" not in scene.a.log()
    scene.b.wait_log(r"engine \w+ has the lock, after \w+")
    scene.finish("1, clean stop", took_s)


def test_scenario_2_an_abnormal_exit(scene: Scene) -> None:
    """S7: after kill -9 the operating system of the host closes the sockets, and the lock falls at once."""
    begun_s = time.monotonic()
    scene.a.kill()
    scene.finish("2, abnormal exit", scene.wait_take_over(begun_s))


def test_scenario_2_an_orphaned_lock(scene: Scene) -> None:
    """S5, S7: the database does not learn of A's death; B waits for the lock, and logs that, until it falls."""
    scene.proxy.swallow()
    scene.a.kill()
    scene.b.wait_log(r"waiting for the lock of the data store .*retrying up to 900 s.*last engine: incarnation")
    assert scene.engine() == scene.a.process.pid  # orphaned: its process is dead
    before = len(scene.b.acknowledged)
    begun_s = time.monotonic()
    scene.proxy.cut()  # what the server's keepalive does after orphan_limit_s
    took_s = scene.wait_take_over(begun_s)
    assert before == scene.b.acknowledged.index(scene.b.acknowledged[before])
    scene.finish("2, orphaned lock, from its end", took_s)


def test_scenario_3_a_hang_then_a_kill(scene: Scene) -> None:
    """S7: a stopped engine keeps its lock, so no process takes over; when it is killed, scenario 2 follows."""
    scene.a.suspend()
    written = len(scene.b.acknowledged)
    scene.b.wait_log("lost the engine")
    assert scene.engine() == scene.a.process.pid
    assert len(scene.b.acknowledged) <= written + 1
    begun_s = time.monotonic()
    scene.a.kill()
    scene.finish("3, hang, from the kill", scene.wait_take_over(begun_s))


@pytest.mark.parametrize("scene", [{"hang_limit_s": 2}], indirect=True)
def test_scenario_3_a_hang_is_ended_by_the_others(scene: Scene) -> None:
    """S7: SIGSTOP, and no process kills A. After hang_limit_s the database ends its sessions for B, which takes over; on SIGCONT A is
    disabled."""
    assert lock_status(scene.uri).answers
    scene.a.suspend()
    begun_s = time.monotonic()
    found = lock_status(scene.uri)
    assert (found.held, found.answers, found.pid) == (True, False, scene.a.process.pid)
    took_s = scene.wait_take_over(begun_s) - 2
    assert took_s > -0.5  # what A had done before it was stopped
    scene.b.wait_log("ERROR.*has not used its lock for 2 s, so the database has ended its sessions")
    scene.a.signal(signal.SIGCONT)
    scene.a.wait_log("PANIC: .* is disabled and writes nothing any more")
    scene.a.wait_writes()  # as a client of B
    assert scene.engine() == scene.b.process.pid
    scene.finish("3, hang, ended by the others, from hang_limit_s", took_s)


@pytest.mark.parametrize("scene", [{"hang_limit_s": 1}], indirect=True)
def test_engine_that_the_database_hears_is_not_ended(scene: Scene) -> None:
    """S7: a third process cannot reach the engine, which serves the second: it waits, and both continue to write."""
    raw = Raw(scene.uri)
    connection = raw.database.connect()
    published = read_published(connection, raw.tables)
    connection.close()
    assert published is not None
    finder = JdbcFinder(parse_jdbc(scene.uri), session_timeout_ms=3_000)
    try:
        for _ in range(20):  # with the pauses of retry_interval_ms longer than hang_limit_s
            assert finder.find(published.address) is None
    finally:
        finder.close()
        raw.database.close()
    for writer in (scene.a, scene.b):
        writer.wait_writes()
    assert scene.engine() == scene.a.process.pid
    scene.finish("none, an engine out of reach", 0.0)


def test_scenario_3_a_stopped_engine_that_lost_its_lock_never_writes_again(scene: Scene) -> None:
    """S6, S7: SIGSTOP; the database ends its connections; B takes over; SIGCONT: A is disabled."""
    scene.a.suspend()
    begun_s = time.monotonic()
    scene.server.terminate(f"application_name = 'spark-jms {scene.a.process.pid}'")
    scene.proxy.refuse()
    # The hung process still listens, so B asks it until its patience ends, and then tries to get the lock.
    took_s = scene.wait_take_over(begun_s)
    scene.proxy.refuse(False)
    scene.a.signal(signal.SIGCONT)
    scene.a.wait_log("PANIC: .* is disabled and writes nothing any more")
    scene.a.wait_writes()  # as a client of B
    assert scene.engine() == scene.b.process.pid
    scene.finish("3, hang, connections ended by an administrator", took_s)


def test_scenario_4_connection_lost_fail_over(scene: Scene) -> None:
    """S6, S7: on_connection_loss=failover: A is disabled at once, B takes over, and A continues as its client."""
    begun_s = time.monotonic()
    scene.proxy.refuse()
    scene.a.wait_log("PANIC: .* is disabled and writes nothing any more: the connection to the data store was lost")
    took_s = scene.wait_take_over(begun_s)
    scene.proxy.refuse(False)
    scene.a.wait_writes()
    assert scene.engine() == scene.b.process.pid
    scene.finish("4, connection cut, fail over", took_s)


def test_scenario_4_connection_swallowed(scene: Scene) -> None:
    """S6, S8: no connection is closed and nothing gets through: A notices within statement_limit_s and is disabled."""
    begun_s = time.monotonic()
    scene.proxy.swallow()
    scene.a.wait_log("PANIC: .* is disabled and writes nothing any more")
    noticed_s = time.monotonic() - begun_s
    assert noticed_s < 10
    scene.proxy.refuse()  # the server's keepalive
    scene.proxy.flow()
    took_s = scene.wait_take_over(begun_s)
    scene.finish(f"4, connection swallowed (noticed after {noticed_s:.1f} s)", took_s)


@pytest.mark.parametrize("scene", [{"on_connection_loss": "retry"}], indirect=True)
def test_scenario_4_connection_lost_retry(scene: Scene) -> None:
    """S6, S7: on_connection_loss=retry: A regains its lock as the same incarnation; B does not take over."""
    begun_s = time.monotonic()
    scene.proxy.cut()
    scene.a.wait_log("regained its lock after")
    scene.a.wait_writes()
    took_s = time.monotonic() - begun_s
    scene.b.wait_writes()
    assert scene.engine() == scene.a.process.pid
    assert "PANIC" not in scene.a.log()
    assert "has the lock" not in scene.b.log()
    scene.finish("4, connection cut, retry (the same engine)", took_s)


@pytest.mark.parametrize(
    "scene", [{"on_connection_loss": "retry", "retry_limit_s": 3, "orphan_limit_s": 2}], indirect=True
)
def test_scenario_4_retry_gives_up_at_its_limit(scene: Scene) -> None:
    """S6, S7: A is disabled for good, and B takes over."""
    begun_s = time.monotonic()
    scene.proxy.refuse()
    scene.a.wait_log("PANIC: .* the lock was not regained within 3 s")
    assert time.monotonic() - begun_s >= 3
    assert "tries to regain its lock" in scene.a.log()
    scene.finish("4, connection refused, retry, fail over", scene.wait_take_over(begun_s))
