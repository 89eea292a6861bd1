"""Competing consumers: how many messages a second the consumers of one queue handle together (C9).

1, 8, 32 and 64 consumers of a queue with one member, as threads of one process and as processes with one consumer each, receive and
acknowledge one message at a time, or ten, and work 20 ms on each, or not at all (competing_consumers.py); the first seconds are
warm-up. **longest gap**: the longest time in which one of them got nothing. **processor time**: of the consumers' processes, over the
messages. **by store**: the same with one message and 20 ms on each kind of store, by 1 and 8 processes. Beside one Artemis broker with
forced writes, whose clients receive and acknowledge in the same way.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import calls
from benchmarks.competing_consumers import QUEUE
from benchmarks.errors import CellFailedError
from benchmarks.measure import Meter
from benchmarks.peers.artemis import ArtemisBroker, ArtemisClient, artemis
from benchmarks.ranking import daemons
from benchmarks.results import Sample, TargetComparison
from benchmarks.workbench import Workbench

WINDOW_S, QUICK_WINDOW_S = 5.0, 1.0
WARM_S, QUICK_WARM_S = 3.0, 0.5
COUNTS, QUICK_COUNTS = (8, 32, 64), (4,)
BACKLOG, QUICK_BACKLOG, ARTEMIS_BACKLOG = 100_000, 15_000, 4_000
START_TIMEOUT_S = 300
BY_STORE = "competing consumers by store"


@dataclass(frozen=True)
class Work:
    """`goals`: of 8, 32 and 64 consumers, as multiples of one: threads of one process, and processes."""

    batch: int
    handler_ms: int
    goals: tuple[tuple[float, float], ...]

    @property
    def table(self) -> str:
        work = f"{self.handler_ms} ms each" if self.handler_ms else "no work"
        return f"competing consumers, {self.batch} at a time, {work}"


WORKS = (
    Work(1, 20, ((6, 5), (10, 6), (10, 4))),
    Work(10, 20, ((7.5, 7), (25, 20), (30, 20))),
    Work(10, 0, ((0.9, 0.9), (0.8, 0.6), (0.7, 0.4))),
)
ONE = "1"


@dataclass(frozen=True)
class Crew:
    """The consumers of a cell. `broker` None: ours."""

    processes: int
    threads: int
    broker: ArtemisBroker | None = None

    @property
    def cell(self) -> str:
        if self.processes * self.threads == 1:
            name = ONE
        else:
            name = f"{self.processes} processes" if self.processes > 1 else f"{self.threads} threads"
        return f"{name}, Artemis" if self.broker else name


def run(bench: Workbench) -> None:
    counts = QUICK_COUNTS if bench.options.quick else COUNTS
    part = _Part(bench)
    for work in WORKS:
        for count, (threads, processes) in zip(counts, work.goals, strict=False):
            bench.recorder.compare(TargetComparison(work.table, f"{count} threads", ONE, threads))
            bench.recorder.compare(TargetComparison(work.table, f"{count} processes", ONE, processes))
    with contextlib.ExitStack() as stack:
        broker: list[ArtemisBroker] = []
        bench.recorder.doing("Artemis: jars and broker")
        start = artemis(bench.new_path("artemis"), bench.cache)
        crews = [Crew(1, 1), *(crew for count in counts for crew in (Crew(1, count), Crew(count, 1)))]
        theirs = [(WORKS[0].table, f"{crew.cell}, Artemis") for crew in crews]
        bench.recorder.attempt(theirs, lambda: broker.append(stack.enter_context(start)))
        stores = part.stores(stack)
        rounds = bench.options.runs + 1
        bench.recorder.part("competing consumers", rounds * (len(crews) * (len(WORKS) + len(broker)) + 2 * len(stores)))
        for number in range(rounds):
            for work in WORKS:
                for crew in crews:
                    part.measure(work, crew, number)
                    for peer in broker if work is WORKS[0] else ():
                        part.measure(work, Crew(crew.processes, crew.threads, peer), number)
            for name, uri in stores.items():
                for crew in (Crew(1, 1), Crew(QUICK_COUNTS[0] if bench.options.quick else 8, 1)):
                    part.measure(
                        WORKS[0], crew, number, BY_STORE, f"{name}, {crew.cell}", uri.replace("{number}", str(number))
                    )


class _Part:
    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._window_s = QUICK_WINDOW_S if bench.options.quick else WINDOW_S
        self._warm_s = QUICK_WARM_S if bench.options.quick else WARM_S
        self._backlog = QUICK_BACKLOG if bench.options.quick else BACKLOG

    def stores(self, stack: contextlib.ExitStack) -> dict[str, str]:
        """Name -> URI, with a place for the number of the round."""
        home = self._bench.new_path("stores")
        home.mkdir(parents=True)
        found = {"jdbc, SQLite": f"jdbc:sqlite:///{home}/{{number}}-{{crew}}.db"}
        self._bench.recorder.attempt([(BY_STORE, "replicated")], lambda: stack.enter_context(daemons(home / "daemons")))
        if (home / "daemons").exists():
            found["replicated"] = f"replicated://{home}/daemons?store=c{{number}}x{{crew}}"
        return found

    def measure(
        self, work: Work, crew: Crew, number: int, table: str = "", cell: str = "", store: str | None = None
    ) -> None:
        table, cell = table or work.table, cell or crew.cell
        self._bench.recorder.doing(f"{table}: {cell}")
        self._bench.recorder.attempt([(table, cell)], lambda: self._measured(work, crew, number, table, cell, store))
        self._bench.recorder.step()

    def _measured(self, work: Work, crew: Crew, number: int, table: str, cell: str, store: str | None) -> None:
        where = self._filled(work, crew, store)
        with self._crew(where, work, crew) as processes:
            os.sync()
            with Meter() as meter:
                starts_s = time.monotonic() + 0.5 + self._warm_s
                for process in processes:
                    assert process.stdin is not None
                    process.stdin.write(f"{starts_s}\n")
                    process.stdin.flush()
                seen = [self._seen(process) for process in processes]
        messages = sum(sum(one["counts"]) for one in seen)
        rate = messages / max(one["took"] for one in seen)
        least = min(min(one["counts"]) for one in seen) * crew.processes * crew.threads / messages
        detail: dict[str, float | str] = {"slowest over mean": round(least, 2)}
        sample = self._bench.recorder.sample
        sample(Sample(table, cell, number, rate, "messages/s", meter.seconds, meter.noise, detail))
        if table != BY_STORE:
            gap, cpu = max(one["gap"] for one in seen), sum(one["cpu"] for one in seen) / messages * 1000
            sample(Sample(f"{table}: longest gap", cell, number, gap, "s", meter.seconds, meter.noise), show=False)
            sample(
                Sample(f"{table}: processor time", cell, number, cpu, "ms a message", meter.seconds, meter.noise),
                show=False,
            )

    def _filled(self, work: Work, crew: Crew, store: str | None) -> str:
        """A queue with a backlog that outlasts the window: what a consumer is told."""
        if crew.broker is not None:
            queue = self._bench.new_path("competing").name
            client = ArtemisClient(crew.broker.port, queue)
            wanted = int(crew.processes * crew.threads * (self._warm_s + self._window_s + 2) * 1000 / work.handler_ms)
            client.send_many([b"x" * 100] * min(wanted, ARTEMIS_BACKLOG * 8))
            client.close()
            return f"{crew.broker.port}/{queue}"
        import spark_jms

        root = self._bench.new_path("competing")
        if store is not None:
            calls.create(root, store.replace("{crew}", str(crew.processes)))
        calls.apply(root, {QUEUE: {"kind": "queue"}})
        with spark_jms.connect(str(root), housekeeping=False) as context:
            context.producer(QUEUE).send_many({"text": "x" * 100} for _ in range(self._backlog))
        return str(root)

    @contextlib.contextmanager
    def _crew(self, where: str, work: Work, crew: Crew) -> Iterator[list[subprocess.Popen[str]]]:
        arguments = [where, str(crew.threads), str(work.batch), str(work.handler_ms), str(self._window_s)]
        command = [sys.executable, "-m", "benchmarks.competing_consumers", *arguments]
        processes = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).parent.parent,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
            for _ in range(crew.processes)
        ]
        try:
            for process in processes:
                if process.stdout is None or process.stdout.readline() != "ready\n":
                    raise CellFailedError("a consumer did not start")
            yield processes
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.communicate()

    def _seen(self, process: subprocess.Popen[str]) -> dict[str, float | list[int]]:
        out, _ = process.communicate(timeout=START_TIMEOUT_S)
        if process.returncode:
            raise CellFailedError(f"a consumer ended with code {process.returncode}")
        found: dict[str, float | list[int]] = json.loads(out)
        return found
