"""The services that are streaming aggregations (T3, T6, M12): many messages due at one time, the feed beside a fast sender, and what
both queries cost while nothing happens.

**Due**: so many messages of one queue are over within one minute, and a hundred of another queue in the same one. The query of
expiration starts behind that minute: the time counts from the batch in which its timers fire. The map of due messages is what it
has in its state. **Feed**: a producer sends at a fixed rate while a query reads the feed; what counts is all messages over the
time from the first send to the end of the batch that has the last one. **Idle**: processor time of both queries, with Spark's and
their Python processes, while nothing is sent.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import calls
from benchmarks.errors import CellFailedError
from benchmarks.measure import Meter, process_times, spent_s
from benchmarks.results import Sample, TargetComparison
from benchmarks.workbench import Workbench

EXPIRED, LATE, STATE = (
    "services: messages expired",
    "services: until the others have expired",
    "services: state of a member",
)
FEED, IDLE = "services: the change feed", "services: idle"
DUE, OTHERS, FEW = "many", "others", 100
MAP, SENT, READ = "map of due messages", "sent", "read"
DUE_MESSAGES, QUICK_DUE_MESSAGES, OF_ONE_SEND = 10_000_000, 20_000, 500_000
RATE, FEED_S, QUICK_FEED_S, SENDS_A_SECOND = 200_000, 20, 1, 10
IDLE_DESTINATIONS, QUICK_IDLE_DESTINATIONS = (5, 500), (2, 10)
IDLE_S, QUICK_IDLE_S = 90.0, 3.0
TRIGGER_S, PATIENCE_S, READY = 1.0, 1_800.0, 0.05
MINUTE_MS = 60_000


def run(bench: Workbench) -> None:
    quick, runs = bench.options.quick, bench.options.runs + 1
    counts = QUICK_IDLE_DESTINATIONS if quick else IDLE_DESTINATIONS
    bench.recorder.part("services", runs * (2 + len(counts)))
    bench.recorder.compare(TargetComparison(FEED, READ, SENT, 0.9))
    bench.recorder.compare(TargetComparison(IDLE, _named(counts[1]), _named(counts[0])))
    for number in range(runs):
        cells = [(EXPIRED, DUE), (LATE, OTHERS), (STATE, MAP)]
        _cell(bench, "messages that fall due", cells, partial(_due, bench, number))
        _cell(bench, FEED, [(FEED, cell) for cell in (SENT, READ)], partial(_feed, bench, number))
        for count in counts:
            _cell(bench, f"{IDLE}, {_named(count)}", [(IDLE, _named(count))], partial(_idle, bench, number, count))


def _named(destinations: int) -> str:
    return f"{destinations} destinations"


def _cell(bench: Workbench, text: str, cells: list[tuple[str, str]], measure: Callable[[Path], None]) -> None:
    root = bench.new_path("services")
    bench.recorder.doing(text)
    try:
        bench.recorder.attempt(cells, partial(measure, root))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    bench.recorder.step()


def _due(bench: Workbench, number: int, root: Path) -> None:
    count = QUICK_DUE_MESSAGES if bench.options.quick else DUE_MESSAGES
    calls.apply(root / "domain", {name: {"kind": "queue"} for name in (DUE, OTHERS)})
    minute_ms = int(time.time() * 1000) // MINUTE_MS * MINUTE_MS - 2 * MINUTE_MS
    for name, messages in ((DUE, count), (OTHERS, FEW)):
        _send_over(root, name, messages, minute_ms)
    started = calls.expiration(bench.spark, root / "domain", root / "checkpoint", TRIGGER_S)
    with Meter() as meter, calls.expirations(root / "domain") as expired, started as query:
        _await(query, lambda: expired(OTHERS) == FEW)
        others_s = time.time()
        _await(query, lambda: expired(DUE) == count)
        done_s = time.time()
        _await(query, lambda: bool(query.recentProgress))  # once its batch is done
        fired_s = _first_batch_s(query)
    for table, cell, value, unit in (
        (EXPIRED, DUE, count / (done_s - fired_s), "messages/s"),
        (LATE, OTHERS, (others_s - fired_s) * 1000, "ms"),
        (STATE, MAP, float(calls.due_map_bytes(root / "domain", DUE)), "bytes"),
    ):
        bench.recorder.sample(Sample(table, cell, number, value, unit, meter.seconds, meter.noise))


def _send_over(root: Path, name: str, messages: int, minute_ms: int) -> None:
    """Their time was over in this minute."""
    import spark_jms

    with calls.idle_senders(), spark_jms.connect(str(root / "domain"), housekeeping=False) as context:
        producer = context.producer(name)
        for first in range(0, messages, OF_ONE_SEND):
            size = min(OF_ONE_SEND, messages - first)
            over = pa.array([minute_ms + n % MINUTE_MS for n in range(size)], pa.int64())
            producer.send_table(pa.table({"text": pa.repeat("x", size), "JMSExpiration": over}))


def _first_batch_s(query: Any) -> float:
    """When the batch began in which the timers fired: they are in the past, so it is the first one."""
    return datetime.fromisoformat(query.recentProgress[0].timestamp).timestamp()


def _feed(bench: Workbench, number: int, root: Path) -> None:
    seconds = QUICK_FEED_S if bench.options.quick else FEED_S
    calls.apply(root / "domain", {"orders": {"kind": "distributed-queue", "members": 4}})
    total = RATE * seconds
    with Meter() as meter, reading(bench, root) as query:
        _send_paced(root, 1, rows=1, sends=1)  # an idle query has no batch
        _await(query, lambda: calls.feed_position(query) == 1)
        begun_s = time.time()
        sender = threading.Thread(target=_send_paced, args=(root, seconds), daemon=True)
        sender.start()
        sender.join()
        sent_s = time.time() - begun_s
        _await(query, lambda: calls.feed_position(query) == total + 1)
        read_s = time.time() - begun_s
    for cell, taken_s in ((SENT, sent_s), (READ, read_s)):
        sample = Sample(FEED, cell, number, total / taken_s, "messages/s", meter.seconds, meter.noise)
        bench.recorder.sample(sample)


def _send_paced(root: Path, seconds: int, rows: int = RATE // SENDS_A_SECOND, sends: int = SENDS_A_SECOND) -> None:
    """So many sends a second, each of so many rows."""
    import spark_jms

    table = pa.table({"text": pa.repeat("x", rows)})
    with calls.idle_senders(), spark_jms.connect(str(root / "domain"), housekeeping=False) as context:
        producer, begun_s = context.producer("orders"), time.perf_counter()
        for turn in range(seconds * sends):
            time.sleep(max(begun_s + turn / sends - time.perf_counter(), 0))
            producer.send_table(table)


@contextmanager
def reading(bench: Workbench, root: Path) -> Iterator[Any]:
    """A query that reads every row of the feed, and counts them by kind."""
    feed = bench.spark.readStream.format("jmsq").option("root", str(root / "domain")).option("destination", "*")
    rows = feed.option("view", "changes").load().groupBy("kind").sum("messages")
    writer = rows.writeStream.format("noop").outputMode("update").trigger(processingTime=f"{TRIGGER_S} seconds")
    query = writer.option("checkpointLocation", str(root / "checkpoint")).start()
    try:
        yield query
    finally:
        query.stop()


def _idle(bench: Workbench, number: int, count: int, root: Path) -> None:
    seconds = QUICK_IDLE_S if bench.options.quick else IDLE_S
    calls.apply(root / "domain", {f"orders-{n}": {"kind": "queue"} for n in range(count)})
    for n in range(0, count, max(count // 5, 1)):
        _send_over(root, f"orders-{n}", FEW, int(time.time() * 1000) + 3_600_000)
    expiring = calls.expiration(bench.spark, root / "domain", root / "expiration", calls.EXPIRATION_EVERY_S)
    with expiring as expiration, calls.usage(bench.spark, root / "domain", root / "usage") as usage:
        for query in (expiration, usage):
            _await(query, lambda query=query: any(one.numInputRows for one in query.recentProgress))  # type: ignore[misc]
        time.sleep(min(seconds, 5.0))  # what the start leaves behind
        with Meter() as meter:
            before, begun_s = process_times(), time.perf_counter()
            time.sleep(seconds)
            spent, taken_s = sum(spent_s(before, process_times()).values()), time.perf_counter() - begun_s
    share = 100 * spent / taken_s
    bench.recorder.sample(Sample(IDLE, _named(count), number, share, "% of a core", meter.seconds, meter.noise))


def _await(query: Any, reached: Callable[[], bool]) -> None:
    """Raises CellFailedError when the query ends before, or never gets there."""
    until_s = time.monotonic() + PATIENCE_S
    while not reached():
        if query.exception() is not None:
            raise CellFailedError(f"the query has ended: {query.exception()}")
        if time.monotonic() > until_s:
            raise CellFailedError(f"not done after {PATIENCE_S:.0f} s")
        time.sleep(READY)
