"""Sink and source: all peers in turn, A B C A B C …, so that a drift of the machine hits them all.

A source is measured at two sizes, because a query's start is a part of its time: beside Delta's own streaming, and beside a generator
that reads nothing. What a query takes outside of its batches with rows, which is its start and a few short batches, is a table of
its own. Queries of Kafka and Delta write their checkpoints as their users' do, by Spark's default.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.errors import CellFailedError
from benchmarks.jmsq import ALL, TWO
from benchmarks.measure import OUTSIDE_S, input_directory, input_stream, run_to_end, settle
from benchmarks.peers import ThroughputPeer
from benchmarks.peers.generator import GENERATOR_ALL, GENERATOR_TWO
from benchmarks.results import Sample, TargetComparison
from benchmarks.workbench import Workbench, checkpoint_files

SINK, SOURCE = "sink", "source"
LARGE, START = "source, more messages", "source, outside of its batches"
BOUNDS = {(SINK, "jmsq"): 1.25, (SOURCE, ALL): 1.6, (SOURCE, TWO): 2.5}
SOURCE_BOUNDS = ((ALL, "delta-tuned", 1.0), (TWO, GENERATOR_TWO, 0.9))
START_BOUNDS = ((ALL, GENERATOR_ALL), (TWO, GENERATOR_TWO))
MOST_START_S = 0.5  # that a query takes longer outside of its batches than one of the generator
NUMBERS_PER_RUN = 10


@dataclass(frozen=True)
class Measured:
    """So many messages; the tables of their sinks and sources (None: not measured)."""

    rows: int
    sink: str | None
    source: str | None
    first: int  # of the numbers of the destinations


def run(bench: Workbench, peers: Sequence[ThroughputPeer]) -> None:
    wants = bench.options.wants
    size = Measured(bench.options.rows, SINK if wants(SINK) else None, SOURCE if wants(SOURCE) else None, 0)
    for table, cell in _cells(peers, size):
        if cell != "spark-kafka":
            bench.recorder.compare(TargetComparison(table, cell, "spark-kafka", BOUNDS.get((table, cell))))
    _cycles(bench, peers, size)


def run_large(bench: Workbench, peers: Sequence[ThroughputPeer]) -> None:
    """Sources over `--large-rows` messages."""
    _cycles(bench, peers, Measured(bench.options.large_rows, None, LARGE, 5_000))


def _cycles(bench: Workbench, peers: Sequence[ThroughputPeer], size: Measured) -> None:
    """One cold cycle and `--runs` counted ones: every sink, then every source over what its own sink wrote."""
    if size.source is not None:
        for cell, against, bound in SOURCE_BOUNDS:
            bench.recorder.compare(TargetComparison(size.source, cell, against, bound))
    if size.source == SOURCE:
        for cell, against in START_BOUNDS:
            bench.recorder.compare(TargetComparison(START, cell, against, MOST_START_S, at_least=False, unit="s"))
    cycles = bench.options.runs + 1
    bench.recorder.part(f"sink and source, {size.rows:,} messages", cycles * len(_cells(peers, size)))
    for cycle in range(cycles):
        at = replace(size, first=size.first + cycle * NUMBERS_PER_RUN)
        with contextlib.ExitStack() as stack:
            filled = []
            for peer in peers:
                stack.callback(_end, bench, peer, at.first)
                if _fill(bench, peer, cycle, at, at.first, counted=at.sink is not None):
                    filled.append(peer)
            if at.source is not None:
                for index in range(max((len(peer.source_cells) for peer in filled), default=0)):
                    for peer in filled:
                        if index < len(peer.source_cells):
                            _read(bench, peer, cycle, at, index)


def _cells(peers: Sequence[ThroughputPeer], size: Measured) -> list[tuple[str, str]]:
    sinks = [(size.sink, peer.sink_cell) for peer in peers]
    sources = [(size.source, cell) for peer in peers for cell in peer.source_cells]
    return [(table, cell) for table, cell in (*sinks, *sources) if table is not None and cell is not None]


def _end(bench: Workbench, peer: ThroughputPeer, number: int) -> None:
    """A destination that cannot be deleted costs disk, not a figure: report it and continue."""
    try:
        peer.end(number)
    except Exception as error:  # noqa: BLE001 - reported on the console
        bench.recorder.console.print(f"  could not delete destination {number} of {peer.sink_cell}: {error}")


def _fill(bench: Workbench, peer: ThroughputPeer, cycle: int, size: Measured, number: int, *, counted: bool) -> bool:
    """The sink cell; uncounted, the same work without a figure, for a source to read. True if the data was written."""
    if peer.sink_cell is None:
        return True
    rows, recorder = size.rows, bench.recorder
    recorder.doing(f"sink {peer.sink_cell}")
    if not recorder.attempt(_cells([peer], size), lambda: peer.begin(number)):
        return False
    settle(bench.spark)

    def write() -> dict[str, float | str]:
        writer = peer.sink(input_stream(bench.spark, input_directory(bench.cache, rows)), number)
        with checkpoint_files(bench.spark, peer.checkpoint_files):
            return run_to_end(writer.option("checkpointLocation", str(bench.new_path("checkpoint"))), rows)

    sources = [(table, cell) for table, cell in _cells([peer], size) if table == size.source]
    if not counted:
        return recorder.attempt(sources, write)
    done = recorder.rate(SINK, peer.sink_cell, cycle, rows, write)
    if not done:
        for table, cell in sources:
            recorder.absent(table, cell, CellFailedError("nothing to read: its sink failed"))
    return done


def _read(bench: Workbench, peer: ThroughputPeer, cycle: int, size: Measured, index: int) -> None:
    """One source cell. Reading empties a queue, so later cells of such a peer get a copy, filled uncounted."""
    assert size.source is not None
    cell, number = peer.source_cells[index], size.first
    with contextlib.ExitStack() as stack:
        if peer.consumes and index > 0:
            number = size.first + index
            stack.callback(_end, bench, peer, number)
            if not _fill(bench, peer, cycle, size, number, counted=False):
                return
        bench.recorder.doing(f"source {cell}")
        settle(bench.spark)

        def read() -> dict[str, float | str]:
            writer = peer.source(cell, number, size.rows).writeStream.format("noop")
            with checkpoint_files(bench.spark, peer.checkpoint_files):
                return run_to_end(writer.option("checkpointLocation", str(bench.new_path("checkpoint"))), size.rows)

        if bench.recorder.rate(size.source, cell, cycle, size.rows, read) and size.source == SOURCE:
            done = bench.recorder.results.samples[-1]
            outside_s = float(done.detail[OUTSIDE_S])
            bench.recorder.sample(Sample(START, cell, cycle, outside_s, "s", done.seconds, done.noise), show=False)
