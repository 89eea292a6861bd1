"""An event loop in simulated time: what a process schedules becomes steps of the one schedule."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ClassVar

from tests.models.regions.schedule import Schedule

MOST_ROUNDS = 100  # of callbacks in one step of the schedule; then other processes have their turn
FEWEST_TASKS = 32  # before those that are done are forgotten
Ready = tuple[Callable[..., Any], tuple[Any, ...]]  # a callback whose turn has come, and its arguments


class SimHandle(asyncio.TimerHandle):
    """A callback that waits for its time. Much smaller than the one of asyncio."""

    __slots__ = ()

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._callback: Any = callback
        self._args = args
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = None
        self._args = ()

    def run(self) -> None:
        if not self._cancelled:
            self._callback(*self._args)


class SimLoop(asyncio.AbstractEventLoop):
    """One process. While it stands still (`paused`), its steps wait; after `die`, nothing of it runs any more. An error that
    no caller takes ends the simulation. Context variables are not supported.

    After a turn its loop stays asyncio's running loop until that of another process has a turn, or `stop_all`: each change
    asks the operating system for the id of this process, which would cost more than most turns.
    """

    _running: ClassVar[SimLoop | None] = None

    def __init__(self, schedule: Schedule, clock_rate: float = 1.0) -> None:
        self._schedule = schedule
        self._clock_rate = clock_rate
        self._tasks: list[asyncio.Task[Any]] = []
        self._most_tasks = FEWEST_TASKS
        self._ready: deque[Ready] = deque()
        self._turning = False  # a turn is due, or under way
        self._failure: BaseException | None = None
        self.paused = False
        self.dead = False

    def time(self) -> float:
        """By the clock of the process."""
        return self._schedule.now_ms / 1000.0 * self._clock_rate

    # ---- callbacks

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: object = None) -> None:  # type: ignore[override]
        """Returns no handle, which would be a quarter of what a turn costs: no part of the store cancels such a call."""
        self._ready.append((callback, args))
        if not self._turning:
            self._begin_turn()

    def call_now(self, callback: Callable[..., Any], *args: Any) -> None:
        """For a step of the schedule that does nothing else: as `call_soon`, in the same step."""
        self._ready.append((callback, args))
        if not self._turning:
            self._turn()

    def _begin_turn(self) -> None:
        if not self.dead:
            self._turning = True
            self._schedule.later(0.0, self._turn)

    def _turn(self) -> None:
        """Runs what is ready, and what that makes ready."""
        if self.paused or self.dead:
            self._turning = False
            return
        self._turning = True
        outer, SimLoop._running = SimLoop._running, self
        if outer is not self:
            asyncio._set_running_loop(self)
        try:
            self._run_rounds()
        finally:
            self._turning = False
            if outer is not None and outer is not self:
                SimLoop._running = outer
                asyncio._set_running_loop(outer)
        if self._ready and not self.paused:
            self._begin_turn()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _run_rounds(self) -> None:
        ready = self._ready
        for _ in range(MOST_ROUNDS):
            for _ in range(len(ready)):
                callback, args = ready.popleft()
                try:
                    callback(*args)
                except Exception as error:  # noqa: BLE001 - no caller is left that could take it
                    self._failure = self._failure or error
            if not ready or self.paused or self._failure is not None:
                return

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: object = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: object = None
    ) -> asyncio.TimerHandle:
        handle = SimHandle(callback, args)
        if not self.dead:
            delay_ms = (when - self.time()) * 1000.0 / self._clock_rate
            self._schedule.later(max(0.0, delay_ms), partial(self._is_due, handle))
        return handle

    def _is_due(self, handle: SimHandle) -> None:
        if not handle._cancelled:
            self.call_now(handle.run)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A future was deleted whose error no caller has taken."""

    # ---- futures and tasks

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name)
        if len(self._tasks) >= self._most_tasks:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._most_tasks = max(FEWEST_TASKS, 2 * len(self._tasks))
        self._tasks.append(task)
        return task

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """A task that must not fail."""
        self.create_task(coroutine).add_done_callback(_raise_failure)

    get_debug = staticmethod(bool)  # False; every future and every task asks

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    async def sleep(self, delay: float) -> None:
        """As `asyncio.sleep`, which first has to find the loop."""
        future = self.create_future()
        handle = self.call_later(delay, _end_sleep, future)
        try:
            await future
        finally:
            handle.cancel()

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

    @classmethod
    def stop_all(cls) -> None:
        """The world has ended: asyncio has no running loop."""
        cls._running = None
        asyncio._set_running_loop(None)


def _end_sleep(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _raise_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.result()
