"""The seven tables (S1). What they are for is in the texts' words; who writes them stands behind.

    SIBOWNER      me_uuid, inc_uuid, version, migration_version     whose the store is, and which start of it (protocol.py)
    SIBOWNER0     empty_column                                      only to be locked; never holds a row (protocol.py)
    SIBCLASSMAP   class_id, name, persistent                        the kinds of objects (rows.py)
    SIBLISTING    table_id, table_name, persistent                  the SIBnnn tables (persistence.py)
    SIBXACTS      xid, state, base, position, data, identity, checksum
                                                                    outcomes of commits, prepared transactions (outcomes.py)
    SIBKEYS       key_id, last_key                                  ids, handed out in blocks (persistence.py)
    SIBnnn        id, parent_id, class_id, name, number, data, identity, checksum       the objects (rows.py)

Persistent (SIB000 …): record sets with their epochs, and their objects. Non-persistent (after them): sessions, who holds
and who waits, and where the engine serves; all that the engine can do without: restored from a copy of the persistent
tables alone, a store has every record set and every object, and all are free.

`checksum` is over a whole row, `identity` over what tells whose row it is: so of a damaged row it is known whom it concerns.

Names are lower case for the database, so that they need no quotes: SIBOWNER, sibowner and SibOwner are one table.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, String, Table
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.schema import CreateTable

from spark_jms.store.jdbc.settings import POSTGRESQL, SQLITE, JdbcSettings

VERSION = 2  # 2: rows have an identity
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

    def table(name: str, *columns: Column[object]) -> Table:
        return Table(prefix + name, metadata, *columns)

    def name(label: str, chars: int, key: bool = False) -> Column[object]:
        return Column(label, String(chars), primary_key=key, nullable=False)

    def number(label: str, key: bool = False) -> Column[object]:
        return Column(label, BigInteger, primary_key=key, nullable=False, autoincrement=False)

    def small(label: str, key: bool = False) -> Column[object]:
        return Column(label, Integer, primary_key=key, nullable=False, autoincrement=False)

    def data() -> Column[object]:
        return Column("data", LargeBinary, nullable=False)

    return Tables(
        metadata,
        table("owner", name("me_uuid", 64, True), name("inc_uuid", 64), small("version"), small("migration_version")),
        table("owner0", Column("empty_column", Integer)),
        table("classmap", small("class_id", True), name("name", 64), small("persistent")),
        table("listing", small("table_id", True), name("table_name", 64), small("persistent")),
        table(
            "xacts",
            name("xid", _XID_CHARS, True), name("state", 16), number("base"), number("position"), data(),
            number("identity"), number("checksum"),
        ),
        table("keys", name("key_id", 64, True), number("last_key")),
        tuple(
            table(
                f"{nnn:03}",
                number("id", True), number("parent_id"), small("class_id"), name("name", NAME_CHARS), number("number"),
                data(), number("identity"), number("checksum"),
            )
            for nnn in range(settings.permanent_tables + settings.temporary_tables)
        ),
        settings.permanent_tables,
    )  # fmt: skip


def ddl(settings: JdbcSettings) -> str:
    """For administrators who make the tables themselves; what the store would do is the same."""
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
    """SQLite locks whole files, so each of the two lock tables has its own (see protocol.py)."""
    return f"{path}-{table.name}"


assert {SQLITE, POSTGRESQL} == {"sqlite", "postgresql"}
