"""What a daemon's core and its driver give each other: actions, in order; the time; the memory. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import msgspec

from spark_jms.store.regions.protocol.messages import Failure, RegionMessage, Reply
from spark_jms.store.regions.protocol.region_entry import DirectoryRequest, Holder


class ToPeer(msgspec.Struct, frozen=True):
    daemon: int
    message: RegionMessage


class ToClient(msgspec.Struct, frozen=True):
    client: int
    message: RegionMessage


class Drop(msgspec.Struct, frozen=True):
    """Close this client's connection."""

    client: int


class Unlink(msgspec.Struct, frozen=True):
    """Close the connection to this daemon and open another: nothing comes through it."""

    daemon: int


class Log(msgspec.Struct, frozen=True):
    level: int  # 1 error, 2 information, 3 trace
    text: str


class AskDirectory(msgspec.Struct, frozen=True):
    """Perform this request without waiting, and pass the answer to `DaemonCore.directory_answered` under its number."""

    number: int
    request: DirectoryRequest


class Stop(msgspec.Struct, frozen=True):
    """End this daemon."""


Action = ToPeer | ToClient | Drop | Unlink | Log | AskDirectory | Stop


class MemoryPort(ABC):
    """Shared memory. The core enforces the limit; the operating system may still refuse. No method waits for it."""

    @abstractmethod
    def allocate(self, region_id: str, size: int) -> memoryview | None:
        """`size` bytes of zeros. None while the operating system provides them: ask again with the same id, or free it.
        Raises MemoryError when it refuses."""

    @abstractmethod
    def free(self, region_id: str) -> None:
        """Also memory that was asked for and is not provided yet."""


@dataclass
class DaemonClock:
    """The time of one daemon: the driver sets it with every event."""

    now_ms: float  # never goes back
    now_us: int  # since the epoch, for people


class Outgoing:
    """The actions that one event causes, in order (a leaf of the daemon core). Collects actions until the driver takes them. A
    message for a connection that is not open is dropped."""

    def __init__(self, me: Holder) -> None:
        self.daemons: set[int] = set()  # those this daemon is connected to
        self.clients: dict[int, str] = {}  # connection number -> the client's name
        self._me = me
        self._actions: list[Action] = []
        self._ids = 0

    def add(self, action: Action) -> None:
        self._actions.append(action)

    def to_peer(self, daemon: int, message: RegionMessage) -> None:
        if daemon in self.daemons:
            self._actions.append(ToPeer(daemon, message))

    def to_client(self, client: int, message: RegionMessage) -> None:
        if client in self.clients:
            self._actions.append(ToClient(client, message))

    def reply(self, client: int, request: int, value: Any = None) -> None:
        self.to_client(client, Reply(request, value))

    def fail(self, client: int, request: int, error: str, *arguments: Any) -> None:
        """`error` is the name of a class of store.errors, `arguments` are its constructor's."""
        self.to_client(client, Failure(request, error, list(arguments)))

    def log(self, level: int, text: str) -> None:
        self.add(Log(level, text))

    def new_id(self) -> str:
        """Unique in this cluster for ever, because an incarnation is never used twice."""
        self._ids += 1
        return f"{self._me.daemon}-{self._me.incarnation}-{self._ids}"

    def take(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions
