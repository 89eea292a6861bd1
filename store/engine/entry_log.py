"""The engine's log, one physical write in the making, and the port to what keeps the entries. Pure.

Theory. The engine is the process that owns the persistence of a store. Its log has the ledger, the position, the newest
history, and the outcomes of the newest appends. The position counts the entries since the store began. A client in another
process holds a replica of the ledger at some position, runs its plans there, and sends the entries with that position, as a
proposal. Every entry carries its own guard: the ledger applies it only where its epoch, holder or id fits. So the engine
takes entries that were made on an old position if they still fit, and refuses them otherwise; then the client catches up
and plans again. This is a compare-and-append that compares only what matters: processes that use different record sets
never disturb each other, and all appends that arrive during one physical write share the next (SharedWrite).

    token                            base                     verdict
    known, or in this write already  any                      TAKEN: it was kept, the answer was lost
    unknown, sent again              before `known_since`     UNKNOWN: too old to tell
    unknown, all entries fit         any other                TAKEN in this write
    unknown, one does not fit        any other                REFUSED

A change that a rule decides is made in the engine itself, for clients in any process: `change` runs the rule on the shared
write. It is kept at most once too: its token is among the outcomes, with the rule's answer behind it (`AppendOutcome`). An older
engine that reads the outcomes takes both together for a token that it was never asked for.

`propose` changes the shared write only; `keep` takes the write over once it is durable. A client that is not far behind
gets the entries it missed, any other a snapshot. The position of another incarnation means nothing, so it gets one too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from spark_jms.store.contract import Put
from spark_jms.store.errors import OutcomeUnknownError, StoreError
from spark_jms.store.ledger.backend import Alive, ChangeAnswer, ChangeRequest, Transaction
from spark_jms.store.ledger.ledger import Ledger, ScratchLedger
from spark_jms.store.ledger.record import Entry, LedgerError, Restored, Written
from spark_jms.store.ledger.rules import run_change

HISTORY_ENTRIES = 8_192
HISTORY_BYTES = 32 * 1024 * 1024
OUTCOMES = 4_096
_ENTRY_BYTES = 64


class AppendOutcome(NamedTuple):
    """Of an append that was kept: its token and, of a change, the answer of the rule. Stored as one text."""

    token: str
    answer: bytes = b""

    @classmethod
    def read(cls, stored: str) -> AppendOutcome:
        token, _, answer = stored.partition("=")
        return cls(token, bytes.fromhex(answer))

    def stored(self) -> str:
        return f"{self.token}={self.answer.hex()}" if self.answer else self.token


class Verdict(Enum):
    TAKEN = "taken"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Proposal:
    """Entries that a client asks the engine to append. `base` is the position they were first made on; `again` means that
    an engine may have them already.

    A token is `<write>` or, for the share that one plan had in a write of the engine's own process, `<write>.<number>`.
    """

    token: str
    base: int
    entries: tuple[Entry, ...]
    again: bool = False

    @property
    def write_token(self) -> str:
        return self.token.partition(".")[0]

    @property
    def is_first_share(self) -> bool:
        return self.token.partition(".")[2] in ("", "0")


@dataclass(frozen=True)
class ChangeProposal:
    """A change that a client asks for under a token. `base` and `again` as in a proposal."""

    token: str
    base: int
    request: ChangeRequest
    again: bool = False


@dataclass(frozen=True)
class Page:
    """How a client gets to `position`: it applies the entries, on an empty ledger when the page is a snapshot."""

    entries: tuple[Entry, ...]
    position: int
    snapshot: bool


@dataclass(frozen=True)
class Loaded:
    """What is stored: entries that make the ledger from an empty one, the position after them, and the newest outcomes.

    `outcomes` are the (token, position) of appends that were kept, oldest first. Every append kept after `known_since` is
    among them. So an append that is not, and that is based on that position or a later one, was not kept.
    """

    position: int = 0
    entries: tuple[Entry, ...] = ()
    outcomes: tuple[tuple[str, int], ...] = ()
    known_since: int = 0


@dataclass(frozen=True)
class LedgerBatch:
    """One physical write: the entries of all appends that share it, in order, after position `base`.

    `before` and `after` are the ledger without and with them; `append` may read them while it runs. A persistence that
    keeps entries ignores them, one that keeps states writes the difference.
    """

    base: int
    entries: tuple[Entry, ...]
    tokens: tuple[str, ...]
    before: Ledger
    after: Ledger

    @property
    def position(self) -> int:
        return self.base + len(self.entries)


class OwnershipLostError(StoreError):
    """This process is no longer the engine of the store and writes nothing more. Another process takes over."""


class Persistence(ABC):
    """Hides how entries are kept, and how ownership is won and lost: a database under its lock protocol, or the regions of a
    replicated store. Owned by this process. The engine calls it in one thread at a time."""

    incarnation: str
    """The name of this ownership; no other ownership ever has it."""

    had_owner: bool = True
    """Whether an earlier owner may still run without knowing that it is the owner no more (ReadLease)."""

    @abstractmethod
    def load(self) -> Loaded: ...

    @abstractmethod
    def append(self, batch: LedgerBatch) -> None:
        """The batch is durable on return. OwnershipLostError when another process may own the persistence: the batch is
        kept completely or not at all, and nothing is ever kept again. Any other StoreError: nothing of the batch was
        kept, and the engine continues."""

    @abstractmethod
    def prove(self) -> None:
        """This process owns the persistence at a moment during the call. OwnershipLostError: it does not any more. Any other
        StoreError: that cannot be told now. Called from any thread, also while `append` runs."""

    @abstractmethod
    def close(self) -> None:
        """Give the ownership up. Closing twice, or after the ownership was lost, is no error."""


class EntryLog:
    def __init__(
        self,
        incarnation: str,
        loaded: Loaded,
        *,
        history_entries: int = HISTORY_ENTRIES,
        history_bytes: int = HISTORY_BYTES,
        outcomes: int = OUTCOMES,
    ) -> None:
        self.incarnation = incarnation
        self.position = loaded.position
        self.ledger = Ledger()
        for entry in loaded.entries:
            self.ledger.apply(entry)
        self._limits = (history_entries, history_bytes, outcomes)
        self._history: deque[Entry] = deque()
        self._history_bytes = 0
        self._outcomes: dict[str, int] = {}
        self._answers: dict[str, bytes] = {}
        for stored, position in loaded.outcomes:
            self._remember(stored, position)
        self._known_since = loaded.known_since

    # ---- reading

    def page(self, incarnation: str, position: int) -> Page:
        missed = self.position - position
        if incarnation != self.incarnation or not 0 <= missed <= len(self._history):
            return Page(tuple(self.ledger.snapshot()), self.position, True)
        if missed == 0:
            return Page((), self.position, False)
        # From the right: the history may be long, the missed part seldom is.
        newest = [self._history[-number] for number in range(missed, 0, -1)] if missed < 32 else None
        return Page(tuple(newest or list(self._history)[-missed:]), self.position, False)

    # ---- writing

    def begin(self, token: str) -> SharedWrite:
        return SharedWrite(self.ledger, self.position, token)

    def propose(self, proposal: Proposal, shared: SharedWrite) -> Verdict:
        """Add the entries to the shared write if the verdict is TAKEN and they are not kept yet."""
        if self._knows(proposal) or proposal.token in shared.tokens:
            return Verdict.TAKEN
        if proposal.again and proposal.base < self._known_since:
            return Verdict.UNKNOWN
        first = len(shared.entries)
        try:
            for entry in proposal.entries:
                shared.do(entry)
        except LedgerError:
            shared.undo(first)
            return Verdict.REFUSED
        shared.tokens.append(proposal.token)
        return Verdict.TAKEN

    def change(self, wanted: ChangeProposal, shared: SharedWrite, alive: Alive) -> ChangeAnswer:
        """Run the rule on the shared write, unless the change is kept already. Raises what `run_change` does, and then leaves the
        shared write as it was; OutcomeUnknownError when it is too old to tell."""
        token = wanted.token
        if token in self._outcomes:
            return ChangeAnswer(self._answers.get(token, b""))
        if token in shared.answers:
            return ChangeAnswer(shared.answers[token])
        if wanted.again and wanted.base < self._known_since:
            raise OutcomeUnknownError("the engine was lost while it changed records, and its outcomes are forgotten")
        first = len(shared.entries)
        try:
            made = run_change(wanted.request, shared, alive)
        except BaseException:
            shared.undo(first)
            raise
        if len(shared.entries) > first:
            shared.tokens.append(AppendOutcome(token, made.answer).stored())
            shared.answers[token] = made.answer
        return made

    def _knows(self, proposal: Proposal) -> bool:
        return proposal.token in self._outcomes or (proposal.again and proposal.write_token in self._outcomes)

    def keep(self, batch: LedgerBatch) -> None:
        """The batch of the last shared write is durable: from now on every client may see it."""
        assert isinstance(batch.after, ScratchLedger)
        batch.after.keep()
        self._history.extend(batch.entries)
        self._history_bytes += size_of(batch.entries)
        self.position = batch.position
        most_entries, most_bytes, most_outcomes = self._limits
        while len(self._history) > most_entries or (self._history_bytes > most_bytes and self._history):
            self._history_bytes -= size_of((self._history.popleft(),))
        for stored in batch.tokens:
            self._remember(stored, batch.position)
        while len(self._outcomes) > most_outcomes:
            oldest = next(iter(self._outcomes))
            self._known_since = max(self._known_since, self._outcomes.pop(oldest))
            self._answers.pop(oldest, None)

    def _remember(self, stored: str, position: int) -> None:
        outcome = AppendOutcome.read(stored)
        self._outcomes[outcome.token] = position
        if outcome.answer:
            self._answers[outcome.token] = outcome.answer


class SharedWrite(Transaction):
    """A physical write in the making. A plan of the engine's own process changes it directly, a proposal of another process is
    checked entry by entry; both see the entries before their own. The engine's ledger stays as it is until the write is durable."""

    def __init__(self, ledger: Ledger, base: int, token: str) -> None:
        super().__init__(ScratchLedger(ledger))
        self.tokens: list[str] = []
        self.answers: dict[str, bytes] = {}
        self._before = ledger
        self._base = base
        self._token = token
        self._share_count = 0

    def share(self, first: int) -> Share:
        """The entries from number `first` on are the share of one plan."""
        if self._share_count == 0:
            self.tokens.append(self._token)
        self._share_count += 1
        return Share(self, self._share_count - 1, first, len(self.entries))

    def proposal(self, share: Share) -> Proposal:
        return Proposal(f"{self._token}.{share.number}", self._base, tuple(share.entries), again=True)

    def undo(self, entry_count: int) -> None:
        """Go back to the first `entry_count` entries."""
        kept = self.entries[:entry_count]
        self.ledger, self.entries = ScratchLedger(self._before), []
        for entry in kept:
            self.do(entry)

    def batch(self) -> LedgerBatch:
        return LedgerBatch(self._base, tuple(self.entries), tuple(self.tokens), self._before, self.ledger)


class Share(NamedTuple):
    """What one plan added to a write of the engine's own process: its entries from number `first` to `end`."""

    write: SharedWrite
    number: int
    first: int
    end: int

    @property
    def entries(self) -> list[Entry]:
        return self.write.entries[self.first : self.end]

    def proposal(self) -> Proposal:
        """Asks the next engine for these entries if this one is lost."""
        return self.write.proposal(self)


def size_of(entries: Iterable[Entry]) -> int:
    """Bytes, approximately."""
    return sum(map(_size, entries))


def _size(entry: Entry) -> int:
    if isinstance(entry, Written):
        size = _ENTRY_BYTES
        for change in entry.changes:
            for operation in change.operations:
                size += _ENTRY_BYTES + (len(operation.value) if isinstance(operation, Put) else 0)
        return size
    if isinstance(entry, Restored):
        return _ENTRY_BYTES + sum(_ENTRY_BYTES + len(value) for _, value in entry.objects)
    return _ENTRY_BYTES
