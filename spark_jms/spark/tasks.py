"""What runs in Spark's tasks: partitions of a read, and the reader of their messages.

A task's process loads this module, and through it what reads a file of messages: no planning, no stores, no declarations
(tests/contract/spark/test_loaded_modules.py has the list). So a partition names the folder of its table. Only where a file is missing,
because compaction has replaced it, does the task open the domain and look into the table's log.

PySpark's daemon runs a full garbage collection after each task. With pyspark and pyarrow loaded, the collector walks some hundred
thousand objects that live as long as the worker, which takes longer than reading a small batch. `freeze_loaded` exempts those
objects; the collector still handles whatever later tasks leave behind.

Features: C1, C4, C5 (docs/FEATURES.md)
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from spark_jms.core.messages.ranges import Ranges
    from spark_jms.core.ordering.sort_order import DeliveryOrder
    from spark_jms.log.tables.delta_log import DeltaLog
    from spark_jms.log.tables.files import FileHint
    from spark_jms.log.tables.snapshot import Snapshot
    from spark_jms.log.tables.storage import Storage


@dataclass
class MemberPartition(InputPartition):
    """One member's part of a batch: sequence ranges, the files to look in first, and earlier deliveries."""

    root: str
    destination: str
    member: int
    columns: tuple[str, ...]
    picks: Ranges
    redelivered: Mapping[int, Ranges]
    files: list[FileHint]
    fail_on_data_loss: bool
    table_id: str | None = None
    order: DeliveryOrder | None = None  # None: FIFO
    unpacks: bool = False  # the destination may have compressed bodies
    table_path: str | None = None  # of the destination's table, below the root; None: the domain knows


@dataclass
class SmallBatchPartition(InputPartition):
    """All members' parts of a small batch, one after the other: one task, because a task costs more than its messages."""

    parts: list[MemberPartition]


class TaskReader:
    """Reads a partition. A stream reader is this when it arrives in a task."""

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        parts = partition.parts if isinstance(partition, SmallBatchPartition) else [partition]
        for part in parts:
            assert isinstance(part, MemberPartition)
            yield from read_partition(part)
        freeze_loaded()


class TaskTable:
    """The table of a partition: its storage at once, its log when something asks for it."""

    def __init__(self, partition: MemberPartition) -> None:
        self._partition = partition
        self._log: DeltaLog | None = None

    @functools.cached_property
    def storage(self) -> Storage:
        if self._partition.table_path is None:
            return self.log.storage
        from spark_jms.log.tables.object_store import open_storage

        return open_storage(self._partition.root).child(self._partition.table_path)

    @property
    def log(self) -> DeltaLog:
        """Raises DomainError where the root is not a domain, and InvalidDestinationError."""
        if self._log is None:
            from spark_jms.log.destinations.domain import Domain

            self._log = Domain(self._partition.root).log(self._partition.destination)
        return self._log

    @property
    def snapshot(self) -> Snapshot:
        return self.log.snapshot

    def refresh(self) -> Snapshot:
        return self.log.refresh()

    def verify(self) -> Snapshot:
        return self.log.verify()


def read_partition(partition: MemberPartition) -> Iterator[RecordBatch]:
    """The partition's messages in order."""
    from spark_jms.claims.messages.fetch import fetch
    from spark_jms.core.ordering.sort_order import FIFO

    yield from fetch(
        TaskTable(partition),
        partition.destination,
        partition.member,
        partition.picks,
        partition.redelivered,
        columns=partition.columns,
        files=partition.files,
        fail_on_data_loss=partition.fail_on_data_loss,
        table_id=partition.table_id,
        order=partition.order or FIFO,
        unpacks=partition.unpacks,
    )


@functools.cache
def freeze_loaded() -> None:
    """Call at the end of a task. The first call, when all modules are loaded, freezes; later calls do nothing."""
    gc.freeze()
