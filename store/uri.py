"""From a URI to a store: the one place that knows which backends there are. Each is imported when it is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import unquote

from spark_jms.store.contract import Store
from spark_jms.store.errors import NameInvalidError, StoreNotFoundError, StoreUriError


def open_store(uri: str, *, session_timeout_ms: int = 10_000, create: bool = True) -> Store:
    """The store that the URI names (see OPENERS), or a plain path for the file store. With create=False it must exist."""
    if not isinstance(uri, str) or not uri:
        raise StoreUriError(f"not a store URI: {uri!r}")
    if session_timeout_ms <= 0:
        raise StoreUriError(f"session_timeout_ms must be positive, not {session_timeout_ms}")
    scheme = scheme_of(uri)
    if scheme == "":
        return _open_path(uri, session_timeout_ms, create)
    if scheme not in OPENERS:
        raise StoreUriError(f"no store for {scheme}:// in {uri!r}; there are {', '.join(OPENERS)}")
    return OPENERS[scheme](uri, session_timeout_ms, create)


def scheme_of(uri: str) -> str:
    """jdbc of jdbc:sqlite:///x.db, file of file:/x; "" of a path."""
    scheme, mark, _ = uri.partition(":")
    return scheme if mark and (scheme in OPENERS or uri[len(scheme) :].startswith("://")) else ""


def _open_memory(uri: str, session_timeout_ms: int, create: bool) -> Store:
    from spark_jms.store.memory import MemoryStore

    name = uri.removeprefix("memory:").removeprefix("//")
    if not name:
        raise NameInvalidError("memory:// needs a name (memory://NAME)")
    if not create and not MemoryStore.exists(name):
        raise StoreNotFoundError(f"memory://{name}")
    return MemoryStore(name, session_timeout_ms=session_timeout_ms)


def file_path(uri: str) -> str | None:
    """The directory of a file store; None of any other kind."""
    scheme = scheme_of(uri)
    if scheme not in ("", "file"):
        return None
    path = unquote(uri.removeprefix("file:").removeprefix("//").removeprefix("localhost")) if scheme else uri
    if scheme and not path.startswith("/"):
        raise StoreUriError(f"a file URI needs an absolute path (file:///path): {uri!r}")
    return path


def _open_file(uri: str, session_timeout_ms: int, create: bool) -> Store:
    return _open_path(file_path(uri) or "", session_timeout_ms, create)


def _open_path(path: str, session_timeout_ms: int, create: bool) -> Store:
    from spark_jms.store.file import FileStore

    return FileStore.shared(path, session_timeout_ms=session_timeout_ms, create=create)


def _open_jdbc(uri: str, session_timeout_ms: int, create: bool) -> Store:
    from spark_jms.store.jdbc import JdbcStore

    return JdbcStore.shared(uri, session_timeout_ms=session_timeout_ms, create=create)


def _open_replicated(uri: str, session_timeout_ms: int, create: bool) -> Store:
    from spark_jms.store.records.store import ReplicatedStore

    return ReplicatedStore.shared(uri, session_timeout_ms=session_timeout_ms, create=create)


OPENERS: Mapping[str, Callable[[str, int, bool], Store]] = {
    "file": _open_file,
    "memory": _open_memory,
    "jdbc": _open_jdbc,
    "sqlite": _open_jdbc,
    "postgresql": _open_jdbc,
    "replicated": _open_replicated,
}
SCHEMES = tuple(OPENERS)
