"""The journal on a failing disk (S9): torn, damaged, full, broken; and one write for many requests."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_jms.store import (
    Handle,
    OutcomeUnknownError,
    Put,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreNotFoundError,
    StoreRightsError,
    StoreVersionError,
    StoreWriteError,
    open_store,
)
from spark_jms.store.disk import Disk
from spark_jms.store.file.frame import HEADER_BYTES, MAGIC
from spark_jms.store.file.journal import write_error
from spark_jms.store.file.store import FileStore
from tests.harness.stores.journal_files import frames_end, without_reserve

JOURNAL = "journal-0000000001.log"


def commit_some(path: Path, values: list[bytes]) -> list[int]:
    """One commit each; the lengths of the journal after each."""
    lengths = []
    with FileStore(str(path)) as store, store.connect() as session, session.open("r", 5_000) as handle:
        for value in values:
            handle.commit([Put("k", value)])
            lengths.append(frames_end(path / JOURNAL))
    return lengths


def peek(path: Path) -> dict[str, bytes]:
    with FileStore(str(path)) as store:
        return store.peek("r")


def storm_copy(path: Path, target: Path) -> tuple[int, int]:
    """A copy as a killed process leaves it: the last frame is complete, and the lock file is older than it."""
    with FileStore(str(path)) as store, store.connect() as session, session.open("r") as handle:
        handle.commit([Put("k", b"before"), Put("other", b"x" * 50)])
        shutil.copytree(path, target)
        start = frames_end(path / JOURNAL)
        handle.commit([Put("k", b"after"), Put("more", b"y" * 20)])
        shutil.copy(path / JOURNAL, target / JOURNAL)
    return start, frames_end(target / JOURNAL)


@pytest.mark.parametrize("reserve", [0, 700])
def test_a_write_torn_at_any_byte_is_cut_off(tmp_path: Path, reserve: int) -> None:
    """S9: killed in mid-write at every byte of the last frame: the state before it, or at its end the state after."""
    start, end = storm_copy(tmp_path / "s", tmp_path / "torn")
    whole = (tmp_path / "torn" / JOURNAL).read_bytes()
    lock = (tmp_path / "torn" / "journal.lock").read_bytes()
    before = {"k": b"before", "other": b"x" * 50}
    for cut in range(start, end + 1):
        (tmp_path / "torn" / JOURNAL).write_bytes(whole[:cut] + bytes(reserve))
        (tmp_path / "torn" / "journal.lock").write_bytes(lock)
        with FileStore(str(tmp_path / "torn")) as store:
            assert store.peek("r") == (before if cut < end else {"k": b"after", "other": b"x" * 50, "more": b"y" * 20})
            assert store.statistics().torn_tail_count == (start < cut < end)
            with store.connect() as session:  # and continues from there
                session.open("r").commit([Put("k", b"next")])
            assert store.peek("r")["k"] == b"next"
        assert peek(tmp_path / "torn")["k"] == b"next"


@pytest.mark.parametrize("junk", [b"\0", b"\0" * 100, b"\xff" * 33, b"\x9eFR\xc3" * 9])
def test_junk_after_the_last_frame_is_cut_off(tmp_path: Path, junk: bytes) -> None:
    """S9: after a loss of power, a page may be allocated and not written."""
    lengths = commit_some(tmp_path / "s", [b"1"])
    file = tmp_path / "s" / JOURNAL
    assert frames_end(file) > lengths[-1]
    file.write_bytes(without_reserve(file) + junk)
    assert peek(tmp_path / "s") == {"k": b"1"}


def test_a_last_frame_with_a_hole_was_not_acknowledged(tmp_path: Path) -> None:
    start, end = storm_copy(tmp_path / "s", tmp_path / "torn")
    with (tmp_path / "torn" / JOURNAL).open("r+b") as file:
        file.seek(end - 12)
        file.write(b"\0" * 12)
    assert peek(tmp_path / "torn")["k"] == b"before"
    assert start < end


def test_every_flipped_acknowledged_byte_is_damage(tmp_path: Path) -> None:
    """S9: damage is named with file and byte, of the store or of the record set, and nothing is changed; also in the last
    frame."""
    commit_some(tmp_path / "s", [b"one", b"two"])
    file = tmp_path / "s" / JOURNAL
    whole = file.read_bytes()
    for at in range(frames_end(file)):
        bad = whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :]
        file.write_bytes(bad)
        with pytest.raises(StoreCorruptError) as caught:
            peek(tmp_path / "s")
        assert caught.value.file == str(file)
        assert caught.value.offset <= at
        assert file.read_bytes() == bad
    file.write_bytes(whole)
    assert peek(tmp_path / "s") == {"k": b"two"}


def test_damage_in_the_middle_is_noticed_without_the_lock_file(tmp_path: Path) -> None:
    lengths = commit_some(tmp_path / "s", [b"one", b"two", b"three"])
    file = tmp_path / "s" / JOURNAL
    whole = file.read_bytes()
    for at in range(HEADER_BYTES, lengths[0]):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        (tmp_path / "s" / "journal.lock").unlink()
        with pytest.raises(StoreCorruptError, match="good data follows|record set 'r'"):
            peek(tmp_path / "s")


def test_a_missing_journal_is_damage(tmp_path: Path) -> None:
    commit_some(tmp_path / "s", [b"one"])
    (tmp_path / "s" / JOURNAL).unlink()
    with pytest.raises(StoreCorruptError, match="missing"):
        FileStore(str(tmp_path / "s"))


def test_a_journal_cut_under_a_living_store_is_damage(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path / "s"))
    handle = store.connect().open("r")
    handle.commit([Put("k", b"v")])
    os.truncate(tmp_path / "s" / JOURNAL, HEADER_BYTES + 3)
    with pytest.raises(StoreCorruptError):
        handle.commit([Put("k", b"w")])
    with pytest.raises(StoreCorruptError):  # closing raises as well, and still closes
        store.close()
    with pytest.raises(StoreClosedError):
        store.names()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    """C16."""
    commit_some(tmp_path / "s", [b"one"])
    file = tmp_path / "s" / JOURNAL
    first = struct.pack("<8sI", MAGIC, 9)
    newer = first + struct.pack("<I", zlib.crc32(first)) + b"bytes of an unknown layout"
    file.write_bytes(newer)
    with pytest.raises(StoreVersionError, match="9"):
        FileStore(str(tmp_path / "s"))
    assert file.read_bytes() == newer


def test_a_removed_lock_file_is_created_again(tmp_path: Path) -> None:
    with FileStore(str(tmp_path / "s")) as store, FileStore(str(tmp_path / "s")) as other, store.connect() as session:
        handle = session.open("r")
        handle.commit([Put("k", b"1")])
        (tmp_path / "s" / "journal.lock").unlink()
        assert other.peek("r") == {"k": b"1"}
        handle.commit([Put("k", b"2")])
        assert other.peek("r") == {"k": b"2"}


def test_create_false_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        FileStore(str(tmp_path / "s"), create=False)
    assert not (tmp_path / "s").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreNotFoundError):
        FileStore(str(tmp_path / "empty"), create=False)


def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreWriteError):
        FileStore(str(tmp_path / "file" / "s"))


class FailingDisk(Disk):
    """Is full after `room` more bytes of growth, or fails to sync or to truncate."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.fail: set[str] = set()
        self.heals = False  # after one failure

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        if self.room is None:
            return super().pwrite(fd, data, offset)
        size = os.fstat(fd).st_size
        fits = max(0, size + self.room - offset)
        if fits == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = super().pwrite(fd, data[:fits], offset)
        self.room -= max(0, offset + done - size)
        return done

    def sync(self, fd: int) -> None:
        if "sync" in self.fail:
            if self.heals:
                self.fail = set()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(fd)

    def truncate(self, fd: int, length: int) -> None:
        if "truncate" in self.fail:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().truncate(fd, length)


@pytest.mark.parametrize("room", [0, 1, 23, 24, 60])
def test_a_full_disk_acknowledges_nothing_and_recovers(tmp_path: Path, room: int) -> None:
    """S9: short writes and ENOSPC leave the file as it was; with room again, the same handle continues."""
    disk = FailingDisk()
    path = tmp_path / "s"
    with (
        FileStore(str(path), disk=disk, reserve_limit=0) as store,
        FileStore(str(path), reserve_limit=0) as other,
        store.connect() as session,
    ):
        handle = session.open("r")
        handle.commit([Put("k", b"before")])
        before = (path / JOURNAL).read_bytes()
        for _ in range(3):
            disk.room = room
            with pytest.raises(StoreFullError):
                handle.commit([Put("k", b"x" * 200)])
            assert (path / JOURNAL).read_bytes() == before
            assert handle.objects() == other.peek("r") == {"k": b"before"}
            with pytest.raises(StoreFullError):
                session.open("another")
            with pytest.raises(StoreFullError):
                store.connect()
        disk.room = None
        handle.commit([Put("k", b"after")])
        assert other.peek("r") == {"k": b"after"}
        assert len(other.sessions()) == 1
        assert other.names() == ["r"]
    assert peek(path) == {"k": b"after"}


def test_closing_on_a_full_disk_frees_the_record_sets(tmp_path: Path) -> None:
    """R8: the end of the session cannot be written, but other sessions see that it is dead."""
    disk = FailingDisk()
    path = tmp_path / "s"
    with FileStore(str(path)) as other, other.connect() as second:
        store = FileStore(str(path), disk=disk, reserve_limit=0)
        store.connect().open("r")
        disk.room = 0
        store.close()
        assert second.open("r").epoch == 2


def test_refused_write_is_cut_off(tmp_path: Path) -> None:
    """C9: the sync fails once, so what was written is cut off for certain, and the error says that it was refused."""
    disk = FailingDisk()
    path = tmp_path / "s"
    with FileStore(str(path), disk=disk) as store, store.connect() as session:
        handle = session.open("r")
        handle.commit([Put("k", b"before")])
        disk.fail, disk.heals = {"sync"}, True
        with pytest.raises(StoreWriteError) as caught:
            handle.commit([Put("k", b"refused")])
        assert type(caught.value) is StoreWriteError
        assert peek(path) == {"k": b"before"}


@pytest.mark.parametrize("fail", [{"sync"}, {"sync", "truncate"}])
def test_outcome_of_a_write_that_cannot_be_cut_off_is_unknown(tmp_path: Path, fail: set[str]) -> None:
    """C9: the next writer, or a loss of power, may keep it; a StoreWriteError would promise that nothing was written."""
    disk = FailingDisk()
    path = tmp_path / "s"
    with FileStore(str(path), disk=disk) as store, FileStore(str(path)) as other, store.connect() as session:
        handle = session.open("r")
        handle.commit([Put("k", b"before")])
        disk.fail = fail
        with pytest.raises(OutcomeUnknownError, match="Input/output error; and it could not be cut off again: "):
            handle.commit([Put("k", b"lost")])
        assert other.peek("r") == {"k": b"before"}
        disk.fail = set()
        handle.commit([Put("n", b"after")])
        assert other.peek("r") == handle.objects()
        # If even the truncation failed, the frame may count: the outcome is unknown, but never half of the frame.
        assert other.peek("r")["k"] in ({b"before"} if "truncate" not in fail else {b"before", b"lost"})


def test_the_next_writer_cuts_a_half_frame_that_could_not_be_cut(tmp_path: Path) -> None:
    disk = FailingDisk()
    path = tmp_path / "s"
    with FileStore(str(path), disk=disk, reserve_limit=0) as store, FileStore(str(path)) as other:
        handle = store.connect().open("r")
        handle.commit([Put("k", b"before")])
        disk.room, disk.fail = 10, {"truncate"}
        with pytest.raises(OutcomeUnknownError):
            handle.commit([Put("k", b"lost")])
        with other.connect() as session:
            session.open("theirs").commit([Put("k", b"v")])
        assert other.statistics().torn_tail_count == 1
        disk.room, disk.fail = None, set()
        assert handle.objects() == {"k": b"before"}
        handle.commit([Put("k", b"after")])
        assert other.peek("r") == {"k": b"after"}


class ReadOnlyDisk(Disk):
    """While `names` begin so, nothing opens them for writing."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()

    def open(self, path: str, flags: int, mode: int = 0o666, *, folder: int | None = None) -> int:
        if flags & os.O_ACCMODE != os.O_RDONLY and self.names and os.path.basename(path).startswith(self.names):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return super().open(path, flags, mode, folder=folder)


@pytest.mark.parametrize("names", [("journal",), ("journal.lock",)])
def test_right_that_is_granted_later_is_used(tmp_path: Path, names: tuple[str, ...]) -> None:
    """S9: a process that opened a store on a read-only disk writes once the disk is writable, without a new start."""
    path = tmp_path / "s"
    FileStore(str(path)).close()
    disk = ReadOnlyDisk()
    disk.names = names
    with FileStore(str(path), disk=disk) as store:
        assert store.names() == []
        for _ in range(2):
            with pytest.raises(StoreRightsError, match=r"may read .*journal\.lock, but not write it"):
                store.connect()
        disk.names = ()
        with store.connect() as session:
            session.open("r").commit([Put("k", b"v")])
            assert peek(path) == store.peek("r") == {"k": b"v"}


def test_journal_without_a_right_to_write_is_named(tmp_path: Path) -> None:
    """S9: its lock file may be written; the write of the journal was a bad file descriptor, and its outcome unknown."""
    path = tmp_path / "s"
    FileStore(str(path)).close()
    disk = ReadOnlyDisk()
    disk.names = ("journal-",)
    with pytest.raises(StoreRightsError, match=f"may read .*{JOURNAL}, but not write it"):
        FileStore(str(path), disk=disk)


class GateDisk(Disk):
    """A sync that waits for its gate."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()
        self.interrupt = False

    def sync(self, fd: int) -> None:
        self.reached.set()
        assert self.gate.wait(30)
        if self.interrupt:
            self.interrupt = False
            raise Interrupt
        super().sync(fd)


def run_all(actions: list[Callable[[], object]]) -> tuple[list[threading.Thread], list[BaseException | None]]:
    results: list[BaseException | None] = [None] * len(actions)

    def run(number: int) -> None:
        try:
            actions[number]()
        except StoreError as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(actions))]
    for thread in threads:
        thread.start()
    return threads, results


def queued(store: FileStore) -> int:
    return len(store._backend._group._queue)  # type: ignore[attr-defined]


def test_requests_during_a_sync_share_the_next_write(tmp_path: Path) -> None:
    """S9: one physical write for concurrent requests; a refused request does not fail the others."""
    disk = GateDisk()
    with FileStore(str(tmp_path / "s"), disk=disk) as store, store.connect() as session:
        handles = [session.open(f"r{number}") for number in range(9)]
        before = store.statistics().physical_write_count
        disk.gate.clear()
        disk.reached.clear()
        first, _ = run_all([lambda: handles[0].commit([Put("k", b"v")])])
        assert disk.reached.wait(10)
        handles[1].epoch += 1
        threads, results = run_all([lambda h=handle: h.commit([Put("k", b"v")]) for handle in handles[1:]])  # type: ignore[misc]
        pause = threading.Event()
        while queued(store) < 8:
            pause.wait(0.001)
        disk.gate.set()
        for thread in first + threads:
            thread.join(10)
        assert [type(result).__name__ for result in results] == ["StaleEpochError"] + ["NoneType"] * 7
        assert store.statistics().physical_write_count == before + 2
        assert [store.peek(f"r{number}") for number in range(9)] == [{"k": b"v"}, {}] + [{"k": b"v"}] * 7


def test_a_failed_write_fails_all_requests_that_shared_it(tmp_path: Path) -> None:
    disk = FailingDisk()
    with FileStore(str(tmp_path / "s"), disk=disk, reserve_limit=0) as store, store.connect() as session:
        handles = [session.open(f"r{number}") for number in range(6)]
        disk.room = 0
        threads, results = run_all([lambda h=handle: h.commit([Put("k", b"v")]) for handle in handles])  # type: ignore[misc]
        for thread in threads:
            thread.join(10)
        assert {type(result) for result in results} == {StoreFullError}
        assert len({id(result) for result in results}) == 6
        disk.room = None
        assert store.statistics().object_count == 0


class Interrupt(BaseException):
    """Stands for KeyboardInterrupt, which hits the leader."""


def test_an_interrupted_leader_leaves_no_request_waiting(tmp_path: Path) -> None:
    disk = GateDisk()
    with FileStore(str(tmp_path / "s"), disk=disk) as store, store.connect() as session:
        handles = [session.open(f"r{number}") for number in range(4)]
        interrupted: list[bool] = []

        def leader() -> None:
            try:
                handles[0].commit([Put("k", b"v")])
            except Interrupt:
                interrupted.append(True)

        disk.gate.clear()
        disk.reached.clear()
        threads, results = run_all([leader])
        assert disk.reached.wait(10)
        more, more_results = run_all([lambda h=handle: h.commit([Put("k", b"v")]) for handle in handles[1:]])  # type: ignore[misc]
        pause = threading.Event()
        while queued(store) < 3:
            pause.wait(0.001)
        disk.interrupt = True
        disk.gate.set()
        for thread in threads + more:
            thread.join(10)
            assert not thread.is_alive()
        assert interrupted == [True]
        assert (results, more_results) == ([None], [None] * 3)
        handles[0].commit([Put("k", b"w")])
        assert [store.peek(f"r{number}") for number in range(4)] == [{"k": b"w"}] + [{"k": b"v"}] * 3


def test_the_lock_of_a_stopped_writer_is_broken(tmp_path: Path) -> None:
    """C9: a writer is stopped during a write, with the journal locked. Other processes continue after session_timeout_ms in a
    new generation; when the writer wakes, its commit is refused, and it continues in the new generation."""
    disk = GateDisk()
    path = tmp_path / "s"
    with (
        FileStore(str(path), disk=disk, session_timeout_ms=300) as stopped,
        FileStore(str(path), session_timeout_ms=300) as other,
        other.connect() as theirs,
    ):
        ours = stopped.connect()
        handle, their_handle = ours.open("r"), theirs.open("theirs")
        disk.gate.clear()
        disk.reached.clear()
        threads, results = run_all([lambda: handle.commit([Put("k", b"stopped")])])
        assert disk.reached.wait(10)
        their_handle.commit([Put("k", b"went on")])
        assert other.statistics().lock_break_count == 1
        assert not (path / JOURNAL).exists()
        disk.gate.set()
        threads[0].join(10)
        assert isinstance(results[0], OutcomeUnknownError)  # its frame may have been whole when the lock was broken
        assert stopped.peek("theirs") == {"k": b"went on"}
        assert stopped.peek("r") == other.peek("r")
        their_handle.commit([Put("k", b"and on")])
        assert stopped.peek("theirs") == {"k": b"and on"}


def test_openings_of_one_directory_share_a_backend(tmp_path: Path) -> None:
    first, second = open_store(str(tmp_path / "s")), open_store((tmp_path / "s").as_uri())
    assert isinstance(first, FileStore)
    assert isinstance(second, FileStore)
    assert first._backend is second._backend
    first.close()
    first.close()
    handle: Handle = second.connect().open("r")
    second.close()
    with pytest.raises(StoreClosedError):
        handle.objects()
    with open_store(str(tmp_path / "s")) as third:
        assert third.names() == ["r"]


def test_sessions_leave_no_files(tmp_path: Path) -> None:
    """R8: nor do sessions of a process that died between creating the file and connecting."""
    sessions = tmp_path / "s" / "sessions"
    with FileStore(str(tmp_path / "s")) as store, store.connect():
        assert len(list(sessions.iterdir())) == 1
        for name in ("0123456789abcdef", ".making-0123"):
            (sessions / name).write_bytes(b"")
            os.utime(sessions / name, (1, 1))
        with FileStore(str(tmp_path / "s")):
            assert len(list(sessions.iterdir())) == 1
    assert list(sessions.iterdir()) == []


def test_moved_directory_is_away_until_it_returns(tmp_path: Path) -> None:
    """S9, M10: a process whose store was moved away changes nothing there and makes nothing in its place; its sessions live
    on when the directory returns, and another directory in its place is not the store."""
    here, there = tmp_path / "s", tmp_path / "away"
    with open_store(str(here)) as store, store.connect("q") as session:
        handle = session.open("r")
        handle.commit([Put("k", b"1")])
        here.rename(there)
        asked: list[Callable[[], object]] = [
            store.sessions,
            store.connect,
            lambda: store.peek("r"),
            lambda: handle.commit([Put("k", b"2")]),
        ]
        for ask in asked:
            with pytest.raises(StoreNotFoundError):
                ask()
        assert not here.exists()
        here.mkdir()
        with pytest.raises(StoreNotFoundError):
            handle.commit([Put("k", b"2")])
        here.rmdir()
        there.rename(here)
        handle.commit([Put("k", b"3")])
        assert store.peek("r") == {"k": b"3"}
        assert session.session_id in store.sessions()


def test_too_many_open_files_are_named_with_the_way_out() -> None:
    """S9"""
    error = write_error(OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "the store's files")
    assert "raise the limit of this process (ulimit -n)" in str(error)
