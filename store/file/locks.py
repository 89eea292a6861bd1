"""The locks of a store directory: `journal.lock`, for the process that may write now, and a file for each living session.

`journal.lock` also tells up to where the journal is acknowledged. It is one small file with slots.

    HINT    generation and length up to which everything is written, synced and acknowledged. Readers look only at the hint to
            learn whether there is news (one pread), and never read beyond it.
    STAMP   set while a process writes. A writer that finds it set after taking the lock knows that the one before died while it
            wrote, and reads the journal to its end.
    SWITCH  set when a writer was stopped (SIGSTOP) for too long while it held the lock, so that the lock file was replaced;
            cleared when the journal continues in a new generation.

A process that finds the file locked waits for it in a thread, in the operating system: waiting costs nothing, and the system wakes
one process after the other. The thread cannot be interrupted. When the file is replaced, or its caller gives up, it is left behind,
and ends when the file that it waits for is released: what it gets then is released at once. The caller looks meanwhile, ten times a
second, at what the holder does (HolderWatch), and breaks the lock of one that stands still.

Breaking a lock is safe because the journal continues in a new generation: whatever the stopped process still writes goes to
the old file, and before it acknowledges, it checks whether the file it locked still has its name. The operating system
releases the lock (flock) when a process dies, so a crash never needs a broken lock.

A session is alive while its file is locked by its process and the heartbeat in it is fresh. The operating system drops the
lock when the process dies (crash, kill -9), so other sessions can take what it held at once. The heartbeat goes stale when
the process is stopped and cannot report that. The file carries the time-out that its owner promised, and every process
judges the session by that time-out.

Features: R8 (docs/FEATURES.md)
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import queue
import struct
import threading
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass

from spark_jms.store.disk import WITHOUT_RIGHT, Disk
from spark_jms.store.errors import StoreBusyError, StoreRightsError, StoreWriteError

_FILE = "journal.lock"
_HINT = struct.Struct("<4sBQQI")
_HINT_MARK = b"HINT"
_STAMP = struct.Struct("<QQ")
_STAMP_AT, _SWITCH_AT, _SLOTS_BYTES = 64, 128, 192
LOOK_MS = 100.0  # between two looks at what the holder of the lock does
_POLL_MS = 2.0
_BREAK_LIMIT = 3
_NO_STAMP = bytes(_STAMP.size)
_BEAT = struct.Struct("<QQ")
_MAKING = ".making-"


@dataclass(frozen=True)
class Hint:
    """`length` bytes of the generation are acknowledged. `synced` is False when the writer does not sync: after a power loss
    such a hint proves nothing."""

    generation: int
    length: int
    synced: bool


@dataclass
class _Own:
    fd: int
    path: str
    beat_ns: int = 0  # the newest that its file has


def _encode_hint(hint: Hint) -> bytes:
    first = struct.pack("<4sBQQ", _HINT_MARK, hint.synced, hint.generation, hint.length)
    return first + struct.pack("<I", zlib.crc32(first))


def decode_hint(data: bytes) -> Hint | None:
    """None when it is damaged, or while a writer changes it."""
    if len(data) < _HINT.size:
        return None
    mark, synced, generation, length, check = _HINT.unpack_from(data)
    if mark != _HINT_MARK or check != zlib.crc32(data[: _HINT.size - 4]):
        return None
    return Hint(generation, length, bool(synced))


def read_hint(directory: str) -> Hint | None:
    """Reads the file without its lock. None when the file is missing or the hint is damaged."""
    try:
        with open(os.path.join(directory, _FILE), "rb") as file:
            return decode_hint(file.read(_HINT.size))
    except FileNotFoundError:
        return None


class HolderWatch:
    """Whether the holder of the lock has stood still for so long that its lock is broken. Pure: the caller looks, and tells it the
    holder's stamp and the time."""

    def __init__(self, break_after_ms: float) -> None:
        self._break_after_ms = break_after_ms
        self.break_count = 0
        self._still_ms, self._before_ns, self._before_stamp = 0.0, 0, b""

    def stands_still(self, stamp: bytes, now_ns: int) -> bool:
        """A pause of this process, which may have been stopped itself, must not count as a pause of the holder."""
        passed_ms = min((now_ns - self._before_ns) / 1e6, LOOK_MS)
        self._still_ms = self._still_ms + passed_ms if stamp == self._before_stamp else 0.0
        self._before_ns, self._before_stamp = now_ns, stamp
        return self._still_ms > self._break_after_ms

    def replaced(self) -> None:
        """The lock file was: its holder is another one."""
        self._still_ms = 0.0

    def may_break(self) -> bool:
        """Counts the locks that are broken. False after _BREAK_LIMIT of them."""
        self.break_count, self._still_ms = self.break_count + 1, 0.0
        return self.break_count <= _BREAK_LIMIT


class _Wait:
    """One wait for the lock of an open file. `fd` is a descriptor of its own for it: it ends with the wait."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._mutex = threading.Lock()
        self._outcome: queue.SimpleQueue[OSError | None] = queue.SimpleQueue()
        self._is_left = False

    def run(self) -> None:
        """In the thread."""
        error = None
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX)
        except OSError as failed:
            error = failed
        with self._mutex:
            if self._is_left:
                with contextlib.suppress(OSError):  # also where a fork keeps the file open
                    fcntl.flock(self.fd, fcntl.LOCK_UN)
            fd, self.fd = self.fd, -1
            os.close(fd)
            self._outcome.put(error)

    def is_over(self, within_ms: float) -> bool:
        """True when the lock was taken. Raises OSError."""
        try:
            error = self._outcome.get(timeout=within_ms / 1000)
        except queue.Empty:
            return False
        if error is not None:
            raise error
        return True

    def leave(self) -> None:
        with self._mutex:
            self._is_left = True


class _LockThread:
    """Waits for locks, one at a time. It runs from the first wait until `close`, or until its wait is left. For one calling thread
    at a time."""

    def __init__(self) -> None:
        self._waits: queue.SimpleQueue[_Wait | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.current: _Wait | None = None
        self._left: list[_Wait] = []  # whose threads may still be there

    def begin(self, fd: int) -> _Wait:
        """For the lock of the file that is open as `fd`. Raises OSError, and RuntimeError when no thread can be started."""
        self._left = [wait for wait in self._left if wait.fd >= 0]
        if self._thread is None:
            self._start()
        self.current = wait = _Wait(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 0))
        self._waits.put(wait)
        return wait

    def _start(self) -> None:
        """An interrupt may leave a thread behind that was started: it has a queue of its own, and ends."""
        waits: queue.SimpleQueue[_Wait | None] = queue.SimpleQueue()
        thread = threading.Thread(target=_wait_for, args=(waits,), name="store-lock", daemon=True)
        try:
            thread.start()
            self._waits, self._thread = waits, thread
        except BaseException:
            waits.put(None)
            self._thread = None
            raise

    def leave(self) -> None:
        """Leave the current wait behind, if there is one. The caller closes its descriptor of the file: else it would have the lock
        when the wait is over."""
        wait, self.current = self.current, None
        if wait is not None:
            wait.leave()
            self._left.append(wait)
            self._waits.put(None)
            self._thread = None

    def close(self) -> None:
        if self._thread is not None:
            self._waits.put(None)
            self._thread.join()
            self._thread = None

    def abandon(self) -> None:
        """In a forked child, which has none of the threads, but their files."""
        for wait in (self.current, *self._left):
            if wait is not None and wait.fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(wait.fd)
        self._thread, self.current, self._left = None, None, []


def _wait_for(waits: queue.SimpleQueue[_Wait | None]) -> None:
    while (wait := waits.get()) is not None:
        wait.run()


class JournalLock:
    """The backend lets only one thread of a process take it at a time. `read_only`: the process may not write the file, so it can
    look, and `acquire` raises StoreRightsError until it may."""

    def __init__(self, directory: str, disk: Disk, break_after_ms: float) -> None:
        self.path = os.path.join(directory, _FILE)
        self._disk = disk
        self._break_after_ms = break_after_ms
        self.break_count = 0
        # What `acquire` found. `must_switch`: the lock of a stopped writer was broken. That writer may still write to its
        # journal, so the next one continues in a new generation.
        self.must_switch, self.raw_hint = False, b""
        self.read_only = False
        self._thread = _LockThread()
        # Two descriptors: readers follow a replaced lock file at once, the writer must keep the one that it locked.
        self._read_fd = self._open_file()
        try:
            self._write_fd = self._open_file()
        except BaseException:
            os.close(self._read_fd)
            raise

    def _open_file(self) -> int:
        try:
            fd = self._disk.open(self.path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if error.errno not in WITHOUT_RIGHT:
                raise
            fd = self._disk.open(self.path, os.O_RDONLY)
            self.read_only = True
            return fd
        if os.fstat(fd).st_size < _SLOTS_BYTES:
            try:
                # Writes only the missing part: another process may be writing its slots at this moment.
                self._disk.pwrite_all(fd, b"\0", _SLOTS_BYTES - 1)
            except OSError:
                os.close(fd)
                raise
        return fd

    # ---- readers

    def look(self) -> bytes:
        """The hint, to compare, and for `decode_hint`. Follows a replaced lock file."""
        if os.fstat(self._read_fd).st_nlink == 0:
            fd = self._open_file()
            os.dup2(fd, self._read_fd, inheritable=False)
            os.close(fd)
        return os.pread(self._read_fd, _HINT.size, 0)

    # ---- the writer

    def acquire(self) -> bool:
        """Takes the lock. True when the writer before died or was stopped while it held the lock: then the journal must be read
        to its end. StoreBusyError after _BREAK_LIMIT broken locks."""
        if self.read_only and not self._was_granted():
            raise StoreRightsError(f"this process may read {self.path}, but not write it")
        try:
            return self._acquire()
        except BaseException:
            self._give_up()
            raise

    def _was_granted(self) -> bool:
        """The right to write, since the file was opened."""
        self.read_only = False
        self._close_write_file()
        try:
            self._write_fd = self._open_file()
        except BaseException:
            self.read_only = True
            raise
        return not self.read_only

    def _acquire(self) -> bool:
        replaced = False
        watch: HolderWatch | None = None
        while True:
            if self._write_fd < 0:
                self._write_fd = self._open_file()
            locked = self._try_lock()
            if not locked:
                watch = watch or HolderWatch(self._break_after_ms)
                locked = self._wait(watch)
            if not locked or self.superseded():
                self._give_up()
                replaced = True
                if watch is not None:
                    watch.replaced()
                continue
            slots = os.pread(self._write_fd, _SLOTS_BYTES, 0)
            self.raw_hint = slots[: _HINT.size]
            self.must_switch = slots[_SWITCH_AT : _SWITCH_AT + 1] not in (b"", b"\0")
            mine = _STAMP.pack(os.getpid(), self._disk.boottime_ns())
            self._disk.pwrite_all(self._write_fd, mine, _STAMP_AT)
            return replaced or slots[_STAMP_AT : _STAMP_AT + _STAMP.size] != _NO_STAMP

    def _wait(self, watch: HolderWatch) -> bool:
        """True with the lock; False when the file was replaced meanwhile, perhaps by this process."""
        is_over = self._begin_wait()
        while not is_over(LOOK_MS):
            if self.superseded():
                return False
            stamp = os.pread(self._write_fd, _STAMP.size, _STAMP_AT)
            if watch.stands_still(stamp, self._disk.boottime_ns()):
                if not watch.may_break():
                    raise StoreBusyError(
                        f"{self.path} stayed locked for {_BREAK_LIMIT} x {self._break_after_ms:.0f} ms"
                    )
                self._supersede(stamp)
        self._thread.current = None
        return True

    def _begin_wait(self) -> Callable[[float], bool]:
        """Whether the lock was taken within so many milliseconds. While the interpreter ends it starts no thread: then the lock is
        polled."""
        try:
            wait = self._thread.begin(self._write_fd)
        except OSError as error:
            raise self._unlockable(error) from error
        except RuntimeError:
            return self._is_free_within

        def is_over(within_ms: float) -> bool:
            try:
                return wait.is_over(within_ms)
            except OSError as error:
                raise self._unlockable(error) from error

        return is_over

    def _is_free_within(self, within_ms: float) -> bool:
        self._disk.sleep_ms(min(within_ms, _POLL_MS))
        return self._try_lock()

    def _unlockable(self, error: OSError) -> StoreWriteError:
        return StoreWriteError(f"cannot lock {self.path}: {error}")

    def _give_up(self) -> None:
        """Neither hold the lock nor wait for it. The file is closed: a wait that is left behind releases what it gets."""
        self._thread.leave()
        self.release(False)
        self._close_write_file()

    def _close_write_file(self) -> None:
        fd, self._write_fd = self._write_fd, -1
        if fd >= 0:
            os.close(fd)

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self._write_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise self._unlockable(error) from error
        return True

    def superseded(self) -> bool:
        """True when another process replaced the file that this process locked."""
        return self._write_fd >= 0 and os.fstat(self._write_fd).st_nlink == 0

    def publish(self, hint: Hint) -> None:
        raw = _encode_hint(hint)
        self._disk.pwrite_all(self._write_fd, raw, 0)
        self.raw_hint = raw

    def release(self, clean: bool) -> None:
        if self._write_fd < 0:
            return
        if clean:
            with contextlib.suppress(
                OSError
            ):  # the lock then stays marked, and the next writer reads the whole journal
                self._disk.pwrite_all(self._write_fd, _NO_STAMP, _STAMP_AT)
        with contextlib.suppress(OSError):
            fcntl.flock(self._write_fd, fcntl.LOCK_UN)

    def _supersede(self, stamp: bytes) -> None:
        """Replaces the lock file, under `breaker.lock`, unless its owner wrote a new stamp meanwhile."""
        fresh = f"{self.path}.{os.getpid()}.tmp"
        breaker = self._disk.open(os.path.join(os.path.dirname(self.path), "breaker.lock"), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(breaker, fcntl.LOCK_EX)
            if self.superseded() or os.pread(self._write_fd, _STAMP.size, _STAMP_AT) != stamp:
                return
            slots = bytearray(os.pread(self._write_fd, _SLOTS_BYTES, 0))
            # The stamp stays set in the new file, so the next writer reads the whole journal.
            slots[_SWITCH_AT] = 1
            new = self._disk.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            try:
                self._disk.pwrite_all(new, bytes(slots), 0)
            finally:
                os.close(new)
            self._disk.rename(fresh, self.path)
            self.break_count += 1
        finally:
            os.close(breaker)

    def switched(self) -> None:
        self._disk.pwrite_all(self._write_fd, b"\0", _SWITCH_AT)
        self.must_switch = False

    def close(self) -> None:
        self._thread.close()
        self._close_files()

    def abandon(self) -> None:
        """In a forked child."""
        self._thread.abandon()
        self._close_files()

    def _close_files(self) -> None:
        self._close_write_file()
        fd, self._read_fd = self._read_fd, -1
        if fd >= 0:
            os.close(fd)


class SessionLocks:
    """Locks the files of this process's sessions, keeps their heartbeats fresh, and tells which sessions of any process are
    alive. Thread-safe."""

    def __init__(self, directory: str, disk: Disk, session_timeout_ms: int) -> None:
        self.directory = os.path.join(directory, "sessions")
        self._disk = disk
        self._timeout_ns = session_timeout_ms * 1_000_000
        self._interval_s = min(1.0, session_timeout_ms / 5000.0)
        self._own: dict[str, _Own] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def attach(self, session_id: str, label: str) -> None:
        os.makedirs(self.directory, exist_ok=True)
        making = os.path.join(self.directory, _MAKING + session_id)
        path = os.path.join(self.directory, session_id)
        fd = os.open(making, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            about = json.dumps({"label": label, "pid": os.getpid()}).encode()
            beat_ns = self._disk.boottime_ns()
            self._disk.pwrite_all(fd, self._heartbeat(beat_ns) + about, 0)
            os.rename(making, path)  # other processes see the file only once it is locked
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(making)
            raise
        with self._lock:
            self._own[session_id] = _Own(fd, path, beat_ns)
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep_fresh, name="store-heartbeat", daemon=True)
                self._thread.start()

    def detach(self, session_id: str) -> None:
        with self._lock:
            own = self._own.pop(session_id, None)
        if own is not None:
            with contextlib.suppress(OSError):
                os.unlink(own.path)
            os.close(own.fd)

    def _heartbeat(self, now_ns: int) -> bytes:
        return _BEAT.pack(now_ns, self._timeout_ns)

    def _keep_fresh(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.beat()

    def beat(self) -> None:
        with self._lock:
            for own in self._own.values():
                # Overwriting in place needs no room. If it fails, the session goes stale and is fenced, which is safe.
                with contextlib.suppress(OSError):
                    now_ns = self._disk.boottime_ns()
                    os.pwrite(own.fd, self._heartbeat(now_ns), 0)
                    own.beat_ns = now_ns

    def alive(self, session_ids: Collection[str]) -> frozenset[str]:
        return frozenset(session_id for session_id in session_ids if self._is_alive(session_id))

    def _is_alive(self, session_id: str) -> bool:
        with self._lock:
            own = self._own.get(session_id)
        if own is not None:  # this process has its lock
            return self._disk.boottime_ns() - own.beat_ns < self._timeout_ns
        try:
            fd = os.open(os.path.join(self.directory, session_id), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            if self._can_lock(fd):
                return False
            data = os.pread(fd, _BEAT.size, 0)
        finally:
            os.close(fd)
        if len(data) < _BEAT.size:
            return False
        beat_ns, timeout_ns = _BEAT.unpack(data)
        return bool(self._disk.boottime_ns() - beat_ns < timeout_ns)

    @staticmethod
    def _can_lock(fd: int) -> bool:
        try:
            # Shared: two processes that look at once do not see each other.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def remove_ended(self, session_ids: Collection[str]) -> None:
        """Removes the files of sessions that ended."""
        for session_id in session_ids:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.directory, session_id))

    def remove_orphans(self, known: Collection[str]) -> None:
        """Removes the files of processes that died between creating the file and connecting. Call under the journal lock."""
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.directory):
                if name not in known and not self._is_alive(name):
                    self._remove_unlocked(os.path.join(self.directory, name))

    def _remove_unlocked(self, path: str) -> None:
        """Removes the file if it is not locked and older than the time-out: a process may be about to lock a young one."""
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                age_s = self._disk.wall_s() - os.fstat(fd).st_mtime
                if self._can_lock(fd) and age_s * 1e9 > self._timeout_ns:
                    os.unlink(path)
            finally:
                os.close(fd)

    def close(self) -> None:
        self._stop.set()
        with self._lock:  # another thread may be about to start it
            thread = self._thread
        if thread is not None:
            thread.join()
        for session_id in list(self._own):
            self.detach(session_id)

    def abandon(self) -> None:
        """In a forked child: closes the inherited descriptors, so that the locks end with the parent."""
        for own in self._own.values():
            with contextlib.suppress(OSError):
                os.close(own.fd)
        self._own = {}
