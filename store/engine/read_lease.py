"""What lets an engine answer a read from its memory: proof that it still owns the store.

Theory. An engine that was stopped does not know it, and another process may have become the engine meanwhile. A write cannot
be kept then, because the persistence refuses it. A read asks no other process, so it needs a proof of its own.

    proof        the persistence has confirmed that this process owned it, after the engine asked
    old engine   answers from its memory until LEASE_MS after the moment at which it asked; then it asks again
    new engine   answers nothing and writes nothing until START_WAIT_MS after it became the owner

So when a newer write exists, or an answer that shows a write to which the older engine has no answer, each proof of an
older engine has expired: every answer of an engine was right at a moment between question and answer. A write that was kept
is a proof too. The answer is made before the lease is looked at, so a process that is stopped between the two notices when it
wakes.

The two periods differ because the clocks of two machines do not run at exactly the same rate. A suspended machine's clock
counts on. A virtual machine that its host stops, clock included, is not covered.

Features: C9, R8, S4, S6 (docs/FEATURES.md)
"""

from __future__ import annotations

import time

from spark_jms.store.engine.persistence import Clock

LEASE_MS = 200.0
START_WAIT_MS = 250.0


def elapsed_ms() -> float:
    """Never goes back, and counts while the machine is suspended."""
    return time.clock_gettime(_CLOCK) * 1000.0


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class ReadLease:
    """Thread-safe: a float is replaced by a later one, and losing such a step only costs a proof."""

    def __init__(self, now_ms: Clock = elapsed_ms) -> None:
        self.now_ms = now_ms
        self._until_ms = float("-inf")

    def holds(self) -> bool:
        return self.now_ms() < self._until_ms

    def proved(self, asked_ms: float) -> None:
        """`asked_ms`: the time before the persistence was asked."""
        self._until_ms = max(self._until_ms, asked_ms + LEASE_MS)
