"""The services of a domain in one process: expiration, housekeeping, forwarding, lag and the usage history.

Each loop has a thread of its own, so one that hangs or fails holds up no other; a loop tells of one or more services. What a
service does is safe to be killed at any moment, and may run in several processes: a lease, or the record's holder, decides
who does it. So a restart needs nothing but the start.

Features: C13, D5, T3, T6, T17 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from spark_jms.admin.forward import Forwarders
from spark_jms.admin.high_marks import note_looks
from spark_jms.admin.housekeeping import Rounds
from spark_jms.admin.statistics import DestinationStatistics, collect
from spark_jms.claims.usage_history import UsageHistory
from spark_jms.claims.views import moment
from spark_jms.core.health import pause
from spark_jms.errors import JmsqError
from spark_jms.log.domain import Domain
from spark_jms.log.storage import now_ms
from spark_jms.store import Store, StoreError

EXPIRATION, HOUSEKEEPING, FORWARDING, LAG, USAGE = "expiration", "housekeeping", "forwarding", "lag", "usage"
SERVICES = (EXPIRATION, HOUSEKEEPING, FORWARDING, LAG, USAGE)
LONGEST_PAUSE_MS = 60_000
_STOP_S = 30.0
_FIRST_PAUSE_MS = 1_000


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
class ServiceLoop:
    """`work` does one round of these services. Between two rounds it pauses for `every_s`."""

    services: tuple[str, ...]
    every_s: float
    work: Callable[[], Mapping[str, ServiceRound]]


class ServiceRunner:
    """Runs loops, each in a thread, and knows how they are. Thread-safe."""

    def __init__(self, loops: Sequence[ServiceLoop], clock_ms: Callable[[], int] = now_ms) -> None:
        self._loops, self._clock_ms = loops, clock_ms
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._known = {name: ServiceStatus(name) for loop in loops for name in loop.services}
        self._failures, self._paused_until_s = Counter[tuple[str, ...]](), dict[tuple[str, ...], float]()
        self._threads = [
            threading.Thread(target=self._run, args=(loop,), name=f"jmsq-service {loop.services[0]}", daemon=True)
            for loop in loops
        ]

    def run_once(self) -> None:
        """One round of each, in this thread."""
        for loop in self._loops:
            self._round(loop)

    def tick(self, loop: ServiceLoop, clock_s: Callable[[], float] = time.monotonic) -> None:
        """A round of a loop whose moments come from elsewhere, unless it pauses because it fails."""
        if clock_s() < self._paused_until_s.get(loop.services, 0.0):
            return
        self._failures[loop.services] = 0 if self._round(loop) else self._failures[loop.services] + 1
        if failures := self._failures[loop.services]:
            self._paused_until_s[loop.services] = clock_s() + pause(_FIRST_PAUSE_MS, failures, LONGEST_PAUSE_MS) / 1000

    def failed(self, loop: ServiceLoop, problem: str) -> None:
        """Outside its rounds."""
        now = moment(self._clock_ms())
        with self._lock:
            for name in loop.services:
                self._known[name] = self._known[name].after(ServiceRound(problems=(problem,)), now)

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


class DomainServices:
    """What the services of a domain do. One thread at a time calls each method; `destinations` empty: all there are."""

    def __init__(self, domain: Domain, store: Store, destinations: Sequence[str] = (), *, once: bool = False) -> None:
        self._domain, self._store, self._given = domain, store, tuple(destinations)
        self._rounds, self._forwarders = Rounds(domain, store, clean_up=once), Forwarders(domain, store)
        self._usage = UsageHistory(domain, store)
        self._lag: tuple[LagRow, ...] = ()

    def loops(self, only: Sequence[str] = SERVICES) -> list[ServiceLoop]:
        """Of these services. Expired messages are searched by housekeeping, under its lease: the two have one loop."""
        every = (
            ServiceLoop((EXPIRATION, HOUSEKEEPING), 5.0, self.keep_house),
            ServiceLoop((FORWARDING,), 1.0, self.forward),
            ServiceLoop((LAG,), 10.0, self.measure_lag),
            ServiceLoop((USAGE,), 10.0, self.record_usage),
        )
        return [loop for loop in every if set(loop.services) & set(only)]

    @property
    def lag(self) -> tuple[LagRow, ...]:
        """As measured last."""
        return self._lag

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


def told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
