"""The pipeline of a consumer from 1 to 1,000 messages, and the performance preference of a destination (T9, T13).

**pipeline** receives a backlog of small messages, acknowledging each tenth (with all before it), with so many messages claimed at a
time. **preference** receives what another thread sends at a steady rate, and counts the messages of a claim: the fewer claims, the
less load, and the longer a message waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from benchmarks import calls
from benchmarks.measure import Meter
from benchmarks.results import Sample, TargetComparison
from benchmarks.stats import percentile
from benchmarks.workbench import Workbench

RATE, WAIT, CLAIM = (
    "pipeline: messages received",
    "preference: time to delivery, p50",
    "preference: messages in a claim",
)
MAXIMA = (1, 10, 21, 100, 1000)
DEFAULT = "10 at a time"
PREFERENCES = (0, 25, 50, 75, 100)
UNCHANGED = "preference 25"
MESSAGES, QUICK_MESSAGES = 5_000, 200
SENT, QUICK_SENT, EVERY_S = 500, 50, 0.01
ACKNOWLEDGE_EVERY = 10
LIMIT_S = 60.0


def run(bench: Workbench) -> None:
    runs = bench.options.runs + 1
    pipelines, preferences = {f"{n:,} at a time": n for n in MAXIMA}, {f"preference {p}": p for p in PREFERENCES}
    bench.recorder.part("pipeline", runs * (len(pipelines) + len(preferences)))
    for cell in pipelines:
        if cell != DEFAULT:
            bench.recorder.compare(TargetComparison(RATE, cell, DEFAULT, None))
    for table in (WAIT, CLAIM):
        for cell in preferences:
            if cell != UNCHANGED:
                bench.recorder.compare(TargetComparison(table, cell, UNCHANGED, None, at_least=False))
    for number in range(runs):
        for cell, maximum in pipelines.items():
            _attempt(bench, [(RATE, cell)], cell, lambda n=number, c=cell, m=maximum: _drain(bench, c, m, n))
        for cell, preference in preferences.items():
            tables = [(WAIT, cell), (CLAIM, cell)]
            _attempt(bench, tables, cell, lambda n=number, c=cell, p=preference: _follow(bench, c, p, n))


def _attempt(bench: Workbench, cells: list[tuple[str, str]], cell: str, action: Callable[[], None]) -> None:
    bench.recorder.doing(cell)
    bench.recorder.attempt(cells, action)
    bench.recorder.step()


def _drain(bench: Workbench, cell: str, maximum: int, number: int) -> None:
    import spark_jms

    root = bench.new_path("pipeline")
    count = QUICK_MESSAGES if bench.options.quick else MESSAGES
    calls.apply(root, {"orders": {"kind": "queue"}})
    with spark_jms.connect(str(root), housekeeping=False) as context:
        context.producer("orders").send_many({"text": f"{n:0100d}"} for n in range(count))
        with context.consumer("orders", prefetch=maximum) as consumer, Meter() as meter:
            for received in range(1, count + 1):
                message = consumer.receive(LIMIT_S)
                assert message is not None
                if received % ACKNOWLEDGE_EVERY == 0:
                    message.acknowledge()
    sample = Sample(RATE, cell, number, count / meter.seconds, "messages/s", meter.seconds, meter.noise)
    bench.recorder.sample(sample, show=False)


def _follow(bench: Workbench, cell: str, preference: int, number: int) -> None:
    import spark_jms

    root = bench.new_path("preference")
    count = QUICK_SENT if bench.options.quick else SENT
    calls.apply(root, {"orders": {"kind": "queue", "messagingPerformancePreference": preference}})
    waits_ms, claims = [], 0
    with spark_jms.connect(str(root), housekeeping=False) as context:
        producer = context.producer("orders")

        def send() -> None:
            begun = time.monotonic()
            for n in range(count):
                time.sleep(max(begun + n * EVERY_S - time.monotonic(), 0))
                producer.send(body=str(time.time_ns()).encode())

        sender = threading.Thread(target=send)
        with context.consumer("orders", acknowledge="dups-ok") as consumer, Meter() as meter:
            sender.start()
            for _ in range(count):
                claims += consumer.statistics().prefetched == 0
                message = consumer.receive(LIMIT_S)
                assert message is not None
                waits_ms.append((time.time_ns() - int(message.body or b"0")) / 1e6)
            sender.join()
    for table, value, unit in ((WAIT, percentile(waits_ms, 50), "ms"), (CLAIM, count / claims, "messages")):
        bench.recorder.sample(Sample(table, cell, number, value, unit, meter.seconds, meter.noise), show=False)
