"""The engine's log: the ledger, its position, its newest history, and the outcomes of the newest appends. Pure.

Theory. The position counts the entries since the store began. A client in another process holds a replica of the ledger at
some position, runs its plans there, and sends the entries with that position. Every entry carries its own guard: the ledger
applies it only where its epoch, holder or id fits. So the engine takes entries that were made on an old position if they
still fit, and refuses them otherwise; then the client catches up and plans again. This is a compare-and-append that
compares only what matters: processes that use different record sets never disturb each other, and all appends that arrive
during one physical write share the next (shared_write.py).

    token                            base                     verdict
    known, or in this write already  any                      TAKEN: it was kept, the answer was lost
    unknown, sent again              before `known_since`     UNKNOWN: too old to tell
    unknown, all entries fit         any other                TAKEN in this write
    unknown, one does not fit        any other                REFUSED

`propose` changes the shared write only; `keep` takes the write over once it is durable. A client that is not far behind
gets the entries it missed, any other a snapshot. The position of another incarnation means nothing, so it gets one too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from spark_jms.store.contract import Put
from spark_jms.store.engine.persistence import LedgerBatch, Loaded
from spark_jms.store.engine.scratch_ledger import ScratchLedger
from spark_jms.store.engine.shared_write import Proposal, SharedWrite
from spark_jms.store.ledger.entries import Entry, Restored, Written
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.record import LedgerError

HISTORY_ENTRIES = 8_192
HISTORY_BYTES = 32 * 1024 * 1024
OUTCOMES = 4_096
_ENTRY_BYTES = 64


class Verdict(Enum):
    TAKEN = "taken"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Page:
    """How a client gets to `position`: it applies the entries, on an empty ledger when the page is a snapshot."""

    entries: tuple[Entry, ...]
    position: int
    snapshot: bool


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
        for token in batch.tokens:
            self._outcomes[token] = batch.position
        while len(self._outcomes) > most_outcomes:
            oldest = next(iter(self._outcomes))
            self._known_since = max(self._known_since, self._outcomes.pop(oldest))


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
