"""The simulated end of a client's connection: what `Attachment` uses instead of a socket."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from spark_jms.store.errors import ProtocolError
from spark_jms.store.regions.protocol.messages import Failure, Open, ReadRegion, RegionMessage, Reply, WriteRegion
from tests.models.regions.cluster import SimCluster
from tests.models.regions.connections import ClientConnection, ClientEnd
from tests.models.regions.daemons import SimDaemon
from tests.models.regions.errors import Promise, Violation
from tests.models.regions.event_loop import SimLoop
from tests.models.regions.invariants import Invariants

ANSWERS = (Reply, Failure)


class Asked(NamedTuple):
    message: RegionMessage
    at_ms: float


class ClientSocket(ClientEnd):
    """`epochs`: of the regions that were opened through it. Once `superseded_ms` is set, another process has the store."""

    def __init__(
        self,
        cluster: SimCluster,
        daemon: SimDaemon,
        loop: SimLoop,
        name: str,
        invariants: Invariants,
    ) -> None:
        self.name = name
        self.heard_s = loop.time()
        self.epochs: dict[str, int] = {}
        self.superseded_ms: float | None = None
        self._writing = 0  # writes that have not succeeded
        self._cluster = cluster
        self._loop = loop
        self._invariants = invariants
        self._asked: dict[int, Asked] = {}
        self._messages: deque[RegionMessage] = deque()
        self._receive: Callable[[RegionMessage], None] | None = None
        self._end: asyncio.Future[str] = loop.create_future()
        self._connection: ClientConnection | None = cluster.connect(daemon, self)

    @property
    def quiet(self) -> bool:
        """Every write that was sent has succeeded."""
        return self._connection is not None and not self._writing

    # ---- what an attachment uses

    def send(self, message: RegionMessage) -> None:
        if self._connection is None:
            return
        request = getattr(message, "request", None)
        if request is not None:
            self._asked[request] = Asked(message, self._cluster.now_ms)
            self._writing += isinstance(message, WriteRegion)
        self._cluster.ask(self._connection, message)

    async def run(self, receive: Callable[[RegionMessage], None]) -> str:
        self._receive = receive
        while self._messages:
            receive(self._messages.popleft())
        return await self._end

    def leave(self) -> None:
        if self._connection is not None:
            self._cluster.disconnect(self._connection)

    def abandon(self) -> None:
        self._connection = None

    # ---- what the cluster uses

    def answering(self, message: RegionMessage) -> None:
        if not isinstance(message, ANSWERS):
            return
        asked = self._asked.pop(message.request, None)
        match message, asked:
            case Reply(), Asked(WriteRegion(name=name, epoch=epoch) | ReadRegion(name=name, epoch=epoch) as was, at_ms):
                wrote = isinstance(was, WriteRegion)
                self._writing -= wrote
                assert self._connection is not None
                if self.superseded_ms is not None and at_ms > self.superseded_ms:
                    what = "write" if wrote else "read"
                    raise Violation(
                        Promise.ONE_OPENER, f"{self.name}: a {what} of {name}, whose store another process has"
                    )
                self._invariants.check_answer(self._connection.daemon, self.name, name, epoch, at_ms, wrote)
            case Reply(value=[int(epoch), *_]), Asked(Open(name=name)):
                self.epochs[name] = epoch
            case Failure(error="RegionLostError"), Asked(Open(name=name)):
                self._invariants.check_lost(name)

    def receive(self, message: RegionMessage) -> None:
        self._loop.call_now(self._arrived, message)

    def _arrived(self, message: RegionMessage) -> None:
        if self._connection is None:
            return
        self.heard_s = self._loop.time()
        if self._receive is None:
            self._messages.append(message)
            return
        try:
            self._receive(message)
        except ProtocolError as error:
            self._ended(str(error))

    def disconnected(self) -> None:
        self._connection = None
        self._loop.call_soon(self._ended, "cut")

    def _ended(self, reason: str) -> None:
        if not self._end.done():
            self._end.set_result(reason)
