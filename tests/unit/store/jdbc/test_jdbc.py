"""The JDBC store's own rules: URIs, tables, rows, refusals, faults at every step (S1 to S3, S6, S8).

Its lock is tested in test_store_jdbc_lock, its tables of states in test_store_jdbc_states.

On SQLite, and on PostgreSQL where a test takes both. Fail-over between processes is in process/test_jdbc_scenarios.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
import sqlalchemy as sa

from spark_jms.store import (
    DatabaseUnreachableError,
    ForeignOwnerError,
    Put,
    RecordHeldError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreRightsError,
    StoreUriError,
    StoreVersionError,
    TablesIncompleteError,
    TablesMissingError,
    open_store,
)
from spark_jms.store.engine.server import Server
from spark_jms.store.jdbc import database as database_module
from spark_jms.store.jdbc import tables as tables_module
from spark_jms.store.jdbc.database import (
    ConnectionLostError,
    Database,
    DatabaseConnection,
    client_keepalives,
    keepalives,
    server_settings,
)
from spark_jms.store.jdbc.engine import Clocks
from spark_jms.store.jdbc.protocol import EngineState, LockTakenError, Ownership, acquire
from spark_jms.store.jdbc.rows import CLASSES
from spark_jms.store.jdbc.settings import JdbcSettings, parse_jdbc, with_engine
from spark_jms.store.jdbc.store import JdbcFinder, open_backend
from spark_jms.store.jdbc.tables import Tables, ddl, make_tables, require_writable
from spark_jms.store.ledger.backend import Transaction
from spark_jms.store.ledger.record import Cancelled, Waited
from spark_jms.store.ledger.store import LedgerStore
from tests.harness.services.proxy import Proxy
from tests.harness.stores.jdbc_raw import Raw, fill
from tests.harness.stores.power_loss import Machine, PowerLossDisk


@pytest.fixture(params=["sqlite", "postgresql"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"jdbc:sqlite:///{tmp_path}/s.db?retry_interval_ms=10"
    return str(request.getfixturevalue("postgresql").uri(retry_interval_ms=10))


# ---- URIs


def test_a_uri_sets_every_setting() -> None:
    """S1, S6, S8."""
    settings = parse_jdbc(
        "jdbc:postgresql://me:p%40ss@db.example:6543/mq?schema=Sib1&prefix=MQ&on_connection_loss=retry&retry_limit_s=300"
        "&orphan_limit_s=60&sslmode=require"
    )
    assert (settings.host, settings.port, settings.user, settings.password) == ("db.example", 6543, "me", "p@ss")
    assert (settings.schema, settings.prefix, settings.libpq) == ("Sib1", "MQ", (("sslmode", "require"),))
    assert (settings.on_connection_loss, settings.retry_limit_s, settings.orphan_limit_s) == ("retry", 300, 60)
    assert "p@ss" not in settings.shown + repr(settings)
    assert parse_jdbc("sqlite:///x/y%20z.db") == attrs.evolve(parse_jdbc("jdbc:sqlite:///x/y z.db"))
    assert parse_jdbc("jdbc:sqlite:////x/y.db").path == "/x/y.db"
    assert parse_jdbc(with_engine("jdbc:sqlite:///x.db", "me")).engine == "me"
    assert with_engine("jdbc:sqlite:///x.db?engine=you", "me") == "jdbc:sqlite:///x.db?engine=you"


def test_defaults_are_those_of_the_texts() -> None:
    """S5, S6: 15 minutes; since version 7: fail over at once."""
    settings = parse_jdbc("jdbc:postgresql://h/db")
    assert (settings.retry_limit_s, settings.on_connection_loss, settings.prefix) == (900, "failover", "SIB")


@pytest.mark.parametrize(
    "uri",
    [
        "jdbc:sqlite://relative.db",
        "jdbc:sqlite:///dir/",
        "jdbc:sqlite:///x.db?schema=s",
        "jdbc:sqlite:///x.db?unknown=1",
        "jdbc:postgresql://h",
        "jdbc:postgresql:///db",
        "jdbc:postgresql://h:x/db",
        "jdbc:mysql://h/db",
        "jdbc:postgresql://h/db?schema=a;b",
        "jdbc:postgresql://h/db?prefix=1x",
        "jdbc:postgresql://h/db?on_connection_loss=maybe",
        "jdbc:postgresql://h/db?retry_limit_s=nan",
        "jdbc:postgresql://h/db?orphan_limit_s=900",
        "jdbc:postgresql://h/db?permanent_tables=0",
    ],
)
def test_a_wrong_uri_is_refused(uri: str) -> None:
    with pytest.raises(StoreUriError):
        open_store(uri)


def test_keepalives_fit_their_limits() -> None:
    """S8: an orphaned lock falls within orphan_limit_s, well within the 15 minutes of retries."""
    settings = parse_jdbc("jdbc:postgresql://h/db")
    for limit_s in (2, 20, 120, 600):
        parts = keepalives(limit_s)
        assert parts["idle"] + parts["interval"] * parts["count"] <= max(limit_s, 7)
    assert server_settings(settings)["tcp_keepalives_idle"] == "60"
    assert server_settings(settings)["idle_in_transaction_session_timeout"] == "0"
    assert client_keepalives(settings)["tcp_user_timeout"] == 20_000


def test_keepalives_are_set_on_both_ends(postgresql: Any) -> None:
    """S8: read back from the server and from the socket."""
    import socket

    connection = Database(parse_jdbc(postgresql.uri(orphan_limit_s=60))).connect()
    shown = {name: connection.run(f"SHOW {name}").scalar() for name in ("tcp_keepalives_idle", "tcp_keepalives_count")}
    assert shown == {"tcp_keepalives_idle": "30", "tcp_keepalives_count": "6"}
    fd = connection._fd()
    assert fd is not None
    with socket.socket(fileno=__import__("os").dup(fd)) as ours:
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 14
    connection.close()


# ---- tables and rows


def test_the_seven_tables_have_the_described_columns() -> None:
    """S1: under the configured names."""
    tables = make_tables(parse_jdbc("jdbc:postgresql://h/db?schema=Mine&prefix=AB&permanent_tables=2"))
    columns = {table.fullname: [column.name for column in table.c] for table in tables.all}
    assert columns["mine.abowner"] == ["me_uuid", "inc_uuid", "version", "migration_version"]
    assert columns["mine.abowner0"] == ["empty_column"]
    assert sorted(columns) == sorted(
        f"mine.ab{name}" for name in ("owner", "owner0", "classmap", "listing", "xacts", "keys", "000", "001", "002")
    )


def test_every_table_holds_its_kind_of_rows(uri: str) -> None:
    """S1, S2."""
    fill(uri)
    raw = Raw(uri)
    classes = {row[0]: (row[1], bool(row[2])) for row in raw.run("SELECT * FROM @sibclassmap")}
    assert classes == dict(CLASSES)
    assert sorted(map(tuple, raw.run("SELECT * FROM @siblisting"))) == [(0, "sib000", 1), (1, "sib001", 0)]
    ids = [row[0] for row in raw.run("SELECT id FROM @sib000 UNION ALL SELECT id FROM @sib001")]
    assert len(set(ids)) == len(ids)
    assert max(ids) <= raw.run("SELECT last_key FROM @sibkeys")[0][0]
    kinds = {table: {row[0] for row in raw.run(f"SELECT class_id FROM @{table}")} for table in ("sib000", "sib001")}
    assert kinds["sib000"] == {1, 2}
    assert kinds["sib001"] <= {3, 4, 5, 6}
    assert {row[0] for row in raw.run("SELECT state FROM @sibxacts")} == {"COMMITTED"}
    assert raw.run("SELECT * FROM @sibowner0", "-sibowner0") == []


def test_processes_that_make_one_store_at_once_all_open_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1: one sees no tables, then another makes them all and, as the engine, locks its file for good."""
    uri = f"jdbc:sqlite:///{tmp_path / 'at once.db'}"
    monkeypatch.setattr(database_module, "SQLITE_BUSY_S", 0.05)
    real, looked = tables_module._missing, [0]

    def missing(database: Database, tables: Tables) -> list[sa.Table]:
        looked[0] += 1
        return real(database, tables) if looked[0] > 1 else list(tables.all)

    with open_store(uri) as engine:
        engine.connect().open("r").commit([Put("k", b"v")])
        monkeypatch.setattr(tables_module, "_missing", missing)
        late = Database(parse_jdbc(uri))
        assert tables_module.ensure_tables(late, make_tables(parse_jdbc(uri)), create=True) is False
    assert looked[0] == 2


def test_persistent_tables_alone_restore_all_content(uri: str) -> None:
    """S1: without the non-persistent tables every record set has its objects and is free."""
    backend = open_backend(uri)
    store = LedgerStore(backend)
    store.connect().open("a").commit([Put("k", b"v")])
    backend._route.finder.close()  # as after kill -9: the session does not end
    Raw(uri).run("DELETE FROM @sib001")
    with open_store(uri, create=False) as again:
        info = again.info("a")
        assert info is not None
        assert (info.epoch, info.holder) == (1, None)
        assert again.peek("a") == {"k": b"v"}
    backend.release()


def test_record_sets_spread_over_the_persistent_tables(uri: str) -> None:
    """S1: record sets are spread over the persistent tables, sessions over the others."""
    uri += "&permanent_tables=3&temporary_tables=2"
    with open_store(uri) as store, store.connect() as session:
        for number in range(9):
            session.open(f"r{number}").commit([Put("k", b"%d" % number)])
    raw = Raw(uri)
    assert all(raw.run(f"SELECT 1 FROM @sib{nnn:03} WHERE class_id = 2") for nnn in range(3))
    with open_store(uri) as store:
        assert [store.peek(f"r{number}")["k"] for number in range(9)] == [b"%d" % number for number in range(9)]
    with pytest.raises(StoreCorruptError, match="siblisting"):
        open_store(
            uri.replace("permanent_tables=3", "permanent_tables=2").replace("temporary_tables=2", "temporary_tables=3")
        )


def test_printed_ddl_creates_a_store(tmp_path: Path) -> None:
    """S1: an administrator runs the output of `jmsq store ddl`; the store opens with create_tables=no."""
    uri = f"jdbc:sqlite:///{tmp_path}/s.db?create_tables=no"
    with pytest.raises(TablesMissingError):
        open_store(uri)
    path = ""
    for statement in ddl(parse_jdbc(uri)).split(";"):
        for line in statement.splitlines():
            path = line.removeprefix("-- in ") if line.startswith("-- in ") else path
        with sqlite3.connect(path or ":memory:") as connection:
            connection.executescript(statement + ";")
        connection.close()
    fill(uri)
    assert "CREATE SCHEMA IF NOT EXISTS s1;" in ddl(parse_jdbc("jdbc:postgresql://h/db?schema=S1"))


# ---- refusals raise a named error and change nothing


@pytest.fixture
def unchanged(uri: str) -> Iterator[Callable[[], None]]:
    fill(uri)
    raw = Raw(uri)
    before: list[Any] = []

    def mark() -> None:
        before.append(raw.content())

    yield mark
    assert raw.content() == before[0]


def test_a_wrong_version_is_refused(uri: str, unchanged: Callable[[], None]) -> None:
    """S3."""
    Raw(uri).run("UPDATE @sibowner SET version = 99", "-sibowner")
    unchanged()
    with pytest.raises(StoreVersionError, match="99"):
        open_store(uri)


def test_a_foreign_owner_is_refused(uri: str, unchanged: Callable[[], None]) -> None:
    """S3: one store for one engine."""
    unchanged()
    with pytest.raises(ForeignOwnerError):
        open_store(uri + "&engine=another-engine")


def test_a_store_without_some_tables_is_refused(uri: str) -> None:
    """S3: opening does not create the missing ones."""
    fill(uri)
    raw = Raw(uri)
    raw.run("DROP TABLE @sibkeys")
    with pytest.raises(TablesIncompleteError, match="sibkeys"):
        open_store(uri)
    with pytest.raises(StoreError):
        raw.run("SELECT * FROM @sibkeys")


def test_missing_tables_are_not_created_without_permission(uri: str) -> None:
    """S3."""
    for wrong in (uri + "&create_tables=no", uri):
        with pytest.raises(TablesMissingError):
            open_store(wrong, create="create_tables" in wrong)


def test_missing_rights_are_named(postgresql: Any, tmp_path: Path) -> None:
    """S3: to connect, to create, to lock, to write."""
    uri = postgresql.uri()
    fill(uri)
    postgresql.execute("DROP ROLE IF EXISTS poor")
    postgresql.execute("CREATE ROLE poor LOGIN")
    poor = uri.replace("postgres@", "poor@")
    with pytest.raises(StoreRightsError):
        open_store(poor)
    schema = parse_jdbc(uri).schema
    postgresql.execute(f"GRANT USAGE ON SCHEMA {schema} TO poor")
    postgresql.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO poor")
    before = Raw(uri).content()
    with pytest.raises(StoreRightsError, match="sibowner"):
        open_store(poor)
    assert Raw(uri).content() == before
    with pytest.raises(StoreRightsError):
        open_store(poor.replace(schema, "a_schema_that_is_not_there"))


def through_proxy(postgresql: Any, proxy: Proxy) -> JdbcSettings:
    uri = postgresql.uri().replace(f":{postgresql.port}/", f":{proxy.port}/")
    return parse_jdbc(uri)


def test_an_unreachable_database_is_reported_at_the_limit(
    tmp_path: Path, postgresql: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """S3, S5: a first opening tries for retry_limit_s, 15 minutes, and logs an error then; what is no database fails at once."""
    proxy = Proxy("127.0.0.1", postgresql.port)
    proxy.refuse()
    now_ms: list[float] = [0.0]
    clocks = Clocks(lambda: now_ms[0], lambda ms: now_ms.__setitem__(0, now_ms[0] + ms))
    with pytest.raises(DatabaseUnreachableError, match="tried for 90[0-9].[0-9] s"):
        JdbcFinder(through_proxy(postgresql, proxy), session_timeout_ms=3_000, clocks=clocks)
    proxy.close()
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1
    assert "the database cannot be reached, and the store does not open" in errors[0]
    junk = tmp_path / "junk.db"
    junk.write_bytes(b"this is no database " * 100)
    with pytest.raises(StoreError):
        open_store(f"jdbc:sqlite:///{junk}")


def test_the_first_opening_waits_for_a_restarting_database(postgresql: Any) -> None:
    """S3: an application that starts while its database restarts does not fail."""
    proxy = Proxy("127.0.0.1", postgresql.port)
    proxy.refuse()
    finder = JdbcFinder(
        through_proxy(postgresql, proxy),
        session_timeout_ms=3_000,
        clocks=Clocks(sleep_ms=lambda _: proxy.refuse(False)),
    )
    try:
        assert isinstance(finder.find(), Server)
    finally:
        finder.close()
        proxy.close()


@pytest.mark.parametrize(
    "error", [StoreFullError("no room"), LockTakenError("taken"), DatabaseUnreachableError("away")]
)
def test_an_engine_retries_to_regain_its_lock(
    postgresql: Any, monkeypatch: pytest.MonkeyPatch, error: StoreError
) -> None:
    """S6: an error that passes does not leave the engine in REGAINING."""
    finder = JdbcFinder(parse_jdbc(postgresql.uri(on_connection_loss="retry")), session_timeout_ms=3_000)
    try:
        assert isinstance(finder.find(), Server)
        engine = finder._engine
        assert engine is not None
        lost, real, tries = engine.persistence.ownership, acquire, [error]

        def first_fails(*args: Any, **options: Any) -> Ownership:
            if tries:
                raise tries.pop()
            return real(*args, **options)

        monkeypatch.setattr("spark_jms.store.jdbc.engine.acquire", first_fails)
        engine._lock_connection_lost(lost, "injected by the test")
        assert engine.state is EngineState.SERVING
        assert engine.persistence.ownership is not lost
        assert not tries
    finally:
        finder.close()


# ---- faults at every step


class Faults:
    """Breaks the database connection at the n-th call; with `after`, once the call is done and only its answer is lost."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.left = -1
        self.after = False
        for name in ("run", "rows", "commit"):
            patch.setattr(DatabaseConnection, name, self._wrap(getattr(DatabaseConnection, name)))

    def _wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def faulty(connection: DatabaseConnection, *arguments: Any) -> Any:
            if self.left < 0:
                return call(connection, *arguments)
            self.left -= 1
            if self.left >= 0:
                return call(connection, *arguments)
            if self.after:
                call(connection, *arguments)
            connection.lost = True
            raise ConnectionLostError("injected by the test")

        return faulty


@pytest.mark.parametrize("loss", ["failover", "retry"])
@pytest.mark.parametrize("after", [False, True])
def test_a_connection_lost_at_any_step_neither_loses_nor_repeats_a_write(
    uri: str, after: bool, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2, S6: the engine resolves a commit in doubt from SIBXACTS, and the store keeps it once."""
    faults = Faults(monkeypatch)
    uri += f"&on_connection_loss={loss}&verify_interval_ms=60000"
    with open_store(uri) as store, store.connect() as session:
        handle = session.open("r")
        for step in range(12):
            faults.after, faults.left = after, step
            handle.commit([Put("n", b"%d" % step), Put(f"k{step}", b"v")])
            faults.left = -1
            assert store.peek("r")["n"] == b"%d" % step
            assert len(store.peek("r")) == step + 2
        session.prepare("x", {handle: [Put("n", b"prepared")]})
        faults.left = 3
        store.resolve("x", commit=True)
        faults.left = -1
        assert handle.read("n") == b"prepared"
    outcomes = Raw(uri).run("SELECT base, position FROM @sibxacts ORDER BY position")
    assert all(one[1] == two[0] for one, two in itertools.pairwise(outcomes))


def test_a_write_in_doubt_is_resolved_before_it_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S2, S6: the answer of a commit is lost, the engine regains its lock, and its next connection fails once."""
    uri = f"jdbc:sqlite:///{tmp_path}/s.db?on_connection_loss=retry&verify_interval_ms=60000&retry_interval_ms=10"
    with open_store(uri) as store, store.connect() as session:
        handle = session.open("r")
        persistence = store._backend._route.finder._engine.persistence  # type: ignore[attr-defined]
        commit, connect, armed, refuse = DatabaseConnection.commit, persistence._connect, [True], []

        def lossy(connection: DatabaseConnection) -> None:
            commit(connection)
            if armed and connection is persistence._data:
                refuse.append(armed.pop())
                connection.lost = True
                raise ConnectionLostError("injected by the test")

        def full() -> DatabaseConnection:
            if refuse:
                refuse.pop()
                raise ConnectionLostError("too many clients, for a moment")
            return connect()  # type: ignore[no-any-return]

        monkeypatch.setattr(DatabaseConnection, "commit", lossy)
        persistence._connect = full
        handle.commit([Put("n", b"1")])
        assert (armed, refuse) == ([], [])
        for number in range(3):
            handle.commit([Put(f"m{number}", b"1")])
        assert len(handle.objects()) == 4
    with open_store(uri) as store:
        assert len(store.peek("r")) == 4


def test_a_full_disk_acknowledges_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S9, S6: SQLite reports a full disk; the engine continues once there is room."""
    with open_store(f"jdbc:sqlite:///{tmp_path}/s.db") as store, store.connect() as session:
        handle = session.open("r")
        handle.commit([Put("k", b"1")])
        engine = store._backend._route.finder._engine  # type: ignore[attr-defined]
        engine.persistence._data.run("PRAGMA max_page_count=30")
        with pytest.raises(StoreFullError):
            handle.commit([Put("big", b"x" * 500_000)])
        assert handle.objects() == {"k": b"1"}
        engine.persistence._data.run("PRAGMA max_page_count=100000")
        handle.commit([Put("big", b"x" * 500_000)])
    assert database_module.LOCK_TIMEOUT_MS < 1_000


def test_folders_of_a_new_sqlite_store_survive_a_loss_of_power(tmp_path: Path) -> None:
    """S1, S9: SQLite syncs what is in the folder."""
    root = tmp_path / "machine"
    root.mkdir()
    machine = Machine(root)
    require_writable(str(root / "above" / "of" / "s.db"), PowerLossDisk(machine))
    for seed in range(20):
        image = machine.after_power_loss(Random(seed), tmp_path / str(seed))
        assert (image / "above" / "of").is_dir()
    machine.close()


def test_prepared_transactions_survive_the_engine(uri: str) -> None:
    """S2: SIBXACTS keeps them until they are resolved, and their keys stay locked."""
    from spark_jms.store import TransactionInDoubtError

    with open_store(uri) as store, store.connect() as session:
        handle = session.open("r")
        handle.commit([Put("k", b"old")])
        session.prepare("tx-1", {handle: [Put("k", b"new")]})
    assert [row[0] for row in Raw(uri).run("SELECT xid FROM @sibxacts WHERE state = 'PREPARED'")] == ["x:tx-1"]
    with open_store(uri) as store, store.connect() as session:
        assert store.in_doubt() == {"tx-1": ("r",)}
        handle = session.open("r")
        with pytest.raises(TransactionInDoubtError):
            handle.commit([Put("k", b"other")])
        store.resolve("tx-1", commit=True)
        assert handle.read("k") == b"new"
    with open_store(uri) as store:
        assert (store.peek("r"), store.in_doubt()) == ({"k": b"new"}, {})


def test_a_waiter_that_moved_to_the_end_of_the_line_is_removed_later(uri: str) -> None:
    """S2, C9: its row is replaced within one batch, and the map of rows knows the new one."""
    backend = open_backend(uri)
    store = LedgerStore(backend)
    holder, first, second = (store.connect(label) for label in ("holder", "first", "second"))
    holder.open("r")
    for waiter in (first, second):
        with pytest.raises(RecordHeldError):
            waiter.open("r")

    def to_the_end(transaction: Transaction) -> None:
        transaction.do(Cancelled("r", first.session_id))
        transaction.do(Waited("r", first.session_id))

    backend.write(to_the_end)
    first.cancel("r")
    rows = Raw(uri).run("SELECT name FROM @sib001 WHERE class_id = 5")
    assert [row[0] for row in rows] == [second.session_id]
    store.close()
