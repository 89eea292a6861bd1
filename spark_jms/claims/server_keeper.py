"""Keeps the leases of the servers whose stores this process uses. core/server_lease.py has the theory.

One thread looks at the leases; each store is asked in a thread of its own. A new term goes to the tables of the destinations in
another thread:

    a process ...                       commits a new term to ...
    -------------                       -------------------------
    with any destination in use         those that it uses, at once
    that has begun the term             all destinations of the domain, and notes that
    other                               all, when that is not noted within a while: the process that began it has died

Features: D4 (docs/FEATURES.md)
"""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from spark_jms.claims.kept_server import KeptServer
from spark_jms.claims.lane import Lane, LaneBusyError
from spark_jms.claims.store_questions import StoreQuestions, monotonic_ms
from spark_jms.core.health import BackgroundFailure
from spark_jms.core.lease_term import HELD, LeaseTerm
from spark_jms.core.placement import HOME
from spark_jms.errors import InvalidDestinationError, JmsqError
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.domain import Domain
from spark_jms.log.monitor import Monitor
from spark_jms.log.server_leases import ServerLeases
from spark_jms.log.server_state import follow_term
from spark_jms.log.storage import now_ms

_TICK_S = 0.05
_SETTINGS_EVERY_MS = 5_000.0
_ADOPT_AFTER_MS = 5_000.0  # so long the process that has begun a term may take to commit it everywhere
_ADDRESS_S = 1.0
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 500, 5_000  # while the domain's storage fails
_chance = random.Random()  # our own, so that a program's seeded sequence does not depend on it


@dataclass
class _UsedServer:
    """`settings_ms`: when the length of its lease was read last. `term`: the newest that we know, since `term_ms`."""

    lease: KeptServer
    questions: StoreQuestions
    settings_ms: float
    term_ms: float
    term: LeaseTerm = HELD


class ServerKeeper:
    """Thread-safe. `ask(server)` reads something small from the server's store; `find_absence(server)` tells what is missing at its
    address; `take_sample(server)` asks as much as a delivery does, and tells the effort. The keeper starts with the first
    destination on servers, and ends with `close`."""

    def __init__(
        self,
        domain: Domain,
        ask: Callable[[str], object],
        find_absence: Callable[[str, float], str],
        take_sample: Callable[[str], float],
    ) -> None:
        self._domain, self._ask, self._find_absence, self._take_sample = domain, ask, find_absence, take_sample
        self._leases = ServerLeases(domain.storage, f"{socket.gethostname()}:{os.getpid()}")
        self._lock = threading.Lock()
        self._used: dict[str, DeltaLog] = {}
        self._kept: dict[str, _UsedServer] = {}
        self.committed: dict[str, LeaseTerm] = {}  # server -> the term that all destinations have
        self._commits, self._everywhere = Lane("lease terms"), Lane("lease terms of all destinations")
        self._monitor = Monitor(f"servers of {domain.root}")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def use(self, table: DeltaLog) -> None:
        """Keep the leases of the servers that this destination is on, from now on."""
        if table.snapshot.destination.placement is None:
            return
        with self._lock:
            self._used[table.name] = table
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._loop, name="jmsq server leases", daemon=True)
                self._thread.start()

    def note_late(self, server: str) -> None:
        """A delivery from its store was late, or has failed."""
        kept = self._kept.get(server)
        if kept is not None:
            kept.lease.note_late(monotonic_ms())

    def close(self) -> None:
        self._stop.set()
        with self._lock:
            thread = self._thread
        if thread is not None and threading.current_thread() is not thread:
            thread.join(timeout=10)
        for kept in self._kept.values():
            kept.questions.close()
        self._commits.close()
        self._everywhere.close()

    @property
    def failures(self) -> tuple[BackgroundFailure, ...]:
        """Of the domain's storage, now."""
        return tuple(self._monitor.health.failures.values())

    def _loop(self) -> None:
        while not self._stop.wait(_TICK_S):
            self.tick()

    def tick(self) -> None:
        """Raises nothing: the monitor logs failures of the storage."""
        with self._lock:
            used = list(self._used.values())
        on: dict[str, list[DeltaLog]] = {}
        for table in used:
            for server in table.snapshot.destination.servers_in_use():
                if server != HOME:
                    on.setdefault(server, []).append(table)
        for server, tables in on.items():
            stopped = any(server in table.snapshot.destination.stopped for table in tables)
            if stopped:  # its administrator may do with the store what he likes
                self._forget(server)
            else:
                self._watched(f"lease of server {server}", partial(self._keep, server, tables))
        for server in self._kept.keys() - on.keys():
            self._forget(server)

    def _watched(self, what: str, work: Callable[[], object]) -> None:
        self._monitor.run(what, work, _FIRST_PAUSE_MS, _LONGEST_PAUSE_MS)

    def _keep(self, server: str, tables: list[DeltaLog]) -> None:
        now = monotonic_ms()
        kept = self._kept.get(server)
        if kept is None:
            kept = self._kept[server] = self._made(server, now)
        elif now - kept.settings_ms >= _SETTINGS_EVERY_MS:
            kept.lease.changed_to(self._domain.servers.entry(server).lease_ms)
            kept.settings_ms = now
        terms = [table.snapshot.destination.terms.get(server, HELD) for table in tables]
        kept.lease.tick(now, max(terms, key=lambda term: term.number))
        self._commit(server, kept, tables, now)

    def _made(self, server: str, now: float) -> _UsedServer:
        length_ms = self._domain.servers.entry(server).lease_ms
        ask, find = partial(self._ask, server), partial(self._find_absence, server, _ADDRESS_S)
        questions = StoreQuestions(server, ask, find, partial(self._take_sample, server))
        share = _chance.uniform(0.0, 0.25)
        lease = KeptServer(server, questions, self._leases, self._domain.terms, length_ms, share, now_ms)
        return _UsedServer(lease, questions, now, now)

    def _forget(self, server: str) -> None:
        """To begin again when it is started, or used again."""
        kept = self._kept.pop(server, None)
        if kept is not None:
            kept.questions.close()

    # -- the tables -----------------------------------------------------------------------------------------------
    def _commit(self, server: str, kept: _UsedServer, tables: list[DeltaLog], now: float) -> None:
        known = kept.lease.known
        if kept.term != known.term:
            kept.term, kept.term_ms = known.term, now
        term = known.term
        behind = [t for t in tables if t.snapshot.destination.terms.get(server, HELD).number < term.number]
        if behind:
            self._run(self._commits, f"terms of server {server}", lambda: _follow(behind, server, term))
        adopted = kept.lease.has_begun or now - kept.term_ms >= _ADOPT_AFTER_MS
        if adopted and not known.done and self.committed.get(server) != term:
            work = partial(self.commit_everywhere, server, term)
            self._run(self._everywhere, f"terms of server {server} in all destinations", work)

    def _run(self, lane: Lane, what: str, work: Callable[[], object]) -> None:
        """Nothing while its last work is under way."""
        with suppress(LaneBusyError):
            lane.run(partial(self._watched, what, work), 0.0)

    def commit_everywhere(self, server: str, term: LeaseTerm) -> None:
        failed: list[Exception] = []
        for name in self._domain.registered():
            if self._stop.is_set():
                return
            try:
                with suppress(InvalidDestinationError):  # it is being dropped
                    follow_term(self._domain.log(name), server, term)
            except (JmsqError, OSError) as error:  # the others follow all the same
                failed.append(error)
        if failed:
            raise failed[0]
        self._domain.terms.note_done(server, term)
        self.committed[server] = term


def _follow(tables: list[DeltaLog], server: str, term: LeaseTerm) -> None:
    failed: list[Exception] = []
    for table in tables:
        try:
            with suppress(InvalidDestinationError):  # dropped meanwhile
                follow_term(table, server, term)
        except (JmsqError, OSError) as error:
            failed.append(error)
    if failed:
        raise failed[0]
