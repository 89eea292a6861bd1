"""A fake cluster for tests of administration: `AdminPort` in memory, without daemons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from spark_jms.store.errors import (
    DaemonUnavailableError,
    MemoryLimitError,
    NoLocalDaemonError,
    RegionOpenError,
    RegionUnavailableError,
    ShutdownRefusedError,
)
from spark_jms.store.regions.admin.port import AdminPort, DaemonInfo, RegionInfo, Waits, silently
from spark_jms.store.reports import StoreInfo


class FakeCluster:
    """The given daemons and regions; counts and memory of a daemon follow from its regions. Pass `attach` to `Admin`. All
    daemons are local; it attaches to number `localindex`, modulo those that are up."""

    def __init__(
        self, daemons: Iterable[DaemonInfo], regions: Iterable[RegionInfo] = (), stores: Iterable[StoreInfo] = ()
    ) -> None:
        self.stores = sorted(stores, key=lambda store: store.name)
        self._daemons = {daemon.index: daemon for daemon in daemons}
        self._regions = {region.name: region for region in regions}

    def attach(self, directory: str, localindex: int) -> AdminPort:
        up = [daemon.index for daemon in self._daemons.values() if daemon.up]
        if not up:
            raise NoLocalDaemonError(directory)
        return FakeAdminPort(self, directory, up[localindex % len(up)])

    def crash(self, index: int) -> None:
        """The daemon goes down with its memory, and no region is resilvered."""
        self._daemons[index] = replace(self._daemons[index], up=False, reachable=False)
        for region in list(self._regions.values()):
            if index in (region.primary, region.secondary):
                left = region.secondary if region.primary == index else region.primary
                status = "LOST" if left is None else "SINGLE"
                self._regions[region.name] = replace(region, primary=left, secondary=None, status=status)

    def daemon(self, index: int) -> DaemonInfo:
        info = self._daemons[index]
        if not info.up:
            return info
        held = [region for region in self._regions.values() if index in (region.primary, region.secondary)]
        opened = [region for region in held if region.opener]
        primaries = sum(region.primary == index for region in opened)
        return replace(
            info,
            memory_used_bytes=sum(region.size_bytes for region in held),
            regions_closed=len(held) - len(opened),
            regions_open_primary=primaries,
            regions_open_replica=len(opened) - primaries,
        )

    def all_daemons(self) -> list[DaemonInfo]:
        return [self.daemon(index) for index in sorted(self._daemons)]

    def all_regions(self) -> list[RegionInfo]:
        return [self._regions[name] for name in sorted(self._regions)]

    def remove(self, name: str, force: bool) -> None:
        region = self._regions.get(name)
        if region is None:
            raise RegionUnavailableError(name)
        if region.opener and not force:
            raise RegionOpenError(name)
        if region.opener and region.status != "LOST":
            self._regions[name] = replace(region, primary=None, secondary=None, status="LOST")
        else:
            del self._regions[name]

    def stop(self, indexes: Sequence[int], force: bool) -> None:
        if not force:
            self._drain(set(indexes))
        for index in indexes:
            self.crash(index)

    def _drain(self, going: set[int]) -> None:
        """Steps 1 to 3 of a safe shutdown: all of them, or none."""
        held = [region for region in self._regions.values() if going & {region.primary, region.secondary}]
        for region in held:
            if region.opener:
                raise ShutdownRefusedError(f"region {region.name} is open")
        staying = [daemon.index for daemon in self.all_daemons() if daemon.up and daemon.index not in going]
        before = dict(self._regions)
        try:
            for region in held:
                copies = [i for i in (region.primary, region.secondary) if i is not None and i not in going]
                while len(copies) < min(2, len(staying)) or not copies:
                    copies.append(self._room(region, staying, copies))
                moved = replace(region, primary=copies[0], secondary=copies[1] if len(copies) > 1 else None)
                self._regions[region.name] = moved
        except MemoryLimitError as error:
            self._regions = before
            raise ShutdownRefusedError(error.detail()) from None

    def _room(self, region: RegionInfo, staying: Sequence[int], copies: Sequence[int]) -> int:
        for index in staying:
            daemon = self.daemon(index)
            if index not in copies and daemon.memory_used_bytes + region.size_bytes <= daemon.memory_limit_bytes:
                return index
        raise MemoryLimitError(f"no room for a copy of region {region.name}")


class FakeAdminPort(AdminPort):
    """Attached to one daemon of a FakeCluster. Once that is down, every call raises DaemonUnavailableError."""

    def __init__(self, cluster: FakeCluster, directory: str, local_index: int) -> None:
        self._cluster = cluster
        self.directory = directory
        self.local_index = local_index
        self.closed = False

    def daemons(self) -> Sequence[DaemonInfo]:
        return self._live().all_daemons()

    def regions(self) -> Sequence[RegionInfo]:
        return self._live().all_regions()

    def stores(self) -> Sequence[StoreInfo]:
        return self._live().stores

    def remove_region(self, name: str, force: bool) -> None:
        self._live().remove(name, force)

    def shutdown(self, indexes: Sequence[int], force: bool, waits: Waits = silently) -> None:
        self._live().stop(indexes, force)

    def break_off(self, indexes: Sequence[int]) -> None:
        self._live()  # its shutdowns never wait

    def close(self) -> None:
        self.closed = True

    def _live(self) -> FakeCluster:
        if self.closed or not self._cluster.daemon(self.local_index).up:
            raise DaemonUnavailableError(f"daemon {self.local_index}")
        return self._cluster
