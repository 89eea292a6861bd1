"""The port through which every file of a domain is reached, its local directory, and the clock of stored times.

`LocalStorage` (a directory) and `ObjectStorage` (an object store) implement it. The log needs one thing of both: a `create` that
writes a whole file, and only if there is none. An object store's answer to that can mislead:

    the answer is      and the truth may be
    -------------      --------------------------------------------------------------------------------------------------
    it exists          another writer's file; or ours, from a request whose answer was lost, and which the client repeated; or
                       none (S3's 409, a conflict of two writers of which none has written)
    an error           ours, or none yet

So `settled` looks after each of these answers, and every storage that can mislead creates files through it.

All processes of a domain share one clock, that of the file system or object store with the root: every process writes there,
senders too, which open no store. A process notes its own time, writes a file, notes its time again, and reads the time that the
file got. So the skew of its own clock is known within bounds: the file was written between the two, and its time may be cut off to
whole seconds.

Features: C5, C17 (docs/FEATURES.md)
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import pyarrow as pa

from spark_jms.errors import ClockSkewError, StorageFullError, WriteOutcomeUnknownError

_ATTEMPTS = 4  # to create a file that is missing after each of them
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
TOLERATED_SKEW_MS = 2_000
_CLOCK_FOLDER = "_jmsq/clock"
_DELETE_ATTEMPTS = 100  # of a folder to which others write
_LIST_ATTEMPTS = 10
_BUFFER_BYTES = 16 * 1024  # of a file that is written; a larger one costs a small file more than it saves a large one
_FILE_NAME = re.compile(r"(?!\.)[!-.0-~]{1,255}\Z")  # visible ASCII without "/"

# -- the port ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileInfo:
    path: str
    bytes: int
    modified_ms: int


class Storage(Protocol):
    """Paths are relative, with '/'. A missing file is None or False, never an exception; other failures are OSErrors, and where
    there is no room a StorageFullError."""

    uri: str
    failed_writes_may_arrive: bool  # a request that failed for its sender may still be carried out later

    def get(self, path: str) -> bytes | None: ...
    def create(self, path: str, data: bytes, *, durable: bool = False) -> bool:
        """Write the whole file if there is none. True: it has this `data`. False: another writer has created it. Where both wrote
        the same bytes, either. Readers never see a partial file. A `durable` file survives a power loss once this returns True.

        Raises WriteOutcomeUnknownError when the file may be there, or may appear later. After any other error it is not
        there, and never will be."""
        ...

    def sync(self, paths: Sequence[str]) -> None:
        """Make these files survive a power loss, whichever process wrote them. Object stores do so on every write."""
        ...

    def put(self, path: str, data: bytes) -> None: ...
    def exists(self, path: str) -> bool: ...
    def list(self, prefix: str) -> Iterator[FileInfo]: ...
    def delete(self, path: str) -> None: ...
    def delete_all(self, prefix: str) -> None:
        """Delete the directory `prefix` with everything in it."""
        ...

    def open_input(self, path: str) -> pa.NativeFile: ...
    def open_output(self, path: str) -> Any: ...
    def child(self, prefix: str) -> Storage: ...


def settled(storage: Storage, path: str, data: bytes, write: Callable[[], bool]) -> bool:
    """The truth about a file that `write` creates, as `Storage.create` promises it: unless the answer is True, the file is read.
    Equal bytes are ours. A missing file is written again."""
    failure: OSError | None = None
    for attempt in range(_ATTEMPTS):
        try:
            if write():
                return True
        except OSError as error:
            failure = error
        try:
            found = storage.get(path)
        except OSError as error:
            raise _unknown(storage, path, failure or error) from (failure or error)
        if found is not None:
            return found == data
        is_refused = attempt == 0 and isinstance(failure, StorageFullError)
        if failure is not None and (is_refused or not storage.failed_writes_may_arrive):
            raise failure
    raise _unknown(storage, path, failure) from failure


def _unknown(storage: Storage, path: str, failure: OSError | None) -> WriteOutcomeUnknownError:
    where = f"{storage.uri.rstrip('/')}/{path}"
    said = (
        str(failure) if failure else f"cannot write {where}: the storage answers that it exists, and has no such file"
    )
    return WriteOutcomeUnknownError(f"{said}. The file may be there all the same, or appear later")


@contextmanager
def naming_no_room(where: str) -> Iterator[None]:
    """Raise the operating system's error as StorageFullError if there is no room. `where` names the file."""
    try:
        yield
    except StorageFullError:
        raise
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise StorageFullError(
            f"there is no room to write {where} ({error.strerror or error}): nothing was sent or changed. Free some space, then "
            "try again"
        ) from error


@contextmanager
def naming_destination(name: str) -> Iterator[None]:
    """StorageFullError says of which destination the file is."""
    try:
        yield
    except StorageFullError as error:
        raise StorageFullError(f"destination {name}: {error}") from error.__cause__


# -- the clock ---------------------------------------------------------------------------------------------------------


def now_ms() -> int:
    """The one clock of stored times: this process's wall clock, in milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class ClockReading:
    """Pure. This process's clock is `least_ms` to `most_ms` ahead of the root's; behind, where they are negative."""

    least_ms: int
    most_ms: int

    @staticmethod
    def of(before_ms: int, file_ms: int, after_ms: int) -> ClockReading:
        """`file_ms` is the time of a file that was written between `before_ms` and `after_ms` of the own clock."""
        cut_off_ms = 1_000 if file_ms % 1_000 == 0 else 1
        return ClockReading(min(before_ms, after_ms) - file_ms - cut_off_ms, max(before_ms, after_ms) - file_ms)

    @property
    def ahead_ms(self) -> int:
        """The middle."""
        return (self.least_ms + self.most_ms) // 2

    @property
    def is_tolerated(self) -> bool:
        """The skew may be within the tolerance."""
        return self.least_ms <= TOLERATED_SKEW_MS and self.most_ms >= -TOLERATED_SKEW_MS

    def __str__(self) -> str:
        sure = (self.most_ms - self.least_ms + 1) // 2
        return f"{abs(self.ahead_ms):,} ms {'behind' if self.ahead_ms < 0 else 'ahead'} (± {sure:,} ms)"


def read_clock(storage: Storage) -> ClockReading:
    """Writes a small file and deletes it. Raises OSError or JmsqError when the storage fails."""
    folder = f"{_CLOCK_FOLDER}/{secrets.token_hex(8)}"
    before_ms = now_ms()
    storage.put(f"{folder}/now", b"")
    after_ms = now_ms()
    try:
        (written,) = storage.list(folder)
    finally:
        storage.delete_all(folder)
    return ClockReading.of(before_ms, written.modified_ms, after_ms)


class ClockWatch:
    """Watches the skew of this process's clock against the root's. Thread-safe. Measures at most every ten minutes."""

    EVERY_S = 600.0

    def __init__(self, storage: Storage) -> None:
        self._storage, self._lock = storage, threading.Lock()
        self._reading: ClockReading | None = None
        self._read_s = 0.0

    def check(self) -> None:
        """Raises ClockSkewError beyond the tolerated skew, and what `read_clock` raises."""
        with self._lock:
            now_s = time.monotonic()
            if self._reading is None or now_s - self._read_s >= self.EVERY_S:
                self._reading, self._read_s = read_clock(self._storage), now_s
            reading = self._reading
        if not reading.is_tolerated:
            raise ClockSkewError(
                f"the clock of host {socket.gethostname()} is {reading} of the root's, and at most "
                f"{TOLERATED_SKEW_MS:,} ms are tolerated: messages with a delay or a time to live come or expire that much "
                "too early or too late. Synchronise the clocks (NTP)."
            )


# -- a local directory -------------------------------------------------------------------------------------------------


class LocalStorage:
    """A local directory, by plain operating system calls: obstore also reads local paths, but its runtime does not survive a fork,
    and Spark forks its workers."""

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
                raise _outcome_unknown(target, error) from error
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
            raise _outcome_unknown(target, error) from second
        if not is_named and not isinstance(error, FileExistsError):
            raise
        return is_named
    return True


def _outcome_unknown(target: Path, error: OSError) -> WriteOutcomeUnknownError:
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


# -- small files by name -----------------------------------------------------------------------------------------------


class NamedFiles:
    """A folder of the domain with one small file for each name: its destinations, servers, connection factories and the like.
    Thread-safe: every call reads or writes the storage. What `create`, `put` and `delete` did is durable when they return."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage, self._folder = storage, folder

    def names(self) -> list[str]:
        names = (info.path.rsplit("/", 1)[1] for info in self._storage.list(self._folder))
        return sorted(name for name in names if not name.startswith("."))  # a dot marks a temporary file

    def get(self, name: str) -> bytes | None:
        """None when there is none. `name` may be anything that a user has given: `../x` and 5 name no file of the folder."""
        return self._storage.get(self._path(name)) if isinstance(name, str) and _FILE_NAME.match(name) else None

    def create(self, name: str, data: bytes) -> bool:
        """False when there is one, which stays as it is."""
        created = self._storage.create(self._path(name), data)
        self._storage.sync([self._path(name)])
        return created

    def put(self, name: str, data: bytes) -> None:
        self._storage.put(self._path(name), data)
        with suppress(FileNotFoundError):  # another process has deleted it, and made that durable
            self._storage.sync([self._path(name)])

    def delete(self, name: str) -> None:
        if self._storage.exists(self._path(name)):  # without any file there is no folder to sync
            self._storage.delete(self._path(name))
            self._storage.sync([self._folder])

    def shown(self, name: str) -> str:
        """Where the file is, for people."""
        return f"{self._storage.uri}/{self._path(name)}"

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"
