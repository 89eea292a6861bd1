"""An event loop in a thread of its own, for callers that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from functools import partial
from queue import SimpleQueue
from typing import Any, NoReturn, TypeVar

from spark_jms.store.errors import StoreClosedError

T = TypeVar("T")


class EventLoopThread:
    """`call` may be called from any thread. After `close` it raises StoreClosedError."""

    def __init__(self, name: str) -> None:
        self.loop = _new_loop()
        self._gate = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Blocks until the coroutine ends. The answer leaves in the coroutine's last turn of the loop:
        `run_coroutine_threadsafe` would take one more turn, and two locks."""
        answer: SimpleQueue[Callable[[], T]] = SimpleQueue()
        tasks: list[asyncio.Task[None]] = []  # the loop itself holds tasks only weakly

        async def run() -> None:
            try:
                value = await coroutine
            except Exception as error:  # noqa: BLE001 - raised in the thread that waits
                answer.put(partial(_throw, error))
            else:
                answer.put(lambda: value)

        def begin() -> None:
            tasks.append(self.loop.create_task(run()))
            tasks[0].add_done_callback(ended)

        def ended(task: asyncio.Task[None]) -> None:
            """Answers for a task that was cancelled, maybe before it began, or that ended the loop."""
            coroutine.close()
            error = CancelledError() if task.cancelled() else task.exception()
            if error is not None:
                answer.put(partial(_throw, error))

        with self._gate:
            if self._closed:
                coroutine.close()
                raise StoreClosedError("the event loop was closed")
            self.loop.call_soon_threadsafe(begin)
        return answer.get()()

    def close(self) -> None:
        with self._gate:
            closed_before, self._closed = self._closed, True
        if closed_before:
            return
        # It runs after all earlier calls: each of them has a task by then, which is cancelled and answers its caller.
        asyncio.run_coroutine_threadsafe(_cancel_all(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


def _throw(error: BaseException) -> NoReturn:
    raise error


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # Windows
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
