#!/usr/bin/env python3
"""Growth: single sends to a queue beside a slow consumer, with housekeeping in the sender's process (C13).

    python -m benchmarks.growth --commits 300000 --window 10000

After each window of sends it prints the latency of `send`, what the table consists of, and what housekeeping cost. A table
that is kept small shows the same numbers from about 100,000 commits on. `make soak` runs it with 30,000 commits.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import psutil

from spark_jms import connect
from spark_jms.core.destination import Destination
from spark_jms.log import clean_up
from spark_jms.log.checkpoints import LogListing
from spark_jms.log.declarations import apply_destinations
from spark_jms.log.domain import create_domain
from spark_jms.log.housekeeping import HousekeepingRounds

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


def measure(
    commits: int, window: int, consumer_pause_s: float = 0.05, clean_up_every_s: float = 10.0
) -> Iterator[GrowthWindow]:
    """Send `commits` messages one by one, and yield each window."""
    with tempfile.TemporaryDirectory(prefix="jmsq-growth-") as root, _timed_clean_up(clean_up_every_s) as cleaned_ms:
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
    print("".join(f"{field.name:>20}" for field in fields(GrowthWindow)))
    for row in measure(given.commits, given.window):
        shown = (f"{value:.2f}" if isinstance(value, float) else f"{value:,}" for value in astuple(row))
        print("".join(f"{text:>20}" for text in shown), flush=True)


if __name__ == "__main__":
    main()
