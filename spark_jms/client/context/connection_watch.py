"""The exception listener of a connection: it is told what has befallen the connection, without a call of the application.

    what                                                      the listener gets          once
    ----                                                      -----------------          ----
    the domain's store, or that of a server with members of   ConnectionLostException    until it answers again
    a consumer's destination, has not answered for
    LOST_AFTER_S; not of a server that is stopped
    a consumer without an exception listener of its own has   its error, which the       for each consumer
    ended: it was fenced, has lost its member, or its         next call of it raises
    session has ended because its keep-alive failed           too
    the session with the client id has ended, and another     ConnectionLostException    for each session
    connection may take the id
    the session of the temporary destinations has ended,      ConnectionLostException    for each session
    and other processes delete them

A one-way producer without an exception listener of its own uses the connection's.

The stores are asked once a second, in a thread that a connection without a listener does not have. The listener is called in that
thread, one call at a time: nothing else is told until it returns. What it raises is logged.

Features: D3, T11, C11 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping

from spark_jms.claims.servers.stores import store_of
from spark_jms.claims.servers.timed_stores import ServerAwayError, ask_once
from spark_jms.claims.upkeep.housekeeping import BackgroundThread
from spark_jms.client.messages.message import ExceptionListener
from spark_jms.client.receiving.consumer import Consumer, lost
from spark_jms.core.destinations.destination import is_temporary
from spark_jms.core.destinations.servers import HOME
from spark_jms.errors import ConnectionLostException, InvalidDestinationError
from spark_jms.log.destinations.domain import Domain
from spark_jms.store import SessionInfo, Store

log = logging.getLogger("spark_jms")
LOOK_EVERY_S = 1.0
ANSWER_S = 2.0
LOST_AFTER_S = 5.0


class ConnectionWatch:
    """Looks until it is closed. `consumers` are those that are open now; `sessions` are those of the connection itself in the
    domain's store: what ends with one -> its id, or None while there is none."""

    def __init__(
        self,
        listener: ExceptionListener,
        domain: Domain,
        store: Store,
        consumers: Callable[[], list[Consumer]],
        sessions: Callable[[], Mapping[str, str | None]],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listener, self._domain, self._store = listener, domain, store
        self._consumers, self._sessions, self._clock_s = consumers, sessions, clock_s
        self._silent: dict[str, float] = {}  # server -> since when its store has not answered
        self._told: set[str] = set()  # lost stores, consumers and sessions
        self._closed = False
        self._thread = BackgroundThread("connection")
        self._thread.add("watch of the connection", self.look, LOOK_EVERY_S)

    def look(self) -> None:
        """One round."""
        consumers = self._consumers()
        known = self._ask(HOME)
        for server in {*self._servers(consumers)} - {HOME}:
            self._ask(server)
        for consumer in consumers:
            if consumer.name not in self._told and (error := self._lost(consumer)) is not None:
                self._tell(consumer.name, error)
        if known is not None:
            for what, session in self._sessions().items():
                if session is not None and session not in known and session not in self._told:
                    self._tell(
                        session,
                        ConnectionLostException(
                            f"{self._domain.root}: the session that keeps the {what} of this connection has ended, because its "
                            "keep-alive did not reach the store in time, and others may take them away: connect again"
                        ),
                    )
        self._told &= {*self._silent, *(one.name for one in consumers), *filter(None, self._sessions().values())}

    def _lost(self, consumer: Consumer) -> Exception | None:
        """A store that does not answer now is asked no more in this round."""
        return lost(consumer, asks=not self._silent)

    def _servers(self, consumers: list[Consumer]) -> Iterator[str]:
        """Those whose stores have positions of these consumers."""
        for name in {consumer.destination for consumer in consumers if not is_temporary(consumer.destination)}:
            try:
                declared = self._domain.log(name).snapshot.destination
            except InvalidDestinationError:  # dropped: its consumers find out
                continue
            yield from (server for server in declared.servers_in_use() if server not in declared.stopped)

    def _ask(self, server: str) -> dict[str, SessionInfo] | None:
        """The sessions of its store; None: it does not answer."""
        now = self._clock_s()
        try:
            found = ask_once(server, lambda: store_of(self._store, server).sessions(), ANSWER_S)
        except ServerAwayError as error:
            since = self._silent.setdefault(server, now)
            if now - since >= LOST_AFTER_S and server not in self._told:
                self._tell(
                    server,
                    ConnectionLostException(
                        f"{self._domain.root}: the store of server {server} has not answered for {LOST_AFTER_S:g} s: {error}. "
                        "Messages whose positions it has wait until it answers"
                    ),
                )
            return None
        self._silent.pop(server, None)
        self._told.discard(server)
        return found

    def _tell(self, what: str, error: Exception) -> None:
        self._told.add(what)
        if self._closed:
            return
        try:
            self._listener(error)
        except Exception as raised:
            log.warning("the exception listener of a connection raised", exc_info=raised)

    def close(self) -> None:
        """The listener may call it."""
        self._closed = True
        self._thread.close()
