"""Blocking calls of one event loop, in threads; and how many asynchronous sends of one context may be outstanding.

Each call gets a thread that is idle, or a new one. A call that may block for long (a receive, a request) is `start`ed; short ones
`run`, at most AT_ONCE at a time, so there are about as many threads as consumers. Cancelling a coroutine does not end the call
that it waits for: the call's effect takes place, and what it opens is discarded. The threads are daemons: none keeps the
interpreter from exiting.

Features: M7 (docs/FEATURES.md)
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from spark_jms.client.messages.message import OwningProcess
from spark_jms.client.receiving.last_user import CALL_THREAD

log = logging.getLogger("spark_jms")
T = TypeVar("T")
P = ParamSpec("P")
AT_ONCE = 32
KEPT = 8  # idle threads


class BlockingCalls:
    """The calls of the loop that runs when this is made. Only its coroutines may call the methods."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle: deque[SimpleQueue[Callable[[], None] | None]] = deque()
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._posted: deque[Callable[[], None]] = deque()
        self._posting = threading.Lock()
        self._resting = threading.Lock()  # between two calls, a thread is idle or ends
        self._closed = False
        self._process = OwningProcess()
        self._discarding: set[asyncio.Future[Any]] = set()  # what was opened for cancelled coroutines

    @property
    def is_parent(self) -> bool:
        """This process is a forked child, and closes nothing."""
        return self._process.is_parent

    def check(self) -> None:
        """Raises ForkedProcessError in a forked child."""
        self._process.check()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.shield(await self._start_in_turn(partial(function, *args, **kwargs)))

    async def open(self, function: Callable[[], T], discard: Callable[[T], object]) -> T:
        """As `run`. `discard` closes what `function` has opened for a coroutine that was cancelled."""
        call = await self._start_in_turn(function)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            self._keep_until_discarded(call, discard)
            raise

    async def _start_in_turn(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Its turn ends with the call, also when no coroutine waits for it any more. Cancelled, it has started nothing."""
        await self._at_once.acquire()
        try:
            call = self.start(function)
        except BaseException:
            self._at_once.release()
            raise
        call.add_done_callback(lambda _: self._at_once.release())
        return call

    def start(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Cancelling the future does not end the call. Raises ForkedProcessError in a forked child, which has no such threads."""
        self._process.check()
        future: asyncio.Future[T] = self._loop.create_future()
        context = contextvars.copy_context()  # what the coroutine's spans are inside of

        def work() -> None:
            try:
                decide = partial(_succeed, future, context.run(function, *args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - the coroutine gets it
                decide = partial(_fail, future, error)
            self.post(decide)

        jobs = self._idle.pop() if self._idle else None
        if jobs is None:
            jobs = SimpleQueue()
            threading.Thread(target=self._serve, args=(jobs,), name=CALL_THREAD, daemon=True).start()
        jobs.put(work)
        return future

    def post(self, callback: Callable[[], None]) -> None:
        """From any thread: have the loop call it. Many callbacks share one wake-up of the loop."""
        with self._posting:
            self._posted.append(callback)
            first = len(self._posted) == 1
        if first:
            with suppress(RuntimeError):  # the loop is closed: no coroutine waits any more
                self._loop.call_soon_threadsafe(self._call_posted)

    async def discarded(self) -> None:
        """Returns once what cancelled coroutines have opened is closed."""
        while self._discarding:
            await asyncio.wait(self._discarding)

    def close(self) -> None:
        """The threads end with their calls. Later calls still run, each in a thread of its own."""
        with self._resting:
            self._closed, idle = True, [*self._idle]
            self._idle.clear()
        for jobs in idle:
            jobs.put(None)

    def _call_posted(self) -> None:
        with self._posting:
            posted, self._posted = self._posted, deque()
        for callback in posted:
            callback()

    def _serve(self, jobs: SimpleQueue[Callable[[], None] | None]) -> None:
        while (work := jobs.get()) is not None:
            work()
            del work
            with self._resting:
                if self._closed or len(self._idle) >= KEPT:
                    return
                self._idle.append(jobs)

    def _keep_until_discarded(self, call: asyncio.Future[T], discard: Callable[[T], object]) -> None:
        def opened(_: object) -> None:
            if call.exception() is None:
                closing = self.start(discard, call.result())
                self._discarding.add(closing)
                closing.add_done_callback(closed)
            self._discarding.discard(call)

        def closed(closing: asyncio.Future[Any]) -> None:
            self._discarding.discard(closing)
            if (error := closing.exception()) is not None:
                log.warning("what was opened for a coroutine that was cancelled could not be closed", exc_info=error)

        self._discarding.add(call)
        call.add_done_callback(opened)


class SendLimit:
    """Backpressure of asynchronous senders. `enter` waits, first come, first served, until the messages and bytes fit; a message that
    is larger than all the room goes alone. One event loop's; not thread-safe."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages, self._max_bytes = max_messages, max_bytes
        self._messages = self._bytes = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    @property
    def messages(self) -> int:
        return self._messages

    @property
    def waiting(self) -> int:
        return sum(not waiter.done() for waiter, _ in self._waiting)

    async def enter(self, size: int) -> None:
        """Cancelled, it has taken no room."""
        if not self._waiting and self._fits(size):
            self._take(size)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((waiter, size))
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                self._grant()  # those behind it may fit
            else:  # it was given room at the same moment
                self.leave(size)
            raise

    def leave(self, size: int) -> None:
        self._messages -= 1
        self._bytes -= size
        self._grant()

    def _fits(self, size: int) -> bool:
        return not self._messages or (self._messages < self._max_messages and self._bytes + size <= self._max_bytes)

    def _take(self, size: int) -> None:
        self._messages += 1
        self._bytes += size

    def _grant(self) -> None:
        while self._waiting:
            waiter, size = self._waiting[0]
            if not waiter.cancelled():
                if not self._fits(size):
                    return
                self._take(size)
                waiter.set_result(None)
            self._waiting.popleft()


def _succeed(future: asyncio.Future[Any], result: object) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if future.done():
        return
    if isinstance(error, StopIteration):  # a future does not take it
        error = RuntimeError(f"the call raised {error!r}")
    future.set_exception(error)
