"""The Global Directory off the daemon's loop: a directory that is slow or hangs stops no heartbeat and no write.

Threads perform the calls. They are daemon threads, because a call that hangs must not keep the process alive. All daemons
read the same files, so an error that only one of them did not expect would end all of them: here it becomes a directory that
does not answer, which the core survives.

Features: R10 (docs/FEATURES.md)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from spark_jms.store.errors import DaemonUnavailableError, DirectoryUnavailableError
from spark_jms.store.regions.core.directory import DirectoryAnswer, DirectoryPort, DirectoryRequest, perform, unexpected

T = TypeVar("T")
EXPECTED = (DirectoryUnavailableError, DaemonUnavailableError)
THREADS = 8


@dataclass(frozen=True)
class DirectoryCall:
    call: Callable[[], Any]
    answer: asyncio.Future[Any]


class DirectoryWorkers:
    """Calls begin in the order in which they were asked for, at most `threads` at a time."""

    def __init__(self, log: logging.Logger, threads: int = THREADS) -> None:
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[DirectoryCall | None] = SimpleQueue()
        self._threads = threads
        self.faults: Counter[str] = Counter()  # errors that were not expected, by class and place in the code
        for number in range(threads):
            threading.Thread(target=self._work, name=f"regions-directory-{number}", daemon=True).start()

    def run(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """The result of `call`. DirectoryUnavailableError, DaemonUnavailableError; any other error is named, counted, and
        becomes a DirectoryUnavailableError."""
        answer: asyncio.Future[T] = self._loop.create_future()
        self._calls.put(DirectoryCall(call, answer))
        return answer

    async def ask(self, port: DirectoryPort, request: DirectoryRequest) -> DirectoryAnswer:
        """A failure is an answer."""
        try:
            return await self.run(lambda: perform(port, request))
        except DirectoryUnavailableError as error:  # one that `perform` did not expect
            return error

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
                self._loop.call_soon_threadsafe(self._answer, asked.answer, result, error)

    def _answer(self, answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        if error is not None and not isinstance(error, EXPECTED):
            self._count(error)
            error = unexpected(error)
        if answer.cancelled():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)

    def _count(self, error: Exception) -> None:
        """Logs the first one and each tenfold: the core asks again and again."""
        kind = f"{type(error).__name__} at {_place(error)}"
        self.faults[kind] += 1
        count = self.faults[kind]
        if count == 10 ** (len(str(count)) - 1):
            text = "unexpected error number %d over the Global Directory, which counts as no answer: %s: %s"
            self._log.error(text, count, kind, error, exc_info=error)


def _place(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"
