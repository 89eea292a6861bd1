"""A message sent and received beside a backlog that its consumer cannot have now, of 1,000 messages and of 1,000,000 (C9, C12, T10).

*Delayed*: they are due tomorrow. *Behind a unit*: another consumer has the first message of their unit of order, or of each of
1,000 units, and has not acknowledged it. *Scattered*: every second message of the backlog is finished. One process sends a message
and receives it, again and again; then the same consumer waits, and nothing is sent. Both are told in processor time of that process.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import calls
from benchmarks.errors import CellFailedError
from benchmarks.measure import Meter
from benchmarks.results import Sample, TargetComparison
from benchmarks.workbench import Workbench

MESSAGE, WAITING = "beside a blocked backlog: CPU of a message", "beside a blocked backlog: CPU of a waiting consumer"
QUEUE = "orders"
FEW, MANY, QUICK_MANY = 1_000, 1_000_000, 10_000
BOUND = 2.0
SEND_MESSAGES = 10_000
MESSAGES, QUICK_MESSAGES = 200, 20
WAIT_S, QUICK_WAIT_S = 10.0, 1.0
WARM = 10
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Backlog:
    """`units`: so many that another consumer has; 0: its messages are delayed. `scattered`: each is beside a finished one."""

    kind: str
    units: int = 0
    scattered: bool = False


KINDS = (
    Backlog("delayed"),
    Backlog("behind a unit", 1),
    Backlog("behind 1,000 units", 1_000),
    Backlog("behind a unit, scattered", 1, scattered=True),
)


def run(bench: Workbench) -> None:
    sizes = (FEW, QUICK_MANY if bench.options.quick else MANY)
    runs = bench.options.runs + 1
    bench.recorder.part("blocked", len(KINDS) * len(sizes))
    for backlog in KINDS:
        for table in (MESSAGE, WAITING):
            few, many = (_cell(backlog, size) for size in sizes)
            bench.recorder.compare(TargetComparison(table, many, few, BOUND, at_least=False))
    for backlog in KINDS:
        for size in sizes:
            cell = _cell(backlog, size)
            bench.recorder.doing(cell)
            cells = [(MESSAGE, cell), (WAITING, cell)]
            bench.recorder.attempt(cells, lambda b=backlog, s=size, c=cell: _measure(bench, b, s, c, runs))
            bench.recorder.step()


def _cell(backlog: Backlog, size: int) -> str:
    return f"{size:,} {backlog.kind}"


def _measure(bench: Workbench, backlog: Backlog, size: int, cell: str, runs: int) -> None:
    """All runs beside one backlog: it takes longer to send than to measure."""
    quick = bench.options.quick
    count, wait_s = (QUICK_MESSAGES, QUICK_WAIT_S) if quick else (MESSAGES, WAIT_S)
    root = bench.new_path("blocked")
    try:
        with calls.idle_senders(), _consumer(root, backlog, size) as (exchange, wait):
            for number in range(runs):
                with Meter() as meter:
                    used_ms = _used_s(lambda: [exchange() for _ in range(count)]) * 1000 / count
                bench.recorder.sample(Sample(MESSAGE, cell, number, used_ms, "ms", meter.seconds, meter.noise))
                with Meter() as meter:
                    share = _used_s(lambda: wait(wait_s)) / wait_s * 100
                bench.recorder.sample(Sample(WAITING, cell, number, share, "% of a core", meter.seconds, meter.noise))
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _used_s(action: Callable[[], object]) -> float:
    before_s = time.process_time()
    action()
    return time.process_time() - before_s


@contextlib.contextmanager
def _consumer(root: Path, backlog: Backlog, size: int) -> Iterator[tuple[Callable[[], None], Callable[[float], None]]]:
    """A call that sends a message and receives it, and one that waits so long for none."""
    import spark_jms

    calls.apply(root, {QUEUE: {"kind": "queue"}})
    with spark_jms.connect(str(root), housekeeping=False) as others, contextlib.ExitStack() as stack:
        if backlog.units:
            stack.enter_context(_units_taken(others, backlog.units))
        _fill(others, backlog, size)
        with spark_jms.connect(str(root), housekeeping=False) as context:
            producer = context.producer(QUEUE)
            consumer = context.consumer(QUEUE, acknowledge="auto")

            def wait(timeout_s: float) -> None:
                if consumer.receive(timeout_s) is not None:
                    raise CellFailedError("a blocked message was received")

            def exchange() -> None:
                producer.send(text="free", group_id="free")
                message = consumer.receive(TIMEOUT_S)
                if message is None or message.text != "free":
                    raise CellFailedError("the message that was sent did not come")

            wait(0)
            for _ in range(WARM):
                exchange()
            yield exchange, wait


@contextlib.contextmanager
def _units_taken(context: Any, units: int) -> Iterator[None]:
    """A consumer has the first message of each."""
    context.producer(QUEUE).send_many({"text": "first", "group_id": f"unit {n}"} for n in range(units))
    with context.consumer(QUEUE, acknowledge="client", prefetch=units) as consumer:
        for _ in range(units):
            if consumer.receive(TIMEOUT_S) is None:
                raise CellFailedError("the first messages of the units did not come")
        yield


def _fill(context: Any, backlog: Backlog, size: int) -> None:
    producer, rows = context.producer(QUEUE), size * (1 + backlog.scattered)
    for first in range(0, rows, SEND_MESSAGES):
        count = min(SEND_MESSAGES, rows - first)
        if not backlog.units:
            producer.send_many([{"text": "blocked", "delay": "1 d"}] * count)
        elif backlog.scattered:
            units = [None if n % 2 else "unit 0" for n in range(count)]
            producer.send_table(pa.table({"text": ["blocked"] * count, "JMSXGroupID": pa.array(units, pa.string())}))
        else:
            units = [f"unit {n % backlog.units}" for n in range(count)]
            producer.send_table(pa.table({"text": ["blocked"] * count, "JMSXGroupID": units}))
    if backlog.scattered:
        with context.consumer(QUEUE, acknowledge="client", prefetch=SEND_MESSAGES) as consumer:
            for n in range(size):
                message = consumer.receive(TIMEOUT_S)
                if message is None:
                    raise CellFailedError("the messages between the blocked ones did not come")
                if n % SEND_MESSAGES == SEND_MESSAGES - 1 or n == size - 1:
                    message.acknowledge()
