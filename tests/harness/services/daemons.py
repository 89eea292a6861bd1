"""A cluster of real daemons for tests: starts, kills, stops and continues them by process id."""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import subprocess
from pathlib import Path

from spark_jms.store.regions.admin.cluster import Cluster, free_ports

_numbers = itertools.count(1)


def first_port() -> int:
    """The first port of this test process: below the range that the system gives to clients, and apart from other workers."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return 10_000 + (worker % 4 * 5 + os.getpid() % 5) * 1_000


def segments(path: Path) -> set[Path]:
    """The shared memory of this cluster's daemons, dead ones included."""
    mark = hashlib.sha256(os.path.realpath(path).encode()).hexdigest()[:8]
    return set(Path("/dev/shm").glob(f"rs{mark}-*"))


class Daemons:
    """`count` daemons in one Global Directory. Each test uses store names of its own."""

    def __init__(
        self,
        path: Path,
        count: int = 2,
        memory: str = "2G",
        environment: dict[str, str] | None = None,
        doors: bool = False,
    ) -> None:
        self.path = path
        self.environment = environment or {}
        self.cluster = Cluster(str(path))
        self.cluster.write_config(count, memory, first_port=first_port())
        self.doors = free_ports(count, first_port() + 500) if doors else []
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        for index in range(count):
            self.start(index)
        self.cluster.wait_healthy()

    def start(self, index: int) -> None:
        door = {"RS_DOOR": str(self.doors[index])} if self.doors else {}
        self.processes[index] = self.cluster.start(index, {**self.environment, **door})

    def signal(self, index: int, number: int) -> None:
        self.processes[index].send_signal(number)
        if number == signal.SIGKILL:
            self.processes[index].wait()

    def uri(self, store: str = "", **options: int) -> str:
        name = store or f"s{next(_numbers)}"
        extra = "".join(f"&{key}={value}" for key, value in {"region_mb": 8, **options}.items())
        return f"replicated://{self.path}?store={name}{extra}"

    def close(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()  # works on a stopped process too
        for process in self.processes.values():
            process.wait()
