"""The lock of a journal: waiting for it in a thread, giving up, breaking (R8, C9): store/file/locks.py."""

from __future__ import annotations

import ctypes
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_jms.store import Put, StoreBusyError, StoreWriteError
from spark_jms.store.disk import Disk
from spark_jms.store.file.locks import LOOK_MS, HolderWatch, JournalLock
from spark_jms.store.file.store import FileStore
from spark_jms.testing.domain import wait_until
from tests.harness.stores.journal_files import frame_count

LOOK_NS = int(LOOK_MS * 1e6)
JOURNAL = "journal-0000000001.log"
LONG_MS, SHORT_MS = 60_000.0, 150.0


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[Callable[..., JournalLock]]:
    """Makes locks of one directory, as those of several processes."""
    made: list[JournalLock] = []

    def lock(break_after_ms: float = LONG_MS) -> JournalLock:
        made.append(JournalLock(str(tmp_path), Disk(), break_after_ms))
        return made[-1]

    yield lock
    for one in made:
        one.release(False)
        one.close()
    wait_until(lambda: not waiting_threads())


def waiting_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "store-lock"]


def in_thread(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def is_waited_for(lock: JournalLock) -> bool:
    return lock._thread.current is not None


# -- when a lock is broken -----------------------------------------------------------------------------------------------
def test_holder_that_changes_its_stamp_does_not_stand_still() -> None:
    """R8"""
    watch = HolderWatch(2 * LOOK_MS)
    assert not any(watch.stands_still(b"%d" % (n // 2), n * LOOK_NS) for n in range(1, 100))


def test_pause_of_the_waiting_process_is_not_one_of_the_holder() -> None:
    """R8: it was stopped itself for a day, and gives the holder the rest of the time."""
    watch = HolderWatch(3 * LOOK_MS)
    day_ns = 24 * 3600 * 10**9
    assert not watch.stands_still(b"x", LOOK_NS)
    looks = [watch.stands_still(b"x", day_ns + n * LOOK_NS) for n in range(5)]
    assert looks == [False, False, False, True, True]


def test_few_locks_are_broken() -> None:
    """R8: then StoreBusyError."""
    watch = HolderWatch(LOOK_MS)
    assert [watch.may_break() for _ in range(5)] == [True, True, True, False, False]


# -- waiting -------------------------------------------------------------------------------------------------------------
def test_free_lock_starts_no_thread(locks: Callable[..., JournalLock]) -> None:
    """R8: a process that is alone has none."""
    lock = locks()
    for _ in range(3):
        lock.acquire()
        lock.release(True)
    assert not waiting_threads()


def test_waiting_process_gets_the_lock_and_keeps_its_thread(locks: Callable[..., JournalLock]) -> None:
    """R8: the thread of the first wait serves the next ones, and ends with `close`."""
    one, other = locks(), locks()
    for _ in range(3):
        one.acquire()
        waiting = in_thread(other.acquire)
        wait_until(lambda: is_waited_for(other))
        one.release(True)
        waiting.join(10)
        assert not is_waited_for(other)
        assert not one._try_lock()
        other.release(True)
        assert len(waiting_threads()) == 1
    other.close()
    assert not waiting_threads()


def test_interrupted_wait_gets_no_lock_later(locks: Callable[..., JournalLock]) -> None:
    """R8: Ctrl-C while a process waits. Its thread cannot be interrupted: what it gets is released at once."""
    holder, interrupted, other = locks(), locks(), locks()
    holder.acquire()
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            interrupted.acquire()
        except KeyboardInterrupt as error:
            ended.append(error)

    waiting = in_thread(wait)
    wait_until(lambda: is_waited_for(interrupted))
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(waiting.ident or 0), ctypes.py_object(KeyboardInterrupt))
    waiting.join(10)
    assert ended
    assert len(waiting_threads()) == 1
    holder.release(True)
    wait_until(lambda: not waiting_threads())
    other.acquire()
    other.release(True)
    assert interrupted.acquire() is False


def test_interrupt_while_the_thread_starts_leaves_none_behind(
    locks: Callable[..., JournalLock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R8: Ctrl-C comes when the thread runs, and its starter does not know it yet: `close` would wait for it for ever."""
    holder, waiting, start = locks(), locks(), threading.Thread.start
    holder.acquire()

    def interrupted(self: threading.Thread) -> None:
        start(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            waiting.acquire()
    again = in_thread(waiting.acquire)
    wait_until(lambda: is_waited_for(waiting))
    holder.release(True)
    again.join(10)
    assert not again.is_alive()
    waiting.close()
    wait_until(lambda: not waiting_threads())


def test_replaced_file_leaves_the_wait_behind(locks: Callable[..., JournalLock]) -> None:
    """R8: the holder stands still. The wait for its file ends when that is released, and holds nothing of the new one."""
    stopped, breaker, other = locks(), locks(SHORT_MS), locks()
    stopped.acquire()

    def write() -> None:
        other.acquire()
        other.release(True)

    waiting = in_thread(write)
    wait_until(lambda: is_waited_for(other))
    assert breaker.acquire()
    assert (breaker.break_count, breaker.must_switch) == (1, True)
    assert stopped.superseded()
    breaker.switched()
    breaker.release(True)
    waiting.join(10)  # it has followed to the new file
    assert not waiting.is_alive()
    assert len(waiting_threads()) >= 2
    stopped.release(True)
    wait_until(lambda: not waiting_threads())
    assert stopped.acquire()


def test_lock_that_stays_held_is_named(locks: Callable[..., JournalLock], monkeypatch: pytest.MonkeyPatch) -> None:
    """R8: no lock file can be replaced, as in a full directory that others hold: the wait ends with an error."""
    holder, waiting = locks(), locks(SHORT_MS)
    holder.acquire()
    monkeypatch.setattr(JournalLock, "_supersede", lambda self, stamp: None)
    with pytest.raises(StoreBusyError, match=r"journal\.lock stayed locked for 3 x 150 ms"):
        waiting.acquire()
    holder.release(True)
    assert waiting.acquire() is False


def test_lock_that_cannot_be_taken_is_named(locks: Callable[..., JournalLock], monkeypatch: pytest.MonkeyPatch) -> None:
    """R8: the error of the operating system reaches the caller from the thread."""
    holder, waiting, flock = locks(), locks(), fcntl.flock
    holder.acquire()

    def full(fd: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX:
            raise OSError(37, "No locks available")
        flock(fd, operation)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", full)
        with pytest.raises(StoreWriteError, match="cannot lock .*No locks available"):
            waiting.acquire()
    holder.release(True)
    assert waiting.acquire() is False


def test_lock_is_polled_when_no_thread_starts(
    locks: Callable[..., JournalLock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R8: while an interpreter ends it starts no thread, and its stores are closed."""
    holder, waiting = locks(), locks()
    holder.acquire()

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    sleeps: list[float] = []

    def sleep(self: Disk, duration_ms: float) -> None:
        sleeps.append(duration_ms)
        if len(sleeps) == 3:
            holder.release(True)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(Disk, "sleep_ms", sleep)
    assert waiting.acquire() is False
    assert len(sleeps) == 3


def test_wait_leaves_no_file_open(locks: Callable[..., JournalLock]) -> None:
    """R8"""
    one, other = locks(), locks()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        one.acquire()
        waiting = in_thread(other.acquire)
        wait_until(lambda: is_waited_for(other))
        one.release(True)
        waiting.join(10)
        other.release(True)
    assert len(os.listdir("/proc/self/fd")) == before


def test_leader_serves_what_its_process_has_queued_while_it_waited(tmp_path: Path) -> None:
    """R8: one turn of a process writes all that its threads want, in one frame."""
    path = str(tmp_path / "s")
    with FileStore(path) as store, store.connect() as session:
        handles = [session.open(f"r{number}") for number in range(6)]
        holder = JournalLock(path, Disk(), LONG_MS)
        holder.acquire()
        threads = [in_thread(lambda h=handle: h.commit([Put("k", b"v")])) for handle in handles]  # type: ignore[misc]
        wait_until(lambda: len(store._backend._group._queue) == 6)  # type: ignore[attr-defined]
        before = frame_count(tmp_path / "s" / JOURNAL)
        holder.release(True)
        for thread in threads:
            thread.join(10)
        assert frame_count(tmp_path / "s" / JOURNAL) == before + 1
        holder.close()
