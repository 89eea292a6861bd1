"""What one thread gets out of the disk alone: the least that a durable write can cost, beside the client's acknowledgements (C11).

`appends` adds 200 bytes to a file with `fdatasync`. `locked_writes` makes the system calls of one write of the file store and
nothing else: several processes share its journal, so a writer looks whether the directory is still there, takes the lock,
looks what others wrote, marks the lock as taken, writes a frame over zeros with `fdatasync`, publishes the journal's new
length and frees the lock. What the client adds to them is JMS: claims, acknowledgements, their table and their statistics.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

ENTRY = b"x" * 200
_ZEROS = 16 << 20  # bytes, for 80,000 frames
_LENGTH_AT, _OWNER_AT = 0, 64
_OWNER, _LENGTH = struct.Struct("<QQ"), struct.Struct("<4sBQQ")


@contextlib.contextmanager
def appends(path: Path) -> Iterator[Callable[[], None]]:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def write() -> None:
        os.write(descriptor, ENTRY)
        os.fdatasync(descriptor)

    try:
        yield write
    finally:
        os.close(descriptor)
        path.unlink()


@contextlib.contextmanager
def locked_writes(path: Path) -> Iterator[Callable[[], None]]:
    path.mkdir(parents=True)
    (path / "journal").write_bytes(bytes(_ZEROS))
    (path / "lock").write_bytes(bytes(128))
    journal, lock = (os.open(path / name, os.O_RDWR) for name in ("journal", "lock"))
    os.fsync(journal)
    frame = struct.pack("<II", len(ENTRY), zlib.crc32(ENTRY)) + ENTRY
    length = 0

    def write() -> None:
        nonlocal length
        os.stat(path)
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.fstat(lock)
        os.pread(lock, 128, 0)
        os.pwrite(lock, _OWNER.pack(os.getpid(), length), _OWNER_AT)
        os.fstat(journal)
        os.pwrite(journal, frame, length)
        os.fdatasync(journal)
        length += len(frame)
        os.fstat(lock)
        published = _LENGTH.pack(b"HINT", 1, 1, length)
        os.pwrite(lock, published + struct.pack("<I", zlib.crc32(published)), _LENGTH_AT)
        os.pwrite(lock, bytes(_OWNER.size), _OWNER_AT)
        fcntl.flock(lock, fcntl.LOCK_UN)

    try:
        yield write
    finally:
        for descriptor in (journal, lock):
            os.close(descriptor)
        shutil.rmtree(path)
