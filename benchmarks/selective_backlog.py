"""A selector that takes one message of a thousand, on a property of every message, beside counting the same property (C7).

Each cell looks at the whole backlog of one queue. *Finding* is a plan: the consumer opens the destination and claims what the
selector takes. *Receiving* also reads and decodes these messages, one call each. Both release them, so every run finds the
same ones. Counting reads the column of all files of the Delta table with Arrow, in one thread, as the planner does, and claims
nothing. Two copies of the messages: in one queue the properties are promoted. There are two properties: the values of one are
scattered over all files, those of the other grow from the first message to the last.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks import calls
from benchmarks.errors import CellFailedError
from benchmarks.measure import Meter
from benchmarks.results import Sample, TargetComparison
from benchmarks.workbench import Workbench

TABLE = "selector"
COUNT, COUNT_COLUMN = "counting a property", "counting a promoted property"
KINDS = ("a property", "a promoted one, scattered", "a promoted one, clustered")
FIND = [f"finding by {kind}" for kind in KINDS]
RECEIVE = [f"receiving by {kind}" for kind in KINDS]
BOUNDS = dict(zip(FIND, (3.0, 1.0, 0.2), strict=True))
MATCHING = 1000  # one message in so many
SEND_MESSAGES = 10_000
PLAIN_QUEUE, PROMOTED_QUEUE = "plain", "promoted"
PROPERTIES = ("scattered", "clustered")


Action = Callable[[Path, str, str, int], float]
"""Takes the domain, a queue, a property and the number of messages that match; returns the milliseconds."""


def run(bench: Workbench) -> None:
    places = ((PLAIN_QUEUE, "scattered"), (PROMOTED_QUEUE, "scattered"), (PROMOTED_QUEUE, "clustered"))
    cells: dict[str, tuple[Action, str, str]] = {
        COUNT: (_count_map, PLAIN_QUEUE, "scattered"),
        COUNT_COLUMN: (_count_column, PROMOTED_QUEUE, "scattered"),
        **{cell: (_find, *place) for cell, place in zip(FIND, places, strict=True)},
        **{cell: (_receive, *place) for cell, place in zip(RECEIVE, places, strict=True)},
    }
    runs = bench.options.runs + 1
    bench.recorder.part(TABLE, runs * len(cells))
    for cell in cells:
        if cell != COUNT:
            bench.recorder.compare(TargetComparison(TABLE, cell, COUNT, BOUNDS.get(cell), at_least=False))
    root, rows = bench.new_path("selectors"), bench.options.rows
    bench.recorder.doing(f"two queues of {rows:,} messages")
    if not bench.recorder.attempt([(TABLE, cell) for cell in cells], lambda: fill(root, rows)):
        return
    for number in range(runs):
        for cell, (action, queue, name) in cells.items():
            bench.recorder.doing(f"{TABLE}: {cell}")

            def one(cell: str = cell, action: Action = action, queue: str = queue, name: str = name) -> None:
                with Meter() as meter:
                    value = action(root, queue, name, rows)
                bench.recorder.sample(Sample(TABLE, cell, number, value, "ms", value / 1000, meter.noise))  # noqa: B023

            bench.recorder.attempt([(TABLE, cell)], one)
            bench.recorder.step()


def fill(root: Path, rows: int) -> None:
    """The values of both properties are 0 to `rows` - 1, each once; those of `scattered` step through them."""
    import spark_jms

    queue = {"kind": "queue"}
    promoted = {**queue, "promotedProperties": [f"{name}:double" for name in PROPERTIES]}
    spark_jms.apply(str(root), {"destinations": {PLAIN_QUEUE: queue, PROMOTED_QUEUE: promoted}})
    with spark_jms.connect(str(root), housekeeping=False) as context:
        producers = [context.producer(PLAIN_QUEUE), context.producer(PROMOTED_QUEUE)]
        for table in _messages(rows):
            for producer in producers:
                producer.send_table(table)


def _messages(rows: int) -> Iterator[pa.Table]:
    step = next(n for n in range(7919, 2 * rows + 7920) if math.gcd(n, rows) == 1)
    for first in range(0, rows, SEND_MESSAGES):
        numbers = range(first, min(first + SEND_MESSAGES, rows))
        scattered = pa.array([n * step % rows for n in numbers], pa.float64())
        clustered = pa.array(list(numbers), pa.float64())
        colors = pa.array([("red", "green", "blue")[n % 3] for n in numbers])
        properties = pa.StructArray.from_arrays([scattered, clustered, colors], [*PROPERTIES, "color"])
        yield pa.table({"text": [f"{n:0100d}" for n in numbers], "properties": properties})


def _lowest(rows: int) -> int:
    """The smallest value that matches."""
    return rows - _matching(rows)


def _matching(rows: int) -> int:
    return len(range(0, rows, MATCHING))


def _timed(action: Callable[[], int], rows: int) -> float:
    """Milliseconds. Raises CellFailedError when the action does not find the messages that match."""
    start = time.perf_counter()
    found = action()
    elapsed_ms = (time.perf_counter() - start) * 1000
    if found != _matching(rows):
        raise CellFailedError(f"{found:,} messages match instead of {_matching(rows):,}")
    return elapsed_ms


def _find(root: Path, queue: str, name: str, rows: int) -> float:
    with calls.finder(root, queue, f"{name} >= {_lowest(rows)}", _matching(rows)) as find:
        return _timed(find, rows)


def _receive(root: Path, queue: str, name: str, rows: int) -> float:
    import spark_jms

    with (
        spark_jms.connect(str(root), housekeeping=False) as context,
        context.consumer(queue, selector=f"{name} >= {_lowest(rows)}", prefetch=10_000) as consumer,
    ):
        return _timed(lambda: sum(1 for _ in iter(lambda: consumer.receive(0), None)), rows)


def _count_map(root: Path, queue: str, name: str, rows: int) -> float:
    def values(table: pa.Table) -> pa.ChunkedArray:
        return pc.map_lookup(table.column("properties"), name, "last").cast(pa.float64())

    return _timed(lambda: _counted(root, queue, "properties", values, _lowest(rows)), rows)


def _count_column(root: Path, queue: str, name: str, rows: int) -> float:
    return _timed(lambda: _counted(root, queue, name, lambda table: table.column(name), _lowest(rows)), rows)


def _counted(root: Path, queue: str, column: str, values: Callable[[pa.Table], pa.ChunkedArray], lowest: int) -> int:
    from spark_jms.log.destinations.domain import Domain

    log, found = Domain(str(root)).log(queue), 0
    for file in log.refresh().member_files(0).files:
        with log.storage.open_input(file.path) as source:
            table = pq.ParquetFile(source, pre_buffer=False).read([column], use_threads=False)
        found += pc.sum(pc.greater_equal(values(table), lowest)).as_py() or 0
    return found
