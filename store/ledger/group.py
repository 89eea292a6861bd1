"""Group commit: concurrent requests of one process share a write.

A request is a plan in a queue. The first in the queue waits for the turn, and serves all that have queued up meanwhile in
one write; the others wait until somebody tells them. So the slower the place, the more requests share a write, and
nobody has to be there to wait for them.

Only the turn decides who serves, and only a `with` takes it: an interrupt (Ctrl-C) between any two steps can lose a wake-up
or leave requests that nobody has told anything, never the turn. So whoever waits looks for himself now and then, and
whoever gets the turn first finishes what the one before him left behind.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

from spark_jms.store.errors import OutcomeUnknownError, StoreError
from spark_jms.store.ledger.session import Transaction

T = TypeVar("T")

LOOK_S = 0.5


class GroupRequest:
    """One plan. `result` or `error` is what becomes of it."""

    __slots__ = ("error", "finished", "plan", "result", "wake")

    def __init__(self, plan: Callable[[Transaction], Any]) -> None:
        self.plan = plan
        self.result: Any = None
        self.error: BaseException | None = None
        self.finished = False
        self.wake: SimpleQueue[None] = SimpleQueue()  # one each: waiting at one common lock would starve some

    def run(self, transaction: Transaction) -> None:
        """What a plan raises is raised where it was asked for; the plans of the others go on."""
        self.error = None
        try:
            self.result = self.plan(transaction)
        except Exception as error:  # noqa: BLE001
            self.error = error


Drain = Callable[[], list[GroupRequest]]
"""What is in the queue by now; whoever takes it finishes it."""


class GroupCommit:
    """`lead` is called by one thread at a time. It drains the queue when it is ready to serve, and finishes each request it
    has drained."""

    def __init__(self, lead: Callable[[Drain], None]) -> None:
        self._lead = lead
        self._queue: deque[GroupRequest] = deque()  # each call of its methods is one step for all threads
        self._turn = threading.Lock()
        self._drained: list[GroupRequest] = []  # for who has the turn

    def write(self, plan: Callable[[Transaction], T]) -> T:
        request = GroupRequest(plan)
        try:
            self._queue.append(request)
            while not request.finished:
                self._wait_or_serve(request)
        finally:
            if not request.finished:  # interrupted: nobody waits for it any more
                request.finished = True
                self._remove(request)
                self._wake_first()
        if request.error is not None:
            try:
                raise request.error
            finally:
                request.error = None  # else the two would keep each other in memory
        return cast(T, request.result)

    def _wait_or_serve(self, request: GroupRequest) -> None:
        if not self._is_first(request):
            with contextlib.suppress(Empty):
                request.wake.get(timeout=LOOK_S)
            if request.finished or (self._turn.locked() and not self._is_first(request)):
                return  # a long round: in a queue at the turn it would learn late that it is finished
        with self._turn:
            finish(self._drained, OutcomeUnknownError("the thread that wrote it was interrupted"))
            if not request.finished:
                self._lead(self._drain)
            self._drained = []

    def _is_first(self, request: GroupRequest) -> bool:
        try:
            return self._queue[0] is request
        except IndexError:
            return False

    def _drain(self) -> list[GroupRequest]:
        queued = list(self._queue)
        self._drained = [request for request in queued if not request.finished]
        for request in (*queued[1:], *queued[:1]):  # the first last: none of the others becomes it while this lasts
            self._remove(request)
        self._wake_first()  # it came meanwhile and was not the first then
        return self._drained

    def _remove(self, request: GroupRequest) -> None:
        with contextlib.suppress(ValueError):
            self._queue.remove(request)

    def _wake_first(self) -> None:
        with contextlib.suppress(IndexError):
            self._queue[0].wake.put(None)


def finish(requests: Sequence[GroupRequest], error: BaseException | None) -> None:
    """Wakes those that were not finished before, with this error where they have none of their own. One instance each: they
    are raised in several threads. What is no error of the store came in the middle: nobody knows what was kept."""
    for request in requests:
        if request.finished:
            continue
        if error is not None and request.error is None:
            if isinstance(error, StoreError):
                request.error = type(error)(*error.args)
            else:
                request.error = OutcomeUnknownError(f"the write was interrupted by {type(error).__name__}")
        request.finished = True
        request.wake.put(None)
