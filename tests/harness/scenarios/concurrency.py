"""Four writers and three readers on one queue, during housekeeping, clean-up, a purge to empty and a new member.

writers    two Spark streams (in two applications), two plain-client processes
readers    a Spark stream into a Delta table in each of the two applications, one plain-client process
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable

from spark_jms.core.destinations.destination import Destination
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.tables.commit import Decision, commit
from spark_jms.log.tables.snapshot import Snapshot
from tests.harness.domains.feed import QUEUE, Feed, make_queue
from tests.harness.processes import forked
from tests.harness.processes.apps import App, until
from tests.harness.processes.crash import PLUGIN
from tests.harness.project import PROGRAMS, PROJECT

FILE_GRACE_MS = 8000
# The product's intervals suit a run of days; here the same things must happen within a minute.
# A log file must outlive the interval at which followers check whether clean-up has overtaken them.
LOG_RETENTION_S, GAP_CHECK_MS = 8, 4000
TUNE = {
    "spark_jms.log.upkeep.housekeeping": {"HousekeepingRounds.CLEAN_UP_EVERY_S": 2.0},
    "spark_jms.log.tables.delta_log": {"_GAP_CHECK_INTERVAL_MS": GAP_CHECK_MS},
}
STREAM_UNITS = 5


@dataclass(frozen=True)
class Arrival:
    key: str
    unit: str | None
    member: int
    sequence: int
    redelivered: bool

    @property
    def producer(self) -> str:
        return self.key.split(":")[0]

    @property
    def n(self) -> int:
        return int(self.key.split(":")[1])


class ClientApp:
    """A child process of client_app.py."""

    def __init__(self, path: Path, root: Path, role: str, name: str) -> None:
        self.directory, self.name, self.role = path / name, name, role
        self.directory.mkdir(parents=True)
        self._root = root
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        script = str(PROGRAMS / "client_app.py")
        command = [sys.executable, script, str(self._root), QUEUE, str(self.directory), self.role, self.name]
        environment = {**os.environ, "PYTHONPATH": f"{PLUGIN}:{PROJECT}", "JMSQ_TUNE": json.dumps(TUNE)}
        with open(self.directory / "output.log", "wb") as output:
            self._process = forked.Popen(command, env=environment, stdout=output, stderr=output)

    @property
    def started(self) -> bool:
        return self._process is not None

    def check_alive(self) -> None:
        assert self._process is not None
        output = self.directory / "output.log"
        assert self._process.poll() is None, f"client {self.name} ended unexpectedly:\n{output.read_text()}"

    def pause(self, on: bool) -> None:
        if on:
            (self.directory / "pause").touch()
            until(f"{self.name} to pause", (self.directory / "paused").exists, 60, or_fail=self.check_alive)
        else:
            (self.directory / "pause").unlink()

    def sent(self) -> int:
        try:
            return int((self.directory / "sent").read_text() or 0)
        except FileNotFoundError:
            return 0

    def stop(self) -> int:
        (self.directory / "stop").touch()
        assert self._process is not None
        code = self._process.wait(timeout=60)
        assert code == 0, f"client {self.name} ended with {code}:\n{(self.directory / 'output.log').read_text()}"
        return int(json.loads((self.directory / "done.json").read_text())["count"])

    def sweep(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(timeout=30)


def _producing(root: Path, feed: Feed, path: Path, name: str, *, units: bool) -> dict[str, Any]:
    unit = f"concat('{name}-', cast(value AS bigint) % {STREAM_UNITS})" if units else "cast(NULL AS string)"
    return {
        "from": "text",
        "options": {"path": str(feed.folder), "maxFilesPerTrigger": "1"},
        "select": [f"concat('{name}:', value) AS text", f"{unit} AS JMSXGroupID"],
        "to": "jmsq",
        "sinkOptions": {
            "root": str(root),
            "destination": QUEUE,
            "checkpointLocation": str(path / f"checkpoint-{name}"),
        },
        "trigger": "200 milliseconds",
    }


def _consuming(root: Path, path: Path, name: str) -> dict[str, Any]:
    return {
        "from": "jmsq",
        "options": {"root": str(root), "destination": QUEUE, "maxMessagesPerTrigger": "300"},
        "select": ["text AS key", "JMSXGroupID AS unit", "member", "sequence", "JMSRedelivered AS redelivered"],
        "to": "delta",
        "sinkOptions": {"path": str(path / f"output-{name}"), "checkpointLocation": str(path / f"checkpoint-{name}")},
    }


@dataclass
class Bounds:
    """The largest numbers seen during the run."""

    active_files: int = 0
    log_files: int = 0
    data_files: int = 0
    samples: int = 0
    purged_to_empty: int = 0
    versions: int = 0


@dataclass
class Run:
    path: Path
    bounds: Bounds = field(default_factory=Bounds)

    def __post_init__(self) -> None:
        self.root = self.path / "domain"
        self.domain = make_queue(self.root, file_grace_ms=FILE_GRACE_MS)
        self._short_log_retention()
        self.feeds = {name: Feed(self.path / f"input-{name}") for name in ("s1", "s2")}
        self.apps = [
            App(
                self.path / f"app-{i}",
                {
                    f"s{i}": _producing(self.root, self.feeds[f"s{i}"], self.path, f"s{i}", units=i == 2),
                    f"c{i}": _consuming(self.root, self.path, f"c{i}"),
                },
                tune=TUNE,
            )
            for i in (1, 2)
        ]
        self.clients = [
            ClientApp(self.path, self.root, "produce", "k1"),
            ClientApp(self.path, self.root, "produce-units", "k2"),
        ]
        self.reader = ClientApp(self.path, self.root, "consume", "c3")

    def _short_log_retention(self) -> None:
        """Let clean-up remove log files after a few seconds instead of a day."""
        log = self.domain.log(QUEUE)

        def decide(snapshot: Snapshot) -> Decision:
            configuration = dict(snapshot.metadata["configuration"])  # type: ignore[call-overload]
            configuration["delta.logRetentionDuration"] = f"interval {LOG_RETENTION_S} seconds"
            return Decision("SET TBLPROPERTIES", [{"metaData": {**snapshot.metadata, "configuration": configuration}}])

        commit(log, decide)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run everything during the block. The clients start once the streams work, or they would fill the queue while
        the applications start."""
        try:
            for app in self.apps:
                app.start()
            until("both streams to receive", self._streams_busy, 150, or_fail=self.check_running)
            for client in (*self.clients, self.reader):
                client.start()
            until("all clients to send", lambda: all(c.sent() for c in self.clients), 60, or_fail=self.check_running)
            yield
        finally:
            for one in (*self.apps, *self.clients, self.reader):
                one.sweep()

    def _streams_busy(self) -> bool:
        self.feed_streams()
        return all(self.delta_count(i) for i in (1, 2))

    # -- while it runs ----------------------------------------------------------------------------------------------
    def check_running(self) -> None:
        for one in (*self.apps, *self.clients, self.reader):
            if one.started:
                one.check_alive()
        for app in self.apps:
            assert not app.events("failed"), app.events("failed")

    def feed_streams(self) -> None:
        """Add one file for each stream that has fewer than three files left to read."""
        for name, feed in self.feeds.items():
            done = len(list((self.path / f"checkpoint-{name}" / "commits").glob("[0-9]*")))
            if feed.files - done < 3:
                feed.add(1, 40)

    def sample(self) -> None:
        snapshot = self.domain.log(QUEUE).refresh()
        names = os.listdir(self.root / QUEUE)
        b = self.bounds
        b.active_files = max(b.active_files, len(snapshot.files))
        b.data_files = max(b.data_files, sum(name.endswith(".parquet") for name in names))
        b.log_files = max(b.log_files, len(os.listdir(self.root / QUEUE / "_delta_log")))
        b.versions = snapshot.version
        b.samples += 1

    def work(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds

        def over() -> bool:
            self.feed_streams()
            self.sample()
            return time.monotonic() > deadline

        until("the time to pass", over, seconds + 60, or_fail=self.check_running)

    def purge_to_empty(self) -> None:
        """Pause the writers until every message is consumed and the log names no data file, then let them continue."""
        for client in self.clients:
            client.pause(True)

        def empty() -> bool:
            self.sample()
            return not self.domain.log(QUEUE).refresh().files and len(self.arrivals()) == self.sent()

        until("the queue to be purged to empty", empty, 120, or_fail=self.check_running)
        self.bounds.purged_to_empty += 1
        for client in self.clients:
            client.pause(False)

    def add_member(self) -> None:
        wanted = Destination(QUEUE, "distributed-queue", 5, file_grace_ms=FILE_GRACE_MS)
        assert apply_destinations(self.domain, [wanted], lambda *_: False)[0].what == "changed"

    def finish(self) -> list[list[Arrival]]:
        """Stop the writers, wait until every message is consumed, stop the readers; returns each reader's messages."""
        for client in self.clients:
            client.stop()
        total = self.sent()

        def all_arrived() -> bool:
            return len(self.arrivals()) >= total

        until(f"all {total} messages", all_arrived, 180, or_fail=lambda: self.reader.check_alive())
        for app in self.apps:
            assert not app.events("failed"), app.events("failed")
            app.stop()
        self.reader.stop()
        return [self.delta_rows(1), self.delta_rows(2), self.client_rows()]

    # -- arrivals ---------------------------------------------------------------------------------------------------
    def sent(self) -> int:
        return sum(feed.sent for feed in self.feeds.values()) + sum(client.sent() for client in self.clients)

    def delta_count(self, i: int) -> int:
        from tests.harness.scenarios.account import count_of

        return count_of(self.path / f"output-c{i}")

    def delta_rows(self, i: int) -> list[Arrival]:
        table = self.path / f"output-c{i}"
        out: list[Arrival] = []
        for version in sorted((table / "_delta_log").glob("*.json")):
            actions = [json.loads(line) for line in version.read_text().splitlines()]
            for path in sorted(action["add"]["path"] for action in actions if "add" in action):
                out += [Arrival(**row) for row in pq.read_table(table / path).to_pylist()]
        return out

    def client_rows(self) -> list[Arrival]:
        path = self.reader.directory / "received.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [Arrival(**json.loads(line)) for line in lines if line.endswith("}")]

    def arrivals(self) -> range:
        """A range as long as the number of arrivals, which is cheap to count."""
        return range(self.delta_count(1) + self.delta_count(2) + len(self.client_rows()))

    def last_sequences(self) -> dict[int, int]:
        table = DeltaTable(self.root / QUEUE)
        return {m: table.transaction_version(f"seq/{m}") or 0 for m in range(5)}

    def sent_by(self) -> dict[str, int]:
        return {**{name: feed.sent for name, feed in self.feeds.items()}, **{c.name: c.sent() for c in self.clients}}


# -- the account ----------------------------------------------------------------------------------------------------------
def check_account(outputs: list[list[Arrival]], sent_by: dict[str, int], last: dict[int, int]) -> None:
    rows = [row for output in outputs for row in output]
    times: dict[str, int] = {}
    for row in rows:
        times[row.key] = times.get(row.key, 0) + 1
    lost = [f"{p}:{n}" for p, count in sent_by.items() for n in range(count) if f"{p}:{n}" not in times]
    assert not lost, f"{len(lost)} messages are lost: {lost[:20]}"
    doubled = [key for key, count in times.items() if count > 1]
    assert not doubled, f"{len(doubled)} messages arrived twice: {[r for r in rows if r.key in doubled[:5]]}"
    assert len(times) == sum(sent_by.values()), "messages arrived that no writer sent"
    assert not [row for row in rows if row.redelivered], "messages are flagged as redelivered"
    for member, end in last.items():
        sequences = sorted(row.sequence for row in rows if row.member == member)
        assert sequences == list(range(1, end + 1)), f"member {member}: sequences are not 1 to {end}"
    for output in outputs:
        check_order(output)


def check_order(output: list[Arrival]) -> None:
    """One consumer receives a unit of order in order, and without units a producer's messages of a member in order.

    A consumer skips a unit whose messages another consumer holds, so different units have no order among themselves.
    """
    newest: dict[tuple[object, ...], int] = {}
    for row in output:
        key = ("unit", row.unit) if row.unit else ("producer", row.producer, row.member)
        assert row.n > newest.get(key, -1), f"out of order: {row} after {key} was at {newest[key]}"
        newest[key] = row.n


def out_of_producer_order(output: list[Arrival]) -> int:
    """How many messages arrived after a later one of the same producer and member."""
    newest: dict[tuple[str, int], int] = {}
    count = 0
    for row in output:
        key = (row.producer, row.member)
        count += row.n < newest.get(key, -1)
        newest[key] = max(row.n, newest.get(key, -1))
    return count


# The run writes some 10,000 files in a minute; the bounds allow for a busy machine.
MAX_ACTIVE_FILES, MAX_DATA_FILES, MAX_LOG_FILES = 1500, 4000, 1500


def run_concurrently(path: Path, seconds: float, rounds: int) -> None:
    """`seconds` of traffic in `rounds` + 1 parts. After each part but the last the queue is purged to empty; in the middle
    of the last but one a member is added."""
    run = Run(path)
    part_s = seconds / (rounds + 1)
    with run.running():
        for number in range(rounds):
            run.work(part_s / 2)
            if number == rounds - 1:
                run.add_member()
            run.work(part_s / 2)
            run.purge_to_empty()
        run.work(part_s)
        outputs = run.finish()
    last = run.last_sequences()
    got = {f"c{i}": len(output) for i, output in enumerate(outputs, 1)}
    skips = [out_of_producer_order(output) for output in outputs]
    print(f"sent {run.sent_by()}, received {got}, last sequences {last}, {run.bounds}, unit skips {skips}")
    check_account(outputs, run.sent_by(), last)
    assert all(got.values()), f"a reader received nothing: {got}"
    assert last[4] > 0, "the new member received nothing"
    bounds = run.bounds
    assert bounds.active_files <= MAX_ACTIVE_FILES, bounds
    assert bounds.data_files <= MAX_DATA_FILES, bounds
    assert bounds.log_files <= MAX_LOG_FILES, bounds
