"""From a URI to a store: the one place that knows which backends there are."""

from __future__ import annotations

from urllib.parse import unquote

from store.contract import Store
from store.errors import NameInvalidError, StoreNotFoundError, StoreUriError

SCHEMES = ("file", "memory")


def open_store(uri: str, *, session_timeout_ms: int = 10_000, create: bool = True) -> Store:
    """The store that the URI names: memory://NAME, file:///path or a plain path. With create=False it must exist."""
    if not isinstance(uri, str) or not uri:
        raise StoreUriError(f"not a store URI: {uri!r}")
    if session_timeout_ms <= 0:
        raise StoreUriError(f"session_timeout_ms must be positive, not {session_timeout_ms}")
    scheme, mark, rest = uri.partition("://")
    if not mark:
        scheme, rest = ("file", uri[5:]) if uri.startswith("file:/") else ("", uri)
    if scheme == "":
        return _open_file(uri, session_timeout_ms, create)
    if scheme == "memory":
        return _open_memory(rest, session_timeout_ms, create)
    if scheme == "file":
        path = unquote(rest.removeprefix("localhost"))
        if not path.startswith("/"):
            raise StoreUriError(f"a file URI needs an absolute path (file:///path): {uri!r}")
        return _open_file(path, session_timeout_ms, create)
    raise StoreUriError(f"no store for {scheme}:// in {uri!r}; there are {', '.join(SCHEMES)}")


def _open_memory(name: str, session_timeout_ms: int, create: bool) -> Store:
    from store.memory import MemoryStore

    if not name:
        raise NameInvalidError("memory:// needs a name (memory://NAME)")
    if not create and not MemoryStore.exists(name):
        raise StoreNotFoundError(f"memory://{name}")
    return MemoryStore(name, session_timeout_ms=session_timeout_ms)


def _open_file(path: str, session_timeout_ms: int, create: bool) -> Store:
    from store.file import FileStore

    return FileStore.shared(path, session_timeout_ms=session_timeout_ms, create=create)
