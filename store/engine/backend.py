"""The client's side of an engine: the store's `Backend` port over the current way to the engine (route.py).

In the engine's own process a plan goes straight into the engine's write, which all plans and proposals share. In any other
process, plans that meet share one append to the engine (group commit). After an engine is lost during a write, the client
sends the entries again under their token, so the store keeps them once (entry_log.py); if the next engine refuses them, the
plan runs again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar, cast

from spark_jms.store.contract import StoreStatistics
from spark_jms.store.engine import wire
from spark_jms.store.engine.access import Access, Appended, AppendInDoubtError
from spark_jms.store.engine.entry_log import Verdict, size_of
from spark_jms.store.engine.finder import EngineFinder
from spark_jms.store.engine.link import LinkLostError
from spark_jms.store.engine.local_access import LocalAccess
from spark_jms.store.engine.persistence import Clock
from spark_jms.store.engine.route import RECONNECT_FIRST_MS, RECONNECT_LAST_MS, EngineRoute
from spark_jms.store.engine.server import REFUSALS, monotonic_ms
from spark_jms.store.engine.session_heartbeat import SessionHeartbeat
from spark_jms.store.engine.session_process import new_session_id, process_gone
from spark_jms.store.engine.shared_write import Proposal
from spark_jms.store.errors import OutcomeUnknownError, StoreError
from spark_jms.store.forks import abandon_in_child
from spark_jms.store.ledger.backend import Backend, Transaction
from spark_jms.store.ledger.group import Drain, GroupCommit, PlanCall, serve
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.opening import StoreOpening
from spark_jms.store.sharing import UserCount

log = logging.getLogger("store.served")
T = TypeVar("T")

PATIENCE_LIMIT_S = 5.0


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
        opening: StoreOpening | None = None,
    ) -> None:
        self._users = UserCount()
        self._lock = threading.Lock()  # of the statistics
        self._append_count = self._append_bytes = 0
        self._heartbeat = SessionHeartbeat(self.beat, session_timeout_ms)
        self._route = EngineRoute(
            finder,
            self._announce,
            self._users,
            limit_ms=limit_ms,
            patience_s=min(PATIENCE_LIMIT_S, session_timeout_ms / 2000.0),
            clock_ms=clock_ms,
            sleep_ms=sleep_ms,
        )
        self._group = GroupCommit(self._lead)
        abandon_in_child(self)
        try:
            self._route.open(opening or StoreOpening())
        except BaseException:
            self.release()
            raise

    # ---- reading and writing

    def read(self, question: Callable[[Ledger], T]) -> T:
        return self._route.use(lambda access: access.read(question))

    def write(self, plan: Callable[[Transaction], T]) -> T:
        self._route.check_open()
        guarded = self._route.in_plan(cast(Callable[[object], T], plan))
        if not isinstance(self._route.current, LocalAccess):
            return self._group.write(guarded)
        call = PlanCall(guarded)
        try:
            self._write((call,))
        except StoreError:
            if call.error is None:
                raise
        return cast(T, call.outcome())

    def _lead(self, drain: Drain) -> None:
        serve(drain(), self._write, REFUSALS)

    def _write(self, calls: Sequence[PlanCall]) -> None:
        """Run the plans on the newest ledger and make their entries durable, whatever becomes of the engines."""
        access: Access | None = self._route.current
        losses = self._route.losses()
        while True:
            self._route.check_open()
            access = access or self._route.access()
            try:
                appended = access.write(calls)
            except AppendInDoubtError as lost:
                log.info("client %s lost the engine while it wrote: %s", self._route.client_id, lost)
                if not self._send_again(access, lost.proposal):
                    access = None
                    continue
                appended = Appended(lost.proposal.entries, lost.proposal.is_first_share)
            except LinkLostError as error:
                access = losses.replace(access, error)
                continue
            if appended is not None:
                self._count(appended)
            return

    def _send_again(self, access: Access, proposal: Proposal) -> bool:
        """Send a proposal whose answer was lost to the next engine. False when that refuses it: nothing was kept."""
        route = self._route
        # From the first loss, because an engine may take long to write.
        deadline_ms, pause_ms = route.clock_ms() + route.limit_ms, RECONNECT_FIRST_MS
        while True:
            if route.closed:
                raise OutcomeUnknownError("the engine was lost while it wrote, and the store was closed meanwhile")
            try:
                access = route.replace(access)
            except StoreError as error:
                raise OutcomeUnknownError(
                    f"the engine was lost while it wrote, and no other was found: {error.detail()}"
                ) from error
            try:
                verdict = access.append(proposal)
                break
            except LinkLostError as error:
                log.info("client %s lost the engine while it wrote: %s", route.client_id, error)
                if route.clock_ms() >= deadline_ms:  # every engine is lost, perhaps because of what is to be written
                    raise OutcomeUnknownError(
                        f"every engine was lost while it wrote, for {route.limit_ms / 1000:g} s"
                    ) from error
            route.sleep_ms(pause_ms)
            pause_ms = min(pause_ms * 2, RECONNECT_LAST_MS)
        if verdict is Verdict.UNKNOWN:
            raise OutcomeUnknownError("the engine was lost while it wrote, and its outcomes of that time are forgotten")
        return verdict is Verdict.TAKEN

    def _count(self, appended: Appended) -> None:
        byte_count = size_of(appended.entries)
        with self._lock:
            self._append_count += appended.counts_as_write
            self._append_bytes += byte_count

    # ---- sessions

    def new_session_id(self) -> str:
        return new_session_id()

    def attach(self, session_id: str, label: str) -> None:
        self._route.check_open()
        self._heartbeat.add(session_id)
        self.beat()

    def detach(self, session_id: str) -> None:
        if self._users.is_own_process():
            self._heartbeat.discard(session_id)

    def beat(self) -> None:
        self._route.use(self._announce)

    def _announce(self, access: Access) -> None:
        access.ask(wire.Beat(self._heartbeat.session_ids()))

    def alive(self, session_ids: Collection[str]) -> frozenset[str]:
        answer = self._route.use(lambda access: access.ask(wire.Alive(tuple(session_ids))))
        assert isinstance(answer, wire.Alive)
        return frozenset(session_id for session_id in answer.session_ids if not process_gone(session_id))

    # ---- the rest of the port

    def clock_ms(self) -> float:
        return self._route.clock_ms()

    def sleep_ms(self, duration_ms: float) -> None:
        self._route.sleep_ms(duration_ms)

    def statistics(self) -> StoreStatistics:
        """Writes as this process sent them; at the engine several may have shared one."""
        with self._lock:
            return StoreStatistics(physical_write_count=self._append_count, physical_write_bytes=self._append_bytes)

    @property
    def reconnect_count(self) -> int:
        return self._route.reconnect_count

    def retain(self) -> bool:
        return self._users.retain()

    def release(self) -> None:
        if not self._users.release():
            return
        self._heartbeat.stop()
        self._route.close()

    def abandon(self) -> None:
        """In a forked child, without any lock."""
        self._route.abandon()
