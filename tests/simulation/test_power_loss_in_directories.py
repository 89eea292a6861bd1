"""The Global Directory on a machine that loses power at every step (R8, R10): harness/stores/power_loss.py says what may be left.

After each loss a daemon starts on it without a manual step. Each region has the entry that was acknowledged last, or one of
the changes begun since; no half of an entry is taken for one, and the directory keeps its identity.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest
from msgspec.structs import replace

from spark_jms.store.errors import DirectoryUnavailableError
from spark_jms.store.regions.directory.entries import DirectoryFiles, EntryGathering
from spark_jms.store.regions.directory.global_directory import CONFIG, GlobalDirectory, write_whole
from spark_jms.store.regions.protocol.region_entry import Absent, Holder, RegionEntry
from tests.harness.stores.power_loss import Death, Machine, PowerLossDisk

T = TypeVar("T")
NAME, OTHER = "s.000", "s.001"
FAR_AHEAD_S = 4_000_000_000.0
IMAGES = 3  # for each step
OLD_CONFIG, NEW_CONFIG = "127.0.0.1 7100 7100 1M\n", "127.0.0.1 7100 7100 1M\n127.0.0.1 7101 7101 2M\n"


class Files(DirectoryFiles):
    """No daemon runs that the course does not name."""

    def running(self, holder: Holder) -> bool:
        return False


class Daemon:
    def __init__(self, machine: Machine, index: int) -> None:
        self.me = Holder(index, "life")
        self.disk = PowerLossDisk(machine)
        self.directory = GlobalDirectory(str(machine.root), self.disk)
        self.files = Files(self.directory)
        self.gathering = EntryGathering(self.directory, self.files, self.me)


class Course:
    """What daemons do to one directory. `possible`: what each region may be after a loss of power; the first was acknowledged."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.possible: dict[str, list[RegionEntry | Absent]] = {name: [Absent.NOTHING] for name in (NAME, OTHER)}
        self.configs = {OLD_CONFIG}
        self.identity = ""
        self.one, self.other = Daemon(machine, 1), Daemon(machine, 2)

    def dying(self, at: str, act: Callable[[Daemon], object], spared: int = 0) -> None:
        """By a daemon that dies at this call."""
        daemon = Daemon(self.machine, 3)
        daemon.disk.dies_at, daemon.disk.spared = at, spared
        with pytest.raises(Death):
            act(daemon)

    def start(self) -> None:
        self.dying("make_folder", lambda daemon: daemon.directory.prepare())
        self.dying("link", lambda daemon: daemon.directory.prepare())
        self.dying("sync_folder", lambda daemon: daemon.directory.prepare(), spared=1)
        self.one.directory.prepare()
        self.identity = self.one.directory.read_identity()
        self.other.directory.prepare()

    def swap(self, daemon: Daemon, new: Callable[[RegionEntry], RegionEntry | None], name: str = NAME) -> None:
        found = daemon.files.read(name)
        old = found if isinstance(found, RegionEntry) else None
        blank = RegionEntry(name, f"id of daemon {daemon.me.daemon}", 4096, 0, daemon.me, None, None, 7)
        entry = new(old or blank)
        self.possible[name].append(entry or Absent.REMOVED)
        assert daemon.files.swap(name, old, entry)
        self.possible[name] = [entry or Absent.REMOVED]

    def create(self) -> None:
        self.dying("sync_folder", lambda daemon: self.swap(daemon, _next))
        self.dying("pwrite", lambda daemon: self.swap(daemon, _next))
        self.dying("sync", lambda daemon: self.swap(daemon, _next))
        self.swap(self.one, _next)
        self.swap(self.other, _next, OTHER)

    def change(self) -> None:
        for daemon in (self.one, self.other, self.other, self.one):
            self.swap(daemon, _next)

    def change_after_deaths(self) -> None:
        for at in ("pwrite", "sync", "link", "sync_folder", "unlink"):
            self.dying(at, lambda daemon: self.swap(daemon, _next))
            self.swap(self.one, _next)

    def change_after_errors(self) -> None:
        """The disk fails once at this call; whether the change was made is unknown, and both daemons go on."""
        for at in ("open", "pwrite", "sync", "link", "sync_folder", "unlink"):
            self.one.disk.fails_at = [at]
            with contextlib.suppress(DirectoryUnavailableError):
                self.swap(self.one, _next)
            assert self.one.disk.fails_at == []
            self.swap(self.other, _next)

    def clean_up_after_deaths(self) -> None:
        """Two writers died before they could sync the names of the last two versions."""
        for at in ("unlink", "unlink", "sync_folder", "sync_folder"):
            self.dying(at, lambda daemon: self.swap(daemon, _next))
        self.one.files.remove_stale_files(FAR_AHEAD_S)
        self.swap(self.other, _next)

    def remove(self) -> None:
        self.dying("link", lambda daemon: self.swap(daemon, lambda entry: None))
        self.swap(self.one, lambda entry: None)

    def gather(self) -> None:
        for at in ("link", "sync_folder", "rename"):
            self.dying(at, lambda daemon: daemon.gathering.gather(FAR_AHEAD_S))
        self.one.gathering.gather(FAR_AHEAD_S)
        self.other.gathering.gather(FAR_AHEAD_S)

    def configure(self) -> None:
        """An administrator adds a daemon."""
        self.configs.add(NEW_CONFIG)
        write_whole(self.machine.root / CONFIG, NEW_CONFIG.encode(), 0o640, self.one.disk)
        self.configs = {NEW_CONFIG}

    def check(self, image: Machine) -> None:
        daemon = Daemon(image, 4)
        assert daemon.directory.config_file.read_text() in self.configs
        daemon.directory.prepare()
        identity = daemon.directory.read_identity()
        assert self.identity in ("", identity)
        files = Files(daemon.directory, identity)
        listing = files.entries()
        assert listing.unreadable == {}
        for name, possible in self.possible.items():
            found = files.read(name)
            assert found in possible
            assert listing.entries.get(name) == (found if isinstance(found, RegionEntry) else None)
            assert (name in listing.removed) == (found is Absent.REMOVED)
            after = self.swap_in(files, name, found)
            assert files.read(name) == after

    def swap_in(self, files: Files, name: str, found: RegionEntry | Absent) -> RegionEntry:
        """The next change succeeds."""
        if isinstance(found, RegionEntry):
            assert files.swap(name, found, _next(found))
            return _next(found)
        blank = RegionEntry(name, "new", 4096, 1, Holder(4, "life"), None, None, 8)
        assert files.swap(name, None, blank)
        return blank


def _next(entry: RegionEntry) -> RegionEntry:
    return replace(entry, epoch=entry.epoch + 1)


EVENTS = (
    Course.start,
    Course.create,
    Course.change,
    Course.change_after_deaths,
    Course.change_after_errors,
    Course.clean_up_after_deaths,
    Course.remove,
    Course.gather,
    Course.create,
    Course.change,
    Course.configure,
    Course.remove,
    Course.create,
    Course.remove,
    Course.gather,
)


@pytest.mark.parametrize("seed", range(2))
def test_directory_keeps_acknowledged_changes_through_losses_of_power(path_in_memory: Path, seed: int) -> None:
    """R8, R10: power is lost before every call on the disk, and each loss leaves three disks."""
    root, images, random, count = path_in_memory / "directory", path_in_memory / "images", Random(seed), 0
    for folder in (root, images):
        folder.mkdir()
    (root / CONFIG).write_text(OLD_CONFIG)
    machine = Machine(root)
    course = Course(machine)

    def lose() -> None:
        nonlocal count
        for _ in range(IMAGES):
            count += 1
            image = Machine(machine.after_power_loss(random, images / str(count)))
            course.check(image)
            image.close()
            shutil.rmtree(image.root)

    machine.before_step = lose
    for event in EVENTS:
        event(course)
    lose()
    machine.close()
    assert count > 500
