"""The Global Directory off the daemon's loop (R10): a directory that is slow or hangs stops no heartbeat and no write.

Threads perform the calls. They are daemon threads, because a call that hangs must not keep the process alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
THREADS = 8


@dataclass(frozen=True)
class DirectoryCall:
    call: Callable[[], Any]
    answer: asyncio.Future[Any]


class DirectoryWorkers:
    """Calls begin in the order in which they were asked for, at most `threads` at a time."""

    def __init__(self, threads: int = THREADS) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[DirectoryCall | None] = SimpleQueue()
        self._threads = threads
        for number in range(threads):
            threading.Thread(target=self._work, name=f"regions-directory-{number}", daemon=True).start()

    def run(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """The result, or the exception, of `call`."""
        answer: asyncio.Future[T] = self._loop.create_future()
        self._calls.put(DirectoryCall(call, answer))
        return answer

    def close(self) -> None:
        """Does not wait for calls that hang."""
        for _ in range(self._threads):
            self._calls.put(None)

    def _work(self) -> None:
        while (asked := self._calls.get()) is not None:
            result = error = None
            try:
                result = asked.call()
            except Exception as failure:  # noqa: BLE001 - it belongs to the caller
                error = failure
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(_answer, asked.answer, result, error)


def _answer(answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if answer.cancelled():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)
