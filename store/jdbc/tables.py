"""The seven tables: what each holds, and the module that writes it.

    SIBOWNER      me_uuid, inc_uuid, version, migration_version     which engine owns the store, and its current start
                                                                    (protocol.py)
    SIBOWNER0     empty_column                                      nothing: the table is only locked (protocol.py)
    SIBCLASSMAP   class_id, name, persistent                        the kinds of objects (schema.py)
    SIBLISTING    table_id, table_name, persistent                  the SIBnnn tables (schema.py)
    SIBXACTS      xid, state, base, position, data, identity, checksum
                                                                    outcomes of commits, prepared transactions (outcomes.py)
    SIBKEYS       key_id, last_key                                  ids, handed out in blocks (ids.py)
    SIBnnn        id, parent_id, class_id, name, number, data, identity, checksum       the objects (rows.py)

The persistent SIBnnn tables (SIB000 and following) hold record sets with their epochs, and their objects. The non-persistent
ones after them hold sessions, holders, waiters and where the engine serves. The engine can do without these: a store that is
restored from a copy of the persistent tables alone has every record set and every object, and all record sets are free.

`checksum` covers a whole row; `identity` covers the part that tells which record set the row concerns, so that this is known
of most damaged rows as well.

All names are lower case in the database and need no quotes: SIBOWNER, sibowner and SibOwner are one table.

Features: S1 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, String, Table
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.schema import CreateTable

from spark_jms.store.jdbc.settings import POSTGRESQL, JdbcSettings

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
