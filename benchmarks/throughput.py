"""Sink and source: all peers in turn, A B C A B C …, so that a drift of the machine hits them all."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from benchmarks.errors import CellFailedError
from benchmarks.jmsq import ALL, TWO
from benchmarks.measure import input_directory, input_stream, run_to_end, settle
from benchmarks.peers import ThroughputPeer
from benchmarks.results import TargetComparison
from benchmarks.workbench import Workbench

SINK, SOURCE = "sink", "source"
BOUNDS = {(SINK, "jmsq"): 1.25, (SOURCE, ALL): 1.6, (SOURCE, TWO): 2.5}
NUMBERS_PER_RUN = 10


def run(bench: Workbench, peers: Sequence[ThroughputPeer]) -> None:
    """One cold cycle and `--runs` counted ones: every sink, then every source over what its own sink wrote."""
    cycles = bench.options.runs + 1
    bench.recorder.part("sink and source", cycles * len(_cells(bench, peers)))
    for table, cell in _cells(bench, peers):
        if cell != "spark-kafka":
            bench.recorder.compare(TargetComparison(table, cell, "spark-kafka", BOUNDS.get((table, cell))))
    for cycle in range(cycles):
        first = cycle * NUMBERS_PER_RUN
        with contextlib.ExitStack() as stack:
            filled = []
            for peer in peers:
                stack.callback(_end, bench, peer, first)
                if _fill(bench, peer, cycle, first, counted=bench.options.wants(SINK)):
                    filled.append(peer)
            if bench.options.wants(SOURCE):
                for index in range(max((len(peer.source_cells) for peer in filled), default=0)):
                    for peer in filled:
                        if index < len(peer.source_cells):
                            _read(bench, peer, cycle, first, index)


def _cells(bench: Workbench, peers: Sequence[ThroughputPeer]) -> list[tuple[str, str]]:
    sinks = [(SINK, peer.sink_cell) for peer in peers]
    sources = [(SOURCE, cell) for peer in peers for cell in peer.source_cells]
    return [(table, cell) for table, cell in (*sinks, *sources) if bench.options.wants(table)]


def _end(bench: Workbench, peer: ThroughputPeer, number: int) -> None:
    """A destination that cannot be deleted costs disk, not a figure: report it and continue."""
    try:
        peer.end(number)
    except Exception as error:  # noqa: BLE001 - reported on the console
        bench.recorder.console.print(f"  could not delete destination {number} of {peer.sink_cell}: {error}")


def _fill(bench: Workbench, peer: ThroughputPeer, cycle: int, number: int, *, counted: bool) -> bool:
    """The sink cell; uncounted, the same work without a figure, for a source to read. True if the data was written."""
    rows, recorder = bench.options.rows, bench.recorder
    recorder.doing(f"sink {peer.sink_cell}")
    if not recorder.attempt(_cells(bench, [peer]), lambda: peer.begin(number)):
        return False
    settle(bench.spark)

    def write() -> dict[str, float | str]:
        writer = peer.sink(input_stream(bench.spark, input_directory(bench.cache, rows)), number)
        return run_to_end(writer.option("checkpointLocation", str(bench.new_path("checkpoint"))), rows)

    sources = [(table, cell) for table, cell in _cells(bench, [peer]) if table == SOURCE]
    if not counted:
        return recorder.attempt(sources, write)
    done = recorder.rate(SINK, peer.sink_cell, cycle, rows, write)
    if not done:
        for table, cell in sources:
            recorder.absent(table, cell, CellFailedError("nothing to read: its sink failed"))
    return done


def _read(bench: Workbench, peer: ThroughputPeer, cycle: int, first: int, index: int) -> None:
    """One source cell. Reading empties a queue, so later cells of such a peer get a copy, filled uncounted."""
    cell, number = peer.source_cells[index], first
    with contextlib.ExitStack() as stack:
        if peer.consumes and index > 0:
            number = first + index
            stack.callback(_end, bench, peer, number)
            if not _fill(bench, peer, cycle, number, counted=False):
                return
        bench.recorder.doing(f"source {cell}")
        settle(bench.spark)

        def read() -> dict[str, float | str]:
            writer = peer.source(cell, number).writeStream.format("noop")
            return run_to_end(
                writer.option("checkpointLocation", str(bench.new_path("checkpoint"))), bench.options.rows
            )

        bench.recorder.rate(SOURCE, cell, cycle, bench.options.rows, read)
