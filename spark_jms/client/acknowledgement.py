"""Carries a consumer's acknowledgements and releases to the record sets (C8, C11).

The application acknowledges and releases in memory (`Delivery`). This class writes both through the consumer's
subscriber, in as few store writes as possible. Another consumer may hold the record at that moment; then the messages
stay in `Delivery` until the record is handed over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from spark_jms.claims.distributed import AnySubscriber
from spark_jms.client.delivery import Delivery, Key, Return, parts_of
from spark_jms.errors import MemberUnavailableError

_MAX_PAUSE_S = 0.02


class AcknowledgementWriter:
    """Thread-safe. Takes its own lock first, then `lock`, which guards `delivery` and is never held during a store
    call. Every method may raise ConsumerClosedException."""

    def __init__(self, subscriber: AnySubscriber, delivery: Delivery, lock: threading.RLock) -> None:
        self._subscriber, self._delivery, self._lock = subscriber, delivery, lock
        self._writing = threading.RLock()
        self.written_s = time.monotonic()

    def write(self, timeout_s: float, boundary: Callable[[], object]) -> None:
        """Write everything. Waits up to `timeout_s` for records that other consumers hold, then raises
        MemberUnavailableError; with 0, whatever cannot be written now stays for the next call. `boundary` hands over
        our own records meanwhile."""
        deadline = time.monotonic() + timeout_s
        pause = 0.001
        while not self._try_write():
            if timeout_s == 0:
                return
            if time.monotonic() >= deadline:
                raise MemberUnavailableError(
                    f"{self._subscriber.destination}: another consumer holds a member's record and did not hand it over "
                    f"within {timeout_s:.0f} s: acknowledgements are written when it does; see who holds it with "
                    "`jmsq claims`"
                )
            time.sleep(pause)  # close() waits here too, so the closing event must not end the pause
            pause = min(pause * 2, _MAX_PAUSE_S)
            boundary()

    def _try_write(self) -> bool:
        """True when everything is written."""
        with self._writing:
            with self._lock:
                finished, returning = dict(self._delivery.finished), list(self._delivery.returning)
            self._write_finished(finished)
            self._write_returning(returning)
            with self._lock:
                return not (self._delivery.finished.keys() & finished.keys()) and not self._delivery.returning

    def _write_finished(self, finished: dict[Key, str]) -> None:
        if not finished:
            return
        left = self._subscriber.acknowledge(parts_of(finished))
        with self._lock:
            self._delivery.stored(
                (m, s) for (m, s), claim in finished.items() if m not in left.get(claim, {}) or s not in left[claim][m]
            )
            self.written_s = time.monotonic()

    def _write_returning(self, returning: list[Return]) -> None:
        for item in returning:
            parts = {item.member: item.picks}
            if self._subscriber.release(item.claim, parts, delivered=item.delivered, delay_ms=item.delay_ms):
                with self._lock:
                    self._delivery.returning.remove(item)
