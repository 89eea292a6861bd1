"""The settings of a daemon's core, the actions that it returns, and the memory that it uses. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from spark_jms.store.regions.core.protocol import RegionMessage


@dataclass(frozen=True)
class DaemonSettings:
    heartbeat_ms: float = 200.0
    failure_timeout_ms: float = 2_000.0
    client_timeout_ms: float = 10_000.0
    open_timeout_ms: float = 30_000.0
    audit_ms: float = 1_000.0
    resilver_bytes_per_s: int = 256 * 1024 * 1024
    resilvers_at_once: int = 4
    chunk_bytes: int = 256 * 1024
    window_bytes: int = 4 * 1024 * 1024
    single_copy: str = "allow"  # or "refuse": writes while a region has one copy

    def __post_init__(self) -> None:
        if self.single_copy not in ("allow", "refuse"):
            raise ValueError(f"single_copy is {self.single_copy!r}, expected allow or refuse")


@dataclass(frozen=True)
class ToPeer:
    daemon: int
    message: RegionMessage


@dataclass(frozen=True)
class ToClient:
    client: int
    message: RegionMessage


@dataclass(frozen=True)
class Drop:
    """Close this client's connection."""

    client: int


@dataclass(frozen=True)
class Unlink:
    """Close the connection to this daemon and open another: nothing comes through it."""

    daemon: int


@dataclass(frozen=True)
class Log:
    level: int  # 1 error, 2 information, 3 trace
    text: str


@dataclass(frozen=True)
class Stop:
    """End this daemon."""


Action = ToPeer | ToClient | Drop | Unlink | Log | Stop


class MemoryPort(ABC):
    """Shared memory. The core enforces the limit; the operating system may still refuse."""

    @abstractmethod
    def allocate(self, region_id: str, size: int) -> memoryview:
        """`size` bytes of zeros. Raises MemoryError."""

    @abstractmethod
    def free(self, region_id: str) -> None: ...
