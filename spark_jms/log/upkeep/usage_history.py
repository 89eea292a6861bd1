"""The table of the usage history: one Delta table of a domain, one row for each destination and minute.

ROOT/_jmsq/usage-history/    its partition `member` is the hour, counted from 1970

A file has all windows of one hour. One that cannot be read stays beside the file with those that follow, for an administrator to
restore. A change writes the files of its hours again and takes out the old ones, in one commit, which also
keeps the positions (core/limits/usage_history.py) and ends the hours that are older than 30 days.

Features: T3 (docs/FEATURES.md)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from spark_jms.core.destinations.destination import Destination
from spark_jms.core.limits.quota import MessageUsage
from spark_jms.core.limits.usage_history import KEPT_MS, WINDOW_MS, UsageChange, UsageWindow, merged
from spark_jms.core.messages.columns import ORDINAL
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.transactions.transfer import StagedFile
from spark_jms.errors import InvalidDestinationError, UnreadableTableError
from spark_jms.log.destinations.declarations import create_table
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages.data_files import FileWriter, discard, read_stored
from spark_jms.log.sending.send import number
from spark_jms.log.tables.commit import Decision, commit_prepared
from spark_jms.log.tables.delta_log import Action, DeltaLog
from spark_jms.log.tables.files import DataFile
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.clean_up import CleanUp, checkpoint

USAGE_HISTORY = "_jmsq/usage-history"
USAGE_SCHEMA = pa.schema(
    [
        (ORDINAL, pa.int64()),
        ("destination", pa.string()),
        ("window_ms", pa.int64()),
        ("sent", pa.int64()),
        ("finished", pa.int64()),
        ("expired", pa.int64()),
        ("dropped", pa.int64()),
        ("messages_used", pa.int64()),
        ("bytes_used", pa.int64()),
    ]
)
_HOUR_MS, _GRACE_MS, _CLEAN_UP_EVERY_S = 3_600_000, 600_000, 60.0
_COLUMNS = USAGE_SCHEMA.names[1:]


@dataclass
class _Prepared:
    files: list[StagedFile] = field(default_factory=list)
    replaced: list[DataFile] = field(default_factory=list)
    change: UsageChange = field(default_factory=UsageChange)


class UsageHistoryTable:
    """The table of the usage history. Not thread-safe; several processes may write it."""

    def __init__(self, domain: Domain, clock_ms: Callable[[], int] = now_ms) -> None:
        self._domain, self._clock_ms = domain, clock_ms
        self.damaged: dict[str, str] = {}  # path -> why the newest change could not read the file
        self._cleaned_s = float("-inf")
        self._open()

    def _open(self) -> None:
        self.log = DeltaLog(self._domain.storage.child(USAGE_HISTORY), "usage history")
        self._clean_up, self._table_id = CleanUp(self.log), ""

    def create(self) -> None:
        """Leaves an existing one unchanged. One that was deleted, by an administrator, begins again."""
        try:
            table_id = self.log.verify().table_id
        except InvalidDestinationError:
            declared = Destination("usage-history", "distributed-queue", file_grace_ms=_GRACE_MS)
            create_table(self._domain, USAGE_HISTORY, USAGE_SCHEMA, declared)
            table_id = ""
        if table_id != self._table_id or not table_id:
            self._open()  # the storage remembers the directories of the old one
            self._table_id = self.log.refresh().table_id

    def add(self, missing: Callable[[Snapshot], UsageChange]) -> int:
        """Write what `missing` finds behind the positions of a version of this table; returns how many windows have changed."""
        prepared = _Prepared()

        def prepare(snapshot: Snapshot) -> _Prepared:
            nonlocal prepared
            discard(self.log.storage, prepared.files)
            prepared = self._prepare(snapshot, missing(snapshot), self._clock_ms())
            return prepared

        commit_prepared(self.log, prepare, lambda snapshot, ready: decide_windows(snapshot, ready, self._clock_ms()))
        return len(prepared.change.windows)

    def _prepare(self, snapshot: Snapshot, change: UsageChange, now: int) -> _Prepared:
        oldest = (now - KEPT_MS) // _HOUR_MS
        old = [file for hour, files in snapshot.members.items() if hour < oldest for file in files.files]
        prepared = _Prepared(change=change, replaced=old)
        by_hour: dict[int, list[UsageWindow]] = {}
        for one in change.windows:
            by_hour.setdefault(one.start_ms // _HOUR_MS, []).append(one)
        self.damaged = {}
        for hour, windows in sorted(by_hour.items()):
            known: list[UsageWindow] = []
            for file in snapshot.member_files(hour).files:
                try:
                    known += self._windows([file])
                except (UnreadableTableError, OSError) as error:
                    self.damaged[file.path] = f"{type(error).__name__}: {error}"
                else:
                    prepared.replaced.append(file)
            prepared.files.append(self._stage(hour, merged([*known, *windows])))
        return prepared

    def _stage(self, hour: int, windows: list[UsageWindow]) -> StagedFile:
        writer = FileWriter(self.log.storage, hour, USAGE_SCHEMA)
        columns = {
            ORDINAL: range(len(windows)),
            "destination": [one.destination for one in windows],
            "window_ms": [one.start_ms for one in windows],
            "sent": [one.sent for one in windows],
            "finished": [one.finished for one in windows],
            "expired": [one.expired for one in windows],
            "dropped": [one.dropped for one in windows],
            "messages_used": [None if one.used is None else one.used.messages for one in windows],
            "bytes_used": [None if one.used is None else one.used.bytes for one in windows],
        }
        arrays = [pa.array(columns[column.name], column.type) for column in USAGE_SCHEMA]
        writer.append(pa.RecordBatch.from_arrays(arrays, schema=USAGE_SCHEMA))
        return writer.close()

    def _windows(self, files: Iterable[DataFile]) -> Iterator[UsageWindow]:
        for file in files:
            for batch, _ in read_stored(self.log.storage, file.hint, Ranges.of((file.first, file.last)), _COLUMNS):
                for row in batch.to_pylist():
                    messages = row["messages_used"]
                    used = None if messages is None else MessageUsage(messages, row["bytes_used"])
                    counts = (row["sent"], row["finished"], row["expired"], row["dropped"])
                    yield UsageWindow(row["destination"], row["window_ms"], *counts, used)

    def read(self, destinations: Collection[str], since_ms: int = 0) -> list[UsageWindow]:
        """The windows of these destinations that end after `since_ms`, in order. [] when no service has written any. Raises
        UnreadableTableError when a file is damaged."""
        try:
            snapshot = self.log.refresh()
        except InvalidDestinationError:
            return []
        files = [file for hour, of in snapshot.members.items() if hour >= since_ms // _HOUR_MS - 1 for file in of.files]
        found = merged(self._windows(files))
        return [one for one in found if one.destination in destinations and one.start_ms + WINDOW_MS > since_ms]

    def keep_house(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        """A Delta checkpoint when it is due, and once a minute the deletion of files that are not needed."""
        checkpoint(self.log)
        self._clean_up.note_checkpoint()
        if clock_s() - self._cleaned_s >= _CLEAN_UP_EVERY_S:
            self._cleaned_s = clock_s()
            self._clean_up.run()


def decide_windows(snapshot: Snapshot, prepared: _Prepared, now: int) -> Decision | None:
    """Pure. The files of whole hours in place of the old ones, and the positions, in one commit."""
    if not (prepared.change.positions or prepared.replaced):
        return None
    positions: list[Action] = [
        {"txn": {"appId": name, "version": position, "lastUpdated": now}}
        for name, position in prepared.change.positions.items()
    ]
    removed = [file.remove_action(now) for file in prepared.replaced]
    return Decision("MERGE", [*removed, *number(snapshot, prepared.files, now).actions, *positions])
