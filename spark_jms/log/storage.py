"""The port through which every file of a domain is reached, and the clock of stored times.

`LocalStorage` (a directory) and `ObjectStorage` (an object store) implement it. The log needs one thing of both: a
`create` that writes a whole file, and only if there is none. An object store's answer to that can mislead:

    the answer is      and the truth may be
    -------------      --------------------------------------------------------------------------------------------------
    it exists          another writer's file; or ours, from a request whose answer was lost, and which the client repeated; or
                       none (S3's 409, a conflict of two writers of which none has written)
    an error           ours, or none yet

So `settled` looks after each of these answers, and every storage that can mislead creates files through it.

Features: C5, C17 (docs/FEATURES.md)
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from spark_jms.errors import StorageFullError, WriteOutcomeUnknownError

_ATTEMPTS = 4  # to create a file that is missing after each of them
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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


def now_ms() -> int:
    """The one clock of stored times: this process's wall clock, in milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000


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
