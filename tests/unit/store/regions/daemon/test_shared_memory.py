"""Shared memory of a daemon: one worker thread provides it and takes it back (R7, R12)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from spark_jms.store.errors import MemoryLockError
from spark_jms.store.regions.daemon import shared_memory
from spark_jms.store.regions.daemon.shared_memory import SharedMemoryPort, can_lock

LIMIT_S = 20.0
SIZE = 1 << 20

Make = Callable[[], tuple[SharedMemoryPort, SimpleQueue[None]]]


@pytest.fixture
def prefix() -> str:
    return f"rstest{os.getpid()}"


@pytest.fixture
def make(prefix: str) -> Iterator[Make]:
    """A port, and a queue that gets an item whenever it has an answer."""
    ports: list[SharedMemoryPort] = []

    def make_port() -> tuple[SharedMemoryPort, SimpleQueue[None]]:
        provided: SimpleQueue[None] = SimpleQueue()
        ports.append(SharedMemoryPort(len(ports) + 1, prefix, lambda: provided.put(None)))
        return ports[-1], provided

    yield make_port
    for port in ports:
        port.free_all()


def segments(prefix: str) -> list[Path]:
    return list(Path("/dev/shm").glob(f"{prefix}-*"))


def test_memory_is_provided_by_the_worker(make: Make, prefix: str) -> None:
    """R12, R17: zeros of that size, in a segment of the daemon's group."""
    port, provided = make()
    assert port.allocate("a", SIZE) is None
    provided.get(timeout=LIMIT_S)
    view = port.allocate("a", SIZE)
    assert view is not None
    assert bytes(view) == bytes(SIZE)
    (segment,) = segments(prefix)
    found = segment.stat()
    assert (found.st_mode & 0o777, found.st_size, found.st_blocks * 512) == (0o660, SIZE, SIZE)
    port.free("a")
    port.free_all()
    assert not segments(prefix)


def test_memory_in_use_is_not_blocked_by_a_large_request(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """R7, R12: the system takes seconds for gigabytes; meanwhile the daemon uses, asks and frees."""
    port, provided = make()
    port.allocate("small", SIZE)
    provided.get(timeout=LIMIT_S)
    small = port.allocate("small", SIZE)
    assert small is not None
    asked, proceed = threading.Event(), threading.Event()

    def fallocate(fd: int, offset: int, length: int) -> None:
        asked.set()
        assert proceed.wait(LIMIT_S)

    monkeypatch.setattr(shared_memory.os, "posix_fallocate", fallocate)
    assert port.allocate("large", 4 * SIZE) is None
    assert asked.wait(LIMIT_S)
    assert port.allocate("large", 4 * SIZE) is None
    small[:4] = b"used"
    port.free("small")
    assert provided.empty()
    proceed.set()
    provided.get(timeout=LIMIT_S)
    assert port.allocate("large", 4 * SIZE) is not None


def test_large_segment_is_taken_in_pieces(make: Make, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """R12: a daemon that stops waits for one piece at most."""
    pieces: SimpleQueue[tuple[int, int]] = SimpleQueue()
    proceed = threading.Semaphore(0)

    def fallocate(fd: int, offset: int, length: int) -> None:
        pieces.put((offset, length))
        assert proceed.acquire(timeout=LIMIT_S)

    monkeypatch.setattr(shared_memory, "PIECE_BYTES", SIZE)
    monkeypatch.setattr(shared_memory.os, "posix_fallocate", fallocate)
    port, _ = make()
    port.allocate("a", 5 * SIZE // 2)
    assert pieces.get(timeout=LIMIT_S) == (0, SIZE)
    proceed.release()
    assert pieces.get(timeout=LIMIT_S) == (SIZE, SIZE)
    stopping = threading.Thread(target=port.free_all)
    stopping.start()
    assert port._stopping.wait(LIMIT_S)
    proceed.release()
    stopping.join(LIMIT_S)
    assert not stopping.is_alive()
    assert pieces.empty()
    assert not segments(prefix)


def test_refused_memory_is_a_memory_error(make: Make, prefix: str) -> None:
    """R12: more than the machine has; the segment is removed."""
    port, provided = make()
    assert port.allocate("a", 1 << 40) is None
    provided.get(timeout=LIMIT_S)
    with pytest.raises(MemoryError, match="has no room for 1099511627776 bytes"):
        port.allocate("a", 1 << 40)
    assert not segments(prefix)
    assert port.allocate("a", SIZE) is None
    provided.get(timeout=LIMIT_S)
    assert port.allocate("a", SIZE) is not None


@pytest.mark.skipif(not can_lock(64 * SIZE), reason="this user may not lock memory")
def test_memory_is_locked(prefix: str) -> None:
    """R12, R17: all of it, until the region is freed."""
    provided: SimpleQueue[None] = SimpleQueue()
    before_kb = locked_kb()
    port = SharedMemoryPort(7, prefix, lambda: provided.put(None), lock=True)
    try:
        port.allocate("a", 3 * SIZE // 2)
        provided.get(timeout=LIMIT_S)
        assert port.allocate("a", 3 * SIZE // 2) is not None
        assert locked_kb() - before_kb == 3 * SIZE // 2 >> 10
    finally:
        port.free_all()
    assert locked_kb() == before_kb


def locked_kb() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmLck"))
    return int(line.split()[1])


def test_memlock_limit_below_the_daemons_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """R12: before the daemon starts, with both figures and what to do."""
    monkeypatch.setattr(shared_memory, "_is_exempt", lambda: False)
    monkeypatch.setattr(shared_memory.resource, "getrlimit", lambda which: (64 << 10, 8 << 20))
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(shared_memory.resource, "setrlimit", lambda which, limits: raised.append(limits))
    with pytest.raises(
        MemoryLockError, match=r"limit of 9 MB is above RLIMIT_MEMLOCK, 8192 KB.*ulimit -l.*RS_LOCK_MEMORY"
    ):
        shared_memory.allow_lock(9 << 20)
    assert raised == []
    shared_memory.allow_lock(8 << 20)
    assert raised == [(8 << 20, 8 << 20)]
    monkeypatch.setattr(shared_memory, "_is_exempt", lambda: True)
    shared_memory.allow_lock(9 << 20)


def test_memory_that_cannot_be_locked_is_refused(make: Make, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """R12: and its segment is removed."""

    def refuse(memory: memoryview, piece_bytes: int) -> Iterator[None]:
        yield
        raise OSError(12, "1 bytes cannot be locked: Cannot allocate memory")

    monkeypatch.setattr(shared_memory, "lock_pages", refuse)
    provided: SimpleQueue[None] = SimpleQueue()
    port = SharedMemoryPort(7, prefix, lambda: provided.put(None), lock=True)
    port.allocate("a", SIZE)
    provided.get(timeout=LIMIT_S)
    with pytest.raises(MemoryError, match="cannot be locked"):
        port.allocate("a", SIZE)
    assert not segments(prefix)
    port.free_all()


def test_memory_that_is_freed_before_it_is_provided_is_removed(make: Make, prefix: str) -> None:
    """R12: its region was given up meanwhile."""
    port, provided = make()
    port.allocate("a", SIZE)
    port.free("a")
    port.allocate("a", 2 * SIZE)
    provided.get(timeout=LIMIT_S)
    provided.get(timeout=LIMIT_S)
    assert len(port.allocate("a", 2 * SIZE) or b"") == 2 * SIZE
    assert [path.stat().st_size for path in segments(prefix)] == [2 * SIZE]
