"""The engine's side: answers the questions of all clients, and makes their appends durable in shared writes.

Threads: one for each connection, which waits for questions; one, the keeper, which looks who is alive, and gives the
place up at the end. Appends take turns: whoever has the turn takes all that have come in, lets the book decide, and calls
the persistence once; the others then find theirs done. So readers never wait for the disk, and the slower the place, the
more appends share a write. When ownership is lost the engine is disabled: everybody is told so, nothing is written any
more, and no question is answered (S6).
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from spark_jms.store.engine import wire
from spark_jms.store.engine.entry_log import EntryLog, Proposal, Verdict
from spark_jms.store.engine.link import hang_up, receive, send
from spark_jms.store.engine.liveness import Liveness
from spark_jms.store.engine.persistence import Clock, OwnershipLostError, Persistence
from spark_jms.store.engine.scratch_ledger import ScratchLedger
from spark_jms.store.engine.session_process import process_gone
from spark_jms.store.errors import ObjectTooLargeError, ResourceAllocationException, StoreError, StoreFullError
from spark_jms.store.ledger.codec import DecodeError
from spark_jms.store.ledger.ledger import Ended, Ledger

log = logging.getLogger("store.served")
T = TypeVar("T")

TICK_S = 0.2
HELLO_TIMEOUT_S = 10.0
BACKLOG = 128
ACCEPT_PAUSE_S, ACCEPT_END_S = 0.05, 2.0
MAX_GREETING = 256  # have not proved anything yet; whoever means well is done in milliseconds
ROUND_LIMIT = 256
UNCERTAIN_WAIT_S = 1.0
GRACE_LIMIT_MS = 2_000.0
REFUSALS = (StoreFullError, ResourceAllocationException, ObjectTooLargeError)  # of what is in a write


def monotonic_ms() -> float:
    return time.monotonic() * 1000.0


@dataclass
class _Pending:
    proposal: Proposal
    after: ScratchLedger | None = None
    verdict: Verdict | None = None
    error: StoreError | None = None
    done: bool = False


@dataclass(frozen=True)
class ServerStatistics:
    physical_write_count: int
    append_count: int
    client_count: int
    position: int


class Server:
    """Owns the persistence from now on: closes it, whatever ends the server."""

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
    ) -> None:
        self.incarnation = persistence.incarnation
        self.secret = secrets.token_bytes(16)
        self.session_timeout_ms = session_timeout_ms
        self.clock_ms = clock_ms
        self._persistence = persistence
        self._lost = lost
        self._tls = tls
        self._lock = threading.RLock()  # of book, liveness and counters; a plan that runs in it asks who is alive
        self._turn = threading.Lock()  # to write
        self._queue: deque[_Pending] = deque()
        self._news = threading.Condition()  # of queue and end
        self._gone = ""
        self._closing = False
        self._certain = threading.Event()
        self._certain.set()
        self._connections: set[socket.socket] = set()
        self._greeting: dict[socket.socket, None] = {}  # oldest first
        self._physical_write_count = self._append_count = 0
        self._listener: socket.socket | None = None
        try:
            loaded = persistence.load()
            self._log = EntryLog(self.incarnation, loaded)
            self._liveness = Liveness(
                session_timeout_ms, min(GRACE_LIMIT_MS, session_timeout_ms / 5), process_gone=process_gone
            )
            self._liveness.expect(self._log.ledger.sessions, clock_ms())
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except BaseException:
            persistence.close()
            raise
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._keeper = self._start(self._keep, "store-engine-keeper")
        self._acceptor = self._start(self._accept, "store-engine-accept")

    @staticmethod
    def _start(target: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    # ---- questions

    def answer(self, client_id: str, question: wire.Question) -> wire.Answer:
        """Of a connected client."""
        if self._gone:
            return wire.Refusal("", (self._gone,))
        match question:
            case wire.Fetch(incarnation, position):
                # Not sure of its ownership, it must not tell what may be old by now.
                if not self._certain.wait(UNCERTAIN_WAIT_S):
                    return wire.Refusal("", ("the engine is not certain of its lock",))
                return self._paged(None, incarnation, position)
            case wire.Append():
                return self._append(question)
            case wire.Beat(session_ids):
                with self._lock:
                    self._liveness.beat(client_id, session_ids, self.clock_ms())
                return wire.Done()
            case wire.Alive(session_ids):
                with self._lock:
                    return wire.Alive(tuple(self._liveness.alive(session_ids, self.clock_ms())))

    def _paged(self, verdict: Verdict | None, incarnation: str, position: int) -> wire.Paged:
        with self._lock:
            page = self._log.page(incarnation, position)
        return wire.paged(self.incarnation, verdict, page)

    def _append(self, question: wire.Append) -> wire.Answer:
        try:
            proposal = Proposal(question.token, question.base, wire.entries_of(question), question.again)
            return self._paged(self.append(proposal), question.incarnation, question.position)
        except DecodeError as error:
            return wire.refusal(StoreError(f"an append that cannot be read: {error}"))
        except OwnershipLostError as error:
            return wire.Refusal("", (str(error),))
        except StoreError as error:
            return wire.refusal(error)

    def look(self, question: Callable[[Ledger, int], T]) -> T:
        """For who is in this process: asks the ledger, and its position, as of now. OwnershipLostError."""
        if not self._certain.wait(UNCERTAIN_WAIT_S):
            raise OwnershipLostError("the engine is not certain of its lock")
        with self._lock:
            if self._gone:
                raise OwnershipLostError(self._gone)
            return question(self._log.ledger, self._log.position)

    def append(self, proposal: Proposal, after: ScratchLedger | None = None) -> Verdict:
        """Blocks for as long as the place takes. `after`: this ledger with these entries on it; not to be used any more.
        OwnershipLostError: it may have been kept. Any other StoreError: it was not."""
        pending = _Pending(proposal, after)
        with self._news:
            if self._gone or self._closing:
                raise OwnershipLostError(self._gone or "closing")
            self._queue.append(pending)
        while not pending.done:
            with self._turn:
                if not pending.done:
                    self._serve()
        if pending.error is not None:
            raise pending.error
        assert pending.verdict is not None
        return pending.verdict

    def connected(self, client_id: str) -> None:
        with self._lock:
            self._liveness.connected(client_id, self.clock_ms())

    def disconnected(self, client_id: str) -> None:
        with self._lock:
            self._liveness.disconnected(client_id, self.clock_ms())

    def tick(self) -> None:
        with self._lock:
            self._liveness.tick(self.clock_ms())

    # ---- writing

    def _keep(self) -> None:
        try:
            while not self._gone and not self._closing:
                with self._news:
                    if not self._gone and not self._closing:
                        self._news.wait(TICK_S)
                self.tick()
            with self._turn:
                while self._queue:
                    self._serve()
        finally:
            self._persistence.close()

    def _serve(self) -> None:
        """One round, of all that have come in. For who has the turn."""
        with self._news:
            pendings = list(islice(self._queue, ROUND_LIMIT))
        try:
            self._write_round(pendings)
        finally:
            with self._news:
                while self._queue and self._queue[0].done:
                    self._queue.popleft()

    def _write_round(self, pendings: list[_Pending]) -> None:
        """Settles all of them, whatever happens: nobody may wait for ever. What the place refuses is refused to whoever
        asked for it: the others of the round are written without it."""
        error = OwnershipLostError(self._gone) if self._gone else self._try_round(pendings)
        if isinstance(error, REFUSALS) and len(pendings) > 1:
            for pending in pendings:
                self._write_round([pending])
            return
        self._settle(pendings, error)

    @staticmethod
    def _settle(pendings: list[_Pending], error: StoreError | None) -> None:
        for pending in pendings:
            pending.error, pending.done = error, True

    def _try_round(self, pendings: list[_Pending]) -> StoreError | None:
        try:
            after, pendings[0].after = pendings[0].after, None
            planned = self._log.plan_round([pending.proposal for pending in pendings], after)
            if planned.batch is not None:
                self._persistence.append(planned.batch)
                with self._lock:
                    self._log.keep(planned.batch)
                    self._physical_write_count += 1
                    self._append_count += len(planned.batch.tokens)
                    for entry in planned.batch.entries:
                        if isinstance(entry, Ended):
                            self._liveness.forget(entry.session_ids)
            for pending, verdict in zip(pendings, planned.verdicts, strict=True):
                pending.verdict = verdict
        except OwnershipLostError as error:
            self.disable(error.detail())
            return error
        except StoreError as error:  # nothing of the round was kept
            return error
        except BaseException as error:
            # A fault of ours, or of the driver, or somebody interrupted this thread: it is unknown what was kept, so this
            # engine must not go on.
            lost = OwnershipLostError(f"{type(error).__name__}: {error}")
            self.disable(lost.detail())
            log.exception("the engine %s failed while it wrote", self.incarnation)
            if not isinstance(error, Exception):
                self._settle(pendings, lost)
                raise
            return lost
        return None

    # ---- connections

    def _accept(self) -> None:
        listener = self._listener
        assert listener is not None
        while not self._closing and not self._gone:
            try:
                connection, _ = listener.accept()
            except OSError:  # hung up; or too many files are open, or the client has left: those pass
                time.sleep(ACCEPT_PAUSE_S)
                continue
            if self._tls is not None:
                try:
                    connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
                except OSError:  # it hung up already
                    connection.close()
                    continue
            with (
                self._lock
            ):  # in which a connection is hung up: it is closed by its own thread, and only when not listed
                self._connections.add(connection)
                self._greeting[connection] = None
                if len(self._greeting) > MAX_GREETING:
                    oldest = next(iter(self._greeting))
                    del self._greeting[oldest]  # at once: its thread may take its time
                    hang_up(oldest)
            self._start(lambda connection=connection: self._converse(connection), "store-engine-connection")  # type: ignore[misc]

    def _converse(self, connection: socket.socket) -> None:
        client_id = ""
        try:
            client_id = self._greet(connection)
            with self._lock:
                self._greeting.pop(connection, None)
            while client_id:
                question = receive(connection)
                if not isinstance(question, wire.Fetch | wire.Append | wire.Beat | wire.Alive):
                    raise wire.WireError(f"not a question: {type(question).__name__}")
                send(connection, self.answer(client_id, question))
        except (OSError, wire.WireError) as error:
            if isinstance(error, wire.WireError):
                log.warning("engine %s: a connection is dropped: %s", self.incarnation, error)
        finally:
            with self._lock:
                self._connections.discard(connection)
                self._greeting.pop(connection, None)
            connection.close()
            if client_id:
                self.disconnected(client_id)

    def _greet(self, connection: socket.socket) -> str:
        """The client's id, "" when it is none of ours."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.settimeout(HELLO_TIMEOUT_S)
        if isinstance(connection, ssl.SSLSocket):
            connection.do_handshake()
        nonce = secrets.token_bytes(16)
        send(connection, wire.Challenge(wire.WIRE_VERSION, self.incarnation, nonce))
        hello = receive(connection, wire.GREETING_LIMIT_BYTES)
        if not isinstance(hello, wire.Hello) or hello.version != wire.WIRE_VERSION:
            raise wire.WireError("no greeting, or one of another version")
        if not secrets.compare_digest(hello.proof, wire.proof(self.secret, b"client", nonce, hello.client_id)):
            raise wire.WireError("a client without the secret")
        connection.settimeout(None)
        self.connected(hello.client_id)
        proof = wire.proof(self.secret, b"engine", hello.nonce, hello.client_id)
        try:
            send(connection, wire.Welcome(self.session_timeout_ms, proof))
        except OSError:
            self.disconnected(hello.client_id)
            raise
        return hello.client_id

    # ---- the end

    @property
    def gone(self) -> str:
        """Why this is no engine any more; "" while it is."""
        return self._gone

    def set_certain(self, certain: bool) -> None:
        """False: while the owner of the place tries to regain it. Appends wait in the persistence, reads wait here."""
        if certain:
            self._certain.set()
        else:
            self._certain.clear()

    def disable(self, reason: str) -> None:
        """At once and for good, from any thread. Who is connected is cut off; the writer gives up the persistence."""
        with self._news:
            if self._gone:
                return
            self._gone = reason or "closed"
            self._news.notify_all()
        self._lost(self._gone)
        self._hang_up()

    def _hang_up(self) -> None:
        if self._listener is not None:
            hang_up(self._listener)  # a close alone does not end the wait in accept()
            self._acceptor.join(ACCEPT_END_S)  # nor is it closed under it, where hanging up ends the wait
            self._listener.close()
        with self._lock:
            for connection in self._connections:
                hang_up(connection)

    def close(self) -> None:
        """In order: what is queued is written, then the place is given up, then clients are sent away."""
        with self._news:
            self._closing = True
            self._news.notify_all()
        if threading.current_thread() is not self._keeper:
            self._keeper.join()
        with self._news:
            self._gone = self._gone or "closed"
        self._hang_up()

    def abandon(self) -> None:
        """In a forked child: drop the copies of descriptors, say nothing to anybody."""
        self._gone = "forked"
        for connection in (*self._connections, *([self._listener] if self._listener else [])):
            with contextlib.suppress(OSError):
                connection.close()

    def statistics(self) -> ServerStatistics:
        with self._lock:
            return ServerStatistics(
                self._physical_write_count, self._append_count, self._liveness.client_count, self._log.position
            )
