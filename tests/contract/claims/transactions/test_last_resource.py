"""A database as last resource of transactions: SQLite and PostgreSQL (T16)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from spark_jms import connect
from spark_jms.admin.servers import complete_transactions, transactions
from spark_jms.claims.transactions.last_resource import LastResource
from spark_jms.claims.transactions.transaction import Coordinator
from spark_jms.cli.__main__ import cli
from spark_jms.client import Context, Message, TransactedSession
from spark_jms.core.transactions.transfer import Ticket
from spark_jms.errors import (
    CommitOutcomeUnknownError,
    IllegalStateException,
    LastResourceError,
    OptionError,
    TransactionRolledBackException,
    TransactionUnfinishedError,
)
from spark_jms.store import StoreBusyError
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.inside import coordinators_of, domain_of, records_of, transaction_of
from tests.harness.messages.shorthands import send_texts

Connect = Callable[[], Any]


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Connect:
    """Connections to an empty database with a table of bookings."""
    if request.param == "sqlite":

        def opened() -> Any:
            return sqlite3.connect(tmp_path / "shop.db", timeout=0.2)
    else:
        uri = request.getfixturevalue("postgresql").uri().removeprefix("jdbc:")
        where = uri.split("?")[0]

        def opened() -> Any:
            return psycopg.connect(where)

    connection = opened()
    connection.execute("DROP TABLE IF EXISTS bookings")
    connection.execute("DROP TABLE IF EXISTS jmsq_decisions")
    connection.execute("CREATE TABLE bookings (what VARCHAR(20) PRIMARY KEY)")
    connection.commit()
    connection.close()
    return opened


@pytest.fixture
def root() -> Iterator[str]:
    with memory_domain(orders="queue", done="queue", copies="queue") as where:
        yield where


@pytest.fixture
def context(root: str, database: Connect) -> Iterator[Context]:
    with connect(root, housekeeping=False) as opened:
        opened.last_resource("shop", database, create=True)
        yield opened


def rows(database: Connect, table: str = "bookings") -> list[Any]:
    connection = database()
    try:
        return [row[0] for row in connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()]
    finally:
        connection.close()


def shown(context: Context, destination: str) -> list[str | None]:
    return [message.text for message in context.browser(destination)]


def book(session: TransactedSession, what: str = "tea") -> None:
    """Take an order, book it, and send that it is done."""
    with session.consumer("orders", prefetch=1) as consumer:
        message = consumer.receive(timeout=5)
    assert message is not None
    session.connection.execute(f"INSERT INTO bookings VALUES ('{what}')")
    session.producer("done").send(text=what)


def test_messages_and_rows_are_committed_together(context: Context, database: Connect) -> None:
    """T16: or rolled back; the table of decisions does not grow."""
    send_texts(context, *"abcd")
    with context.transacted_session(last_resource="shop") as session:
        for number, end in enumerate((session.commit, session.rollback, session.commit, session.commit)):
            book(session, f"tea {number}")
            assert shown(context, "done") == ["tea 0", "tea 2"][: (0, 1, 1, 2)[number]]
            end()
        session.connection.execute("INSERT INTO bookings VALUES ('alone')")
        session.commit()  # without messages
        session.connection.execute("INSERT INTO bookings VALUES ('lost')")
    assert rows(database) == ["alone", "tea 0", "tea 2", "tea 3"]
    assert shown(context, "done") == ["tea 0", "tea 2", "tea 3"]
    assert len(shown(context, "orders")) == 1
    assert len(rows(database, "jmsq_decisions")) == 1


def test_a_database_that_refuses_rolls_back_the_messages(context: Context, database: Connect) -> None:
    """T16: a statement's own error reaches the application; a commit that fails is rolled back."""
    send_texts(context, "a")
    with context.transacted_session(last_resource="shop") as session:
        book(session)
        with pytest.raises((sqlite3.IntegrityError, psycopg.errors.UniqueViolation)):
            session.connection.execute("INSERT INTO bookings VALUES ('tea')")
        session.rollback()
        book(session)
        connection, failing = session.connection, _Failing(session.connection)
        database_of(session).connection = failing  # type: ignore[misc]
        with pytest.raises(TransactionRolledBackException, match="shop has rolled back: OSError: cut off"):
            session.commit()
        database_of(session).connection = connection  # type: ignore[misc]
        assert (rows(database), shown(context, "done"), len(shown(context, "orders"))) == ([], [], 1)
        book(session)
        session.commit()
    assert (rows(database), shown(context, "done"), shown(context, "orders")) == (["tea"], ["tea"], [])


def test_a_commit_whose_answer_is_lost_is_looked_up(context: Context, database: Connect) -> None:
    """T16: the database has committed, and the application does not know."""
    send_texts(context, "a")
    with context.transacted_session(last_resource="shop") as session:
        book(session)
        connection = session.connection
        database_of(session).connection = _Failing(connection, commits=True)  # type: ignore[misc]
        session.commit()
        database_of(session).connection = connection  # type: ignore[misc]
    assert (rows(database), shown(context, "done"), shown(context, "orders")) == (["tea"], ["tea"], [])


def test_what_a_database_cannot_tell_is_in_doubt(
    context: Context, database: Connect, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T16: its messages wait, named, until a context that knows the database completes them."""
    send_texts(context, "a")
    with context.transacted_session(last_resource="shop") as session:
        book(session)
        connection = session.connection
        database_of(session).connection = _Failing(connection, commits=True)  # type: ignore[misc]
        with monkeypatch.context() as patch:
            patch.setattr(LastResource, "is_committed", _unreachable)
            with pytest.raises(CommitOutcomeUnknownError, match="in doubt"):
                session.commit()
        database_of(session).connection = connection  # type: ignore[misc]
        (row,) = transactions(domain_of(context), records_of(context))
        assert (row.state, row.owner_lives, row.waits) == ("in doubt", False, ("database shop: decision",))
        (problem,) = complete_transactions(domain_of(context), records_of(context))
        assert "last_resource('shop'" in problem
        assert (shown(context, "done"), len(shown(context, "orders"))) == ([], 1)
        with connect(root, housekeeping=False) as other:
            assert other.consumer("orders").receive(0) is None  # it waits for the decision
            other.last_resource("shop", database)
            wait_until(lambda: shown(other, "orders") == [])  # the holder of the record acknowledges
    assert (rows(database), shown(context, "done")) == (["tea"], ["tea"])
    assert not complete_transactions(domain_of(context), records_of(context))
    assert not transactions(domain_of(context), records_of(context))


def test_a_sleeping_owner_cannot_commit_after_recovery(context: Context, database: Connect, root: str) -> None:
    """T16: a recoverer that finds no row forbids it; the application's changes are rolled back with the messages."""
    send_texts(context, "a")
    with context.transacted_session(last_resource="shop") as session:
        book(session)
        sleeper = coordinators_of(context).take()
        coordinators_of(context).keep(sleeper)  # the commit takes it
        prepare = sleeper.prepare

        def slept(*arguments: Any) -> None:
            prepare(*arguments)
            found = sleeper.state.open
            assert found is not None
            assert coordinators_of(context).resources.find("shop").is_committed(found.ticket) is False

        sleeper.prepare = slept  # type: ignore[method-assign]
        if "sqlite" in type(session.connection).__module__:
            session.connection.rollback()  # SQLite has one writer: the recoverer waits for it
        with pytest.raises(TransactionRolledBackException, match="another process rolled it back"):
            session.commit()
    assert (rows(database), shown(context, "done"), len(shown(context, "orders"))) == ([], [], 1)


def test_an_owner_that_slept_through_later_transactions_cannot_commit(database: Connect) -> None:
    """T16: the row that rolled it back is replaced by those of later transactions of its coordinator, which forbid it too."""
    resource, nonce = LastResource("shop", database), "0123456789abcdef"
    resource.create_table()
    assert not resource.is_committed(Ticket(nonce, 0, 1))  # a recoverer rolls it back
    with resource.connection() as connection:
        resource.enter(connection, Ticket(nonce, 0, 2))
        connection.commit()
        with pytest.raises(LastResourceError, match="another process rolled it back"):
            resource.enter(connection, Ticket(nonce, 0, 1))
        connection.rollback()
    assert resource.is_committed(Ticket(nonce, 0, 2))
    with pytest.raises(LastResourceError, match="restored from an older copy"):
        resource.is_committed(Ticket(nonce, 0, 1))
    assert rows(database, "jmsq_decisions") == [f"{nonce}/0"]


def test_a_restored_coordinator_asks_the_database_for_fresh_numbers(context: Context, database: Connect) -> None:
    """T16: the home store is an older copy than the database, and no destination gets messages, whose log would tell."""
    send_texts(context, *"abc")
    with context.transacted_session(last_resource="shop") as session:
        consumer = session.consumer("orders")
        for number in range(3):
            assert consumer.receive(timeout=5) is not None
            session.connection.execute(f"INSERT INTO bookings VALUES ('{number}')")
            session.commit()
            coordinator = coordinators_of(context).take()
            coordinator.state = replace(coordinator.state, number=0)
            coordinators_of(context).keep(coordinator)
    assert (sorted(rows(database)), shown(context, "orders")) == (["0", "1", "2"], [])
    assert len(rows(database, "jmsq_decisions")) == 3


def test_a_transaction_with_an_old_snapshot_cannot_commit_either(postgresql: Any) -> None:
    """T16: the application's own isolation level does not hide later decisions."""
    where, nonce = postgresql.uri().removeprefix("jdbc:").split("?")[0], "fedcba9876543210"
    resource = LastResource("shop", lambda: psycopg.connect(where))
    resource.create_table()
    with psycopg.connect(where) as sleeper:
        sleeper.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        sleeper.execute("SELECT * FROM jmsq_decisions").fetchall()
        assert not resource.is_committed(Ticket(nonce, 0, 1))
        with resource.connection() as connection:
            resource.enter(connection, Ticket(nonce, 0, 2))
            connection.commit()
        with pytest.raises(LastResourceError, match="could not enter the decision"):
            resource.enter(sleeper, Ticket(nonce, 0, 1))
        sleeper.rollback()


def test_a_store_that_fails_behind_the_decision_does_not_undo_it(
    context: Context, database: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T16: the row decides."""
    send_texts(context, "a")
    with context.transacted_session(last_resource="shop") as session:
        book(session)

        def failing(self: Coordinator, *_: Any) -> None:
            raise StoreBusyError("no answer")

        with monkeypatch.context() as patch:
            patch.setattr(Coordinator, "decide", failing)
            with pytest.raises(TransactionUnfinishedError, match="committed in database shop"):
                session.commit()
        assert not coordinators_of(context).recover()
    assert (rows(database), shown(context, "done"), shown(context, "orders")) == (["tea"], ["tea"], [])


@pytest.mark.parametrize("commit", [True, False])
def test_an_administrator_decides_for_a_lost_database(
    context: Context, root: str, monkeypatch: pytest.MonkeyPatch, commit: bool
) -> None:
    """T16, C14: `jmsq transactions --commit` and `--rollback`, only of a transaction in doubt."""
    send_texts(context, "a")
    runner = CliRunner()
    with context.transacted_session(last_resource="shop") as session:
        book(session)
        database_of(session).connection = _Failing(session.connection)  # type: ignore[misc]
        with monkeypatch.context() as patch:
            patch.setattr(LastResource, "is_committed", _unreachable)
            with pytest.raises(CommitOutcomeUnknownError):
                session.commit()
        (row,) = transactions(domain_of(context), records_of(context))
        done = runner.invoke(cli, ["--root", root, "transactions", "--complete"])
        assert (done.exit_code, "does not know" in done.stderr) == (1, True)
        assert "in doubt" in done.stdout
        done = runner.invoke(cli, ["--root", root, "transactions", "--commit", "transfer/x/0/1"])
        assert done.exit_code == 1
        done = runner.invoke(
            cli, ["--root", root, "--json", "transactions", "--commit" if commit else "--rollback", row.transaction]
        )
        assert (done.exit_code, json.loads(done.stdout)) == (0, [])
    assert shown(context, "done") == (["tea"] if commit else [])
    assert len(shown(context, "orders")) == int(not commit)
    assert "CREATE TABLE" in runner.invoke(cli, ["transactions", "--ddl"]).stdout


def test_a_database_that_cannot_be_asked_stops_no_other_transaction(
    context: Context, database: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T16: the transaction in doubt keeps its coordinator, and the next one takes another."""
    send_texts(context, "a")
    with context.transacted_session(last_resource="shop") as session:
        book(session)
        database_of(session).connection = _Failing(session.connection)  # type: ignore[misc]
        with monkeypatch.context() as patch:
            patch.setattr(LastResource, "is_committed", _unreachable)
            with pytest.raises(CommitOutcomeUnknownError):
                session.commit()
    context.last_resource("shop", lambda: sqlite3.connect(tmp_path / "a.db", isolation_level=None))
    with context.transacted_session() as session:
        session.producer("done").send(text="x")
        session.producer("copies").send(text="x")
        session.commit()
    assert (shown(context, "done"), shown(context, "copies")) == (["x"], ["x"])
    (problem,) = coordinators_of(context).recover()
    assert "autocommit" in problem
    context.last_resource("shop", database)
    assert not transactions(domain_of(context), records_of(context))


@pytest.mark.parametrize("again", [KeyboardInterrupt(), OptionError("in autocommit")])
def test_an_interrupt_behind_the_databases_commit_undoes_nothing(
    context: Context, database: Connect, monkeypatch: pytest.MonkeyPatch, again: BaseException
) -> None:
    """T16: Ctrl-C when the database has the decision, and it cannot be asked either: other processes complete the transaction."""

    def interrupted_again(*_: Any) -> bool:
        raise again

    send_texts(context, "a")
    with context.transacted_session(last_resource="shop") as session:
        book(session)
        connection = _Failing(session.connection, commits=True, error=KeyboardInterrupt())
        database_of(session).connection = connection  # type: ignore[misc]
        with monkeypatch.context() as patch:
            patch.setattr(LastResource, "is_committed", interrupted_again)
            with pytest.raises((KeyboardInterrupt, CommitOutcomeUnknownError)):
                session.commit()
    wait_until(lambda: not coordinators_of(context).recover() and shown(context, "orders") == [])
    assert (shown(context, "done"), rows(database)) == (["tea"], ["tea"])


def test_a_commit_of_changes_alone_that_fails_is_named(context: Context, database: Connect) -> None:
    """T16: rolled back where the database says so, otherwise unknown; a lost connection is replaced."""
    with context.transacted_session(last_resource="shop") as session:
        session.connection.execute("INSERT INTO bookings VALUES ('tea')")
        connection = session.connection
        database_of(session).connection = _Failing(connection)  # type: ignore[misc]
        with pytest.raises(TransactionRolledBackException, match="cut off"):
            session.commit()
        database_of(session).connection = _Failing(connection, loses=True)  # type: ignore[misc]
        with pytest.raises(CommitOutcomeUnknownError, match="cut off"):
            session.commit()
        assert session.connection.execute("SELECT * FROM bookings").fetchall() == []
        session.connection.execute("INSERT INTO bookings VALUES ('tea')")
        session.commit()
    assert rows(database) == ["tea"]


def test_a_failed_statement_fails_the_commit(root: str, postgresql: Any) -> None:
    """T16: PostgreSQL answers COMMIT of a failed transaction by ROLLBACK, without an error."""
    where = postgresql.uri().removeprefix("jdbc:").split("?")[0]
    with connect(root, housekeeping=False) as context:
        context.last_resource("shop", lambda: psycopg.connect(where), create=True)
        with context.transacted_session(last_resource="shop") as session:
            with pytest.raises(psycopg.Error):
                session.connection.execute("SELECT * FROM nothing")
            with pytest.raises(TransactionRolledBackException, match="InFailedSqlTransaction"):
                session.commit()


def test_a_session_whose_listener_uses_the_database_can_be_closed(context: Context, database: Connect) -> None:
    """T16: connections of SQLite belong to the thread that made them."""
    send_texts(context, "a")
    with context.transacted_session(last_resource="shop") as session:

        def listener(message: Message) -> None:
            session.connection.execute(f"INSERT INTO bookings VALUES ('{message.text}')")

        session.consumer("orders", listener=listener, transaction_batch=1)
        wait_until(lambda: shown(context, "orders") == [])
    assert session not in context._sessions
    assert rows(database) == ["a"]


def test_wrong_uses_are_named(context: Context, database: Connect, tmp_path: Path) -> None:
    """T16"""
    with pytest.raises(OptionError, match="name of a last resource"):
        context.last_resource("", database)
    with pytest.raises(OptionError, match="function that gives a connection"):
        context.last_resource("shop", "sqlite:///x")  # type: ignore[arg-type]
    with pytest.raises(LastResourceError, match="does not know"):
        context.transacted_session(last_resource="other")
    with context.transacted_session() as session, pytest.raises(IllegalStateException, match="no last resource"):
        _ = session.connection
    context.last_resource("alone", lambda: sqlite3.connect(tmp_path / "a.db", isolation_level=None))
    with context.transacted_session(last_resource="alone") as session, pytest.raises(OptionError, match="autocommit"):
        _ = session.connection
    context.last_resource("gone", lambda: sqlite3.connect(tmp_path / "no" / "a.db"))
    with context.transacted_session(last_resource="gone") as session, pytest.raises(LastResourceError, match="connect"):
        _ = session.connection


def database_of(session: TransactedSession) -> Any:
    """Whose connection a test may replace."""
    found = transaction_of(session).database
    assert found is not None
    return _Loose(session)


class _Loose:
    def __init__(self, session: TransactedSession) -> None:
        object.__setattr__(self, "session", session)

    def __setattr__(self, name: str, value: Any) -> None:
        transaction = transaction_of(self.session)  # type: ignore[attr-defined]
        transaction.database = replace(transaction.database, **{name: value})


class _Failing:
    """A connection that is cut off in its commit."""

    def __init__(
        self, connection: Any, *, commits: bool = False, loses: bool = False, error: BaseException | None = None
    ) -> None:
        self._connection, self._commits, self._loses = connection, commits, loses
        self._error = error or OSError("cut off")

    def commit(self) -> None:
        if self._commits:
            self._connection.commit()
        if self._loses:
            self._connection.close()
        raise self._error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def _unreachable(self: LastResource, *_: Any) -> bool:
    raise LastResourceError("no route to the database")
