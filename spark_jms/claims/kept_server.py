"""One server's lease, kept by this process: what core/server_lease.py decides, done.

Features: D4 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from spark_jms.core.delivery_sample import Promptness, Samples
from spark_jms.core.lease_term import LeaseTerm
from spark_jms.core.server_lease import LOOK_MS, Act, Contact, Evidence, LeaseView, Phase, Reach, decide
from spark_jms.log.server_leases import ServerLeases
from spark_jms.log.server_terms import KnownTerm, ServerTerms

log = logging.getLogger("spark_jms")
_LOOK_SOON_MS = 100.0  # while the lease is due or challenged, or the store does not answer
_TERMS_EVERY_MS = 5_000.0


class Questions(Protocol):
    """Asks one server's store, looks at its address and takes samples, without waiting."""

    @property
    def contact(self) -> Contact: ...

    @property
    def samples(self) -> Samples: ...

    def ask(self, now_ms: float) -> None: ...

    def look(self, now_ms: float) -> None: ...

    def sample(self, now_ms: float) -> None: ...


class KeptServer:
    """Not thread-safe. `known` is the newest term that this process has seen; `has_begun`: it is this process's."""

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
