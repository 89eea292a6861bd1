"""A cluster of daemons on this machine, started and stopped by one command: `jmsq store up --daemons 3`.

It writes rs_daemons.cfg if there is none, starts each local daemon that does not run, and waits until all are connected.

Features: R3, R4 (docs/FEATURES.md)
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_jms.store.errors import ClusterMismatchError, DaemonUnavailableError, StoreError
from spark_jms.store.regions.admin.client import DaemonAdmin
from spark_jms.store.regions.admin.port import DaemonInfo, RegionInfo, Waits, silently
from spark_jms.store.regions.admin.selection import lost_with, refusal_of_leaving
from spark_jms.store.regions.core.config import DaemonSpec, local_daemons, parse_memory_limit
from spark_jms.store.regions.global_directory import (
    CONFIG,
    TIGHT_FOLDER,
    GlobalDirectory,
    machine_addresses,
    write_whole,
)
from spark_jms.store.regions.memory_lock import can_lock

HEALTHY_TIMEOUT_S = 20.0
POLL_S = 0.05
DEFAULT_DAEMONS, DEFAULT_MEMORY = 3, "1G"
FIRST_PORT = 7_100


@dataclass(frozen=True)
class Stopping:
    """The running daemons of this machine, and the regions of which no other machine holds a copy. `refusal`: why a safe stop would
    be refused; empty: it would not."""

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
            "spark_jms.store.regions.daemon",
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
