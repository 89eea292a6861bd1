"""The table of the usage history: one Delta table of a domain.

ROOT/_jmsq/usage/            its partition `member` is the hour, counted from 1970
ROOT/_jmsq/usage-history/    of releases before; the first run takes over its rows and positions, and deletes it

A run of the usage query (core/changes/usage_fold.py) appends a file for each hour that a batch concerns, with *absolute* totals by
`run`, `read_hour_ms`, quota, destination, table, member and minute: of rows of one key the last one counts. The same commit moves the
positions of the members and names the batch, so a batch that is repeated, by Spark or by a process that begins again, adds nothing.
Beside the totals stand rows without a member: what a destination held when the batch was recorded.

    txn usage/run, usage/batch, usage/end             the run that owns the history, its newest batch, and where that ended
    txn sent/<table>/<member>, acknowledged/...       the positions: messages, and rows of the acknowledgement table
    txn level/<table>                                 what a queue must hold by the sums, once it was at rest
    txn unread/<what>/<table>/<member>/<first>        the last number of a span that could not be read yet; 0: it is read

Files of an hour are merged when they are many, and end when they are 30 days old. A file that cannot be read stays beside the merged
one, for an administrator to restore.

Features: T3 (docs/FEATURES.md)
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from spark_jms.core.changes.change import ENDINGS, MESSAGES
from spark_jms.core.changes.usage_fold import (
    HOUR_MS,
    MinuteUsage,
    Positions,
    Totals,
    UnreadSpan,
    UsageBatch,
    UsageKey,
    UsageKnown,
    UsagePosition,
    decide_usage,
)
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.limits.quota import MessageUsage
from spark_jms.core.limits.usage_history import KEPT_MS, WINDOW_MS, UsageWindow, merged
from spark_jms.core.messages.columns import ORDINAL
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.transactions.transfer import StagedFile
from spark_jms.errors import (
    InvalidDestinationError,
    StaleCheckpointError,
    UnreadableTableError,
    UsageRunReplacedError,
)
from spark_jms.log.destinations.declarations import create_table
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages.data_files import FileWriter, discard, read_stored
from spark_jms.log.sending.send import TransactionId, number
from spark_jms.log.tables.commit import Decision, commit_prepared
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.files import DataFile
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.clean_up import CleanUp, checkpoint

USAGE_HISTORY, EARLIER_HISTORY = "_jmsq/usage", "_jmsq/usage-history"
_KEY = ("run", "read_hour_ms", "quota", "destination", "table", "of_member", "minute_ms")
_COUNTS = MinuteUsage._fields
USAGE_SCHEMA = pa.schema(
    [
        (ORDINAL, pa.int64()),
        ("run", pa.string()),
        ("read_hour_ms", pa.int64()),
        ("quota", pa.string()),
        ("destination", pa.string()),
        ("table", pa.string()),
        ("of_member", pa.int64()),
        ("minute_ms", pa.int64()),
        *((name, pa.int64()) for name in _COUNTS),
        ("messages_used", pa.int64()),
        ("bytes_used", pa.int64()),
    ]
)
_COLUMNS = USAGE_SCHEMA.names[1:]
_EARLIER_COLUMNS = ["destination", "window_ms", "sent", "finished", "expired", "dropped", "messages_used", "bytes_used"]
_GRACE_MS, _CLEAN_UP_EVERY_S = 600_000, 60.0
MOST_FILES = 16  # of an hour: more are merged
_LEVEL = -1  # the member of a row that tells what a destination held
_RUN, _BATCH, _END = "usage/run", "usage/batch", "usage/end"
_PREFIXES = {MESSAGES: "sent", ENDINGS: "acknowledged"}
_OF_LEVEL, _UNKNOWN_LEVEL = "level/", -(2**62)
_OF_UNREAD = "unread"


class UsageRow(NamedTuple):
    run: str
    key: UsageKey
    usage: MinuteUsage
    used: MessageUsage | None = None

    @property
    def window(self) -> UsageWindow:
        if self.used is None:
            return self.usage.shown(self.key)
        return UsageWindow(self.key.destination, self.key.window_ms, used=self.used)


@dataclass
class _Prepared:
    files: list[StagedFile] = field(default_factory=list)
    replaced: list[DataFile] = field(default_factory=list)


class UsageHistoryTable:
    """The table of the usage history. Not thread-safe; several processes may write it, of which the newest run owns it."""

    def __init__(self, domain: Domain, clock_ms: Callable[[], int] = now_ms) -> None:
        self._domain, self._clock_ms = domain, clock_ms
        self.damaged: dict[str, str] = {}  # path -> why the newest merge could not read the file
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
            declared = Destination("usage", "distributed-queue", file_grace_ms=_GRACE_MS)
            create_table(self._domain, USAGE_HISTORY, USAGE_SCHEMA, declared)
            table_id = ""
        if table_id != self._table_id or not table_id:
            self._open()  # the storage remembers the directories of the old one
            self._table_id = self.log.refresh().table_id

    # -- runs -----------------------------------------------------------------------------------------------------
    def known(self) -> UsageKnown:
        """Without the totals."""
        return known_of(self.log.refresh())

    def begin(self) -> tuple[str, Positions]:
        """A new run owns the history, and begins behind these positions. Whatever older runs still bring is refused."""
        run = random.getrandbits(62)
        earlier = self._earlier()
        prepared = _Prepared()

        def prepare(snapshot: Snapshot) -> _Prepared:
            nonlocal prepared
            discard(self.log.storage, prepared.files)
            rows = self._earlier_rows(earlier) if earlier and not known_of(snapshot).owner else ()
            prepared = _Prepared(self._stage(rows))
            return prepared

        def decide(snapshot: Snapshot, ready: _Prepared) -> Decision:
            now = self._clock_ms()
            moved = {_RUN: run, _BATCH: -1, _END: 0}
            if earlier and not known_of(snapshot).owner:
                moved |= {name: to for name, to in earlier.transactions.items() if _position(name) is not None}
            actions = [TransactionId(name, to).action(now) for name, to in moved.items()]
            return Decision("MERGE", [*number(snapshot, ready.files, now).actions, *actions])

        commit_prepared(self.log, prepare, decide)
        if earlier and not self.damaged:
            self._domain.storage.delete_all(EARLIER_HISTORY)
        return str(run), self.known().positions

    def add(self, run: str, number_: int, batch: UsageBatch, used: Mapping[str, MessageUsage]) -> bool:
        """Write a batch of `run`, and what destinations hold; False: the history has it. Raises UsageRunReplacedError,
        StaleCheckpointError, CommitConflictError."""
        if not (batch.totals or batch.end or used):
            return False
        now = self._clock_ms()
        rows = [UsageRow(run, key, usage) for key, usage in batch.totals.items()]
        rows += _held_rows(run, used, {key.destination: key.table for key in batch.totals}, now)
        staged: list[StagedFile] = []

        def prepare(snapshot: Snapshot) -> list[StagedFile]:
            """The files do not depend on what others have written."""
            if not staged and decide_usage(known_of(snapshot), run, number_, batch) is not None:
                staged.extend(self._stage(rows))
            return staged

        try:
            done = commit_prepared(
                self.log, prepare, lambda snapshot, files: decide_batch(snapshot, run, number_, batch, files, now)
            )
        except (UsageRunReplacedError, StaleCheckpointError):
            discard(self.log.storage, staged)
            raise
        if done is None:
            discard(self.log.storage, staged)
        return done is not None

    def note(
        self,
        run: str,
        used: Mapping[str, MessageUsage],
        levels: Mapping[str, int],
        lowered: Mapping[UsagePosition, int],
    ) -> None:
        """Between batches of `run`: what destinations hold, what queues must hold from now on, and positions that were ahead of
        their tables. Raises UsageRunReplacedError, CommitConflictError."""
        if not (used or levels or lowered):
            return
        now = self._clock_ms()
        staged = self._stage(_held_rows(run, used, {}, now))
        try:
            commit_prepared(
                self.log, lambda _: staged, lambda at, files: decide_note(at, run, levels, lowered, files, now)
            )
        except UsageRunReplacedError:
            discard(self.log.storage, staged)
            raise

    def add_late(self, run: str, span: UnreadSpan, totals: Totals) -> None:
        """What `run` has read of a span now, unless that is recorded already. Levels stay: they are unknown since, or of a later rest.
        Raises UsageRunReplacedError, CommitConflictError."""
        now, late = self._clock_ms(), str(random.getrandbits(62))
        staged = self._stage(UsageRow(late, key, usage) for key, usage in totals.items())
        try:
            done = commit_prepared(
                self.log, lambda _: staged, lambda snapshot, files: decide_late(snapshot, run, span, files, now)
            )
        except UsageRunReplacedError:
            discard(self.log.storage, staged)
            raise
        if done is None:
            discard(self.log.storage, staged)

    def totals(self, run: str, keys: Collection[UsageKey]) -> dict[UsageKey, MinuteUsage]:
        """What it has of these keys of a run. Raises UnreadableTableError."""
        wanted, found = frozenset(keys), dict[UsageKey, MinuteUsage]()
        members = self.log.refresh().members if wanted else {}
        for hour in sorted({key.window_ms // HOUR_MS for key in wanted} & members.keys()):
            for file in members[hour].files:
                found |= {row.key: row.usage for row in self._rows([file]) if row.run == run and row.key in wanted}
        return found

    # -- files ----------------------------------------------------------------------------------------------------
    def _stage(self, rows: Iterable[UsageRow]) -> list[StagedFile]:
        """A file for each hour."""
        by_hour: dict[int, list[UsageRow]] = {}
        for row in rows:
            by_hour.setdefault(row.key.window_ms // HOUR_MS, []).append(row)
        return [self._file(hour, of_hour) for hour, of_hour in sorted(by_hour.items())]

    def _file(self, hour: int, rows: Sequence[UsageRow]) -> StagedFile:
        writer = FileWriter(self.log.storage, hour, USAGE_SCHEMA)
        columns: dict[str, Any] = {
            ORDINAL: range(len(rows)),
            "run": [row.run for row in rows],
            "read_hour_ms": [row.key.read_hour_ms for row in rows],
            "quota": [row.key.quota for row in rows],
            "destination": [row.key.destination for row in rows],
            "table": [row.key.table for row in rows],
            "of_member": [None if row.key.member == _LEVEL else row.key.member for row in rows],
            "minute_ms": [row.key.minute_ms for row in rows],
            "messages_used": [None if row.used is None else row.used.messages for row in rows],
            "bytes_used": [None if row.used is None else row.used.bytes for row in rows],
        }
        columns |= {name: [getattr(row.usage, name) for row in rows] for name in _COUNTS}
        arrays = [pa.array(columns[column.name], column.type) for column in USAGE_SCHEMA]
        writer.append(pa.RecordBatch.from_arrays(arrays, schema=USAGE_SCHEMA))
        return writer.close()

    def _rows(self, files: Iterable[DataFile]) -> Iterator[UsageRow]:
        for file in files:
            for batch, _ in read_stored(self.log.storage, file.hint, Ranges.of((file.first, file.last)), _COLUMNS):
                yield from map(_row, batch.to_pylist())

    def _merge(self, snapshot: Snapshot, now: int) -> _Prepared:
        """Hours with many files, those that are over with more than one, and those that are too old."""
        prepared, self.damaged = _Prepared(), {}
        oldest, open_hour = (now - KEPT_MS) // HOUR_MS, (now - 3 * HOUR_MS) // HOUR_MS
        for hour, files in sorted(snapshot.members.items()):
            of_hour = list(files.files)
            if hour < oldest:
                prepared.replaced += of_hour
            elif len(of_hour) > (1 if hour < open_hour else MOST_FILES):
                self._merge_hour(hour, of_hour, prepared)
        return prepared

    def _merge_hour(self, hour: int, files: Sequence[DataFile], prepared: _Prepared) -> None:
        rows, read = list[UsageRow](), list[DataFile]()
        for file in files:
            try:
                rows += self._rows([file])
            except (UnreadableTableError, OSError) as error:
                self.damaged[file.path] = f"{type(error).__name__}: {error}"
            else:
                read.append(file)
        if len(read) > 1:
            prepared.replaced += read
            prepared.files.append(self._file(hour, newest_rows(rows)))

    def read(self, destinations: Collection[str], since_ms: int = 0) -> list[UsageWindow]:
        """The windows of these destinations that end after `since_ms`, in order. [] when no service has written any. Raises
        UnreadableTableError when a file is damaged."""
        windows = list[UsageWindow]()
        try:
            snapshot = self.log.refresh()
        except InvalidDestinationError:
            earlier = self._earlier()
            windows += [row.window for row in self._earlier_rows(earlier, fails=True)] if earlier else []
        else:
            for hour, of in sorted(snapshot.members.items()):
                if hour >= since_ms // HOUR_MS - 1:
                    windows += [row.window for row in newest_rows(self._rows(of.files))]
        found = merged(windows)
        return [one for one in found if one.destination in destinations and one.start_ms + WINDOW_MS > since_ms]

    def keep_house(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Merged files and a Delta checkpoint when they are due, and once a minute the deletion of files that are not needed."""
        prepared = _Prepared()

        def prepare(snapshot: Snapshot) -> _Prepared:
            nonlocal prepared
            discard(self.log.storage, prepared.files)
            prepared = self._merge(snapshot, self._clock_ms())
            return prepared

        commit_prepared(self.log, prepare, lambda snapshot, ready: decide_merge(snapshot, ready, self._clock_ms()))
        checkpoint(self.log)
        self._clean_up.note_checkpoint()
        if clock_s() - self._cleaned_s >= _CLEAN_UP_EVERY_S:
            self._cleaned_s = clock_s()
            self._clean_up.run()

    # -- of earlier releases --------------------------------------------------------------------------------------
    def _earlier(self) -> Snapshot | None:
        try:
            return self._earlier_log().refresh()
        except InvalidDestinationError:
            return None

    def _earlier_log(self) -> DeltaLog:
        return DeltaLog(self._domain.storage.child(EARLIER_HISTORY), "usage history of an earlier release")

    def _earlier_rows(self, snapshot: Snapshot, *, fails: bool = False) -> Iterator[UsageRow]:
        """Without the files that cannot be read, unless it `fails`."""
        storage, self.damaged = self._earlier_log().storage, {}
        for file in (file for _, of in sorted(snapshot.members.items()) for file in of.files):
            everything = Ranges.of((file.first, file.last))
            try:
                for batch, _ in read_stored(storage, file.hint, everything, _EARLIER_COLUMNS):
                    for row in batch.to_pylist():
                        yield from _of_earlier(row)
            except (UnreadableTableError, OSError) as error:
                if fails:
                    raise
                self.damaged[file.path] = f"{type(error).__name__}: {error}"


def known_of(snapshot: Snapshot) -> UsageKnown:
    """Pure. Without the totals."""
    of = snapshot.transactions
    positions = {place: of[name] for name in of if (place := _position(name)) is not None}
    levels = {name.removeprefix(_OF_LEVEL): to for name, to in of.items() if name.startswith(_OF_LEVEL)}
    levels = {table: to for table, to in levels.items() if to != _UNKNOWN_LEVEL}
    unread = frozenset(span for name, to in of.items() if (span := _unread_span(name, to)) is not None)
    owner = str(of.get(_RUN) or "")
    return UsageKnown(owner, of.get(_BATCH, -1), of.get(_END, 0), positions, levels=levels, unread=unread)


def _position(app_id: str) -> UsagePosition | None:
    """What a txn tells the position of."""
    prefix, _, rest = app_id.partition("/")
    table, _, member = rest.rpartition("/")
    for what, known in _PREFIXES.items():
        if prefix == known and table:
            return UsagePosition(table, int(member), what)
    return None


def _unread_span(app_id: str, last: int) -> UnreadSpan | None:
    prefix, _, rest = app_id.partition("/")
    if prefix != _OF_UNREAD or not last:
        return None
    what, _, rest = rest.partition("/")
    table, member, first = rest.rsplit("/", 2)
    return UnreadSpan(table, int(member), what, int(first), last)


def _unread_name(span: UnreadSpan) -> str:
    return f"{_OF_UNREAD}/{span.what}/{span.table}/{span.member}/{span.first}"


def decide_batch(
    snapshot: Snapshot, run: str, number_: int, batch: UsageBatch, files: Sequence[StagedFile], now: int
) -> Decision | None:
    """Pure. The rows, the positions and the batch in one commit. Raises UsageRunReplacedError, StaleCheckpointError."""
    known = known_of(snapshot)
    after = decide_usage(known, run, number_, batch)
    if after is None:
        return None
    moved = _positions(batch.end) | {_BATCH: number_, _END: batch.digest}
    moved |= {_unread_name(span): span.last for span in batch.unread}
    moved |= {
        _OF_LEVEL + table: after.levels.get(table, _UNKNOWN_LEVEL) for table in batch.levels if table in known.levels
    }
    actions = [TransactionId(name, to).action(now) for name, to in moved.items()]
    return Decision("MERGE", [*number(snapshot, files, now).actions, *actions])


def decide_note(
    snapshot: Snapshot,
    run: str,
    levels: Mapping[str, int],
    lowered: Mapping[UsagePosition, int],
    files: Sequence[StagedFile],
    now: int,
) -> Decision:
    """Pure. What a lowered position will pass again is not owed any more. Raises UsageRunReplacedError."""
    known = known_of(snapshot)
    if known.owner != run:
        raise UsageRunReplacedError
    moved = {_OF_LEVEL + table: level for table, level in levels.items()}
    moved |= _positions(lowered) | {_OF_LEVEL + place.table: _UNKNOWN_LEVEL for place in lowered}
    for span in known.unread:
        if (to := lowered.get(UsagePosition(span.table, span.member, span.what), span.last)) < span.last:
            moved[_unread_name(span)] = to if to >= span.first else 0
    actions = [TransactionId(name, to).action(now) for name, to in moved.items()]
    return Decision("MERGE", [*number(snapshot, files, now).actions, *actions])


def decide_late(
    snapshot: Snapshot, run: str, span: UnreadSpan, files: Sequence[StagedFile], now: int
) -> Decision | None:
    """Pure. Raises UsageRunReplacedError."""
    known = known_of(snapshot)
    if known.owner != run:
        raise UsageRunReplacedError
    if span not in known.unread:
        return None
    read = TransactionId(_unread_name(span), 0).action(now)
    return Decision("MERGE", [*number(snapshot, files, now).actions, read])


def _positions(positions: Positions) -> dict[str, int]:
    return {f"{_PREFIXES[place.what]}/{place.table}/{place.member}": to for place, to in positions.items()}


def _held_rows(run: str, used: Mapping[str, MessageUsage], tables: Mapping[str, str], now: int) -> list[UsageRow]:
    hour_ms, minute_ms = now - now % HOUR_MS, now - now % WINDOW_MS
    return [
        UsageRow(run, UsageKey(hour_ms, None, name, tables.get(name, ""), _LEVEL, minute_ms), MinuteUsage(), held)
        for name, held in used.items()
    ]


def decide_merge(snapshot: Snapshot, prepared: _Prepared, now: int) -> Decision | None:
    """Pure."""
    if not prepared.replaced:
        return None
    removed = [file.remove_action(now) for file in prepared.replaced]
    return Decision("MERGE", [*removed, *number(snapshot, prepared.files, now).actions])


def newest_rows(rows: Iterable[UsageRow]) -> list[UsageRow]:
    """Pure. The last one of each run and key, in the order in which these were written."""
    found: dict[tuple[str, UsageKey], UsageRow] = {}
    for row in rows:
        found.pop((row.run, row.key), None)
        found[row.run, row.key] = row
    return list(found.values())


def _row(stored: Mapping[str, Any]) -> UsageRow:
    run, hour_ms, quota, destination, table, member, minute_ms = (stored[name] for name in _KEY)
    key = UsageKey(hour_ms, quota, destination, table, _LEVEL if member is None else member, minute_ms)
    held = stored["messages_used"]
    used = None if held is None else MessageUsage(held, stored["bytes_used"])
    return UsageRow(run, key, MinuteUsage(*(stored[name] for name in _COUNTS)), used)


def _of_earlier(stored: Mapping[str, Any]) -> Iterator[UsageRow]:
    """A minute that an earlier release has recorded: of all members of the destination."""
    hour_ms = stored["window_ms"] - stored["window_ms"] % HOUR_MS
    key = UsageKey(hour_ms, None, stored["destination"], "", 0, stored["window_ms"])
    counts = {name: stored[name] for name in ("sent", "finished", "expired", "dropped")}
    yield UsageRow("", key, MinuteUsage(**counts))
    if stored["messages_used"] is not None:
        held = MessageUsage(stored["messages_used"], stored["bytes_used"])
        yield UsageRow("", key._replace(member=_LEVEL), MinuteUsage(), held)
