"""Entries of removed regions are gathered up, whatever others do at the same time, at every step (R8, R10)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from spark_jms.store import disk
from spark_jms.store.errors import DirectoryUnavailableError
from spark_jms.store.regions.directory import entries, global_directory
from spark_jms.store.regions.directory.entries import DirectoryFiles, EntryGathering
from spark_jms.store.regions.directory.global_directory import GlobalDirectory
from spark_jms.store.regions.protocol.region_entry import Absent, Holder, RegionEntry

NAME = "s.000"
OLD = RegionEntry(NAME, "old", 4096, 1, Holder(0, "life"), None, None, 7)
NEW = replace(OLD, region_id="new")
FAR_AHEAD_S = 4_000_000_000.0
A, B, C = (Holder(index, "life") for index in (1, 2, 3))


class Files(DirectoryFiles):
    """Tests say who runs."""

    def __init__(self, directory: GlobalDirectory, alive: set[Holder]) -> None:
        super().__init__(directory)
        self._alive = alive

    def running(self, holder: Holder) -> bool:
        return holder in self._alive


class Directory:
    def __init__(self, path: Path) -> None:
        path.mkdir()
        (path / "rs_daemons.cfg").write_text("127.0.0.1 7100 7100 1M\n")
        self.path = path
        self.global_ = GlobalDirectory(str(path))
        self.global_.prepare()
        self.alive = {A, B, C}
        self.files = Files(self.global_, self.alive)

    def gather(self, me: Holder = A, age_s: float = 0.0, now_s: float = FAR_AHEAD_S) -> list[str]:
        return EntryGathering(self.global_, self.files, me).gather(now_s, age_s)

    def create(self, entry: RegionEntry = NEW) -> bool:
        return self.files.swap(entry.name, None, entry)

    def remove(self, entry: RegionEntry) -> bool:
        return self.files.swap(entry.name, entry, None)

    def folders(self) -> list[str]:
        return sorted(os.listdir(self.path / "daemons" / "entries"))


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    """With a region that was removed."""
    made = Directory(tmp_path / "directory")
    assert made.create(OLD)
    assert made.remove(OLD)
    return made


def test_entry_of_a_removed_region_is_gathered_up(directory: Directory) -> None:
    """R8: after an hour; the region still counts as removed, and its name can be used again, more than once."""
    written_s = (directory.path / "daemons" / "entries" / NAME / "2").stat().st_mtime
    assert directory.gather(age_s=3600.0, now_s=written_s + 3500.0) == []
    assert directory.folders() == [NAME]
    for life in range(3):
        assert directory.gather() == [NAME]
        assert directory.folders() == []
        assert os.listdir(directory.path / "daemons" / "gathering") == []
        assert directory.files.read(NAME) is Absent.REMOVED
        assert directory.files.entries().removed == {NAME}
        assert directory.gather() == []
        entry = replace(NEW, region_id=f"life {life}")
        assert directory.create(entry)
        assert directory.files.read(NAME) == entry
        listing = directory.files.entries()
        assert (listing.entries, listing.removed) == ({NAME: entry}, frozenset())
        assert os.listdir(directory.path / "daemons" / "gathered") == []
        assert directory.gather() == []
        assert directory.remove(entry)


def test_list_of_a_thousand_gathered_regions_opens_no_file_of_theirs(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R10: an audit each second costs nothing for them."""
    names = [f"t.{number:03d}" for number in range(200)]
    for name in names:
        entry = replace(OLD, name=name)
        assert directory.create(entry)
        assert directory.remove(entry)
    assert len(directory.gather()) == 201
    opened: list[Any] = []
    open_ = os.open
    monkeypatch.setattr(os, "open", lambda *a, **k: opened.append(a[0]) or open_(*a, **k))
    assert len(directory.files.entries().removed) == 201
    assert len(opened) <= 5


def test_directory_of_an_earlier_version_has_nothing_gathered(directory: Directory) -> None:
    """R8: its folders come with the first daemon that starts on it."""
    for name in ("gathered", "gathering"):
        (directory.path / "daemons" / name).rmdir()
    assert directory.files.entries().removed == {NAME}
    assert directory.create()
    assert directory.files.read(NAME) == NEW
    with pytest.raises(DirectoryUnavailableError):
        directory.gather()
    directory.global_.prepare()
    assert directory.gather() == []
    assert directory.files.read(NAME) == NEW


# ---- at every step


class Stepped:
    """The module `os`, for the modules of the directory. Before its step number `at`, `then` runs, once."""

    STEPS = ("open", "link", "rename", "unlink", "listdir", "stat", "scandir", "fsync")

    def __init__(self, at: int, then: Callable[[], object]) -> None:
        self._left, self._then = at, then
        self.reached = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        if name not in self.STEPS:
            return found

        def step(*arguments: Any, **named: Any) -> Any:
            if not self.reached:
                self._left -= 1
                if self._left < 0:
                    self.reached = True
                    self._then()
            return found(*arguments, **named)

        return step


@contextmanager
def stepped(at: int, then: Callable[[], object]) -> Iterator[Stepped]:
    proxy = Stepped(at, then)
    modules: tuple[ModuleType, ...] = (disk, global_directory, global_directory, entries)
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "os", proxy)
        yield proxy


def at_every_step(path: Path, first: Callable[[Directory], Any], then: Callable[[Directory], Any]) -> Iterator[Moment]:
    """`first` on a fresh directory with a removed region, with `then` in the middle of it."""
    number = 0
    while True:
        directory = Directory(path / "directory")
        assert directory.create(OLD)
        assert directory.remove(OLD)
        moment = Moment(directory)
        with stepped(number, lambda moment=moment: moment.run(moment.then, then)) as proxy:
            moment.run(moment.first, first)
        if proxy.reached:
            yield moment
        shutil.rmtree(path / "directory")
        if not proxy.reached:
            assert number > 2
            return
        number += 1


class Moment:
    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.first: list[Any] = []  # what it returned, or its DirectoryUnavailableError
        self.then: list[Any] = []

    def run(self, into: list[Any], act: Callable[[Directory], Any]) -> None:
        try:
            into.append(act(self.directory))
        except DirectoryUnavailableError as error:
            into.append(error)


def test_region_created_while_a_daemon_gathers_stays(tmp_path: Path) -> None:
    """R8: the creation succeeds and stays, or it fails and can be repeated."""
    created = 0
    for moment in at_every_step(tmp_path, lambda d: d.gather(), lambda d: d.create()):
        directory, [outcome] = moment.directory, moment.then
        created += outcome is True
        if outcome is not True:
            assert outcome is False or "gathers up" in str(outcome)
            assert directory.create()
        assert directory.files.read(NAME) == NEW
        assert directory.files.entries().entries == {NAME: NEW}
        assert directory.gather(B) == []
        assert directory.files.read(NAME) == NEW
    assert created > 5


def test_creation_that_sleeps_while_daemons_gather_stays(tmp_path: Path) -> None:
    """R8: the other way round. An answer of True is final."""
    for moment in at_every_step(tmp_path, lambda d: d.create(), lambda d: d.gather()):
        directory, [outcome] = moment.directory, moment.first
        if outcome is not True:
            assert directory.create()
        assert directory.files.read(NAME) == NEW
        assert directory.gather(B) == []
        assert directory.files.read(NAME) == NEW


def gathered_and_created(directory: Directory) -> bool:
    directory.gather(B)
    if not directory.create():
        return False
    for epoch in range(2, 6):
        assert directory.files.swap(NAME, replace(NEW, epoch=epoch - 1), replace(NEW, epoch=epoch))
    return True


def test_writer_that_sleeps_cannot_bring_an_old_entry_back(tmp_path: Path) -> None:
    """R8, R10: it has read the removal, and writes after the name was gathered up and used again for some time."""
    late = replace(OLD, region_id="late")
    for moment in at_every_step(tmp_path, lambda d: d.create(late), gathered_and_created):
        assert (moment.then == [True]) != (moment.first == [True])
        newest = late if moment.first == [True] else replace(NEW, epoch=5)
        assert moment.directory.files.read(NAME) == newest


def test_reader_that_sleeps_sees_a_removed_region_or_the_new_one(tmp_path: Path) -> None:
    """R8, R10: never that there was none."""
    for moment in at_every_step(tmp_path, lambda d: d.files.read(NAME), gathered_and_created):
        [found] = moment.first
        assert found is Absent.REMOVED or found.region_id == "new"
    for moment in at_every_step(tmp_path, lambda d: d.files.entries(), gathered_and_created):
        [listing] = moment.first
        assert NAME in listing.removed or listing.entries[NAME].region_id == "new"
        assert not listing.unreadable


def test_housekeeping_that_sleeps_removes_nothing_of_the_new_region(tmp_path: Path) -> None:
    """R10: it has listed the versions of the old one."""
    for moment in at_every_step(tmp_path, lambda d: d.files.remove_stale_files(FAR_AHEAD_S), gathered_and_created):
        assert moment.directory.files.read(NAME) == replace(NEW, epoch=5)


def gathered_by_a_daemon_that_died(directory: Directory) -> bool:
    try:
        return gathered_and_created(directory)
    finally:
        directory.alive.discard(B)


@pytest.mark.parametrize("clears", [True, False])
def test_daemon_that_sleeps_while_it_gathers_moves_no_new_region(
    tmp_path: Path, clears: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R8: another daemon gathers the entry up, maybe without clearing it, a region is created, and the other daemon dies."""
    if not clears:
        monkeypatch.setattr(disk, "shutil", SimpleNamespace(rmtree=lambda path, ignore_errors: None))
    for moment in at_every_step(tmp_path, lambda d: d.gather(A), gathered_by_a_daemon_that_died):
        created = moment.then == [True]  # otherwise A's mark was first
        assert moment.directory.files.read(NAME) == (replace(NEW, epoch=5) if created else Absent.REMOVED)


def test_daemon_that_dies_while_it_gathers_blocks_no_name(tmp_path: Path) -> None:
    """R8: killed before each of its steps. The region can be created again, and what is left is gathered up by another."""

    class Killed(BaseException):
        pass

    def die(directory: Directory) -> None:
        directory.alive.discard(A)
        raise Killed

    for number in range(100):
        directory = Directory(tmp_path / str(number))
        assert directory.create(OLD)
        assert directory.remove(OLD)
        with suppress(Killed), stepped(number, lambda d=directory: die(d)) as proxy:
            directory.gather(A)
        if not proxy.reached:
            assert number > 10
            return
        if number % 2:
            assert directory.files.read(NAME) is Absent.REMOVED
            assert directory.gather(B) in ([NAME], [])
            assert directory.folders() == []
            assert os.listdir(directory.path / "daemons" / "gathering") == []
        assert directory.create()
        assert directory.gather(B) == []
        assert directory.files.read(NAME) == NEW


def test_daemon_that_could_not_move_an_entry_tries_again(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    """R8: meanwhile a creator gets an error that says so, and nothing is lost."""
    mover = EntryGathering(directory.global_, directory.files, A)
    gathering = directory.path / "daemons" / "gathering"
    gathering.rename(gathering.with_name("elsewhere"))
    with pytest.raises(DirectoryUnavailableError):
        mover.gather(FAR_AHEAD_S)
    with pytest.raises(DirectoryUnavailableError, match=r"region s\.000: daemon 1 gathers up its old entry"):
        directory.create()
    assert directory.files.read(NAME) is Absent.REMOVED
    gathering.with_name("elsewhere").rename(gathering)
    assert mover.gather(FAR_AHEAD_S) == [NAME]
    assert directory.create()
