"""The Global Directory off the daemon's loop: a directory that is slow or hangs stops no heartbeat and no write.

Threads perform the calls. They are daemon threads, because a call that hangs must not keep the process alive. All daemons
read the same files, so an error that only one of them did not expect would end all of them: here it becomes a directory that
does not answer, which the core survives. The secrets of the other daemons are kept once they were read (PeerSecrets), so two
daemons connect again while the directory is away or hangs.

Features: R10, R17 (docs/FEATURES.md)
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
from spark_jms.store.regions.directory.global_directory import GlobalDirectory
from spark_jms.store.regions.protocol.region_entry import (
    DirectoryAnswer,
    DirectoryPort,
    DirectoryRequest,
    perform,
    unexpected,
)

T = TypeVar("T")
EXPECTED = (DirectoryUnavailableError, DaemonUnavailableError)
THREADS = 8
Run = Callable[[Callable[[], bytes | None]], "asyncio.Future[bytes | None]"]  # off the loop, see DirectoryWorkers.run
PATIENCE_S = 0.2


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


class PeerSecrets:
    """The secrets of the other daemons. `identity` is that of the directory: without seeing it, no daemon is taken for ended."""

    def __init__(self, directory: GlobalDirectory, identity: str, run: Run) -> None:
        self._directory = directory
        self._identity = identity
        self._run = run
        self._known: dict[int, bytes] = {}  # by daemon
        self._asked: dict[int, asyncio.Future[bytes | None]] = {}  # one question a daemon, however long it takes

    async def of(self, index: int) -> bytes | None:
        """None when that daemon certainly does not run. While the directory is away or does not answer: the secret that was
        read last, which a restart of that daemon makes useless. DirectoryUnavailableError or DaemonUnavailableError when none
        was read."""
        asked = self._asked.get(index) or self._run(lambda: self._read(index))
        self._asked[index] = asked
        if index in self._known:
            await asyncio.wait({asked}, timeout=PATIENCE_S)
            if not asked.done():
                return self._known[index]
        try:
            secret = await asyncio.shield(asked)
        except (DirectoryUnavailableError, DaemonUnavailableError):
            if index not in self._known:
                raise
            return self._known[index]
        finally:
            if asked.done():
                self._asked.pop(index, None)
        if secret is not None:
            self._known[index] = secret
        return secret

    def _read(self, index: int) -> bytes | None:
        return self._directory.secret(index) if self._directory.is_running(index, identity=self._identity) else None


def _place(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"
