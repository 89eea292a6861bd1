"""The simulator's directory is the real one on a disk in memory, and that disk does what a real one does (R8, R10)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from spark_jms.store.disk import Disk
from spark_jms.store.errors import DirectoryUnavailableError
from spark_jms.store.regions.protocol.region_entry import opened
from tests.models.regions.memory_disk import ROOT, MemoryDisk, MemoryFolder
from tests.models.regions.stepwise import StepCluster, closed_region

NAMES, FOLDERS = ("1", "2", ".1.tmp"), ("", "a", "a/b", "c")


@dataclass
class Twins:
    """Each call on a real folder and in memory: the answers, and the kinds of their errors."""

    real: Disk
    memory: Disk
    root: str
    calls: list[Any] = field(default_factory=list)

    def do(self, call: Callable[[Disk, str], Any]) -> None:
        answers = []
        for disk, root in ((self.real, self.root), (self.memory, ROOT)):
            try:
                answers.append(call(disk, root))
            except OSError as error:
                answers.append(type(error))
        assert answers[0] == answers[1], self.calls

    def write(self, path: str, data: bytes, flags: int) -> None:
        def call(disk: Disk, root: str) -> None:
            fd = disk.open(f"{root}/{path}", os.O_WRONLY | os.O_CREAT | flags, 0o600)
            try:
                disk.pwrite_all(fd, data, 0)
                disk.sync(fd)
            finally:
                disk.close(fd)

        self.do(call)

    def look(self, folder: str) -> None:
        def call(disk: Disk, root: str) -> Any:
            with disk.opened_folder(f"{root}/{folder}") as opened:
                names = sorted(disk.names(opened))
                files = [name for name in names if name not in disk.folders(opened)]
                return names, [disk.read(name, folder=opened) for name in files], disk.is_at(opened, f"{root}/a")

        self.do(call)


@pytest.mark.parametrize("seed", range(20))
def test_disk_in_memory_answers_as_a_real_one(tmp_path: Path, seed: int) -> None:
    """R8, R10: 200 calls at random; names and contents after each."""
    random, top = Random(seed), MemoryFolder()
    twins = Twins(Disk(), MemoryDisk(lambda: top, lambda: 0), str(tmp_path))
    for _ in range(200):
        folder, other = random.choice(FOLDERS), random.choice(FOLDERS[1:])
        path, target = f"{folder}/{random.choice(NAMES)}", f"{random.choice(FOLDERS)}/{random.choice(NAMES)}"
        kind = random.choice(("folder", "write", "new", "link", "rename", "unlink", "has", "move"))
        twins.calls.append((kind, path, target, other))
        match kind:
            case "folder":
                twins.do(lambda disk, root, other=other: disk.make_folder(f"{root}/{other}"))
            case "write":
                twins.write(path, random.randbytes(4), os.O_TRUNC)
            case "new":
                twins.write(path, random.randbytes(4), os.O_EXCL)
            case "link":
                twins.do(lambda disk, root, a=path, b=target: disk.link(f"{root}/{a}", f"{root}/{b}"))
            case "rename":
                twins.do(lambda disk, root, a=path, b=target: disk.rename(f"{root}/{a}", f"{root}/{b}"))
            case "unlink":
                twins.do(lambda disk, root, a=path: disk.unlink(f"{root}/{a}"))
            case "has":
                twins.do(lambda disk, root, a=path: disk.has(f"{root}/{a}"))
            case "move":
                twins.do(lambda disk, root: disk.remove_tree(f"{root}/moved"))
                twins.do(lambda disk, root: disk.rename(f"{root}/a", f"{root}/moved"))
        for seen in FOLDERS:
            twins.look(seen)


def test_change_that_lands_late_counts_only_as_the_newest_version() -> None:
    """R8, R10: its number may have been used meanwhile, and removed."""
    cluster = StepCluster(2)
    closed_region(cluster)
    entry, directory = cluster.entry(), cluster.directory(0)
    late = cluster.delay_change(0, lambda new: True)
    with pytest.raises(DirectoryUnavailableError):
        directory.swap("s.000", entry, opened(entry, "late"))
    for _ in range(3):
        entry = cluster.entry()
        assert directory.swap("s.000", entry, replace(entry, epoch=entry.epoch + 1))
    before = cluster.entry()
    assert not late.land()
    assert cluster.entry() == directory.read("s.000") == before


def test_failing_disk_leaves_the_old_entry_or_the_new_one() -> None:
    """R8, R10: whichever call fails, alone or with all after it, the next reader finds one of the two, and the simulator's list of
    entries agrees."""
    for and_on in (False, True):
        for call in range(40):
            cluster = StepCluster(2)
            closed_region(cluster)
            cluster.kill(1)
            entry, directory = cluster.entry(), cluster.directory(0)
            new = replace(entry, epoch=entry.epoch + 1)
            directory.disk.fail(call, and_on)
            with contextlib.suppress(DirectoryUnavailableError):
                directory._files.swap("s.000", entry, new)
            assert directory.read("s.000") in (entry, new)
            assert cluster.entries["s.000"] == directory.read("s.000")
