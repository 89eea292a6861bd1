"""An event loop in simulated time: what a process schedules becomes steps of the one schedule."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

from tests.simulator.schedule import Schedule


class SimLoop(asyncio.AbstractEventLoop):
    """One process. While it stands still (`paused`), its steps wait; after `die`, nothing of it runs any more. An error that
    no caller takes ends the simulation."""

    def __init__(self, schedule: Schedule, clock_rate: float = 1.0) -> None:
        self._schedule = schedule
        self._clock_rate = clock_rate
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._ready: deque[asyncio.Handle] = deque()
        self._turning = False  # a turn is due
        self._failure: BaseException | None = None
        self.paused = False
        self.dead = False

    def time(self) -> float:
        """By the clock of the process."""
        return self._schedule.now_ms / 1000.0 * self._clock_rate

    # ---- callbacks

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if not self._turning:
            self._begin_turn()
        return handle

    def _begin_turn(self) -> None:
        if not self.dead:
            self._turning = True
            self._schedule.later(0.0, self._turn)

    def _turn(self) -> None:
        """Runs what is ready now; what that makes ready waits for the next turn."""
        self._turning = False
        if self.paused or self.dead:
            return
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            for _ in range(len(self._ready)):
                handle = self._ready.popleft()
                if not handle._cancelled:
                    handle._run()
        finally:
            asyncio._set_running_loop(outer)
        if self._ready:
            self._begin_turn()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self.dead:
            delay_ms = (when - self.time()) * 1000.0 / self._clock_rate
            self._schedule.later(max(0.0, delay_ms), lambda: self._is_due(handle))
        return handle

    def _is_due(self, handle: asyncio.TimerHandle) -> None:
        if not handle._cancelled:
            self._ready.append(handle)
            if not self._turning:
                self._begin_turn()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if "handle" in context:  # otherwise a future was deleted whose error no caller has taken
            self._failure = self._failure or context["exception"]

    # ---- futures and tasks

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """A task that must not fail."""
        self.create_task(coroutine).add_done_callback(_raise_failure)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    # ---- the process

    def pause(self) -> None:
        self.paused = True

    def wake(self) -> None:
        self.paused = False
        if self._ready and not self._turning:
            self._begin_turn()

    def die(self) -> None:
        """Ends every task here and now, so that the order in which Python collects them plays no part."""
        self.paused = False
        self._ready.clear()
        for task in list(self._tasks):
            task.cancel()
        while self._ready:
            self._turn()
        self.dead = True


def _raise_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.result()
