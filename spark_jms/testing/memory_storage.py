"""The storage in memory: the fake of the port, for tests that make thousands of domains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from spark_jms.log.tables.storage import FileInfo, now_ms


@dataclass
class _Files:
    """What a storage and its children share. `before_change` gets the path of every file that is about to change; what it
    raises, the operation raises."""

    contents: dict[str, tuple[bytes, int]] = field(default_factory=dict)  # path -> bytes, modified_ms
    before_change: Callable[[str], None] = lambda path: None


class MemoryStorage:
    """One process only. Not for threads that race: an operation is several steps."""

    failed_writes_may_arrive = False

    def __init__(self, uri: str = "in-memory", files: _Files | None = None, prefix: str = "") -> None:
        self.uri, self.files, self._prefix = uri, files or _Files(), prefix

    def copy(self) -> MemoryStorage:
        """With the same files now, and its own from here on."""
        return MemoryStorage(self.uri, _Files(dict(self.files.contents)), self._prefix)

    def get(self, path: str) -> bytes | None:
        found = self.files.contents.get(self._prefix + path)
        return None if found is None else found[0]

    def create(self, path: str, data: bytes, *, durable: bool = False) -> bool:
        if self.exists(path):
            return False
        self.put(path, data)
        return True

    def sync(self, paths: Sequence[str]) -> None:
        """Nothing here survives this process."""

    def put(self, path: str, data: bytes) -> None:
        self.files.before_change(self._prefix + path)
        self.files.contents[self._prefix + path] = (bytes(data), now_ms())

    def exists(self, path: str) -> bool:
        return self._prefix + path in self.files.contents

    def list(self, prefix: str) -> Iterator[FileInfo]:
        folder = f"{self._prefix}{prefix}/" if prefix else self._prefix
        for path, (data, modified_ms) in list(self.files.contents.items()):
            if path.startswith(folder):
                yield FileInfo(path.removeprefix(self._prefix), len(data), modified_ms)

    def delete(self, path: str) -> None:
        if self.exists(path):
            self.files.before_change(self._prefix + path)
            self.files.contents.pop(self._prefix + path, None)

    def delete_all(self, prefix: str) -> None:
        for file in list(self.list(prefix)):
            self.delete(file.path)

    def open_input(self, path: str) -> pa.NativeFile:
        data = self.get(path)
        if data is None:
            raise FileNotFoundError(f"{self.uri}/{path}")
        return pa.BufferReader(data)

    def open_output(self, path: str) -> Any:
        folder = (self._prefix + path).rpartition("/")[0]
        if folder and not any(known.startswith(f"{folder}/") for known in self.files.contents):
            raise FileNotFoundError(f"{self.uri}/{path}")
        self.put(path, b"")
        return _Output().to(self, path)

    def child(self, prefix: str) -> MemoryStorage:
        return MemoryStorage(f"{self.uri}/{prefix}", self.files, f"{self._prefix}{prefix}/")


class _Output(pa.BufferOutputStream):
    """A file that is being written; it has its content when it is closed."""

    def to(self, storage: MemoryStorage, path: str) -> _Output:
        self._storage, self._path = storage, path
        return self

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue().to_pybytes()  # closes it
            if self._storage.exists(self._path):
                self._storage.put(self._path, data)
