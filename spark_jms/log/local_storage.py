"""A domain in a local directory, by plain operating system calls.

obstore also reads local paths, but its runtime does not survive a fork, and Spark forks its workers.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa

from spark_jms.errors import WriteOutcomeUnknownError
from spark_jms.log.storage import FileInfo, naming_no_room

_DELETE_ATTEMPTS = 100
_LIST_ATTEMPTS = 10
_BUFFER_BYTES = 16 * 1024  # of a file that is written; a larger one costs a small file more than it saves a large one


class LocalStorage:
    failed_writes_may_arrive = False

    def __init__(self, root: Path) -> None:
        self.root = root
        self.uri = str(root)
        self._made: dict[Path, bool] = {}  # folders that exist -> whether a file in them can begin without a name

    def get(self, path: str) -> bytes | None:
        try:  # without pathlib, which takes longer than the call: every refresh of a log asks for a file
            with open(f"{self.uri}/{path}", "rb", buffering=0) as file:
                return file.readall()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def create(self, path: str, data: bytes, *, durable: bool = False) -> bool:
        with naming_no_room(f"{self.uri}/{path}"):
            target = self._parent(path)
            if not durable and self._made[target.parent]:
                return _create_unnamed(target, data)
            staged = _beside(target)
            try:
                staged.write_bytes(data)
                if durable:
                    sync_path(staged)
                created = _link(staged, target)
            finally:
                with suppress(OSError):  # a name with a dot counts nowhere
                    staged.unlink()
        if durable and created:
            try:
                sync_path(target.parent)
            except OSError as error:
                raise _unknown(target, error) from error
        return created

    def sync(self, paths: Sequence[str]) -> None:
        """Also syncs the names of the files: all folders up to the root of this storage."""
        folders = {self.root}
        for path in paths:
            with naming_no_room(f"{self.uri}/{path}"):  # a file system may find room only now
                sync_path(self.root / path)
            folders.update(self.root.joinpath(*PurePosixPath(path).parts[:i]) for i in range(path.count("/") + 1))
        for folder in sorted(folders, reverse=True) if paths else ():
            sync_path(folder)

    def put(self, path: str, data: bytes) -> None:
        with naming_no_room(f"{self.uri}/{path}"):
            target = self._parent(path)
            staged = _beside(target)
            try:
                staged.write_bytes(data)
                os.replace(staged, target)
            except BaseException:
                staged.unlink(missing_ok=True)
                raise

    def rename(self, path: str, to: str) -> None:
        """Durable on return, and it takes the place of a file that is there. A missing file is left out."""
        target = self.root / to
        target.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            os.replace(self.root / path, target)
            self.sync([to])
            sync_path((self.root / path).parent)

    def exists(self, path: str) -> bool:
        return os.path.exists(f"{self.uri}/{path}")

    def list(self, prefix: str) -> Iterator[FileInfo]:
        """Of each folder what was there at one moment: of a file that another one replaces meanwhile, one of both."""
        for folder, _, names in os.walk(self.root / prefix):
            yield from self._listed(folder, names)

    def _listed(self, folder: str, names: Sequence[str]) -> Sequence[FileInfo]:
        found: dict[str, FileInfo] = {}
        for _ in range(_LIST_ATTEMPTS):
            new = [name for name in names if name not in found]
            for name in new:
                full = Path(folder, name)
                with suppress(FileNotFoundError):  # deleted since the folder was read
                    status = full.stat()
                    path = full.relative_to(self.root).as_posix()
                    found[name] = FileInfo(path, status.st_size, status.st_mtime_ns // 1_000_000)
            if found.keys() >= set(new):
                break
            names = next(os.walk(folder), ("", [], []))[2]
        return [found[name] for name in names if name in found]

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(f"{self.uri}/{path}")

    def delete_all(self, prefix: str) -> None:
        for _ in range(_DELETE_ATTEMPTS):  # another process deletes it too, or has just written another file
            try:
                shutil.rmtree(self.root / prefix)
            except FileNotFoundError:
                if not (self.root / prefix).exists():
                    return
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
            else:
                return
        shutil.rmtree(self.root / prefix)

    def open_input(self, path: str) -> pa.NativeFile:
        return pa.memory_map(str(self.root / path))

    def open_output(self, path: str) -> Any:
        with naming_no_room(f"{self.uri}/{path}"):
            return pa.BufferedOutputStream(
                pa.OSFile(str(self.root / path), "wb"), _BUFFER_BYTES
            )  # Parquet writes many small pieces

    def child(self, prefix: str) -> LocalStorage:
        return LocalStorage(self.root / prefix)

    def _parent(self, path: str) -> Path:
        target = self.root / path
        if target.parent not in self._made:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._made[target.parent] = allows_unnamed(target.parent)
        return target


def allows_unnamed(folder: Path) -> bool:
    """Whether `_create_unnamed` works in this folder: on Linux, with most file systems, NFS not among them."""
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY)
    except (AttributeError, OSError):
        return False
    try:
        return os.path.exists(_of(descriptor))
    finally:
        os.close(descriptor)


def _link(staged: Path, target: Path) -> bool:
    """Give the staged file its name; False if another file has it. An NFS client repeats a request whose answer was lost, and the
    server answers that the name exists: whether it is ours, the file's number of names tells."""
    try:
        os.link(staged, target)
    except OSError as error:
        try:
            is_named = staged.stat().st_nlink > 1
        except OSError as second:
            raise _unknown(target, error) from second
        if not is_named and not isinstance(error, FileExistsError):
            raise
        return is_named
    return True


def _unknown(target: Path, error: OSError) -> WriteOutcomeUnknownError:
    return WriteOutcomeUnknownError(
        f"cannot write {target} ({error.strerror or error}): it may be there, and a power loss may undo it"
    )


def _create_unnamed(target: Path, data: bytes) -> bool:
    """Write a file that has no name, then give it this one; False if there is one. A commit makes a file so: it takes half the
    time of a temporary name, and a process that dies leaves nothing behind."""
    with open(os.open(target.parent, os.O_TMPFILE | os.O_WRONLY, 0o666), "wb") as file:
        file.write(data)
        file.flush()
        try:  # with `src_dir_fd`, without which Python would not follow the link
            os.link(_of(file.fileno()), target, src_dir_fd=file.fileno())
        except FileExistsError:
            return False
    return True


def _of(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def sync_path(path: Path) -> None:
    """Force a file's content, or a folder's names, to the disk, including what other processes wrote."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beside(target: Path) -> Path:
    """A temporary name that is unique across processes, threads, containers and hosts: two writers that share a temporary
    file would each take the other's content for their own."""
    return target.with_name(f".{target.name}.{uuid.uuid4().hex}")
