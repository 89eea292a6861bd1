"""A domain in an object store, by obstore."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from spark_jms.log.storage import FileInfo

_MEMORY: dict[str, Any] = {}  # memory://NAME -> its store, for all who open that name in this process


class ObjectStorage:
    """s3://, gs://, az://, https:// or memory://NAME (tests). obstore takes the credentials from the environment."""

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
        """Does nothing: an object store acknowledges only durable writes."""

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
    """Raise obstore's errors as OSError, as the port promises, except those of `but`."""
    from obstore.exceptions import BaseError

    try:
        yield
    except but:
        raise
    except BaseError as error:
        raise OSError(f"{path}: {error}") from error


class _Download(io.RawIOBase):
    """obstore's reader as a Python file: pyarrow needs `closed`, which the reader lacks."""

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
    """obstore's writer as a Python file. The object becomes visible when the file is closed."""

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
