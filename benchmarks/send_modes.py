"""Single sends of 1 KiB by one thread: blocking, asynchronous, one-way by its window, and by coroutines (T11, M7).

A cell sends for a window of time to a destination of its own; its time ends when every message is in the table.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import calls
from benchmarks.errors import CellFailedError
from benchmarks.latency import PRIME, payload
from benchmarks.measure import Meter
from benchmarks.results import Sample, TargetComparison
from benchmarks.workbench import Workbench

TABLE = "send modes"
BLOCKING, ASYNCHRONOUS, COROUTINES = "blocking", "asynchronous", "asyncio, 100 coroutines"
WINDOWS = (1, 10, 100, 300, 1000)
ONE_WAY = {f"one-way, window {window:,}": window for window in WINDOWS}
WINDOW_S, QUICK_WINDOW_S = 5.0, 0.2
AT_ONCE = 100
DESTINATION = "plain"
Measure = Callable[[Path, str, float], int]


def run(bench: Workbench) -> None:
    cells: dict[str, Measure] = {
        BLOCKING: _blocking,
        ASYNCHRONOUS: _asynchronous,
        **{cell: partial(_one_way, window=window) for cell, window in ONE_WAY.items()},
        COROUTINES: _coroutines,
    }
    rounds = bench.options.runs + 1
    bench.recorder.part("send modes", rounds * len(cells))
    for cell in cells:
        if cell != BLOCKING:
            bench.recorder.compare(TargetComparison(TABLE, cell, BLOCKING, None))
    for number in range(rounds):
        for cell, measure in cells.items():
            bench.recorder.doing(f"send modes: {cell}")
            bench.recorder.attempt([(TABLE, cell)], partial(_sample, bench, cell, measure, number))
            bench.recorder.step()


def _sample(bench: Workbench, cell: str, measure: Measure, number: int) -> None:
    root = bench.new_path("modes")
    window_s = QUICK_WINDOW_S if bench.options.quick else WINDOW_S
    try:
        calls.apply(root, {DESTINATION: {"kind": "queue"}})
        os.sync()
        with Meter() as meter:
            start = time.perf_counter()
            sent = measure(root, payload(PRIME).decode(), window_s)
            rate = sent / (time.perf_counter() - start)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    bench.recorder.sample(Sample(TABLE, cell, number, rate, "messages/s", meter.seconds, meter.noise))


def _blocking(root: Path, text: str, window_s: float, factory: Any = None, **more: Any) -> int:
    import spark_jms

    with spark_jms.connect(str(root), connection_factory=factory) as context:
        with context.producer(DESTINATION) as producer:
            stop, count = time.perf_counter() + window_s, 0
            while time.perf_counter() < stop:
                producer.send(text=text, delivery_mode="NON_PERSISTENT", **more)
                count += 1
        if (there := producer.statistics().messages) != count:
            raise CellFailedError(f"{there:,} of {count:,} messages were sent")
    return count


def _asynchronous(root: Path, text: str, window_s: float) -> int:
    from spark_jms.client import Completion

    return _blocking(root, text, window_s, completion=Completion(lambda _: None, lambda *_: None))


def _one_way(root: Path, text: str, window_s: float, *, window: int) -> int:
    from spark_jms.client import ConnectionFactory

    factory = ConnectionFactory(one_way_send_mode="enabled", one_way_send_window_size=window)
    return _blocking(root, text, window_s, factory)


def _coroutines(root: Path, text: str, window_s: float) -> int:
    return asyncio.run(_send_from_coroutines(root, text, window_s))


async def _send_from_coroutines(root: Path, text: str, window_s: float) -> int:
    from spark_jms import aio

    async with aio.connect(str(root)) as context, context.producer(DESTINATION) as producer:
        stop = time.perf_counter() + window_s

        async def send() -> int:
            count = 0
            while time.perf_counter() < stop:
                await producer.send(text=text, delivery_mode="NON_PERSISTENT")
                count += 1
            return count

        return sum(await asyncio.gather(*(send() for _ in range(AT_ONCE))))
