"""The actions that a daemon's core returns, and the memory that it uses. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec

from spark_jms.store.regions.core.directory import DirectoryRequest
from spark_jms.store.regions.core.protocol import RegionMessage


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
