"""Region entries as files: what housekeeping removes, what readers and writers find then, and how an absent directory is
told from an empty one (R8, R10)."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from spark_jms.store.disk import Disk
from spark_jms.store.errors import (
    DirectoryUnavailableError,
    RegionEntryDamagedError,
    RegionEntryVersionError,
    StoreError,
    StoreVersionError,
    error_of,
)
from spark_jms.store.regions.directory import global_directory
from spark_jms.store.regions.directory.entries import DirectoryFiles
from spark_jms.store.regions.directory.global_directory import GlobalDirectory
from spark_jms.store.regions.protocol.region_entry import Absent, Holder, RegionEntry

FIRST = RegionEntry("s.000", "id", 4096, 1, Holder(0, "life"), None, None, 7)
FAR_AHEAD_S = 4_000_000_000.0


@pytest.fixture
def files(tmp_path: Path) -> DirectoryFiles:
    return DirectoryFiles(prepared(tmp_path))


def prepared(path: Path) -> GlobalDirectory:
    path.mkdir(exist_ok=True)
    (path / "rs_daemons.cfg").write_text("127.0.0.1 7100 7100 1M\n")
    directory = GlobalDirectory(str(path))
    directory.prepare()
    return directory


class Mount:
    """A directory whose path can lead to an empty mount point for a while."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.directory = prepared(path)
        self.identity = self.directory.read_identity()
        self.files = DirectoryFiles(self.directory, self.identity)

    def unmount(self) -> None:
        self.path.rename(self.path.with_name("away"))
        self.path.mkdir()

    def mount(self) -> None:
        self.path.rmdir()
        self.path.with_name("away").rename(self.path)


@pytest.fixture
def mounted(tmp_path: Path) -> Mount:
    return Mount(tmp_path / "directory")


def at(epoch: int) -> RegionEntry:
    return replace(FIRST, epoch=epoch)


def grow(files: DirectoryFiles, to: int, start: int = 0) -> None:
    for epoch in range(start + 1, to + 1):
        assert files.swap("s.000", at(epoch - 1) if epoch > 1 else None, at(epoch))


def names(path: Path) -> list[str]:
    return sorted(os.listdir(path))


def test_housekeeping_removes_files_of_dead_writers(files: DirectoryFiles, tmp_path: Path) -> None:
    """R10: versions before the last two and old temporary files, in every folder; nothing else."""
    grow(files, 9)
    assert files.swap("s.000", at(9), None)
    folder = tmp_path / "daemons" / "entries" / "s.000"
    for version in (2, 3, 5):  # their writer died after writing the next version, before it removed these
        (folder / str(version)).write_text("old")
    left = [folder / ".10.77.0123abcd", tmp_path / "daemons" / ".d000.secret.1.00000000"]
    left += [tmp_path / "regions" / ".s.000_client_meta.f.5.ffffffff", tmp_path / ".rs_daemons.cfg.5.ffffffff"]
    others = [folder / ".nfs0000000012", folder / "notes", tmp_path / "regions" / ".keep", tmp_path / "a.1.ffffffff"]
    for path in (*left, *others):
        path.write_text("")
    now_s = left[0].stat().st_mtime
    assert len(files.remove_stale_files(now_s + 60.0)) == 3, "young files may still be in use"
    assert names(folder) == [".10.77.0123abcd", ".nfs0000000012", "10", "9", "notes"]
    assert sorted(files.remove_stale_files(now_s + 3_700.0)) == sorted(left)
    assert all(path.exists() for path in others)
    assert files.remove_stale_files(FAR_AHEAD_S) == []
    assert files.read("s.000") is Absent.REMOVED
    assert files.swap("s.000", None, replace(FIRST, region_id="id2"))


def test_reader_that_slept_finds_the_newest_entry(files: DirectoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """R10: though housekeeping removed the versions that it had listed."""
    grow(files, 2)
    listed = global_directory.file_numbers

    def numbers(disk: Disk, folder: int) -> Sequence[int]:
        found = listed(disk, folder)
        monkeypatch.setattr(global_directory, "file_numbers", listed)
        grow(files, 7, 2)
        files.remove_stale_files(FAR_AHEAD_S)
        return found

    monkeypatch.setattr(global_directory, "file_numbers", numbers)
    assert files.read("s.000") == at(7)


def test_writer_whose_file_was_removed_tries_again(files: DirectoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """R10: it slept, and housekeeping took its temporary file for that of a dead writer: it gets an error, nothing has
    happened, and its next attempt succeeds."""
    grow(files, 3)
    link = os.link

    def late(source: str, target: str, **folders: int) -> None:
        monkeypatch.setattr(os, "link", link)
        assert [path.name for path in files.remove_stale_files(FAR_AHEAD_S)] == [source]
        link(source, target, **folders)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(DirectoryUnavailableError):
        files.swap("s.000", at(3), at(4))
    assert files.read("s.000") == at(3)
    grow(files, 5, 3)


def test_writer_of_a_removed_version_changes_nothing(files: DirectoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """R10: it slept, and its version was used and removed meanwhile: readers ignore what it writes under that number."""
    grow(files, 2)
    link = os.link

    def late(source: str, target: str, **folders: int) -> None:
        monkeypatch.setattr(os, "link", link)
        grow(files, 6, 2)
        files.remove_stale_files(0.0)
        link(source, target, **folders)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(DirectoryUnavailableError, match="changed again in the same moment"):
        files.swap("s.000", at(2), replace(at(3), opener="late"))
    assert files.read("s.000") == at(6)
    assert len(files.remove_stale_files(0.0)) == 1
    assert files.read("s.000") == at(6)


def test_readers_never_see_an_epoch_go_back(files: DirectoryFiles) -> None:
    """R10: nor a missing entry, while one thread writes and two run housekeeping."""
    grow(files, 1)
    done = threading.Event()
    faults: list[str] = []

    def keep_house() -> None:
        while not done.is_set():
            files.remove_stale_files(0.0)

    def read() -> None:
        newest = 0
        while not done.is_set():
            entry = files.read("s.000")
            if isinstance(entry, Absent) or entry.epoch < newest:
                faults.append(f"{entry} after {newest}")
                return
            newest = entry.epoch

    threads = [threading.Thread(target=target) for target in (keep_house, keep_house, read, read)]
    for thread in threads:
        thread.start()
    grow(files, 150, 1)
    done.set()
    for thread in threads:
        thread.join(20)
    assert faults == []


# ---- an absent directory is not an empty one


def test_empty_mount_point_is_not_a_directory_without_regions(mounted: Mount) -> None:
    """R8, R10: no entry counts as removed or never created, no daemon as ended, and nothing is written."""
    grow(mounted.files, 2)
    fd = mounted.directory.lock_daemon(0, "life", "checksum")
    mounted.unmount()
    assert mounted.files.read("s.000") is Absent.UNSEEN
    assert mounted.files.read("t.000") is Absent.UNSEEN
    with pytest.raises(DirectoryUnavailableError, match="identity is missing"):
        mounted.files.entries()
    for old, new in ((at(2), at(3)), (at(2), None), (None, FIRST)):
        with pytest.raises(DirectoryUnavailableError, match="identity is missing"):
            mounted.files.swap("s.000", old, new)
    for index in (0, 1):
        with pytest.raises(DirectoryUnavailableError, match="identity is missing"):
            mounted.files.running(Holder(index, "life"))
    assert names(mounted.path) == []
    mounted.mount()
    assert mounted.files.read("s.000") == at(2)
    assert mounted.files.read("t.000") is Absent.NOTHING
    assert mounted.files.entries().entries == {"s.000": at(2)}
    assert mounted.files.running(Holder(0, "life"))
    assert not mounted.files.running(Holder(1, "life"))
    os.close(fd)


def test_another_directory_at_the_same_path_is_not_the_directory(mounted: Mount) -> None:
    """R8, R10: it has rs_daemons.cfg and an identity of its own."""
    grow(mounted.files, 2)
    mounted.unmount()
    other = prepared(mounted.path)
    assert other.read_identity() != mounted.identity
    assert mounted.files.read("s.000") is Absent.UNSEEN
    with pytest.raises(DirectoryUnavailableError, match="identity is missing"):
        mounted.files.entries()


def test_directory_that_returns_between_two_looks_is_not_empty(mounted: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    """R8, R10: the path led to the empty mount point when the reader looked for versions, and to the directory when it
    looked for the identity."""
    grow(mounted.files, 2)
    mounted.unmount()
    absent = DirectoryFiles._nothing

    def nothing(files: DirectoryFiles, name: str) -> Absent | None:
        monkeypatch.setattr(DirectoryFiles, "_nothing", absent)
        mounted.mount()
        return absent(files, name)

    monkeypatch.setattr(DirectoryFiles, "_nothing", nothing)
    assert mounted.files.read("s.000") == at(2)


def test_commands_do_not_take_an_empty_mount_point_for_a_directory(mounted: Mount) -> None:
    """R6, R8: a command does not know the identity, but the directory has rs_daemons.cfg."""
    command = DirectoryFiles(mounted.directory)
    assert command.entries().entries == {}
    assert not mounted.directory.is_running(0)
    mounted.unmount()
    with pytest.raises(DirectoryUnavailableError, match="identity is missing"):
        command.entries()
    with pytest.raises(DirectoryUnavailableError, match="identity is missing"):
        mounted.directory.is_running(0)


def test_daemon_does_not_prepare_an_empty_mount_point(mounted: Mount) -> None:
    """R8: nor does it give it an identity."""
    mounted.unmount()
    with pytest.raises(DirectoryUnavailableError, match=r"no rs_daemons\.cfg, so it may be an empty mount point"):
        mounted.directory.lock_daemon(0, "life", "checksum")
    assert names(mounted.path) == []


def test_directory_of_an_earlier_version_gets_an_identity(mounted: Mount) -> None:
    """R8: from the first daemon that starts on it; the next ones keep it."""
    grow(mounted.files, 2)
    (mounted.path / "daemons" / "directory.id").unlink()
    with pytest.raises(DirectoryUnavailableError):
        mounted.directory.read_identity()
    mounted.directory.prepare()
    identity = mounted.directory.read_identity()
    mounted.directory.prepare()
    assert mounted.directory.read_identity() == identity != mounted.identity
    assert DirectoryFiles(mounted.directory, identity).read("s.000") == at(2)


def test_daemon_refuses_a_damaged_identity(mounted: Mount) -> None:
    """R8: an empty file would fit every directory without an identity."""
    (mounted.path / "daemons" / "directory.id").write_text("")
    with pytest.raises(DirectoryUnavailableError, match=r"directory\.id is damaged"):
        mounted.directory.read_identity()


# ---- entries that cannot be read


def write_newest(mount: Mount, name: str, data: bytes) -> Path:
    folder = mount.path / "daemons" / "entries" / name
    path = folder / str(max(int(version) for version in names(folder) if version.isdecimal()) + 1)
    path.write_bytes(data)
    return path


def with_checksum(text: str) -> bytes:
    return f"{text}\n{hashlib.sha256(text.encode()).hexdigest()}\n".encode()


def fields_of(entry: RegionEntry, **more: object) -> str:
    return json.dumps({**msgspec.to_builtins(entry), **more})


@pytest.fixture
def two(mounted: Mount) -> Mount:
    grow(mounted.files, 2)
    assert mounted.files.swap("t.000", None, replace(FIRST, name="t.000"))
    return mounted


@pytest.mark.parametrize(
    "text", [fields_of(at(3), version=2), fields_of(at(3), colour="red"), fields_of(at(3), version=2, colour="red")]
)
def test_entry_of_a_newer_version_is_refused_by_name(two: Mount, text: str) -> None:
    """R16: by any method, and not by `rmr -force`; all other regions are listed."""
    file = write_newest(two, "s.000", with_checksum(text))
    for act in (lambda: two.files.read("s.000"), lambda: two.files.swap("s.000", at(2), at(3))):
        with pytest.raises(RegionEntryVersionError, match=f"{file} has format version") as raised:
            act()
        assert isinstance(raised.value, StoreVersionError)
        assert ("colour" in str(raised.value)) == ("colour" in text)
    with pytest.raises(RegionEntryVersionError):
        two.files.discard("s.000")
    listing = two.files.entries()
    assert (set(listing.entries), set(listing.unreadable)) == ({"t.000"}, {"s.000"})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        with_checksum(fields_of(at(3)))[:40],
        with_checksum(fields_of(at(3))).replace(b"4096", b"4097"),
        with_checksum("[]"),
        with_checksum("{}"),
        with_checksum("not JSON"),
        with_checksum(fields_of(at(3), epoch="three")),
        with_checksum(fields_of(at(3), primary=None)),
        with_checksum(fields_of(at(3), version="1")),
    ],
)
def test_damaged_entry_is_refused_by_name(two: Mount, data: bytes) -> None:
    """R6, R16: all other regions are listed, and by force it is removed."""
    file = write_newest(two, "s.000", data)
    for act in (lambda: two.files.read("s.000"), lambda: two.files.swap("s.000", at(2), at(3))):
        with pytest.raises(RegionEntryDamagedError, match=f"{file} is damaged"):
            act()
    listing = two.files.entries()
    assert (set(listing.entries), set(listing.unreadable)) == ({"t.000"}, {"s.000"})
    assert not two.files.discard("t.000")
    assert two.files.discard("s.000")
    assert two.files.read("s.000") is Absent.REMOVED
    assert two.files.swap("s.000", None, replace(FIRST, region_id="id2"))


@pytest.mark.parametrize(
    "error",
    [RegionEntryDamagedError("f", "torn"), RegionEntryVersionError("f", 2, 1), RegionEntryVersionError("f", 1, 1, "x")],
)
def test_errors_of_entries_travel(error: StoreError) -> None:
    """R16: from a daemon to its client, and between processes."""
    for again in (error_of(type(error).__name__, error.args), pickle.loads(pickle.dumps(error))):
        assert (type(again), str(again)) == (type(error), str(error))


@pytest.mark.parametrize("error", [errno.EACCES, errno.EMFILE, errno.EIO, errno.ENFILE, errno.ESTALE])
def test_lock_file_that_cannot_be_opened_tells_nothing(
    mounted: Mount, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """R8, R10: a daemon that counts as ended loses its regions, so only a lock that is free proves its end."""
    fd = mounted.directory.lock_daemon(0, "life", "")
    os.close(fd)
    assert not mounted.files.running(Holder(0, "life"))
    opens = os.open

    def refused(path: str | Path, flags: int, *arguments: int, **options: int) -> int:
        if str(path).endswith(".lock"):
            raise OSError(error, os.strerror(error))
        return opens(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(DirectoryUnavailableError, match="d000.lock"):
        mounted.files.running(Holder(0, "life"))
    with pytest.raises(DirectoryUnavailableError, match="d000.lock"):
        mounted.directory.is_running(0)
