#!/usr/bin/env python3
"""Growth: single sends to a queue beside a slow consumer, with housekeeping in the sender's process (C13).

    make bench ARGS="--parts growth"                                   300,000 commits, about ten minutes; ratios and targets
    python -m benchmarks.growth --commits 300000 --window 10000        the same as one row for each window, while it runs
    JMSQ_GROWTH_COMMITS=300000 make soak ARGS="-k slow_consumer"       the same with bounds that fail

After each window of sends it prints the latency of `send`, what the table consists of, and what housekeeping cost. A table
that is kept small shows the same numbers from about 100,000 commits on: so as a part of `make bench` each window of the last
third is compared with one of the third before. `make soak` runs 30,000 commits unless told otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measure import Meter
from benchmarks.results import Sample, TargetComparison
from benchmarks.workbench import Workbench
from spark_jms import connect
from spark_jms.core.destinations.destination import Destination
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.destinations.domain import create_domain
from spark_jms.log.tables.checkpoints import LogListing
from spark_jms.log.upkeep import clean_up
from spark_jms.log.upkeep.housekeeping import HousekeepingRounds

WINDOWS = 30  # ten of them to each third
FLAT = 1.3
TABLES = {
    "growth, active files": ("active_files", "files"),
    "growth, files of the log": ("log_files", "files"),
    "growth, CPU of a clean-up": ("clean_up_ms", "ms"),
    "growth, CPU of housekeeping for a send": ("housekeeping_cpu_ms", "ms"),
    "growth, send p50": ("p50_ms", "ms"),
    "growth, send p99": ("p99_ms", "ms"),
    "growth, memory of the sender": ("rss_mib", "MiB"),
}
_QUEUE = "orders"
_BODY = "x" * 1024
_CONSUMER = """
import sys, time
from spark_jms import connect

with connect(sys.argv[1], housekeeping=False) as context, context.consumer("orders", prefetch=10) as consumer:
    while True:
        message = consumer.receive(timeout=1)
        if message is not None:
            message.acknowledge()
        time.sleep(float(sys.argv[2]))
"""


@dataclass(frozen=True)
class GrowthWindow:
    """One window of sends. `send_cpu_ms` is the sending thread's CPU per send, `housekeeping_cpu_ms` that of housekeeping per
    send, `clean_up_ms` the CPU of its last clean-up: on a busy machine they tell more than the times."""

    commits: int
    per_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    send_cpu_ms: float
    housekeeping_cpu_ms: float
    clean_up_ms: float
    active_files: int
    commit_files: int
    checkpoints: int
    rss_mib: int

    @property
    def log_files(self) -> int:
        return self.commit_files + self.checkpoints


def run(bench: Workbench) -> None:
    """A part of `make bench`: the windows of the last third over those of the second, window by window."""
    window = max(bench.options.commits // WINDOWS, 1)
    before, after = (f"sends {window * low + 1:,} to {window * high:,}" for low, high in ((10, 20), (20, 30)))
    for table in TABLES:
        bench.recorder.compare(TargetComparison(table, after, before, FLAT, at_least=False))

    def windows() -> None:
        with contextlib.closing(measure(window * WINDOWS, window, directory=bench.work)) as found:
            for number in range(WINDOWS):
                bench.recorder.doing(f"growth: {window * number:,} sends")
                with Meter() as meter:
                    row = next(found)
                cell = before if number < WINDOWS * 2 // 3 else after
                for table, (name, unit) in TABLES.items() if number >= WINDOWS // 3 else ():
                    value, counted = float(getattr(row, name)), number % 10 + 1  # no run is cold: the first third is
                    sample = Sample(table, cell, counted, value, unit, meter.seconds, meter.noise)
                    bench.recorder.sample(sample, show=name == "p99_ms")
                bench.recorder.step()

    bench.recorder.part("growth", WINDOWS)
    bench.recorder.attempt([(table, after) for table in TABLES], windows)


def measure(
    commits: int,
    window: int,
    consumer_pause_s: float = 0.05,
    clean_up_every_s: float = 10.0,
    directory: Path | None = None,
) -> Generator[GrowthWindow, None, None]:
    """Send `commits` messages one by one, and yield each window."""
    with (
        tempfile.TemporaryDirectory(prefix="jmsq-growth-", dir=directory) as root,
        _timed_clean_up(clean_up_every_s) as cleaned_ms,
    ):
        domain = create_domain(root)
        apply_destinations(domain, [Destination(_QUEUE, "queue")], lambda *_: True)
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
        consumer = subprocess.Popen([sys.executable, "-c", _CONSUMER, root, str(consumer_pause_s)], env=environment)
        try:
            with connect(root) as context:
                producer = context.producer(_QUEUE)
                log = domain.log(_QUEUE)
                for last in range(window, commits + 1, window):
                    cpu_s, own_s, began_s = _housekeeping_cpu_s(), time.thread_time(), time.monotonic()
                    times_ms = []
                    for _ in range(window):
                        before = time.perf_counter()
                        producer.send(text=_BODY)
                        times_ms.append((time.perf_counter() - before) * 1000)
                    took_s, own_s = time.monotonic() - began_s, time.thread_time() - own_s
                    cpu_s = _housekeeping_cpu_s() - cpu_s
                    times_ms.sort()
                    listing = LogListing.of(log.storage)
                    yield GrowthWindow(
                        last,
                        window / took_s,
                        times_ms[window // 2],
                        times_ms[window * 99 // 100],
                        times_ms[-1],
                        own_s / window * 1000,
                        cpu_s / window * 1000,
                        cleaned_ms[-1],
                        len(log.refresh().files),
                        len(listing.commits),
                        len(listing.checkpoints),
                        psutil.Process().memory_info().rss // 2**20,
                    )
        finally:
            consumer.terminate()
            consumer.wait()


def _housekeeping_cpu_s() -> float:
    """Of the thread in the sender's process."""
    threads = (t for t in threading.enumerate() if t.name == "jmsq-background client housekeeping")
    return sum(time.clock_gettime(time.pthread_getcpuclockid(t.ident)) for t in threads if t.ident)


@contextmanager
def _timed_clean_up(every_s: float) -> Iterator[list[float]]:
    """The CPU milliseconds of each clean-up of the messages' table."""
    run, usual_s, cpu_ms = clean_up.CleanUp.run, HousekeepingRounds.CLEAN_UP_EVERY_S, [0.0]

    def timed(self: clean_up.CleanUp, *arguments: Any) -> Any:
        before = time.thread_time()
        done = run(self, *arguments)
        if self._log.name == _QUEUE:
            cpu_ms.append((time.thread_time() - before) * 1000)
        return done

    clean_up.CleanUp.run, HousekeepingRounds.CLEAN_UP_EVERY_S = timed, every_s  # type: ignore[method-assign]
    try:
        yield cpu_ms
    finally:
        clean_up.CleanUp.run, HousekeepingRounds.CLEAN_UP_EVERY_S = run, usual_s  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--commits", type=int, default=30_000)
    parser.add_argument("--window", type=int, default=5_000)
    given = parser.parse_args()
    print("".join(f"{field.name:>20}" for field in fields(GrowthWindow)), flush=True)
    for row in measure(given.commits, given.window):
        shown = (f"{value:.2f}" if isinstance(value, float) else f"{value:,}" for value in astuple(row))
        print("".join(f"{text:>20}" for text in shown), flush=True)


if __name__ == "__main__":
    main()
