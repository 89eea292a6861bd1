"""From produce to read at 100 messages a second: producer -> source query -> foreachBatch, with a batch as soon as there is a message.

A message is stamped with the time it was *due* by the clock of the rate, not with the time its turn came: a producer
that is held up by its own commit pays for the messages that wait meanwhile. Read is when foreachBatch has the rows in
hand. The checkpoint is on the local disk, or, in the cell that says so, in a replicated store of three daemons. In the
cells "batched" senders wait LINGER_MS for messages that they send together (asynchronous sends with
`asynchronousSendLinger`; `linger.ms`), into one member or partition, and the trigger is PACE_MS, so that a message costs
less CPU. Both write their checkpoint files by Spark's default, and in cells of their own ("fewer forks") by its other file manager
(docs/SPARK.md, checkpoints). What each batch spends on it (walCommit + commitOffsets) is a table of its own, and so is
the CPU time per message of all processes: producer, broker or daemons, Spark's JVM, Python's sources and workers, housekeeping
included; by process, and without the compilers of the Java processes, in tables beside it. Windows alternate between the peers; the
start of each is warm-up, and the whole first window is the cold one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from benchmarks.errors import CellFailedError
from benchmarks.jmsq import HELPED, PACED, REPLICATED
from benchmarks.measure import BROKER, DAEMONS, PAYLOAD_BYTES, Meter, SteadyCpu, settle
from benchmarks.peers import LatencyPeer, Sender
from benchmarks.peers.kafka import HELPED_KAFKA, PACED_KAFKA, UNPACED
from benchmarks.results import Sample, TargetComparison
from benchmarks.stats import percentile, steady
from benchmarks.workbench import Workbench, checkpoint_files

P50, P99, CHECKPOINT = "latency p50", "latency p99", "walCommit + commitOffsets"
CPU, CPU_BY_PROCESS, CPU_WITHOUT_JIT = "CPU per message", "CPU per message, by process", "CPU per message, without JIT"
JMSQ = "jmsq"
P50_TARGETS = {JMSQ: 0.8, HELPED: 0.8, PACED: 1.0, REPLICATED: 1.0}
CPU_TARGETS = {JMSQ: 1.0, HELPED: 1.0, PACED: 1.0, REPLICATED: None}
BURST_S = 0.01
FIRST_MESSAGE_TIMEOUT_S = 90
DRAIN_TIMEOUT_S = 30
PRIME = 0  # a message due at 0 is not measured: it shows that the query has started
_PAD = os.urandom(PAYLOAD_BYTES).hex().encode()


@dataclass
class Window:
    """The messages of one window that arrived, as (due ns, latency ms), and how often the priming message was seen."""

    got: list[tuple[int, float]] = field(default_factory=list)
    primed: threading.Event = field(default_factory=threading.Event)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def on_batch(self, frame: Any, batch_id: int) -> None:
        rows = frame.selectExpr("cast(split(cast(body as string), ' ')[0] as bigint) as due").collect()
        now = time.time_ns()
        with self.changed:
            self.got.extend((row.due, (now - row.due) / 1e6) for row in rows if row.due != PRIME)
            self.changed.notify_all()
        if any(row.due == PRIME for row in rows):
            self.primed.set()


def payload(due_ns: int) -> bytes:
    """1 KiB: the time in ns, a space, and random hexadecimal."""
    head = b"%d " % due_ns
    return head + _PAD[: PAYLOAD_BYTES - len(head)]


def run(bench: Workbench, peers: Sequence[LatencyPeer]) -> None:
    windows = bench.options.runs + 1
    bench.recorder.part("latency", windows * len(peers))
    for cell in (peer.latency_cell for peer in peers if peer.family == "jmsq"):
        bench.recorder.compare(TargetComparison(P50, cell, UNPACED, P50_TARGETS[cell], at_least=False))
        bench.recorder.compare(TargetComparison(P99, cell, UNPACED))
        bench.recorder.compare(TargetComparison(CPU, cell, UNPACED, CPU_TARGETS[cell], at_least=False))
        bench.recorder.compare(TargetComparison(CPU_WITHOUT_JIT, cell, UNPACED))
    bench.recorder.compare(TargetComparison(CHECKPOINT, REPLICATED, JMSQ, 0.6, at_least=False))
    for table in (P50, CPU, CPU_WITHOUT_JIT):
        bench.recorder.compare(TargetComparison(table, HELPED, HELPED_KAFKA))
    for table in (P50, P99, CPU):
        bench.recorder.compare(TargetComparison(table, PACED, PACED_KAFKA))
    for number in range(windows):
        for peer in peers:
            bench.recorder.doing(f"latency {peer.latency_cell}")
            cells = [(table, peer.latency_cell) for table in (P50, P99, CHECKPOINT, CPU, CPU_WITHOUT_JIT)]
            bench.recorder.attempt(cells, lambda peer=peer, number=number: _window(bench, peer, number))  # type: ignore[misc]
            bench.recorder.step()


def _window(bench: Workbench, peer: LatencyPeer, run_number: int) -> None:
    """One window of one peer on a destination of its own."""
    number = 100_000 + run_number
    peer.begin(number)
    settle(bench.spark)
    window = Window()
    writer = peer.latency_source(number).writeStream.foreachBatch(window.on_batch)
    writer = writer.option("checkpointLocation", peer.latency_checkpoint(number))
    with checkpoint_files(bench.spark, peer.checkpoint_files):
        query = writer.trigger(processingTime=peer.latency_trigger).start()
    try:
        with peer.sender(number) as send:
            send([payload(PRIME)])
            if not window.primed.wait(FIRST_MESSAGE_TIMEOUT_S):
                raise CellFailedError(f"no message within {FIRST_MESSAGE_TIMEOUT_S} s; query: {query.exception()}")
            idle = {BROKER, DAEMONS} - peer.servers
            with Meter() as meter, SteadyCpu(bench.options.warm_s, idle) as cpu:
                start_ns, sent = produce(send, bench.options.rate, bench.options.warm_s + bench.options.latency_s)
                with window.changed:
                    whole = window.changed.wait_for(lambda: len(window.got) >= sent, DRAIN_TIMEOUT_S)
                spent, batches = _checkpoint_ms(query, bench.options.latency_s), _batches_since(query, start_ns)
    finally:
        query.stop()
    peer.end(number)
    if not whole or len(window.got) != sent:
        raise CellFailedError(f"{len(window.got):,} of {sent:,} messages arrived")
    found = steady(window.got, start_ns, bench.options.warm_s)
    detail: dict[str, float | str] = {"messages": len(found), "max_ms": round(max(found), 1)}
    for table, percent in ((P50, 50), (P99, 99)):
        value = percentile(found, percent)
        sample = Sample(table, peer.latency_cell, run_number, value, "ms", meter.seconds, meter.noise, detail)
        bench.recorder.sample(sample)
    spent_cpu = cpu.ms_per_message(bench.options.rate)
    by_role: dict[str, float | str] = {role: round(value, 2) for role, value in spent_cpu.items()}
    by_role["messages in a batch"] = round(sent / max(batches, 1), 1)
    bench.recorder.sample(
        Sample(CPU, peer.latency_cell, run_number, sum(spent_cpu.values()), "ms", meter.seconds, meter.noise, by_role)
    )
    without_jit = sum(spent_cpu.values()) - cpu.jit_ms_per_message(bench.options.rate)
    bench.recorder.sample(
        Sample(CPU_WITHOUT_JIT, peer.latency_cell, run_number, without_jit, "ms", meter.seconds, meter.noise)
    )
    for role, value in sorted(spent_cpu.items()):
        cell = f"{peer.latency_cell}: {role}"
        bench.recorder.sample(
            Sample(CPU_BY_PROCESS, cell, run_number, value, "ms", meter.seconds, meter.noise), show=False
        )
    bench.recorder.sample(
        Sample(
            CHECKPOINT,
            peer.latency_cell,
            run_number,
            percentile(spent, 50),
            "ms",
            meter.seconds,
            meter.noise,
            {"batches": len(spent)},
        )
    )


def _checkpoint_ms(query: Any, latest_s: float) -> list[float]:
    """Checkpoint times of the batches with messages in the last seconds of the window."""
    batches = [p for p in query.recentProgress if p["numInputRows"] and "walCommit" in p["durationMs"]]
    rates = [p["durationMs"]["walCommit"] + p["durationMs"]["commitOffsets"] for p in batches]
    enough = max(1, int(latest_s * 2))
    if not rates:
        raise CellFailedError("no batch told what it spent on its checkpoint")
    return [float(ms) for ms in rates[-enough:]]


def _batches_since(query: Any, start_ns: int) -> int:
    """Batches with messages that began after this time."""
    start = datetime.fromtimestamp(start_ns / 1e9, timezone.utc)
    begun = (
        datetime.fromisoformat(p["timestamp"].replace("Z", "+00:00")) for p in query.recentProgress if p["numInputRows"]
    )
    return sum(at >= start for at in begun)


def produce(send: Sender, rate: int, seconds: float) -> tuple[int, int]:
    """A thread sends the due messages every 10 ms until rate × seconds are sent. Returns the start in epoch ns and the count."""
    total, failure = round(rate * seconds), []
    start_ns, start = time.time_ns(), time.perf_counter()

    def work() -> None:
        sent = 0
        try:
            while sent < total:
                due = min(int((time.perf_counter() - start) * rate) + 1, total)
                if due > sent:
                    send([payload(start_ns + int(number * 1e9 / rate)) for number in range(sent, due)])
                    sent = due
                time.sleep(BURST_S)
        except Exception as error:  # noqa: BLE001 - raised below, in the waiting thread
            failure.append(error)

    thread = threading.Thread(target=work, name="producer", daemon=True)
    thread.start()
    thread.join(seconds * 4 + 60)
    if failure:
        raise CellFailedError(f"the producer failed: {type(failure[0]).__name__}: {failure[0]}") from failure[0]
    if thread.is_alive():
        raise CellFailedError(
            f"the producer cannot keep {rate} messages a second: not done after {seconds * 4 + 60:.0f} s"
        )
    return start_ns, total
