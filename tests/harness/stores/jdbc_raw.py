"""A JDBC store as another program sees it."""

from __future__ import annotations

from typing import Any

from spark_jms.store import Put, open_store
from spark_jms.store.jdbc.database import Database
from spark_jms.store.jdbc.settings import parse_jdbc
from spark_jms.store.jdbc.tables import make_tables


class Raw:
    """Runs statements on the tables; @ in a statement is the schema."""

    def __init__(self, uri: str) -> None:
        self.settings = parse_jdbc(uri)
        self.tables = make_tables(self.settings)
        self.database = Database(self.settings)

    def run(self, statement: str, file: str = "") -> list[Any]:
        connection = self.database.connect(f"{self.settings.path}{file}" if self.settings.dialect == "sqlite" else "")
        schema = f"{self.settings.schema}." if self.settings.schema else ""
        try:
            with connection.transaction("DEFERRED" if statement.startswith("SELECT") else "IMMEDIATE"):
                done = connection.run(statement.replace("@", schema))
                return list(done.all()) if done.returns_rows else []
        finally:
            connection.close()

    def owner(self) -> tuple[Any, ...]:
        rows = self.run("SELECT me_uuid, inc_uuid, version, migration_version FROM @sibowner", "-sibowner")
        assert len(rows) == 1
        return tuple(rows[0])

    def content(self) -> list[Any]:
        tables = ["sibclassmap", "siblisting", "sibxacts", "sibkeys", "sib000", "sib001"]
        return [sorted(map(tuple, self.run(f"SELECT * FROM @{table}"))) for table in tables] + [self.owner()]


def fill(uri: str) -> None:
    with open_store(uri) as store, store.connect() as session:
        session.open("a").commit([Put("k", b"v"), Put("l", b"w")])
        session.open("b").commit([Put("k", b"2")])
