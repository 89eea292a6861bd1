"""One physical write of the engine in the making, shared by the plans and proposals that arrived meanwhile. Pure.

A plan of the engine's own process changes the write directly; a proposal of another process is checked entry by entry
(entry_log.py). Both see the entries before their own. The engine's ledger stays as it is until the write is durable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from spark_jms.store.engine.persistence import LedgerBatch
from spark_jms.store.engine.scratch_ledger import ScratchLedger
from spark_jms.store.ledger.backend import Transaction
from spark_jms.store.ledger.entries import Entry
from spark_jms.store.ledger.ledger import Ledger


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


class SharedWrite(Transaction):
    def __init__(self, ledger: Ledger, base: int, token: str) -> None:
        super().__init__(ScratchLedger(ledger))
        self.tokens: list[str] = []
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
