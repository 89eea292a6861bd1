"""A client's copy of the engine's ledger, which follows it page by page. It survives a change of engine."""

from __future__ import annotations

import threading

from spark_jms.store.engine import wire
from spark_jms.store.ledger.ledger import Ledger


class LedgerReplica:
    """The caller holds `lock` while it asks `ledger`."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.ledger, self.incarnation, self.position = Ledger(), "", 0

    def take_over(self, answer: wire.Paged, incarnation: str, position: int) -> bool:
        """Apply a page that was requested for `incarnation` and `position`; the replica may be further by now. True when
        the page held news."""
        entries = wire.entries_of(answer)
        with self.lock:
            if answer.snapshot:
                if answer.incarnation == self.incarnation and answer.position <= self.position:
                    return False
                if (incarnation, position) != (self.incarnation, self.position) and (
                    answer.incarnation != self.incarnation
                ):
                    return False  # perhaps from an engine before the one that the replica follows now: ask again
                self.ledger = Ledger()
            else:
                if (answer.incarnation, incarnation) != (self.incarnation, self.incarnation):
                    return False
                entries = entries[self.position - position :]
            reached = answer.position if answer.snapshot else max(self.position, answer.position)
            self.incarnation, self.position = "", 0  # the position of a half-applied page is unknown
            try:
                for entry in entries:
                    self.ledger.apply(entry)
            except BaseException:  # interrupted
                self.ledger = Ledger()
                raise
            self.incarnation, self.position = answer.incarnation, reached
            return bool(entries) or answer.snapshot
