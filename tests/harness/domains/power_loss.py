"""A directory whose machine may lose its power: what was not forced to the disk is dropped, torn, or there.

`PowerLossStorage` works as LocalStorage and notes which contents and which names were forced. `after_power_loss` makes the directory
that is found afterwards: of each file that was not forced the whole content, none, a beginning, or zeros; of each change of names
that was not forced, any subset.
"""

from __future__ import annotations

import io
import os
import random
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from spark_jms.log.tables.storage import LocalStorage

BLOCK = 512
STORES = "_jmsq/store"  # forces by itself what it acknowledges: not ours to tear


class PowerLost(BaseException):
    """The machine is off: no process does anything more."""


@dataclass
class Disk:
    """What is forced of the files below `root`. `left`: how many steps until the power is lost; None: it is not."""

    root: Path
    left: int | None = None
    steps: int = 0
    names: dict[str, str] = field(default_factory=dict)  # path -> file, as forced
    changes: list[tuple[str, str | None]] = field(default_factory=list)  # not forced: path -> file; None: deleted
    forced: set[str] = field(default_factory=set)  # files with forced content
    contents: dict[str, bytes] = field(default_factory=dict)  # of files without a name now

    def step(self) -> None:
        if self.left is not None:
            if self.left <= 0:
                raise PowerLost
            self.left -= 1
        self.steps += 1

    def named(self, path: str, file: str | None) -> None:
        self.changes.append((path, file))

    def force(self, path: str) -> None:
        self.forced.add(self.file(path))

    def force_folder(self, folder: str) -> None:
        own = [change for change in self.changes if _folder(change[0]) == folder]
        self.changes = [change for change in self.changes if change not in own]
        self._apply(self.names, own)

    def force_all(self) -> None:
        """As the operating system does after a while."""
        self._apply(self.names, self.changes)
        self.changes, self.forced = [], {self.file(path) for path in self.names}

    def adopt(self) -> None:
        """What is there is forced."""
        self.names = {path: self.file(path) for path in self._paths()}
        self.forced = set(self.names.values())

    def _paths(self) -> list[str]:
        found = [path.relative_to(self.root).as_posix() for path in self.root.rglob("*") if path.is_file()]
        return [path for path in found if not path.startswith(STORES)]

    def file(self, path: str) -> str:
        status = os.stat(self.root / path)
        return f"{status.st_ino}-{status.st_mtime_ns}"

    @staticmethod
    def _apply(names: dict[str, str], changes: Sequence[tuple[str, str | None]]) -> None:
        for path, file in changes:
            if file is None:
                names.pop(path, None)
            else:
                names[path] = file

    def keep(self, path: str) -> None:
        """The content of a file that loses its name: the name may be there after the loss."""
        with suppress(FileNotFoundError):
            self.contents[self.file(path)] = (self.root / path).read_bytes()

    def after_power_loss(self, to: Path, draw: random.Random) -> None:
        there = {self.file(path): (self.root / path).read_bytes() for path in self._paths()}
        contents, names = {**self.contents, **there}, dict(self.names)
        self._apply(names, [change for change in self.changes if draw.random() < 0.6])
        for path, file in names.items():
            target = to / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(contents[file] if file in self.forced else _torn(contents[file], draw))
        shutil.copytree(self.root / STORES, to / STORES, dirs_exist_ok=True)


def _torn(data: bytes, draw: random.Random) -> bytes:
    kind = draw.choice(["whole", "whole", "empty", "beginning", "zeros", "zeros behind"])
    cut = draw.randrange(0, len(data) // BLOCK + 1) * BLOCK
    return {
        "whole": data,
        "empty": b"",
        "beginning": data[:cut],
        "zeros": bytes(len(data)),
        "zeros behind": data[:cut] + bytes(len(data) - cut),
    }[kind]


def _folder(path: str) -> str:
    return str(PurePosixPath(path).parent)


class PowerLossStorage(LocalStorage):
    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        super().__init__(root)
        self.disk = disk or Disk(root)

    def _path(self, path: str) -> str:
        return (self.root / path).relative_to(self.disk.root).as_posix()

    def create(self, path: str, data: bytes, *, durable: bool = False) -> bool:
        self.disk.step()
        if not super().create(path, data):
            return False
        self.disk.named(self._path(path), self.disk.file(self._path(path)))
        if durable:
            self.disk.force(self._path(path))
            self.disk.step()  # it has its name, which is not forced yet
            self.disk.force_folder(_folder(self._path(path)))
        return True

    def put(self, path: str, data: bytes) -> None:
        self.disk.step()
        self.disk.keep(self._path(path))
        super().put(path, data)
        self.disk.named(self._path(path), self.disk.file(self._path(path)))

    def rename(self, path: str, to: str) -> None:
        self.disk.step()
        with suppress(FileNotFoundError):
            file = self.disk.file(self._path(path))
            super().rename(path, to)
            self.disk.named(self._path(path), None)
            self.disk.named(self._path(to), file)
            self.disk.force(self._path(to))
            self._force_folders(to)
            self.disk.force_folder(_folder(self._path(path)))

    def sync(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.disk.step()
            if not (self.root / path).exists():
                raise FileNotFoundError(path)
            if (self.root / path).is_file():
                self.disk.force(self._path(path))
        for path in paths:
            self._force_folders(path)

    def _force_folders(self, path: str) -> None:
        for parent in [PurePosixPath(path), *PurePosixPath(path).parents]:
            self.disk.force_folder(str(PurePosixPath(self._path(str(parent)))))

    def delete(self, path: str) -> None:
        self.disk.step()
        if self.exists(path):
            self.disk.keep(self._path(path))
            super().delete(path)
            self.disk.named(self._path(path), None)

    def delete_all(self, prefix: str) -> None:
        for info in list(self.list(prefix)):
            self.delete(info.path)

    def open_output(self, path: str) -> Any:
        self.disk.step()
        return _Output(self, path)

    def written(self, path: str, data: bytes) -> None:
        self.disk.step()
        (self.root / path).write_bytes(data)
        self.disk.named(self._path(path), self.disk.file(self._path(path)))

    def child(self, prefix: str) -> LocalStorage:
        return PowerLossStorage(self.root / prefix, self.disk)


class _Output(io.BytesIO):
    def __init__(self, storage: PowerLossStorage, path: str) -> None:
        super().__init__()
        self._storage, self._file = storage, path

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            self._storage.written(self._file, data)
