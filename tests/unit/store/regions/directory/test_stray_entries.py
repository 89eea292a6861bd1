"""What does not belong into the folder of entries harms no region, and no daemon ends over it (R8, R10)."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from spark_jms.store.errors import DaemonUnavailableError, DirectoryUnavailableError, RegionEntryDamagedError
from spark_jms.store.regions.daemon.directory_workers import DirectoryWorkers
from spark_jms.store.regions.directory.entries import DirectoryFiles, EntryGathering
from spark_jms.store.regions.directory.global_directory import GlobalDirectory
from spark_jms.store.regions.protocol.region_entry import (
    Absent,
    AskRunning,
    DirectoryRequest,
    Holder,
    ListEntries,
    ReadEntry,
    RegionEntry,
)

FIRST = RegionEntry("s.000", "id", 4096, 1, Holder(0, "life"), None, None, 7)
FAR_AHEAD_S = 4_000_000_000.0


@pytest.fixture
def directory(tmp_path: Path) -> GlobalDirectory:
    (tmp_path / "rs_daemons.cfg").write_text("127.0.0.1 7100 7100 1M\n")
    directory = GlobalDirectory(str(tmp_path))
    directory.prepare()
    files = DirectoryFiles(directory)
    assert files.swap("s.000", None, FIRST)
    assert files.swap("t ü.000", None, replace(FIRST, name="t ü.000"))
    return directory


def _folder(name: bytes) -> Callable[[bytes], None]:
    return lambda parent: os.mkdir(os.path.join(parent, name))


def _link(name: bytes, target: bytes) -> Callable[[bytes], None]:
    return lambda parent: os.symlink(target, os.path.join(parent, name))


STRAY = {
    "not UTF-8": _folder(b"\xff\xfe"),
    "quoted, not UTF-8": _folder(b"%FF"),
    "quoted needlessly": _folder(b"%73.000"),
    "unquoted": _folder("ü".encode()),
    "empty": _folder(b"u.000"),
    "a link to itself": _link(b"v.000", b"v.000"),
    "a link to nothing": _link(b"w.000", b"nothing"),
}


@pytest.mark.parametrize("place", ["daemons/entries", "daemons/gathered", "daemons/gathering"])
@pytest.mark.parametrize("make", STRAY.values(), ids=STRAY)
def test_stray_folder_harms_no_region(directory: GlobalDirectory, make: Callable[[bytes], None], place: str) -> None:
    """R8, R10: all regions are listed, changed, cleaned and gathered up beside it."""
    make(os.fsencode(directory.path / place))
    files = DirectoryFiles(directory)
    listing = files.entries()
    assert set(listing.entries) == {"s.000", "t ü.000"}
    assert not listing.unreadable
    assert all(name.isascii() and name.isprintable() for name in listing.removed)
    assert files.swap("s.000", FIRST, None)
    files.remove_stale_files(FAR_AHEAD_S)
    assert "s.000" in EntryGathering(directory, files, Holder(0, "life")).gather(FAR_AHEAD_S)
    assert files.read("s.000") is Absent.REMOVED


def test_copied_folder_is_not_another_region(directory: GlobalDirectory) -> None:
    """R8, R16: an administrator's copy of an entry is refused under its own name, and removed by force."""
    entries = directory.path / "daemons" / "entries"
    shutil.copytree(entries / "s.000", entries / "s.000 copy")
    files = DirectoryFiles(directory)
    listing = files.entries()
    assert set(listing.entries) == {"s.000", "t ü.000"}
    assert set(listing.unreadable) == {"s.000 copy"}
    with pytest.raises(RegionEntryDamagedError, match=r"it is the entry of region s\.000"):
        files.read("s.000 copy")
    assert files.discard("s.000 copy")
    assert files.read("s.000") == FIRST


def test_unexpected_error_over_one_entry_refuses_only_this_one(
    directory: GlobalDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R8, R10: the list has it among the unreadable entries, by name."""
    files = DirectoryFiles(directory)
    newest_in = files.newest_in

    def failing(folder: int, name: str) -> object:
        if name == "s.000":
            raise LookupError("planned")
        return newest_in(folder, name)

    monkeypatch.setattr(files, "newest_in", failing)
    listing = files.entries()
    assert set(listing.entries) == {"t ü.000"}
    assert "unexpected LookupError: planned" in str(listing.unreadable["s.000"])


def test_entry_that_cannot_be_gathered_up_does_not_keep_the_others(directory: GlobalDirectory) -> None:
    """R8: the error is raised once the others are gathered up."""
    files = DirectoryFiles(directory)
    assert files.swap("s.000", FIRST, None)
    assert files.swap("t ü.000", replace(FIRST, name="t ü.000"), None)
    gathered = directory.path / "daemons" / "gathered" / "s.000"
    gathered.mkdir()  # where its record belongs
    with pytest.raises(DirectoryUnavailableError, match="s.000"):
        EntryGathering(directory, files, Holder(0, "life")).gather(FAR_AHEAD_S)
    assert (gathered.parent / "t %C3%BC.000").is_file()


def test_folder_in_place_of_an_old_version_fails_no_change(directory: GlobalDirectory) -> None:
    """R8, R10: it cannot be removed as a version is; housekeeping names it, and cleans all other entries."""
    files = DirectoryFiles(directory)
    entries = directory.path / "daemons" / "entries"
    assert files.swap("s.000", FIRST, second := replace(FIRST, epoch=2))
    (entries / "s.000" / "1").unlink()
    (entries / "s.000" / "1").mkdir()
    assert files.swap("s.000", second, third := replace(FIRST, epoch=3))
    assert files.read("s.000") == third
    left = [folder / ".1.77.0123abcd" for folder in entries.iterdir()]
    for path in left:
        path.write_text("")
    with pytest.raises(DirectoryUnavailableError, match=r"s\.000/1"):
        files.remove_stale_files(FAR_AHEAD_S)
    assert not any(path.exists() for path in left)


@pytest.mark.parametrize("name", ["0002", "0", "٣", "³", "3.bak", "9" * 19], ids=ascii)
def test_name_that_no_writer_gives_is_not_a_version(directory: GlobalDirectory, name: str) -> None:
    """R8, R10: a copy of an entry beside it is ignored; the region is read, changed and cleaned."""
    files = DirectoryFiles(directory)
    folder = Path(files.folder_of("s.000"))
    (folder / name).write_bytes((folder / "1").read_bytes())
    assert files.read("s.000") == FIRST
    assert set(files.entries().entries) == {"s.000", "t ü.000"}
    for epoch in range(1, 4):
        assert files.swap("s.000", replace(FIRST, epoch=epoch), replace(FIRST, epoch=epoch + 1))
    files.remove_stale_files(FAR_AHEAD_S)
    assert files.read("s.000") == replace(FIRST, epoch=4)
    assert (folder / name).exists()


def test_version_that_never_can_be_read_ends_every_look(directory: GlobalDirectory) -> None:
    """R8, R10: a link to nothing is listed and absent, for ever; only its region is refused."""
    files = DirectoryFiles(directory)
    (Path(files.folder_of("s.000")) / "2").symlink_to("nothing")
    listing = files.entries()
    assert set(listing.entries) == {"t ü.000"}
    assert "s.000" in str(listing.unreadable["s.000"])
    acts = (
        lambda: files.read("s.000"),
        lambda: files.swap("s.000", FIRST, replace(FIRST, epoch=2)),
        lambda: files.swap("s.000", None, FIRST),
        lambda: files.discard("s.000"),
    )
    for act in acts:
        with pytest.raises(DirectoryUnavailableError, match="100 times"):
            act()


def test_folder_that_comes_and_goes_ends_every_look(
    directory: GlobalDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R8, R10: as when a file system answers one question with the folder and the next one without."""
    files = DirectoryFiles(directory)
    monkeypatch.setattr(files, "_nothing", lambda name: None)
    monkeypatch.setattr(files, "folder_of", lambda name: str(directory.path / "none" / name))
    monkeypatch.setattr(directory.disk, "make_folder", lambda *arguments, **options: None)
    for act in (lambda: files.read("s.000"), lambda: files.swap("s.000", None, FIRST)):
        with pytest.raises(DirectoryUnavailableError, match="100 times"):
            act()


def test_entry_that_changes_at_each_look_ends_the_lock_files(
    directory: GlobalDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R8: the change was made, and another writer keeps the lock files in order."""
    files = DirectoryFiles(directory)
    versions = iter(range(1, 10_000))
    monkeypatch.setattr(files, "_newest", lambda name: (next(versions), FIRST))
    assert files.swap("s.000", FIRST, replace(FIRST, epoch=2))
    assert 50 < next(versions) < 200


# ---- unexpected errors

faults: dict[str, int] = {}


def _run(*calls: Callable[[], object]) -> list[object]:
    async def run() -> list[object]:
        workers = DirectoryWorkers(logging.getLogger("store.test"), threads=2)
        try:
            return await asyncio.gather(*map(workers.run, calls), return_exceptions=True)
        finally:
            workers.close()
            faults.update(workers.faults)

    return asyncio.run(run())


def test_unexpected_error_means_that_the_directory_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    """R10: it is named, counted, and logged with its place at the first time and at each tenfold."""
    faults.clear()

    def broken() -> None:
        "\udcff".encode()

    with caplog.at_level(logging.ERROR):
        answers = _run(*[broken] * 12)
    assert {type(answer) for answer in answers} == {DirectoryUnavailableError}
    assert "unexpected UnicodeEncodeError" in str(answers[0])
    assert isinstance(answers[0], Exception)
    assert isinstance(answers[0].__cause__, UnicodeEncodeError)
    assert list(faults.values()) == [12]
    said = [record for record in caplog.records if "UnicodeEncodeError" in record.getMessage()]
    assert [record.args[0] for record in said if isinstance(record.args, tuple)] == [1, 10]
    assert all(record.exc_info for record in said)


@pytest.mark.parametrize("request_", [ListEntries(), ReadEntry("s.000"), AskRunning(Holder(0, "life"))])
def test_unexpected_error_is_an_answer_for_the_core(
    directory: GlobalDirectory, monkeypatch: pytest.MonkeyPatch, request_: DirectoryRequest
) -> None:
    """R10: so it does not end the daemon that asked."""
    files = DirectoryFiles(directory)

    def broken(*arguments: object) -> object:
        raise LookupError("planned")

    for name in ("_names", "newest_in", "running"):
        monkeypatch.setattr(files, name, broken)

    async def run() -> object:
        workers = DirectoryWorkers(logging.getLogger("store.test"), threads=1)
        try:
            return await workers.ask(files, request_)
        finally:
            workers.close()

    answer = asyncio.run(run())
    assert isinstance(answer, DirectoryUnavailableError)
    assert "unexpected LookupError: planned" in str(answer)


@pytest.mark.parametrize("error", [DirectoryUnavailableError("away"), DaemonUnavailableError("no secret")])
def test_expected_error_reaches_its_caller_as_it_is(error: Exception) -> None:
    """R10, R17: those of the directory have names already."""
    faults.clear()

    def away() -> None:
        raise error

    assert _run(away, time.time)[0] is error
    assert not faults
