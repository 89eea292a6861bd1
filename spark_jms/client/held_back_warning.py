"""A client's warning that messages which its selector takes wait behind others of their units of order.

Features: C7, T10 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from spark_jms.claims.distributed import AnySubscriber
from spark_jms.core.held_back import HeldBack, told

log = logging.getLogger("spark_jms")
LOOK_EVERY_S = 0.2
WARN_EVERY_S = 60.0  # of one consumer: beside another one, other messages hold back others all the time


class HeldBackWarning:
    """Not thread-safe: one thread receives. Warns of what holds back once, and not more often than once a minute."""

    def __init__(self, subscriber: AnySubscriber, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._subscriber, self._clock_s = subscriber, clock_s
        self._look_s = self._warn_s = float("-inf")  # not before
        self._known: set[tuple[int, int]] = set()  # member and sequence of refused messages

    def look(self) -> None:
        now_s = self._clock_s()
        if self._subscriber.settings.selector is None or now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_EVERY_S
        found = self._subscriber.held_back()
        blockers = {(one.member, one.refused) for one in found}
        if blockers - self._known and now_s >= self._warn_s:
            self._warn_s, self._known = now_s + WARN_EVERY_S, blockers
            self.warn(found)

    def warn(self, found: list[HeldBack]) -> None:
        log.warning("%s: %s", self._subscriber.destination, told(found))
