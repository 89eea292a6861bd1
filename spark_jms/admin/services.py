"""The services of a domain in one process: expiration, housekeeping, forwarding, lag and the usage history.

Each loop has a thread of its own, so one that hangs or fails holds up no other; a loop tells of one or more services. What a
service does is safe to be killed at any moment, and may run in several processes: a lease, or the record's holder, decides
who does it. So a restart needs nothing but the start.

A process with services tells of itself, for `jmsq services --status`:

ROOT/_jmsq/services/<host>-<pid>    its engine, its services, and the lag, every few seconds; deleted when it ends

Features: C13, C14, D5, T3, T6, T17 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from spark_jms.admin.statistics import DestinationStatistics, collect, note_looks
from spark_jms.claims.failures.due_expiration import EmbeddedExpiration
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.claims.upkeep.move import Forwarders
from spark_jms.claims.upkeep.usage_history import UsageHistory
from spark_jms.claims.upkeep.views import moment
from spark_jms.errors import DomainError, JmsqError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import NamedFiles, now_ms
from spark_jms.log.upkeep.health import BackgroundFailure, pause
from spark_jms.store import Store, StoreError

EXPIRATION, HOUSEKEEPING, FORWARDING, LAG, USAGE = "expiration", "housekeeping", "forwarding", "lag", "usage"
SERVICES = (EXPIRATION, HOUSEKEEPING, FORWARDING, LAG, USAGE)
SERVICES_FOLDER = "_jmsq/services"
USAGE_EVERY_S = 10.0
LONGEST_PAUSE_MS = 60_000
_STOP_S = 30.0
_FIRST_PAUSE_MS = 1_000
_FORGOTTEN = timedelta(days=1)  # the report of a process that was killed
_SILENT_S, _MISSED = 60.0, 3  # reports that a live process may miss


@dataclass(frozen=True)
class ServiceRound:
    """What one round of a service has done, in numbers; and what failed, while the rest was done."""

    done: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServiceStatus:
    """`done` since the process has started. `error` is the last one, also if it is over: `failing_since` None."""

    service: str
    rounds: int = 0
    done: Mapping[str, int] = field(default_factory=dict)
    last_round: datetime | None = None
    failing_since: datetime | None = None
    error: str = ""
    error_at: datetime | None = None

    @property
    def state(self) -> str:
        return "failing" if self.failing_since else "ok" if self.rounds else "starting"

    def after(self, one: ServiceRound, now: datetime) -> ServiceStatus:
        done = {name: count for name, count in (Counter(self.done) + Counter(one.done)).items() if count}
        if not one.problems:
            return ServiceStatus(self.service, self.rounds + 1, done, now, None, self.error, self.error_at)
        text = one.problems[0] + (f" (and {len(one.problems) - 1} more)" if len(one.problems) > 1 else "")
        return ServiceStatus(self.service, self.rounds + 1, done, now, self.failing_since or now, text, now)


@dataclass(frozen=True)
class LagRow:
    """`oldest`: when the oldest unfinished message was sent, or earlier."""

    destination: str
    backlog: int
    claimed: int
    oldest: datetime | None


@dataclass(frozen=True)
class ServiceReport:
    """What a process with services tells of itself. `services` and `lag` as they were `at`; `silent`: that is a minute ago, or three
    intervals of the process, so it was killed or hangs."""

    process: str
    engine: str
    at: datetime
    silent: bool
    services: tuple[dict[str, Any], ...]
    lag: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Round:
    """The result of one round on a destination; `busy`: another process has its housekeeping lease, which `holder` names.
    `failures`: steps that fail, and data files that cannot be read."""

    destination: str
    busy: bool
    purged_messages: int = 0
    purged_files: int = 0
    compacted_files: int = 0
    checkpoints: int = 0
    deleted_files: int = 0
    expired_messages: int = 0
    failures: tuple[BackgroundFailure, ...] = ()
    holder: str = ""

    @property
    def did_something(self) -> bool:
        """Something was removed, compacted, written or expired, or has failed."""
        done = (
            self.purged_files or self.compacted_files or self.checkpoints or self.deleted_files or self.expired_messages
        )
        return bool(done or self.failures)


@dataclass(frozen=True)
class ServiceLoop:
    """`work` does one round of these services. Between two rounds it pauses for `every_s`."""

    services: tuple[str, ...]
    every_s: float
    work: Callable[[], Mapping[str, ServiceRound]]


class ServiceRunner:
    """Runs loops, each in a thread, and knows how they are. Thread-safe."""

    def __init__(
        self, loops: Sequence[ServiceLoop], clock_ms: Callable[[], int] = now_ms, *, others: Sequence[str] = ()
    ) -> None:
        """`others`: services that tell of their rounds themselves."""
        self._loops, self._clock_ms = loops, clock_ms
        self._lock, self._stop = threading.Lock(), threading.Event()
        names = [*others, *(name for loop in loops for name in loop.services)]
        self._known = {name: ServiceStatus(name) for name in dict.fromkeys([*SERVICES, *names]) if name in names}
        self._threads = [
            threading.Thread(target=self._run, args=(loop,), name=f"jmsq-service {loop.services[0]}", daemon=True)
            for loop in loops
        ]

    def run_once(self) -> None:
        """One round of each, in this thread."""
        for loop in self._loops:
            self._round(loop)

    def done(self, service: str, one: ServiceRound) -> None:
        """A round of a service outside the loops."""
        with self._lock:
            self._known[service] = self._known[service].after(one, moment(self._clock_ms()))

    def failed(self, service: str, problem: str) -> None:
        self.done(service, ServiceRound(problems=(problem,)))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, wait_s: float = _STOP_S) -> list[str]:
        """Ends every loop behind its round. Returns the services whose round did not end in time: it may be killed."""
        self._stop.set()
        until_s = time.monotonic() + wait_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(until_s - time.monotonic(), 0))
        return [
            name
            for loop, thread in zip(self._loops, self._threads, strict=True)
            if thread.is_alive()
            for name in loop.services
        ]

    def status(self) -> list[ServiceStatus]:
        with self._lock:
            return list(self._known.values())

    def _run(self, loop: ServiceLoop) -> None:
        failures = 0
        while True:
            failures = 0 if self._round(loop) else failures + 1
            longer_ms = pause(_FIRST_PAUSE_MS, failures, LONGEST_PAUSE_MS) if failures else 0
            if self._stop.wait(max(loop.every_s, longer_ms / 1000)):
                return

    def _round(self, loop: ServiceLoop) -> bool:
        """False when the round broke off."""
        try:
            rounds, whole = loop.work(), True
        except Exception as error:  # noqa: BLE001 - the status shows it, and the loop continues
            rounds = {name: ServiceRound(problems=(told(error),)) for name in loop.services}
            whole = False
        now = moment(self._clock_ms())
        with self._lock:
            for name, one in rounds.items():
                self._known[name] = self._known[name].after(one, now)
        return whole


class Rounds:
    """Housekeeping of several destinations in turn; with `clean_up`, every round cleans up, not only once a minute."""

    def __init__(self, domain: Domain, store: Store, *, clean_up: bool, searches: bool = True) -> None:
        """`searches`: for expired messages; else only for those of units of work."""
        self._domain, self._store, self._clean_up, self._searches = domain, store, clean_up, searches
        self._housekeepers: dict[str, Housekeeper] = {}

    def run(self, destinations: Sequence[str]) -> list[Round]:
        return [self._run(name) for name in destinations]

    def _run(self, name: str) -> Round:
        if name not in self._housekeepers:
            made = self._housekeepers[name] = Housekeeper(self._domain, self._store, name)
            made.searches = self._searches
            if self._clean_up:
                made.rounds.CLEAN_UP_EVERY_S = made.ABANDONED_EVERY_S = 0.0
                made.scans_at_once = True
        housekeeper = self._housekeepers[name]
        before = replace(housekeeper.rounds.total)
        if not housekeeper.run():
            return Round(name, busy=True, holder=housekeeper.holder())
        after = housekeeper.rounds.total
        return Round(
            name,
            False,
            after.purged_messages - before.purged_messages,
            after.purged_files - before.purged_files,
            after.compacted_files - before.compacted_files,
            after.checkpoints - before.checkpoints,
            after.deleted_files - before.deleted_files,
            after.expired_messages - before.expired_messages,
            tuple(housekeeper.health.failures.values()),
        )

    def close(self) -> None:
        for housekeeper in self._housekeepers.values():
            housekeeper.close()


class DomainServices:
    """What the services of a domain do. One thread at a time calls each method; `destinations` empty: all there are."""

    def __init__(
        self,
        domain: Domain,
        store: Store,
        destinations: Sequence[str] = (),
        *,
        once: bool = False,
        queries: Collection[str] = (),
    ) -> None:
        """`once`: expired messages are searched for, to the second; else they are found by the minute in which they fall due.
        `queries`: the services that streaming queries of this process do (jobs/services.py)."""
        self._domain, self._store, self._given, self._queries = domain, store, tuple(destinations), frozenset(queries)
        self._once = once
        self._rounds = Rounds(domain, store, clean_up=once, searches=once)
        self._expiration = EmbeddedExpiration(domain, store, destinations)
        self._forwarders = Forwarders(domain, store)
        self._usage = UsageHistory(domain, store)
        self._lag: tuple[LagRow, ...] = ()

    def loops(self, only: Sequence[str] = SERVICES) -> list[ServiceLoop]:
        """Of these services, as far as no queries do them. Housekeeping is a part of expiration: it judges units of work, and finishes
        what a killed process has begun."""
        kept = (EXPIRATION, HOUSEKEEPING) if self._once else (HOUSEKEEPING,)
        every = (
            *(() if self._once else (ServiceLoop((EXPIRATION,), 5.0, self.expire),)),
            ServiceLoop(kept, 5.0, self.keep_house),
            ServiceLoop((FORWARDING,), 1.0, self.forward),
            ServiceLoop((LAG,), 10.0, self.measure_lag),
            ServiceLoop((USAGE,), USAGE_EVERY_S, self.record_usage),
        )
        wanted = {*only, *((HOUSEKEEPING,) if EXPIRATION in only else ())}
        return [loop for loop in every if wanted & {*loop.services} and not self._queries >= {*loop.services}]

    @property
    def lag(self) -> tuple[LagRow, ...]:
        """As measured last."""
        return self._lag

    def expire(self) -> Mapping[str, ServiceRound]:
        count, prevented = self._expiration.run()
        problems = [f"{name}: {text}" for name, text in prevented.items() if self._is_there(name)]
        return {EXPIRATION: ServiceRound({"expired": count}, tuple(problems))}

    def keep_house(self) -> Mapping[str, ServiceRound]:
        kept, expired = Counter[str](), Counter[str]()
        problems: dict[str, list[str]] = {EXPIRATION: [], HOUSEKEEPING: []}
        for name in self._destinations():
            try:
                done = self._rounds.run([name])[0]
            except (JmsqError, StoreError, OSError) as error:
                if self._is_there(name):
                    problems[HOUSEKEEPING].append(f"{name}: {told(error)}")
                continue
            expired["expired"] += done.expired_messages
            kept["purged"] += done.purged_messages
            kept["compacted files"] += done.compacted_files
            kept["checkpoints"] += done.checkpoints
            kept["deleted files"] += done.deleted_files
            for failure in done.failures:
                service = EXPIRATION if failure.what == EXPIRATION else HOUSEKEEPING
                problems[service].append(f"{name}: {failure.what} failed: {failure.error}")
        if not self._once:  # of units of work
            kept, problems[HOUSEKEEPING] = kept + expired, problems[EXPIRATION] + problems[HOUSEKEEPING]
            return {HOUSEKEEPING: ServiceRound(kept, tuple(problems[HOUSEKEEPING]))}
        return {
            EXPIRATION: ServiceRound(expired, tuple(problems[EXPIRATION])),
            HOUSEKEEPING: ServiceRound(kept, tuple(problems[HOUSEKEEPING])),
        }

    def forward(self) -> Mapping[str, ServiceRound]:
        moved, problems = Counter[str](), list[str]()
        for one in self._forwarders.run(self._destinations()):
            moved["forwarded"] += sum(step.messages for step in one.moves)
            problems += [f"{one.destination}: {problem}" for problem in one.problems if self._is_there(one.destination)]
        return {FORWARDING: ServiceRound(moved, tuple(problems))}

    def measure_lag(self) -> Mapping[str, ServiceRound]:
        """And raise the high marks by what it has seen."""
        looked, rows, problems = dict[str, DestinationStatistics](), list[LagRow](), list[str]()
        for name in self._destinations():
            try:
                found = collect(self._domain, self._store, name)
            except (JmsqError, StoreError, OSError) as error:
                if self._is_there(name):
                    problems.append(f"{name}: {told(error)}")
                continue
            looked[name] = found
            rows.append(LagRow(name, found.backlog, found.claimed, found.oldest))
        self._lag = tuple(rows)
        try:
            note_looks(self._domain, looked)
        except (JmsqError, OSError) as error:
            problems.append(f"high marks: {told(error)}")
        return {LAG: ServiceRound(problems=tuple(problems))}

    def record_usage(self) -> Mapping[str, ServiceRound]:
        changed, errors = self._usage.record(self._destinations())
        problems = [f"{name}: {told(error)}" for name, error in errors.items() if self._is_there(name)]
        problems += [f"usage history: {text}" for text in self._usage.damaged]
        return {USAGE: ServiceRound({"windows": changed}, tuple(problems))}

    def close(self) -> None:
        self._rounds.close()

    def _destinations(self) -> list[str]:
        return [name for name in self._given if self._is_there(name)] if self._given else self._domain.destinations()

    def _is_there(self, name: str) -> bool:
        """A destination that was dropped meanwhile is no failure."""
        return name in self._domain.destinations()


class ServiceReporter:
    """Writes the report of this process."""

    def __init__(self, domain: Domain, engine: str, every_s: float = 10.0) -> None:
        """`every_s`: how often it reports."""
        self._domain, self._files, self._engine = domain, _files(domain), engine
        self.process = f"{socket.gethostname()}-{os.getpid()}"
        self._silent_s, self._has_forgotten = max(_SILENT_S, _MISSED * every_s), False

    def report(self, services: Sequence[ServiceStatus], lag: Sequence[LagRow]) -> str:
        """What prevented it; "" when nothing did. The first report deletes those of processes that were killed a day ago."""
        try:
            if not self._has_forgotten:
                self.forget_old()
                self._has_forgotten = True
            try:
                self._write(services, lag)
            except FileNotFoundError:  # the folder was deleted, and the storage remembers that it had made it
                self._domain.check_present()
                self._files = _files(self._domain)
                self._write(services, lag)
        except (DomainError, OSError) as error:
            return f"the report for --status cannot be written: {error}"
        return ""

    def _write(self, services: Sequence[ServiceStatus], lag: Sequence[LagRow]) -> None:
        document = {
            "atMs": now_ms(),
            "silentAfterS": self._silent_s,
            "engine": self._engine,
            "services": [{**asdict(one), "state": one.state} for one in services],
            "lag": [asdict(row) for row in lag],
        }
        self._files.put(self.process, json.dumps(document, default=datetime.isoformat).encode())

    def end(self) -> None:
        with suppress(OSError):  # the report stays for a day, silent
            self._files.delete(self.process)

    def forget_old(self) -> None:
        """The files of processes that were killed more than a day ago."""
        for name in self._files.names():
            data = self._files.get(name)
            report = None if data is None else _report(name, data)
            if data is not None and (report is None or moment(now_ms()) - report.at > _FORGOTTEN):
                self._files.delete(name)


def service_reports(domain: Domain) -> list[ServiceReport]:
    """Of the processes that run services, and of those that were killed in the last day."""
    files = _files(domain)
    reports = (_report(name, files.get(name) or b"") for name in files.names())
    return [report for report in reports if report is not None]


def told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _files(domain: Domain) -> NamedFiles:
    folder, name = SERVICES_FOLDER.rsplit("/", 1)
    return NamedFiles(domain.storage.child(folder), name)


def _report(name: str, data: bytes) -> ServiceReport | None:
    """None: it is damaged."""
    try:
        document = json.loads(data)
        at = moment(int(document["atMs"]))
        services, lag = tuple(document["services"]), tuple(document["lag"])
        silent = moment(now_ms()) - at > timedelta(seconds=document.get("silentAfterS", _SILENT_S))
        return ServiceReport(name, document["engine"], at, silent, services, lag)
    except (ValueError, KeyError, TypeError, ArithmeticError, OSError):  # also of a time that no calendar has
        return None
