"""When a batch of messages is made: at once, or when more have come.

`messagingPerformancePreference` of a destination trades the time that a message waits against the number of batches:

    preference   a client's batch has              waits for a full batch, from the first message on
    ----------   ------------------------------   --------------------------------------------------
    0            one message                       not at all
    25           up to `messagesMaximum`           not at all
    50           up to `messagesMaximum`           20 ms
    75           up to `messagesMaximum`           100 ms
    100          up to `messagesMaximum`           500 ms

A query of Spark has no `messagesMaximum`: its batches have no limit unless `maxMessagesPerTrigger` sets one, so 0 is like 25
there, and a batch of FULL_BATCH messages is full.

Features: C6, T13 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from spark_jms.core.batch import Limits

WAITS_MS = {0: 0, 25: 0, 50: 20, 75: 100, 100: 500}
FULL_BATCH = 10_000  # of a query without maxMessagesPerTrigger


def client_limits(preference: int, maximum: int | None, max_bytes: int) -> Limits:
    """Of a client's consumer. `maximum` None: any number of messages."""
    if preference == 0:
        return Limits(1, max_bytes)
    wait_ms = WAITS_MS[preference]
    return Limits(maximum, max_bytes, _full(maximum) if wait_ms else 1, linger_ms=wait_ms or None)


def query_limits(preference: int, max_messages: int | None, max_bytes: int | None) -> Limits:
    """Of a query whose options say nothing of waiting."""
    wait_ms = WAITS_MS[preference]
    return Limits(max_messages, max_bytes, _full(max_messages) if wait_ms else 1, linger_ms=wait_ms or None)


def _full(maximum: int | None) -> int:
    return min(maximum or FULL_BATCH, FULL_BATCH)


class Admission:
    """Whether the next batch may be made, from plan to plan. Times are in milliseconds, of any clock that never goes back.

    The wait ends when its messages are seen to be gone. While another consumer has the record of their member, that is not
    known, and the wait continues: consumers that take turns with a record would else begin it again with each turn."""

    def __init__(self, now_ms: float) -> None:
        self._made_ms = self._looked_ms = now_ms  # the batch before, the plan before
        self._due_ms: float | None = None  # when the messages seen now may go, however few
        self._waits_on: Set[int] = frozenset()  # the members that have them

    def allows(
        self, limits: Limits, offered: Mapping[int, int], now_ms: float, *, draining: bool, looked_at: Set[int]
    ) -> bool:
        """`offered`: member -> messages that may be claimed now, of the members `looked_at`. `draining`: what is there is taken,
        however little."""
        available = sum(offered.values())
        if limits.linger_ms is None:
            return limits.allow(available, now_ms - self._made_ms, draining=draining)
        self._looked_ms = now_ms
        if available:
            self._waits_on = frozenset(offered)
            self._due_ms = now_ms + limits.linger_ms if self._due_ms is None else self._due_ms
        elif self._waits_on <= looked_at:
            self._due_ms = None
        due = self._due_ms is not None and now_ms >= self._due_ms
        return available > 0 and (draining or due or available >= limits.min_messages)

    @property
    def lingers(self) -> bool:
        """Messages that were available with the last plan wait for others."""
        return self._due_ms is not None

    def is_due(self, now_ms: float) -> bool:
        """Since the last plan, messages have waited for others as long as they may: plan again."""
        return self._due_ms is not None and self._looked_ms < self._due_ms <= now_ms

    def made(self, now_ms: float) -> None:
        """A batch was made."""
        self._made_ms, self._due_ms = now_ms, None
