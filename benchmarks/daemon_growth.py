"""What more daemons cost and bring on one machine (R20): real daemons, 8 stores spread over them. By hand, about a minute:

    python -m benchmarks.daemon_growth [SECONDS]

Each store updates objects of 1 KiB, IN_FLIGHT at a time, as fast as it can; then all stand idle with their regions open.
Counted by the daemons (counting_daemon.py): frames and bytes to peers, and calls on files, most of them in the Global
Directory. All share the machine's cores, so the figures tell the cost of a write and of standing by, not the speed of a
cluster of machines; `tests/models/regions/growth.py` counts the work of the busiest daemon.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from spark_jms.store.regions.admin.cluster import Cluster
from spark_jms.store.regions.client.instance import StoreInstance
from spark_jms.store.regions.client.objects import Objects
from spark_jms.store.regions.directory.global_directory import GlobalDirectory

DAEMONS = (2, 4, 8)
STORES = 8
IN_FLIGHT = 4
OBJECT_BYTES = 1024
REGION_BYTES = 1 << 20
WINDOW_S = 5.0
ANSWER_S = 10.0
FIRST_PORT = 20_100


@dataclass(frozen=True)
class DaemonCosts:
    """Of all daemons since their start."""

    cpu_s: float
    peer_frames: int
    heartbeats: int
    peer_bytes: int
    file_calls: int

    def __sub__(self, before: DaemonCosts) -> DaemonCosts:
        return DaemonCosts(
            *(mine - theirs for mine, theirs in zip(vars(self).values(), vars(before).values(), strict=True))
        )


class CountedDaemons:
    def __init__(self, count: int) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="growth"))
        self._cluster = Cluster(str(self.path / "directory"))
        self._cluster.write_config(count, "256M", first_port=FIRST_PORT)
        self._cluster.directory.prepare()
        self._processes = [self._start(index) for index in range(count)]

    def _start(self, index: int) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "benchmarks.counting_daemon", str(self._counts(index)), "-dir"]
        return subprocess.Popen(
            [*words, str(self.path / "directory"), "-localindex", str(index)], stdout=subprocess.DEVNULL
        )

    def _counts(self, index: int) -> Path:
        return self.path / f"counts{index}"

    def wait_healthy(self) -> None:
        self._cluster.wait_healthy(60.0)

    def usage(self) -> DaemonCosts:
        for index, process in enumerate(self._processes):
            self._counts(index).unlink(missing_ok=True)
            process.send_signal(signal.SIGUSR1)
        deadline_s = time.monotonic() + ANSWER_S
        while not all(self._counts(index).exists() for index in range(len(self._processes))):
            if time.monotonic() > deadline_s:
                raise TimeoutError("a daemon does not write its counts")
            time.sleep(0.005)
        told = [json.loads(self._counts(index).read_text()) for index in range(len(self._processes))]
        summed = {
            name: sum(one.get(name, 0) for one in told)
            for name in ("peer_frames", "heartbeats", "peer_bytes", "file_calls")
        }
        return DaemonCosts(sum(map(_cpu_s, self._processes)), **summed)

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            while process.poll() is None:
                process.terminate()  # the second time it stops at once
                time.sleep(0.05)
        shutil.rmtree(self.path)


def _cpu_s(process: subprocess.Popen[bytes]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _update(objects: Objects, end_s: float) -> int:
    handle, count = await objects.create(bytes(OBJECT_BYTES)), 0
    while time.monotonic() < end_s:
        await objects.update(handle, count.to_bytes(8, "big") * (OBJECT_BYTES // 8))
        count += 1
    return count


async def _measure(daemons: CountedDaemons, count: int, window_s: float) -> str:
    directory = GlobalDirectory(str(daemons.path / "directory"))
    stores = [
        await StoreInstance.open(directory, f"s{number}", region_bytes=REGION_BYTES, daemon=number % count)
        for number in range(STORES)
    ]
    connections = [await store.connection("c") for store in stores]
    before, began_s = await asyncio.to_thread(daemons.usage), time.monotonic()
    end_s = began_s + window_s
    written = sum(await asyncio.gather(*(_update(one, end_s) for one in connections for _ in range(IN_FLIGHT))))
    busy_s = time.monotonic() - began_s
    busy = await asyncio.to_thread(daemons.usage) - before
    before, began_s = await asyncio.to_thread(daemons.usage), time.monotonic()
    await asyncio.sleep(window_s)
    idle = await asyncio.to_thread(daemons.usage) - before
    idle_s = time.monotonic() - began_s
    for store in stores:
        await store.close()
    per_write = (
        f"{busy.cpu_s / written * 1e6:.0f} | {(busy.peer_frames - busy.heartbeats) / written:.2f} | "
        f"{busy.peer_bytes / written:,.0f} | {busy.file_calls / busy_s / count:.0f}"
    )
    per_daemon = (
        f"{idle.cpu_s / idle_s / count * 100:.1f} | {idle.heartbeats / idle_s / count:.0f} | "
        f"{idle.peer_bytes / idle_s / count:,.0f} | {idle.file_calls / idle_s / count:.0f}"
    )
    return f"| {count} | {written / busy_s:,.0f} | {per_write} | {per_daemon} |"


def main(window_s: float) -> None:
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"load of the machine before: {load}; open files: {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}")
    print(
        "| daemons | writes/s | CPU us a write | frames a write | peer bytes a write | file calls/s a daemon | "
        "idle: CPU % | heartbeats/s | peer bytes/s | file calls/s |"
    )
    print("|---" * 10 + "|")
    for count in DAEMONS:
        daemons = CountedDaemons(count)
        try:
            daemons.wait_healthy()
            print(asyncio.run(_measure(daemons, count, window_s)), flush=True)
        finally:
            daemons.close()


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else WINDOW_S)
