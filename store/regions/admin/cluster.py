"""A cluster of daemons: an administrator's attachment to one over the wire, and those of this machine, started and stopped.

`jmsq store up --daemons 3` writes rs_daemons.cfg if there is none, starts each local daemon that does not run, and waits until
all are connected. One daemon is stopped by

python -m spark_jms.store.regions.admin.cluster -dir PATH [-localindex N] [-force | -safe | -cancel]

Features: R3, R4, R6 (docs/FEATURES.md)
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from spark_jms.store.contract import ConnectionInfo, StoreInfo
from spark_jms.store.errors import ClusterMismatchError, DaemonUnavailableError, ShutdownBrokenOffError, StoreError
from spark_jms.store.net.event_loop import EventLoopThread
from spark_jms.store.regions.admin.port import (
    AdminPort,
    DaemonInfo,
    RegionInfo,
    Waits,
    lost_with,
    refusal_of_leaving,
    silently,
    waiting_text,
)
from spark_jms.store.regions.client.attachment import DAEMON_ROWS, REGION_ROWS, STORE_ROWS, Attachment, client_name
from spark_jms.store.regions.daemon.options import STOP_TABLE, help_text, parse_stop
from spark_jms.store.regions.daemon.shared_memory import can_lock
from spark_jms.store.regions.directory.entries import DirectoryFiles
from spark_jms.store.regions.directory.global_directory import (
    CONFIG,
    TIGHT_FOLDER,
    GlobalDirectory,
    machine_addresses,
    write_whole,
)
from spark_jms.store.regions.protocol.cluster_config import DaemonSpec, local_daemons, parse_memory_limit
from spark_jms.store.regions.protocol.messages import (
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

T = TypeVar("T")
HEALTHY_TIMEOUT_S = 20.0
POLL_S = 0.05
DEFAULT_DAEMONS, DEFAULT_MEMORY = 3, "1G"
FIRST_PORT = 7_100
SHUTDOWN_POLL_S = 0.1
FORCED_S = 60.0
GIVEN_UP_S = 2.0  # longer than the daemons need to learn of a shutdown


@dataclass(frozen=True)
class Stopping:
    """The running daemons of this machine, and the regions of which no other machine holds a copy. `refusal`: why a safe stop
    would be refused; empty: it would not."""

    daemons: tuple[int, ...]
    regions: tuple[RegionInfo, ...]
    refusal: str = ""


@dataclass(frozen=True)
class Started:
    """`started` are the numbers of the daemons that this call started; the others were running."""

    daemons: tuple[DaemonInfo, ...]
    started: tuple[int, ...]
    doors: tuple[str, ...]  # host:port of each WebHDFS door
    locks_memory: bool  # whether the system lets daemons lock theirs


class Cluster:
    """The daemons of one Global Directory that belong to this machine."""

    def __init__(self, directory: str) -> None:
        self.path = Path(directory).absolute()
        self.directory = GlobalDirectory(str(self.path))

    def write_config(self, daemons: int | None = None, memory: str | None = None, first_port: int = 0) -> None:
        """rs_daemons.cfg for this machine alone, by default for 3 daemons of 1 GB. ClusterMismatchError when there is one
        already that differs in what is given."""
        file = self.path / CONFIG
        if file.exists():
            self._compare(daemons, memory)
            return
        daemons, memory = daemons or DEFAULT_DAEMONS, memory or DEFAULT_MEMORY
        self.path.mkdir(mode=TIGHT_FOLDER, parents=True, exist_ok=True)
        ports = free_ports(daemons, first_port or FIRST_PORT)
        lines = ["# address port shared-memory-key memory-limit"]
        lines += [f"127.0.0.1 {port} {port} {memory}" for port in ports]
        write_whole(file, ("\n".join(lines) + "\n").encode(), 0o640)

    def _compare(self, daemons: int | None, memory: str | None) -> None:
        found = self.directory.config().daemons
        limits = {spec.memory_limit_bytes for spec in found}
        if daemons is not None and len(found) != daemons:
            differs = f"names {len(found)} daemons, not {daemons}"
        elif memory is not None and limits != {parse_memory_limit(memory)}:
            differs = f"gives its daemons {', '.join(f'{limit >> 20} MB' for limit in sorted(limits))}, not {memory}"
        else:
            return
        raise ClusterMismatchError(f"{self.path / CONFIG} {differs}: leave the option out, or change the file")

    def local(self) -> tuple[DaemonSpec, ...]:
        return tuple(local_daemons(self.directory.config(), machine_addresses()))

    def up(
        self, environment: Mapping[str, str] | None = None, door_port: int = 0, options: Sequence[str] = ()
    ) -> Started:
        """`door_port`: the first daemon's WebHDFS door, the next ones' follow; 0 = no doors."""
        started = []
        for number, spec in enumerate(self.local()):
            if not self.directory.is_running(spec.index):
                door = {"RS_DOOR": str(door_port + number)} if door_port else {}
                self.start(number, {**(environment or {}), **door}, options)
                started.append(spec.index)
        infos = self.wait_healthy()
        told = (self.directory.told(spec.index).get("door") for spec in self.local())
        doors = tuple(str(where) for where in told if where)
        return Started(infos, tuple(started), doors, self.can_lock_memory())

    def start(
        self, localindex: int, environment: Mapping[str, str] | None = None, options: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        """Starts one daemon in a process and session of its own, so that it outlives its parent. Where the system does not let
        it lock its memory, it runs without, unless the environment demands it."""
        self.directory.prepare()
        logs = self.path / "logs"
        logs.mkdir(mode=0o750, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "spark_jms.store.kinds.daemon",
            "-dir",
            str(self.path),
            "-localindex",
            str(localindex),
        ]
        with open(logs / f"start_{localindex:03d}.out", "wb") as out:
            os.fchmod(out.fileno(), 0o640)
            return subprocess.Popen(
                [*command, *options],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**self._unlocked(), **os.environ, **(environment or {})},
            )

    def can_lock_memory(self) -> bool:
        return all(can_lock(spec.memory_limit_bytes) for spec in self.local())

    def _unlocked(self) -> Mapping[str, str]:
        return {} if self.can_lock_memory() else {"RS_LOCK_MEMORY": "false"}

    def wait_healthy(self, timeout_s: float = HEALTHY_TIMEOUT_S) -> tuple[DaemonInfo, ...]:
        """Waits until every local daemon runs and all are connected. DaemonUnavailableError names the one that is not."""
        deadline_s = time.monotonic() + timeout_s
        wanted = {spec.index for spec in self.local()}
        todo = list(range(len(wanted)))
        why = ""
        while True:
            try:
                admin = DaemonAdmin(str(self.path), todo[-1])
                try:
                    infos = tuple(admin.daemons())
                finally:
                    admin.close()
                missing = wanted - {info.index for info in infos if info.up}
                if not missing:
                    todo.pop()
                    if todo:
                        continue
                    return infos
                why = f"daemon {', '.join(map(str, sorted(missing)))} does not answer daemon {admin.local_index}"
            except StoreError as error:
                why = error.detail()
            if time.monotonic() >= deadline_s:
                raise DaemonUnavailableError(f"{why} after {timeout_s:g} s; {self._said()}")
            time.sleep(POLL_S)

    def _said(self) -> str:
        """The last thing that each start printed: why it did not come up."""
        said = []
        for path in sorted((self.path / "logs").glob("start_*.out")):
            lines = path.read_text("utf-8", "replace").strip().splitlines()
            said += [f"{path.name}: {lines[-1]}"] if lines else []
        return "; ".join(said) or f"see {self.path / 'logs'}"

    def running_localindex(self) -> int:
        """Of the first local daemon that runs; 0 when none does, so that attaching reports why."""
        running = (number for number, spec in enumerate(self.local()) if self.directory.is_running(spec.index))
        return next(running, 0)

    def lost_regions(self) -> tuple[str, ...]:
        """The regions that lost both copies: `storeadmin rmr` removes them."""
        admin = DaemonAdmin(str(self.path), self.running_localindex())
        try:
            return tuple(region.name for region in admin.regions() if region.status == "LOST")
        finally:
            admin.close()

    def stopping(self) -> Stopping:
        """What `down` would stop, and what it would lose with `force`. Read-only."""
        running = self._running()
        if not running:
            return Stopping((), ())
        admin = DaemonAdmin(str(self.path), self.running_localindex())
        try:
            regions, daemons = admin.regions(), admin.daemons()
        finally:
            admin.close()
        lost = set(lost_with(regions, daemons, running))
        refusal = refusal_of_leaving(regions, daemons, running)
        return Stopping(running, tuple(region for region in regions if region.name in lost), refusal)

    def down(self, force: bool = False, waits: Waits = silently) -> tuple[int, ...]:
        """Stops all local daemons. Safe: refused while no other daemon could take the data of their regions, and waits when
        they run out of memory meanwhile."""
        running = self._running()
        if not running:
            return ()
        admin = DaemonAdmin(str(self.path), self.running_localindex())
        try:
            admin.shutdown(running, force, waits)
        finally:
            admin.close()
        return running

    def _running(self) -> tuple[int, ...]:
        return tuple(spec.index for spec in self.local() if self.directory.is_running(spec.index))


class DaemonAdmin(AdminPort):
    """The port of `storeadmin`, over the wire."""

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


def attach(directory: str, localindex: int) -> AdminPort:
    """Raises a StoreError when it cannot attach to a daemon."""
    try:
        return DaemonAdmin(directory, localindex)
    except OSError as error:
        raise StoreError(f"{directory}: {error.strerror}") from error


def stop_daemon(words: Sequence[str] | None = None) -> int:
    """Stops one daemon; see the top of this file."""
    program = "python -m spark_jms.store.regions.admin.cluster"
    try:
        options = parse_stop(sys.argv[1:] if words is None else words, program)
        if options.help:
            print(help_text(program, STOP_TABLE), end="")
            return 0
        admin = DaemonAdmin(options.directory, options.localindex)
        try:
            index = admin.local_index
            if options.cancel:
                admin.break_off([index])
                print(f"daemon {index} stays")
                return 0
            lost = lost_with(admin.regions(), admin.daemons(), [index]) if options.force else []
            admin.shutdown([index], options.force, _waits)
        finally:
            admin.close()
    except StoreError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(f"daemon {index} stopped")
    for name in lost:
        print(f"region {name} is lost: no other daemon had a copy", file=sys.stderr)
    return 0


def free_ports(count: int, first: int) -> list[int]:
    """The first `count` free ports from `first` on."""
    found: list[int] = []
    for port in range(first, 49_151):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise DaemonUnavailableError(f"no {count} free ports from {first} on")


def _numbered(indexes: set[int]) -> str:
    return f"daemon {', '.join(map(str, sorted(indexes)))}"


def _info(row: RegionRow) -> RegionInfo:
    if row.primary < 0:
        return RegionInfo(row.name, 0, row.status, 0, None, None, "", 0, 0, reason=row.opener)
    return RegionInfo(*msgspec.structs.astuple(row))


def _waits(index: int, reason: str) -> None:
    print(waiting_text(index, reason), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(stop_daemon())
