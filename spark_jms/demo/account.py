"""The account, computed from the receivers' output tables and the flights that were sent. Nothing here asks
the queue what it believes; the only thing taken from it is how many messages of each member were committed (`last`).

    lost          a (member, sequence) from 1 to the member's last, or a flight of the feed, that no table has
    duplicated    a (member, sequence), or a flight, that the tables have more than once
    altered       a flight whose 20 columns are not all as in the feed
    order         of an aircraft: put its flights in the order in which they arrived, whichever receiver took them; they
                  must be legs 1, 2, 3 … as sent. Arrival = time of the Delta commit of the output, then the place in its
                  file. One clock stamps both tables, and a receiver gets an aircraft's next flight only after the
                  commit of the one before was acknowledged, so equal or crossing times would show as disorder
    two hands     in each sample of the open claims: aircraft of which two receivers had flights in hand at once

The samples are those of a `Watch`, which observes the queue from outside.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jms.claims.servers.stores import open_stores
from spark_jms.claims.upkeep import views
from spark_jms.core.messages.columns import arrow_schema
from spark_jms.core.messages.ranges import Ranges
from spark_jms.demo.flights import FEED_SCHEMA, FLIGHT_COLUMNS
from spark_jms.demo.queries import MESSAGE_COLUMNS
from spark_jms.errors import JmsqError
from spark_jms.log.destinations.domain import Domain
from spark_jms.store import StoreError

Integers = npt.NDArray[np.int64]
_SCHEMA = pa.schema([*arrow_schema(MESSAGE_COLUMNS), *(field for field in FEED_SCHEMA if field.name != "leg")])
_PLACE = (pa.field("commit_ms", pa.int64()), pa.field("place", pa.int64()))
RECEIVED_COLUMNS = tuple(_SCHEMA.names)
EVERY_S = 0.5  # a sample of a Watch


@dataclass(frozen=True)
class OpenClaim:
    """Messages of one member that a consumer has claimed."""

    member: int
    consumer: str
    picks: Ranges


@dataclass(frozen=True)
class DepthSample:
    """The destination at one moment. `backlog` counts unacknowledged messages."""

    second: float
    sent: int
    backlog: int
    claims: tuple[OpenClaim, ...]

    def members_of(self, consumer: str) -> list[int]:
        return sorted({claim.member for claim in self.claims if claim.consumer == consumer})


@dataclass(frozen=True)
class QueueAccount:
    sent: int
    received: Mapping[str, int]  # receiver -> messages in its table
    commits: Mapping[str, int]  # receiver -> micro-batches that its table has
    by_member: Mapping[int, Mapping[str, int]]
    lost: int
    duplicated: int
    altered: int
    redelivered: int
    most_deliveries: int
    aircraft: int
    in_order: int
    by_several: int  # aircraft whose flights went to more than one receiver
    without_unit: int
    samples: int
    samples_shared: int
    in_two_hands: int

    @property
    def problems(self) -> list[str]:
        checks = {
            "lost": self.lost,
            "duplicated": self.duplicated,
            "altered": self.altered,
            "aircraft out of order": self.aircraft - self.in_order,
            "aircraft in two receivers' hands at once": self.in_two_hands,
        }
        return [f"{count:,} {what}" for what, count in checks.items() if count]


@dataclass(frozen=True)
class SubscriptionAccount:
    name: str
    selector: str | None
    expected: int
    received: int
    lost: int
    duplicated: int
    unwanted: int = 0

    @property
    def problems(self) -> list[str]:
        checks = {"lost": self.lost, "duplicated": self.duplicated, "not asked for": self.unwanted}
        return [f"subscription {self.name}: {count:,} {what}" for what, count in checks.items() if count]


@dataclass(frozen=True)
class Speed:
    """Messages and seconds of a stage. The start-up lasts until its first micro-batch is done: Spark starts the query, compiles
    it and starts Python. `per_second` counts the messages after that; None if there are none."""

    stage: str
    rows: int
    seconds: float
    start_up_s: float
    per_second: int | None

    @staticmethod
    def of(stage: str, rows: int, seconds: float, batches: Sequence[tuple[float, int]]) -> Speed:
        """`batches`: when each was done, in seconds since the stage began, and its messages."""
        done = sorted(batches) or [(seconds, 0)]
        start_up_s, end_s = done[0][0], done[-1][0]
        after = sum(messages for _, messages in done[1:])
        return Speed(stage, rows, seconds, start_up_s, round(after / (end_s - start_up_s)) if after else None)


@dataclass(frozen=True)
class RowCommit:
    """A commit with at least one row, and the files that it added."""

    commit_ms: int
    rows: int
    files: tuple[Path, ...]


@dataclass
class DemoResult:
    """The result of a run. `problems` is empty if every promise held."""

    queue: QueueAccount
    subscriptions: list[SubscriptionAccount]
    speeds: list[Speed]
    samples: list[DepthSample]
    marks: list[tuple[float, str]]
    in_doubt: int
    taken_over: int
    application_s: float  # until this application's Spark was there
    start_up_s: float  # from the kill until the application of `a` was ready again
    problems: list[str] = field(default_factory=list)


# -- reading what arrived ----------------------------------------------------------------------------------------------


def arrivals(table: Path, columns: Sequence[str] = RECEIVED_COLUMNS) -> tuple[pa.Table, int]:
    """These columns of a receiver's Delta table, with `commit_ms` and `place` (in its file), and the number of data commits.

    Read from the Delta log itself: which commit added which file, and when, is what tells the order of arrival.
    """
    parts, commits = [], row_commits(table)
    for commit in commits:
        for path in commit.files:
            part = pq.read_table(path).select(columns)
            part = part.append_column("commit_ms", pa.repeat(pa.scalar(commit.commit_ms, pa.int64()), len(part)))
            parts.append(part.append_column("place", pa.array(np.arange(len(part), dtype=np.int64))))
    nothing = pa.schema([*(_SCHEMA.field(name) for name in columns), *_PLACE]).empty_table()
    return pa.concat_tables(parts) if parts else nothing, len(commits)


def queue_account(
    flights: pa.Table, tables: Mapping[str, Path], last: Mapping[int, int], samples: Sequence[DepthSample] = ()
) -> QueueAccount:
    """`last`: member -> its last sequence number."""
    read = {name: arrivals(path) for name, path in tables.items()}
    names = list(read)
    received = pa.concat_tables(
        [
            t.append_column("receiver", pa.repeat(pa.scalar(i, pa.int8()), len(t)))
            for i, (t, _) in enumerate(read.values())
        ]
    ).combine_chunks()
    member, sequence = _integers(received, "member"), _integers(received, "sequence")
    receiver, number = _integers(received, "receiver"), _integers(received, "number")
    lost_sequences, twice_sequences = _dense(member, sequence, last)
    lost_flights, twice_flights = _once(number, _integers(flights, "number"))
    grouped = pc.drop_null(pc.unique(flights["tailnum"]))
    in_order, several = _orders(received)
    shared, hands = _two_hands(samples, _units_by_sequence(received, last))
    by_member = {
        m: {n: int(((member == m) & (receiver == i)).sum()) for i, n in enumerate(names)} for m in sorted(last)
    }
    return QueueAccount(
        sent=sum(last.values()),
        received={name: len(t) for name, (t, _) in read.items()},
        commits={name: commits for name, (_, commits) in read.items()},
        by_member=by_member,
        lost=max(lost_sequences, lost_flights),
        duplicated=max(twice_sequences, twice_flights),
        altered=_altered(flights, received),
        redelivered=pc.sum(received["JMSRedelivered"]).as_py() or 0,
        most_deliveries=pc.max(received["JMSXDeliveryCount"]).as_py() or 0,
        aircraft=len(grouped),
        in_order=in_order,
        by_several=several,
        without_unit=flights["tailnum"].null_count,
        samples=len(samples),
        samples_shared=shared,
        in_two_hands=hands,
    )


def subscription_account(name: str, selector: str | None, expected: pa.Table, table: Path) -> SubscriptionAccount:
    received = _integers(arrivals(table)[0], "number")
    wanted = _integers(expected, "number")
    lost, duplicated = _once(received, wanted)
    unwanted = int((~np.isin(received, wanted)).sum())
    return SubscriptionAccount(name, selector, len(wanted), len(received), lost, duplicated, unwanted)


# -- the commits of a table --------------------------------------------------------------------------------------------


def row_commits(table: Path) -> list[RowCommit]:
    """The commits that added rows to a Delta table, in the order of its log, which is read as a program would that knows no spark-jms.
    What only rearranges rows, as compaction does, adds none."""
    found = []
    for entry in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in entry.read_text().splitlines() if line]
        added = [action["add"] for action in actions if "add" in action and action["add"].get("dataChange", True)]
        commit_ms = next((a["commitInfo"]["timestamp"] for a in actions if "commitInfo" in a), 0)
        rows = sum(_rows(table, add) for add in added)
        if rows:
            found.append(RowCommit(commit_ms, rows, tuple(table / unquote(add["path"]) for add in added)))
    return found


# -- the queue from outside --------------------------------------------------------------------------------------------


class Watch:
    """Observes a queue from outside: its depth over time, and which consumer has claimed which messages. Samples it twice a second in
    a thread, read-only. `check()` raises the thread's error. Who waits for something asks `look()`: a sample may be late, or miss
    what lasted a moment."""

    def __init__(self, root: Path, destination: str) -> None:
        self.samples: list[DepthSample] = []
        self.marks: list[tuple[float, str]] = []
        self._domain, self._destination = Domain(str(root)), destination
        self._store = open_stores(self._domain)
        self._started_s = time.monotonic()
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._loop, name="demo watch", daemon=True)
        self._thread.start()

    @property
    def second(self) -> float:
        return time.monotonic() - self._started_s

    @property
    def last(self) -> DepthSample:
        return self.samples[-1] if self.samples else DepthSample(0.0, 0, 0, ())

    def mark(self, what: str) -> None:
        self.marks.append((self.second, what))

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """The last sample is of now: one that the thread was late with is before it. Raises JmsqError and OSError."""
        self._stop.set()
        self._thread.join()
        self.check()
        self.samples.append(self.look())

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=10)
        self._store.close()

    def look(self) -> DepthSample:
        """The log and the records as they are now. Raises JmsqError and OSError."""
        states = views.states(self._domain, self._store, self._destination, None)
        snapshot = self._domain.log(self._destination).snapshot
        last = {member: snapshot.last_sequence(member) for member in states}
        claims = tuple(
            OpenClaim(member, claim.consumer, claim.picks)
            for member, state in states.items()
            for claim in state.claims.values()
        )
        backlog = sum(state.unfinished(1, last[member]).count for member, state in states.items())
        return DepthSample(self.second, sum(last.values()), backlog, claims)

    def _loop(self) -> None:
        while not self._stop.wait(EVERY_S):
            try:
                self.samples.append(self.look())
            except (JmsqError, StoreError, OSError) as error:  # check() raises it in the demo's own thread
                self._error = error
                return


# -- inside ------------------------------------------------------------------------------------------------------------


def _integers(table: pa.Table, name: str) -> Integers:
    """The column as numbers; -1 for null."""
    column = pc.fill_null(pc.cast(table[name], pa.int64()), -1)
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _once(found: Integers, wanted: Integers) -> tuple[int, int]:
    """(how many of `wanted` are missing, how many of `found` are duplicates)."""
    return len(np.setdiff1d(wanted, found)), len(found) - len(np.unique(found))


def _dense(member: Integers, sequence: Integers, last: Mapping[int, int]) -> tuple[int, int]:
    lost = twice = 0
    for m, until in last.items():
        missing, again = _once(sequence[member == m], np.arange(1, until + 1))
        lost, twice = lost + missing, twice + again
    return lost, twice


def _altered(flights: pa.Table, received: pa.Table) -> int:
    """Flights that differ in any column from the flight that was sent, including flights never sent."""
    number, sent = _integers(received, "number"), _integers(flights, "number")
    known = np.isin(number, sent)
    differs = np.zeros(int(known.sum()), dtype=bool)
    came = received.filter(pa.array(known))
    original = flights.take(pa.array(np.searchsorted(sent, number[known])))
    for name in FLIGHT_COLUMNS:
        a, b = came[name], original[name]
        unequal = pc.or_(pc.fill_null(pc.not_equal(a, b), False), pc.xor(pc.is_null(a), pc.is_null(b)))
        differs |= unequal.to_numpy()
    return int(differs.sum()) + int((~known).sum())


def _orders(received: pa.Table) -> tuple[int, int]:
    """(aircraft whose legs arrived as 1, 2, 3 …, aircraft that went to several receivers)."""
    units = received.filter(pc.is_valid(received["JMSXGroupID"]))
    if not len(units):
        return 0, 0
    aircraft = np.asarray(pc.index_in(units["JMSXGroupID"], pc.unique(units["JMSXGroupID"])).to_numpy(), dtype=np.int64)
    order = np.lexsort((_integers(units, "place"), _integers(units, "commit_ms"), aircraft))
    aircraft, leg, receiver = (
        aircraft[order],
        _integers(units, "JMSXGroupSeq")[order],
        _integers(units, "receiver")[order],
    )
    first = np.concatenate(([True], aircraft[1:] != aircraft[:-1]))
    right = np.where(first, leg == 1, leg == np.concatenate(([0], leg[:-1] + 1)))
    starts = np.flatnonzero(first)
    several = np.minimum.reduceat(receiver, starts) != np.maximum.reduceat(receiver, starts)
    return int(np.logical_and.reduceat(right, starts).sum()), int(several.sum())


def _units_by_sequence(received: pa.Table, last: Mapping[int, int]) -> dict[int, Integers]:
    """member -> array: sequence -> number of the aircraft, -1 = none."""
    member, sequence = _integers(received, "member"), _integers(received, "sequence")
    codes = pc.fill_null(pc.index_in(received["JMSXGroupID"], pc.drop_null(pc.unique(received["JMSXGroupID"]))), -1)
    units = np.asarray(codes.to_numpy(), dtype=np.int64)
    out: dict[int, Integers] = {}
    for m, until in last.items():
        out[m] = np.full(until + 2, -1, dtype=np.int64)
        out[m][sequence[member == m]] = units[member == m]
    return out


def _two_hands(samples: Sequence[DepthSample], units: Mapping[int, Integers]) -> tuple[int, int]:
    """(samples in which two receivers held claims on one member, aircraft in both claims)."""
    shared, guilty = 0, set[int]()
    for sample in samples:
        in_hand: dict[tuple[int, str], set[int]] = {}
        for claim in sample.claims:
            codes = np.concatenate([units[claim.member][lo : hi + 1] for lo, hi in claim.picks])
            in_hand.setdefault((claim.member, claim.consumer), set()).update(np.unique(codes[codes >= 0]).tolist())
        members = [member for member, _ in in_hand]
        shared += len(members) > len(set(members))
        for (member, consumer), mine in in_hand.items():
            for (other_member, other), theirs in in_hand.items():
                if member == other_member and consumer < other:
                    guilty |= mine & theirs
    return shared, len(guilty)


def _rows(table: Path, add: Mapping[str, Any]) -> int:
    stats = json.loads(add.get("stats") or "{}")
    if "numRecords" in stats:
        return int(stats["numRecords"])
    return int(pq.read_metadata(table / unquote(add["path"])).num_rows)
