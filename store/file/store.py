"""`FileStore`: what users open. Openings of one directory by one process share one backend, and so one group commit."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from store.file.backend import COMPACT_MIN_BYTES, COMPACT_RATIO, FileBackend
from store.file.disk import Disk
from store.session import LedgerStore

_shared: dict[tuple[str, int], FileBackend] = {}
_shared_lock = threading.Lock()


def _forget_in_child() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()  # a thread of the parent may have held it at the fork
    _shared.clear()


os.register_at_fork(after_in_child=_forget_in_child)


class FileStore(LedgerStore):
    """A store in one directory of a local file system. Its own backend; `shared` takes the one the process has."""

    def __init__(
        self,
        path: str,
        *,
        session_timeout_ms: int = 10_000,
        create: bool = True,
        fsync: bool = True,
        compact_min_bytes: int = COMPACT_MIN_BYTES,
        compact_ratio: float = COMPACT_RATIO,
        disk: Disk | None = None,
        clock_ms: Callable[[], float] | None = None,
        backend: FileBackend | None = None,
    ) -> None:
        super().__init__(
            backend
            or FileBackend(
                path,
                session_timeout_ms=session_timeout_ms,
                create=create,
                fsync=fsync,
                compact_min_bytes=compact_min_bytes,
                compact_ratio=compact_ratio,
                disk=disk,
                clock_ms=clock_ms,
            )
        )

    @classmethod
    def shared(cls, path: str, *, session_timeout_ms: int = 10_000, create: bool = True) -> FileStore:
        key = (os.path.realpath(path), session_timeout_ms)
        with _shared_lock:
            backend = _shared.get(key)
            if backend is None or not backend.retain():
                backend = _shared[key] = FileBackend(path, session_timeout_ms=session_timeout_ms, create=create)
        return cls(path, backend=backend)
