"""The lock protocol of the JDBC store: its steps, its holder, and processes that wait for it (S4, S5).

Fail-over between processes is in process/test_jdbc_scenarios.
"""

from __future__ import annotations

import gc
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from spark_jms.store import LockHeldError, OwnerMissingError, Put, StoreBusyError, open_store
from spark_jms.store.engine.entry_log import OwnershipLostError, Proposal, Verdict
from spark_jms.store.jdbc.engine import Clocks
from spark_jms.store.jdbc.persistence import JdbcPersistence
from spark_jms.store.jdbc.protocol import STEPS, EngineState, LockTakenError, ProcessRole, Step, acquire, draw
from spark_jms.store.jdbc.store import JdbcFinder, open_backend
from spark_jms.store.jdbc.tables import VERSION
from spark_jms.store.ledger.record import Change, Written
from spark_jms.store.ledger.store import LedgerStore
from spark_jms.testing.domain import wait_until
from tests.harness.project import PROJECT
from tests.harness.stores.jdbc_raw import Raw, fill


@pytest.fixture(params=["sqlite", "postgresql"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"jdbc:sqlite:///{tmp_path}/s.db?retry_interval_ms=10"
    return str(request.getfixturevalue("postgresql").uri(retry_interval_ms=10))


def test_the_steps_are_those_of_the_texts() -> None:
    """S4: three connections, in this order."""
    assert [(step.connection, step.step, step.table, step.mark) for step in STEPS] == [
        ("first", Step.CONNECT, "SIBOWNER0", ""),
        ("first", Step.LOCK_EXCLUSIVE, "SIBOWNER0", "A"),
        ("second", Step.CONNECT, "SIBOWNER", ""),
        ("second", Step.LOCK_EXCLUSIVE, "SIBOWNER", "B"),
        ("second", Step.READ, "SIBOWNER", ""),
        ("second", Step.UPDATE, "SIBOWNER", ""),
        ("second", Step.CLOSE_COMMIT, "SIBOWNER", "C"),
        ("third", Step.CONNECT, "SIBOWNER", ""),
        ("third", Step.LOCK_SHARE, "SIBOWNER", "D"),
        ("third", Step.READ, "SIBOWNER", ""),
        ("first", Step.CLOSE, "SIBOWNER0", "E"),
    ]
    assert STEPS[1].statement() == "LOCK TABLE SIBOWNER0 IN EXCLUSIVE MODE"
    assert draw().count("E->>D") == len(STEPS)


def test_postgresql_receives_the_statements_in_order(postgresql: Any, caplog: pytest.LogCaptureFixture) -> None:
    """S4: with the statements that the driver sends."""
    import sqlalchemy as sa

    uri = postgresql.uri()
    fill(uri)
    raw = Raw(uri)
    said: list[str] = []
    engine = raw.database._engines.setdefault("", raw.database._make_engine(""))
    sa.event.listen(
        engine, "before_cursor_execute", lambda c, cu, statement, *rest: said.append(" ".join(statement.split()))
    )
    ownership = acquire(raw.database, raw.tables, "")
    schema = raw.settings.schema
    asked = [statement for statement in said if "set_config" not in statement]
    assert [statement.split(" SET ")[0] for statement in asked] == [
        f"LOCK TABLE {schema}.sibowner0 IN EXCLUSIVE MODE",
        f"LOCK TABLE {schema}.sibowner IN EXCLUSIVE MODE",
        asked[2],
        f"UPDATE {schema}.sibowner",
        f"LOCK TABLE {schema}.sibowner IN SHARE MODE",
        asked[2],
    ]
    assert asked[2].startswith(f"SELECT {schema}.sibowner.me_uuid, {schema}.sibowner.inc_uuid")
    ownership.release()


def test_every_start_has_a_new_incarnation(uri: str) -> None:
    """S4."""
    seen = []
    for _ in range(3):
        fill(uri)
        seen.append(Raw(uri).owner())
    assert len({row[1] for row in seen}) == 3
    assert len({row[0] for row in seen}) == 1
    assert {row[2:] for row in seen} == {(VERSION, 0)}


def test_an_engine_holds_and_verifies_its_lock(uri: str) -> None:
    """S4: no other process gets the lock meanwhile."""
    fill(uri)
    raw = Raw(uri)
    ownership = acquire(raw.database, raw.tables, "")
    assert ownership.verify()
    other = Raw(uri)
    for _ in range(3):
        with pytest.raises(LockTakenError):
            acquire(other.database, other.tables, "")
    assert ownership.verify()
    ownership.release()
    second = acquire(other.database, other.tables, "")
    assert second.incarnation != ownership.incarnation
    second.release()


def test_store_without_its_owner_row_is_adopted_by_no_engine(uri: str) -> None:
    """S3: the row was deleted while no engine ran. Nothing changes; with the row the store opens again."""
    fill(uri)
    raw = Raw(uri)
    me, incarnation, version, migration = raw.owner()
    raw.run("DELETE FROM @sibowner", "-sibowner")
    for foreign in ("", "&engine=another", f"&engine={me}"):
        with pytest.raises(OwnerMissingError, match="SIBOWNER has no row although the store has content"):
            open_store(uri + foreign)
    assert raw.run("SELECT * FROM @sibowner", "-sibowner") == []
    raw.run(f"INSERT INTO @sibowner VALUES ('{me}', '{incarnation}', {version}, {migration})", "-sibowner")
    with open_store(f"{uri}&engine={me}") as store:
        assert store.peek("b") == {"k": b"2"}


def test_empty_tables_are_a_new_store(uri: str) -> None:
    """S1, S3: an administrator has run the DDL; the first engine owns the store."""
    fill(uri)
    raw = Raw(uri)
    raw.run("DELETE FROM @sibowner", "-sibowner")
    for table in ("sibclassmap", "siblisting", "sibxacts", "sibkeys", "sib000", "sib001"):
        raw.run(f"DELETE FROM @{table}")
    with open_store(f"{uri}&engine=mine") as store:
        assert store.names() == []
    assert raw.owner()[0] == "mine"


def test_a_zombie_writes_nothing(uri: str) -> None:
    """S4, S6: an engine that lost its lock without noticing is refused by the row, which names another incarnation."""
    backend = open_backend(uri + "&verify_interval_ms=60000")
    handle = LedgerStore(backend).connect().open("r")
    handle.commit([Put("k", b"mine")])
    finder = backend._route.finder
    assert isinstance(finder, JdbcFinder)
    engine = finder._engine
    assert engine is not None
    engine.persistence.ownership.release()  # as if only this connection were lost
    raw = Raw(uri)
    other = acquire(raw.database, raw.tables, "")
    before = raw.content()
    late = Proposal("late", 0, (Written((Change("r", 1, (Put("k", b"late"),)),)),))
    shared = engine.server._log.begin("w")
    assert engine.server._log.propose(late, shared) is Verdict.TAKEN
    with pytest.raises(OwnershipLostError):
        engine.persistence.append(shared.batch())
    assert raw.content() == before
    assert engine.persistence.ownership.incarnation != other.incarnation
    other.release()
    handle.commit([Put("k", b"again")])  # through a new engine, with the same session and handle
    assert engine.state is EngineState.DISABLED
    assert handle.read("k") == b"again"
    backend.release()


@pytest.mark.parametrize("moment", ["load", "publish", "append"])
def test_a_process_waiting_for_the_lock_does_not_block_the_engine(
    postgresql: Any, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """S4, S5: PostgreSQL queues the engine's own lock on SIBOWNER behind a process that waits for an exclusive one."""
    uri = postgresql.uri(verify_interval_ms=60_000)
    fill(uri)
    raw = Raw(uri)
    stranger = raw.database.connect()
    stranger.run("SET lock_timeout = 400")
    stranger.commit()

    def wait_for_it() -> None:
        with pytest.raises(StoreBusyError):
            stranger.run(f"LOCK TABLE {raw.tables.owner.fullname} IN EXCLUSIVE MODE")

    threads: list[threading.Thread] = []

    def waits() -> bool:
        found = raw.run("SELECT count(*) FROM pg_locks WHERE relation = '@sibowner'::regclass AND NOT granted")
        return bool(found[0][0])

    def queue_up(*_: Any) -> None:
        if not threads:
            threads.append(threading.Thread(target=wait_for_it))
            threads[0].start()
            wait_until(waits, 10.0)

    if moment != "append":
        real = getattr(JdbcPersistence, moment)
        monkeypatch.setattr(JdbcPersistence, moment, lambda *given: (queue_up(), real(*given))[1])
    with open_store(uri) as store, store.connect() as session:
        handle = session.open("a")
        queue_up()
        handle.commit([Put("k", b"meanwhile")])
        assert handle.read("k") == b"meanwhile"
        engine = store._backend._route.finder._engine  # type: ignore[attr-defined]
        assert engine.state is EngineState.SERVING
    threads[0].join(10)
    stranger.close()


def test_opening_is_retried_when_loading_finds_the_store_busy(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S5: the process releases the lock and tries again."""
    fill(uri)
    fails = [StoreBusyError("injected by the test")]
    real = JdbcPersistence.load

    def load(self: JdbcPersistence) -> Any:
        if fails:
            raise fails.pop()
        return real(self)

    monkeypatch.setattr(JdbcPersistence, "load", load)
    with open_store(uri) as store:
        assert store.peek("b") == {"k": b"2"}


# ---- waiting for the lock, with an injected clock


def test_the_start_retries_up_to_its_limit(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    """S5: 15 minutes by default, with clear lines; then a named error."""
    fill(uri)
    raw = Raw(uri)
    ownership = acquire(raw.database, raw.tables, "")
    now_ms = [0.0]

    def sleep(duration_ms: float) -> None:
        now_ms[0] += max(duration_ms, 30_000)

    clocks = Clocks(now_ms=lambda: now_ms[0], sleep_ms=sleep)
    with caplog.at_level(logging.WARNING, "store.jdbc"), pytest.raises(LockHeldError, match="900 s"):
        open_backend(uri, clocks=clocks)
    assert 900_000 <= now_ms[0] <= 960_000
    assert "waiting for the lock of the data store for 60 s, retrying up to 900 s" in caplog.text
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1
    assert "waited 900 s for the lock of the data store, and the store does not open" in errors[0]
    ownership.release()
    open_backend(uri, clocks=clocks).release()


# ---- documentation, and forked children


def test_the_page_shows_the_protocol_that_the_code_executes() -> None:
    """S4: drawn from STEPS."""
    page = PROJECT / "docs" / "DATA-STORES.md"
    assert draw() in page.read_text(encoding="utf-8")


def test_a_connection_dropped_in_a_forked_child_touches_no_later_file(postgresql: Any, tmp_path: Path) -> None:
    """S4: the driver closes the number of its descriptor when it is collected; no later file may have that number."""
    raw = Raw(postgresql.uri())
    connection = raw.database.connect("")
    assert connection.run("SELECT 1") is not None
    connection.abandon()
    with open(tmp_path / "later", "wb") as later:
        connection.close()
        del connection, raw
        gc.collect()
        later.write(b"whole")
    assert (tmp_path / "later").read_bytes() == b"whole"


def test_engine_does_not_regain_a_store_that_another_one_had(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4, S6: `on_connection_loss=retry`. Another engine took the store over, wrote, and ended. The first one finds the lock
    free again, and its ledger is older than the store: it is disabled, and a new engine reads what the other one wrote."""
    uri += "&verify_interval_ms=60000&retry_interval_ms=10"
    backend = open_backend(uri + "&on_connection_loss=retry")
    store = LedgerStore(backend)
    handle = store.connect().open("r")
    handle.commit([Put("k", b"1")])
    finder = backend._route.finder
    assert isinstance(finder, JdbcFinder)
    engine = finder._engine
    assert engine is not None
    engine.persistence.ownership.release()  # as if this connection were lost
    with monkeypatch.context() as patch:
        patch.setattr(JdbcFinder, "_published_engine", lambda *_: None)  # it cannot reach the first one
        second = open_backend(uri)
    assert isinstance(second._route.finder, JdbcFinder)
    assert second._route.finder.role is ProcessRole.ENGINE
    with LedgerStore(second) as other, other.connect() as session:
        session.open("theirs").commit([Put("k", b"theirs")])
    wait_until(lambda: store.peek("theirs") == {"k": b"theirs"})  # once the first one's read lease has ended
    assert engine.state is EngineState.DISABLED
    handle.commit([Put("k", b"2")])
    assert store.peek("r") == {"k": b"2"}
    backend.release()
    with open_store(uri) as again:
        assert (again.peek("r"), again.peek("theirs")) == ({"k": b"2"}, {"k": b"theirs"})
