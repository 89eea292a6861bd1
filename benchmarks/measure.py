"""What every cell needs: a meter for time and noise, the input, and one way to run a query to its end."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.errors import CellFailedError
from benchmarks.results import Noise

PAYLOAD_BYTES = 1024
INPUT_FILES = 16
FILES_PER_BATCH = 4  # 16 files, 4 at a time: 4 micro-batches
QUERY_TIMEOUT_S = 1800
OUTSIDE_S = "seconds outside of batches with rows"


class Meter:
    """Wall time of a block, the load before it, and the share of all cores that other processes used meanwhile.

    Ours are this process and all below it: the JVM, the Python workers, the broker. Not exact (what a worker reaped by init took
    since the block began is lost): a hint.
    """

    seconds = 0.0
    noise = Noise(0.0, 0.0)

    def __enter__(self) -> Meter:
        self._load = os.getloadavg()[0]
        self._own, self._busy = process_times(), machine_busy_s()
        self._start = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.perf_counter() - self._start
        others = machine_busy_s() - self._busy - sum(spent_s(self._own, process_times()).values())
        cores = psutil.cpu_count() or 1
        share = min(1.0, max(0.0, others / (self.seconds * cores))) if self.seconds > 0 else 0.0
        self.noise = Noise(round(self._load, 2), round(share, 3))


DRIVER, BROKER, DAEMONS = "producer and driver", "broker", "daemons"
_ROLES = {  # a word of the command line
    "kafka.Kafka": BROKER,
    "spark_jms.store.kinds.daemon": DAEMONS,
    "SparkSubmit": "Spark's JVM",
    "python_streaming_source_runner": "planning",
    "pyspark.daemon": "reading",
}


_COMPILERS = ("C1 CompilerThre", "C2 CompilerThre")  # as the operating system names the threads: 15 characters


@dataclass(frozen=True)
class ProcessTime:
    """Processor seconds of a process, and of its children that it has reaped. `reaped_role`: to whom those count."""

    role: str
    reaped_role: str
    parent: int
    own_s: float
    reaped_s: float
    jit_s: float = 0.0
    """Of own_s, what the compilers of a Java process have taken."""


def process_times() -> dict[int, ProcessTime]:
    """By process id: this process, as DRIVER (with the producer, its housekeeping, and `foreachBatch`), and its live descendants."""
    me, found = psutil.Process(), dict[int, ProcessTime]()
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            words, times = " ".join(process.cmdline()), process.cpu_times()
            role = DRIVER if process == me else next((role for word, role in _ROLES.items() if word in words), "others")
            # Children that were reaped: of this process any; Spark's JVM and the daemon of its workers have workers.
            reaped = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
            reaped_role = "others" if process == me else "reading"
            found[process.pid] = ProcessTime(
                role, reaped_role, process.ppid(), times.user + times.system, reaped, jit_s(process)
            )
    return found


def jit_s(process: psutil.Process) -> float:
    """Processor seconds of the threads that compile in a Java process. One that has ended is not counted any more."""
    seconds = 0.0
    for thread in process.threads():
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{process.pid}/task/{thread.id}/comm").read_text(encoding="utf-8")
            if name.startswith(_COMPILERS):
                seconds += thread.user_time + thread.system_time
    return seconds


def spent_s(before: Mapping[int, ProcessTime], after: Mapping[int, ProcessTime]) -> dict[str, float]:
    """Pure. Processor seconds between two looks, by role. A process that ended counts by its parent, which has reaped it: without
    what it had taken before. One whose parent ended too was reaped by init, and is lost."""
    spent: Counter[str] = Counter()
    for pid, now in after.items():
        then = before.get(pid)
        spent[now.role] += now.own_s - (then.own_s if then else 0)
        spent[now.reaped_role] += now.reaped_s - (then.reaped_s if then else 0)
    for pid, then in before.items():
        if pid not in after and then.parent in after:
            spent[after[then.parent].reaped_role] -= then.own_s + then.reaped_s
    return {role: seconds for role, seconds in spent.items() if seconds > 0}


class SteadyCpu:
    """Processor time per message from `warm_s` after the start to the end of a block in which `rate` messages a second are
    sent: everything that the peer needs for them, from the producer to the reader, broker and housekeeping included.
    `idle` are the roles of processes that stand by for another peer: their time is not its."""

    def __init__(self, warm_s: float, idle: Collection[str] = ()) -> None:
        self._idle = idle
        self._looks: list[tuple[float, dict[int, ProcessTime]]] = []
        self.warm = threading.Event()
        self._timer = threading.Timer(warm_s, self._warm)
        self._timer.daemon = True

    def _warm(self) -> None:
        self._look()
        self.warm.set()

    def _look(self) -> None:
        self._looks.append((time.perf_counter(), process_times()))

    def __enter__(self) -> SteadyCpu:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._timer.is_alive():
            self._timer.join()
        self._look()

    def ms_per_message(self, rate: float) -> dict[str, float]:
        """By role. Raises CellFailedError if the block ended within `warm_s`."""
        if not self.warm.is_set():
            raise CellFailedError("the window ended before its warm-up")
        (start, before), (end, after) = self._looks[0], self._looks[-1]
        messages = rate * (end - start)
        spent = spent_s(before, after)
        return {role: seconds * 1000 / messages for role, seconds in spent.items() if role not in self._idle}

    def jit_ms_per_message(self, rate: float) -> float:
        """Of their sum, what the compilers of Java processes took."""
        (start, before), (end, after) = self._looks[0], self._looks[-1]
        return jit_spent_s(before, after, self._idle) * 1000 / (rate * (end - start))


def jit_spent_s(before: Mapping[int, ProcessTime], after: Mapping[int, ProcessTime], idle: Collection[str]) -> float:
    """Pure. Of `spent_s`, what compilers took, in processes of roles that are not `idle`."""
    both = ((now, before[pid]) for pid, now in after.items() if pid in before and now.role not in idle)
    return sum(max(now.jit_s - then.jit_s, 0.0) for now, then in both)


def machine_busy_s() -> float:
    """Non-idle processor seconds of the whole machine; time stolen by the host counts as other processes'."""
    times = psutil.cpu_times()
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    return float(sum(getattr(times, name, 0.0) for name in names))


def settle(spark: Any) -> None:
    """Between cells: flush dirty pages and collect garbage, so that no cell pays for the previous one."""
    os.sync()
    spark.sparkContext._jvm.System.gc()


def input_directory(cache: Path, rows: int) -> Path:
    """Parquet of one column `value`, 1 KiB of random bytes a row, uncompressed; created once per number of rows."""
    home = cache / "input" / f"random-{rows}x{PAYLOAD_BYTES}-{INPUT_FILES}"
    if (home / "_DONE").exists():
        return home
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    random = np.random.default_rng(7)
    for number in range(INPUT_FILES):
        count = rows // INPUT_FILES + (number < rows % INPUT_FILES)
        data = pa.py_buffer(random.bytes(count * PAYLOAD_BYTES))
        fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(PAYLOAD_BYTES), count, [None, data])
        table = pa.table({"value": fixed.cast(pa.binary())})
        path = home / f"part-{number:04d}.parquet"
        pq.write_table(table, path, compression="none", use_dictionary=False, row_group_size=16384)
    (home / "_DONE").touch()
    return home


def input_stream(spark: Any, home: Path) -> Any:
    stream = spark.readStream.schema("value binary").option("maxFilesPerTrigger", FILES_PER_BATCH)
    return stream.parquet(str(home))


def run_to_end(writer: Any, rows: int) -> dict[str, float | str]:
    """Runs the query with AvailableNow and checks that it moved exactly `rows` rows; returns its batches."""
    begin = time.perf_counter()
    query = writer.trigger(availableNow=True).start()
    try:
        if not query.awaitTermination(QUERY_TIMEOUT_S):
            raise CellFailedError(f"the query did not end within {QUERY_TIMEOUT_S} s")
        wall_s = time.perf_counter() - begin
        progress = [p for p in query.recentProgress if p["numInputRows"] > 0]
    finally:
        query.stop()
    moved = sum(p["numInputRows"] for p in progress)
    if moved != rows:
        raise CellFailedError(f"moved {moved:,} of {rows:,} rows")
    outside_s = wall_s - sum(p["batchDuration"] for p in progress) / 1000
    return {
        "batches": len(progress),
        "batch_ms": " ".join(str(p["batchDuration"]) for p in progress),
        OUTSIDE_S: round(outside_s, 3),
    }
