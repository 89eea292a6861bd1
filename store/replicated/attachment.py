"""A client's attachment to one daemon: requests and answers over one connection (R9, R10, R18)."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable
from typing import Any

import store.errors as errors
from store.errors import DaemonUnavailableError, NoLocalDaemonError, StoreError
from store.replicated.core.config import ClusterConfig, local_daemons
from store.replicated.core.protocol import Failure, Hello, Lost, Message, Ping, Reply
from store.replicated.global_directory import GlobalDirectory, machine_addresses
from store.replicated.wire import Connection, connect

PING_S = 1.0
ANSWER_TIMEOUT_S = 60.0


def error_of(name: str, arguments: list[Any]) -> StoreError:
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, StoreError):
        try:
            return kind(*arguments)
        except TypeError:
            return StoreError(name, *arguments)
    return StoreError(name, *arguments)


class Attachment:
    """`lost` is called once, when the daemon went away or took a region back; every open request then fails."""

    def __init__(self, connection: Connection, index: int, incarnation: str, lost: Callable[[str], None]) -> None:
        self.index = index
        self.incarnation = incarnation
        self._connection = connection
        self._lost = lost
        self._request = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._gone = ""
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._ping())]

    @classmethod
    async def to(
        cls, directory: GlobalDirectory, config: ClusterConfig, index: int, name: str, role: str = "client",
        lost: Callable[[str], None] = lambda reason: None,
    ) -> Attachment:  # fmt: skip
        """To this very daemon."""
        spec = config.daemons[index]
        connection = await connect(spec.address, spec.port, directory.secret(index), directory.identity(config))
        try:
            connection.send(Hello(role, -1, "", name))
            hello = await connection.first()
        except (OSError, asyncio.TimeoutError, StoreError) as error:
            connection.abort()
            raise DaemonUnavailableError(f"daemon {index}: {error}") from error
        if not isinstance(hello, Hello):
            connection.abort()
            raise DaemonUnavailableError(f"daemon {index} did not say who it is")
        return cls(connection, index, hello.incarnation, lost)

    @classmethod
    async def local(
        cls, directory: GlobalDirectory, config: ClusterConfig, localindex: int, name: str, role: str = "client",
        lost: Callable[[str], None] = lambda reason: None,
    ) -> Attachment:  # fmt: skip
        """To the daemon of this machine that `localindex` names, else to any other one of this machine (R10, R11)."""
        here = local_daemons(config, machine_addresses())
        if not here:
            raise NoLocalDaemonError(
                f"none of {len(config.daemons)} daemons in {directory.config_file} is of this machine"
            )
        start = localindex % len(here)
        failures: list[str] = []
        for spec in here[start:] + here[:start]:
            try:
                return await cls.to(directory, config, spec.index, name, role, lost)
            except DaemonUnavailableError as error:
                failures.append(error.detail())
        raise NoLocalDaemonError("; ".join(failures))

    async def ask(self, make: Callable[[int], Message], timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        future = self.begin(make)
        try:
            return await asyncio.wait_for(asyncio.shield(future), timeout_s)
        except asyncio.TimeoutError as error:
            self.close(f"daemon {self.index} did not answer for {timeout_s:g} s")
            raise DaemonUnavailableError(f"daemon {self.index} did not answer for {timeout_s:g} s") from error

    def begin(self, make: Callable[[int], Message]) -> asyncio.Future[Any]:
        """Sends at once; the answer comes later, answers in the order in which they are sent."""
        if self._gone:
            raise DaemonUnavailableError(self._gone)
        self._request += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[self._request] = future
        self._connection.send(make(self._request))
        return future

    async def _run(self) -> None:
        reason = await self._connection.run(self._receive)
        self.close(f"the connection to daemon {self.index} ended: {reason}")

    async def _ping(self) -> None:
        while not self._gone:
            await asyncio.sleep(PING_S)
            self._connection.send(Ping())

    def _receive(self, message: Message) -> None:
        match message:
            case Reply(request, value):
                future = self._waiting.pop(request, None)
                if future is not None and not future.done():
                    future.set_result(value)
            case Failure(request, name, arguments):
                future = self._waiting.pop(request, None)
                if future is not None and not future.done():
                    future.set_exception(error_of(name, arguments))
            case Lost(name, reason):
                self.close(f"region {name}: {reason}")

    def close(self, reason: str = "closed") -> None:
        if self._gone:
            return
        self._gone = reason
        self._connection.close()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(DaemonUnavailableError(reason))
                future.exception()  # whoever waits is told; nobody has to
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._lost(reason)

    def abandon(self) -> None:
        """In a forked child: the connection is the parent's."""
        self._gone = "forked"
        self._connection.abandon()

    @property
    def gone(self) -> str:
        return self._gone


def client_name(kind: str) -> str:
    """Who has a region open, as administrators see it."""
    return f"{kind}@{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
