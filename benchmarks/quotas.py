"""What a quota costs its senders, while there is room (T1): single sends of a client, and batches of Spark.

Both destinations are in one root, and the cells of a pair alternate, those of Spark batch by batch. Single sends count by the CPU
time of their process, which a busy machine disturbs least.
"""

from __future__ import annotations

import shutil
import time
from functools import partial
from pathlib import Path

from benchmarks import calls
from benchmarks.latency import PRIME, payload
from benchmarks.measure import Meter
from benchmarks.results import Sample, TargetComparison
from benchmarks.workbench import Workbench

SENDS, BATCHES = "quotas: single sends", "quotas: batches of Spark"
WITHOUT, WITH = "no quota", "a quota with room"
DESTINATIONS = {WITHOUT: "free", WITH: "limited"}
WINDOW_S, QUICK_WINDOW_S = 5.0, 0.2
ROWS, QUICK_ROWS = 20_000, 1_000  # of a batch
BATCH_COUNT, QUICK_BATCH_COUNT = 10, 1
MAXIMUM = 100_000_000


def run(bench: Workbench) -> None:
    rounds, cells = bench.options.runs + 1, list(DESTINATIONS)
    bench.recorder.part("quotas", rounds * (len(cells) + 1))
    bench.recorder.compare(TargetComparison(SENDS, WITH, WITHOUT, 0.7))
    bench.recorder.compare(TargetComparison(BATCHES, WITH, WITHOUT, 0.9))
    root = bench.new_path("quotas")
    try:
        _apply(root)
        for number in range(rounds):
            for cell in _turn(number):
                bench.recorder.doing(f"{SENDS}, {cell}")
                bench.recorder.attempt([(SENDS, cell)], partial(_single_sends, bench, root, cell, number))
                bench.recorder.step()
            bench.recorder.doing(BATCHES)
            bench.recorder.attempt([(BATCHES, cell) for cell in cells], partial(_batches, bench, root, number))
            bench.recorder.step()
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _apply(root: Path) -> None:
    import spark_jms

    root.mkdir(parents=True, exist_ok=True)
    quotas = {"large": {"messagesMaximum": MAXIMUM}}
    destinations = {"free": {"kind": "queue"}, "limited": {"kind": "queue", "quota": "large"}}
    spark_jms.apply(str(root), {"quotas": quotas, "destinations": destinations})


def _single_sends(bench: Workbench, root: Path, cell: str, number: int) -> None:
    import spark_jms

    window_s, text = QUICK_WINDOW_S if bench.options.quick else WINDOW_S, payload(PRIME).decode()
    with spark_jms.connect(str(root), housekeeping=False) as context, Meter() as meter:
        producer = context.producer(DESTINATIONS[cell])
        stop, begun_s, count = time.perf_counter() + window_s, time.process_time(), 0
        while time.perf_counter() < stop:
            producer.send(text=text)
            count += 1
        rate = count / (time.process_time() - begun_s)
    bench.recorder.sample(Sample(SENDS, cell, number, rate, "messages/CPU s", meter.seconds, meter.noise), show=False)


def _batches(bench: Workbench, root: Path, number: int) -> None:
    rows, count = (QUICK_ROWS, QUICK_BATCH_COUNT) if bench.options.quick else (ROWS, BATCH_COUNT)
    seconds = dict.fromkeys(DESTINATIONS, 0.0)
    with Meter() as meter:
        for turn in range(number, number + count):
            for cell in _turn(turn):
                begun_s = time.perf_counter()
                calls.fill(bench.spark, root, DESTINATIONS[cell], rows, 2)
                seconds[cell] += time.perf_counter() - begun_s
    for cell, taken_s in seconds.items():
        rate = rows * count / taken_s
        bench.recorder.sample(Sample(BATCHES, cell, number, rate, "messages/s", taken_s, meter.noise), show=False)


def _turn(number: int) -> list[str]:
    """The cells: each comes first every other time."""
    return list(DESTINATIONS) if number % 2 else list(reversed(DESTINATIONS))
