"""A database as last resource of transactions: their decisions are rows of a table in the application's own database.

The application commits a row with its other changes. core/transactions/transaction.py has the rules.

    row of the coordinator       transaction n
    ----------------------       -------------
    n, 'C'                       is committed: the application's transaction wrote the row, with what it changed
    n, 'R'                       is rolled back: a recoverer wrote the row first
    an older number, or none     is undecided: the first process to write the row decides
    a later number               was decided before, and cannot be committed any more

A coordinator has one open transaction and its numbers rise, so it has one row, whose number only rises. An owner that slept
through the recovery of its transaction, and through later ones, therefore finds n or a later number and cannot commit.

Features: T16 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from spark_jms.core.transactions.transfer import Ticket
from spark_jms.errors import CommitOutcomeUnknownError, LastResourceError, OptionError

TABLE = "jmsq_decisions"
DDL = (
    f"CREATE TABLE IF NOT EXISTS {TABLE} (coordinator VARCHAR(64) PRIMARY KEY, number BIGINT NOT NULL, "
    "decision VARCHAR(1) NOT NULL)"
)
_COMMITTED, _ROLLED_BACK = "C", "R"
_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '2s'"  # PostgreSQL; SQLite has a time-out of its own
Connect = Callable[[], Any]


class LastResource:
    """A database by the name under which transactions know it. `connect` gives a new connection of the Python database interface
    (PEP 249), outside autocommit."""

    def __init__(self, name: str, connect: Connect) -> None:
        self.name, self._connect = name, connect

    def create_table(self) -> None:
        """Unless it is there. Raises LastResourceError."""
        with self.connection() as connection, self._explained("create its table"):
            _execute(connection, DDL)
            connection.commit()

    def opened(self) -> Any:
        """A new connection. Raises OptionError when it commits by itself, and LastResourceError."""
        with self._explained("connect"):
            connection = self._connect()
        commits_alone = getattr(connection, "autocommit", False) is True
        if commits_alone or (getattr(connection, "isolation_level", "") is None and _is_sqlite(connection)):
            connection.close()
            raise OptionError(
                f"the connections of last resource {self.name} are in autocommit mode, so nothing could be decided together with "
                "what the application changes: let `connect` give a connection that begins transactions"
            )
        return connection

    @contextmanager
    def connection(self) -> Iterator[Any]:
        with closing(self.opened()) as connection:
            yield connection

    def enter(self, connection: Any, ticket: Ticket) -> None:
        """Enter the decision into the application's transaction, which has to be committed then. Raises LastResourceError, also
        when the transaction was rolled back by another process; then nothing is decided."""
        with self._explained(f"enter the decision on {ticket}"):
            if not _write(connection, ticket, _COMMITTED):
                raise LastResourceError(
                    f"database {self.name} has {ticket} as decided: another process rolled it back, because this one stood still"
                )

    def knows(self, connection: Any, ticket: Ticket) -> bool:
        """This transaction or a later one of its coordinator is decided, as the application's connection sees it. Raises
        LastResourceError."""
        with self._explained(f"look for {ticket}"):
            return _row(connection, ticket)[0] >= ticket.number

    def commit(self, connection: Any) -> None:
        """The application's changes, without a decision. Raises LastResourceError when the database has rolled them back, and
        CommitOutcomeUnknownError when the connection was lost."""
        with self._explained(
            "commit"
        ):  # PostgreSQL answers COMMIT of a failed transaction by ROLLBACK, without an error
            _fetched(connection, "SELECT 1")
        try:
            connection.commit()
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).strip()}"
            if not roll_back_connection(connection):
                raise CommitOutcomeUnknownError(
                    f"the connection to database {self.name} was lost while it committed ({reason}): look there whether it has"
                ) from error
            raise LastResourceError(f"database {self.name} has rolled back: {reason}") from error

    def is_committed(self, ticket: Ticket) -> bool:
        """The decision on a transaction whose owner cannot decide any more, or does not know whether it has: when there is none, the
        transaction is rolled back for good. Raises LastResourceError while the database cannot tell."""
        with self.connection() as connection, self._explained(f"tell what became of {ticket}"):
            for _ in range(3):
                number, decision = _row(connection, ticket)
                connection.rollback()
                if number > ticket.number:
                    raise LastResourceError(
                        f"database {self.name} knows a later transaction than {ticket}: it or the domain's home store was restored "
                        "from an older copy; see `jmsq transactions --commit` and `--rollback`"
                    )
                if number == ticket.number:
                    return decision == _COMMITTED
                try:
                    if not _is_sqlite(connection):
                        _execute(connection, _LOCK_TIMEOUT)
                    if _write(connection, ticket, _ROLLED_BACK):
                        connection.commit()
                        return False
                    connection.rollback()
                except Exception as error:
                    connection.rollback()
                    if not _is_conflict(error):
                        raise
                # its owner was first
        raise LastResourceError(f"database {self.name} has contradictory answers on transaction {ticket}: try again")

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except (LastResourceError, OptionError):
            raise
        except Exception as error:
            raise LastResourceError(
                f"database {self.name} could not {what}: {type(error).__name__}: {str(error).strip()}"
            ) from error


class LastResources:
    """Those that a process knows, by name. Thread-safe."""

    def __init__(self) -> None:
        self._lock, self._known = threading.Lock(), dict[str, LastResource]()

    def add(self, resource: LastResource) -> None:
        with self._lock:
            self._known[resource.name] = resource

    def find(self, name: str) -> LastResource:
        """Raises LastResourceError."""
        with self._lock:
            found = self._known.get(name)
        if found is None:
            raise LastResourceError(
                f"the decision is in database {name!r}, which this process does not know: a context with last_resource({name!r}, …) "
                "completes it, or `jmsq transactions --commit` or `--rollback` where the database is lost"
            )
        return found


def roll_back_connection(connection: Any) -> bool:
    """Raises nothing. False: the connection is lost, and the database rolls back by itself."""
    try:
        connection.rollback()
    except Exception:  # noqa: BLE001 - each driver has its own
        return False
    return True


def _row(connection: Any, ticket: Ticket) -> tuple[int, str]:
    """The newest number that is decided, and how; 0: none."""
    row = _fetched(connection, f"SELECT number, decision FROM {TABLE} WHERE coordinator = '{_coordinator(ticket)}'")
    return (int(row[0]), str(row[1])) if row else (0, "")


def _write(connection: Any, ticket: Ticket, decision: str) -> bool:
    """False: this transaction or a later one is decided."""
    key, number = _coordinator(ticket), ticket.number
    set_to = f"UPDATE {TABLE} SET number = {number}, decision = '{decision}'"
    if _execute(connection, f"{set_to} WHERE coordinator = '{key}' AND number < {number}"):
        return True
    if _row(connection, ticket)[0]:
        return False
    _execute(connection, f"INSERT INTO {TABLE} VALUES ('{key}', {number}, '{decision}')")
    return True


def _coordinator(ticket: Ticket) -> str:
    """Hexadecimal digits, a slash and a number: safe in a statement, whose parameters each driver writes in its own way."""
    return f"{int(ticket.nonce, 16):016x}/{int(ticket.slot)}"


def _execute(connection: Any, statement: str) -> int:
    """The number of rows that it changed."""
    with closing(connection.cursor()) as cursor:
        cursor.execute(statement)
        return int(cursor.rowcount)


def _fetched(connection: Any, statement: str) -> Any:
    with closing(connection.cursor()) as cursor:
        cursor.execute(statement)
        return cursor.fetchone()


def _is_sqlite(connection: Any) -> bool:
    return type(connection).__module__.split(".")[0] == "sqlite3"


def _is_conflict(error: Exception) -> bool:
    """Every driver has an error of this name for a second row with a key."""
    return any(kind.__name__ == "IntegrityError" for kind in type(error).__mro__)
