"""The way to an engine in another process: plans run on a replica of its ledger, and their entries are sent to it.

A read fetches what the engine has kept since, then asks the replica. A write runs its plans on a scratch of the replica
and sends the entries with the position they were made on. The engine refuses entries that no longer fit; then the replica
catches up and the plans run again. The access trusts a plan that raises or makes no entries only on a fresh replica.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from spark_jms.store.engine import wire
from spark_jms.store.engine.access import Access, Appended, AppendInDoubtError, expect_answer, run_plans
from spark_jms.store.engine.entry_log import Verdict
from spark_jms.store.engine.ledger_replica import LedgerReplica
from spark_jms.store.engine.link import Address, LinkLostError, TcpLink
from spark_jms.store.engine.scratch_ledger import ScratchLedger
from spark_jms.store.engine.shared_write import Proposal
from spark_jms.store.errors import StoreBusyError
from spark_jms.store.ledger.backend import Transaction
from spark_jms.store.ledger.codec import encode
from spark_jms.store.ledger.group import PlanCall
from spark_jms.store.ledger.ledger import Ledger

T = TypeVar("T")

MAX_ATTEMPTS = 200
_chance = random.Random()  # our own, so that a program's seeded sequence does not depend on how often a client waited


class RemoteAccess(Access):
    """Two links, so that a reader never waits for the disk behind a write."""

    def __init__(
        self,
        address: Address,
        client_id: str,
        patience_s: float,
        replica: LedgerReplica,
        sleep_ms: Callable[[float], None],
    ) -> None:
        self._replica = replica
        self._sleep_ms = sleep_ms
        self._reading = TcpLink(address, client_id, patience_s, patience_s)
        try:
            self._writing = TcpLink(address, client_id, None, patience_s)
        except LinkLostError:
            self._reading.close()
            raise

    def read(self, question: Callable[[Ledger], T]) -> T:
        with self._replica.lock:
            self._refresh()
            return question(self._replica.ledger)

    def _refresh(self) -> bool:
        """True when there was news. The caller holds the replica's lock."""
        place = self._replica.place
        answer = expect_answer(self._reading.ask(wire.Fetch(place.incarnation, place.position)))
        assert isinstance(answer, wire.Paged)
        return self._replica.take_over(answer, place)

    def write(self, calls: Sequence[PlanCall]) -> Appended | None:
        for attempt in range(MAX_ATTEMPTS):
            proposal = self._propose(calls)
            if not proposal.entries:
                return None
            try:
                verdict = self.append(proposal)
            except LinkLostError as error:
                raise AppendInDoubtError(replace(proposal, again=True), str(error)) from error
            if verdict is Verdict.TAKEN:
                return Appended(proposal.entries, counts_as_write=True)
            if attempt > 2:
                self._sleep_ms(_chance.uniform(0, min(attempt, 20)))
        raise StoreBusyError(f"other clients were faster {MAX_ATTEMPTS} times")

    def _propose(self, calls: Sequence[PlanCall]) -> Proposal:
        with self._replica.lock:
            transaction = self._run(calls)
            certain = transaction.entries and not any(call.error for call in calls)
            if not certain and self._refresh():
                transaction = self._run(calls)
            return Proposal(secrets.token_hex(8), self._replica.place.position, tuple(transaction.entries))

    def _run(self, calls: Sequence[PlanCall]) -> Transaction:
        transaction = Transaction(ScratchLedger(self._replica.ledger))
        run_plans(calls, transaction)
        return transaction

    def append(self, proposal: Proposal) -> Verdict:
        """Not under the replica's lock: a reader keeps it while an engine that is uncertain makes it wait, then has both links
        closed, and would always be faster."""
        place, entries = self._replica.place, encode(proposal.entries)
        question = wire.Append(
            place.incarnation, place.position, proposal.token, proposal.base, proposal.again, entries
        )
        answer = expect_answer(self._writing.ask(question))
        assert isinstance(answer, wire.Paged)
        self._replica.take_over(answer, place)
        return Verdict(answer.verdict)

    def ask(self, question: wire.Beat | wire.Alive) -> wire.Answer:
        return expect_answer(self._reading.ask(question))

    def close(self) -> None:
        self._reading.close()
        self._writing.close()

    def abandon(self) -> None:
        self._reading.abandon()
        self._writing.abandon()
