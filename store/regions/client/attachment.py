"""A client's attachment to one daemon: requests and answers over one connection.

Features: R9, R10, R11, R18 (docs/FEATURES.md)
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec

from spark_jms.store.errors import (
    AuthenticationError,
    DaemonUnavailableError,
    NoLocalDaemonError,
    ProtocolError,
    StoreError,
    error_of,
)
from spark_jms.store.regions.directory.global_directory import GlobalDirectory, machine_addresses
from spark_jms.store.regions.protocol.cluster_config import ClusterConfig, local_daemons
from spark_jms.store.regions.protocol.connection import connect
from spark_jms.store.regions.protocol.messages import (
    DaemonRow,
    Daemons,
    Failure,
    Ping,
    RegionHello,
    RegionMessage,
    RegionRow,
    Reply,
    Revoked,
    StoreRow,
)

DAEMON_ROWS = list[DaemonRow | None]
REGION_ROWS = list[RegionRow]
STORE_ROWS = list[StoreRow]
OPENED = tuple[int, int, int]  # epoch, size, the daemon of the second copy or -1
Answered = Callable[[Any, StoreError | None], None]

PING_S = 1.0
SILENCE_S = 4.0
ANSWER_TIMEOUT_S = 60.0
NEXT_DAEMON_S = 1.5


class MessageConnection(Protocol):
    """The port of an attachment to its daemon; `DaemonConnection` is one. `heard_s`: when something last came, by the clock
    of the event loop."""

    heard_s: float

    def send(self, message: RegionMessage) -> None:
        """Never waits. After the end it does nothing."""

    async def run(self, receive: Callable[[RegionMessage], None]) -> str:
        """Hands the messages over until the end, and returns why it ended."""

    def leave(self) -> None:
        """Closes without waiting for the peer."""

    def abandon(self) -> None:
        """In a forked child: gives up its copy of the descriptor and sends nothing."""


class Attachment:
    """Calls `lost` once, when the daemon disconnects, is silent for SILENCE_S or revokes a region. Every open request then
    fails."""

    def __init__(
        self, connection: MessageConnection, index: int, incarnation: str, lost: Callable[[str], None]
    ) -> None:
        self.index = index
        self.incarnation = incarnation
        self._connection = connection
        self._lost = lost
        self._request = 0
        self._waiting: dict[int, Answered] = {}
        self._gone = ""
        self.used: Callable[[], list[tuple[str, int]]] = list  # the used bytes of each region, where they have changed
        self.counts: Callable[[], StoreRow | None] = lambda: None  # those of the store, where they have changed
        self._loop = asyncio.get_running_loop()
        self._tasks = [self._loop.create_task(self._run()), self._loop.create_task(self._ping())]

    @classmethod
    async def to(
        cls,
        directory: GlobalDirectory,
        config: ClusterConfig,
        index: int,
        name: str,
        role: str = "client",
        lost: Callable[[str], None] = lambda reason: None,
        report: str = "",
    ) -> Attachment:
        """Attaches to the daemon with this index, and to no other. `report`: a line for its log."""
        spec, identity = config.daemons[index], directory.identity(config)
        secret = directory.secret(index)
        try:
            connection = await connect(spec.address, spec.port, secret, identity)
        except AuthenticationError:
            if directory.secret(index) == secret:
                raise  # a new secret means that the daemon restarted just now
            connection = await connect(spec.address, spec.port, directory.secret(index), identity)
        try:
            connection.send(RegionHello(role, -1, "", name, report=report))
            hello = await connection.first()
            if not isinstance(hello, RegionHello):
                raise ProtocolError("it did not introduce itself")
        except (OSError, asyncio.TimeoutError, StoreError) as error:
            connection.abort()
            raise DaemonUnavailableError(f"daemon {index}: {error or 'no answer'}") from error
        except BaseException:
            connection.abort()
            raise
        return cls(connection, index, hello.incarnation, lost)

    @classmethod
    async def local(
        cls,
        directory: GlobalDirectory,
        config: ClusterConfig,
        localindex: int,
        name: str,
        role: str = "client",
        lost: Callable[[str], None] = lambda reason: None,
        report: str = "",
    ) -> Attachment:
        """Attaches to the daemon of this machine that `localindex` names, or to another one of this machine."""
        here = local_daemons(config, machine_addresses())
        if not here:
            raise NoLocalDaemonError(
                f"none of {len(config.daemons)} daemons in {directory.config_file} belongs to this machine"
            )
        start = localindex % len(here)
        return await _first_of(
            [
                lambda index=spec.index: cls.to(directory, config, index, name, role, lost, report)  # type: ignore[misc]
                for spec in here[start:] + here[:start]
            ]
        )

    async def ask(
        self, make: Callable[[int], RegionMessage], shape: Any = Any, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> Any:
        """When the answer does not have that shape: ProtocolError, and the attachment ends."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def answered(value: Any, error: StoreError | None) -> None:
            if future.done():  # the caller was cancelled, or does not wait any longer
                return
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        def no_answer() -> None:
            reason = f"daemon {self.index} did not answer for {timeout_s:g} s"
            answered(None, DaemonUnavailableError(reason))
            self.close(reason)

        self.begin(make, answered)
        timer = self._loop.call_later(timeout_s, no_answer)
        try:
            answer = await future
        finally:
            timer.cancel()
        try:
            if shape is bytes and not isinstance(answer, bytes):
                raise msgspec.ValidationError("bytes were asked for")
            return msgspec.convert(answer, shape)
        except msgspec.ValidationError as error:
            self.close(f"daemon {self.index} sent an unexpected answer: {error}")
            raise ProtocolError(f"daemon {self.index} sent an unexpected answer: {error}") from error

    def begin(self, make: Callable[[int], RegionMessage], answered: Answered) -> None:
        """Sends at once. Calls `answered` in the turn in which the answer arrives, or when the attachment ends."""
        if self._gone:
            raise DaemonUnavailableError(self._gone)
        self._request += 1
        self._waiting[self._request] = answered
        self._connection.send(make(self._request))

    async def _run(self) -> None:
        reason = "a fault"
        try:
            reason = await self._connection.run(self._receive)
        finally:
            self.close(f"the connection to daemon {self.index} ended: {reason}")

    async def _ping(self) -> None:
        """Shows that the client lives, and makes the daemon answer: a stopped process keeps its connections open."""
        loop = self._loop
        woke_s = loop.time()
        while not self._gone:
            await asyncio.sleep(PING_S)
            slept_s, woke_s = loop.time() - woke_s, loop.time()
            if slept_s > 2 * PING_S:  # this process did not run, so the daemon was not silent
                self._connection.heard_s = woke_s
            if woke_s - self._connection.heard_s > SILENCE_S:
                self.close(f"daemon {self.index} did not answer for {SILENCE_S:g} s")
                return
            self.tell()
            self.begin(Daemons, lambda value, error: None)

    def tell(self) -> None:
        """Reports that this client lives, the used bytes of its regions, and the counts of its store."""
        self._connection.send(Ping(self.used(), self.counts()))

    def _receive(self, message: RegionMessage) -> None:
        match message:
            case Reply(request, value):
                answered = self._waiting.pop(request, None)
                if answered is not None:
                    answered(value, None)
            case Failure(request, name, arguments):
                answered = self._waiting.pop(request, None)
                if answered is not None:
                    answered(None, error_of(name, arguments))
            case Revoked(name, reason):
                self.close(f"region {name}: {reason}")

    def close(self, reason: str = "closed") -> None:
        if self._gone:
            return
        self._gone = reason
        self._connection.leave()
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._lost(reason)
        waiting, self._waiting = self._waiting, {}
        for answered in waiting.values():
            answered(None, DaemonUnavailableError(reason))

    def discard(self) -> None:
        """Closes an attachment that was never used."""
        self._lost = lambda reason: None
        self.close("not needed")

    def abandon(self) -> None:
        """In a forked child: drops the descriptor. The connection belongs to the parent."""
        self._gone = "forked"
        self._connection.abandon()

    @property
    def gone(self) -> str:
        return self._gone


async def _first_of(ways: Sequence[Callable[[], Awaitable[Attachment]]]) -> Attachment:
    """The first attachment that succeeds. Tries the next way when one fails or has not answered for NEXT_DAEMON_S, because
    its daemon may be stopped. NoLocalDaemonError lists every failure."""
    left = list(ways)
    tried: set[asyncio.Future[Attachment]] = set()
    failures: list[str] = []
    found: Attachment | None = None
    try:
        while left or tried:
            if left:
                tried.add(asyncio.ensure_future(left.pop(0)()))
            done, tried = await asyncio.wait(
                tried, timeout=NEXT_DAEMON_S if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            for future in done:
                try:
                    if found is None:
                        found = future.result()
                    else:
                        future.result().discard()
                except DaemonUnavailableError as error:
                    failures.append(error.detail())
            if found is not None:
                return found
    finally:
        for future in tried:
            future.add_done_callback(_discard_late)
            future.cancel()
    raise NoLocalDaemonError("; ".join(failures))


def _discard_late(future: asyncio.Future[Attachment]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().discard()


def client_name(kind: str) -> str:
    """The name under which administrators see this client."""
    return f"{kind}@{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
