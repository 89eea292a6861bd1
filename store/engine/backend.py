"""The client's side of an engine: the store's `Backend` port over whichever engine serves the store now.

A commit on its way down:

    EngineBackend    here            keeps its writes exactly once across engines
    EngineRoute      here            the way to the current engine, and to the next when it is lost; EngineFinder finds them
    Access           access.py       runs the plan inside the engine's write, or on a replica and sends its entries
    Server           server.py       the engine; one group commit for all writes
    SharedWrite      entry_log.py    one physical write in the making
    EntryLog         entry_log.py    decides what fits; remembers outcomes
    ReadLease        processes.py    what proves that an answer from memory is not out of date
    Persistence      entry_log.py    the port to the disk, the database or the regions

In the engine's own process a plan goes straight into the engine's write, which all plans and proposals share. In any other
process, plans that meet share one append to the engine (group commit). After an engine is lost during a write, the client
sends the entries again under their token, so the store keeps them once; if the next engine refuses them, the plan runs again.
A change that a rule decides goes to the engine as it is, from any process: the rule runs there, inside the write. An engine of an
older release knows no rules: for it, a change is a plan.
SessionHeartbeat keeps the sessions of this process alive at the engine.
"""

from __future__ import annotations

import contextlib
import logging
import random
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar, cast

from spark_jms.store.contract import StoreOpening, StoreStatistics
from spark_jms.store.engine import connections
from spark_jms.store.engine.access import Access, Appended, AppendInDoubtError, LedgerReplica, LocalAccess, RemoteAccess
from spark_jms.store.engine.connections import Address, LinkLostError
from spark_jms.store.engine.entry_log import ChangeProposal, Proposal, Verdict, size_of
from spark_jms.store.engine.server import REFUSALS, Server, monotonic_ms
from spark_jms.store.errors import OutcomeUnknownError, StoreBusyError, StoreError
from spark_jms.store.ledger.backend import Backend, ChangeAnswer, ChangeRequest, Transaction
from spark_jms.store.ledger.group_commit import Drain, GroupCommit, PlanCall, finish, serve
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.rules import run_change
from spark_jms.store.processes import Clock, UserCount, abandon_in_child, new_session_id, process_gone

log = logging.getLogger("store.served")
T = TypeVar("T")

PATIENCE_LIMIT_S = 5.0
RECONNECT_FIRST_MS, RECONNECT_LAST_MS = 10.0, 500.0
LONGEST_INTERVAL_S = 1.0  # between two heartbeats
_chance = random.Random()  # our own, so that a program's seeded sequence does not depend on how often a client waited


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
        self._announcing = threading.Lock()
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
        self._changes, self._warned = GroupCommit(self._lead_changes), False
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

    def change(self, request: ChangeRequest) -> ChangeAnswer:
        """Changes that threads of this process ask for at once go to the engine together. Where it is of an older release, the rule
        runs on the replica here, as often as other processes are faster."""
        self._route.check_open()
        try:
            return self._changes.write(_Asked(secrets.token_hex(8), request))
        except _OlderEngineError as error:
            if not self._warned:
                self._warned = True
                log.warning("%s: changes of shared record sets are slow until it ends", error.detail())
            return self.write(lambda transaction: run_change(request, transaction, self.alive))

    def _lead_changes(self, drain: Drain) -> None:
        requests = drain()
        try:
            made = self._make([cast(_Asked, request.plan) for request in requests])
        except StoreError as error:
            finish(requests, error)
            return
        for request in requests:
            request.run(made)
        finish(requests, None)

    def _make(self, asked: Sequence[_Asked]) -> dict[str, connections.Made]:
        """What became of each, by token, whatever becomes of the engines."""
        access: Access | None = self._route.current
        losses, base, sent = self._route.losses(), 0, False
        try:
            while True:
                self._route.check_open()
                access = access or self._route.access()
                if not access.makes_changes:
                    raise _OlderEngineError("an engine of an older release serves the store now")
                base = base if sent else access.position
                wanted = [ChangeProposal(one.token, base, one.request, again=sent) for one in asked]
                try:
                    made = access.change(wanted)
                    return {one.token: done for one, done in zip(asked, made, strict=True)}
                except LinkLostError as error:
                    sent = True
                    access = losses.replace(access, error)
        except StoreError as error:
            if not sent or isinstance(error, OutcomeUnknownError):
                raise
            raise OutcomeUnknownError(f"the engine was lost while it changed records: {error.detail()}") from error

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
        # It names all sessions: an older one that came later would end those that have begun since.
        with self._announcing:
            access.ask(connections.Beat(self._heartbeat.session_ids()))

    def alive(self, session_ids: Collection[str]) -> frozenset[str]:
        answer = self._route.use(lambda access: access.ask(connections.Alive(tuple(session_ids))))
        assert isinstance(answer, connections.Alive)
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


class _OlderEngineError(StoreError):
    """The engine of the store is of an older release, which cannot tell what became of a change."""


class _Asked:
    """A change in the queue: called with what became of all changes of its group, it returns or raises its own part."""

    def __init__(self, token: str, request: ChangeRequest) -> None:
        self.token, self.request = token, request

    def __call__(self, made: Mapping[str, connections.Made]) -> ChangeAnswer:
        return connections.answer_of(made[self.token])


class EngineFinder(ABC):
    """Finds the engine of a store: another process, or this one if it wins the ownership. `why` is the reason why `find` found none
    last, as far as it is known. While it `is_blocked`, an administrator's work keeps the store closed: that has no limit of time."""

    why = ""
    is_blocked = False

    @abstractmethod
    def find(self, failed: Address | None = None) -> Server | Address | None:
        """The engine as of now: the server in this process, which this call may start, or the address of another.

        `failed` is an address that has just not answered, although it may still be published. None means that there is
        no engine at the moment and the caller should ask again. A StoreError means that asking again is of no use."""

    @abstractmethod
    def close(self) -> None:
        """Stop the engine if it runs in this process."""

    @abstractmethod
    def abandon(self) -> None:
        """In a forked child: drop the descriptors and change nothing."""


class EngineRoute:
    """A client's way to the engine, which outlives any one engine: it finds the next when the current one is lost.

    A new access first announces the sessions of this process, before anything else is asked through it. A plan keeps the engine
    that it began with: while it runs, the route neither reconnects nor retries, so the plan fails and runs again elsewhere.

    `limit_ms` bounds every wait for an engine, then StoreBusyError; `patience_s` every answer to a question.
    """

    def __init__(
        self,
        finder: EngineFinder,
        announce: Callable[[Access], object],
        users: UserCount,
        *,
        limit_ms: float,
        patience_s: float,
        clock_ms: Clock,
        sleep_ms: Callable[[float], None],
    ) -> None:
        self.finder = finder
        self.clock_ms = clock_ms
        self.sleep_ms = sleep_ms
        self.limit_ms = limit_ms
        self.client_id = secrets.token_hex(8)
        self.reconnect_count = 0
        self.current: Access | None = None
        self._announce = announce
        self._patience_s = patience_s
        self._users = users
        self._connecting = threading.RLock()
        self._replica = LedgerReplica()
        self._plan = threading.local()

    @property
    def closed(self) -> bool:
        return self._users.closed

    def open(self, opening: StoreOpening) -> None:
        """The first access. Raises StoreBusyError when the opening was cancelled, or has reached its limit."""
        with self._connecting:
            self.current = self._search(opening)

    def access(self) -> Access:
        return self.current or self.replace(None)

    def replace(self, failed: Access | None) -> Access:
        """An access other than the one that failed."""
        with self._connecting:
            if self.current is not None and self.current is not failed:
                return self.current
            if self.current is not None:
                self.current.close()
                self.current = None
                self.reconnect_count += 1
            self.current = self._search(StoreOpening())
            return self.current

    def _search(self, opening: StoreOpening) -> Access:
        failed_at: Address | None = None
        limit_s = opening.within(self.limit_ms / 1000)
        deadline_ms, pause_ms, why = self.clock_ms() + limit_s * 1000, RECONNECT_FIRST_MS, "there is no engine"
        while True:
            self.check_open()
            opening.check()
            found = self.finder.find(failed_at)
            failed_at = None
            try:
                if found is not None:
                    return self._open(found)
            except LinkLostError as error:
                why = str(error)
                failed_at = found if isinstance(found, Address) else None
            if found is None:
                why = self.finder.why or why
                if self.finder.is_blocked and opening.limit_s is None:
                    deadline_ms = self.clock_ms() + limit_s * 1000
            if self.clock_ms() >= deadline_ms:
                raise StoreBusyError(f"no engine of the store answered for {limit_s:g} s ({why})")
            self.sleep_ms(pause_ms * _chance.uniform(0.5, 1.0))
            pause_ms = min(pause_ms * 2, RECONNECT_LAST_MS)

    def _open(self, found: Server | Address) -> Access:
        access: Access
        if isinstance(found, Server):
            access, self._replica = LocalAccess(found, self.client_id), LedgerReplica()
        else:
            access = RemoteAccess(found, self.client_id, self._patience_s, self._replica, self.sleep_ms)
        try:
            self._announce(access)
        except BaseException:
            access.close()
            raise
        return access

    def use(self, ask: Callable[[Access], T]) -> T:
        """Ask something that may be asked twice, and ask the next engine when one is lost."""
        if getattr(self._plan, "runs", False):
            if self.current is None:
                raise LinkLostError("the engine was lost while a plan ran")
            return ask(self.current)
        access, losses = self.current, self.losses()
        while True:
            self.check_open()
            access = access or self.access()
            try:
                return ask(access)
            except LinkLostError as error:
                access = losses.replace(access, error)

    def losses(self) -> EngineLosses:
        return EngineLosses(self)

    def in_plan(self, plan: Callable[[object], T]) -> Callable[[object], T]:
        """The plan; while it runs, `use` asks the current engine only."""

        def run(transaction: object) -> T:
            self._plan.runs = True
            try:
                return plan(transaction)
            finally:
                self._plan.runs = False

        return run

    def check_open(self) -> None:
        self._users.require_open()

    def close(self) -> None:
        with self._connecting:
            if self.current is not None:
                self.current.close()
                self.current = None
            self.finder.close()

    def abandon(self) -> None:
        """In a forked child, without any lock: drop the descriptors and send nothing."""
        self.finder.abandon()
        if self.current is not None:
            with contextlib.suppress(OSError):
                self.current.abandon()


class EngineLosses:
    """The engines that were lost while one thing was asked. The first is replaced at once, and each further one after a longer
    pause, until all together took `limit_ms`: then the question itself may be what ends them, or none is certain of its store."""

    def __init__(self, route: EngineRoute) -> None:
        self._route = route
        self._deadline_ms: float | None = None
        self._pause_ms = 0.0

    def replace(self, failed: Access, error: LinkLostError) -> Access:
        """Another access. StoreBusyError after the limit."""
        route = self._route
        log.info("client %s lost the engine: %s", route.client_id, error)
        if self._deadline_ms is None:
            self._deadline_ms = route.clock_ms() + route.limit_ms
        elif route.clock_ms() >= self._deadline_ms:
            raise StoreBusyError(
                f"every engine of the store was lost, for {route.limit_ms / 1000:g} s ({error})"
            ) from error
        else:
            self._pause_ms = min(max(self._pause_ms * 2, RECONNECT_FIRST_MS), RECONNECT_LAST_MS)
            route.sleep_ms(self._pause_ms * _chance.uniform(0.5, 1.0))
        return route.replace(failed)


class SessionHeartbeat:
    """The sessions of this process, and the thread that reports them to the engine. `report` sends one heartbeat."""

    def __init__(self, report: Callable[[], None], session_timeout_ms: float) -> None:
        self._report = report
        self._interval_s = min(LONGEST_INTERVAL_S, session_timeout_ms / 5000.0)
        self._lock = threading.Lock()
        self._session_ids: set[str] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def session_ids(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._session_ids)

    def add(self, session_id: str) -> None:
        with self._lock:
            self._session_ids.add(session_id)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="store-session-beat", daemon=True)
                self._thread.start()

    def discard(self, session_id: str) -> None:
        with self._lock:
            self._session_ids.discard(session_id)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self._report()
            except StoreError:
                pass  # no engine within the limit: the next caller gets the error, and until then the sessions go stale: safe
            except Exception:  # this process may have tried to become the engine itself
                log.exception("the heartbeat of the sessions of this process failed")

    def stop(self) -> None:
        self._stop.set()
        with self._lock:  # another thread may be about to start it
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
