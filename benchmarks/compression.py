"""The kinds of compression of a destination's files: bytes on the disk, and the time of sending and receiving (T8).

Messages of 10 KB of JSON-like text. Each kind has a destination of its own, which a run sends to once, in one commit, and receives.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pyarrow as pa

from benchmarks.measure import Meter
from benchmarks.results import Sample, TargetComparison
from benchmarks.workbench import Workbench

STORED, SENDING, RECEIVING = (
    "compression: bytes stored",
    "compression: time to send",
    "compression: time to receive",
)
SNAPPY, BY_SENDER = "Snappy (off)", "by the sender, GZIP"
TEXT_BYTES = 10_000
MESSAGES, QUICK_MESSAGES = 5_000, 100


def run(bench: Workbench) -> None:
    from spark_jms.settings.destination import COMPRESSIONS

    cells: dict[str, str | None] = {SNAPPY: None, **{kind: kind for kind in COMPRESSIONS}, BY_SENDER: None}
    runs = bench.options.runs + 1
    bench.recorder.part("compression", runs * len(cells))
    for table in (STORED, SENDING, RECEIVING):
        for cell in (*COMPRESSIONS, BY_SENDER):
            bench.recorder.compare(TargetComparison(table, cell, SNAPPY, None, at_least=False))
    rows = _rows(QUICK_MESSAGES if bench.options.quick else MESSAGES)
    for number in range(runs):
        for cell, kind in cells.items():
            bench.recorder.doing(f"compression {cell}")
            root = bench.new_path("compression")

            def one(cell: str = cell, kind: str | None = kind, root: Path = root) -> None:
                _measure(bench, root, cell, kind, number, rows)  # noqa: B023

            try:
                bench.recorder.attempt([(table, cell) for table in (STORED, SENDING, RECEIVING)], one)
            finally:
                shutil.rmtree(root, ignore_errors=True)
            bench.recorder.step()


def _rows(count: int) -> pa.Table:
    chance = random.Random(1)
    texts = []
    for _ in range(count):
        parts: list[str] = []
        while len(parts) * 40 < TEXT_BYTES:
            parts.append(f'{{"id": {chance.randrange(10**9)}, "color": "{chance.choice(("red", "green", "blue"))}"}}')
        texts.append(",".join(parts)[:TEXT_BYTES])
    return pa.table({"text": pa.array(texts)})


def _measure(bench: Workbench, root: Path, cell: str, kind: str | None, number: int, rows: pa.Table) -> None:
    import spark_jms
    from spark_jms.client import ConnectionFactory

    declared = {"kind": "queue", "storeMessageCompressionEnabled": kind is not None}
    if kind is not None:
        declared["messageCompressionOptions"] = kind
    spark_jms.apply(str(root), {"destinations": {"texts": declared}})
    factory = ConnectionFactory(default_compression_threshold=0 if cell == BY_SENDER else None)
    with spark_jms.connect(str(root), housekeeping=False, connection_factory=factory) as context:
        with Meter() as sending:
            context.producer("texts").send_table(rows)
        received = 0
        with context.consumer("texts", prefetch=1000, acknowledge="dups-ok") as consumer, Meter() as receiving:
            while received < rows.num_rows and (message := consumer.receive(60)) is not None:
                received += bool(message.text)
    size = sum(file.stat().st_size for file in Path(root).rglob("*.parquet"))
    for table, value, unit, meter in (
        (STORED, float(size), "bytes", sending),
        (SENDING, sending.seconds, "s", sending),
        (RECEIVING, receiving.seconds, "s", receiving),
    ):
        bench.recorder.sample(Sample(table, cell, number, value, unit, meter.seconds, meter.noise), show=False)
