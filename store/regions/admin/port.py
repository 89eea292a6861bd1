"""The administration of a daemon cluster as a port, with its values.

Features: R4, R6 (docs/FEATURES.md)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_jms.store.reports import StoreInfo


@dataclass(frozen=True)
class DaemonInfo:
    """One line of rs_daemons.cfg and the daemon that runs there. The fields after `up` are 0 while it is down."""

    index: int
    address: str
    port: int
    shmkey: int
    memory_limit_bytes: int
    up: bool
    reachable: bool = False
    started_us: int = 0  # microseconds since the epoch
    now_us: int = 0  # the daemon's own clock
    memory_used_bytes: int = 0
    regions_closed: int = 0
    regions_open_primary: int = 0
    regions_open_replica: int = 0
    resilvers_in_progress: int = 0
    draining: bool = False
    waits_for: str = ""  # a daemon that is being shut down safely and cannot: for which memory

    @property
    def regions_total(self) -> int:
        return self.regions_closed + self.regions_open_primary + self.regions_open_replica


Waits = Callable[[int, str], None]  # a daemon that is being shut down, and what it waits for


def waiting_text(index: int, reason: str) -> str:
    return f"daemon {index} waits {reason}" if reason else f"daemon {index} no longer waits"


def silently(index: int, reason: str) -> None:
    pass


@dataclass(frozen=True)
class RegionInfo:
    """`status`: OPEN, CLOSED, RESILVERING, SINGLE (one copy left), UNAVAILABLE, LOST."""

    name: str
    size_bytes: int
    status: str
    epoch: int
    primary: int | None  # daemon index
    secondary: int | None
    opener: str  # "" when closed
    created_us: int
    used_bytes: int  # allocated inside the region, as its store last reported; 0 when unknown
    reason: str = ""  # why the region's entry cannot be read; everything but the name and UNAVAILABLE is unknown then


class AdminPort(ABC):
    """An attachment to one daemon of the cluster. Calls block and raise StoreErrors."""

    local_index: int  # of the daemon it is attached to
    directory: str

    @abstractmethod
    def daemons(self) -> Sequence[DaemonInfo]:
        """All daemons of rs_daemons.cfg in its order, running or not."""

    @abstractmethod
    def regions(self) -> Sequence[RegionInfo]:
        """All regions of the cluster, by name."""

    @abstractmethod
    def stores(self) -> Sequence[StoreInfo]:
        """All stores that are open, by name."""

    @abstractmethod
    def remove_region(self, name: str, force: bool) -> None:
        """Removes both copies and the entry. RegionOpenError when the region is open and not `force`."""

    @abstractmethod
    def shutdown(self, indexes: Sequence[int], force: bool, waits: Waits = silently) -> None:
        """Returns when the daemons are down. Without `force` it takes the four steps of an orderly stop; after
        ShutdownRefusedError nothing was changed. While they have no room it blocks, and calls `waits` whenever the reason
        changes. A KeyboardInterrupt breaks the shutdown off; ShutdownBrokenOffError then, and when another administrator did."""

    @abstractmethod
    def break_off(self, indexes: Sequence[int]) -> None:
        """The safe shutdown of these daemons, if one is under way."""

    @abstractmethod
    def close(self) -> None: ...
