"""A thread that asks one server's store, so that a store that hangs holds up no other. `ask_once` needs one for a moment.

Features: M10 (docs/FEATURES.md)
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from spark_jms.store import StoreError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class LaneBusyError(Exception):
    """The work has not returned in time, or work before it has not. It continues."""


class ServerAwayError(Exception):
    """The server cannot be asked now. `args`: why."""


class AnswerLostError(ServerAwayError):
    """The same, of a write that the server was asked for: it may have been kept."""


class Awaited(Protocol[T_co]):
    """Work that has been started."""

    def wait(self, timeout_s: float) -> T_co:
        """Returns or raises what the work does. Raises LaneBusyError when it has not returned in time."""
        ...


class Runs(Protocol):
    """A Lane, or Inline."""

    @property
    def busy(self) -> bool: ...

    def start(self, work: Callable[[], T]) -> Awaited[T]: ...

    def run(self, work: Callable[[], T], timeout_s: float) -> T: ...

    def close(self, last: Callable[[], object] | None = None) -> None: ...


class _Work(Generic[T]):
    def __init__(self, run: Callable[[], T]) -> None:
        self._run = run
        self._done = threading.Event()
        self._result: list[T] = []
        self._error: BaseException | None = None

    def work(self) -> None:
        try:
            self._result.append(self._run())
        except BaseException as error:  # noqa: BLE001 - `wait` raises it in the caller's thread
            self._error = error
        finally:
            self._done.set()

    def wait(self, timeout_s: float) -> T:
        if not self._done.wait(timeout_s):
            raise LaneBusyError()
        if self._error is not None:
            raise self._error
        return self._result[0]

    @property
    def is_done(self) -> bool:
        return self._done.is_set()


class Lane:
    """One piece of work at a time, in a daemon thread that the first one starts."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._works: queue.SimpleQueue[_Work[Any] | None] = queue.SimpleQueue()
        self._current: _Work[Any] | None = None
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        return self._current is not None and not self._current.is_done

    def run(self, work: Callable[[], T], timeout_s: float) -> T:
        """Returns or raises what the work does; for one calling thread. Raises LaneBusyError."""
        return self.start(work).wait(timeout_s)

    def start(self, work: Callable[[], T]) -> Awaited[T]:
        """For one calling thread. Raises LaneBusyError while other work is under way."""
        if self.busy:
            raise LaneBusyError()
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name=f"jmsq {self._name}", daemon=True)
            self._thread.start()
        own = _Work(work)
        self._current = own
        self._works.put(own)
        return own

    def follow(self, last: Callable[[], object]) -> None:
        """Does `last` after the current work, without waiting; the lane is busy until then."""
        self._current = _Work(last)
        self._works.put(self._current)

    def close(self, last: Callable[[], object] | None = None) -> None:
        """Ends the thread after the current work, however long that takes, and after `last`. Does not wait."""
        if last is not None:
            self._works.put(_Work(last))
        self._works.put(None)

    def _loop(self) -> None:
        while (work := self._works.get()) is not None:
            work.work()


def ask_once(server: str, work: Callable[[], T], wait_s: float) -> T:
    """What the work returns. Raises ServerAwayError when the server's store fails, or has not answered within `wait_s`."""
    lane = Lane(f"server {server}")
    try:
        return lane.run(work, wait_s)
    except LaneBusyError:
        raise ServerAwayError(f"its store does not answer within {wait_s:g} s") from None
    except StoreError as error:
        raise ServerAwayError(f"{type(error).__name__}: {error}") from error
    finally:
        lane.close()


class Inline:
    """For tests with a clock of their own: the work runs in the calling thread, however long it takes."""

    busy = False

    def run(self, work: Callable[[], T], timeout_s: float) -> T:
        return work()

    def start(self, work: Callable[[], T]) -> Awaited[T]:
        done = _Work(work)
        done.work()
        return done

    def close(self, last: Callable[[], object] | None = None) -> None:
        if last is not None:
            last()
