"""Compaction (S9): the size is bounded, readers follow, and a crash before or after any step loses nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_jms.store import Put, RecordHeldError, Session, StoreError, StoreFullError, StoreWriteError, open_store
from spark_jms.store.disk import Disk
from spark_jms.store.file.journal import RESERVE_BYTES
from spark_jms.store.file.store import FileStore
from tests.harness.stores.journal_files import bury


def journals(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.name.startswith("journal-"))


def test_the_journal_stays_small_and_readers_follow(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with (
        FileStore(str(path), compact_min_bytes=4096) as store,
        FileStore(str(path)) as other,
        store.connect("writer") as session,
        other.connect("waiter") as waiter,
    ):
        handle = session.open("r")
        theirs = waiter.open("theirs")
        theirs.commit([Put("k", b"v")])
        waiter_wants = [name for name in ("r",) if not _opens(waiter, name)]
        for step in range(300):
            handle.commit([Put(f"k{step % 3}", b"%d" % step * 20)])
            if step % 50 == 0:
                assert other.peek("r") == handle.objects()
        assert store.statistics().compaction_count >= 5
        assert len(journals(path)) == 1
        assert (path / journals(path)[0]).stat().st_size < 8192
        # Holders and waiters survive compactions.
        assert waiter_wants == ["r"]
        assert handle.waiters() == (waiter.session_id,)
        assert theirs.objects() == {"k": b"v"}
        assert handle.epoch == theirs.epoch == 1
        expected = handle.objects()
    with FileStore(str(path), create=False) as store:
        assert store.peek("r") == expected
        assert store.peek("theirs") == {"k": b"v"}


def _opens(session: Session, name: str) -> bool:
    try:
        session.open(name)
    except RecordHeldError:
        return False
    return True


def test_big_objects_are_compacted_in_several_frames(tmp_path: Path) -> None:
    big = os.urandom(1 << 20)
    with FileStore(str(tmp_path / "s"), compact_ratio=1.2, fsync=False) as store, store.connect() as session:
        for number in range(12):
            session.open(f"r{number}").commit([Put("k", big)])
            session.cancel("nothing")
        handle = session.open("again")
        for _ in range(4):
            handle.commit([Put("k", big)])
        assert store.statistics().compaction_count >= 1
    with FileStore(str(tmp_path / "s")) as store:
        assert all(store.peek(f"r{number}") == {"k": big} for number in range(12))
        assert len(journals(tmp_path / "s")) == 1


def test_a_live_size_near_the_limit_does_not_compact_every_time(tmp_path: Path) -> None:
    with FileStore(str(tmp_path / "s"), compact_min_bytes=1, fsync=False) as store, store.connect() as session:
        for number in range(40):
            session.open(f"{number}" + "x" * 400)  # long names, hardly any objects
        assert store.statistics().compaction_count < 15


class Crash(BaseException):
    """The process is dead. A BaseException, so that no code handles it."""


class CrashingDisk(Disk):
    """Once armed, dies before or after the n-th step; a dead process takes no further step."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.dead = False

    def _step(self, action: Callable[[], None]) -> None:
        if self.dead:
            raise Crash
        for half in (action, None):
            if self.left == 0:
                self.dead = True
                raise Crash
            if self.left is not None:
                self.left -= 1
            if half is not None:
                half()

    def pwrite_all(self, fd: int, data: bytes, offset: int) -> None:
        def half() -> None:
            super(CrashingDisk, self).pwrite_all(fd, data[: len(data) // 2], offset)

        def rest() -> None:
            super(CrashingDisk, self).pwrite_all(fd, data[len(data) // 2 :], offset + len(data) // 2)

        if self.left is None and not self.dead:
            super().pwrite_all(fd, data, offset)
        else:
            self._step(half)
            self._step(rest)

    def sync(self, fd: int) -> None:
        self._step(lambda: super(CrashingDisk, self).sync(fd))

    def truncate(self, fd: int, length: int) -> None:
        self._step(lambda: super(CrashingDisk, self).truncate(fd, length))

    def link(self, source: str, target: str, *, folder: int | None = None) -> None:
        self._step(lambda: super(CrashingDisk, self).link(source, target, folder=folder))

    def unlink(self, path: str, *, folder: int | None = None) -> None:
        self._step(lambda: super(CrashingDisk, self).unlink(path, folder=folder))

    def sync_folder(self, folder: int) -> None:
        self._step(lambda: super(CrashingDisk, self).sync_folder(folder))


def run_until_crash(path: Path, steps: int, reserve_limit: int) -> tuple[int, bool]:
    """Commits 0, 1, 2 … and compacts often. Returns the last acknowledged number, and whether the process died."""
    disk = CrashingDisk()
    store = FileStore(str(path), disk=disk, compact_min_bytes=600, compact_ratio=1.5, reserve_limit=reserve_limit)
    acknowledged, died = -1, False
    try:
        handle = store.connect().open("r")
        disk.left = steps
        for number in range(8):
            handle.commit([Put("n", b"%d" % number), Put("pad", b"x" * 100)])
            acknowledged = number
    except Crash:
        died = True
    disk.dead = True
    bury(store)
    return acknowledged, died


@pytest.mark.parametrize("reserve_limit", [0, RESERVE_BYTES])
def test_a_crash_at_any_step_loses_nothing(tmp_path: Path, reserve_limit: int) -> None:
    """S9: half-written, unsynced, linked but not published, published but leftovers not removed: every acknowledged commit
    is kept, the next one completely or not at all, a living reader sees the same, and the epoch continues."""
    compactions = 0
    for steps in range(400):
        path = tmp_path / f"s{steps}"
        with FileStore(str(path)) as living:
            acknowledged, died = run_until_crash(path, steps, reserve_limit)
            assert int(living.peek("r").get("n", b"-1")) >= acknowledged  # a reader sees what was published
            with living.connect() as session:
                handle = session.open("r")
                assert handle.epoch == 2
                value = int(handle.read("n") or b"-1")
                assert value in (acknowledged, acknowledged + 1)
                handle.commit([Put("last", b"1")])
                expected = handle.objects()
                assert len(journals(path)) == 1
                compactions += journals(path) != ["journal-0000000001.log"]
        with FileStore(str(path)) as again:
            assert again.peek("r") == expected
            info = again.info("r")
            assert info is not None
            assert info.epoch == 2
        if not died:
            break
    else:
        pytest.fail("it never came to an end")
    assert steps > 50
    assert compactions > 5


class RefusingDisk(Disk):
    """Fails one kind of step of a new generation."""

    def __init__(self) -> None:
        self.refuse = ""
        self.number = errno.ENOSPC

    def _fail_at(self, step: str) -> None:
        if self.refuse == step:
            raise OSError(self.number, os.strerror(self.number))

    def open(self, path: str, flags: int, mode: int = 0o666, *, folder: int | None = None) -> int:
        self._fail_at("open")
        return super().open(path, flags, mode, folder=folder)

    def link(self, source: str, target: str, *, folder: int | None = None) -> None:
        self._fail_at("link")
        super().link(source, target, folder=folder)

    def sync_folder(self, folder: int) -> None:
        self._fail_at("sync_folder")
        super().sync_folder(folder)


@pytest.mark.parametrize(
    ("step", "number", "kind"), [("link", errno.ENOSPC, StoreFullError), ("open", errno.EIO, StoreWriteError)]
)
def test_failed_compaction_names_its_cause(tmp_path: Path, step: str, number: int, kind: type[StoreError]) -> None:
    """S9: the error of a call to `compact`, also when the journal cannot be opened to look how long it is."""
    disk = RefusingDisk()
    path = tmp_path / "s"
    with FileStore(str(path), disk=disk) as store, store.connect() as session:
        session.open("r").commit([Put("k", b"v")])
        with FileStore(str(path)) as other:
            other.compact()
        disk.refuse, disk.number = step, number
        with pytest.raises(kind, match=os.strerror(number)) as caught:
            store.compact()
        assert type(caught.value) is kind
        disk.refuse = ""
        store.compact()
        assert store.peek("r") == {"k": b"v"}


def test_a_failed_compaction_costs_only_space(tmp_path: Path) -> None:
    """S9"""
    disk = RefusingDisk()
    path = tmp_path / "s"
    with (
        FileStore(str(path), disk=disk, compact_min_bytes=600, compact_ratio=1.5) as store,
        FileStore(str(path)) as other,
        store.connect() as session,
        other.connect() as theirs,
    ):
        handle, their_handle = session.open("r"), theirs.open("theirs")
        disk.refuse = "link"
        for number in range(20):
            handle.commit([Put("n", b"%d" % number), Put("pad", b"x" * 100)])
            their_handle.commit([Put("n", b"%d" % number)])
            assert store.peek("theirs")["n"] == other.peek("r")["n"] == b"%d" % number
        assert store.statistics().failed_compaction_count >= 1
        disk.refuse = ""
        for number in range(20, 60):
            handle.commit([Put("n", b"%d" % number), Put("pad", b"x" * 100)])
            assert other.peek("r")["n"] == b"%d" % number
        assert store.statistics().compaction_count >= 1
    with open_store(str(path)) as store:
        assert (store.peek("r")["n"], store.peek("theirs")["n"]) == (b"59", b"19")
    assert len(journals(path)) == 1


def test_name_of_a_new_generation_that_cannot_be_synced_is_synced_by_the_next_writer(tmp_path: Path) -> None:
    """S9: after a loss of power the name of the new generation could be missing, and with it every commit in it. So the store
    refuses commits until its folder can be synced, and loses none."""
    disk = RefusingDisk()
    path = tmp_path / "s"
    with (
        FileStore(str(path), disk=disk, compact_min_bytes=600, compact_ratio=1.5) as store,
        FileStore(str(path), disk=disk) as other,
        store.connect() as session,
        other.connect() as theirs,
    ):
        handle, their_handle = session.open("r"), theirs.open("theirs")
        disk.refuse = "sync_folder"
        acknowledged = 0
        while store.statistics().failed_compaction_count == 0:
            acknowledged += 1
            handle.commit([Put("n", b"%d" % acknowledged), Put("pad", b"x" * 100)])
        assert journals(path) == ["journal-0000000001.log", "journal-0000000002.log"]
        for writer in (handle, their_handle, handle):
            with pytest.raises(StoreFullError):
                writer.commit([Put("n", b"refused")])
        assert other.peek("r")["n"] == b"%d" % acknowledged
        disk.refuse = ""
        their_handle.commit([Put("n", b"there")])
        handle.commit([Put("m", b"here")])
        assert (store.peek("theirs"), other.peek("r")["m"]) == ({"n": b"there"}, b"here")
        assert store.peek("r")["n"] == b"%d" % acknowledged
        assert journals(path)[0] > "journal-0000000001.log"
