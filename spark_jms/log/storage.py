"""Every file of a domain is reached through here: a local directory, or an object store by obstore.

Local paths use the operating system directly, because obstore's runtime does not survive a fork and Spark forks its
workers. Both give the one thing the log needs: `create`, which writes a file as a whole and only if it is not there.
"""

from __future__ import annotations

import io
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol
from urllib.parse import unquote, urlparse

import pyarrow as pa

from spark_jms.errors import DomainError


@dataclass(frozen=True)
class FileInfo:
    path: str
    bytes: int
    modified_ms: int


class Storage(Protocol):
    """Paths are relative, with '/'. A missing file is None / False, never an exception; anything else raises OSError."""

    uri: str

    def get(self, path: str) -> bytes | None: ...
    def create(self, path: str, data: bytes, *, durable: bool = False) -> bool:
        """Write the whole file if there is none; False if there is one. Never a partial file. `durable`: it survives the
        loss of power when this returns."""
        ...

    def sync(self, paths: Sequence[str]) -> None:
        """These files survive the loss of power when this returns, whoever wrote them. An object store has it so."""
        ...

    def put(self, path: str, data: bytes) -> None: ...
    def exists(self, path: str) -> bool: ...
    def list(self, prefix: str) -> Iterator[FileInfo]: ...
    def delete(self, path: str) -> None: ...
    def open_input(self, path: str) -> pa.NativeFile: ...
    def open_output(self, path: str) -> Any: ...
    def child(self, prefix: str) -> Storage: ...


class LocalStorage:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.uri = str(root)
        self._made: set[Path] = set()

    def get(self, path: str) -> bytes | None:
        try:
            return (self.root / path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def create(self, path: str, data: bytes, *, durable: bool = False) -> bool:
        target = self._parent(path)
        staged = _beside(target)
        staged.write_bytes(data)
        try:
            if durable:
                _sync(staged)
            os.link(staged, target)
        except FileExistsError:
            return False
        finally:
            os.unlink(staged)
        if durable:
            _sync(target.parent)
        return True

    def sync(self, paths: Sequence[str]) -> None:
        """Also their names: the folders up to the root of this storage."""
        folders = {self.root}
        for path in paths:
            _sync(self.root / path)
            folders.update(self.root.joinpath(*PurePosixPath(path).parts[:i]) for i in range(path.count("/") + 1))
        for folder in sorted(folders, reverse=True) if paths else ():
            _sync(folder)

    def put(self, path: str, data: bytes) -> None:
        target = self._parent(path)
        staged = _beside(target)
        staged.write_bytes(data)
        os.replace(staged, target)

    def exists(self, path: str) -> bool:
        return os.path.exists(f"{self.uri}/{path}")

    def list(self, prefix: str) -> Iterator[FileInfo]:
        base = self.root / prefix
        if not base.is_dir():
            return
        for folder, _, names in os.walk(base):
            for name in names:
                full = Path(folder, name)
                try:
                    status = full.stat()
                except FileNotFoundError:  # deleted meanwhile
                    continue
                yield FileInfo(full.relative_to(self.root).as_posix(), status.st_size, status.st_mtime_ns // 1_000_000)

    def delete(self, path: str) -> None:
        (self.root / path).unlink(missing_ok=True)

    def open_input(self, path: str) -> pa.NativeFile:
        return pa.memory_map(str(self.root / path))

    def open_output(self, path: str) -> Any:
        return pa.OSFile(str(self._parent(path)), "wb")

    def child(self, prefix: str) -> LocalStorage:
        return LocalStorage(self.root / prefix)

    def remove_all(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def _parent(self, path: str) -> Path:
        target = self.root / path
        if target.parent not in self._made:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._made.add(target.parent)
        return target


def _sync(path: Path) -> None:
    """What is in this file, or the names in this folder, on the disk; also what other processes have written."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beside(target: Path) -> Path:
    """A name nobody else uses, whatever process, thread, container or host: two writers of one temporary file would
    both believe that the other's content is theirs."""
    return target.with_name(f".{target.name}.{uuid.uuid4().hex}")


class ObjectStorage:
    """s3://, gs://, az://, https:// or memory://NAME (tests); credentials come from the environment, as obstore reads them."""

    def __init__(self, uri: str, prefix: str = "", store: Any = None) -> None:
        import obstore.store

        self.uri = uri
        self._prefix = prefix
        if store is not None:
            self._store = store
        elif uri.startswith("memory://"):
            self._store = _MEMORY.setdefault(uri, obstore.store.MemoryStore())
        else:
            self._store = obstore.store.from_url(uri)

    def _path(self, path: str) -> str:
        return f"{self._prefix}{path}"

    def get(self, path: str) -> bytes | None:
        import obstore

        try:
            with _os_errors(path):
                return bytes(obstore.get(self._store, self._path(path)).bytes())
        except FileNotFoundError:
            return None

    def sync(self, paths: Sequence[str]) -> None:
        """Nothing: what an object store has taken is durable."""

    def create(self, path: str, data: bytes, *, durable: bool = False) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            with _os_errors(path, AlreadyExistsError, PreconditionError):
                obstore.put(self._store, self._path(path), data, mode="create")
        except (AlreadyExistsError, PreconditionError):
            return False
        return True

    def put(self, path: str, data: bytes) -> None:
        import obstore

        with _os_errors(path):
            obstore.put(self._store, self._path(path), data)

    def exists(self, path: str) -> bool:
        import obstore

        try:
            with _os_errors(path):
                obstore.head(self._store, self._path(path))
        except FileNotFoundError:
            return False
        return True

    def list(self, prefix: str) -> Iterator[FileInfo]:
        import obstore

        with _os_errors(prefix):
            pages = list(obstore.list(self._store, self._path(prefix)))
        for page in pages:
            for item in page:
                modified_ms = int(item["last_modified"].timestamp() * 1000)
                yield FileInfo(item["path"].removeprefix(self._prefix), item["size"], modified_ms)

    def delete(self, path: str) -> None:
        import obstore

        try:
            with _os_errors(path):
                obstore.delete(self._store, self._path(path))
        except FileNotFoundError:
            return

    def open_input(self, path: str) -> pa.NativeFile:
        import obstore

        try:
            with _os_errors(path):
                return pa.PythonFile(_Download(obstore.open_reader(self._store, self._path(path)), path), mode="r")
        except FileNotFoundError:
            raise FileNotFoundError(path) from None

    def open_output(self, path: str) -> Any:
        import obstore

        return pa.PythonFile(_Upload(obstore.open_writer(self._store, self._path(path)), path), mode="w")

    def child(self, prefix: str) -> ObjectStorage:
        return ObjectStorage(f"{self.uri.rstrip('/')}/{prefix}", f"{self._prefix}{prefix}/", self._store)


@contextmanager
def _os_errors(path: str, *but: type[Exception]) -> Iterator[None]:
    """obstore's own errors as OSError, as every storage promises; those of `but` as they are."""
    from obstore.exceptions import BaseError

    try:
        yield
    except but:
        raise
    except BaseError as error:
        raise OSError(f"{path}: {error}") from error


class _Download(io.RawIOBase):
    """obstore's reader as a Python file: pyarrow asks a file whether it is closed, which that cannot say."""

    def __init__(self, reader: Any, path: str) -> None:
        self._reader, self._path = reader, path

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        with _os_errors(self._path):
            return bytes(self._reader.readall() if size < 0 else self._reader.read(size))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._reader.seek(offset, whence))

    def tell(self) -> int:
        return int(self._reader.tell())


class _Upload(io.RawIOBase):
    """obstore's writer as a Python file. The object appears when it is closed."""

    def __init__(self, writer: Any, path: str) -> None:
        self._writer, self._path, self._at = writer, path, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data)
        with _os_errors(self._path):
            self._writer.write(bytes(view))
        self._at += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        if not self.closed:
            super().close()
            with _os_errors(self._path):
                self._writer.close()


_MEMORY: dict[str, Any] = {}


def open_storage(uri: str) -> LocalStorage | ObjectStorage:
    """A root as the user gave it: a path, file:///path, or an object store's URL. Raises DomainError when it is neither."""
    text = str(uri)
    if not text.strip():
        raise DomainError("the root is empty: give a directory or an object store's URL")
    parsed = urlparse(text)
    if len(parsed.scheme) <= 1:
        return LocalStorage(Path(os.path.abspath(os.path.expanduser(text))))
    if parsed.scheme == "file":
        return LocalStorage(Path(unquote(parsed.path)))
    try:
        return ObjectStorage(text)
    except Exception as error:
        raise DomainError(f"the root {text!r} cannot be opened: {error}") from error


def now_ms() -> int:
    """The one clock of stored times (C17): this process's wall clock, in milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000
