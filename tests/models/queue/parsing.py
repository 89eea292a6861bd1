"""Pure parsers that run once for the same bytes (C5). All processes of a model are in one: each would parse what the others have
written, and a new log all of it again. The results are immutable."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jms.claims.servers import stores
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.records.stored_form import from_objects
from spark_jms.log.messages import data_files
from spark_jms.log.tables.snapshot import LogReplay
from spark_jms.testing.memory_storage import MemoryStorage

V = TypeVar("V", bound=Hashable)
R = TypeVar("R")


def parse_once(patch: pytest.MonkeyPatch) -> None:
    """For one run, which shares no results with another one."""
    patch.setattr(stores, "from_objects", _once(from_objects))
    patch.setattr(Destination, "from_configuration", staticmethod(_once(Destination.from_configuration)))
    patch.setattr(LogReplay, "_parse", _commits_once())
    patch.setattr(MemoryStorage, "open_input", _open_input)
    patch.setattr(data_files, "pq", _ReadOnce(_files_once()))


def _once(parse: Callable[[dict[str, V], str], R]) -> Callable[[Mapping[str, V], str], R]:
    @lru_cache(1_000)
    def parsed(given: frozenset[tuple[str, V]], name: str) -> R:
        return parse(dict(given), name)

    return lambda given, name: parsed(frozenset(given.items()), name)


def _commits_once() -> Callable[[LogReplay, int, bytes], Any]:
    known: dict[bytes, Any] = {}
    parse = LogReplay._parse

    def parsed(replay: LogReplay, version: int, data: bytes) -> Any:
        if data not in known:
            known[data] = parse(replay, version, data)
        return known[data]

    return parsed


# -- data files -----------------------------------------------------------------------------------------------------------
class _Source(pa.BufferReader):  # type: ignore[misc]
    """The bytes of a file, which are known by what they are."""

    data: bytes


def _open_input(storage: MemoryStorage, path: str) -> _Source:
    data = storage.get(path)
    if data is None:
        raise FileNotFoundError(f"{storage.uri}/{path}")
    source = _Source(data)
    source.data = data
    return source


@dataclass
class _DecodedFile:
    """What data_files uses of a ParquetFile. Columns are decoded once."""

    file: pq.ParquetFile
    decoded: dict[object, list[pa.RecordBatch]]

    @property
    def metadata(self) -> pq.FileMetaData:
        return self.file.metadata

    def iter_batches(self, **what: Any) -> Iterator[pa.RecordBatch]:
        key = str(what)
        if key not in self.decoded:
            self.decoded[key] = list(self.file.iter_batches(**what))
        return iter(self.decoded[key])


@dataclass
class _ReadOnce:
    """Takes the place of the module pyarrow.parquet."""

    known: Callable[[bytes], _DecodedFile]

    def ParquetFile(self, source: pa.BufferReader, **how: Any) -> _DecodedFile:
        return self.known(
            source.data if isinstance(source, _Source) else source.read()
        )  # a small file was read at once

    def __getattr__(self, name: str) -> Any:
        return getattr(pq, name)


def _files_once() -> Callable[[bytes], _DecodedFile]:
    @lru_cache(1_000)
    def known(data: bytes) -> _DecodedFile:
        return _DecodedFile(pq.ParquetFile(pa.BufferReader(data), pre_buffer=False), {})

    return known
