"""The way to an engine in the same process: plans run inside the engine's write, on its own ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from spark_jms.store.engine import wire
from spark_jms.store.engine.access import Access, Appended, AppendInDoubtError, expect_answer, run_plans
from spark_jms.store.engine.entry_log import Verdict
from spark_jms.store.engine.link import LinkLostError
from spark_jms.store.engine.persistence import OwnershipLostError
from spark_jms.store.engine.server import Server
from spark_jms.store.engine.shared_write import Proposal, Share, SharedWrite
from spark_jms.store.ledger.group import PlanCall
from spark_jms.store.ledger.ledger import Ledger

T = TypeVar("T")


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

    def ask(self, question: wire.Beat | wire.Alive) -> wire.Answer:
        return expect_answer(self.server.answer(self._client_id, question))

    def close(self) -> None:
        if self._open:
            self._open = False
            self.server.disconnected(self._client_id)

    def abandon(self) -> None:
        self._open = False
