"""Whether all tables of a store exist and list what they should, and creating them. A refusal changes nothing.

Features: S1, S3 (docs/FEATURES.md)
"""

from __future__ import annotations

import os

import sqlalchemy as sa

from spark_jms.store.disk import Disk
from spark_jms.store.errors import (
    StoreCorruptError,
    StoreRightsError,
    StoreWriteError,
    TablesIncompleteError,
    TablesMissingError,
)
from spark_jms.store.jdbc.database import Database, DatabaseConnection
from spark_jms.store.jdbc.rows import CLASSES
from spark_jms.store.jdbc.settings import SQLITE
from spark_jms.store.jdbc.tables import Tables, sqlite_file


def ensure_tables(database: Database, tables: Tables, *, create: bool) -> bool:
    """True when it created them. `create`: the caller accepts a new store; the setting `create_tables` must allow it too."""
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
    except StoreWriteError:
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
