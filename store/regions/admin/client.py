"""An administrator's attachment to a daemon: the port of `storeadmin`, over the wire (R4, R6)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from spark_jms.store.errors import DaemonUnavailableError, ShutdownRefusedError, StoreError
from spark_jms.store.net.event_loop import EventLoopThread
from spark_jms.store.regions.admin.port import AdminPort, DaemonInfo, RegionInfo
from spark_jms.store.regions.client.attachment import DAEMON_ROWS, REGION_ROWS, Attachment, client_name
from spark_jms.store.regions.core.protocol import Daemons, RegionMessage, RegionRow, Regions, Remove, Shutdown
from spark_jms.store.regions.global_directory import DirectoryFiles, GlobalDirectory

T = TypeVar("T")
SHUTDOWN_POLL_S = 0.1
GIVEN_UP_S = 2.0  # longer than the daemons need to learn of a shutdown


class DaemonAdmin(AdminPort):
    def __init__(self, directory: str, localindex: int) -> None:
        self._global = GlobalDirectory(directory)
        self.directory = directory
        self._config = self._global.config()
        spec = self._global.local_daemon(self._config, localindex)
        self._loop = EventLoopThread("storeadmin")
        try:
            self._attachment = self._loop.call(
                Attachment.to(self._global, self._config, spec.index, client_name("admin"), role="admin")
            )
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
                )
            )
        return found

    def regions(self) -> Sequence[RegionInfo]:
        rows = self._ask(lambda request: Regions(request, ""), REGION_ROWS)
        return [_info(row) for row in rows]

    def remove_region(self, name: str, force: bool) -> None:
        with DirectoryFiles(self._global).administered(name):
            self._ask(lambda request: Remove(request, name, force))

    def shutdown(self, indexes: Sequence[int], force: bool) -> None:
        told = {index: self._global.told(index).get("incarnation") for index in indexes}
        try:
            self._ask(lambda request: Shutdown(request, list(indexes), force))
        except DaemonUnavailableError:
            if self.local_index not in indexes:
                raise
        began_s = time.monotonic()
        while running := {index for index, incarnation in told.items() if self._global.is_running(index, incarnation)}:
            if time.monotonic() - began_s > GIVEN_UP_S and running <= self._staying():
                which = ", ".join(map(str, sorted(running)))
                raise ShutdownRefusedError(
                    f"daemon {which} did not stop: the other daemons no longer have room for its regions"
                )
            time.sleep(SHUTDOWN_POLL_S)

    def _staying(self) -> set[int]:
        """The daemons that run and are not leaving; none when no daemon answers."""
        try:
            return {info.index for info in self.daemons() if info.up and not info.draining}
        except StoreError:
            return set()

    def close(self) -> None:
        try:
            self._loop.call(self._close())
        finally:
            self._loop.close()

    async def _close(self) -> None:
        self._attachment.close()


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
