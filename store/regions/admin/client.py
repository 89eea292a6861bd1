"""An administrator's attachment to a daemon: the port of `storeadmin`, over the wire.

Features: R4, R6 (docs/FEATURES.md)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from spark_jms.store.errors import DaemonUnavailableError, ShutdownBrokenOffError, StoreError
from spark_jms.store.net.event_loop import EventLoopThread
from spark_jms.store.regions.admin.port import AdminPort, DaemonInfo, RegionInfo, Waits, silently
from spark_jms.store.regions.client.attachment import DAEMON_ROWS, REGION_ROWS, STORE_ROWS, Attachment, client_name
from spark_jms.store.regions.core.protocol import (
    BreakOff,
    Daemons,
    RegionMessage,
    RegionRow,
    Regions,
    Remove,
    Shutdown,
    StoreRow,
    Stores,
)
from spark_jms.store.regions.global_directory import DirectoryFiles, GlobalDirectory
from spark_jms.store.reports import ConnectionInfo, StoreInfo

T = TypeVar("T")
SHUTDOWN_POLL_S = 0.1
FORCED_S = 60.0
GIVEN_UP_S = 2.0  # longer than the daemons need to learn of a shutdown


class DaemonAdmin(AdminPort):
    def __init__(self, directory: str, localindex: int) -> None:
        self._global = GlobalDirectory(directory)
        self.directory = directory
        self._config = self._global.config()
        spec = self._global.local_daemon(self._config, localindex)
        self._loop = EventLoopThread("storeadmin")
        try:
            self._attachment = self._loop.call(self._attached_to(spec.index))
        except BaseException:
            self._loop.close()
            raise
        self.local_index = self._attachment.index

    def _ask(self, make: Callable[[int], RegionMessage], shape: Any = Any) -> Any:
        return self._loop.call(self._attachment.ask(make, shape))

    def daemons(self) -> Sequence[DaemonInfo]:
        rows = self._ask(Daemons, DAEMON_ROWS)
        found = []
        for spec, row in zip(self._config.daemons, rows, strict=True):
            place = (spec.index, spec.address, spec.port, spec.shmkey, spec.memory_limit_bytes)
            if row is None:
                found.append(DaemonInfo(*place, up=False))
                continue
            found.append(
                DaemonInfo(
                    *place[:4],
                    row.limit_bytes,
                    up=True,
                    reachable=True,
                    started_us=row.started_us,
                    now_us=row.now_us,
                    memory_used_bytes=row.used_bytes,
                    regions_closed=row.regions_closed,
                    regions_open_primary=row.regions_open_primary,
                    regions_open_replica=row.regions_open_replica,
                    resilvers_in_progress=row.resilvers,
                    draining=row.draining,
                    waits_for=row.waits_for,
                )
            )
        return found

    def regions(self) -> Sequence[RegionInfo]:
        rows = self._ask(lambda request: Regions(request, ""), REGION_ROWS)
        return [_info(row) for row in rows]

    def stores(self) -> Sequence[StoreInfo]:
        rows: list[StoreRow] = self._ask(Stores, STORE_ROWS)
        return [
            StoreInfo(
                row.name,
                row.physical_write_count,
                tuple(ConnectionInfo(*msgspec.structs.astuple(connection)) for connection in row.connections),
            )
            for row in rows
        ]

    def remove_region(self, name: str, force: bool) -> None:
        with DirectoryFiles(self._global).administered(name):
            self._ask(lambda request: Remove(request, name, force))

    def shutdown(self, indexes: Sequence[int], force: bool, waits: Waits = silently) -> None:
        told = {index: self._global.told(index).get("incarnation") for index in indexes}
        try:
            self._ask(lambda request: Shutdown(request, list(indexes), force))
        except DaemonUnavailableError:
            if self.local_index not in indexes:
                raise
        try:
            self._wait_until_down(told, force, waits)
        except KeyboardInterrupt:
            running = self._running(told)
            if force or not running:
                raise
            self.break_off(sorted(running))
            raise ShutdownBrokenOffError(f"{_numbered(running)} stays: interrupted") from None

    def _wait_until_down(self, told: Mapping[int, str | None], force: bool, waits: Waits) -> None:
        """A daemon that is stopped by force never stays, but closes what it hosts first."""
        began_s = time.monotonic()
        reasons: dict[int, str] = {}
        while running := self._running(told):
            if force:
                if time.monotonic() - began_s > FORCED_S:
                    raise ShutdownBrokenOffError(f"{_numbered(running)} has not stopped in time: see why in its log")
                time.sleep(SHUTDOWN_POLL_S)
                continue
            leaving = self._leaving(running)
            if leaving is not None and time.monotonic() - began_s > GIVEN_UP_S and not running & leaving.keys():
                raise ShutdownBrokenOffError(f"{_numbered(running)} stays: see why in its log")
            for index, reason in (leaving or {}).items():
                if index in running and reason != reasons.get(index, ""):
                    reasons[index] = reason
                    waits(index, reason)
            time.sleep(SHUTDOWN_POLL_S)

    def _running(self, told: Mapping[int, str | None]) -> set[int]:
        return {index for index, incarnation in told.items() if self._global.is_running(index, incarnation)}

    def _leaving(self, running: set[int]) -> Mapping[int, str] | None:
        """What each daemon waits for that is being shut down safely; None when no daemon answers."""
        try:
            self._reach(running)
            return {info.index: info.waits_for for info in self.daemons() if info.draining}
        except StoreError:
            return None

    def break_off(self, indexes: Sequence[int]) -> None:
        self._reach(set(indexes))
        self._ask(lambda request: BreakOff(request, list(indexes)))

    def _reach(self, running: set[int]) -> None:
        """The daemon of this attachment may be among those that have stopped: attaches to another one of them."""
        if self._attachment.gone:
            self._attachment = self._loop.call(self._attached_to(min(running)))

    def _attached_to(self, index: int) -> Coroutine[Any, Any, Attachment]:
        return Attachment.to(self._global, self._config, index, client_name("admin"), role="admin")

    def close(self) -> None:
        try:
            self._loop.call(self._close())
        finally:
            self._loop.close()

    async def _close(self) -> None:
        self._attachment.close()


def _numbered(indexes: set[int]) -> str:
    return f"daemon {', '.join(map(str, sorted(indexes)))}"


def _info(row: RegionRow) -> RegionInfo:
    if row.primary < 0:
        return RegionInfo(row.name, 0, row.status, 0, None, None, "", 0, 0, reason=row.opener)
    return RegionInfo(*msgspec.structs.astuple(row))


def attach(directory: str, localindex: int) -> AdminPort:
    """Raises a StoreError when it cannot attach to a daemon."""
    try:
        return DaemonAdmin(directory, localindex)
    except OSError as error:
        raise StoreError(f"{directory}: {error.strerror}") from error
