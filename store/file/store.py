"""`FileStore`, which users open. All openings of one directory by one process share one backend, and so one group commit."""

from __future__ import annotations

import os
from collections.abc import Callable

from spark_jms.store.disk import Disk
from spark_jms.store.file.backend import FileBackend
from spark_jms.store.file.compaction import COMPACT_MIN_BYTES, COMPACT_RATIO
from spark_jms.store.file.reserve import RESERVE_BYTES
from spark_jms.store.ledger.store import LedgerStore
from spark_jms.store.opening import StoreOpening
from spark_jms.store.sharing import SharedBackends

_shared: SharedBackends[FileBackend] = SharedBackends()


class FileStore(LedgerStore):
    """A store in one directory of a local file system. Each has its own backend; `shared` uses the one of this process."""

    def __init__(
        self,
        path: str,
        *,
        session_timeout_ms: int = 10_000,
        create: bool = True,
        fsync: bool = True,
        compact_min_bytes: int = COMPACT_MIN_BYTES,
        compact_ratio: float = COMPACT_RATIO,
        reserve_limit: int = RESERVE_BYTES,
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
                reserve_limit=reserve_limit,
                disk=disk,
                clock_ms=clock_ms,
            )
        )

    @classmethod
    def shared(
        cls, path: str, *, session_timeout_ms: int = 10_000, create: bool = True, opening: StoreOpening | None = None
    ) -> FileStore:
        def make() -> FileBackend:
            return FileBackend(path, session_timeout_ms=session_timeout_ms, create=create)

        key = (os.path.realpath(path), session_timeout_ms)
        return cls(path, backend=_shared.take(key, make, opening or StoreOpening()))
