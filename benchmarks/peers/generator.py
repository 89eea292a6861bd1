"""A source that reads nothing: ready Arrow batches with the columns of our messages, as fast as Spark takes them from Python.

What a Python source of Spark can reach at most, and what the start of a query takes without ours.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from benchmarks.measure import PAYLOAD_BYTES
from benchmarks.workbench import SPARKS, Workbench
from spark_jms.core.messages.columns import COLUMNS, arrow_schema, spark_schema

GENERATOR_ALL, GENERATOR_TWO = "generator, all columns", "generator, body,sequence"
PARTITIONS = 4
BATCH_ROWS = 4096


@dataclass
class GeneratedRows(InputPartition):
    """So many rows."""

    rows: int


class Generated(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """All rows in one micro-batch, of as many partitions as our queue has members."""

    def __init__(self, rows: int, columns: tuple[str, ...]) -> None:
        self.rows, self.columns = rows, columns

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """There is nothing else than what is there."""

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"rows": self.rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[GeneratedRows]:
        rows = end["rows"] - start["rows"]
        return [GeneratedRows(rows * (n + 1) // PARTITIONS - rows * n // PARTITIONS) for n in range(PARTITIONS) if rows]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, GeneratedRows)
        batch = messages(self.columns, BATCH_ROWS)
        for begin in range(0, partition.rows, BATCH_ROWS):
            yield batch.slice(0, min(BATCH_ROWS, partition.rows - begin))


def messages(columns: tuple[str, ...], rows: int) -> pa.RecordBatch:
    """Rows like those of the input: random bytes as body, and headers as senders of nothing but a body have them."""
    schema = arrow_schema(columns)
    body = [os.urandom(PAYLOAD_BYTES) for _ in range(rows)]
    known: dict[str, Any] = {
        "sequence": range(rows),
        "member": [0] * rows,
        "JMSMessageID": [f"ID:AAAAAAAAAAAAAAAA-{n}" for n in range(rows)],
        "JMSDestination": ["orders"] * rows,
        "JMSPriority": [4] * rows,
        "JMSXDeliveryCount": [1] * rows,
        "JMSRedelivered": [False] * rows,
        "body": body,
    }
    arrays = [
        pa.array(known[field.name], field.type) if field.name in known else pa.nulls(rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class Generator(DataSource):
    """format("jmsq-generator"), options `rows` and `columns`."""

    @classmethod
    def name(cls) -> str:
        return "jmsq-generator"

    def _columns(self) -> tuple[str, ...]:
        return tuple(filter(None, self.options.get("columns", "").split(","))) or tuple(COLUMNS)

    def schema(self) -> str:
        return spark_schema(self._columns())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return Generated(int(self.options["rows"]), self._columns())


class GeneratorPeer:
    """Nothing is sent and nothing is stored."""

    family = "jmsq"
    consumes = False
    sink_cell = None
    source_cells: tuple[str, ...] = (GENERATOR_ALL, GENERATOR_TWO)
    checkpoint_files = SPARKS

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        bench.spark.dataSource.register(Generator)

    def begin(self, number: int) -> None:
        """Nothing to make."""

    def end(self, number: int) -> None:
        """Nothing to delete."""

    def sink(self, frame: Any, number: int) -> Any:
        raise NotImplementedError("a generator has no sink: see sink_cell")

    def source(self, cell: str, number: int, rows: int) -> Any:
        reader = self._bench.spark.readStream.format("jmsq-generator").option("rows", rows)
        return reader.option("columns", "body,sequence" if cell == GENERATOR_TWO else "").load()
