"""Group commit: concurrent requests share one write.

A caller queues a request, which holds its plan. The caller at the head of the queue waits for the turn and becomes the
leader: it drains the queue and serves all requests in one write. The others wait until the leader wakes them. So the slower
the write, the more requests share the next, and no thread has to stand by to serve them.

Only the turn decides who leads, and only a `with` statement takes it. An interrupt (Ctrl-C) between any two steps can
therefore lose a wake-up or leave drained requests unfinished, never the turn. So a waiting caller rechecks now and then,
and the next leader first finishes what an interrupted one left behind.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

from spark_jms.store.errors import OutcomeUnknownError, StoreError

T = TypeVar("T")

RECHECK_S = 0.5
GLANCE_S = 0.00005  # between two looks of a leader that gathers


class PlanCall:
    """One plan and what became of it: a result or an error."""

    __slots__ = ("error", "plan", "result")

    def __init__(self, plan: Callable[[Any], Any]) -> None:
        self.plan = plan
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self, transaction: Any) -> None:
        """An error of the plan reaches its own caller only; the other plans of the write still run."""
        self.error = None
        try:
            self.result = self.plan(transaction)
        except Exception as error:  # noqa: BLE001
            self.error = error

    def outcome(self) -> Any:
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None  # else the call and its error would keep each other in memory
        return self.result


class GroupRequest(PlanCall):
    """A plan in the queue; the leader calls it with the transaction of its write, and finishes the request."""

    __slots__ = ("finished", "first", "wake")

    def __init__(self, plan: Callable[[Any], Any], *, first: bool = True) -> None:
        super().__init__(plan)
        self.finished, self.first = False, first  # `first` of those that its thread has queued at once
        self.wake: SimpleQueue[None] = SimpleQueue()  # one each: waiting at one common lock would starve some callers


Drain = Callable[[], list[GroupRequest]]
"""Takes the requests that are queued by now; the caller must finish them."""


class GroupCommit:
    """Calls `lead` in one thread at a time. `lead` drains the queue when it is ready to write, and finishes each request it
    has drained. Requests that an interrupted leader drained and did not finish get the error `interrupted`.

    With `gather_s`, a leader first waits at most that long until as many requests are queued as the last write served and
    left: threads that write one request after the other would otherwise split into two halves that take turns. A thread
    that writes alone never waits."""

    def __init__(
        self,
        lead: Callable[[Drain], None],
        interrupted: type[StoreError] = OutcomeUnknownError,
        gather_s: float = 0.0,
    ) -> None:
        self._lead = lead
        self._gather_s, self._expected = gather_s, 0
        self._interrupted = interrupted("the thread that wrote it was interrupted")
        self._queue: deque[GroupRequest] = deque()  # each call of its methods is one step for all threads
        self._turn = threading.Lock()
        self._drained: list[GroupRequest] = []  # only the thread that has the turn uses it

    def write(self, plan: Callable[[Any], T]) -> T:
        (call,) = self.write_all([plan])
        return cast(T, call.outcome())

    def write_all(self, plans: Sequence[Callable[[Any], object]]) -> Sequence[PlanCall]:
        """Several plans of one thread, neighbours in the queue, each with a result or an error of its own."""
        requests = [GroupRequest(plan, first=number == 0) for number, plan in enumerate(plans)]
        try:
            self._queue.extend(requests)
            for request in requests:
                while not request.finished:
                    self._wait_or_serve(request)
        finally:
            interrupted = [request for request in requests if not request.finished]
            for request in interrupted:  # no caller waits for them any more
                request.finished = True
                self._remove(request)
            if interrupted:
                self._wake_first()
        return requests

    def run_alone(self, action: Callable[[], None]) -> None:
        """Run an action while no write is under way."""
        with self._turn:
            action()

    def _wait_or_serve(self, request: GroupRequest) -> None:
        if not self._is_first(request):
            with contextlib.suppress(Empty):
                request.wake.get(timeout=RECHECK_S)
            if request.finished or (self._turn.locked() and not self._is_first(request)):
                return  # a long write: waiting for the turn, which is not fair, it would learn late that it is finished
        with self._turn:
            finish(self._drained, self._interrupted)
            try:
                if not request.finished:
                    self._gather()
                    self._lead(self._drain)
            finally:
                finish(self._drained, self._interrupted)
                self._expected = sum(request.first for request in self._drained) + len(self._queue)
                self._drained = []

    def _gather(self) -> None:
        if not self._gather_s or len(self._queue) >= self._expected:
            return
        deadline = time.monotonic() + self._gather_s
        while len(self._queue) < self._expected and time.monotonic() < deadline:
            time.sleep(GLANCE_S)

    def _is_first(self, request: GroupRequest) -> bool:
        try:
            return self._queue[0] is request
        except IndexError:
            return False

    def _drain(self) -> list[GroupRequest]:
        queued = list(self._queue)
        self._drained = [request for request in queued if not request.finished]
        for request in (*queued[1:], *queued[:1]):  # the head last, so that no other request becomes the head meanwhile
            self._remove(request)
        self._wake_first()  # a request that arrived meanwhile was not the head then
        return self._drained

    def _remove(self, request: GroupRequest) -> None:
        with contextlib.suppress(ValueError):
            self._queue.remove(request)

    def _wake_first(self) -> None:
        for first in list(self._queue)[:1]:
            first.wake.put(None)


def serve(
    requests: Sequence[GroupRequest],
    write: Callable[[Sequence[GroupRequest]], object],
    refusals: tuple[type[StoreError], ...] = (),
) -> None:
    """Write the requests together and finish them. A write that is refused for what it contains (`refusals`) is repeated
    for each request alone, so that only the caller of the refused one gets the error."""
    try:
        write(requests)
    except StoreError as error:
        if isinstance(error, refusals) and len(requests) > 1:
            for request in requests:
                serve([request], write)
        else:
            finish(requests, error)
    else:
        finish(requests, None)


def finish(requests: Sequence[GroupRequest], error: BaseException | None) -> None:
    """Wake the callers of the requests that are not finished. Those without an error of their own get this one, each an
    instance of its own, because several threads raise it. If it is not a StoreError it came in the middle of the write:
    the outcome is unknown."""
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
