"""Group commit: concurrent requests of one process share a write.

A request is a plan in a queue. The first in the queue leads: it serves all that have queued up meanwhile in one write,
tells everybody, and leaves the lead to the next in the queue. So the slower the place, the more requests share a write,
and nobody has to be there to wait for them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from store.errors import OutcomeUnknownError, StoreError
from store.session import Transaction

T = TypeVar("T")


class Request:
    """One plan. `result` or `error` is what becomes of it."""

    __slots__ = ("error", "leads", "plan", "result", "settled", "wake")

    def __init__(self, plan: Callable[[Transaction], Any]) -> None:
        self.plan = plan
        self.result: Any = None
        self.error: BaseException | None = None
        self.leads = self.settled = False
        self.wake = threading.Lock()  # held until it is served or has to lead
        self.wake.acquire()

    def run(self, transaction: Transaction) -> None:
        """What a plan raises is raised where it was asked for; the plans of the others go on."""
        self.error = None
        try:
            self.result = self.plan(transaction)
        except Exception as error:  # noqa: BLE001
            self.error = error


Drain = Callable[[], list[Request]]
"""What is in the queue by now; whoever takes it settles it."""


class GroupCommit:
    """`lead` is called by one thread at a time. It drains the queue when it is ready to serve, and settles each request it
    has drained, whatever happens: nobody may wait for ever."""

    def __init__(self, lead: Callable[[Drain], None]) -> None:
        self._lead = lead
        self._queue: deque[Request] = deque()
        self._lock = threading.Lock()
        self._has_leader = False

    def write(self, plan: Callable[[Transaction], T]) -> T:
        request = Request(plan)
        with self._lock:
            self._queue.append(request)
            leads, self._has_leader = not self._has_leader, True
        if not leads:
            leads = self._follow(request)
        if leads:
            try:
                self._lead(self._drain)
            finally:
                self._hand_on(request)
        if request.error is not None:
            raise request.error
        return cast(T, request.result)

    def _follow(self, request: Request) -> bool:
        """Until it is served, or has to lead. Each waits for its own wake-up: one common lock would starve some."""
        try:
            request.wake.acquire()
        except BaseException:  # interrupted: it must not be left behind as the leader that never comes
            with self._lock:
                if not request.leads and request in self._queue:
                    self._queue.remove(request)
            if request.leads:
                self._hand_on(request)
            raise
        return request.leads

    def _hand_on(self, request: Request) -> None:
        """The next in the queue leads; with nobody there, whoever comes next."""
        with self._lock:
            if request in self._queue:  # interrupted before the round began
                self._queue.remove(request)
            if self._queue:
                self._queue[0].leads = True
                self._queue[0].wake.release()
            else:
                self._has_leader = False

    def _drain(self) -> list[Request]:
        with self._lock:
            requests = list(self._queue)
            self._queue.clear()
        return requests


def settle(requests: Sequence[Request], error: BaseException | None) -> None:
    """Wakes those that were not settled before, with this error where they have none of their own. One instance each: they
    are raised in several threads. What is no error of the store came in the middle: nobody knows what was kept."""
    for request in requests:
        if request.settled:
            continue
        if error is not None and request.error is None:
            if isinstance(error, StoreError):
                request.error = type(error)(*error.args)
            else:
                request.error = OutcomeUnknownError(f"the write was interrupted by {type(error).__name__}")
        request.settled = True
        request.wake.release()
