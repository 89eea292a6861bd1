"""A machine that loses power, for the disk of the file store and of the Global Directory (S9, R10).

Every call is made on a real folder, which shows what the processes see. Beside it the machine keeps what is synced, and in
which order the rest was done. `after_power_loss` makes a folder as a loss of power may leave it:

    a file's content    what was synced, and any of the writes since: each whole, not at all, or some of its 512-byte sectors
    a file's length     as these writes and truncations leave it, or grown, with zeros
    a folder's names    what was synced, and any of the changes since. A rename is one change: the old name or the new one

A call that did not go through the disk is not on it: the files of sessions, and of other locks.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from spark_jms.store.disk import Disk

SECTOR_BYTES = 512


class Death(BaseException):
    """The process is dead. A BaseException, so that no code handles it."""


@dataclass(frozen=True)
class Write:
    offset: int
    data: bytes


@dataclass(frozen=True)
class Truncation:
    length: int


@dataclass(eq=False)
class File:
    synced: bytes = b""
    pending: list[Write | Truncation] = field(default_factory=list)

    def sync(self) -> None:
        data = bytearray(self.synced)
        for change in self.pending:
            _apply(data, change)
        self.synced, self.pending = bytes(data), []

    def after_power_loss(self, random: Random) -> bytes:
        data, share = bytearray(self.synced), random.choice(_SHARE)
        changes = [change for change in self.pending if random.random() < share]
        if random.random() < 0.2:
            random.shuffle(changes)
        for change in changes:
            if isinstance(change, Write) and random.random() < 0.4:
                for part in _sectors(change):
                    if random.random() < 0.5:
                        _apply(data, part)
            else:
                _apply(data, change)
        ends = [c.offset + len(c.data) for c in self.pending if isinstance(c, Write)]
        if ends and random.random() < 0.3:
            data += bytes(max(0, max(ends) - len(data)))
        return bytes(data)


@dataclass(eq=False)
class Folder:
    synced: dict[str, File | Folder] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)

    def sync(self) -> None:
        for change in self.pending:
            change.apply_to(self, self.synced)
            change.names = [name for name in change.names if name[0] is not self]
        self.pending = []


@dataclass(eq=False)
class Change:
    """What these names mean from now on; None: nothing. All of it happens or none, until one of the folders is synced."""

    names: list[tuple[Folder, str, File | Folder | None]]

    @property
    def only_removes(self) -> bool:
        return all(node is None for _, _, node in self.names)

    def apply_to(self, folder: Folder, names: dict[str, File | Folder]) -> None:
        for where, name, node in self.names:
            if where is folder and node is None:
                names.pop(name, None)
            elif where is folder and node is not None:
                names[name] = node


_SHARE = (0.0, 0.5, 1.0)  # of the unsynced changes that happened all the same


def _apply(data: bytearray, change: Write | Truncation) -> None:
    if isinstance(change, Truncation):
        del data[change.length :]
        data += bytes(change.length - len(data))
    else:
        data += bytes(max(0, change.offset - len(data)))
        data[change.offset : change.offset + len(change.data)] = change.data


def _sectors(write: Write) -> list[Write]:
    parts, at = [], 0
    while at < len(write.data):
        until = at + SECTOR_BYTES - (write.offset + at) % SECTOR_BYTES
        parts.append(Write(write.offset + at, write.data[at:until]))
        at = until
    return parts


class Machine:
    """One folder and all that is below it. `before_step` is called before every change that a process makes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.before_step: Callable[[], None] = lambda: None
        self._nodes: dict[tuple[int, int], File | Folder] = {}
        self._held: list[int] = []  # descriptors, so that no inode number is used again
        self._root = self._adopt(root)

    def _adopt(self, path: Path) -> Folder:
        """What is there, as if it were synced."""
        folder = Folder()
        self.keep(folder, str(path))
        for name in os.listdir(path):
            below = path / name
            if below.is_dir():
                folder.synced[name] = self._adopt(below)
            else:
                folder.synced[name] = file = File(below.read_bytes())
                self.keep(file, str(below))
        return folder

    def keep(self, node: File | Folder, path: str, folder: int | None = None) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
        self._held.append(fd)
        self._nodes[_number(os.fstat(fd))] = node

    def node_of(self, fd: int) -> File | Folder | None:
        return self._nodes.get(_number(os.fstat(fd)))

    def node_at(self, path: str, folder: int | None) -> File | Folder | None:
        try:
            return self._nodes.get(_number(os.stat(path, dir_fd=folder, follow_symlinks=False)))
        except FileNotFoundError:
            return None

    def change(self, *names: tuple[str, int | None, File | Folder | None]) -> None:
        found = []
        for path, folder, node in names:
            parent = self.node_at(os.path.dirname(path) or ".", folder)
            if isinstance(parent, Folder):
                found.append((parent, os.path.basename(path), node))
        change = Change(found)
        for parent in {id(parent): parent for parent, _, _ in found}.values():
            parent.pending.append(change)

    def after_power_loss(self, random: Random, target: Path) -> Path:
        """A new folder `target`, as the loss may have left this one."""
        share = random.choice((*_SHARE, None))  # None: all removals, nothing else
        happened: dict[int, bool] = {}
        contents: dict[int, bytes] = {}

        def make(folder: Folder, path: Path) -> None:
            path.mkdir()
            names = dict(folder.synced)
            for change in folder.pending:
                happens = change.only_removes if share is None else random.random() < share
                if happened.setdefault(id(change), happens):
                    change.apply_to(folder, names)
            for name, node in names.items():
                if isinstance(node, Folder):
                    make(node, path / name)
                else:
                    if id(node) not in contents:
                        contents[id(node)] = node.after_power_loss(random)
                    (path / name).write_bytes(contents[id(node)])

        make(self._root, target)
        return target

    def close(self) -> None:
        for fd in self._held:
            os.close(fd)
        self._held = []


def _number(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


class PowerLossDisk(Disk):
    """Of one process on the machine. The process dies at the next call that is named by `dies_at`, or at the one after the next
    `spared` ones; of a write, after its first half. The next call of those that `fails_at` names fails, and changes nothing.
    After a sync that fails, what was not written before is never written, though readers see it: so does Linux."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.dies_at = ""
        self.spared = 0
        self.fails_at: list[str] = []
        self._dead = False

    def _step(self, call: str) -> None:
        if self._dead:
            raise Death
        self.machine.before_step()
        if call == self.dies_at:
            self._dead, self.spared = self.spared == 0, self.spared - 1
        if self._dead and call != "pwrite":
            raise Death
        if call in self.fails_at:
            self.fails_at.remove(call)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        self._step("pwrite")
        if self._dead:
            data = data[: len(data) // 2]
        done = super().pwrite(fd, data, offset)
        if isinstance(file := self.machine.node_of(fd), File):
            file.pending.append(Write(offset, bytes(data[:done])))
        if self._dead:
            raise Death
        return done

    def truncate(self, fd: int, length: int) -> None:
        self._step("truncate")
        super().truncate(fd, length)
        if isinstance(file := self.machine.node_of(fd), File):
            file.pending.append(Truncation(length))

    def sync(self, fd: int) -> None:
        file = self.machine.node_of(fd)
        try:
            self._step("sync")
        except OSError:
            if isinstance(file, File):
                file.pending = []
            raise
        if isinstance(file, File):
            file.sync()

    def sync_folder(self, folder: int) -> None:
        self._step("sync_folder")
        if isinstance(node := self.machine.node_of(folder), Folder):
            node.sync()

    def open(self, path: str, flags: int, mode: int = 0o666, *, folder: int | None = None) -> int:
        if not flags & os.O_CREAT:
            return super().open(path, flags, mode, folder=folder)
        self._step("open")
        before = self.machine.node_at(path, folder)
        fd = super().open(path, flags, mode, folder=folder)
        if before is None:
            file = File()
            self.machine.keep(file, path, folder)
            self.machine.change((path, folder, file))
        elif flags & os.O_TRUNC and isinstance(before, File):
            before.pending.append(Truncation(0))
        return fd

    def link(self, source: str, target: str, *, folder: int | None = None) -> None:
        self._step("link")
        super().link(source, target, folder=folder)
        self.machine.change((target, folder, self.machine.node_at(source, folder)))

    def rename(self, source: str, target: str, *, folder: int | None = None) -> None:
        self._step("rename")
        node = self.machine.node_at(source, folder)
        super().rename(source, target, folder=folder)
        self.machine.change((source, folder, None), (target, folder, node))

    def unlink(self, path: str, *, folder: int | None = None) -> None:
        self._step("unlink")
        super().unlink(path, folder=folder)
        self.machine.change((path, folder, None))

    def make_folder(self, path: str, mode: int = 0o777, *, folder: int | None = None) -> None:
        self._step("make_folder")
        super().make_folder(path, mode, folder=folder)
        made = Folder()
        self.machine.keep(made, path, folder)
        self.machine.change((path, folder, made))
