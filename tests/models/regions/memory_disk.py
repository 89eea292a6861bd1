"""A disk in memory: the calls of a real one, at once, and any of them may fail."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from stat import S_IFDIR, S_IFREG

from spark_jms.store.disk import Disk

ROOT = "/the/directory"  # only on these disks


@dataclass(eq=False)
class MemoryFile:
    data: bytes = b""
    written_s: int = 0
    damages: list[Callable[[bytes], bytes]] = field(default_factory=list)  # what a reader sees instead


@dataclass(eq=False)
class MemoryFolder:
    nodes: dict[str, MemoryFile | MemoryFolder] = field(default_factory=dict)


class MemoryDisk(Disk):
    """Of one process. `root`: the folder to which ROOT leads now. `before`: called with the name of each call, before it; an
    OSError that it raises is the call's."""

    def __init__(self, root: Callable[[], MemoryFolder], now_s: Callable[[], int]) -> None:
        self._root = root
        self._now_s = now_s
        self._opened: dict[int, MemoryFile | MemoryFolder] = {}
        self._numbers = itertools.count(1)

    def before(self, call: str) -> None:
        pass

    # ---- what a path leads to

    def _parent(self, path: str, folder: int | None) -> tuple[MemoryFolder, str]:
        """The folder that has the last name of the path, and that name."""
        *names, last = self._names_in(path, folder)
        at = self._walk(names, folder, path)
        if not isinstance(at, MemoryFolder):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return at, last

    def _node(self, path: str, folder: int | None) -> MemoryFile | MemoryFolder:
        return self._walk(self._names_in(path, folder), folder, path)

    def _names_in(self, path: str, folder: int | None) -> list[str]:
        assert folder is not None or path.startswith(ROOT), path
        return [name for name in (path if folder is not None else path[len(ROOT) :]).split("/") if name]

    def _walk(self, names: list[str], folder: int | None, path: str) -> MemoryFile | MemoryFolder:
        at = self._root() if folder is None else self._opened[folder]
        for name in names:
            found = at.nodes.get(name) if isinstance(at, MemoryFolder) else None
            if found is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            at = found
        return at

    def _folder(self, fd: int) -> MemoryFolder:
        folder = self._opened[fd]
        assert isinstance(folder, MemoryFolder)
        return folder

    def _descriptor(self, node: MemoryFile | MemoryFolder) -> int:
        number = next(self._numbers)
        self._opened[number] = node
        return number

    # ---- what is in a file

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        self.before("pwrite")
        file = self._opened[fd]
        assert isinstance(file, MemoryFile)
        file.data = file.data[:offset] + bytes(data) + file.data[offset + len(data) :]
        return len(data)

    def sync(self, fd: int) -> None:
        self.before("sync")

    def read(self, path: str, *, folder: int | None = None) -> bytes:
        self.before("read")
        file = self._node(path, folder)
        assert isinstance(file, MemoryFile)
        data = file.data
        for damage in file.damages:
            data = damage(data)
        return data

    # ---- what is in a folder

    def open(self, path: str, flags: int, mode: int = 0o666, *, folder: int | None = None) -> int:
        self.before("open")
        parent, name = self._parent(path, folder)
        if name not in parent.nodes and flags & os.O_CREAT:
            parent.nodes[name] = MemoryFile(written_s=self._now_s())
        elif flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        node = self._node(path, folder)
        if flags & os.O_TRUNC and isinstance(node, MemoryFile):
            node.data = b""
        return self._descriptor(node)

    def link(self, source: str, target: str, *, folder: int | None = None) -> None:
        self.before("link")
        file, (parent, name) = self._node(source, folder), self._parent(target, folder)
        assert isinstance(file, MemoryFile)
        if not self.land(parent, name, file):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)

    def land(self, folder: MemoryFolder, name: str, file: MemoryFile) -> bool:
        """The link happens, unless the name is used."""
        if name in folder.nodes:
            return False
        folder.nodes[name] = file
        return True

    def rename(self, source: str, target: str, *, folder: int | None = None) -> None:
        self.before("rename")
        node, (old, name), (new, to) = (
            self._node(source, folder),
            self._parent(source, folder),
            self._parent(target, folder),
        )
        if new.nodes.get(to) is not node:  # otherwise nothing happens, as POSIX has it
            del old.nodes[name]
            new.nodes[to] = node

    def unlink(self, path: str, *, folder: int | None = None) -> None:
        self.before("unlink")
        self._node(path, folder)
        parent, name = self._parent(path, folder)
        del parent.nodes[name]

    def make_folder(self, path: str, mode: int = 0o777, *, folder: int | None = None) -> None:
        self.before("make_folder")
        parent, name = self._parent(path, folder)
        if name in parent.nodes:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        parent.nodes[name] = MemoryFolder()

    def sync_folder(self, folder: int) -> None:
        self.before("sync_folder")

    def remove_tree(self, path: str) -> None:
        with contextlib.suppress(OSError):
            self.unlink(path)

    # ---- what is there

    def open_folder(self, path: str, *, folder: int | None = None) -> int:
        self.before("open_folder")
        return self._descriptor(self._node(path, folder))

    def close(self, fd: int) -> None:
        del self._opened[fd]

    def names(self, folder: int) -> list[str]:
        self.before("names")
        return list(self._folder(folder).nodes)

    def folders(self, folder: int) -> list[str]:
        self.before("folders")
        return [name for name, node in self._folder(folder).nodes.items() if isinstance(node, MemoryFolder)]

    def stat(self, path: str, *, folder: int | None = None) -> os.stat_result:
        self.before("stat")
        node = self._node(path, folder)
        at_s = node.written_s if isinstance(node, MemoryFile) else 0
        kind = S_IFREG if isinstance(node, MemoryFile) else S_IFDIR
        return os.stat_result((kind, id(node), 0, 1, 0, 0, 0, at_s, at_s, at_s))

    def has(self, path: str, *, folder: int | None = None) -> bool:
        self.before("has")
        try:
            self._node(path, folder)
        except FileNotFoundError:
            return False
        return True

    def is_at(self, folder: int, path: str) -> bool:
        self.before("is_at")
        try:
            return self._node(path, None) is self._opened[folder]
        except FileNotFoundError:
            return False
