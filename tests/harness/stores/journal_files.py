"""Journal files of the file store, as tests look at them, and the death of a process that writes them (S9)."""

from __future__ import annotations

from pathlib import Path

from spark_jms.store.file.frame import HEADER_BYTES, decode_header, scan
from spark_jms.store.file.store import FileBackend, FileStore


def frames_end(file: Path) -> int:
    """Where the frames of a good journal end and its reserve begins."""
    data = file.read_bytes()
    found = scan(data[HEADER_BYTES:], HEADER_BYTES, decode_header(data, str(file)).seed)
    assert not found.wrong
    return found.end


def frame_count(file: Path) -> int:
    """Of a good journal: one for each write."""
    data = file.read_bytes()
    return len(scan(data[HEADER_BYTES:], HEADER_BYTES, decode_header(data, str(file)).seed).frames)


def without_reserve(file: Path) -> bytes:
    """The bytes of a good journal up to the end of its frames."""
    return file.read_bytes()[: frames_end(file)]


def bury(store: FileStore) -> None:
    """Does what the operating system does at a death: closes descriptors, drops locks, ends the thread."""
    backend = store._backend
    assert isinstance(backend, FileBackend)
    heart = backend._session_locks
    heart._stop.set()
    if heart._thread is not None:
        heart._thread.join()
    backend.abandon()
    backend._users.closed = True
