"""The engine's book: the ledger, its position, its newest history, and what became of each append. Pure.

Theory. The position counts the entries since the store began. A client holds a replica of the ledger at some position;
it runs its plan there (on a scratch), and sends the entries with its position. An entry carries its own guard: the
ledger applies it only where it fits (an epoch, a holder, an id). So entries made on an old position are taken when they
still fit, and *refused* when one does not: then the client reads what it has missed and runs its plan again. This is a
compare-and-append in which only what matters is compared; processes that use different record sets never disturb each
other, and all that came in meanwhile shares one physical write (`plan_round`).

    token                        base                          verdict
    known, or in this round too  any                           TAKEN: it was kept, the answer got lost
    unknown, sent before         before `known_since`          UNKNOWN: too long ago to tell
    unknown, all entries fit     any other                     TAKEN in this round
    unknown, one does not fit    any other                     REFUSED

`plan_round` changes nothing; `keep` takes the round over once it is durable. Whoever is not far behind is sent the
entries missed, others a snapshot; another incarnation's position says nothing, so it too is sent a snapshot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from spark_jms.store.engine.persistence import LedgerBatch, Loaded
from spark_jms.store.engine.scratch_ledger import ScratchLedger
from spark_jms.store.ledger.ledger import Entry, Ledger, LedgerError, Restored, Written

HISTORY_ENTRIES = 8_192
HISTORY_BYTES = 32 * 1024 * 1024
OUTCOMES = 4_096
_ENTRY_BYTES = 64


class Verdict(Enum):
    TAKEN = "taken"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Proposal:
    """`base` is the position of the client when it first sent this token; `again`: it has sent it before."""

    token: str
    base: int
    entries: tuple[Entry, ...]
    again: bool = False


@dataclass(frozen=True)
class Page:
    """What to do to get to `position`: apply the entries, on an empty ledger when it is a snapshot."""

    entries: tuple[Entry, ...]
    position: int
    snapshot: bool


@dataclass(frozen=True)
class Round:
    verdicts: tuple[Verdict, ...]
    batch: LedgerBatch | None
    """None when nothing has to be written."""


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
        self._outcomes: dict[str, int] = dict(loaded.outcomes)
        self._known_since = loaded.known_since

    # ---- reading

    def page(self, incarnation: str, position: int) -> Page:
        missed = self.position - position
        if incarnation != self.incarnation or not 0 <= missed <= len(self._history):
            return Page(tuple(self.ledger.snapshot()), self.position, True)
        if missed == 0:
            return Page((), self.position, False)
        # From the right: the history may be long, what is missed seldom is.
        newest = [self._history[-number] for number in range(missed, 0, -1)] if missed < 32 else None
        return Page(tuple(newest or list(self._history)[-missed:]), self.position, False)

    # ---- writing

    def plan_round(self, proposals: Sequence[Proposal], after: ScratchLedger | None = None) -> Round:
        """`after`: a scratch of this book's ledger as it was at the base of the first proposal, with its entries on it."""
        taken: list[Entry] = []
        tokens: list[str] = []
        verdicts = []
        scratch, rest = ScratchLedger(self.ledger), proposals
        if after is not None and proposals[0].base == self.position:
            scratch, rest = after, proposals[1:]
            verdicts.append(Verdict.TAKEN)
            taken.extend(proposals[0].entries)
            tokens.append(proposals[0].token)
        for proposal in rest:
            if proposal.token in self._outcomes or proposal.token in tokens:
                verdicts.append(Verdict.TAKEN)
                continue
            if proposal.again and proposal.base < self._known_since:
                verdicts.append(Verdict.UNKNOWN)
                continue
            try:
                for entry in proposal.entries:
                    scratch.apply(entry)
            except LedgerError:
                verdicts.append(Verdict.REFUSED)
                scratch = ScratchLedger(self.ledger)  # it may hold the first half of the refused one
                for entry in taken:
                    scratch.apply(entry)
                continue
            verdicts.append(Verdict.TAKEN)
            taken.extend(proposal.entries)
            tokens.append(proposal.token)
        if not taken:
            return Round(tuple(verdicts), None)
        return Round(tuple(verdicts), LedgerBatch(self.position, tuple(taken), tuple(tokens), self.ledger, scratch))

    def keep(self, batch: LedgerBatch) -> None:
        """The batch, as planned here last, is durable: from now on everybody may see it."""
        assert isinstance(batch.after, ScratchLedger)
        batch.after.keep()
        self._history.extend(batch.entries)
        self._history_bytes += size_of(batch.entries)
        self.position = batch.position
        most_entries, most_bytes, most_outcomes = self._limits
        while len(self._history) > most_entries or (self._history_bytes > most_bytes and self._history):
            self._history_bytes -= size_of((self._history.popleft(),))
        for token in batch.tokens:
            self._outcomes[token] = batch.position
        while len(self._outcomes) > most_outcomes:
            oldest = next(iter(self._outcomes))
            self._known_since = max(self._known_since, self._outcomes.pop(oldest))

    @property
    def history_count(self) -> int:
        return len(self._history)


def size_of(entries: Iterable[Entry]) -> int:
    """Bytes, about."""
    return sum(map(_size, entries))


def _size(entry: Entry) -> int:
    if isinstance(entry, Written):
        return _ENTRY_BYTES + sum(
            _ENTRY_BYTES + len(getattr(operation, "value", b""))
            for change in entry.changes
            for operation in change.operations
        )
    if isinstance(entry, Restored):
        return _ENTRY_BYTES + sum(_ENTRY_BYTES + len(value) for _, value in entry.objects)
    return _ENTRY_BYTES
