"""The plain client beside Artemis and the disk's own forced writes: one process, 1 KiB, on the local disk (C11).

The cells of a table take turns, round by round, the first round cold. Each runs for a window of time on a destination of
its own. **client, send**: `send` one by one, from one thread and from eight, and Artemis's persistent send with a receipt.
**client, time of one send**: p50 and p99 of `send` from one thread, with housekeeping in its process.
**client, many at once**: `send_many` of dicts and `send_table`, beside the marks to reach. **client, receive and
acknowledge each**: from one thread, and from eight with one consumer, beside what the disk alone gives one thread
(`forced_writes.py`). **client latency**: from the time a message was due at the sender to another process that has received it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import calls
from benchmarks.errors import CellFailedError
from benchmarks.forced_writes import appends, locked_writes
from benchmarks.latency import PRIME, payload, produce
from benchmarks.measure import Meter
from benchmarks.peers.artemis import ArtemisBroker, ArtemisClient, artemis
from benchmarks.results import Sample, TargetComparison
from benchmarks.stats import percentile, steady
from benchmarks.workbench import Workbench

TIMES = "client, time of one send"
SEND_P50, SEND_P99 = "p50, housekeeping on", "p99, housekeeping on"
SEND, MANY, EACH = "client, send", "client, many at once", "client, receive and acknowledge each"
P50, P99 = "client latency p50", "client latency p99"
ONE, EIGHT, ARTEMIS, JMSQ = "one thread", "8 threads", "Artemis", "jmsq"
DISK, LOCKED = "disk, fdatasync", "disk, system calls of one write of the store"
TEXTS, PROPERTIES, TABLE = "send_many, text", "send_many, text and 3 properties", "send_table, text"
MARKS = {TEXTS: 80_000, PROPERTIES: 40_000, TABLE: 150_000}
THREADS = 8
MANY_MESSAGES, QUICK_MESSAGES = 100_000, 10_000
WINDOW_S, QUICK_WINDOW_S = 5.0, 0.5
WARM_CALLS = 20
RECEIVER_TIMEOUT_S = 60
DESTINATION = "plain"

Call = Callable[[], object]


@dataclass(frozen=True)
class ClientCell:
    """`measure` returns the value and runs inside a meter; `open` is not timed."""

    table: str
    cell: str
    open: Callable[[int], contextlib.AbstractContextManager[Callable[[], float]]]


def run(bench: Workbench) -> None:
    """Measure everything. What Artemis's absence affects is named."""
    part = _Part(bench)
    for table, cell, against, bound, at_least in (
        (SEND, EIGHT, ONE, 4.0, True),
        (TIMES, SEND_P99, SEND_P50, 3.0, False),
        (EACH, LOCKED, DISK, None, True),
        (EACH, ONE, DISK, 0.6, True),
        (EACH, EIGHT, DISK, 0.6, True),
        (P50, JMSQ, ARTEMIS, 2.0, False),
        (P99, JMSQ, ARTEMIS, 2.5, False),
        *((MANY, cell, _mark(cell), 1.0, True) for cell in MARKS),
    ):
        bench.recorder.compare(TargetComparison(table, cell, against, bound, at_least=at_least))
    with contextlib.ExitStack() as stack:
        broker: list[ArtemisBroker] = []
        theirs = [(table, ARTEMIS) for table in (SEND, P50, P99)]
        bench.recorder.doing("Artemis: jars and broker")
        start = artemis(bench.new_path("artemis"), bench.cache)
        bench.recorder.attempt(theirs, lambda: broker.append(stack.enter_context(start)))
        cells = part.cells(broker[0] if broker else None)
        rounds = bench.options.runs + 1
        bench.recorder.part("client", rounds * (len(cells) + 2 + len(broker)))
        for number in range(rounds):
            for cell in cells:
                bench.recorder.doing(f"{cell.table}: {cell.cell}")
                bench.recorder.attempt([(cell.table, cell.cell)], lambda: part.rate(cell, number))  # noqa: B023
                bench.recorder.step()
            bench.recorder.doing(TIMES)
            bench.recorder.attempt([(TIMES, SEND_P50), (TIMES, SEND_P99)], lambda: part.send_times(number))  # noqa: B023
            bench.recorder.step()
            for name, peer in ((JMSQ, None), *((ARTEMIS, one) for one in broker)):
                bench.recorder.doing(f"client latency: {name}")
                tables = [(P50, name), (P99, name)]
                bench.recorder.attempt(tables, lambda: part.latency(name, peer, number))  # noqa: B023
                bench.recorder.step()


def _mark(cell: str) -> str:
    return f"the mark of {MARKS[cell]:,}"


class _Part:
    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._window_s = QUICK_WINDOW_S if bench.options.quick else WINDOW_S
        self._messages = QUICK_MESSAGES if bench.options.quick else MANY_MESSAGES
        self._text = payload(PRIME).decode()

    def cells(self, broker: ArtemisBroker | None) -> list[ClientCell]:
        found = [
            ClientCell(SEND, ONE, lambda n: self._sending(1)),
            ClientCell(SEND, EIGHT, lambda n: self._sending(THREADS)),
            ClientCell(EACH, DISK, lambda n: self._forced_writes(appends)),
            ClientCell(EACH, LOCKED, lambda n: self._forced_writes(locked_writes)),
            ClientCell(EACH, ONE, lambda n: self._receiving(1)),
            ClientCell(EACH, EIGHT, lambda n: self._receiving(THREADS)),
        ]
        if broker is not None:
            found.insert(2, ClientCell(SEND, ARTEMIS, lambda n: self._artemis(broker, n)))
        for cell in MARKS:
            found.append(ClientCell(MANY, cell, lambda n, cell=cell: self._many(cell)))  # type: ignore[misc]
            found.append(ClientCell(MANY, _mark(cell), lambda n, cell=cell: _constant(MARKS[cell])))  # type: ignore[misc]
        return found

    def rate(self, cell: ClientCell, run_number: int) -> None:
        os.sync()
        with cell.open(run_number) as measure, Meter() as meter:
            value = measure()
        sample = Sample(cell.table, cell.cell, run_number, value, "messages/s", meter.seconds, meter.noise)
        self._bench.recorder.sample(sample)

    # -- ours -----------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def _context(self) -> Iterator[tuple[Any, Path]]:
        import spark_jms

        root = self._bench.new_path("client")
        calls.apply(root, {DESTINATION: {"kind": "queue"}})
        with spark_jms.connect(str(root)) as context:
            yield context, root

    @contextlib.contextmanager
    def _sending(self, threads: int) -> Iterator[Callable[[], float]]:
        with self._context() as (context, _):
            producer = context.producer(DESTINATION)
            yield lambda: self._calls(lambda: producer.send(text=self._text), threads)

    def send_times(self, run_number: int) -> None:
        """Once housekeeping has begun: the sends before its first rounds are warm-up."""
        os.sync()
        with self._context() as (context, _):
            producer = context.producer(DESTINATION)
            self._calls(lambda: producer.send(text=self._text), 1)
            times: list[float] = []

            def timed() -> None:
                before = time.perf_counter()
                producer.send(text=self._text)
                times.append((time.perf_counter() - before) * 1000)

            with Meter() as meter:
                self._calls(timed, 1)
        for cell, percent in ((SEND_P50, 50), (SEND_P99, 99)):
            value, detail = percentile(times, percent), {"sends": len(times)}
            sample = Sample(TIMES, cell, run_number, value, "ms", meter.seconds, meter.noise, detail)
            self._bench.recorder.sample(sample)

    @contextlib.contextmanager
    def _receiving(self, threads: int) -> Iterator[Callable[[], float]]:
        with self._context() as (context, _):
            context.producer(DESTINATION).send_many({"text": self._text} for _ in range(int(self._window_s * 10_000)))
            with context.consumer(DESTINATION, acknowledge="individual", prefetch=100) as consumer:

                def each() -> None:
                    message = consumer.receive(timeout=RECEIVER_TIMEOUT_S)
                    if message is None:
                        raise CellFailedError("no message came")
                    message.acknowledge()

                yield lambda: self._calls(each, threads)

    @contextlib.contextmanager
    def _many(self, cell: str) -> Iterator[Callable[[], float]]:
        with self._context() as (context, _):
            producer = context.producer(DESTINATION)
            texts = [self._text] * self._messages
            table = pa.table({"text": texts})
            properties = [{"color": "red", "n": n, "amount": n * 1.5} for n in range(self._messages)]
            action: dict[str, Call] = {
                TEXTS: lambda: producer.send_many({"text": text} for text in texts),
                PROPERTIES: lambda: producer.send_many({"text": self._text, "properties": p} for p in properties),
                TABLE: lambda: producer.send_table(table),
            }

            def measure() -> float:
                start = time.perf_counter()
                action[cell]()
                return self._messages / (time.perf_counter() - start)

            yield measure

    def _calls(self, call: Call, threads: int) -> float:
        """Calls a second, of all threads, for the window."""
        for _ in range(WARM_CALLS):
            call()
        counts, errors = [0] * threads, []
        stop = time.perf_counter() + self._window_s

        def work(number: int) -> None:
            try:
                while not counts[number] or time.perf_counter() < stop:  # once at least, however late the thread starts
                    call()
                    counts[number] += 1
            except Exception as error:  # noqa: BLE001 - raised below, in the waiting thread
                errors.append(error)

        start = time.perf_counter()
        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if errors:
            raise errors[0]
        return sum(counts) / (time.perf_counter() - start)

    # -- beside ---------------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def _forced_writes(
        self, kind: Callable[[Path], contextlib.AbstractContextManager[Call]]
    ) -> Iterator[Callable[[], float]]:
        with kind(self._bench.new_path("forced")) as write:
            yield lambda: self._calls(write, 1)

    @contextlib.contextmanager
    def _artemis(self, broker: ArtemisBroker, number: int) -> Iterator[Callable[[], float]]:
        client = ArtemisClient(broker.port, f"send-{number}")
        try:
            yield lambda: self._calls(lambda: client.send(self._text.encode()), 1)
        finally:
            client.close()

    # -- latency --------------------------------------------------------------------------------------------------
    def latency(self, name: str, broker: ArtemisBroker | None, run_number: int) -> None:
        options = self._bench.options
        count = round(options.rate * (options.warm_s + options.latency_s))
        with contextlib.ExitStack() as stack:
            if broker is None:
                context, root = stack.enter_context(self._context())
                producer = context.producer(DESTINATION)
                where, send_one = str(root), lambda body: producer.send(body=body)
            else:
                queue = f"latency-{run_number}"
                client = ArtemisClient(broker.port, queue)
                stack.callback(client.close)
                where, send_one = f"{broker.port}/{queue}", client.send
            receiver = stack.enter_context(_receiver(where, count))
            send_one(payload(PRIME))
            if receiver.stdout is None or receiver.stdout.readline() != "ready\n":
                raise CellFailedError("the receiver did not start")
            with Meter() as meter:
                start_ns, _ = produce(
                    lambda bodies: [send_one(body) for body in bodies], options.rate, count / options.rate
                )  # type: ignore[arg-type,return-value]
                got = json.loads(receiver.communicate(timeout=RECEIVER_TIMEOUT_S)[0])
        if len(got) != count:
            raise CellFailedError(f"{len(got):,} of {count:,} messages arrived")
        found = steady([(due, ms) for due, ms in got], start_ns, options.warm_s)
        for table, percent in ((P50, 50), (P99, 99)):
            value = percentile(found, percent)
            sample = Sample(table, name, run_number, value, "ms", meter.seconds, meter.noise, {"messages": len(found)})
            self._bench.recorder.sample(sample)


@contextlib.contextmanager
def _constant(value: float) -> Iterator[Callable[[], float]]:
    yield lambda: float(value)


@contextlib.contextmanager
def _receiver(where: str, count: int) -> Iterator[subprocess.Popen[str]]:
    """A process that prints `ready` after the priming message, then the latencies of `count` messages as JSON."""
    command = [sys.executable, "-m", "benchmarks.client_receiver", where, str(count)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
