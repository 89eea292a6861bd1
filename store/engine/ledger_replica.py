"""A client's copy of the engine's ledger, which follows it page by page. It survives a change of engine."""

from __future__ import annotations

import threading
from typing import NamedTuple

from spark_jms.store.engine import wire
from spark_jms.store.ledger.ledger import Ledger


class ReplicaPlace(NamedTuple):
    """How far a replica has come: in which engine's log, and to which position of it."""

    incarnation: str
    position: int


_UNKNOWN = ReplicaPlace("", 0)


class LedgerReplica:
    """The caller holds `lock` while it asks `ledger`; it may look at `place` without: then it never waits for a reader that
    holds the lock while the engine does not answer."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.ledger, self.place = Ledger(), _UNKNOWN

    def take_over(self, answer: wire.Paged, asked: ReplicaPlace) -> bool:
        """Apply a page that was requested from the place `asked`; the replica may be further by now. True when the page held
        news."""
        entries = wire.entries_of(answer)
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
