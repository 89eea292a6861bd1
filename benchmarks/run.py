#!/usr/bin/env python3
"""`make bench`: spark-jms beside Spark's Kafka connector and Delta's own streaming, in one run.

Prints a table for each part (medians, spread, ratios pair by pair, targets met or missed), keeps every sample as a JSON
line under .cache/bench/, and writes docs/BENCHMARKS.md when asked to. Needs Java 17 and, the first time, a way to Maven
Central for the peers' jars. All it starts, it stops; all it writes besides results and caches, it deletes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "bench"
README, DOCS = ROOT / "README.md", ROOT / "docs" / "BENCHMARKS.md"
sys.path.insert(0, str(ROOT))

import psutil  # noqa: E402 - the path comes first
from py4j.protocol import Py4JError  # noqa: E402
from rich.console import Console  # noqa: E402

from benchmarks import (  # noqa: E402
    blocked_backlog,
    client,
    competing,
    compression,
    growth,
    jars,
    latency,
    machine,
    pipeline,
    quotas,
    ranking,
    readme,
    report,
    scaling,
    selective_backlog,
    send_modes,
    services,
    sorted_backlog,
    subscriptions,
    throughput,
)
from benchmarks.jmsq import HelpedPeer, JmsqPeer, PacedPeer, ReplicatedPeer, replicated_door  # noqa: E402
from benchmarks.measure import input_directory  # noqa: E402
from benchmarks.peers import LatencyPeer, ThroughputPeer  # noqa: E402
from benchmarks.peers.delta import DeltaPeer  # noqa: E402
from benchmarks.peers.generator import GeneratorPeer  # noqa: E402
from benchmarks.peers.kafka import Broker, HelpedKafkaPeer, KafkaPeer, PacedKafkaPeer  # noqa: E402
from benchmarks.recorder import Recorder  # noqa: E402
from benchmarks.results import Results, from_lines  # noqa: E402
from benchmarks.workbench import FAMILIES, PARTS, BenchmarkOptions, Workbench, open_session  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    """0: everything was measured; 1: something is absent (it is named in the tables); 2: bad options."""
    parser = _parser()
    given = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 180)
    if given.render is not None:
        with given.render.open(encoding="utf-8") as lines:
            return _show(console, from_lines(lines), write_docs=given.write_docs)
    try:
        options = _options(given)
    except ValueError as error:
        parser.error(str(error))
    if options.quick and given.write_docs:
        parser.error("--write-docs with --quick: a quick run is not honest for publishing")
    signal.signal(signal.SIGTERM, _terminated)
    console.print("[yellow]" + report.QUICK + "[/yellow]" if options.quick else "An honest run needs a quiet machine.")
    path = CACHE / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}{'-quick' if options.quick else ''}.jsonl"
    with Recorder(path, console) as recorder:
        recorder.head(machine.describe(), asdict(options))
        _measure(options, recorder)
    code = _show(console, recorder.results, write_docs=given.write_docs)
    console.print(f"Samples: {path.relative_to(ROOT)}")
    return code


def _measure(options: BenchmarkOptions, recorder: Recorder) -> None:
    _sweep()
    work = CACHE / f"work-{os.getpid()}"
    work.mkdir(parents=True)
    # Spark's workers must find pyspark_jmsq even if the project is not installed in this environment.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, work, ignore_errors=True)
        kafka_cells = _cells_of_kafka(options)
        connector: list[Path] = []
        broker: Broker | None = None
        if kafka_cells:
            recorder.doing("Kafka: jars and broker")

            def start() -> None:
                nonlocal broker
                connector.extend(jars.ensure(jars.CONNECTOR, CACHE))
                starting = Broker(work / "kafka", jars.ensure(jars.BROKER, CACHE))
                stack.callback(starting.stop)
                starting.start()
                broker = starting

            recorder.attempt(kafka_cells, start)

        def open_spark() -> Any:
            recorder.doing("Spark")
            spark = open_session(work, connector)
            stack.callback(_stop, spark)
            return spark

        bench = Workbench(open_spark, work, CACHE, options, recorder)
        _parts(bench, broker)


def _sweep() -> None:
    """Delete the leftovers of killed runs."""
    for left in CACHE.glob("work-*"):
        if not psutil.pid_exists(int(left.name.removeprefix("work-"))):
            shutil.rmtree(left, ignore_errors=True)


def _stop(spark: Any) -> None:
    """After an interrupt during a call the gateway may be closed already; its JVM ends with this process."""
    with contextlib.suppress(Py4JError, OSError):
        spark.stop()


def _parts(bench: Workbench, broker: Broker | None) -> None:
    only, options = bench.options.only, bench.options
    jmsq = JmsqPeer(bench) if "jmsq" in only else None
    kafka = KafkaPeer(bench, broker) if broker is not None else None
    ours: list[JmsqPeer | KafkaPeer] = [peer for peer in (jmsq, kafka) if peer is not None]
    if options.wants("sink", "source", "large"):
        delta = [DeltaPeer(bench, tuned=tuned) for tuned in (False, True)] if "delta" in only else []
        generator = [GeneratorPeer(bench)] if jmsq is not None and options.wants("source", "large") else []
        if options.wants("sink", "source"):
            bench.recorder.doing(f"input of {options.rows:,} messages")
            input_directory(bench.cache, options.rows)
            peers: list[ThroughputPeer] = [*ours, *delta, *generator]
            throughput.run(bench, peers)
        if options.wants("large"):
            bench.recorder.doing(f"input of {options.large_rows:,} messages")
            input_directory(bench.cache, options.large_rows)
            few: list[ThroughputPeer] = [*([jmsq] if jmsq is not None else []), *delta[1:], *generator]
            throughput.run_large(bench, few)
    if options.wants("sorted") and "jmsq" in only:
        sorted_backlog.run(bench)
    if options.wants("latency"):
        with contextlib.ExitStack() as doors:
            both: list[LatencyPeer] = [*ours]
            if jmsq is not None:
                door = doors.enter_context(replicated_door(bench.new_path("replicated")))
                both[1:1] = [HelpedPeer(bench), PacedPeer(bench), ReplicatedPeer(bench, door)]
            if broker is not None:
                both += [HelpedKafkaPeer(bench, broker), PacedKafkaPeer(bench, broker)]
            latency.run(bench, both)
    if options.wants("commit", "planning") and "jmsq" in only:
        scaling.run(bench)
    if options.wants("quotas") and "jmsq" in only:
        quotas.run(bench)
    if options.wants("ranking") and "jmsq" in only:
        ranking.run(bench)
    if options.wants("client") and "jmsq" in only:
        client.run(bench)
    if options.wants("competing") and "jmsq" in only:
        competing.run(bench)
    if options.wants("modes") and "jmsq" in only:
        send_modes.run(bench)
    if options.wants("pipeline") and "jmsq" in only:
        pipeline.run(bench)
    if options.wants("compression") and "jmsq" in only:
        compression.run(bench)
    if options.wants("growth") and "jmsq" in only:
        growth.run(bench)
    if options.wants("selectors") and "jmsq" in only:
        selective_backlog.run(bench)
    if options.wants("blocked") and "jmsq" in only:
        blocked_backlog.run(bench)
    if options.wants("subscriptions") and "jmsq" in only:
        subscriptions.run(bench)
    if options.wants("services") and "jmsq" in only:
        services.run(bench)


def _cells_of_kafka(options: BenchmarkOptions) -> list[tuple[str, str]]:
    """The cells that Kafka's absence affects; none if Kafka was not requested."""
    tables = [table for table in (throughput.SINK, throughput.SOURCE) if options.wants(table)]
    if options.wants("latency"):
        tables += [latency.P50, latency.P99, latency.CHECKPOINT, latency.CPU, latency.CPU_WITHOUT_JIT]
    return [(table, KafkaPeer.sink_cell) for table in tables] if "kafka" in options.only else []


def _show(console: Console, results: Results, *, write_docs: bool) -> int:
    for table in report.terminal_tables(results):
        console.print(table)
    for table_name, what, ratio, target, verdict in report.targets(results):
        colour = {"met": "green", "missed": "red"}.get(verdict, "yellow")
        console.print(
            f"[{colour}]{verdict:>12}[/{colour}]  {table_name}: {what} = {ratio}, target {target}", highlight=False
        )
    if write_docs:
        if results.options.get("quick"):
            console.print("[red]docs/BENCHMARKS.md is not written from a quick run[/red]")
            return 2
        text = report.markdown(results, time.strftime("%Y-%m-%d", time.gmtime()))
        if set(results.options.get("parts", ())) != set(PARTS) and DOCS.exists():
            text = report.updated(DOCS.read_text(encoding="utf-8"), text)
        DOCS.write_text(readme.updated(text, text), encoding="utf-8")
        README.write_text(readme.updated(README.read_text(encoding="utf-8"), text), encoding="utf-8")
        console.print(f"written: {DOCS.relative_to(ROOT)} and the figures of {README.name}")
    return 1 if results.absences else 0


def _terminated(number: int, frame: object) -> NoReturn:
    """Treat it as an interrupt: the stacks unwind, which stops the broker and Spark."""
    raise SystemExit(128 + number)


def _options(given: argparse.Namespace) -> BenchmarkOptions:
    quick = given.quick
    return BenchmarkOptions(
        rows=given.rows or (20_000 if quick else 1_000_000),
        runs=given.runs or (1 if quick else 3),
        parts=tuple(given.parts),
        only=tuple(given.only),
        quick=quick,
        latency_s=given.latency_s or (5 if quick else 30),
        warm_s=given.warm_s if given.warm_s is not None else (3 if quick else 10),
        rate=given.rate,
        versions=tuple(given.versions or ((10, 50) if quick else (10, 100, 1000, 5000))),
        files=tuple(given.files or ((10, 40) if quick else (10, 100, 1000, 3000))),
        backlogs=tuple(given.backlogs or ((1000, 10_000) if quick else (1000, 10_000, 100_000, 1_000_000))),
        rounds=given.rounds or (5 if quick else 20),
        build_budget_s=given.build_budget_s,
        commits=given.commits or (3_000 if quick else 300_000),
        large_rows=given.large_rows or (60_000 if quick else 3_000_000),
    )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(text: str) -> list[int]:
    return [int(number.replace("_", "")) for number in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks/run.py", description=__doc__.split("\n")[0] if __doc__ else None)
    add = parser.add_argument
    add("--rows", type=int, help="messages of sink and source (1,000,000)")
    add("--large-rows", type=int, help="messages of the larger source (3,000,000: 3 GB of input, 3 GB for each peer)")
    add("--runs", type=int, help="counted runs after the cold one (3)")
    add("--parts", type=_names, default=list(PARTS), help=f"of {','.join(PARTS)} (all)")
    add("--only", type=_names, default=list(FAMILIES), help=f"peers, of {','.join(FAMILIES)} (all)")
    add("--quick", action="store_true", help="a small smoke of everything, about 3 minutes; not honest for publishing")
    add("--rate", type=int, default=100, help="messages a second of the latency part (100)")
    add("--latency-s", type=float, help="seconds measured of each latency window (30)")
    add("--warm-s", type=float, help="seconds of warm-up before them (10)")
    add("--versions", type=_numbers, help="table versions to measure at (10,100,1000,5000)")
    add("--files", type=_numbers, help="active files to measure at (10,100,1000,3000)")
    add("--backlogs", type=_numbers, help="backlogs to plan over (1000,10000,100000,1000000)")
    add("--rounds", type=int, help="counted rounds of commit and planning (20)")
    add(
        "--build-budget-s",
        type=float,
        default=900,
        help="the most seconds to build one destination's versions in (900)",
    )
    add("--commits", type=int, help="single sends of the growth part (300,000: about ten minutes)")
    add(
        "--write-docs",
        action="store_true",
        help="write docs/BENCHMARKS.md; a run of some parts replaces the sections of its tables and keeps the others",
    )
    add(
        "--render",
        type=Path,
        metavar="JSONL",
        help="measure nothing: show (and --write-docs) the results of a former run",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
