"""The seven tables: what each holds, the module that knows its rows, and how a store's tables are checked and created.

    SIBOWNER      me_uuid, inc_uuid, version, migration_version     which engine owns the store, and its current start
                                                                    (protocol.py)
    SIBOWNER0     empty_column                                      nothing: the table is only locked (protocol.py)
    SIBCLASSMAP   class_id, name, persistent                        the kinds of objects (here)
    SIBLISTING    table_id, table_name, persistent                  the SIBnnn tables (here)
    SIBXACTS      xid, state, base, position, data, identity, checksum
                                                                    outcomes of commits, prepared transactions (content.py)
    SIBKEYS       key_id, last_key                                  ids, handed out in blocks (persistence.py)
    SIBnnn        id, parent_id, class_id, name, number, data, identity, checksum       the objects (rows.py)

The persistent SIBnnn tables (SIB000 and following) hold record sets with their epochs, and their objects. The non-persistent
ones after them hold sessions, holders, waiters and where the engine serves. The engine can do without these: a store that is
restored from a copy of the persistent tables alone has every record set and every object, and all record sets are free.

`checksum` covers a whole row; `identity` covers the part that tells which record set the row concerns, so that this is known
of most damaged rows as well.

All names are lower case in the database and need no quotes: SIBOWNER, sibowner and SibOwner are one table.

Features: S1, S3 (docs/FEATURES.md)
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, String, Table
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.schema import CreateTable

from spark_jms.store.disk import Disk
from spark_jms.store.errors import (
    StoreBusyError,
    StoreCorruptError,
    StoreRightsError,
    StoreWriteError,
    TablesIncompleteError,
    TablesMissingError,
)
from spark_jms.store.jdbc.database import Database, DatabaseConnection
from spark_jms.store.jdbc.rows import CLASSES
from spark_jms.store.jdbc.settings import POSTGRESQL, SQLITE, JdbcSettings

VERSION = 2  # since 2, rows have an identity
NAME_CHARS = 512
_XID_CHARS = NAME_CHARS + 2


@dataclass(frozen=True)
class Tables:
    """`objects` are the SIBnnn tables, the persistent ones first."""

    metadata: MetaData
    owner: Table
    owner0: Table
    class_map: Table
    listing: Table
    transactions: Table
    keys: Table
    objects: tuple[Table, ...]
    persistent_count: int

    @property
    def all(self) -> tuple[Table, ...]:
        fixed = (self.owner, self.owner0, self.class_map, self.listing, self.transactions, self.keys)
        return (*fixed, *self.objects)


def make_tables(settings: JdbcSettings) -> Tables:
    metadata = MetaData(schema=settings.schema.lower() or None)
    prefix = settings.prefix.lower()

    def table(name: str, *columns: Column[Any]) -> Table:
        return Table(prefix + name, metadata, *columns)

    def name(label: str, chars: int, key: bool = False) -> Column[Any]:
        return Column(label, String(chars), primary_key=key, nullable=False)

    def number(label: str, key: bool = False) -> Column[Any]:
        return Column(label, BigInteger, primary_key=key, nullable=False, autoincrement=False)

    def small(label: str, key: bool = False) -> Column[Any]:
        return Column(label, Integer, primary_key=key, nullable=False, autoincrement=False)

    def data() -> Column[Any]:
        return Column("data", LargeBinary, nullable=False)

    def checked(*columns: Column[Any]) -> tuple[Column[Any], ...]:
        return (*columns, number("identity"), number("checksum"))

    return Tables(
        metadata=metadata,
        owner=table(
            "owner", name("me_uuid", 64, True), name("inc_uuid", 64), small("version"), small("migration_version")
        ),
        owner0=table("owner0", Column("empty_column", Integer)),
        class_map=table("classmap", small("class_id", True), name("name", 64), small("persistent")),
        listing=table("listing", small("table_id", True), name("table_name", 64), small("persistent")),
        transactions=table(
            "xacts",
            *checked(name("xid", _XID_CHARS, True), name("state", 16), number("base"), number("position"), data()),
        ),
        keys=table("keys", name("key_id", 64, True), number("last_key")),
        objects=tuple(
            table(
                f"{nnn:03}",
                *checked(
                    number("id", True),
                    number("parent_id"),
                    small("class_id"),
                    name("name", NAME_CHARS),
                    number("number"),
                    data(),
                ),
            )
            for nnn in range(settings.permanent_tables + settings.temporary_tables)
        ),
        persistent_count=settings.permanent_tables,
    )


def ddl(settings: JdbcSettings) -> str:
    """The statements for an administrator who creates the tables; the store would execute the same."""
    tables = make_tables(settings)
    dialect: Dialect
    lines = [f"-- {settings.shown}: tables of a spark-jms data store, version {VERSION}"]
    if settings.dialect == POSTGRESQL:
        from sqlalchemy.dialects import postgresql

        dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
        lines += [f"CREATE SCHEMA IF NOT EXISTS {settings.schema.lower()};"] if settings.schema else []
        groups = [("", tables.all)]
    else:
        from sqlalchemy.dialects import sqlite

        dialect = sqlite.dialect()
        own = (tables.owner0, tables.owner)
        groups = [(f"-- in {sqlite_file(settings.path, table)}", (table,)) for table in own]
        groups.append((f"-- in {settings.path}", tuple(table for table in tables.all if table not in own)))
    for title, members in groups:
        lines += [title] if title else []
        lines += [str(CreateTable(table).compile(dialect=dialect)).strip() + ";" for table in members]
    return "\n".join(lines) + "\n"


def sqlite_file(path: str, table: Table) -> str:
    """SQLite locks whole files, so each of the two lock tables has a file of its own (protocol.py)."""
    return f"{path}-{table.name}"


def ensure_tables(database: Database, tables: Tables, *, create: bool) -> bool:
    """All tables exist and list what they should, or a refusal that changes nothing. True when it created them. `create`: the
    caller accepts a new store; the setting `create_tables` must allow it too."""
    settings = database.settings
    if settings.dialect == SQLITE and not create and not os.path.exists(settings.path):
        raise TablesMissingError(settings.shown)
    if settings.dialect == SQLITE:
        require_writable(settings.path, Disk())
    missing = _missing(database, tables)
    if not missing:
        return False
    names = ", ".join(table.fullname for table in missing)
    if _is_incomplete(database, tables, missing):
        raise TablesIncompleteError(f"{settings.shown} lacks {names}")
    if not (create and settings.create_tables):
        raise TablesMissingError(f"{settings.shown} lacks {names}")
    try:
        _create(database, tables)
    except StoreRightsError:
        raise
    except (StoreWriteError, StoreBusyError):
        if _missing(database, tables):  # none is missing when another process created them meanwhile
            raise
        return False
    return True


def require_writable(path: str, disk: Disk) -> None:
    """Makes the folder of a SQLite file. SQLite syncs the names in it, and not its own."""
    directory = os.path.dirname(path)
    try:
        disk.make_folders(directory)
        if not os.path.exists(path):
            disk.sync_name(directory)
    except OSError as error:
        raise StoreRightsError(f"{directory}: {error.strerror or error}") from error
    for file in (path, directory):
        if os.path.exists(file) and not os.access(file, os.W_OK):
            raise StoreRightsError(f"{file} cannot be written")


def _places(database: Database, tables: Tables) -> list[tuple[str, tuple[sa.Table, ...]]]:
    """(SQLite file, its tables); one place on PostgreSQL. SIBOWNER0 and SIBOWNER come first."""
    settings = database.settings
    if settings.dialect != SQLITE:
        return [("", tables.all)]
    own = (tables.owner0, tables.owner)
    places = [(sqlite_file(settings.path, table), (table,)) for table in own]
    return [*places, (settings.path, tuple(table for table in tables.all if table not in own))]


def _missing(database: Database, tables: Tables) -> list[sa.Table]:
    missing: list[sa.Table] = []
    for path, members in _places(database, tables):
        if path and not os.path.exists(path):
            missing += members
            continue
        connection = database.connect(path)
        try:
            there = _table_names(connection, database)
        finally:
            connection.close()
        missing += [table for table in members if table.name not in there]
    return missing


def _table_names(connection: DatabaseConnection, database: Database) -> set[str]:
    if database.settings.dialect == SQLITE:
        found = connection.rows(sa.text("SELECT name FROM sqlite_master WHERE type = 'table'"))
        return {row.name for row in found}
    found = connection.rows(
        sa.text(
            "SELECT c.relname AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.relkind IN ('r', 'p') AND n.nspname = coalesce(:schema, current_schema())"
        ).bindparams(schema=database.settings.schema.lower() or None)
    )
    return {row.name for row in found}


def _is_incomplete(database: Database, tables: Tables, missing: list[sa.Table]) -> bool:
    if len(missing) == len(tables.all):
        return False
    # SQLite's lock files are created first, one by one; the next start completes what a dead start left there.
    own = (tables.owner0, tables.owner)
    there = [table for table in tables.all if table not in missing]
    return not (database.settings.dialect == SQLITE and all(table in own for table in there))


def _create(database: Database, tables: Tables) -> None:
    """Each place in one transaction, so that no other process sees some of its tables."""
    schema = database.settings.schema.lower()
    for path, members in _places(database, tables):
        connection = database.connect(path)
        try:
            with connection.transaction():
                if schema and not connection.rows(
                    sa.text("SELECT 1 FROM pg_namespace WHERE nspname = :schema").bindparams(schema=schema)
                ):
                    connection.run(f"CREATE SCHEMA {schema}")
                for table in members:
                    connection.run(sa.schema.CreateTable(table, if_not_exists=database.settings.dialect == SQLITE))
        finally:
            connection.close()


def ensure_catalogue(data: DatabaseConnection, tables: Tables) -> None:
    """Fills SIBCLASSMAP and SIBLISTING of a new store. StoreCorruptError when those of an old one list something else."""
    _ensure_listed(
        data,
        tables.class_map,
        [
            {"class_id": class_id, "name": name, "persistent": int(persistent)}
            for class_id, (name, persistent) in CLASSES.items()
        ],
    )
    _ensure_listed(
        data,
        tables.listing,
        [
            {"table_id": number, "table_name": table.name, "persistent": int(number < tables.persistent_count)}
            for number, table in enumerate(tables.objects)
        ],
    )


def _ensure_listed(data: DatabaseConnection, table: sa.Table, wanted: list[dict[str, object]]) -> None:
    found = [dict(row._mapping) for row in data.rows(sa.select(*table.c).order_by(*table.primary_key))]
    if not found:
        data.run(sa.insert(table), wanted)
    elif found != wanted:
        raise StoreCorruptError(table.fullname, 0, f"it lists {found}, and should list {wanted}")
