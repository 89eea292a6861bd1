"""The data files of a destination as its log names them, and what this process remembers of them.

    DataFile      one active file: rows of one member, and their statistics
    MemberFiles   the active files of one member, ordered by sequence
    LayeredMap    a map whose next version shares most of its entries with the one before, for snapshots
    FileUnits     which units of order the files of a table have, as far as this process has asked
    RecentRows    the rows of small files that this process has written lately, for compaction

Rows never change under a path, so what was read or written once stays true.

Each file has statistics of some columns, which our planner, purge and expiration need: bounds of JMSXGroupID where its values are
short, of a promoted property where it is complete, and so on. Delta allows that: a column without bounds may have any values.
Programs on delta-rs do not: in a file that has bounds of one column, a column without bounds is NULL to them, so a filter on it
finds no row. Delta's own property of the table names the columns whose statistics count, and all programs respect it. So it names
those of which every file has bounds: never NULL, and numbers, which have them whatever their value (`shown_statistics`).

Features: C3, C5, C13, T10 (docs/FEATURES.md)
"""

from __future__ import annotations

import bisect
import json
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jms.core.messages.carried import NOTHING_CARRIED, CarriedCounts, is_noted, joined, note_in
from spark_jms.core.messages.columns import ORDINAL, STATISTICS_COLUMNS
from spark_jms.core.messages.message_bytes import bytes_of, parts_in
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.messages.types import readable
from spark_jms.errors import UnreadableTableError
from spark_jms.log.tables.storage import Storage

K = TypeVar("K")
V = TypeVar("V")
ACKNOWLEDGED = "acknowledged_ms"
FILE_NAME = re.compile(r"m(\d+)-[A-Za-z0-9_-]{8,64}\.parquet\Z")
OWN_STATISTICS = (ORDINAL, *STATISTICS_COLUMNS, ACKNOWLEDGED)  # columns of ours; all others are promoted properties
PROPERTY = "delta.dataSkippingStatsColumns"
BOUNDED_COLUMNS = (ORDINAL, "JMSTimestamp", "JMSPriority", "JMSExpiration", "JMSDeliveryTime", ACKNOWLEDGED)
_MAX_TAIL = 64
_MAX_CHANGED = 64
LIMIT_BYTES = 64 * 2**20  # of remembered units of order
_UNITS_OVERHEAD_BYTES = 1024  # of an Arrow array
_UNIT = "JMSXGroupID"
SMALL_BYTES = 64 * 2**10  # a larger file is read: its opening weighs little
RECENT_ROWS_BYTES = 32 * 2**20  # of all remembered rows
_ROWS_OVERHEAD_BYTES = 8 * 2**10  # of the Arrow objects of a batch of one row

# -- one file ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileHint:
    """Where a task finds rows: enough of a DataFile to read it, small enough to travel in a Spark partition."""

    path: str
    first: int
    rows: int
    bytes: int

    @property
    def last(self) -> int:
        return self.first + self.rows - 1


@dataclass(frozen=True)
class DataFile:
    """One active file: rows `first..last` of one member, in order, without gaps."""

    path: str
    member: int
    first: int  # sequence of its first row
    rows: int
    bytes: int
    first_ordinal: int
    modified_ms: int
    stats: str  # JSON as in the log
    message_bytes: int  # as quotas count: core/messages/message_bytes.py

    @property
    def last(self) -> int:
        return self.first + self.rows - 1

    @property
    def hint(self) -> FileHint:
        return FileHint(self.path, self.first, self.rows, self.bytes)

    def bytes_of(self, some: Ranges) -> int:
        """What these messages of it count in quotas."""
        left = some.between(self.first, self.last)
        if left.count in (0, self.rows):
            return self.message_bytes if left else 0
        return bytes_of(parts_in(json.loads(self.stats), self.bytes), self.first, self.rows, left)

    @cached_property
    def statistics(self) -> Mapping[str, Mapping[str, Any]]:
        """{"minValues": {...}, "maxValues": {...}, "nullCount": {...}} of the columns that have them."""
        statistics: Mapping[str, Mapping[str, Any]] = json.loads(self.stats)
        return statistics

    @cached_property
    def promoted(self) -> frozenset[str]:
        """The properties that are complete columns of the file (core/messages/properties.py)."""
        return frozenset(self.statistics.get("nullCount", {})).difference(OWN_STATISTICS)

    @property
    def has_groups(self) -> bool:
        nulls = self.statistics.get("nullCount", {}).get("JMSXGroupID")
        return nulls != self.rows

    @cached_property
    def carried(self) -> CarriedCounts:
        """The delivery counts that its messages have brought along, by their sequences."""
        return note_in(self.stats).shifted(self.first - 1)

    @property
    def partition_values(self) -> dict[str, str]:
        """As in the log."""
        return {"member": str(self.member), "first_sequence": str(self.first - self.first_ordinal)}

    def remove_action(self, now_ms: int) -> dict[str, dict[str, object]]:
        """The Delta action that takes this file out of the log, as housekeeping (no change of data)."""
        return {
            "remove": {
                "path": self.path,
                "deletionTimestamp": now_ms,
                "dataChange": False,
                "extendedFileMetadata": True,
                "partitionValues": self.partition_values,
                "size": self.bytes,
            }
        }


def shown_statistics(columns: Collection[str]) -> dict[str, str]:
    """Pure. The property of a table with these columns."""
    return {PROPERTY: ",".join(name for name in BOUNDED_COLUMNS if name in columns)}


def lacking_property(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The property, if this metaData action has none or another one: an earlier release made the table, or another program has
    changed it."""
    columns = {str(field["name"]) for field in json.loads(str(metadata["schemaString"]))["fields"]}
    shown = shown_statistics(columns)
    return shown if shown.items() - (metadata.get("configuration") or {}).items() else {}


# -- the files of a member ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MemberFiles:
    """The active files of one member, ordered by sequence. Immutable. `base` is shared by a series of snapshots, while sends make a
    new `tail` each; a long tail is joined to a new base. So a send costs the same at 100 and at 10,000 files. Finding a sequence is
    a bisection."""

    base_firsts: Sequence[int] = ()
    base: Sequence[DataFile] = ()
    tail_firsts: Sequence[int] = ()
    tail: Sequence[DataFile] = ()  # behind the base
    carrying: Sequence[DataFile] = ()  # those whose messages have brought delivery counts along

    @property
    def files(self) -> list[DataFile]:
        """A new list on each call."""
        return [*self.base, *self.tail]

    def __len__(self) -> int:
        return len(self.base) + len(self.tail)

    @cached_property
    def has_groups(self) -> bool:
        """Messages may belong to units of order."""
        return any(file.has_groups for file in chain(self.base, self.tail))

    @property
    def newest(self) -> DataFile | None:
        return self.tail[-1] if self.tail else self.base[-1] if self.base else None

    def overlapping(self, first: int, last: int) -> list[DataFile]:
        """The files that hold any of first..last, in order."""
        return overlapping(self.base_firsts, self.base, first, last) + overlapping(
            self.tail_firsts, self.tail, first, last
        )

    def carried(self, floor: int) -> CarriedCounts:
        """The delivery counts that messages have brought along. Those up to `floor` may be left out."""
        return joined(file.carried for file in self.carrying if file.last > floor) if self.carrying else NOTHING_CARRIED

    def missing(self, wanted: Ranges) -> Ranges:
        """Those of these sequences that no file holds."""
        files = self.overlapping(wanted.first, wanted.last) if wanted else []
        return wanted - Ranges.of(*((file.first, file.last) for file in files))


def overlapping(firsts: Sequence[int], files: Sequence[DataFile], first: int, last: int) -> list[DataFile]:
    at = max(bisect.bisect_right(firsts, first) - 1, 0)
    out = []
    while at < len(files) and firsts[at] <= last:
        if files[at].last >= first:
            out.append(files[at])
        at += 1
    return out


class MemberEdit:
    """Makes the next MemberFiles. Files behind all others go to the tail; any other change copies the whole list."""

    def __init__(self, start: MemberFiles) -> None:
        self._start = start
        self._newest = start.newest
        self._added: list[DataFile] = []  # behind all others
        self._whole: list[DataFile] | None = None

    def add(self, file: DataFile) -> None:
        if self._whole is None and (self._newest is None or file.first > self._newest.first):
            self._added.append(file)
            self._newest = file
            return
        whole = self._copied()
        whole.insert(bisect.bisect_left(whole, file.first, key=_first), file)

    def remove(self, file: DataFile) -> None:
        whole = self._copied()
        at = bisect.bisect_left(whole, file.first, key=_first)
        while at < len(whole) and whole[at].path != file.path:
            at += 1
        if at < len(whole):
            del whole[at]

    def done(self) -> MemberFiles:
        start, firsts = self._start, tuple([file.first for file in self._added])
        if self._whole is not None:
            firsts = tuple([file.first for file in self._whole])
            return MemberFiles(firsts, tuple(self._whole), carrying=_carrying(self._whole))
        carrying = (*start.carrying, *_carrying(self._added))
        tail_firsts, tail = (*start.tail_firsts, *firsts), (*start.tail, *self._added)
        if len(tail) <= _MAX_TAIL:
            return MemberFiles(start.base_firsts, start.base, tail_firsts, tail, carrying)
        return MemberFiles((*start.base_firsts, *tail_firsts), (*start.base, *tail), carrying=carrying)

    def _copied(self) -> list[DataFile]:
        if self._whole is None:
            self._whole = [*self._start.base, *self._start.tail, *self._added]
        return self._whole


def _first(file: DataFile) -> int:
    return file.first


def _carrying(files: Sequence[DataFile]) -> tuple[DataFile, ...]:
    return tuple([file for file in files if is_noted(file.stats)])


# -- a map of which each version shares entries with the one before ----------------------------------------------------


class LayeredMap(Mapping[K, V]):
    """A persistent map. Immutable. Values are never None.

    Entries lie in a large dict, which all maps of a series share, and a small one with what has changed since. Only the small one
    is copied for the next map; when it has grown, both are joined into a new large one. So with n entries a change costs on average
    half of `_MAX_CHANGED` copied entries and n / `_MAX_CHANGED` joined ones: about the same for 100 and for 10,000."""

    def __init__(self, entries: Mapping[K, V] | None = None) -> None:
        self._base: dict[K, V] = dict(entries or {})
        self._changed: dict[K, V | None] = {}  # None: removed
        self._size = len(self._base)

    def changed(self, changes: Mapping[K, V | None]) -> LayeredMap[K, V]:
        """With these entries; None removes one."""
        if not changes:
            return self
        out: LayeredMap[K, V] = LayeredMap()
        out._size = self._size
        for key, value in changes.items():
            out._size += (value is not None) - (key in self)
        out._base, out._changed = self._base, {**self._changed, **changes}
        if len(out._changed) > _MAX_CHANGED:
            out._base = _joined(out._base, out._changed)
            out._changed = {}
        return out

    def __getitem__(self, key: K) -> V:
        value = self._changed[key] if key in self._changed else self._base[key]
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        return self._changed[key] is not None if key in self._changed else key in self._base

    def __iter__(self) -> Iterator[K]:
        yield from (key for key in self._base if key not in self._changed)
        yield from (key for key, value in self._changed.items() if value is not None)

    def __len__(self) -> int:
        return self._size


class MapEdit(dict[K, "V | None"]):
    """The changes of a map that are being collected; `get_new` sees them."""

    def __init__(self, start: LayeredMap[K, V]) -> None:
        super().__init__()
        self.start = start

    def get_new(self, key: K) -> V | None:
        return self[key] if key in self else self.start.get(key)

    def done(self) -> LayeredMap[K, V]:
        return self.start.changed(self)


def _joined(base: dict[K, V], changed: Mapping[K, V | None]) -> dict[K, V]:
    out = dict(base)
    for key, value in changed.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = value
    return out


# -- what this process remembers ---------------------------------------------------------------------------------------


class FileUnits:
    """Which units of order the files of one table have. While the member of many new units is down, each of their sends asks for
    the same files, and so does each round of housekeeping. Thread-safe. Beyond the limit the files that were read first are
    dropped."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._known: dict[str, pa.StringArray] = {}
        self.bytes = 0

    def among(self, path: str, wanted: Set[str]) -> set[str]:
        """Those of the wanted units that have messages in the file. It costs time for each unit of the file, however many are
        wanted. Raises UnreadableTableError, or FileNotFoundError when the file was deleted."""
        with self._lock:
            units = self._known.get(path)
        if units is None:
            units = self._read(path)
            self._keep(path, units)
        if len(wanted) > len(units):
            return {unit for unit in units.to_pylist() if unit in wanted}
        return set(units.filter(pc.is_in(units, value_set=pa.array(wanted, pa.string()))).to_pylist())

    def _read(self, path: str) -> pa.StringArray:
        with self._storage.open_input(path) as source:
            try:
                column = pq.ParquetFile(source).read(columns=[_UNIT])[_UNIT]
            except (pa.ArrowException, OSError) as error:
                raise UnreadableTableError(
                    f"data file {path} of {self._storage.uri} cannot be read: {error}"
                ) from error
        return readable(pc.unique(column)).drop_null()

    def _keep(self, path: str, units: pa.StringArray) -> None:
        with self._lock:
            if path not in self._known:
                self._known[path] = units
                self.bytes += units.nbytes + _UNITS_OVERHEAD_BYTES
            while self.bytes > LIMIT_BYTES:
                oldest = self._known.pop(next(iter(self._known)))
                self.bytes -= oldest.nbytes + _UNITS_OVERHEAD_BYTES


class RecentRows:
    """The rows of small files of one table that this process has written lately. Compaction takes them from here: opening and
    reading a file of one message costs it as much as a quarter of its send, in the sender's own process. What is not here is read
    from the file.

    Thread-safe. Keeps nothing until compaction has asked once in this process: most senders leave compaction to others. Beyond the
    limit the oldest rows are dropped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        self._wanted = False
        self.bytes = 0

    def keep(self) -> None:
        """Compaction runs in this process, or will."""
        self._wanted = True

    def add(self, path: str, rows: pa.RecordBatch, file_bytes: int) -> None:
        """The rows as they are stored in the file."""
        if not self._wanted or file_bytes > SMALL_BYTES:
            return
        with self._lock:
            self._kept[path] = _Kept(rows, file_bytes + _ROWS_OVERHEAD_BYTES)
            self.bytes += file_bytes + _ROWS_OVERHEAD_BYTES
            while self.bytes > RECENT_ROWS_BYTES:
                self._drop(next(iter(self._kept)))

    def take(self, path: str) -> pa.RecordBatch | None:
        """The rows of a file, once; None when they are not here."""
        with self._lock:
            self._wanted = True
            return self._drop(path)

    def _drop(self, path: str) -> pa.RecordBatch | None:
        kept = self._kept.pop(path, None)
        if kept is None:
            return None
        self.bytes -= kept.bytes
        return kept.rows


class _Kept(NamedTuple):
    rows: pa.RecordBatch
    bytes: int
