"""From a URI to a store, to its administration and to its places: the only module that knows the kinds of stores.

A kind is imported when one of its stores is opened. Opening a store may take long: one that cannot be reached is tried again and
again. `absence` looks at the places alone: at a path, or whether an address refuses connections. It is "" unless there is
certainly no store, as far as this process can see: a place that does not answer may be slow, so it is not absent.

Features: D4, R13 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from spark_jms.settings.table import needs
from spark_jms.store.contract import Store, StoreOpening, check_duration
from spark_jms.store.errors import (
    NameInvalidError,
    StoreNotFoundError,
    StoreUriError,
    UnsupportedPlatformError,
    shown_uri,
)
from spark_jms.store.ledger.administration import Administration, OpenedAdministration

log = logging.getLogger("store")


class Endpoint(NamedTuple):
    """Of a process that serves the store."""

    host: str
    port: int


Place = str | Endpoint
"""A path, or an endpoint."""

_IN_NO_PATH = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")  # the surrogates between stand for bytes of a path


def open_store(
    uri: str, *, session_timeout_ms: int = 10_000, create: bool = True, opening: StoreOpening | None = None
) -> Store:
    """The store that the URI names (see KINDS), or the file store at a plain path. With create=False it must exist. `opening`
    bounds the waits for what is away or held, and can be cancelled."""
    kind = _kind_of(uri)
    check_duration(session_timeout_ms, "session_timeout_ms")
    if session_timeout_ms <= 0:
        raise StoreUriError(f"session_timeout_ms must be positive, not {session_timeout_ms}")
    return kind.open(uri, session_timeout_ms, create, opening or StoreOpening())


def administration_of(uri: str) -> Administration:
    """Of a URI that names no store, `check` reports that as the problem; everything else raises StoreUriError."""
    try:
        kind = _kind_of(uri)
    except StoreUriError:
        return _administer_opened(uri)
    return kind.administer(uri)


def admission_of(uri: str) -> Callable[[], None]:
    """What a sender calls before each send: ResourceAllocationException while the store refuses new messages. Needs no
    open store, and none of what the store needs."""
    if scheme_of(uri) != "replicated":
        return _admit
    from spark_jms.settings.store import ReplicatedOptions  # its table needs the errors of this package
    from spark_jms.settings.table import settings_of
    from spark_jms.store.regions.directory.overload import SendAdmission

    parts = urlsplit(uri)
    store = dict(parse_qsl(parts.query)).get("store") or settings_of(ReplicatedOptions)["store"].default
    return SendAdmission(unquote(parts.path), str(store)).check


def report_refusal(uri: str, text: str) -> None:
    """For the administrator of what keeps the store: the log of a daemon gets this line. No error without a daemon."""
    _kind_of(uri).report(uri, text)


def identity_of(uri: str) -> Mapping[str, str]:
    """What tells this store from every other one, as far as URIs tell: two that name the same store have the same. A host has
    many names, so two with different ones may be the same store. Raises StoreUriError."""
    return _kind_of(uri).identity(uri)


def layout_of(uri: str) -> Mapping[str, str]:
    """The options that are fixed when the store is created, beside those that identify it. Raises StoreUriError."""
    return _kind_of(uri).layout(uri)


def places_of(uri: str) -> Sequence[Place]:
    """Where a store's bytes or processes are: if all of them are absent, so is the store (`absence`). Raises StoreError."""
    return _kind_of(uri).places(uri)


def lasts(uri: str) -> bool:
    """Whether the store outlives the processes and daemons that have it: then one that is missing was lost, or is out of reach."""
    return _kind_of(uri).lasts


def folder_of(uri: str) -> str | None:
    """The real path of a file store's folder; None for other kinds. Raises StoreUriError."""
    return os.path.realpath(_file_path(uri)) if _kind_of(uri).places is _file_places else None


def absence(places: Sequence[Place], timeout_s: float) -> str:
    """What is missing at the places of a store; "" when one of them is there or cannot be told. Never raises for a place."""
    found = []
    for place in places:
        missing = _missing_endpoint(place, timeout_s) if isinstance(place, Endpoint) else _missing_path(place)
        if not missing:
            return ""
        found.append(missing)
    return "; ".join(found)


def scheme_of(uri: str) -> str:
    """`jdbc` of jdbc:sqlite:///x.db, `file` of file:/x, "" of a path."""
    scheme, mark, _ = uri.partition(":")
    return scheme if mark and (scheme in KINDS or uri[len(scheme) :].startswith("://")) else ""


def _kind_of(uri: str) -> _Kind:
    if not isinstance(uri, str) or not uri:
        raise StoreUriError(f"not a store URI: {uri!r}")
    scheme = scheme_of(uri)
    _check_text(unquote(uri) if scheme else uri, uri)
    if (scheme or "file") not in KINDS:
        raise StoreUriError(f"no store for {scheme}:// in {shown_uri(uri)!r}; there are {', '.join(KINDS)}")
    return KINDS[scheme or "file"]


def _check_text(text: str, uri: str) -> None:
    """Python's own error for such a path or host names neither URI nor remedy."""
    if wrong := _IN_NO_PATH.search(text):
        raise StoreUriError(f"{shown_uri(uri)!r} has {wrong[0]!r}, which no path, host or name can have")


def _missing_path(path: str) -> str:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return f"{path} does not exist"
    except OSError:
        pass
    return ""


def _missing_endpoint(endpoint: Endpoint, timeout_s: float) -> str:
    try:
        socket.create_connection((endpoint.host, endpoint.port), timeout_s).close()
    except ConnectionRefusedError:
        return f"{endpoint.host}:{endpoint.port} refuses connections"
    except OSError:
        pass
    return ""


def _admit() -> None:
    pass


def _no_report(uri: str, text: str) -> None:
    pass


def _no_layout(uri: str) -> Mapping[str, str]:
    return {}


def _memory_identity(uri: str) -> Mapping[str, str]:
    return {"kind": "memory", "name": _memory_name(uri)}


def _memory_name(uri: str) -> str:
    _refuse_options(uri, "a store in memory")
    name = uri.removeprefix("memory:").removeprefix("//")
    if not name:
        raise NameInvalidError("memory:// needs a name (memory://NAME)")
    return name


def _open_memory(uri: str, session_timeout_ms: int, create: bool, opening: StoreOpening) -> Store:
    from spark_jms.store.ledger.store import MemoryStore

    name = _memory_name(uri)
    if not create and not MemoryStore.exists(name):
        raise StoreNotFoundError(f"memory://{name}")
    return MemoryStore(name, session_timeout_ms=session_timeout_ms)


def _file_path(uri: str) -> str:
    """The directory of a file store."""
    if scheme_of(uri) == "":
        return uri
    _refuse_options(uri, "a file store (a ? in its path is written %3F)")
    path = unquote(uri.removeprefix("file:").removeprefix("//").removeprefix("localhost"))
    if not path.startswith("/"):
        raise StoreUriError(f"a file URI needs an absolute path (file:///path): {uri!r}")
    return path


def _refuse_options(uri: str, what: str) -> None:
    """Taken for a part of the name, they would make another store, an empty one."""
    _, mark, options = uri.partition("?")
    if mark:
        raise StoreUriError(f"{what} has no options: remove ?{options} from {uri!r}")


def _file_places(uri: str) -> Sequence[Place]:
    return [_file_path(uri)]


def _file_identity(uri: str) -> Mapping[str, str]:
    return {"kind": "file", "path": os.path.realpath(_file_path(uri))}


def _open_file(uri: str, session_timeout_ms: int, create: bool, opening: StoreOpening) -> Store:
    from spark_jms.store.file.store import FileStore

    return FileStore.shared(_file_path(uri), session_timeout_ms=session_timeout_ms, create=create, opening=opening)


def _administer_file(uri: str) -> Administration:
    from spark_jms.store.file.store import FileAdministration

    return FileAdministration(uri, lambda: _file_path(uri))


def _open_jdbc(uri: str, session_timeout_ms: int, create: bool, opening: StoreOpening) -> Store:
    with needs("postgresql"):
        from spark_jms.store.jdbc.store import JdbcStore

    return JdbcStore.shared(uri, session_timeout_ms=session_timeout_ms, create=create, opening=opening)


def _jdbc_places(uri: str) -> Sequence[Place]:
    with needs("postgresql"):
        from spark_jms.store.jdbc.settings import SQLITE, parse_jdbc

    found = parse_jdbc(uri)
    if found.dialect == SQLITE:
        return [found.path]
    if found.host.startswith("/"):  # the folder of a Unix socket
        return [f"{found.host}/.s.PGSQL.{found.port}"]
    return [Endpoint(found.host, found.port)]


def _jdbc_identity(uri: str) -> Mapping[str, str]:
    from spark_jms.store.jdbc.settings import SQLITE, parse_jdbc

    found = parse_jdbc(uri)
    names = {"schema": found.schema.lower(), "prefix": found.prefix.lower()}
    if found.dialect == SQLITE:
        return {"kind": found.dialect, "path": os.path.realpath(found.path), **names}
    where = {"host": found.host.lower(), "port": str(found.port), "database": found.database}
    return {"kind": found.dialect, **where, **names}


def _jdbc_layout(uri: str) -> Mapping[str, str]:
    from spark_jms.store.jdbc.settings import parse_jdbc

    found = parse_jdbc(uri)
    return {name: str(getattr(found, name)) for name in ("engine", "permanent_tables", "temporary_tables")}


def _administer_jdbc(uri: str) -> Administration:
    with needs("postgresql"):
        from spark_jms.store.jdbc.store import JdbcAdministration

    return JdbcAdministration(uri)


def check_platform() -> None:
    """UnsupportedPlatformError where the replicated store does not run. Before its modules are imported: they need Linux."""
    if sys.platform != "linux":
        error = UnsupportedPlatformError(f"the replicated store needs Linux, this is {sys.platform}")
        log.error("%s", error)
        raise error


def _open_replicated(uri: str, session_timeout_ms: int, create: bool, opening: StoreOpening) -> Store:
    check_platform()
    with needs("replicated"):
        from spark_jms.store.replicated.store import ReplicatedStore

    return ReplicatedStore.shared(uri, session_timeout_ms=session_timeout_ms, create=create, opening=opening)


def _replicated_places(uri: str) -> Sequence[Place]:
    with needs("replicated"):
        from spark_jms.store.regions.directory.global_directory import GlobalDirectory
        from spark_jms.store.replicated.store import parse_replicated

    directory = GlobalDirectory(parse_replicated(uri).directory)
    return [Endpoint(daemon.address, daemon.port) for daemon in directory.config().daemons]


def _replicated_identity(uri: str) -> Mapping[str, str]:
    with needs("replicated"):
        from spark_jms.store.replicated.store import parse_replicated

    found = parse_replicated(uri)
    return {"kind": "replicated", "directory": os.path.realpath(found.directory), "store": found.store}


def _report_to_daemon(uri: str, text: str) -> None:
    with needs("replicated"):
        from spark_jms.store.replicated.store import report_refusal

    report_refusal(uri, text)


def _administer_replicated(uri: str) -> Administration:
    with needs("replicated"):
        from spark_jms.store.replicated.store import ReplicatedAdministration

    return ReplicatedAdministration(uri, lambda: open_store(uri, create=False))


def _administer_opened(uri: str) -> Administration:
    return OpenedAdministration(uri, lambda: open_store(uri, create=False))


@dataclass(frozen=True)
class _Kind:
    """`open` takes the URI, session_timeout_ms, create and the opening. `lasts`: its bytes are on a disk."""

    open: Callable[[str, int, bool, StoreOpening], Store]
    administer: Callable[[str], Administration]
    identity: Callable[[str], Mapping[str, str]]
    places: Callable[[str], Sequence[Place]] = lambda uri: ()
    lasts: bool = True
    layout: Callable[[str], Mapping[str, str]] = _no_layout
    report: Callable[[str, str], None] = _no_report


_JDBC = _Kind(_open_jdbc, _administer_jdbc, _jdbc_identity, _jdbc_places, layout=_jdbc_layout)
KINDS: Mapping[str, _Kind] = {
    "file": _Kind(_open_file, _administer_file, _file_identity, _file_places),
    "memory": _Kind(_open_memory, _administer_opened, _memory_identity, lasts=False),
    "jdbc": _JDBC,
    "sqlite": _JDBC,
    "postgresql": _JDBC,
    "replicated": _Kind(
        _open_replicated,
        _administer_replicated,
        _replicated_identity,
        _replicated_places,
        lasts=False,
        report=_report_to_daemon,
    ),
}
SCHEMES = tuple(KINDS)
