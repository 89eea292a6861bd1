"""The engine: it owns the persistence of a store, keeps its ledger, and serves the sessions of all processes.

Every write is one of three kinds, and all share physical writes through one group commit: a plan of a client in this
process, which runs inside the write; a proposal of a client in another process, which the log checks; and a change of any
client, whose rule runs inside the write. Readers never
wait for the disk; now and then one waits for a proof that this process still owns the store (ReadLease). One background
thread, the keeper, watches which sessions are alive (Liveness), and closes the persistence at the end. When the engine loses
its ownership it is disabled: it writes nothing more and answers no question.

Features: R8, S6 (docs/FEATURES.md)
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from spark_jms.store.engine import connections
from spark_jms.store.engine.connections import ClientConnections, EngineIdentity, start_thread
from spark_jms.store.engine.entry_log import (
    ChangeProposal,
    EntryLog,
    LedgerBatch,
    OwnershipLostError,
    Persistence,
    Proposal,
    SharedWrite,
    Verdict,
)
from spark_jms.store.errors import ObjectTooLargeError, ResourceAllocationException, StoreError, StoreFullError
from spark_jms.store.ledger.backend import ChangeAnswer
from spark_jms.store.ledger.codec import DecodeError
from spark_jms.store.ledger.group_commit import Drain, GroupCommit, GroupRequest, PlanCall, serve
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.record import Ended
from spark_jms.store.processes import START_WAIT_MS, Clock, ReadLease, process_gone

log = logging.getLogger("store.served")
T = TypeVar("T")

TICK_S = 0.2
UNCERTAIN_WAIT_S = 1.0
UNCERTAIN = "the engine is not certain of its ownership"
GRACE_LIMIT_MS = 2_000.0
LONGEST_OWN_SILENCE_MS = 1_000.0
REFUSALS = (StoreFullError, ResourceAllocationException, ObjectTooLargeError)  # for what a write contains


def monotonic_ms() -> float:
    return time.monotonic() * 1000.0


@dataclass(frozen=True)
class ServerStatistics:
    physical_write_count: int
    append_count: int
    client_count: int
    position: int


class Server:
    """Owns the persistence from now on, and closes it however the server ends."""

    def __init__(
        self,
        persistence: Persistence,
        *,
        session_timeout_ms: float,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        clock_ms: Clock = monotonic_ms,
        lost: Callable[[str], None] = lambda reason: None,
        lease: ReadLease | None = None,
    ) -> None:
        self.incarnation = persistence.incarnation
        self.secret = secrets.token_bytes(16)
        self._clock_ms = clock_ms
        self._persistence = persistence
        self._lost = lost
        self._lock = threading.Lock()  # of the log, the counters and the end
        self._group = GroupCommit(self._lead, OwnershipLostError)
        self._gone = ""
        self._closing = False
        self._ending = threading.Event()
        self._certain = threading.Event()
        self._certain.set()
        self._lease = lease or ReadLease()
        self._proving = threading.Lock()
        owner_ms = self._lease.now_ms()
        self._physical_write_count = self._append_count = 0
        try:
            self._log = EntryLog(self.incarnation, persistence.load())
            if persistence.had_owner:
                _sleep_ms(owner_ms + START_WAIT_MS - self._lease.now_ms())
            grace_ms = min(GRACE_LIMIT_MS, session_timeout_ms / 5)
            self._liveness = Liveness(session_timeout_ms, grace_ms, process_gone=process_gone)
            self._liveness.expect(self._log.ledger.sessions, clock_ms())
            identity = EngineIdentity(self.incarnation, self.secret)
            self._connections = ClientConnections(
                identity,
                host,
                port,
                tls,
                answer=self.answer,
                connected=self.connected,
                disconnected=self.disconnected,
            )
        except BaseException:
            persistence.close()
            raise
        self.address = self._connections.address
        self._keeper = start_thread(self._keep, "store-engine-keeper")
        self._connections.start()

    # ---- questions

    def answer(self, client_id: str, question: connections.Question) -> connections.Answer:
        """The answer to a connected client."""
        if self._gone:
            return connections.Refusal("", (self._gone,))
        match question:
            case connections.Fetch(incarnation, position):
                try:
                    self._require_certainty()
                    return self._paged(None, incarnation, position)
                except OwnershipLostError as error:
                    return connections.Refusal("", (str(error),))
            case connections.Append():
                return self._answer_append(question)
            case connections.MakeChanges():
                return self._answer_change(question)
            case connections.Beat(session_ids):
                self._liveness.beat(client_id, session_ids, self._clock_ms())
                return connections.Done()
            case connections.Alive(session_ids):
                return connections.Alive(tuple(self._alive(session_ids)))

    def _paged(self, verdict: Verdict | None, incarnation: str, position: int) -> connections.Paged:
        with self._lock:
            page = self._log.page(incarnation, position)
        self._require_proof()
        return connections.paged(self.incarnation, verdict, page)

    def _answer_append(self, question: connections.Append) -> connections.Answer:
        try:
            proposal = Proposal(question.token, question.base, connections.entries_of(question), question.again)
            return self._paged(self.append(proposal), question.incarnation, question.position)
        except DecodeError as error:
            return connections.refusal(StoreError(f"an append that cannot be read: {error}"))
        except OwnershipLostError as error:
            return connections.Refusal("", (str(error),))
        except StoreError as error:
            return connections.refusal(error)

    def _answer_change(self, question: connections.MakeChanges) -> connections.Answer:
        try:
            wanted = [
                ChangeProposal(one.token, question.base, connections.request_of(one), question.again)
                for one in question.wanted
            ]
            made = tuple(connections.made_of(call) for call in self.change(wanted))
            return connections.Changed(made, self._paged(None, question.incarnation, question.position))
        except DecodeError as error:
            return connections.refusal(StoreError(f"a change that cannot be read: {error}"))
        except OwnershipLostError as error:
            return connections.Refusal("", (str(error),))

    def look(self, question: Callable[[Ledger], T]) -> T:
        """The answer to a question about the newest ledger, for clients in this process. OwnershipLostError."""
        self._require_certainty()
        with self._lock:
            self._require_ownership()
            answer = question(self._log.ledger)
        self._require_proof()
        return answer

    def _require_certainty(self) -> None:
        """While the engine is not certain of its ownership, its ledger may be out of date."""
        if not self._certain.wait(UNCERTAIN_WAIT_S):
            raise OwnershipLostError(UNCERTAIN)

    def _require_proof(self) -> None:
        """Call it after the answer was made. OwnershipLostError when the answer may be out of date. Readers that wait at
        the same time share one proof."""
        if self._lease.holds():
            return
        if not self._proving.acquire(timeout=UNCERTAIN_WAIT_S):
            raise OwnershipLostError(UNCERTAIN)
        try:
            if self._lease.holds():
                return
            asked_ms = self._lease.now_ms()
            self._persistence.prove()
            self._lease.proved(asked_ms)
        except OwnershipLostError as error:
            self.disable(error.detail())
            raise
        except StoreError as error:
            raise OwnershipLostError(f"{UNCERTAIN}: {error.detail()}") from error
        finally:
            self._proving.release()

    def connected(self, client_id: str) -> None:
        self._liveness.connected(client_id, self._clock_ms())

    def disconnected(self, client_id: str) -> None:
        self._liveness.disconnected(client_id, self._clock_ms())

    def tick(self) -> None:
        self._liveness.tick(self._clock_ms())

    # ---- writing

    def write(self, plan: Callable[[SharedWrite], T]) -> T:
        """Run a plan inside a physical write; its entries are durable on return. Blocks for as long as the disk takes.
        OwnershipLostError: they may have been kept. Any other StoreError: they were not."""
        self._require_writable()
        return self._group.write(plan)

    def _require_writable(self) -> None:
        if self._gone or self._closing:
            raise OwnershipLostError(self._gone or "closing")

    def append(self, proposal: Proposal) -> Verdict:
        """The same for a proposal."""
        return self.write(lambda shared: self._log.propose(proposal, shared))

    def change(self, wanted: Sequence[ChangeProposal]) -> Sequence[PlanCall]:
        """The same for changes that rules decide, each with an answer or an error of its own."""
        self._require_writable()
        calls = self._group.write_all([partial(self._change, one) for one in wanted])
        for call in calls:
            if isinstance(call.error, OwnershipLostError):
                raise call.error
        return calls

    def _change(self, wanted: ChangeProposal, shared: SharedWrite) -> ChangeAnswer:
        return self._log.change(wanted, shared, self._alive)

    def _alive(self, session_ids: Collection[str]) -> frozenset[str]:
        return self._liveness.alive(session_ids, self._clock_ms())

    def _lead(self, drain: Drain) -> None:
        serve(drain(), self._write_together, REFUSALS)

    def _write_together(self, requests: Sequence[GroupRequest]) -> None:
        while not self._certain.is_set() and not self._gone:
            self._certain.wait(UNCERTAIN_WAIT_S)
        self._require_ownership()
        shared = self._log.begin(secrets.token_hex(6))
        for request in requests:
            request.run(shared)
        self._require_ownership()
        if shared.entries:
            self._keep_batch(shared.batch())
        elif not self._ending.is_set():
            self._require_proof()  # what the plans have returned, they have read

    def _keep_batch(self, batch: LedgerBatch) -> None:
        try:
            asked_ms = self._lease.now_ms()
            self._persistence.append(batch)
            self._lease.proved(asked_ms)
            with self._lock:
                self._log.keep(batch)
                self._physical_write_count += 1
                self._append_count += len(batch.tokens)
            for entry in batch.entries:
                if isinstance(entry, Ended):
                    self._liveness.forget(entry.session_ids)
        except OwnershipLostError as error:
            self.disable(error.detail())
            raise
        except StoreError:  # nothing of the batch was kept
            raise
        except BaseException as error:
            # Our fault, or the driver's, or an interrupt: it is unknown what was kept, so this engine must not continue.
            lost = OwnershipLostError(f"{type(error).__name__}: {error}")
            self.disable(lost.detail())
            log.exception("the engine %s failed while it wrote", self.incarnation)
            if not isinstance(error, Exception):
                raise
            raise lost from error

    # ---- the end

    @property
    def gone(self) -> str:
        """Why this is no longer an engine; "" while it is one."""
        return self._gone

    def _require_ownership(self) -> None:
        if self._gone:
            raise OwnershipLostError(self._gone)

    def set_certain(self, certain: bool) -> None:
        """False while the owner of the persistence tries to regain it: reads and writes wait."""
        if certain:
            self._certain.set()
        else:
            self._certain.clear()

    def disable(self, reason: str) -> None:
        """Stop at once and for good, from any thread. Clients are cut off; the keeper closes the persistence."""
        with self._lock:
            if self._gone:
                return
            self._gone = reason or "closed"
        self._ending.set()
        self._lost(self._gone)
        self._connections.close()

    def _keep(self) -> None:
        try:
            while not self._ending.wait(TICK_S):
                self.tick()
            with contextlib.suppress(StoreError):
                self._group.write(lambda _: None)  # a barrier: the writes queued before it come first
        finally:
            self._group.run_alone(self._give_up)

    def _give_up(self) -> None:
        with self._lock:
            self._gone = self._gone or "closed"
        self._persistence.close()

    def close(self) -> None:
        """In order: finish the queued writes, close the persistence, hang up on the clients."""
        self._closing = True
        self._ending.set()
        if threading.current_thread() is not self._keeper:
            self._keeper.join()
        self._connections.close()

    def abandon(self) -> None:
        """In a forked child: drop the copies of the descriptors and send nothing."""
        self._gone = "forked"
        self._connections.abandon()

    def statistics(self) -> ServerStatistics:
        with self._lock:
            return ServerStatistics(
                self._physical_write_count, self._append_count, self._liveness.client_count, self._log.position
            )


@dataclass
class _Client:
    connection_count: int = 0
    session_ids: set[str] = field(default_factory=set)


class Liveness:
    """Which sessions are alive, as the engine sees it. Thread-safe; reads no clock: `now_ms` is an argument.

        state     event                                         next
        ALIVE     a heartbeat of its client                     ALIVE    until now + session_timeout_ms
        ALIVE     no heartbeat for session_timeout_ms           DEAD     until a heartbeat comes, unless another client ended it
        ALIVE     all connections of its client have closed     LEAVING  dead at now + grace_ms
        LEAVING   its client is back                            ALIVE
        any       its process is known to have ended            DEAD

    The engine can look up a process of its own host, so the records of a killed process are free at once. A session that
    a new engine finds in the ledger is ALIVE for session_timeout_ms, so that its client can come back. The engine calls `tick`
    several times a second: a longer silence means that the engine itself was stopped.
    """

    def __init__(
        self, session_timeout_ms: float, grace_ms: float, process_gone: Callable[[str], bool] = lambda _: False
    ) -> None:
        self._timeout_ms = session_timeout_ms
        self._grace_ms = grace_ms
        self._process_gone = process_gone
        self._lock = threading.Lock()
        self._alive_until_ms: dict[str, float] = {}
        self._clients: dict[str, _Client] = {}
        self._ticked_ms: float | None = None

    def expect(self, session_ids: Iterable[str], now_ms: float) -> None:
        """Sessions of the engine before this one; their clients have the whole timeout to come back."""
        with self._lock:
            self._tick(now_ms)
            for session_id in session_ids:
                self._alive_until_ms[session_id] = now_ms + self._timeout_ms

    def connected(self, client_id: str, now_ms: float) -> None:
        with self._lock:
            self._tick(now_ms)
            self._clients.setdefault(client_id, _Client()).connection_count += 1

    def disconnected(self, client_id: str, now_ms: float) -> None:
        with self._lock:
            self._tick(now_ms)
            client = self._clients[client_id]
            client.connection_count -= 1
            if client.connection_count == 0:
                del self._clients[client_id]
                for session_id in client.session_ids & self._alive_until_ms.keys():
                    until_ms = min(self._alive_until_ms[session_id], now_ms + self._grace_ms)
                    self._alive_until_ms[session_id] = until_ms

    def beat(self, client_id: str, session_ids: Collection[str], now_ms: float) -> None:
        """A heartbeat names all sessions of its client; the client has no others."""
        with self._lock:
            self._tick(now_ms)
            client = self._clients.get(client_id)
            if client is None:  # it hung up while the heartbeat was on its way
                return
            for session_id in client.session_ids - set(session_ids):
                self._alive_until_ms.pop(session_id, None)
            client.session_ids = set(session_ids)
            for session_id in session_ids:
                self._alive_until_ms[session_id] = now_ms + self._timeout_ms

    def alive(self, session_ids: Collection[str], now_ms: float) -> frozenset[str]:
        with self._lock:
            self._tick(now_ms)
            for session_id in session_ids:
                if session_id in self._alive_until_ms and self._process_gone(session_id):
                    del self._alive_until_ms[session_id]
            return frozenset(s for s in session_ids if self._alive_until_ms.get(s, 0.0) > now_ms)

    def tick(self, now_ms: float) -> None:
        with self._lock:
            self._tick(now_ms)

    def _tick(self, now_ms: float) -> None:
        """While the engine was stopped, heartbeats arrived that it could not read: sessions must not die of that time."""
        silence_ms = now_ms - self._ticked_ms if self._ticked_ms is not None else 0.0
        self._ticked_ms = now_ms
        if silence_ms > LONGEST_OWN_SILENCE_MS:
            for session_id in self._alive_until_ms:
                self._alive_until_ms[session_id] += silence_ms

    def forget(self, session_ids: Iterable[str]) -> None:
        with self._lock:
            for session_id in session_ids:
                self._alive_until_ms.pop(session_id, None)

    @property
    def client_count(self) -> int:
        return len(self._clients)


def _sleep_ms(ms: float) -> None:
    time.sleep(max(0.0, ms) / 1000.0)
