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
from collections.abc import Callable, Iterable, Sequence
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
LIMIT_S = 120


def check_killed_services(path: Path, engine: str, kills: int, each: int, seed: int, most: int = 3) -> None:
    """Before each start `each` messages more are sent that expire; the process is killed with `kill -9` after 0 to `most` rounds of
    a service. In the end each has expired once, and the usage history equals a recount from scratch."""
    root, chance = str(path / "domain"), random.Random(seed)
    apply(root, {"destinations": DESTINATIONS, "expirationScanInterval": "100 ms"})
    with connect(root, housekeeping=False) as context:
        context.consumer("news", subscription="a").close()
    command = [sys.executable, "-m", "spark_jms.cli", "services", "--root", root, "--every", "0.1s", "--json"]
    command += ["--only", "expiration", "--only", "lag", "--only", "usage", "--engine", engine]
    command += ["--checkpoint", str(path / "checkpoint")]
    for _ in range(kills):
        _send(root, each)
        running = forked.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert running.stdout is not None
        try:
            _wait_for_rounds(running.stdout, chance.randint(0, most), max)
        finally:
            running.kill()
            running.wait()
            running.stdout.close()
    _send(root, each)
    _run_to_the_end(command, root, (kills + 1) * each)
    with connect(root, housekeeping=False) as context:
        arrived = Counter(message.text for message in context.browser("late"))
    assert arrived == {f"{n}": kills + 1 for n in range(each)}


def _send(root: str, each: int) -> None:
    """Their time was over more than a minute ago, so that none waits for its minute."""
    over = pa.repeat(pa.scalar(now_ms() - 90_000, pa.int64()), each)
    with connect(root, housekeeping=False) as context:
        for name in ("orders", "news"):
            context.producer(name).send_table(pa.table({"text": [f"{n}" for n in range(each)], "JMSExpiration": over}))


def _wait_for_rounds(out: IO[bytes], rounds: int, which: Callable[[Iterable[int]], int]) -> None:
    """Of the service that has most of them, or fewest."""
    for line in out:
        if which(one["rounds"] for one in json.loads(line)["services"]) >= rounds:
            return
    raise AssertionError("the services have ended by themselves")


def _run_to_the_end(command: list[str], root: str, count: int, jobs: tuple[int, int] = (0, 0)) -> None:
    """`jobs`: sent to that queue, and finished."""
    domain = Domain(root)
    wanted = {("orders", count, 0, count), ("news", count, 0, count), ("late", count, 0, 0)}
    wanted |= {("jobs", *jobs, 0)} if any(jobs) else set()
    with opened_store(domain) as store:

        def expired() -> tuple[int, int]:
            return collect(domain, store, "orders").expired, collect(domain, store, "news").expired

        last = forked.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert last.stdout is not None
        try:
            _wait_for_rounds(last.stdout, 1, min)
            wait_until(lambda: expired() == (count, count), LIMIT_S, lambda: f"{expired()}")
        finally:
            last.send_signal(signal.SIGTERM)
            out, err = last.communicate(timeout=60)
        assert last.returncode == 0, err
        shown = json.loads(out.splitlines()[-1])
        assert {one["state"] for one in shown["services"]} == {"ok"}, shown
        assert expired() == (count, count)
        assert _recorded(domain, store) == wanted
        domain.storage.delete_all(USAGE_HISTORY)
        assert _recorded(Domain(root), store) == wanted


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
        print(f"{attack}, behind {services.batches()} logged batches", flush=True)
        services.attacked(attack)
    services.send()
    _run_to_the_end(services.command("checkpoint"), services.root, services.turns * each, services.jobs)
    with connect(services.root, housekeeping=False) as context:
        arrived = Counter(message.text for message in context.browser("late"))
    assert arrived == {f"{n}": services.turns for n in range(each)}


class AttackedServices:
    """A domain, its traffic, and the processes that are attacked."""

    def __init__(self, path: Path, each: int, seed: int) -> None:
        self.root, self.turns, self._path, self._each = str(path / "domain"), 0, path, each
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
        return [
            sys.executable,
            "-m",
            "spark_jms.cli",
            *words.split(),
            self.root,
            "--checkpoint",
            str(self._path / checkpoint),
        ]

    def batches(self, checkpoint: str = "checkpoint") -> int:
        """What Spark has logged of the batches of both queries: begun, or done."""
        return sum(len([*(self._path / checkpoint).glob(f"*/{what}/[0-9]*")]) for what in ("offsets", "commits"))

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
                self._await_batches(1, "another" if "another" in str(running[0].args) else "checkpoint")
            elif attack == "stop":
                running[0].terminate()
                assert running[0].wait(timeout=LIMIT_S) in (0, -signal.SIGTERM)  # before it can handle it
        finally:
            self._crash.disarm()
            for process in running:
                _kill(process)
        if attack == "checkpoint":
            shutil.rmtree(self._path / "checkpoint", ignore_errors=True)

    def _start(self, checkpoint: str) -> subprocess.Popen[bytes]:
        """In a process group of its own, with Java and Spark's Python processes."""
        found = os.pathsep.join(filter(None, (str(PLUGIN), str(PROJECT), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": found, "JMSQ_CRASH_DIR": str(self._crash.path), "JMSQ_APP_PID": "0"}
        with (self._path / "log").open("ab") as log:
            return subprocess.Popen(
                self.command(checkpoint), stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def _await_batches(self, more: int, checkpoint: str = "checkpoint") -> None:
        wanted = self.batches(checkpoint) + more
        self._await(lambda: self.batches(checkpoint) >= wanted)

    def _await(self, reached: Callable[[], bool]) -> None:
        log = self._path / "log"
        wait_until(reached, LIMIT_S, lambda: log.read_text(errors="replace")[-3_000:])

    def _await_strike(self) -> None:
        """With news for each batch of usage, until the planned one has met its end."""
        for _ in range(6):
            wanted = self.batches() + 6
            self._await(lambda wanted=wanted: self._crash.fired() is not None or self.batches() >= wanted)  # type: ignore[misc]
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
            self.send()
            self._await_batches(1)


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
