"""A domain in an object store, by obstore; and which storage a root's path or URL stands for."""

from __future__ import annotations

import io
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow as pa

from spark_jms.errors import DomainError, StorageFullError
from spark_jms.log.tables.storage import FileInfo, LocalStorage, settled
from spark_jms.settings.table import MissingExtraError, needs

log = logging.getLogger("spark_jms")
_OBJECT_STORES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl", "https", "http", "memory")
_DUMP = "\n\nDebug source:"
_MAX_SAID = 300
_ADVICE = {  # status of the server's answer -> what to do
    "401": "set valid credentials in the environment",
    "403": "let the credentials in the environment read, write, list and delete there",
    "404": "create the bucket or container, or correct the root's URL",
    "429": "the service limits requests: try again later",
    "4": "check the root's URL, its region and the credentials in the environment",
    "507": "it has no room: free some space, then try again",
    "5": "the service fails: try again later",
}
_NO_ROOM = re.compile(r"status code: 507|<Code>\w*(?:StorageFull|QuotaExceeded)</Code>")
_MEMORY: dict[str, Any] = {}  # memory://NAME -> its store, for all who open that name in this process


def open_storage(uri: str) -> LocalStorage | ObjectStorage:
    """The storage of a root: a path, file:///path, or an object store's URL. Raises DomainError for anything else."""
    text = str(uri)
    if not text.strip():
        raise DomainError("the root is empty: give a directory or the URL of an object store")
    parsed = urlparse(text)
    if len(parsed.scheme) <= 1:
        return LocalStorage(Path(os.path.abspath(os.path.expanduser(text))))
    if parsed.scheme == "file":
        return LocalStorage(Path(unquote(parsed.path)))
    if parsed.scheme not in _OBJECT_STORES:  # no package would help
        raise DomainError(
            f"the root {text!r} is of no known kind: give a directory, or the URL of an object store (s3://, gs://, az://, https://)"
        )
    try:
        return ObjectStorage(text)
    except MissingExtraError:
        raise
    except Exception as error:  # noqa: BLE001 - obstore raises several kinds, and all mean this
        short = without_dump(error)
        raise DomainError(f"the root {text!r} cannot be opened: {advice(str(short))}") from short


class ObjectStorage:
    """s3://, gs://, az://, https:// or memory://NAME (tests). obstore takes the credentials from the environment."""

    failed_writes_may_arrive = True

    def __init__(self, uri: str, prefix: str = "", store: Any = None) -> None:
        with needs("objectstore"):
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

    def _where(self, path: str) -> str:
        return f"{self.uri.rstrip('/')}/{path}"

    def get(self, path: str) -> bytes | None:
        import obstore

        try:
            with _os_errors("read", self._where(path), FileNotFoundError):
                return bytes(obstore.get(self._store, self._path(path)).bytes())
        except FileNotFoundError:
            return None

    def sync(self, paths: Sequence[str]) -> None:
        """Does nothing: an object store acknowledges only durable writes."""

    def create(self, path: str, data: bytes, *, durable: bool = False) -> bool:
        return settled(self, path, data, lambda: self.put_new(path, data))

    def put_new(self, path: str, data: bytes) -> bool:
        """One request. False: the store answers that the file exists, which need not be true, and the file may be ours."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            with _os_errors("write", self._where(path), AlreadyExistsError, PreconditionError):
                obstore.put(self._store, self._path(path), data, mode="create")
        except (AlreadyExistsError, PreconditionError):
            return False
        return True

    def put(self, path: str, data: bytes) -> None:
        import obstore

        with _os_errors("write", self._where(path)):
            obstore.put(self._store, self._path(path), data)

    def exists(self, path: str) -> bool:
        import obstore

        try:
            with _os_errors("read", self._where(path), FileNotFoundError):
                obstore.head(self._store, self._path(path))
        except FileNotFoundError:
            return False
        return True

    def list(self, prefix: str) -> Iterator[FileInfo]:
        import obstore

        with _os_errors("list", self._where(prefix)):
            pages = list(obstore.list(self._store, self._path(prefix)))
        for page in pages:
            for item in page:
                modified_ms = int(item["last_modified"].timestamp() * 1000)
                yield FileInfo(item["path"].removeprefix(self._prefix), item["size"], modified_ms)

    def delete(self, path: str) -> None:
        import obstore

        try:
            with _os_errors("delete", self._where(path), FileNotFoundError):
                obstore.delete(self._store, self._path(path))
        except FileNotFoundError:
            return

    def delete_all(self, prefix: str) -> None:
        for file in self.list(prefix):
            self.delete(file.path)

    def open_input(self, path: str) -> pa.NativeFile:
        import obstore

        try:
            with _os_errors("read", self._where(path), FileNotFoundError):
                reader = obstore.open_reader(self._store, self._path(path))
        except FileNotFoundError:
            raise FileNotFoundError(path) from None
        return pa.PythonFile(_Download(reader, self._where(path)), mode="r")

    def open_output(self, path: str) -> Any:
        import obstore

        with _os_errors("write", self._where(path)):
            writer = obstore.open_writer(self._store, self._path(path))
        return pa.PythonFile(_Upload(writer, self._where(path)), mode="w")

    def child(self, prefix: str) -> ObjectStorage:
        return ObjectStorage(f"{self.uri.rstrip('/')}/{prefix}", f"{self._prefix}{prefix}/", self._store)


@contextmanager
def _os_errors(verb: str, where: str, *but: type[Exception]) -> Iterator[None]:
    """Raise obstore's errors as OSError, as the port promises, except those of `but`: one sentence that says what to do.
    Its cause is obstore's error without Rust's dump."""
    from obstore.exceptions import BaseError

    try:
        yield
    except but:
        raise
    except (BaseError, OSError) as error:  # obstore's readers and writers raise OSErrors
        short = without_dump(error)
        kind = StorageFullError if _NO_ROOM.search(str(short)) else OSError
        raise kind(f"cannot {verb} {where}: {advice(str(short))}") from short


def without_dump(error: Exception) -> Exception:
    """obstore's error in one line. Rust's dump of the failed request goes to the debug log."""
    said, _, dump = str(error).partition(_DUMP)
    if not dump:
        return error
    log.debug("%s%s%s", said, _DUMP, dump)
    return type(error)(" ".join(said.split())).with_traceback(error.__traceback__)


def advice(said: str) -> str:
    """What the server answered, and what to do about it."""
    answer = re.search(r"status code: ((\d{3})(?: [A-Z][A-Za-z]+)*)", said)
    code = re.search(r"<Code>(\w+)</Code>", said)
    if answer is None:
        reached = "error sending request" not in said and "HTTP error" not in said
        if reached:
            return f"{said[:_MAX_SAID]}; check the root's URL and the credentials in the environment"
        return "the server cannot be reached; check the root's URL, the service and the network, and try again"
    what = f"the server answered {answer[1]}{f' ({code[1]})' if code else ''}"
    return f"{what}; {_ADVICE.get(answer[2]) or _ADVICE.get(answer[2][0]) or _ADVICE['4']}"


class _Download(io.RawIOBase):
    """obstore's reader as a Python file: pyarrow needs `closed`, which the reader lacks."""

    def __init__(self, reader: Any, path: str) -> None:
        self._reader, self._path = reader, path

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        with _os_errors("read", self._path, FileNotFoundError):
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
        with _os_errors("write", self._path):
            self._writer.write(bytes(view))
        self._at += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        if not self.closed:
            super().close()
            with _os_errors("write", self._path):
                self._writer.close()
