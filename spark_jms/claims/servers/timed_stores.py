"""One server's store, asked in a thread of its own and for a limited time, so that a store that hangs delays no other.

    StoreThread   does one piece of work at a time; its caller waits for the end as long as it likes
    ask_once      asks a store one question, in a StoreThread of its own
    TimedStore    a store whose calls, and those of its sessions and handles, share a StoreThread and have a limit of time

After a call of a TimedStore that does not return in time, all others fail at once until it has returned. A write that does not
return in time raises OutcomeUnknownError: it may still be kept. What is opened too late, or closed meanwhile, is closed when the
call has returned: the session lives, so no consumer could take its record.

Features: C14, M10 (docs/FEATURES.md)
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from spark_jms.store import (
    Handle,
    Operation,
    OutcomeUnknownError,
    RecordHeldError,
    RecordInfo,
    RecordView,
    RuleCall,
    Session,
    SessionInfo,
    SessionStatistics,
    Store,
    StoreBusyError,
    StoreClosedError,
    StoreError,
    StoreStatistics,
)
from spark_jms.store.contract import check_changes, check_duration
from spark_jms.store.ledger.rules import require_no_rule

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
C = TypeVar("C", Session, Handle)
_POLL_S = 0.01


class StoreThreadBusyError(Exception):
    """The work has not returned in time, or work before it has not. It continues."""


class ServerAwayError(Exception):
    """The server cannot be asked now. `args`: why."""


class AnswerLostError(ServerAwayError):
    """The same, of a write that the server was asked for: it may have been kept."""


# -- work in a thread --------------------------------------------------------------------------------------------------


class Awaited(Protocol[T_co]):
    """Work that has been started."""

    def wait(self, timeout_s: float) -> T_co:
        """Returns or raises what the work does. Raises StoreThreadBusyError when it has not returned in time."""
        ...


class Runs(Protocol):
    """A StoreThread, or Inline."""

    @property
    def busy(self) -> bool: ...

    def start(self, work: Callable[[], T]) -> Awaited[T]: ...

    def run(self, work: Callable[[], T], timeout_s: float) -> T: ...

    def close(self, last: Callable[[], object] | None = None) -> None: ...


class StoreThread:
    """Does one piece of work at a time, in a daemon thread that the first one starts."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._works: queue.SimpleQueue[_Work[Any] | None] = queue.SimpleQueue()
        self._current: _Work[Any] | None = None
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        return self._current is not None and not self._current.is_done

    def run(self, work: Callable[[], T], timeout_s: float) -> T:
        """Returns or raises what the work does; for one calling thread. Raises StoreThreadBusyError."""
        return self.start(work).wait(timeout_s)

    def start(self, work: Callable[[], T]) -> Awaited[T]:
        """For one calling thread. Raises StoreThreadBusyError while other work is under way."""
        if self.busy:
            raise StoreThreadBusyError()
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name=f"jmsq {self._name}", daemon=True)
            self._thread.start()
        own = _Work(work)
        self._current = own
        self._works.put(own)
        return own

    def follow(self, last: Callable[[], object]) -> None:
        """Does `last` after the current work, without waiting; the thread is busy until then."""
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
            raise StoreThreadBusyError()
        if self._error is not None:
            raise self._error
        return self._result[0]

    @property
    def is_done(self) -> bool:
        return self._done.is_set()


def ask_once(server: str, work: Callable[[], T], wait_s: float) -> T:
    """What the work returns. Raises ServerAwayError when the server's store fails, or has not answered within `wait_s`."""
    thread = StoreThread(f"server {server}")
    try:
        return thread.run(work, wait_s)
    except StoreThreadBusyError:
        raise ServerAwayError(f"its store does not answer within {wait_s:g} s") from None
    except StoreError as error:
        raise ServerAwayError(f"{type(error).__name__}: {error}") from error
    finally:
        thread.close()


# -- a store with a limit of time --------------------------------------------------------------------------------------


class TimedStore(Store):
    """A store whose calls have a limit of time. `opened` opens the store when it is first asked. Closing this leaves it open,
    unless `owns`."""

    def __init__(self, server: str, opened: Callable[[], Store], limit_s: float, *, owns: bool = False) -> None:
        self._asked, self._opened, self._owns = _Asked(server, limit_s), opened, owns
        self._store: Store | None = None

    def connect(self, label: str = "") -> Session:
        return _TimedSession(self._asked.open(lambda: self._inner().connect(label)), self._asked)

    def sessions(self) -> dict[str, SessionInfo]:
        return self._asked.run(lambda: self._inner().sessions())

    def names(self, prefix: str = "") -> list[str]:
        return self._asked.run(lambda: self._inner().names(prefix))

    def info(self, name: str) -> RecordInfo | None:
        return self._asked.run(lambda: self._inner().info(name))

    def infos(self, prefix: str = "") -> dict[str, RecordInfo]:
        return self._asked.run(lambda: self._inner().infos(prefix))

    def peek(self, name: str) -> dict[str, bytes]:
        return self._asked.run(lambda: self._inner().peek(name))

    def damaged(self) -> dict[str, str]:
        return self._asked.run(lambda: self._inner().damaged())

    def in_doubt(self) -> dict[str, tuple[str, ...]]:
        return self._asked.run(lambda: self._inner().in_doubt())

    def resolve(self, xid: str, commit: bool) -> None:
        self._asked.write(lambda: self._inner().resolve(xid, commit))

    def statistics(self) -> StoreStatistics:
        return self._asked.run(lambda: self._inner().statistics())

    def close(self) -> None:
        """A store that is still being opened is closed behind that."""
        last = self._close if self._owns else None
        if last is not None:
            with suppress(StoreBusyError, StoreClosedError):
                self._asked.run(last)
        self._asked.close(last)

    # -- in the store's thread ------------------------------------------------------------------------------------
    def _inner(self) -> Store:
        if self._store is None:
            self._store = self._opened()
        return self._store

    def _close(self) -> None:
        closing, self._store = self._store, None
        if closing is not None:
            with suppress(StoreError):  # it cannot be reached; its sessions end by themselves
                closing.close()


class _TimedSession(Session):
    def __init__(self, session: Session, asked: _Asked) -> None:
        self.inner, self._asked = session, asked
        self.session_id = session.session_id
        self._cancelled: set[str] = set()

    def open(self, name: str, timeout_ms: int = 0) -> Handle:
        """Waits for the record outside the thread: others ask the store meanwhile."""
        check_duration(timeout_ms, "timeout_ms")
        deadline_s = time.monotonic() + timeout_ms / 1000
        self._cancelled.discard(name)
        cancel = partial(self.inner.cancel, name)
        while True:
            try:
                return _TimedHandle(self._asked.open(partial(self.inner.open, name), cancel), self._asked)
            except RecordHeldError:
                if time.monotonic() >= deadline_s or name in self._cancelled:
                    raise
            time.sleep(_POLL_S)

    def cancel(self, name: str) -> None:
        self._cancelled.add(name)
        self._asked.end(partial(self.inner.cancel, name))

    def commit(self, changes: Mapping[Handle, Sequence[Operation]]) -> None:
        self._asked.write(partial(self.inner.commit, _plain(changes)))

    def look(self, names: Sequence[str]) -> dict[str, RecordView]:
        return self._asked.run(partial(self.inner.look, names))

    def change(
        self, names: Sequence[str], call: RuleCall, held: Mapping[Handle, Sequence[Operation]] | None = None
    ) -> bytes:
        return self._asked.write(partial(self.inner.change, names, call, _plain(held or {})))

    def prepare(self, xid: str, changes: Mapping[Handle, Sequence[Operation]]) -> None:
        self._asked.write(partial(self.inner.prepare, xid, _plain(changes)))

    def statistics(self) -> SessionStatistics:
        return self.inner.statistics()

    def close(self) -> None:
        self._asked.end(self.inner.close)


class _TimedHandle(Handle):
    def __init__(self, handle: Handle, asked: _Asked) -> None:
        self.handle, self._asked = handle, asked
        self.name = handle.name

    @property
    def epoch(self) -> int:
        return self.handle.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.handle.epoch = epoch

    def read(self, key: str) -> bytes | None:
        return self._asked.run(partial(self.handle.read, key))

    def objects(self) -> dict[str, bytes]:
        return self._asked.run(self.handle.objects)

    def commit(self, operations: Sequence[Operation]) -> None:
        self._asked.write(partial(self.handle.commit, operations))

    def waiters(self) -> tuple[str, ...]:
        return self._asked.run(self.handle.waiters)

    def close(self) -> None:
        self._asked.end(self.handle.close)


def _plain(changes: Mapping[Handle, Sequence[Operation]]) -> dict[Handle, Sequence[Operation]]:
    check_changes(changes)
    return {handle.handle if isinstance(handle, _TimedHandle) else handle: own for handle, own in changes.items()}


class _Asked:
    """The thread of one TimedStore. Thread-safe."""

    def __init__(self, server: str, limit_s: float) -> None:
        self._server, self._limit_s = server, limit_s
        self._thread, self._lock = StoreThread(f"timed {server}"), threading.Lock()
        self._closed = False

    def run(self, work: Callable[[], T]) -> T:
        return self._run(work, StoreBusyError)

    def write(self, work: Callable[[], T]) -> T:
        return self._run(work, OutcomeUnknownError)

    def open(self, work: Callable[[], C], cancel: Callable[[], object] = lambda: None) -> C:
        """What is opened too late is closed; what still waits is cancelled."""
        require_no_rule()
        with self._lock:
            self._check_free()
            opened: list[C] = []

            def open_one() -> C:
                opened.append(work())
                return opened[0]

            def close() -> None:
                for one in opened:
                    one.close()
                if not opened:
                    cancel()

            try:
                return self._thread.run(open_one, self._limit_s)
            except StoreThreadBusyError:
                self._thread.follow(close)
                raise StoreBusyError(self._silent) from None

    def end(self, work: Callable[[], object]) -> None:
        """At once, or behind the call that hangs."""
        with self._lock:
            self._check()
            if self._thread.busy:
                self._thread.follow(work)
                return
            with suppress(StoreThreadBusyError):  # it continues
                self._thread.run(work, self._limit_s)

    def close(self, last: Callable[[], object] | None = None) -> None:
        """`last` follows the call that is under way."""
        with self._lock:
            self._closed = True
            self._thread.close(last)

    def _run(self, work: Callable[[], T], late: type[StoreError]) -> T:
        require_no_rule()  # one in this store's thread would wait for itself
        with self._lock:
            self._check_free()
            try:
                return self._thread.run(work, self._limit_s)
            except StoreThreadBusyError:
                raise late(self._silent) from None

    def _check_free(self) -> None:
        self._check()
        if self._thread.busy:
            raise StoreBusyError(self._silent)

    def _check(self) -> None:
        if self._closed:
            raise StoreClosedError("the store is closed")

    @property
    def _silent(self) -> str:
        return f"the store of server {self._server} does not answer within {self._limit_s:g} s"
