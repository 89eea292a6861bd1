"""Parses a jdbc URI. `spark_jms/settings/store.py` declares its options.

    jdbc:sqlite:///path/file.db?option=value            also sqlite:///path/file.db
    jdbc:postgresql://user@host:port/db?option=value    also postgresql://…

Other options go to libpq (`sslmode`, `passfile`, …); SQLite has none.

Features: S1, S6, S8 (docs/FEATURES.md)
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, unquote, urlsplit

import attrs

from spark_jms.settings.store import JdbcOptions, from_query
from spark_jms.store.errors import StoreUriError, shown_uri

SQLITE, POSTGRESQL = "sqlite", "postgresql"


@attrs.frozen(kw_only=True)
class JdbcSettings(JdbcOptions):
    """The database, and the options of its URI. `libpq` are the options that go to libpq."""

    dialect: str
    path: str = ""
    host: str = ""
    port: int = 5432
    user: str = ""
    password: str = attrs.field(default="", repr=False)
    database: str = ""
    libpq: tuple[tuple[str, str], ...] = ()

    def __attrs_post_init__(self) -> None:
        if self.orphan_limit_s >= self.retry_limit_s:
            raise StoreUriError(
                f"orphan_limit_s is {self.orphan_limit_s:g}, and must be below retry_limit_s, {self.retry_limit_s:g}"
            )

    @property
    def shown(self) -> str:
        """For messages and logs: no password."""
        if self.dialect == SQLITE:
            return f"jdbc:sqlite:///{self.path.lstrip('/')}"
        user = f"{self.user}@" if self.user else ""
        return f"jdbc:postgresql://{user}{self.host}:{self.port}/{self.database}" + (
            f"?schema={self.schema}" if self.schema else ""
        )


def parse_jdbc(uri: str) -> JdbcSettings:
    parts = _split(uri)
    dialect = "postgresql" if parts.scheme in ("postgresql", "postgres") else parts.scheme
    if dialect not in (SQLITE, POSTGRESQL):
        raise StoreUriError(f"no database {parts.scheme!r} in {shown_uri(uri)!r}: there are {SQLITE} and {POSTGRESQL}")
    known, rest = from_query(JdbcOptions, parts.query)
    if dialect == SQLITE:
        path = re.sub("^//+", "/", unquote(parts.path))
        if parts.netloc not in ("", "localhost") or not path.startswith("/") or path.endswith("/"):
            raise StoreUriError(
                f"an SQLite store needs an absolute path (jdbc:sqlite:///path/file.db): {shown_uri(uri)!r}"
            )
        if rest or "schema" in known:
            raise StoreUriError(
                f"SQLite knows no {', '.join([*dict(rest), *(['schema'] * ('schema' in known))])}: {shown_uri(uri)!r}"
            )
        return JdbcSettings(dialect=dialect, path=path, **known)
    database = unquote(parts.path.lstrip("/"))
    if not database or not parts.hostname:
        raise StoreUriError("a PostgreSQL store needs host and database (jdbc:postgresql://user@host:port/db)")
    return JdbcSettings(
        dialect=dialect,
        host=unquote(parts.hostname),
        port=_port(parts),
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=database,
        libpq=rest,
        **known,
    )


def _split(uri: str) -> SplitResult:
    try:
        return urlsplit(uri.removeprefix("jdbc:"))
    except ValueError as error:
        raise StoreUriError(f"not a jdbc URI ({error})") from error


def _port(parts: SplitResult) -> int:
    try:
        return parts.port or 5432
    except ValueError as error:
        raise StoreUriError(str(error)) from error


def with_engine(uri: str, engine: str) -> str:
    """The URI, saying whose store it must be, unless it says so already."""
    if re.search(r"[?&]engine=", uri):
        return uri
    return f"{uri}{'&' if '?' in uri else '?'}engine={engine}"
