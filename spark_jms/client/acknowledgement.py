"""Carries a consumer's acknowledgements and releases to the record sets.

The application acknowledges and releases in memory (`Delivery`). This class writes both through the consumer's
subscriber, in as few store writes as possible. Another consumer may hold the record at that moment; then the messages
stay in `Delivery` until the record is handed over.

Features: C8, C11 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from spark_jms.claims.distributed import AnySubscriber
from spark_jms.client.delivery import Delivery, Key, Return, parts_of
from spark_jms.errors import MemberUnavailableError, own_copy
from spark_jms.store import StoreError
from spark_jms.store.ledger.group import Drain, GroupCommit, finish

GATHER_S = 0.0005
_MAX_PAUSE_S = 0.02


class _LeaderInterruptedError(StoreError):
    """The thread that wrote for several was interrupted."""


def _nothing(_: object) -> bool:
    raise AssertionError("the leader gives the result")


class AcknowledgementWriter:
    """Thread-safe. A caller waits for the write that serves it. The thread that leads the write takes `lock`, which guards
    `delivery` and is never held during a store call. Every method may raise ConsumerClosedException."""

    def __init__(self, subscriber: AnySubscriber, delivery: Delivery, lock: threading.RLock) -> None:
        self._subscriber, self._delivery, self._lock = subscriber, delivery, lock
        self._group = GroupCommit(self._lead, _LeaderInterruptedError, GATHER_S)
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
        """True when everything is written that was finished and returned by the time of the call. Threads that acknowledge
        at the same time share one store write."""
        while True:
            try:
                return self._group.write(_nothing)
            except _LeaderInterruptedError:  # another thread led: what it has not written is still in `Delivery`
                continue

    def _lead(self, drain: Drain) -> None:
        requests = drain()
        try:
            with self._lock:
                finished, returning = dict(self._delivery.finished), list(self._delivery.returning)
            written = self._write_finished(finished)
            written = self._write_returning(returning) and written
        except Exception as error:  # noqa: BLE001 - it is raised in each caller
            for request in requests:
                request.error = error if len(requests) == 1 else own_copy(error)
        else:
            for request in requests:
                request.result = written
        finish(requests, None)

    def _write_finished(self, finished: dict[Key, str]) -> bool:
        if not finished:
            return True
        left = self._subscriber.acknowledge(parts_of(finished))
        with self._lock:
            self._delivery.stored([key for key, claim in finished.items() if key[0] not in left.get(claim, ())])
            self.written_s = time.monotonic()
        return not left

    def _write_returning(self, returning: list[Return]) -> bool:
        written = True
        for item in returning:
            parts = {item.member: item.picks}
            if self._subscriber.release(item.claim, parts, delivered=item.delivered, delay_ms=item.delay_ms):
                with self._lock:
                    self._delivery.returning.remove(item)
            else:
                written = False
        return written
