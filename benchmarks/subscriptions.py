"""A topic with 1,000 durable subscriptions beside one with a single one: what a send takes, and what it stores (C10).

A message is stored once, whatever the number of subscriptions. They are in the metadata of the topic's table, so making one
writes all of them once more: `making them` shows the bytes of that.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import calls
from benchmarks.measure import Meter
from benchmarks.results import Sample, TargetComparison
from benchmarks.workbench import Workbench

SEND_TIME, STORAGE, MAKING = (
    "topic: time of a send",
    "topic: bytes stored by the sends",
    "topic: bytes of its subscriptions",
)
FEW, MANY, QUICK_MANY = 1, 1000, 50
BOUND = 1.2
MESSAGES = 100  # of a send that is counted
SENDS = 50  # of each kind in a run


def run(bench: Workbench) -> None:
    counts = (FEW, QUICK_MANY if bench.options.quick else MANY)
    cells = {f"{count:,} subscription{'s' * (count > 1)}": count for count in counts}
    first, other = cells
    runs = bench.options.runs + 1
    bench.recorder.part("subscriptions", runs * len(cells))
    for table, bound in ((SEND_TIME, BOUND), (STORAGE, BOUND), (MAKING, None)):
        bench.recorder.compare(TargetComparison(table, other, first, bound, at_least=False))
    root = bench.new_path("subscriptions")
    everything = [(table, cell) for table in (SEND_TIME, STORAGE, MAKING) for cell in cells]
    if not bench.recorder.attempt(everything, lambda: _make(bench, root, cells)):
        return
    for number in range(runs):
        for cell, count in cells.items():
            bench.recorder.doing(cell)

            def one(cell: str = cell, count: int = count) -> None:
                _send(bench, root, cell, count, number)  # noqa: B023

            bench.recorder.attempt([(SEND_TIME, cell), (STORAGE, cell)], one)
            bench.recorder.step()


def _make(bench: Workbench, root: Path, cells: dict[str, int]) -> None:
    import spark_jms

    topics = {f"topic-{count}": {"kind": "topic"} for count in cells.values()}
    spark_jms.apply(str(root), {"destinations": topics})
    for cell, count in cells.items():
        bench.recorder.doing(f"making {cell}")
        with Meter() as meter:
            written = _written(root, f"topic-{count}", functools.partial(_subscribe, root, count))
        for number in (0, 1):  # shown as cold, and counted once
            bench.recorder.sample(
                Sample(MAKING, cell, number, written, "bytes", meter.seconds, meter.noise), show=False
            )


def _subscribe(root: Path, count: int) -> None:
    from spark_jms.log.destinations.declarations import create_subscription
    from spark_jms.log.destinations.domain import Domain

    log = Domain(str(root)).log(f"topic-{count}")
    for number in range(count):
        create_subscription(log, f"billing-{number:04d}", lambda snapshot: {0: snapshot.last_sequence(0)})


def _send(bench: Workbench, root: Path, cell: str, count: int, number: int) -> None:
    import spark_jms

    topic, times_ms = f"topic-{count}", []
    with Meter() as meter, calls.idle_senders(), spark_jms.connect(str(root), housekeeping=False) as context:
        producer = context.producer(topic)

        def send() -> None:
            for _ in range(SENDS):
                messages = [{"body": os.urandom(1000)} for _ in range(MESSAGES)]
                start = time.perf_counter()
                producer.send_many(messages)
                times_ms.append((time.perf_counter() - start) * 1000)

        written = _written(root, topic, send)
    median = sorted(times_ms)[SENDS // 2]
    bench.recorder.sample(Sample(SEND_TIME, cell, number, median, "ms", meter.seconds, meter.noise))
    bench.recorder.sample(Sample(STORAGE, cell, number, written, "bytes", meter.seconds, meter.noise), show=False)


def _written(root: Path, topic: str, action: Callable[[], object]) -> float:
    before = _bytes(root / topic)
    action()
    return _bytes(root / topic) - before


def _bytes(folder: Path) -> float:
    return float(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()))
