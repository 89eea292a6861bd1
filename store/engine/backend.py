"""The client's side: sessions, group commit, and the way back after the engine was lost.

How the ledger is read and added to is `Access` (access.py). Plans of several threads that meet share one append (group
commit). The entries of a plan that are refused are made anew, on a newer ledger.

When the engine does not answer, `EngineFinder` says who is the engine now (it may be this process), and all sessions of this
process are announced there, before anything else is asked. An append whose answer got lost is sent again under its
token, so that it is kept once (`EntryLog`). A plan stays with the engine that it began with: when that is lost it is run again.
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
from collections.abc import Callable, Collection
from typing import TypeVar

from spark_jms.store.contract import StoreStatistics
from spark_jms.store.engine import wire
from spark_jms.store.engine.access import Access, Draft, LedgerReplica, LocalAccess, RemoteAccess
from spark_jms.store.engine.entry_log import Verdict, size_of
from spark_jms.store.engine.link import Address, LinkLostError
from spark_jms.store.engine.persistence import Clock
from spark_jms.store.engine.server import REFUSALS, Server, monotonic_ms
from spark_jms.store.engine.session_process import new_session_id, process_gone
from spark_jms.store.errors import OutcomeUnknownError, StoreBusyError, StoreClosedError, StoreError
from spark_jms.store.ledger.group import Drain, GroupCommit, GroupRequest, finish
from spark_jms.store.ledger.ledger import Entry, Ledger
from spark_jms.store.ledger.session import Backend, Transaction

log = logging.getLogger("store.served")
T = TypeVar("T")
_chance = random.Random()  # our own: the program's sequence is not to depend on how often we had to wait

ROUNDS_LIMIT = 200
RECONNECT_FIRST_MS, RECONNECT_LAST_MS = 10.0, 500.0
PATIENCE_LIMIT_S = 5.0


class EngineFinder(ABC):
    """Who is the engine now?"""

    @abstractmethod
    def find(self, failed: Address | None = None) -> Server | Address | None:
        """The engine as of now: this process, having become it if nobody was, or another. `failed` did not answer just
        now, though it may seem to be there. None: nobody, for the moment (ask again). A StoreError says that asking
        again is of no use."""

    @abstractmethod
    def close(self) -> None:
        """If this process is the engine, it ends being it."""

    @abstractmethod
    def abandon(self) -> None:
        """In a forked child: drop descriptors, change nothing."""


class EngineBackend(Backend):
    """One per store and process. `limit_ms` bounds every wait for an engine, then StoreBusyError."""

    def __init__(
        self,
        finder: EngineFinder,
        *,
        session_timeout_ms: float,
        limit_ms: float,
        clock_ms: Clock = monotonic_ms,
        sleep_ms: Callable[[float], None] = lambda ms: time.sleep(ms / 1000.0),
    ) -> None:
        self._finder = finder
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
        self._replica = LedgerReplica()
        self._group = GroupCommit(self._lead)
        self._planner: int | None = None  # the thread in which a plan runs just now
        self._connecting = threading.RLock()
        self._access: Access | None = None
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

    def _connect(self, failed: Access | None) -> Access:
        """An access other than the one that failed."""
        with self._connecting:
            if self._access is not None and self._access is not failed:
                return self._access
            if self._access is not None:
                self._access.close()
                self._access = None
                self._reconnect_count += 1
            failed_at: Address | None = None
            deadline_ms, pause_ms, why = self._clock_ms() + self._limit_ms, RECONNECT_FIRST_MS, "there is no engine"
            while True:
                self._check()
                target = self._finder.find(failed_at)
                failed_at = None
                try:
                    if target is not None:
                        self._access = self._made(target)
                        return self._access
                except LinkLostError as error:
                    why = str(error)
                    failed_at = target if isinstance(target, Address) else None
                if self._clock_ms() >= deadline_ms:
                    raise StoreBusyError(f"no engine of the store answered for {self._limit_ms / 1000:g} s ({why})")
                self._sleep_ms(pause_ms * _chance.uniform(0.5, 1.0))
                pause_ms = min(pause_ms * 2, RECONNECT_LAST_MS)

    def _made(self, target: Server | Address) -> Access:
        made: Access
        if isinstance(target, Server):
            made, self._replica = LocalAccess(target, self._client_id), LedgerReplica()
        else:
            made = RemoteAccess(target, self._client_id, self._patience_s, self._replica)
        try:
            made.ask(wire.Beat(self._mine()))
        except BaseException:
            made.close()
            raise
        return made

    def _try(self, use: Callable[[Access], T]) -> T:
        """What may be asked twice."""
        access = self._access
        if self._planner == threading.get_ident():
            if access is None:
                raise LinkLostError("the engine was lost while a plan ran")
            return use(access)
        while True:
            self._check()
            access = access or self._connect(None)
            try:
                return use(access)
            except LinkLostError as error:
                log.info("client %s lost the engine: %s", self._client_id, error)
                access = self._connect(access)

    # ---- the port

    def read(self, question: Callable[[Ledger], T]) -> T:
        return self._try(lambda access: access.read(question))

    def write(self, plan: Callable[[Transaction], T]) -> T:
        self._check()
        return self._group.write(plan)

    def _lead(self, drain: Drain) -> None:
        requests = drain()
        try:
            self._run_all(requests)
        except BaseException as error:
            finish(requests, error)
            if not isinstance(error, StoreError):
                raise
        else:
            finish(requests, None)

    def _run_all(self, requests: list[GroupRequest]) -> None:
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
                finish([request], None)

    def _run(self, requests: list[GroupRequest]) -> None:
        def plan(ledger: Ledger) -> tuple[list[Entry], bool]:
            transaction = Transaction(ledger)
            self._planner = threading.get_ident()
            try:
                for request in requests:
                    request.run(transaction)
                    if isinstance(request.error, LinkLostError):
                        lost, request.error = request.error, None  # not the caller's business: it is planned again
                        raise lost
            finally:
                self._planner = None
            return transaction.entries, bool(transaction.entries) and not any(r.error for r in requests)

        for attempt in range(ROUNDS_LIMIT):
            draft = self._try(lambda access: access.draft(plan))
            if not draft.entries or self._append(draft):
                return
            if attempt > 2:
                self._sleep_ms(_chance.uniform(0, min(attempt, 20)))
        raise StoreBusyError(f"others were faster {ROUNDS_LIMIT} times")

    def _append(self, draft: Draft) -> bool:
        """False when it was refused."""
        token, again = secrets.token_hex(8), False
        deadline_ms, pause_ms = float("inf"), RECONNECT_FIRST_MS
        access = self._access
        while True:
            if again and self._closed:
                raise OutcomeUnknownError("the engine was lost while it wrote, and the store was closed meanwhile")
            self._check()
            access = access or self._connect(None)
            try:
                verdict = access.append(draft, token, again)
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
                try:
                    access = self._connect(access)
                except StoreError as failed:
                    raise OutcomeUnknownError(
                        f"the engine was lost while it wrote, and no other was found: {failed.detail()}"
                    ) from failed
        if verdict is Verdict.UNKNOWN:
            raise OutcomeUnknownError("the engine was lost while it wrote, and its outcomes of that time are forgotten")
        taken = verdict is Verdict.TAKEN
        self._append_count += taken
        self._append_bytes += taken and size_of(draft.entries)
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
        self.beat()

    def detach(self, session_id: str) -> None:
        if self._pid != os.getpid():
            return
        with self._life:
            self._session_ids.discard(session_id)

    def _beat_on(self) -> None:
        while not self._stop.wait(min(1.0, self._session_timeout_ms / 5000.0)):
            try:
                self.beat()
            except StoreError:
                pass  # no engine for the whole limit: whoever calls next is told; the sessions go stale meanwhile: safe
            except Exception:  # this process may have tried to become the engine itself
                log.exception("client %s could not say that it lives", self._client_id)

    def beat(self) -> None:
        self._try(lambda access: access.ask(wire.Beat(self._mine())))

    def alive(self, session_ids: Collection[str]) -> frozenset[str]:
        answer = self._try(lambda access: access.ask(wire.Alive(tuple(session_ids))))
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
            if self._access is not None:
                self._access.close()
                self._access = None
            self._finder.close()

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise StoreClosedError("the store was opened by the parent of this forked process")
        if self._closed:
            raise StoreClosedError("the store is closed")

    def abandon(self) -> None:
        """In a forked child, without any lock."""
        self._finder.abandon()
        if self._access is not None:
            with contextlib.suppress(OSError):
                self._access.abandon()


_backends: weakref.WeakSet[EngineBackend] = weakref.WeakSet()


def _abandon_in_child() -> None:
    for backend in list(_backends):
        backend.abandon()


os.register_at_fork(after_in_child=_abandon_in_child)
