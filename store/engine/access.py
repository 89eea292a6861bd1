"""How a client reads the engine's ledger and adds to it: in the engine's own process, or over sockets.

In the engine's process there is one ledger: questions are asked of it, and plans run on a scratch of it. Elsewhere a
client keeps a `LedgerReplica`. A read fetches what was kept since and asks the replica; a plan runs on a scratch of the replica,
and is sent with the position it was made on; a plan that raises or does nothing is believed on a fresh replica only.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from spark_jms.store.engine import wire
from spark_jms.store.engine.entry_log import Proposal, Verdict
from spark_jms.store.engine.link import Address, LinkLostError, TcpLink
from spark_jms.store.engine.persistence import OwnershipLostError
from spark_jms.store.engine.scratch_ledger import ScratchLedger
from spark_jms.store.engine.server import Server
from spark_jms.store.ledger.codec import encode
from spark_jms.store.ledger.ledger import Entry, Ledger

T = TypeVar("T")

Plan = Callable[[Ledger], tuple[list[Entry], bool]]
"""Runs on a ledger that is thrown away: the entries, and whether they are to be believed without a fresh look."""


@dataclass(frozen=True)
class Draft:
    """What a plan came to, and on what. `after`: the engine's own ledger with these entries on it."""

    incarnation: str
    position: int
    entries: tuple[Entry, ...]
    after: ScratchLedger | None = field(default=None, compare=False)

    @cached_property
    def data(self) -> bytes:
        return encode(self.entries)


class Access(ABC):
    """LinkLostError, of every method, when the engine is not to be had this way any more; what was asked of it may have
    been done."""

    target: Server | Address

    @abstractmethod
    def read(self, question: Callable[[Ledger], T]) -> T: ...

    @abstractmethod
    def draft(self, plan: Plan) -> Draft: ...

    @abstractmethod
    def append(self, draft: Draft, token: str, again: bool) -> Verdict: ...

    @abstractmethod
    def ask(self, question: wire.Beat | wire.Alive) -> wire.Answer: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def abandon(self) -> None:
        """In a forked child: drop descriptors, say nothing."""


class LocalAccess(Access):
    def __init__(self, server: Server, client_id: str) -> None:
        self.target = self._server = server
        self._client_id = client_id
        self._open = True
        server.connected(client_id)

    def read(self, question: Callable[[Ledger], T]) -> T:
        try:
            return self._server.look(lambda ledger, position: question(ledger))
        except OwnershipLostError as error:
            raise LinkLostError(error.detail()) from error

    def draft(self, plan: Plan) -> Draft:
        def drafted(ledger: Ledger, position: int) -> Draft:
            scratch = ScratchLedger(ledger)
            return Draft(self._server.incarnation, position, tuple(plan(scratch)[0]), scratch)

        try:
            return self._server.look(drafted)
        except OwnershipLostError as error:
            raise LinkLostError(error.detail()) from error

    def append(self, draft: Draft, token: str, again: bool) -> Verdict:
        after = draft.after if draft.incarnation == self._server.incarnation and not again else None
        try:
            return self._server.append(Proposal(token, draft.position, draft.entries, again), after)
        except OwnershipLostError as error:
            raise LinkLostError(error.detail()) from error

    def ask(self, question: wire.Beat | wire.Alive) -> wire.Answer:
        return _unrefused(self._server.answer(self._client_id, question))

    def close(self) -> None:
        if self._open:
            self._open = False
            self._server.disconnected(self._client_id)

    def abandon(self) -> None:
        self._open = False


class LedgerReplica:
    """A ledger that follows the engine's; it stays when the engine changes."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.ledger, self.incarnation, self.position = Ledger(), "", 0

    def take_over(self, answer: wire.Paged, incarnation: str, position: int) -> bool:
        """`incarnation`, `position`: what the question named; the replica may be further by now. True: there was news."""
        entries = wire.entries_of(answer)
        with self.lock:
            if answer.snapshot:
                if answer.incarnation == self.incarnation and answer.position <= self.position:
                    return False
                if (incarnation, position) != (self.incarnation, self.position) and (
                    answer.incarnation != self.incarnation
                ):
                    return False  # of an engine before the one that we follow now, perhaps: ask again
                self.ledger = Ledger()
            else:
                if (answer.incarnation, incarnation) != (self.incarnation, self.incarnation):
                    return False
                entries = entries[self.position - position :]
            reached = answer.position if answer.snapshot else max(self.position, answer.position)
            self.incarnation, self.position = "", 0  # of what is half done nobody knows how far it is
            try:
                for entry in entries:
                    self.ledger.apply(entry)
            except BaseException:  # interrupted
                self.ledger = Ledger()
                raise
            self.incarnation, self.position = answer.incarnation, reached
            return bool(entries) or answer.snapshot


class RemoteAccess(Access):
    """Two links, so that nobody who reads waits for somebody's disk."""

    def __init__(self, address: Address, client_id: str, patience_s: float, replica: LedgerReplica) -> None:
        self.target = address
        self._replica = replica
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
        """True when there was news. Under the replica's lock."""
        incarnation, position = self._replica.incarnation, self._replica.position
        answer = _unrefused(self._reading.ask(wire.Fetch(incarnation, position)))
        assert isinstance(answer, wire.Paged)
        return self._replica.take_over(answer, incarnation, position)

    def draft(self, plan: Plan) -> Draft:
        replica = self._replica
        with replica.lock:
            entries, certain = plan(ScratchLedger(replica.ledger))
            if not certain and self._refresh():
                entries, _ = plan(ScratchLedger(replica.ledger))
            return Draft(replica.incarnation, replica.position, tuple(entries))

    def append(self, draft: Draft, token: str, again: bool) -> Verdict:
        question = wire.Append(draft.incarnation, draft.position, token, draft.position, again, draft.data)
        answer = _unrefused(self._writing.ask(question))
        assert isinstance(answer, wire.Paged)
        self._replica.take_over(answer, draft.incarnation, draft.position)
        return Verdict(answer.verdict)

    def ask(self, question: wire.Beat | wire.Alive) -> wire.Answer:
        return _unrefused(self._reading.ask(question))

    def close(self) -> None:
        self._reading.close()
        self._writing.close()

    def abandon(self) -> None:
        self._reading.abandon()
        self._writing.abandon()


def _unrefused(answer: wire.Any_) -> wire.Answer:
    if isinstance(answer, wire.Refusal):
        if not answer.name:
            raise LinkLostError(str(answer.facts[0] if answer.facts else "the engine is gone"))
        raise wire.error_of(answer)
    if not isinstance(answer, wire.Paged | wire.Alive | wire.Done):
        raise LinkLostError(f"not an answer: {type(answer).__name__}")
    return answer
