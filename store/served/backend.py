"""The client's side: a replica of the ledger, plans that run on it, and the way back after the engine was lost.

Read: fetch what was kept since, then ask the replica. Write: run the plan on a scratch of the replica, send its entries,
take over what the engine answers; refused, run it again on the newer replica. A plan that raises or does nothing is
believed on a fresh replica only. Plans of several threads that meet share one append (group commit).

When the engine does not answer, `Reach` says who is the engine now (it may be this process), and all sessions of this
process are announced there, before anything else is asked. An append whose answer got lost is sent again under its
token, so that it is kept once (`Book`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import secrets
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, TypeVar, cast

from store.codec import encode
from store.contract import StoreStatistics
from store.errors import OutcomeUnknownError, StoreBusyError, StoreClosedError, StoreError, StoreWriteError
from store.ledger import Entry, Ledger
from store.served import wire
from store.served.book import Verdict
from store.served.link import Address, Link, LinkLostError, LocalLink, TcpLink
from store.served.port import Clock
from store.served.process import new_session_id, process_gone
from store.served.server import REFUSALS, Server, monotonic_ms
from store.session import Backend, Transaction

log = logging.getLogger("store.served")
T = TypeVar("T")
_chance = random.Random()  # our own: the program's sequence is not to depend on how often we had to wait

ROUNDS_LIMIT = 200
RECONNECT_FIRST_MS, RECONNECT_LAST_MS = 10.0, 500.0
PATIENCE_LIMIT_S = 5.0


class Reach(ABC):
    """Who is the engine now?"""

    @abstractmethod
    def target(self, failed: Address | None = None) -> Server | Address | None:
        """The engine as of now: this process, having become it if nobody was, or another. `failed` did not answer just
        now, though it may seem to be there. None: nobody, for the moment (ask again). A StoreError says that asking
        again is of no use."""

    @abstractmethod
    def close(self) -> None:
        """If this process is the engine, it ends being it."""

    @abstractmethod
    def abandon(self) -> None:
        """In a forked child: drop descriptors, change nothing."""


class _Connection:
    """Two links, so that nobody who reads waits for somebody's disk."""

    def __init__(self, target: Server | Address, client_id: str, patience_s: float) -> None:
        self.target = target
        self.reading: Link
        self.writing: Link
        if isinstance(target, Server):
            self.reading, self.writing = LocalLink(target, client_id), LocalLink(target, client_id)
            return
        self.reading = TcpLink(target, client_id, patience_s, patience_s)
        try:
            self.writing = TcpLink(target, client_id, None, patience_s)
        except LinkLostError:
            self.reading.close()
            raise

    def close(self) -> None:
        self.reading.close()
        self.writing.close()

    def abandon(self) -> None:
        self.reading.abandon()
        self.writing.abandon()


class _Request:
    def __init__(self, plan: Callable[[Transaction], Any]) -> None:
        self.plan = plan
        self.result: Any = None
        self.error: BaseException | None = None
        self.leads = False
        self.wake = threading.Event()


class ServedBackend(Backend):
    """One per store and process. `limit_ms` bounds every wait for an engine, then StoreBusyError."""

    def __init__(
        self,
        reach: Reach,
        *,
        session_timeout_ms: float,
        limit_ms: float,
        clock_ms: Clock = monotonic_ms,
        sleep_ms: Callable[[float], None] = lambda ms: time.sleep(ms / 1000.0),
    ) -> None:
        self._reach = reach
        self._session_timeout_ms = session_timeout_ms
        self._limit_ms = limit_ms
        self._clock_ms = clock_ms
        self._sleep_ms = sleep_ms
        self._patience_s = min(PATIENCE_LIMIT_S, session_timeout_ms / 2000.0)
        self._pid = os.getpid()
        self._client_id = secrets.token_hex(8)
        self._closed = False
        self._user_count = 1
        self._life = threading.RLock()  # of user count and the session set
        self._session_ids: set[str] = set()
        self._mirror = threading.RLock()
        self._ledger, self._incarnation, self._position = Ledger(), "", 0
        self._queue: deque[_Request] = deque()
        self._queue_lock = threading.Lock()
        self._has_leader = False
        self._connecting = threading.RLock()
        self._connection: _Connection | None = None
        self._append_count = self._append_bytes = self._reconnect_count = 0
        self._stop = threading.Event()
        self._heart: threading.Thread | None = None
        _backends.add(self)
        try:
            self._connect(None)
        except BaseException:
            self.release()
            raise

    # ---- the way to the engine

    def _connect(self, failed: _Connection | None) -> _Connection:
        """A connection other than the one that failed."""
        with self._connecting:
            if self._connection is not None and self._connection is not failed:
                return self._connection
            if self._connection is not None:
                self._connection.close()
                self._connection = None
                self._reconnect_count += 1
            failed_at: Address | None = None
            deadline_ms, pause_ms, why = self._clock_ms() + self._limit_ms, RECONNECT_FIRST_MS, "there is no engine"
            while True:
                self._check()
                target = self._reach.target(failed_at)
                failed_at = None
                try:
                    if target is not None:
                        made = _Connection(target, self._client_id, self._patience_s)
                        made.reading.ask(wire.Beat(self._mine()))
                        self._connection = made
                        return made
                except LinkLostError as error:
                    why = str(error)
                    failed_at = target if isinstance(target, Address) else None
                if self._clock_ms() >= deadline_ms:
                    raise StoreBusyError(f"no engine of the store answered for {self._limit_ms / 1000:g} s ({why})")
                self._sleep_ms(pause_ms * _chance.uniform(0.5, 1.0))
                pause_ms = min(pause_ms * 2, RECONNECT_LAST_MS)

    def _ask(self, question: wire.Question) -> wire.Answer:
        """A question that may be asked twice."""
        connection = self._connection
        while True:
            self._check()
            connection = connection or self._connect(None)
            try:
                return self._unrefused(connection.reading.ask(question))
            except LinkLostError as error:
                log.info("client %s lost the engine: %s", self._client_id, error)
                connection = self._connect(connection)

    @staticmethod
    def _unrefused(answer: wire.Answer) -> wire.Answer:
        if isinstance(answer, wire.Refusal):
            raise wire.error_of(answer)
        return answer

    # ---- the port

    def read(self, question: Callable[[Ledger], T]) -> T:
        self._check()
        with self._mirror:
            self._refresh()
            return question(self._ledger)

    def _refresh(self) -> bool:
        """True when there was news. Under the mirror's lock."""
        answer = self._ask(wire.Fetch(self._incarnation, self._position))
        assert isinstance(answer, wire.Paged)
        return self._take_over(answer, self._incarnation, self._position)

    def _take_over(self, answer: wire.Paged, incarnation: str, position: int) -> bool:
        """`incarnation`, `position`: what the question named; the replica may be further by now."""
        entries = wire.entries_of(answer)
        with self._mirror:
            if answer.snapshot:
                if answer.incarnation == self._incarnation and answer.position <= self._position:
                    return False
                if (incarnation, position) != (self._incarnation, self._position) and (
                    answer.incarnation != self._incarnation
                ):
                    return False  # of an engine before the one that we follow now, perhaps: ask again
                self._ledger = Ledger()
            else:
                if (answer.incarnation, incarnation) != (self._incarnation, self._incarnation):
                    return False
                entries = entries[self._position - position :]
            for entry in entries:
                self._ledger.apply(entry)
            self._incarnation = answer.incarnation
            moved = bool(entries) or answer.snapshot
            self._position = max(self._position, answer.position) if not answer.snapshot else answer.position
            return moved

    def write(self, plan: Callable[[Transaction], T]) -> T:
        self._check()
        request = _Request(plan)
        with self._queue_lock:
            self._queue.append(request)
            leads, self._has_leader = not self._has_leader, True
        if not leads:
            leads = self._follow(request)
        if leads:
            try:
                self._lead()
            finally:
                self._hand_on()
        if request.error is not None:
            raise request.error
        return cast(T, request.result)

    def _follow(self, request: _Request) -> bool:
        try:
            request.wake.wait()
        except BaseException:  # interrupted: it must not be left behind as the leader that never comes
            with self._queue_lock:
                if not request.leads and request in self._queue:
                    self._queue.remove(request)
            if request.leads:
                self._hand_on()
            raise
        return request.leads

    def _hand_on(self) -> None:
        with self._queue_lock:
            if self._queue:
                self._queue[0].leads = True
                self._queue[0].wake.set()
            else:
                self._has_leader = False

    def _lead(self) -> None:
        with self._queue_lock:
            requests = list(self._queue)
            self._queue.clear()
        try:
            self._run_all(requests)
        except BaseException as error:
            for request in requests:
                request.error = request.error or _copy_of(error)
            if not isinstance(error, StoreError):
                raise
        finally:
            for request in requests:
                request.wake.set()

    def _run_all(self, requests: list[_Request]) -> None:
        """Together; if that is refused, each for itself, so that only he is told whose write it was."""
        try:
            self._run(requests)
        except REFUSALS:
            if len(requests) == 1:
                raise
            for request in requests:
                try:
                    self._run([request])
                except StoreError as error:
                    request.error = error

    def _run(self, requests: list[_Request]) -> None:
        fresh = False
        for attempt in range(ROUNDS_LIMIT):
            self._check()
            with self._mirror:
                entries = self._try_plans(requests)
                certain = entries and not any(request.error for request in requests)
                if not certain and not fresh:
                    fresh = True
                    if self._refresh():
                        continue
                incarnation, position = self._incarnation, self._position
            if not entries or self._append(entries, incarnation, position):
                return
            fresh = True  # the refusal brought what was missed
            if attempt > 2:
                self._sleep_ms(_chance.uniform(0, min(attempt, 20)))
        raise StoreBusyError(f"others were faster {ROUNDS_LIMIT} times")

    def _try_plans(self, requests: list[_Request]) -> list[Entry]:
        from store.served.scratch import Scratch

        transaction = Transaction(Scratch(self._ledger))
        for request in requests:
            request.error = None
            try:
                request.result = request.plan(transaction)
            except Exception as error:  # noqa: BLE001 - raised where it was asked for; the others' plans go on
                request.error = error
        return transaction.entries

    def _append(self, entries: list[Entry], incarnation: str, position: int) -> bool:
        """False when it was refused; then the replica has what the plan did not know."""
        data, token, again = encode(entries), secrets.token_hex(8), False
        deadline_ms, pause_ms = float("inf"), RECONNECT_FIRST_MS
        while True:
            connection = self._connection or self._connect(None)
            try:
                question = wire.Append(incarnation, position, token, position, again, data)
                answer = self._unrefused(connection.writing.ask(question))
                break
            except LinkLostError as error:
                log.info("client %s lost the engine while it wrote: %s", self._client_id, error)
                if self._clock_ms() >= deadline_ms:  # engine after engine is lost, perhaps by what is to be written
                    raise OutcomeUnknownError(
                        f"every engine was lost while it wrote, for {self._limit_ms / 1000:g} s"
                    ) from error
                if again:
                    self._sleep_ms(pause_ms)
                    pause_ms = min(pause_ms * 2, RECONNECT_LAST_MS)
                else:
                    deadline_ms = self._clock_ms() + self._limit_ms  # from the first loss: an engine may think for long
                again = True
                self._connect(connection)
        assert isinstance(answer, wire.Paged)
        if answer.verdict == Verdict.UNKNOWN.value:
            raise OutcomeUnknownError("the engine was lost while it wrote, and its outcomes of that time are forgotten")
        self._take_over(answer, incarnation, position)
        taken = answer.verdict == Verdict.TAKEN.value
        self._append_count += taken
        self._append_bytes += len(data) * taken
        return taken

    # ---- sessions

    def new_session_id(self) -> str:
        return new_session_id()

    def _mine(self) -> tuple[str, ...]:
        with self._life:
            return tuple(self._session_ids)

    def attach(self, session_id: str, label: str) -> None:
        self._check()
        with self._life:
            self._session_ids.add(session_id)
            if self._heart is None:
                self._heart = threading.Thread(target=self._beat_on, name="store-session-beat", daemon=True)
                self._heart.start()
        self._ask(wire.Beat(self._mine()))

    def detach(self, session_id: str) -> None:
        if self._pid != os.getpid():
            return
        with self._life:
            self._session_ids.discard(session_id)

    def _beat_on(self) -> None:
        while not self._stop.wait(min(1.0, self._session_timeout_ms / 5000.0)):
            # No engine for the whole limit: whoever calls next is told. The sessions go stale meanwhile: safe.
            with contextlib.suppress(StoreError):
                self.beat()

    def beat(self) -> None:
        self._ask(wire.Beat(self._mine()))

    def alive(self, session_ids: Collection[str]) -> frozenset[str]:
        answer = self._ask(wire.Alive(tuple(session_ids)))
        assert isinstance(answer, wire.Alive)
        return frozenset(session_id for session_id in answer.session_ids if not process_gone(session_id))

    # ---- the rest

    def clock_ms(self) -> float:
        return self._clock_ms()

    def sleep_ms(self, duration_ms: float) -> None:
        self._sleep_ms(duration_ms)

    def statistics(self) -> StoreStatistics:
        """Writes as this process sent them; at the engine several may have shared one."""
        return StoreStatistics(physical_write_count=self._append_count, physical_write_bytes=self._append_bytes)

    @property
    def reconnect_count(self) -> int:
        return self._reconnect_count

    def retain(self) -> bool:
        with self._life:
            self._user_count += not self._closed
            return not self._closed

    def release(self) -> None:
        if self._pid != os.getpid():
            return
        with self._life:
            self._user_count -= 1
            if self._closed or self._user_count > 0:
                return
            self._closed = True
        self._stop.set()
        if self._heart is not None and self._heart is not threading.current_thread():
            self._heart.join()
        with self._connecting:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self._reach.close()

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise StoreClosedError("the store was opened by the parent of this forked process")
        if self._closed:
            raise StoreClosedError("the store is closed")

    def abandon(self) -> None:
        """In a forked child, without any lock."""
        self._reach.abandon()
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.abandon()


def _copy_of(error: BaseException) -> BaseException:
    """One instance each: they are raised in several threads."""
    if isinstance(error, StoreError):
        return type(error)(*error.args)
    return StoreWriteError(f"the write was interrupted by {type(error).__name__}")


_backends: weakref.WeakSet[ServedBackend] = weakref.WeakSet()


def _abandon_in_child() -> None:
    for backend in list(_backends):
        backend.abandon()


os.register_at_fork(after_in_child=_abandon_in_child)
