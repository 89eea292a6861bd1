"""How long one process has seen the requests of a quota's ledger unchanged. Pure.

Senders on other hosts have other clocks, so a process judges by its own: it notes when it has first seen a request as it is now.
A sender that waits renews its request every few seconds, which changes it. One that has died does not, and one whose reservation
stays the same has not committed.

    a request is    and the process has seen it unchanged for    so it is
    ------------    -----------------------------------------    --------------------------------------------
    waiting         WAITING_S                                    old: it lapses
    reserved        RESERVED_S                                   old: the sender that needs the room ends it

A process that lives for less than that, as `jmsq send`, would see no request as old. It takes those for old whose time by the
clock of their own sender ended ABANDONED_MS ago, far more than clocks differ.

Features: T1 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from spark_jms.core.quota import OpenRequest

WAITING_S = 6.0
RENEW_S = WAITING_S / 3
RESERVED_S = 5.0
ABANDONED_MS = 600_000


@dataclass(frozen=True)
class QuotaWatch:
    """`since_s`: when the process first saw each request as it is, by its monotonic clock."""

    since_s: Mapping[OpenRequest, float] = field(default_factory=dict)

    def after(self, requests: Iterable[OpenRequest], now_s: float) -> QuotaWatch:
        """The process sees these requests now, and no others."""
        return QuotaWatch({one: self.since_s.get(one, now_s) for one in requests})

    def old(self, now_s: float, now_ms: int) -> frozenset[OpenRequest]:
        """`now_ms` is the wall clock's."""
        return frozenset(
            one
            for one, since_s in self.since_s.items()
            if now_s - since_s >= (WAITING_S if one.waits else RESERVED_S) or one.until_ms + ABANDONED_MS < now_ms
        )
