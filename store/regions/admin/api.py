"""Administration of a daemon cluster from Python: what storeadmin does, with values.

Features: R6, R14, R18 (docs/FEATURES.md)
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

from spark_jms.store.contract import StoreInfo
from spark_jms.store.errors import DaemonUnavailableError, StoreClosedError, StoreError
from spark_jms.store.regions.admin.port import (
    SORTS,
    AdminPort,
    DaemonInfo,
    DaemonSelection,
    RegionInfo,
    Waits,
    lost_with,
    matches,
    regions_of,
    silently,
    sort_daemons,
    sort_regions,
)

T = TypeVar("T")
Attach = Callable[[str, int], AdminPort]


def default_attach(directory: str, localindex: int) -> AdminPort:
    # Imported on first use: help needs no sockets.
    port: AdminPort = importlib.import_module("spark_jms.store.regions.admin.cluster").attach(directory, localindex)
    return port


@dataclass(frozen=True)
class Removal:
    """Which regions were removed, and which were refused, each with its error. Of the removed ones, those that a store had open
    are `lost` until they are removed again."""

    removed: tuple[str, ...]
    refused: tuple[tuple[str, StoreError], ...]
    lost: tuple[str, ...] = ()


class Admin:
    """An attachment to a daemon cluster.

    with Admin("/shared/rs_global_dir") as admin:
        for daemon in admin.daemons():
            print(daemon.index, daemon.memory_used_bytes)

    Without a directory it starts detached. A call without an attachment raises StoreClosedError, a wrong selection or sort
    ValueError; otherwise each call raises the daemon's error. The attachment ends when its daemon disconnects. Not
    thread-safe."""

    def __init__(self, directory: str | None = None, localindex: int = 0, attach: Attach = default_attach) -> None:
        self._attach = attach
        self._port: AdminPort | None = None
        if directory is not None:
            self.attach(directory, localindex)

    @property
    def attached(self) -> bool:
        return self._port is not None

    @property
    def local_index(self) -> int:
        """Of the daemon it is attached to."""
        return self._live().local_index

    @property
    def directory(self) -> str:
        return self._live().directory

    def attach(self, directory: str = ".", localindex: int = 0) -> int:
        """The number of the daemon. When it fails, an existing attachment remains."""
        port = self._attach(directory, localindex)
        self.detach()
        self._port = port
        return port.local_index

    def detach(self) -> None:
        port, self._port = self._port, None
        if port is not None:
            port.close()

    def daemons(self, daemon: str | DaemonSelection = "all", sort: str = "name") -> list[DaemonInfo]:
        found = self._ask(lambda port: port.daemons())
        wanted = set(_selection(daemon).of(len(found), self.local_index))
        return sort_daemons((info for info in found if info.index in wanted), _sort(sort))

    def regions(
        self, expression: str = "*", daemon: str | DaemonSelection = "all", sort: str = "name"
    ) -> list[RegionInfo]:
        selection = _selection(daemon)
        indexes = self._indexes(selection)
        found = self._ask(lambda port: port.regions())
        return sort_regions(regions_of(found, selection, indexes, expression), _sort(sort))

    def stores(self, expression: str = "*") -> list[StoreInfo]:
        """The stores that are open, with the counts of each of their connections, by name."""
        return [store for store in self._ask(lambda port: port.stores()) if matches(expression, store.name)]

    def remove_regions(self, expression: str, force: bool = False) -> Removal:
        """Removes all copies of every matching region. A refusal of one does not keep the others."""
        removed: list[str] = []
        refused: list[tuple[str, StoreError]] = []
        for region in self._ask(lambda port: port.regions()):
            if not matches(expression, region.name):
                continue
            try:
                self._live().remove_region(region.name, force)
                removed.append(region.name)
            except DaemonUnavailableError:
                self.detach()
                raise
            except StoreError as error:
                refused.append((region.name, error))
        left = self._ask(lambda port: port.regions()) if force and removed else ()
        lost = tuple(region.name for region in left if region.name in removed and region.status == "LOST")
        return Removal(tuple(removed), tuple(refused), lost)

    def shutdown(self, daemon: str | DaemonSelection, force: bool = False, waits: Waits = silently) -> tuple[int, ...]:
        """Returns the numbers of the daemons once they are down, and detaches when its own daemon is among them. Safe unless
        `force`; after a ShutdownRefusedError nothing was changed. While the other daemons have no room it blocks, and calls
        `waits` with the number of the daemon and what it waits for. `break_off` or a KeyboardInterrupt ends that with a
        ShutdownBrokenOffError."""
        indexes = self._indexes(_selection(daemon))
        local = self.local_index
        self._ask(lambda port: port.shutdown(indexes, force, waits))
        if local in indexes:
            self.detach()
        return indexes

    def lost_with(self, daemon: str | DaemonSelection) -> list[str]:
        """The regions that are lost when these daemons stop by force: no other one has a copy."""
        regions, daemons = self._ask(lambda port: port.regions()), self._ask(lambda port: port.daemons())
        return lost_with(regions, daemons, _selection(daemon).of(len(daemons), self.local_index))

    def break_off(self, daemon: str | DaemonSelection) -> tuple[int, ...]:
        """The safe shutdown of these daemons: they stay. Does nothing to others."""
        indexes = self._indexes(_selection(daemon))
        self._ask(lambda port: port.break_off(indexes))
        return indexes

    def _indexes(self, selection: DaemonSelection) -> tuple[int, ...]:
        return selection.of(len(self._ask(lambda port: port.daemons())), self.local_index)

    def _ask(self, call: Callable[[AdminPort], T]) -> T:
        try:
            return call(self._live())
        except DaemonUnavailableError:
            self.detach()
            raise

    def _live(self) -> AdminPort:
        if self._port is None:
            raise StoreClosedError("not attached to a daemon")
        return self._port

    def close(self) -> None:
        self.detach()

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _selection(daemon: str | DaemonSelection) -> DaemonSelection:
    return daemon if isinstance(daemon, DaemonSelection) else DaemonSelection.parse(daemon)


def _sort(sort: str) -> str:
    if sort not in SORTS:
        raise ValueError(f"sort {sort!r}, allowed are {', '.join(SORTS)}")
    return sort
