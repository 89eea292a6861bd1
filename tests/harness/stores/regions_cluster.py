"""Real daemons and clients of a region store, faults for them, and the account at the end."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from spark_jms.settings.store import Thresholds
from spark_jms.store.errors import RegionLostError, StoreError
from spark_jms.store.regions.admin.cluster import DaemonAdmin
from spark_jms.store.regions.admin.port import DaemonInfo, RegionInfo
from spark_jms.store.regions.client.instance import StoreInstance
from spark_jms.store.regions.directory.global_directory import GlobalDirectory
from spark_jms.testing.domain import wait_until
from tests.harness.processes import forked
from tests.harness.project import PROJECT
from tests.harness.services.daemons import Daemons
from tests.harness.stores.regions_writer import CONNECTION, REGION_BYTES, THRESHOLDS, Account, contents

MB = 1 << 20
LARGE = Thresholds(maximum_message_size_percent=50)
COPIES_S = 60.0
BUFFERED_S = 0.3  # writes under way may still be acknowledged after a fault


class FaultyDaemons(Daemons):
    """Daemons that drop all their connections on SIGUSR2."""

    def start(self, index: int) -> None:
        self.cluster.directory.prepare()
        logs = self.path / "logs"
        logs.mkdir(mode=0o750, exist_ok=True)
        command = [sys.executable, "-m", "tests.harness.stores.regions_daemon", "-dir", str(self.path)]
        with open(logs / f"start_{index:03d}.out", "ab") as out:
            self.processes[index] = forked.Popen(
                [*command, "-localindex", str(index)],
                cwd=PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, **self.environment},
            )

    def living(self) -> list[int]:
        return [index for index, process in self.processes.items() if process.poll() is None]

    def output(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted((self.path / "logs").iterdir()))


Make = Callable[..., FaultyDaemons]


def lists(path: Path, localindex: int) -> tuple[Sequence[DaemonInfo], Sequence[RegionInfo]]:
    admin = DaemonAdmin(str(path), localindex)
    try:
        return admin.daemons(), admin.regions()
    finally:
        admin.close()


def has_all_copies(path: Path, daemons: Sequence[int], localindex: int = 0) -> bool:
    """Whether all these daemons see each other, and each region has two complete copies."""
    try:
        for index in daemons:
            infos, regions = lists(path, index)
            if not all(infos[i].up for i in daemons):
                return False
            if any(r.secondary is None or r.status not in ("OPEN", "CLOSED") for r in regions):
                return False
    except StoreError:
        return False
    return True


async def opened(path: Path, store: str, daemon: int, region_mb: int = 1, limit_s: float = 60.0) -> StoreInstance:
    """Opens the store at this daemon, as soon as the daemon can have it."""
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            return await StoreInstance.open(
                GlobalDirectory(str(path)), store, region_bytes=region_mb * MB, daemon=daemon, thresholds=LARGE
            )
        except RegionLostError:
            raise
        except StoreError:
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(0.01)


@asynccontextmanager
async def store_at(path: Path, store: str, daemon: int, region_mb: int = 1) -> AsyncIterator[StoreInstance]:
    instance = await opened(path, store, daemon, region_mb)
    try:
        yield instance
    finally:
        await instance.close()


def wait_for_copies(daemons: FaultyDaemons) -> None:
    wait_until(lambda: has_all_copies(daemons.path, daemons.living()), 60.0, "two copies of each region")


def wait_until_missed(daemons: FaultyDaemons, index: int, by: int) -> float:
    wait_until(lambda: not lists(daemons.path, by)[0][index].up, 30.0, f"the others miss daemon {index}")
    return time.monotonic()


class WriterProcess:
    def __init__(self, path: Path, store: str, seed: int, place: Path) -> None:
        self.path, self.store = path, store
        self.journal = place / f"{store}.journal"
        self._offset = 0
        self._acknowledged: list[float] = []
        self.out = place / f"{store}.out"
        with open(self.out, "ab") as out:
            self.process = forked.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.harness.stores.regions_writer",
                    str(path),
                    store,
                    str(seed),
                    str(self.journal),
                ],
                cwd=PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def account(self) -> Account:
        return Account.of(self.journal)

    def outage_s(self, since_s: float) -> float | None:
        """The longest time without an acknowledgement since that moment; None while it may still last."""
        self._read()
        first = bisect_right(self._acknowledged, since_s)
        last_s, longest_s = since_s, 0.0
        for moment_s in self._acknowledged[first:]:
            longest_s, last_s = max(longest_s, moment_s - last_s), moment_s
            if moment_s > since_s + BUFFERED_S:
                return longest_s
        return None

    def _read(self) -> None:
        """Reads what the writer has added to its journal."""
        if not self.journal.exists():
            return
        with open(self.journal, "rb") as file:
            file.seek(self._offset)
            lines = file.read().splitlines(keepends=True)
        for line in lines:
            if not line.endswith(b"\n"):
                break
            self._offset += len(line)
            if line.startswith(b"a "):
                self._acknowledged.append(float(line.split()[3]))

    def check_alive(self) -> None:
        if self.process.poll() is not None:
            raise AssertionError(f"{self.store} ended: {self.out.read_text()[-4000:]}")

    def finish(self) -> None:
        self.process.terminate()
        if self.process.wait(60) != 0:
            raise AssertionError(f"{self.store} failed: {self.out.read_text()[-4000:]}")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def audit(path: Path, store: str, account: Account) -> int:
    """Opens the store, compares it with the account, and returns the number of its objects."""

    async def look() -> int:
        instance = await StoreInstance.open(
            GlobalDirectory(str(path)), store, region_bytes=REGION_BYTES, thresholds=THRESHOLDS
        )
        try:
            found = await contents(await instance.connection(CONNECTION))
        finally:
            await instance.close()
        account.check(found)
        return len(found)

    return asyncio.run(look())


@dataclass(frozen=True)
class Outage:
    kind: str
    seconds: float  # the longest time in which a client had no write acknowledged


KINDS = ("kill", "stop", "cut", "cut client")


class Storm:
    """Random faults from one seed. Each waits until every region has two complete copies again."""

    def __init__(self, daemons: FaultyDaemons, writers: Sequence[WriterProcess], seed: int) -> None:
        self._daemons, self._writers = daemons, writers
        self._random = random.Random(seed)
        self.outages: list[Outage] = []

    def wait_for_copies(self) -> None:
        for writer in self._writers:
            writer.check_alive()
        indexes = list(self._daemons.processes)
        wait_until(lambda: has_all_copies(self._daemons.path, indexes), COPIES_S, "two copies of each region")

    def fault(self, kind: str = "") -> Outage:
        self.wait_for_copies()
        kind = kind or self._random.choice(KINDS)
        index = self._random.choice(list(self._daemons.processes))
        since_s = time.monotonic()
        if kind == "kill":
            self._daemons.signal(index, signal.SIGKILL)
        elif kind == "stop":
            self._daemons.signal(index, signal.SIGSTOP)
        elif kind == "cut":
            self._daemons.signal(index, signal.SIGUSR2)
        else:
            self._random.choice(self._writers).process.send_signal(signal.SIGUSR2)
        woken = False
        if kind == "stop" and self._random.random() < 0.3:  # woken before, at, or after the failure timeout
            until_s = since_s + self._random.uniform(0.1, 3.0)
            wait_until(lambda: time.monotonic() > until_s, 5.0)
            self._daemons.signal(index, signal.SIGCONT)
            woken = True
        after_s = time.monotonic() if kind != "kill" and woken else since_s
        try:
            wait_until(lambda: self._served(after_s), COPIES_S, f"writes acknowledged again after {kind} of {index}")
        finally:
            if kind == "stop" and not woken:
                self._daemons.signal(index, signal.SIGCONT)
        outages = [writer.outage_s(since_s) or 0.0 for writer in self._writers]
        if kind == "kill":
            self._daemons.start(index)
        self.outages.append(Outage(kind if not woken else "short stop", max(outages)))
        return self.outages[-1]

    def _served(self, since_s: float) -> bool:
        for writer in self._writers:
            writer.check_alive()
        return all(writer.outage_s(since_s) is not None for writer in self._writers)

    def figures(self) -> str:
        lines = []
        for kind in sorted({outage.kind for outage in self.outages}):
            times = sorted(outage.seconds for outage in self.outages if outage.kind == kind)
            middle = times[len(times) // 2]
            lines.append(f"{kind:10} {len(times):3} times, {times[0]:.2f} / {middle:.2f} / {times[-1]:.2f} s")
        return "\n".join(lines)
