"""A client's way to one engine: the port `Access`, in the engine's process (LocalAccess) or over sockets (RemoteAccess).

LocalAccess runs plans inside the engine's write, on its ledger. RemoteAccess runs them on a replica of that ledger, which follows
the engine page by page:

    read     fetches what the engine has kept since, then asks the replica
    write    runs its plans on a scratch of the replica and sends the entries with the position they were made on
    change   asks the engine to run the rule, which needs no replica

The engine refuses entries that no longer fit; then the replica catches up and the plans run again. RemoteAccess trusts a plan that
raises or makes no entries only on a fresh replica.
"""

from __future__ import annotations

import random
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from spark_jms.store.engine import connections
from spark_jms.store.engine.connections import Address, LinkLostError, TcpLink
from spark_jms.store.engine.entry_log import ChangeProposal, OwnershipLostError, Proposal, Share, SharedWrite, Verdict
from spark_jms.store.engine.server import Server
from spark_jms.store.errors import StoreBusyError, error_of
from spark_jms.store.ledger.backend import Transaction
from spark_jms.store.ledger.codec import encode
from spark_jms.store.ledger.group_commit import PlanCall
from spark_jms.store.ledger.ledger import Ledger, ScratchLedger
from spark_jms.store.ledger.record import Entry

T = TypeVar("T")
MAX_ATTEMPTS = 200
_chance = random.Random()  # our own, so that a program's seeded sequence does not depend on how often a client waited


class AppendInDoubtError(LinkLostError):
    """The engine was lost while it wrote. `proposal` finds out from the next engine what became of the write."""

    def __init__(self, proposal: Proposal, why: str) -> None:
        super().__init__(why)
        self.proposal = proposal


class Appended(NamedTuple):
    """What a write has appended. Of the shares of one write of this process, only the first counts as a write."""

    entries: Sequence[Entry]
    counts_as_write: bool


class Access(ABC):
    """Every method raises LinkLostError once the engine can no longer be used; it may have done what was asked."""

    @abstractmethod
    def read(self, question: Callable[[Ledger], T]) -> T: ...

    @abstractmethod
    def write(self, calls: Sequence[PlanCall]) -> Appended | None:
        """Run the plans on the newest ledger and make their entries durable together. None when the plans made no entries.
        Each call has its own result or error.

        AppendInDoubtError when the engine was lost after the plans had run. Any other LinkLostError: nothing was kept."""

    @abstractmethod
    def append(self, proposal: Proposal) -> Verdict: ...

    @abstractmethod
    def change(self, wanted: Sequence[ChangeProposal]) -> Sequence[connections.Made]:
        """Have the engine make the changes, at least one. All have the same `base` and `again`."""

    @property
    @abstractmethod
    def makes_changes(self) -> bool:
        """False: the engine is of an older release, which knows no rules."""

    @property
    @abstractmethod
    def position(self) -> int:
        """How far this process has followed the engine's log, at least."""

    @abstractmethod
    def ask(self, question: connections.Beat | connections.Alive) -> connections.Answer: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def abandon(self) -> None:
        """In a forked child: drop the descriptors and send nothing."""


class LocalAccess(Access):
    def __init__(self, server: Server, client_id: str) -> None:
        self.server = server
        self._client_id = client_id
        self._open = True
        server.connected(client_id)

    def read(self, question: Callable[[Ledger], T]) -> T:
        try:
            return self.server.look(question)
        except OwnershipLostError as error:
            raise LinkLostError(error.detail()) from error

    def write(self, calls: Sequence[PlanCall]) -> Appended | None:
        share: Share | None = None

        def plan(shared: SharedWrite) -> None:
            nonlocal share
            share = None  # the server runs a plan again when it writes each one alone
            first = len(shared.entries)
            try:
                run_plans(calls, shared)
            except LinkLostError:
                shared.undo(first)
                raise
            if len(shared.entries) > first:
                share = shared.share(first)

        try:
            self.server.write(plan)
        except OwnershipLostError as error:
            if share is not None:
                raise AppendInDoubtError(share.proposal(), error.detail()) from error
            raise LinkLostError(error.detail()) from error
        return None if share is None else Appended(share.entries, share.number == 0)

    def append(self, proposal: Proposal) -> Verdict:
        try:
            return self.server.append(proposal)
        except OwnershipLostError as error:
            raise LinkLostError(error.detail()) from error

    def change(self, wanted: Sequence[ChangeProposal]) -> Sequence[connections.Made]:
        try:
            return [connections.made_of(call) for call in self.server.change(wanted)]
        except OwnershipLostError as error:
            raise LinkLostError(error.detail()) from error

    @property
    def makes_changes(self) -> bool:
        return True

    @property
    def position(self) -> int:
        return self.server.statistics().position

    def ask(self, question: connections.Beat | connections.Alive) -> connections.Answer:
        return expect_answer(self.server.answer(self._client_id, question))

    def close(self) -> None:
        if self._open:
            self._open = False
            self.server.disconnected(self._client_id)

    def abandon(self) -> None:
        self._open = False


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
        answer = expect_answer(self._reading.ask(connections.Fetch(place.incarnation, place.position)))
        assert isinstance(answer, connections.Paged)
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
        question = connections.Append(
            place.incarnation, place.position, proposal.token, proposal.base, proposal.again, entries
        )
        answer = expect_answer(self._writing.ask(question))
        assert isinstance(answer, connections.Paged)
        self._replica.take_over(answer, place)
        return Verdict(answer.verdict)

    def change(self, wanted: Sequence[ChangeProposal]) -> Sequence[connections.Made]:
        place, (first, *_) = self._replica.place, wanted
        asked = tuple(connections.wanted_of(one.token, one.request) for one in wanted)
        question = connections.MakeChanges(place.incarnation, place.position, first.base, first.again, asked)
        answer = expect_answer(self._writing.ask(question))
        assert isinstance(answer, connections.Changed)
        self._replica.take_over(answer.page, place)
        return answer.made

    @property
    def makes_changes(self) -> bool:
        return self._writing.changes

    @property
    def position(self) -> int:
        return self._replica.place.position

    def ask(self, question: connections.Beat | connections.Alive) -> connections.Answer:
        return expect_answer(self._reading.ask(question))

    def close(self) -> None:
        self._reading.close()
        self._writing.close()

    def abandon(self) -> None:
        self._reading.abandon()
        self._writing.abandon()


class ReplicaPlace(NamedTuple):
    """How far a replica has come: in which engine's log, and to which position of it."""

    incarnation: str
    position: int


_UNKNOWN = ReplicaPlace("", 0)


class LedgerReplica:
    """A client's copy of the engine's ledger, which survives a change of engine.

    The caller holds `lock` while it asks `ledger`; it may look at `place` without: then it never waits for a reader that
    holds the lock while the engine does not answer.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.ledger, self.place = Ledger(), _UNKNOWN

    def take_over(self, answer: connections.Paged, asked: ReplicaPlace) -> bool:
        """Apply a page that was requested from the place `asked`; the replica may be further by now. True when the page held
        news."""
        entries = connections.entries_of(answer)
        with self.lock:
            now = self.place
            if answer.snapshot:
                if answer.incarnation == now.incarnation and answer.position <= now.position:
                    return False
                if asked != now and answer.incarnation != now.incarnation:
                    return False  # perhaps from an engine before the one that the replica follows now: ask again
                self.ledger = Ledger()
            else:
                if (answer.incarnation, asked.incarnation) != (now.incarnation, now.incarnation):
                    return False
                entries = entries[now.position - asked.position :]
            reached = answer.position if answer.snapshot else max(now.position, answer.position)
            self.place = _UNKNOWN  # while a page is half applied
            try:
                for entry in entries:
                    self.ledger.apply(entry)
            except BaseException:  # interrupted
                self.ledger = Ledger()
                raise
            self.place = ReplicaPlace(answer.incarnation, reached)
            return bool(entries) or answer.snapshot


def run_plans(calls: Sequence[PlanCall], transaction: Transaction) -> None:
    """LinkLostError when a plan lost the engine: its caller never sees that, because all plans run again elsewhere."""
    for call in calls:
        call.run(transaction)
        if call.error is not None and isinstance(call.error, LinkLostError):
            lost, call.error = call.error, None
            raise lost


def expect_answer(message: connections.Any_) -> connections.Answer:
    """The message itself when it is an answer. Raises the error that a Refusal carries."""
    if isinstance(message, connections.Refusal):
        if not message.name:
            raise LinkLostError(str(message.facts[0] if message.facts else "the engine has stopped"))
        raise error_of(message.name, message.facts)
    if not isinstance(message, connections.Paged | connections.Changed | connections.Alive | connections.Done):
        raise LinkLostError(f"the engine sent no answer but {type(message).__name__}")
    return message
