"""The demo's receivers: `a` in a process that the demo can kill, `b` in the demo's own Spark application.

`ReceiverProcess` starts and observes the process of `a`, and always ends it at the end. That process is `main`, a Spark
application that reports in JSON lines:

    out   {"event": "ready"}, {"event": "batch", …} for each micro-batch, {"event": "stopped"}
    in    the name of a subscription: it receives what waits there and reports {"event": name};
          "go" starts the query, "stop" (or the end of the input: the demo has ended) ends it

Everything it has to remember is in its checkpoint and in the queue: started again after kill -9, it continues.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import IO, TYPE_CHECKING, TextIO

from spark_jms.demo.flights import DemoError
from spark_jms.demo.queries import (
    SUBSCRIPTIONS,
    create_output,
    receive_flights,
    receive_subscription,
    session,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

READY_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
_LOOK_EVERY_S = 0.2  # at the query of `b`
_LOOK_S = 0.1  # of `a` at its own


@dataclass(frozen=True)
class ReceivedBatch:
    """A micro-batch with messages. `consumer` is the query's name in the queue."""

    batch: int
    rows: int
    ms: int
    consumer: str


@dataclass
class Received:
    """What a receiver has received so far, by the progress of its query: all its micro-batches, over its restarts. A repeated one
    counts once."""

    batches: dict[int, int] = field(default_factory=dict)  # batch id -> rows
    batch_ms: list[int] = field(default_factory=list)
    batch_rows: list[int] = field(default_factory=list)
    consumer: str = ""

    @property
    def rows(self) -> int:
        return sum(self.batches.values())

    @property
    def pace(self) -> list[tuple[float, int]]:
        """Of each batch: the seconds that it and those before it took, and its messages. Idle time does not count."""
        return list(zip((ms / 1000 for ms in accumulate(self.batch_ms)), self.batch_rows, strict=True))

    def add(self, batch: ReceivedBatch) -> None:
        self.batches[batch.batch] = batch.rows
        self.batch_ms.append(batch.ms)
        self.batch_rows.append(batch.rows)
        self.consumer = batch.consumer


class ReceiverProcess:
    """One receiver's process and its reports. Thread-safe to read; a thread of its own fills it."""

    def __init__(self, name: str, work: Path, batch: int, master: str) -> None:
        self.name, self._work, self._batch, self._master = name, work, batch, master
        self.log = work / "logs" / f"receiver-{name}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.received = Received()
        self.pids: list[int] = []
        self._events: queue.Queue[str] = queue.Queue()
        self._process: subprocess.Popen[str] | None = None
        self._expected_end = False

    def start(self) -> None:
        """Start it in a session of its own: Ctrl-C reaches only the demo, and the session finds every process the driver starts."""
        command = [
            sys.executable,
            "-m",
            "spark_jms.demo.processes",
            "--name",
            self.name,
            "--work",
            str(self._work),
            "--batch",
            str(self._batch),
            "--master",
            self._master,
        ]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        self._expected_end = False
        self._events = queue.Queue()
        self.pids.append(self._process.pid)
        assert self._process.stdout is not None
        threading.Thread(target=self._listen, args=(self._process.stdout, self._events), daemon=True).start()

    def _listen(self, source: IO[str], events: queue.Queue[str]) -> None:
        for line in source:
            told = json.loads(line)
            event = told.pop("event")
            if event == "batch":
                self.received.add(ReceivedBatch(**told))
            else:
                events.put(event)
        events.put("ended")

    def check(self) -> None:
        """Raises DemoError if the process has ended by itself."""
        if self._process is not None and self._process.poll() is not None and not self._expected_end:
            raise DemoError(
                f"receiver {self.name} ended by itself with code {self._process.returncode}:\n{self._tail()}"
            )

    def wait_until(self, event: str, timeout_s: float, meanwhile: Callable[[], None]) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            meanwhile()
            try:
                told = self._events.get(timeout=0.2)
            except queue.Empty:
                continue
            if told == event:
                return
            if told == "ended":
                raise DemoError(f"receiver {self.name} ended before it was {event}:\n{self._tail()}")
        raise DemoError(f"receiver {self.name} was not {event} within {timeout_s:.0f} s:\n{self._tail()}")

    def receive_subscription(self, name: str) -> None:
        """Let it receive what waits for a subscription of the topic; then it reports the event `name`."""
        self._order(name)

    def go(self) -> None:
        self._order("go")

    def stop(self) -> None:
        self._expected_end = True
        self._order("stop")

    def _order(self, order: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{order}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise DemoError(f"receiver {self.name} has ended:\n{self._tail()}") from None

    def kill_9(self) -> None:
        """Kill the driver, Python and JVM at once: no process remains that could clean up."""
        assert self._process is not None
        self._expected_end = True
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def clean_up(self) -> None:
        """End every process that the receiver started, in whatever state it is."""
        self._expected_end = True
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for leader in self.pids:
            end_session(leader)

    def _tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class QueryReceiver:
    """The receiver `b`: a query in the demo's own Spark application. `check` brings `received` up to date."""

    def __init__(self, name: str, work: Path, batch: int) -> None:
        self.name, self._work, self._batch = name, work, batch
        self.received = Received()
        self._query: StreamingQuery | None = None
        self._preparing: threading.Thread | None = None
        self._seen, self._looked_s = -1, 0.0

    def prepare(self, spark: SparkSession) -> None:
        """Create the table, beside whatever the application does until `go`."""
        self._preparing = threading.Thread(target=create_output, args=(spark, self._work, self.name), daemon=True)
        self._preparing.start()

    def go(self, spark: SparkSession) -> None:
        if self._preparing is not None:
            self._preparing.join()
        self._query = receive_flights(spark, self._work, self.name, self._batch)

    def check(self) -> None:
        """Raises the error that ended the query."""
        if self._query is None or time.monotonic() - self._looked_s < _LOOK_EVERY_S:
            return
        self._looked_s = time.monotonic()
        for done in batches_after(self._query, self._seen):
            self._seen = done.batch
            self.received.add(done)
        if (error := self._query.exception()) is not None:
            raise error

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()


def batches_after(query: StreamingQuery, seen: int) -> Iterator[ReceivedBatch]:
    """The finished micro-batches with messages whose id is above `seen`."""
    for progress in query.recentProgress:
        if progress["batchId"] > seen and progress["numInputRows"]:
            end = progress["sources"][0]["endOffset"]
            consumer = (json.loads(end) if isinstance(end, str) else end)["consumer"]
            yield ReceivedBatch(
                progress["batchId"], progress["numInputRows"], progress["durationMs"]["triggerExecution"], consumer
            )


# -- ending processes --------------------------------------------------------------------------------------------------


def end_session(leader: int) -> None:
    """End all processes of the session that this process began, which may have ended itself."""
    _kill([process.pid for process in _running() if process.session == leader])


def end_descendants() -> None:
    """End all descendants of this process, including a JVM whose launch was interrupted."""
    running = _running()
    family = {os.getpid()}
    while grown := {process.pid for process in running if process.parent in family} - family:
        family |= grown
    _kill(sorted(family - {os.getpid()}))


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    session: int


def _running() -> list[_Process]:
    """Read from /proc (elsewhere empty; then only the receiver's process group is ended). The receiver's session is
    used and not its group, because Spark's Python workers leave the group."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if state != "Z":
            found.append(_Process(int(entry.name), int(parent), int(session)))
    return found


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


# -- the process of `a` ------------------------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m spark_jms.demo.processes", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--name", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--batch", type=int, required=True, help="most messages of a micro-batch")
    parser.add_argument("--master", required=True)
    given = parser.parse_args(arguments)
    # Only our lines go to the demo; the standard output of Spark and its children goes to the log.
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    orders: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin, orders), daemon=True).start()
    spark = session(f"demo receiver {given.name}", given.work / "warehouse" / given.name, given.master)
    create_output(spark, given.work, given.name)
    _tell(out, "ready")
    order = orders.get()
    while order in SUBSCRIPTIONS:
        receive_subscription(spark, given.work, order).awaitTermination()
        _tell(out, order)
        order = orders.get()
    if order == "go":
        query = receive_flights(spark, given.work, given.name, given.batch)
        _follow(query, orders, out)
        query.stop()
    _tell(out, "stopped")
    spark.stop()
    return 0


def _listen(source: TextIO, orders: queue.Queue[str]) -> None:
    for line in source:
        orders.put(line.strip())
    orders.put("stop")


def _follow(query: StreamingQuery, orders: queue.Queue[str], out: TextIO) -> None:
    """Report each micro-batch until the demo stops the receiver. Raises the error that ends the query."""
    seen = -1
    while True:
        for done in batches_after(query, seen):
            seen = done.batch
            _tell(out, "batch", **dataclasses.asdict(done))
        try:
            if orders.get(timeout=_LOOK_S) == "stop":
                return
        except queue.Empty:
            if (error := query.exception()) is not None:
                raise error from None


def _tell(out: TextIO, event: str, **values: object) -> None:
    out.write(json.dumps({"event": event, **values}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
