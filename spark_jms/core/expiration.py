"""When messages expire, and who counts them. Pure.

A message expires when its time is over, no consumer has it and no transfer takes it. The holder of its record set finishes
it there, so it is counted once, whether a consumer's plan or the scan of a process found it:

    Discard, Log    `RecordSet.expire`: finished and counted in one write; Log tells of it when that is written
    Redirect        a transfer to the error destination, which EXPIRER makes: counted when the transfer ends there

Features: T6 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Container

EXPIRER = "message expiration"  # the consumer in the acknowledgements of redirected messages
REASON = "found expired"
NEVER = 2**63 - 1


class DueLooks:
    """When each file, or a record set as it was, has to be looked at again: messages of it expire then, and none of it is over and
    unfinished."""

    def __init__(self) -> None:
        self._next_ms: dict[str, int] = {}

    def is_due(self, what: str, now_ms: int) -> bool:
        return now_ms >= self._next_ms.get(what, 0)

    def looked(self, what: str, next_ms: int) -> None:
        self._next_ms[what] = next_ms

    def keep(self, known: Container[str]) -> None:
        """Forget all others."""
        self._next_ms = {what: when for what, when in self._next_ms.items() if what in known}
