"""The leases of the servers whose stores this process uses: what core/destinations/servers.py decides, done.

One thread of the ServerKeeper looks at the leases, a LeasedServer each. A StoreProbe asks each server's store in threads of its
own, so that a store that hangs holds up no caller. A new term goes to the tables of the destinations in yet other threads:

    a process ...                       commits a new term to ...
    -------------                       -------------------------
    with any destination in use         those that it uses, at once
    that has begun the term             all destinations of the domain, and notes that
    other                               all, when that is not noted within a while: the process that began it has died

Features: D4, M10 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from spark_jms.claims.servers.timed_stores import Runs, StoreThread, StoreThreadBusyError
from spark_jms.core.destinations.servers import (
    FAILED,
    HELD,
    HOME,
    LOOK_MS,
    Act,
    Contact,
    Evidence,
    LeaseTerm,
    LeaseView,
    Phase,
    Promptness,
    Reach,
    Samples,
    decide,
)
from spark_jms.errors import InvalidDestinationError, JmsqError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.destinations.servers import KnownTerm, ServerLeases, ServerTerms, follow_term
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.health import BackgroundFailure, Monitor

log = logging.getLogger("spark_jms")
_TICK_S = 0.05
_LOOK_SOON_MS = 100.0  # while the lease is due or challenged, or the store does not answer
_TERMS_EVERY_MS = 5_000.0
_SETTINGS_EVERY_MS = 5_000.0
_TABLES_EVERY_MS = 1_000.0  # an idle process learns so of a server that was stopped or started
_ADOPT_AFTER_MS = 5_000.0  # so long the process that has begun a term may take to commit it everywhere
_ADDRESS_S = 1.0
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 500, 5_000  # while the domain's storage fails
_chance = random.Random()  # our own, so that a program's seeded sequence does not depend on it


@dataclass
class _UsedServer:
    """A server whose lease is kept. `settings_ms`: when the length of its lease was read last. `term`: the newest that we know,
    since `term_ms`. `members`: those on it, by the id of their table."""

    lease: LeasedServer
    questions: StoreProbe
    settings_ms: float
    term_ms: float
    members: Set[tuple[str, int]]
    term: LeaseTerm = HELD


class ServerKeeper:
    """Keeps the leases of the servers whose stores this process uses. Thread-safe. `ask(server)` reads something small from the
    server's store; `begin(server)` comes before its first question; `find_absence(server)` tells what is missing at its address;
    `take_sample(server)` asks as much as a delivery does, and tells the effort. The keeper starts with the first destination on
    servers, and ends with `close`."""

    def __init__(
        self,
        domain: Domain,
        ask: Callable[[str], object],
        begin: Callable[[str], object],
        find_absence: Callable[[str, float], str],
        take_sample: Callable[[str], float],
    ) -> None:
        self._domain, self._ask, self._find_absence, self._take_sample = domain, ask, find_absence, take_sample
        self._begin = begin
        self._leases = ServerLeases(domain.storage, f"{socket.gethostname()}:{os.getpid()}")
        self._lock = threading.Lock()
        self._used: dict[str, DeltaLog] = {}
        self._kept: dict[str, _UsedServer] = {}
        self.committed: dict[str, LeaseTerm] = {}  # server -> the term that all destinations have
        self._commits, self._everywhere = StoreThread("lease terms"), StoreThread("lease terms of all destinations")
        self._monitor = Monitor(f"servers of {domain.root}")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._refreshed_ms = monotonic_ms()

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
        if monotonic_ms() - self._refreshed_ms >= _TABLES_EVERY_MS:
            self._refreshed_ms = monotonic_ms()
            self._run(self._commits, "tables of destinations on servers", partial(_of_each, used, DeltaLog.refresh))
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
        members = {(t.snapshot.table_id, m) for t in tables for m in t.snapshot.destination.members_on(server)}
        kept = self._kept.get(server)
        if kept is not None and members.isdisjoint(kept.members):  # it was removed, and has been added again
            self._forget(server)
            kept = None
        if kept is None:
            kept = self._kept[server] = self._made(server, now, members)
        elif now - kept.settings_ms >= _SETTINGS_EVERY_MS:
            kept.lease.changed_to(self._domain.servers.entry(server).lease_ms)
            kept.settings_ms = now
        kept.members = members
        terms = [table.snapshot.destination.terms.get(server, HELD) for table in tables]
        kept.lease.tick(now, max(terms, key=lambda term: term.number))
        self._commit(server, kept, tables, now)

    def _made(self, server: str, now: float, members: Set[tuple[str, int]]) -> _UsedServer:
        length_ms = self._domain.servers.entry(server).lease_ms
        find, begun = partial(self._find_absence, server, _ADDRESS_S), threading.Event()

        def ask() -> object:
            if not begun.is_set():
                self._begin(server)
                begun.set()
            return self._ask(server)

        questions = StoreProbe(server, ask, find, partial(self._take_sample, server))
        share = _chance.uniform(0.0, 0.25)
        lease = LeasedServer(server, questions, self._leases, self._domain.terms, length_ms, share, now_ms)
        return _UsedServer(lease, questions, now, now, members)

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
            follow = partial(follow_term, server=server, term=term)
            self._run(self._commits, f"terms of server {server}", lambda: _of_each(behind, follow))
        adopted = kept.lease.has_begun or now - kept.term_ms >= _ADOPT_AFTER_MS
        if adopted and not known.done and self.committed.get(server) != term:
            work = partial(self.commit_everywhere, server, term)
            self._run(self._everywhere, f"terms of server {server} in all destinations", work)

    def _run(self, thread: StoreThread, what: str, work: Callable[[], object]) -> None:
        """Nothing while its last work is under way."""
        with suppress(StoreThreadBusyError):
            thread.run(partial(self._watched, what, work), 0.0)

    def commit_everywhere(self, server: str, term: LeaseTerm) -> None:
        def follow(name: str) -> None:
            if not self._stop.is_set():
                follow_term(self._domain.log(name), server, term)

        _of_each(self._domain.registered(), follow)
        if not self._stop.is_set():
            self._domain.terms.note_done(server, term)
            self.committed[server] = term


_Table = TypeVar("_Table", DeltaLog, str)


def _of_each(tables: Iterable[_Table], work: Callable[[_Table], object]) -> None:
    """Where one fails, the others follow all the same."""
    failed: list[Exception] = []
    for table in tables:
        try:
            with suppress(InvalidDestinationError):  # dropped meanwhile
                work(table)
        except (JmsqError, OSError) as error:
            failed.append(error)
    if failed:
        raise failed[0]


# -- one server --------------------------------------------------------------------------------------------------------


class Questions(Protocol):
    """Asks one server's store, looks at its address and takes samples, without waiting: a StoreProbe."""

    @property
    def contact(self) -> Contact: ...

    @property
    def samples(self) -> Samples: ...

    def ask(self, now_ms: float) -> None: ...

    def look(self, now_ms: float) -> None: ...

    def sample(self, now_ms: float) -> None: ...


class LeasedServer:
    """One server's lease. Not thread-safe. `known` is the newest term that this process has seen; `has_begun`: it is this
    process's."""

    def __init__(
        self,
        server: str,
        questions: Questions,
        leases: ServerLeases,
        terms: ServerTerms,
        length_ms: int,
        due_share: float,
        wall_ms: Callable[[], int],
    ) -> None:
        self.server, self.known, self.has_begun = server, KnownTerm(), False
        self._questions, self._leases, self._terms, self._wall_ms = questions, leases, terms, wall_ms
        self._view = LeaseView(length_ms, due_share)
        self._looked_ms = self._asked_ms = self._terms_ms = float("-inf")
        self._late_ms: float | None = None

    def changed_to(self, length_ms: float) -> None:
        self._view = LeaseView(length_ms, self._view.due_share) if length_ms != self._view.length_ms else self._view

    def note_late(self, now_ms: float) -> None:
        """From any thread: a delivery from the store was late, or has failed."""
        self._late_ms = self._late_ms or now_ms

    @property
    def _evidence(self) -> Evidence:
        return Evidence(self._questions.contact, self._questions.samples, self._late_ms)

    @property
    def _lapsed(self) -> bool:
        return self.known.term.lapsed_ms is not None

    def tick(self, now_ms: float, in_tables: LeaseTerm) -> None:
        """Called often. `in_tables` is the newest term that a destination's table has. Raises OSError and JmsqError of the
        storage."""
        view, contact = self._view, self._questions.contact
        urgent = view.phase(now_ms) is not Phase.FRESH or contact.is_suspicious(now_ms)
        every_ms = _LOOK_SOON_MS if urgent and not self._lapsed else LOOK_MS
        if contact.asked_ms is None and now_ms - self._asked_ms >= every_ms:
            self._asked_ms = now_ms
            self._questions.ask(now_ms)
        if self._questions.contact.is_suspicious(now_ms):
            self._questions.look(now_ms)
        if self._evidence.wants_sample(view, now_ms, lapsed=self._lapsed):
            self._questions.sample(now_ms)
        if now_ms - self._looked_ms >= every_ms:
            self._looked_ms = now_ms
            self._look(now_ms, in_tables)

    def _look(self, now_ms: float, in_tables: LeaseTerm) -> None:
        self._view = self._view.seen(self._leases.read(self.server), now_ms)
        if now_ms - self._terms_ms >= _TERMS_EVERY_MS or in_tables.number > self.known.term.number:
            self._read_terms(now_ms, in_tables)
        act = self._decide(now_ms)
        if act in (Act.TAKE_DOWN, Act.TAKE_UP):
            self._read_terms(now_ms, in_tables)  # another process may have done it
            act = self._decide(now_ms)
        if act in (Act.CHALLENGE, Act.DOUBT):
            self._view = self._view.marked(act, now_ms)
        if act is Act.CHALLENGE:
            log.info("server %s: no store at its address; the other processes are asked", self.server)
            self._leases.challenge(self.server)
        elif act is Act.DOUBT:
            log.info(
                "server %s: its store delivers too late, or not at all; the other processes are asked", self.server
            )
            self._leases.doubt(self.server)
        elif act is Act.TAKE_DOWN:
            slow = self._evidence.reach(self._view, now_ms, lapsed=False) is Reach.SLOW
            self._begin(self._wall_ms(), "delivers too late, or not at all" if slow else "is away")
        elif act in (Act.RENEW, Act.TAKE_UP):
            self._leases.renew(self.server, int(self._view.length_ms), self._wall_ms())
            if act is Act.TAKE_UP:
                self._begin(None)

    def _decide(self, now_ms: float) -> Act:
        evidence = self._evidence
        if (
            evidence.late_ms is not None
            and evidence.promptness(self._view, now_ms, lapsed=self._lapsed) is Promptness.GOOD
        ):
            self._late_ms = None
        return decide(self._view, evidence, now_ms, lapsed=self._lapsed)

    def _read_terms(self, now_ms: float, in_tables: LeaseTerm) -> None:
        """A later term in a table is one that the domain has lost."""
        self._terms_ms = now_ms
        found = self._terms.newest().get(self.server, KnownTerm())
        if in_tables.number > found.term.number:
            found = KnownTerm(in_tables)
        self.has_begun = self.has_begun and found.term == self.known.term
        self.known = found

    def _begin(self, lapsed_ms: int | None, why: str = "") -> None:
        term = self.known.term.next(lapsed_ms)
        if self._terms.begin(self.server, term):
            self.known, self.has_begun = KnownTerm(term, done=False), True
            state = "answers again" if lapsed_ms is None else f"{why}, and its lease has lapsed: senders avoid it"
            log.warning("server %s %s", self.server, state)
        else:
            self._terms_ms = float("-inf")


def monotonic_ms() -> float:
    return time.monotonic() * 1000


class StoreProbe:
    """Asks one server's store. Thread-safe. `read` asks the store, `find_absence` looks at its address and tells what is missing
    there, `take_sample` asks as much as a delivery does and tells the effort."""

    def __init__(
        self,
        server: str,
        read: Callable[[], object],
        find_absence: Callable[[], str],
        take_sample: Callable[[], float],
        store_thread: Callable[[str], Runs] = StoreThread,
        clock_ms: Callable[[], float] = monotonic_ms,
    ) -> None:
        self._server, self._read, self._find_absence, self._clock_ms = server, read, find_absence, clock_ms
        self._take_sample = take_sample
        self._asking, self._looking = store_thread(f"lease of {server}"), store_thread(f"address of {server}")
        self._sampling = store_thread(f"sample of {server}")
        self._lock = threading.Lock()
        self._contact, self._samples = Contact(), Samples()

    @property
    def contact(self) -> Contact:
        return self._contact

    @property
    def samples(self) -> Samples:
        return self._samples

    def ask(self, now_ms: float) -> None:
        """Nothing while another question is under way. The thread is busy for a moment longer than that: a question that it
        refused would count as one without an answer, for ever."""
        if self._asking.busy:
            return
        with self._lock:
            self._contact = self._contact.asked(now_ms)
        with suppress(StoreThreadBusyError):
            self._asking.run(self._ask, 0.0)

    def look(self, now_ms: float) -> None:
        """Nothing while another look is under way."""
        with suppress(StoreThreadBusyError):
            self._looking.run(self._look, 0.0)

    def sample(self, now_ms: float) -> None:
        """As `ask`."""
        if self._sampling.busy:
            return
        with self._lock:
            self._samples = self._samples.begin(now_ms)
        with suppress(StoreThreadBusyError):
            self._sampling.run(self._sample, 0.0)

    def close(self) -> None:
        self._asking.close()
        self._looking.close()
        self._sampling.close()

    # -- in the threads -------------------------------------------------------------------------------------------
    def _ask(self) -> None:
        try:
            self._read()
        except Exception as error:  # noqa: BLE001 - whatever it is, the store gave no answer
            log.debug("server %s: %s", self._server, error)
            with self._lock:
                self._contact = self._contact.failed()
        else:
            with self._lock:
                self._contact = self._contact.answered()

    def _look(self) -> None:
        now_ms = self._clock_ms()
        try:
            absent = self._find_absence()
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is known of the address
            log.debug("server %s: its address is unknown: %s", self._server, error)
            absent = ""
        with self._lock:
            self._contact = self._contact.looked(now_ms, absent=bool(absent))

    def _sample(self) -> None:
        try:
            effort = self._take_sample()
        except Exception as error:  # noqa: BLE001 - whatever it is, a delivery would have failed
            log.debug("server %s: a sample failed: %s", self._server, error)
            effort = FAILED
        with self._lock:
            self._samples = self._samples.end(effort, self._clock_ms())
