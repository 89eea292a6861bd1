"""The port through which a client uses one engine: in its own process (local_access.py) or over sockets (remote_access.py)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from spark_jms.store.engine import wire
from spark_jms.store.engine.entry_log import Verdict
from spark_jms.store.engine.link import LinkLostError
from spark_jms.store.engine.shared_write import Proposal
from spark_jms.store.errors import error_of
from spark_jms.store.ledger.backend import Transaction
from spark_jms.store.ledger.entries import Entry
from spark_jms.store.ledger.group import PlanCall
from spark_jms.store.ledger.ledger import Ledger

T = TypeVar("T")


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
    def ask(self, question: wire.Beat | wire.Alive) -> wire.Answer: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def abandon(self) -> None:
        """In a forked child: drop the descriptors and send nothing."""


def run_plans(calls: Sequence[PlanCall], transaction: Transaction) -> None:
    """LinkLostError when a plan lost the engine: its caller never sees that, because all plans run again elsewhere."""
    for call in calls:
        call.run(transaction)
        if call.error is not None and isinstance(call.error, LinkLostError):
            lost, call.error = call.error, None
            raise lost


def expect_answer(message: wire.Any_) -> wire.Answer:
    """The message itself when it is an answer. Raises the error that a Refusal carries."""
    if isinstance(message, wire.Refusal):
        if not message.name:
            raise LinkLostError(str(message.facts[0] if message.facts else "the engine has stopped"))
        raise error_of(message.name, message.facts)
    if not isinstance(message, wire.Paged | wire.Alive | wire.Done):
        raise LinkLostError(f"the engine sent no answer but {type(message).__name__}")
    return message
