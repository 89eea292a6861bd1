"""`jmsq services` killed at random while messages expire (T3, T6): for the test of every day and the soak."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import psutil
import pyarrow as pa

from spark_jms import apply, connect
from spark_jms.admin.services import Rounds
from spark_jms.admin.statistics import collect
from spark_jms.claims.upkeep.usage_history import UsageHistory, UsageHistoryRow, usage_history
from spark_jms.claims.upkeep.views import opened_store
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.usage_history import USAGE_HISTORY
from spark_jms.testing import wait_until
from tests.harness.processes import forked
from tests.harness.processes.crash import PLUGIN, CrashDirectory, Plan
from tests.harness.project import PROJECT

DESTINATIONS = {
    "orders": {"kind": "queue", "expirationPolicy": "Redirect", "errorDestination": "late"},
    "late": {"kind": "queue"},
    "news": {"kind": "topic"},
    "jobs": {"kind": "queue"},
}
COMMAND = (sys.executable, "-m", "spark_jms.cli")
LIMIT_S = 120


def check_killed_services(path: Path, engine: str, kills: int, each: int, seed: int, most: int = 3) -> None:
    """Before each start `each` messages more are sent that expire; the process is killed with `kill -9` after 0 to `most` rounds of
    a service. In the end each has expired once, and the usage history equals a recount from scratch."""
    root, chance = str(path / "domain"), random.Random(seed)
    apply(root, {"destinations": DESTINATIONS, "expirationScanInterval": "100 ms"})
    with connect(root, housekeeping=False) as context:
        context.consumer("news", subscription="a").close()
    command = [*COMMAND, "services", "--root", root, "--every", "0.1s", "--json"]
    command += ["--only", "expiration", "--only", "lag", "--only", "usage", "--engine", engine]
    command += ["--checkpoint", str(path / "checkpoint")]
    for _ in range(kills):
        _send(root, each)
        running = forked.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert running.stdout is not None
        try:
            _wait_for_rounds(running.stdout, chance.randint(0, most))
        finally:
            running.kill()
            running.wait()
            running.stdout.close()
    _send(root, each)
    _run_to_the_end(command, root, kills + 1, each)


def _send(root: str, each: int) -> None:
    """Their time was over more than a minute ago, so that none waits for its minute."""
    over = pa.repeat(pa.scalar(now_ms() - 90_000, pa.int64()), each)
    with connect(root, housekeeping=False) as context:
        for name in ("orders", "news"):
            context.producer(name).send_table(pa.table({"text": [f"{n}" for n in range(each)], "JMSExpiration": over}))


def _wait_for_rounds(out: IO[bytes], rounds: int) -> None:
    """Of the service that has most of them."""
    for line in out:
        if max(one["rounds"] for one in json.loads(line)["services"]) >= rounds:
            return
    raise AssertionError("the services have ended by themselves")


def _run_to_the_end(command: list[str], root: str, turns: int, each: int, jobs: tuple[int, int] = (0, 0)) -> None:
    """Its output goes to files: it would wait for the reader of a full pipe, and meanwhile start no query again that has ended."""
    domain, count, path = Domain(root), turns * each, Path(root).parent
    told, log = path / "told", path / "last.log"
    with opened_store(domain) as store:
        with told.open("wb") as out, log.open("wb") as err:
            last = forked.Popen(command, stdout=out, stderr=err)
        try:
            wait_until(
                lambda: expired(domain, store) == (count, count) and _least_rounds(told) > 0,
                LIMIT_S,
                lambda: f"{expired(domain, store)}: {_end_of(told)} {_end_of(log)}",
            )
        finally:
            last.send_signal(signal.SIGTERM)
            last.wait(timeout=60)
        assert last.returncode == 0, _end_of(log)
        shown = json.loads(told.read_bytes().splitlines()[-1])
        assert {one["state"] for one in shown["services"]} == {"ok"}, shown
        check_history(root, store, turns, each, jobs)


def _least_rounds(told: Path) -> int:
    whole = told.read_bytes().rpartition(b"\n")[0].splitlines()
    return min(one["rounds"] for one in json.loads(whole[-1])["services"]) if whole else 0


def _end_of(file: Path) -> str:
    return file.read_text(errors="replace")[-3_000:]


def expired(domain: Domain, store: Any) -> tuple[int, int]:
    return collect(domain, store, "orders").expired, collect(domain, store, "news").expired


def check_history(root: str, store: Any, turns: int, each: int, jobs: tuple[int, int] = (0, 0)) -> None:
    """Each message has ended once, and the usage history says so, as does one that begins again. `jobs`: sent to that queue, and
    finished."""
    domain, count = Domain(root), turns * each
    wanted = {("orders", count, 0, count), ("news", count, 0, count), ("late", count, 0, 0)}
    wanted |= {("jobs", *jobs, 0)} if any(jobs) else set()
    assert expired(domain, store) == (count, count)
    assert _recorded(domain, store) == wanted
    domain.storage.delete_all(USAGE_HISTORY)
    assert _recorded(Domain(root), store) == wanted
    with connect(root, housekeeping=False) as context:
        arrived = Counter(message.text for message in context.browser("late"))
    assert arrived == {f"{n}": turns for n in range(each)}


def _recorded(domain: Domain, store: Any) -> set[tuple[str, int, int, int]]:
    """Of each destination, once everything is recorded, also what a killed process has left in a record set: sent, finished and
    expired."""
    rounds = Rounds(domain, store, clean_up=False)
    rounds.run(domain.destinations())
    rounds.close()
    assert UsageHistory(domain, store).record(domain.destinations())[1] == {}
    found: dict[str, list[UsageHistoryRow]] = {}
    for row in usage_history(domain, domain.destinations()):
        found.setdefault(row.destination, []).append(row)
    return {
        (name, sum(row.sent for row in rows), sum(row.finished for row in rows), sum(row.expired for row in rows))
        for name, rows in found.items()
    }


# -- attacked by name --------------------------------------------------------------------------------------------------
ATTACKS = ("driver", "worker", "history", "due sink", "second", "checkpoint", "stop")
_PYTHON = ("pyspark.daemon", "pyspark.sql.streaming", "pyspark.sql.worker", "python_streaming_source_runner")


def check_attacked_services(path: Path, attacks: Sequence[str], each: int, seed: int) -> None:
    """`jmsq services` as queries of Spark, attacked once in each round, while messages are sent, expire and are acknowledged. In the
    end each message has ended once, and the usage history equals a recount from scratch."""
    services = AttackedServices(path, each, seed)
    for attack in attacks:
        print(attack, flush=True)
        services.attacked(attack)
    services.send()
    _run_to_the_end(services.command("checkpoint"), services.root, services.turns, each, services.jobs)


class AttackedServices:
    """A domain, its traffic, and the processes that are attacked."""

    def __init__(self, path: Path, each: int, seed: int, launcher: Sequence[str] = COMMAND) -> None:
        """`launcher`: what starts `jmsq`."""
        self.root, self.turns, self._path, self._each = str(path / "domain"), 0, path, each
        self._launcher = launcher
        self._chance, self._crash = random.Random(seed), CrashDirectory(path / "crash")
        apply(self.root, {"destinations": DESTINATIONS, "expirationScanInterval": "100 ms"})
        with connect(self.root, housekeeping=False) as context:
            context.consumer("news", subscription="a").close()

    @property
    def jobs(self) -> tuple[int, int]:
        """Sent, and finished."""
        return 2 * self.turns, self.turns

    def send(self) -> None:
        _send(self.root, self._each)
        with connect(self.root, housekeeping=False) as context:
            context.producer("jobs").send_many({"text": f"{n}"} for n in range(2))
            with context.consumer("jobs") as consumer:
                message = consumer.receive(timeout=30)
                assert message is not None
                message.acknowledge()
        self.turns += 1

    def command(self, checkpoint: str) -> list[str]:
        words = "services --every 0.1s --json --only expiration --only usage --engine spark --root"
        return [*self._launcher, *words.split(), self.root, "--checkpoint", str(self._path / checkpoint)]

    def logged(self, checkpoint: str = "checkpoint") -> set[tuple[str, int]]:
        """What Spark has logged of the batches of both queries: begun, or done. By inode too, since a query that begins with a fresh
        checkpoint counts from 0 again; old files are deleted."""
        found = set()
        for what in ("offsets", "commits"):
            for path in (self._path / checkpoint).glob(f"*/{what}/[0-9]*"):
                with suppress(FileNotFoundError):
                    found.add((str(path), path.stat().st_ino))
        return found

    def attacked(self, attack: str) -> None:
        if attack in ("history", "due sink"):
            when, target = self._chance.choice(("before", "after")), "worker"
            self._crash.arm(Plan(f"{when}-{attack.replace(' ', '-')}", target, self._chance.randint(1, 3)))
        self.send()
        running = [self._start("checkpoint")]
        try:
            self._await_batches(self._chance.randint(0, 5))
            self.send()
            if attack == "worker":
                self._kill_workers(running[0])
            elif attack in ("history", "due sink"):
                self._await_strike()
            elif attack == "second":
                running.append(self._start("another"))
                self._await_batches(2, "another")
                self.send()
                self._chance.shuffle(running)
                _kill(running.pop())
                self._send_until_batches(1, "another" if "another" in str(running[0].args) else "checkpoint")
            elif attack == "stop":
                running[0].terminate()
                assert running[0].wait(timeout=LIMIT_S) in (0, -signal.SIGTERM)  # before it can handle it
        finally:
            for process in running:
                _kill(process)
            self._crash.disarm()
        if attack == "checkpoint":
            shutil.rmtree(self._path / "checkpoint", ignore_errors=True)

    def go_on(self, strike: Callable[[], None]) -> None:
        """Before a strike and behind it, the same processes end what is sent."""
        running, domain = self._start("checkpoint"), Domain(self.root)
        try:
            with opened_store(domain) as store:
                for act in (lambda: None, strike):
                    act()
                    self.send()
                    self._await(lambda: expired(domain, store) == (self.turns * self._each,) * 2)
        finally:
            _kill(running)

    def _start(self, checkpoint: str) -> subprocess.Popen[bytes]:
        """In a process group of its own, with Java and Spark's Python processes."""
        found = os.pathsep.join(filter(None, (str(PLUGIN), str(PROJECT), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": found, "JMSQ_CRASH_DIR": str(self._crash.path), "JMSQ_APP_PID": "0"}
        with (self._path / "log").open("ab") as log:
            return subprocess.Popen(
                self.command(checkpoint), stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def _await_batches(self, more: int, checkpoint: str = "checkpoint") -> None:
        """Or the planned point, which may come first and end the process."""
        reached = self._have_logged(more, checkpoint)
        self._await(lambda: self._crash.fired() is not None or reached())

    def _send_until_batches(self, more: int, checkpoint: str = "checkpoint") -> None:
        """What was sent before may be in batches already, behind which a service that stands by would begin none."""
        reached = self._have_logged(more, checkpoint)
        self.send()
        self._await(reached)

    def _have_logged(self, more: int, checkpoint: str = "checkpoint") -> Callable[[], bool]:
        """From now on."""
        before, met = self.logged(checkpoint), set[tuple[str, int]]()

        def reached() -> bool:
            met.update(self.logged(checkpoint) - before)
            return len(met) >= more

        return reached

    def _await(self, reached: Callable[[], bool]) -> None:
        wait_until(reached, LIMIT_S, lambda: _end_of(self._path / "log"))

    def _await_strike(self) -> None:
        """With news for each batch of usage, until the planned one has met its end."""
        for _ in range(6):
            self._await_batches(6)
            if self._crash.fired() is not None:
                return
            self.send()
        raise AssertionError("the planned point was not met")

    def _kill_workers(self, services: subprocess.Popen[bytes]) -> None:
        """One after the other: planners, fork servers, workers."""
        for _ in range(3):
            self._await(lambda: bool(_workers(services.pid)))
            with suppress(psutil.Error, IndexError):
                self._chance.choice(_workers(services.pid)).kill()
            self._send_until_batches(1)


def _workers(pid: int) -> list[psutil.Process]:
    found = list[psutil.Process]()
    with suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                if any(name in word for word in process.cmdline() for name in _PYTHON):
                    found.append(process)
    return found


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
