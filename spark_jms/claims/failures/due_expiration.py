"""Looks at messages that are due, and expires those that are over: the sink of the expiration query, and the same without Spark.

The query names messages whose minute has come (core/changes/due_map.py), of which some may be finished, and some may have a consumer.
The record set decides, by the clock of this process, exactly as in the search of a process without Spark (expiration.py): so a batch
that is repeated, a second query, or a consumer in between change nothing. What a consumer holds, or what a server that is away has,
stays in the state of the query, and comes again.

EmbeddedExpiration is the engine of processes without Spark: the same rows of the change feed, the same map, and the same sink.

What prevents it is logged in the task, and reaches the processes that show it through the domain: the sink's commit, which Spark runs
in a process of its own, writes it, and `jmsq services` reads it.

ROOT/_jmsq/expiration/<query>    what prevents the expiration of a query, by destination; no file: nothing does

Features: T6, M12 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from spark_jms.claims.failures.expiration import ExpirationScan
from spark_jms.claims.servers.stores import not_durable, timed_stores
from spark_jms.core.changes.change import ALL_DESTINATIONS, MINUTE_MS, NOTHING_READ, MessageChange
from spark_jms.core.changes.due_map import DueMap, due_row
from spark_jms.core.destinations.destination import Subscription
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.errors import JmsqError, StaleDomainError
from spark_jms.log.changes.plan import plan
from spark_jms.log.changes.positions import FeedTables, log_of_table
from spark_jms.log.changes.rows import changes_of
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.storage import NamedFiles, now_ms
from spark_jms.store import Store, StoreError

log = logging.getLogger("spark_jms")
EXPIRATION_FOLDER = "_jmsq/expiration"
_STALE_MS, _FORGOTTEN_MS = 2_400_000, 86_400_000  # longer than until the rarest retry; of a query that is no more
LONGEST_S = 30.0  # of a call, at about the end of a step; the rest comes again


class DueMessages(NamedTuple):
    """Of one member of a table. `destination`: its name when the messages were read."""

    table: str
    destination: str
    member: int
    picks: Ranges


class DueExpiration:
    """Of one process. Not thread-safe."""

    def __init__(self, domain: Domain, store: Store, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._domain, self._store, self._monotonic_s = domain, timed_stores(store), monotonic_s
        self._scans: dict[str, _Scan] = {}  # by table
        self.looked: dict[str, str] = {}  # by destination, of the newest call: what prevented it; "" nothing

    def expire(self, due: Iterable[DueMessages]) -> int:
        """How many have expired. Each destination has a turn of some seconds, then those that are not ready have
        another. What prevents one holds up no other: it is logged, and comes again."""
        self.looked = {}
        wanted: dict[str, dict[int, Ranges]] = {}
        names = {}
        for one in due:
            picks = wanted.setdefault(one.table, {})
            picks[one.member] = picks.get(one.member, EMPTY) | one.picks
            names[one.table] = one.destination
        until_s, count = self._monotonic_s() + LONGEST_S, 0
        while wanted and self._monotonic_s() < until_s:
            for table, picks in list(wanted.items()):
                done = self._expire(table, names[table], picks)
                count += done
                if not done:
                    del wanted[table]
        return count

    def _expire(self, table: str, name: str, picks: Mapping[int, Ranges]) -> int:
        self.looked.setdefault(name, "")
        try:
            scan = self._scan(table, name)
            return 0 if scan is None else scan.search.run(due=picks)
        except (JmsqError, StoreError, OSError) as error:
            self.looked[name] = f"{type(error).__name__}: {error}"
            log.warning("%s: messages that are due did not expire; they are looked at again: %s", name, error)
            return 0

    def _scan(self, table: str, name: str) -> _Scan | None:
        """None: the table was dropped."""
        found = log_of_table(self._domain, table, name, rows=False)
        if found is None:
            return None
        known = self._scans.get(table)
        if known is None or known.log is not found:
            live = partial(_live, self._store, found)
            known = self._scans[table] = _Scan(found, ExpirationScan(self._domain, self._store, found, live))
        return known


class EmbeddedExpiration:
    """Expiration by the change feed in one process. Its maps are in memory: a process that begins reads the tables again, as a query
    with a fresh checkpoint. Not thread-safe; several processes may have one."""

    def __init__(
        self,
        domain: Domain,
        store: Store,
        destinations: Collection[str] = (),
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        """`destinations` empty: all there are."""
        self._domain, self._given, self._clock_ms = domain, frozenset(destinations), clock_ms
        self._tables = FeedTables(domain, ALL_DESTINATIONS, clock_ms, floors=True, isolates=True)
        self._sink = DueExpiration(domain, store)
        self._begin()

    def _begin(self) -> None:
        self._position = NOTHING_READ
        self._maps: dict[tuple[str, int], DueMap] = {}
        self._names: dict[str, str] = {}  # by table, as it was read last
        self._prevented: dict[str, str] = {}  # by destination, until a look at it succeeds

    def run(self) -> tuple[int, dict[str, str]]:
        """How many have expired, and by destination what prevents it. Raises DomainError."""
        try:
            self._read()
        except StaleDomainError as error:
            log.warning("the expiration reads all messages again: %s", error)
            self._begin()
            self._read()
        count = self._sink.expire(self._fired())
        self._prevented |= self._sink.looked
        names = self._domain.destinations()
        self._prevented = {name: text for name, text in self._prevented.items() if text and name in names}
        found = {name: f"{type(error).__name__}: {error}" for name, error in self._tables.problems.items()}
        return count, {name: text for name, text in (self._prevented | found).items() if self._is_given(name)}

    def _is_given(self, destination: str) -> bool:
        return not self._given or destination in self._given

    def _read(self) -> None:
        """What has happened since the last time. An error repeats it, which adds nothing."""
        end = self._tables.newest(self._position)
        for part in plan(self._domain.root, self._tables, self._position, end):
            for change in changes_of(part):
                row = due_row(change)
                if row is not None and self._is_given(change.destination):
                    self._keep((change.table, change.member), self._map(change).told(row))
                    self._names[change.table] = change.destination
        self._position = end

    def _map(self, change: MessageChange) -> DueMap:
        return self._maps.get((change.table, change.member), DueMap())

    def _keep(self, key: tuple[str, int], dues: DueMap) -> None:
        self._maps[key] = dues
        if dues == DueMap():
            del self._maps[key]

    def _fired(self) -> list[DueMessages]:
        found, minute = list[DueMessages](), self._clock_ms() // MINUTE_MS
        for (table, member), known in list(self._maps.items()):
            left, fired = known.fire(minute)
            self._keep((table, member), left)
            found += [DueMessages(table, self._names[table], member, one.picks) for one in fired]
        return found


class ExpirationProblems:
    """What prevents the expiration of one query, from its sink's commit to `jmsq services`."""

    def __init__(self, domain: Domain, query: str, clock_ms: Callable[[], int] = now_ms) -> None:
        folder, name = EXPIRATION_FOLDER.rsplit("/", 1)
        self._files, self._query, self._clock_ms = NamedFiles(domain.storage.child(folder), name), query, clock_ms

    def note(self, looked: Mapping[str, str]) -> None:
        """Of a batch: by destination that it has looked at, the problem, or ""."""
        known = self._stored(self._query)
        found = {name: one for name, one in known.items() if name not in looked}
        found |= {name: (text, self._clock_ms()) for name, text in looked.items() if text}
        if found:
            self._files.put(self._query, json.dumps(found).encode())
        elif known:
            self._files.delete(self._query)

    def known(self) -> dict[str, str]:
        """Without what was looked at so long ago that no message of the destination is waiting any more."""
        since_ms = self._clock_ms() - _STALE_MS
        return {name: text for name, (text, at_ms) in self._stored(self._query).items() if at_ms >= since_ms}

    def forget_old(self) -> None:
        """The files of queries that ended a day ago."""
        for query in self._files.names():
            newest_ms = max((at_ms for _, at_ms in self._stored(query).values()), default=0)
            if newest_ms < self._clock_ms() - _FORGOTTEN_MS:
                self._files.delete(query)

    def _stored(self, query: str) -> dict[str, tuple[str, int]]:
        """{} of a damaged file: the next batch writes it again."""
        try:
            return {
                str(name): (str(text), int(at))
                for name, (text, at) in json.loads(self._files.get(query) or b"{}").items()
            }
        except (ValueError, TypeError, AttributeError):
            return {}


class _Scan(NamedTuple):
    log: DeltaLog
    search: ExpirationScan


def _live(store: Store, table: DeltaLog) -> Mapping[str, Subscription]:
    snapshot = table.snapshot
    return not_durable(store, snapshot.table_id) if snapshot.destination.is_topic else {}
