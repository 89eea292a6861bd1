"""What a jdbc URI says, checked once (S1, S6, S8).

    jdbc:sqlite:///path/file.db?option=value            also sqlite:///path/file.db
    jdbc:postgresql://user@host:port/db?option=value    also postgresql://…

Options that are not in OPTIONS are handed to libpq (`sslmode`, `passfile`, …); SQLite has none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from spark_jms.store.errors import StoreUriError

SQLITE, POSTGRESQL = "sqlite", "postgresql"
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,40}")
FAILOVER, RETRY = "failover", "retry"


@dataclass(frozen=True)
class JdbcSettings:
    """`orphan_limit_s`: in this time the database drops the lock of an engine it no longer hears; it has to be below
    `retry_limit_s`, or nobody would wait long enough for it."""

    dialect: str
    path: str = ""
    host: str = ""
    port: int = 5432
    user: str = ""
    password: str = field(default="", repr=False)
    database: str = ""
    libpq: tuple[tuple[str, str], ...] = ()

    schema: str = ""
    prefix: str = "SIB"
    engine: str = ""
    create_tables: bool = True
    permanent_tables: int = 1
    temporary_tables: int = 1
    on_connection_loss: str = FAILOVER
    retry_limit_s: float = 900.0
    retry_interval_ms: float = 1_000.0
    verify_interval_ms: float = 1_000.0
    statement_limit_s: float = 20.0
    orphan_limit_s: float = 120.0
    engine_host: str = "127.0.0.1"
    engine_port: int = 0

    def __post_init__(self) -> None:
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


def _number(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        number = float(text)
        if not (math.isfinite(number) and low <= number <= high):
            raise ValueError
        return number

    return read


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text)
        if not low <= number <= high:
            raise ValueError
        return number

    return read


def _one_of(values: Mapping[str, object]) -> Callable[[str], object]:
    def read(text: str) -> object:
        try:
            return values[text.lower()]
        except KeyError:
            raise ValueError from None

    return read


def _identifier(text: str) -> str:
    if not _IDENTIFIER.fullmatch(text):
        raise ValueError
    return text


def _text(text: str) -> str:
    if not 1 <= len(text) <= 64 or not text.isprintable():
        raise ValueError
    return text


_YES_NO = {"yes": True, "true": True, "no": False, "false": False}
OPTIONS: Mapping[str, tuple[Callable[[str], object], str]] = {
    "schema": (_identifier, "a name of letters, digits and _"),
    "prefix": (_identifier, "a name of letters, digits and _; the tables are PREFIXOWNER …"),
    "engine": (_text, "1 to 64 characters: the ME_UUID the store must belong to"),
    "create_tables": (_one_of(_YES_NO), "yes or no"),
    "permanent_tables": (_whole(1, 32), "1 to 32"),
    "temporary_tables": (_whole(1, 32), "1 to 32"),
    "on_connection_loss": (_one_of({FAILOVER: FAILOVER, RETRY: RETRY}), f"{FAILOVER} or {RETRY}"),
    "retry_limit_s": (_number(0.1, 86_400), "0.1 to 86400 seconds"),
    "retry_interval_ms": (_number(10, 60_000), "10 to 60000 milliseconds"),
    "verify_interval_ms": (_number(10, 60_000), "10 to 60000 milliseconds"),
    "statement_limit_s": (_number(0.1, 3_600), "0.1 to 3600 seconds"),
    "orphan_limit_s": (_number(1, 7_200), "1 to 7200 seconds"),
    "engine_host": (_text, "the address at which this host's engine serves the others"),
    "engine_port": (_whole(0, 65_535), "0 (any free one) to 65535"),
}


def parse_jdbc(uri: str) -> JdbcSettings:
    parts = _split(uri)
    dialect = "postgresql" if parts.scheme in ("postgresql", "postgres") else parts.scheme
    if dialect not in (SQLITE, POSTGRESQL):
        raise StoreUriError(f"no database {parts.scheme!r} in {uri!r}: there are {SQLITE} and {POSTGRESQL}")
    known, rest = _options(uri, parts.query)
    if dialect == SQLITE:
        path = re.sub("^//+", "/", unquote(parts.path))
        if parts.netloc not in ("", "localhost") or not path.startswith("/") or path.endswith("/"):
            raise StoreUriError(f"an SQLite store needs an absolute path (jdbc:sqlite:///path/file.db): {uri!r}")
        if rest or "schema" in known:
            raise StoreUriError(
                f"SQLite knows no {', '.join([*dict(rest), *(['schema'] * ('schema' in known))])}: {uri!r}"
            )
        return JdbcSettings(dialect, path=path, **known)  # type: ignore[arg-type]
    database = unquote(parts.path.lstrip("/"))
    if not database or not parts.hostname:
        raise StoreUriError("a PostgreSQL store needs host and database (jdbc:postgresql://user@host:port/db)")
    return JdbcSettings(
        dialect, host=unquote(parts.hostname), port=_port(parts), user=unquote(parts.username or ""),
        password=unquote(parts.password or ""), database=database, libpq=rest, **known,  # type: ignore[arg-type]
    )  # fmt: skip


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


def _options(uri: str, query: str) -> tuple[dict[str, object], tuple[tuple[str, str], ...]]:
    known: dict[str, object] = {}
    rest = []
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in OPTIONS:
            rest.append((name, text))
            continue
        read, allowed = OPTIONS[name]
        try:
            known[name] = read(text)
        except ValueError:
            raise StoreUriError(f"{name}={text!r} must be {allowed}") from None
    return known, tuple(rest)


def with_engine(uri: str, engine: str) -> str:
    """The URI, saying whose store it must be, unless it says so already."""
    if re.search(r"[?&]engine=", uri):
        return uri
    return f"{uri}{'&' if '?' in uri else '?'}engine={engine}"


assert set(OPTIONS) <= {f.name for f in fields(JdbcSettings)}
