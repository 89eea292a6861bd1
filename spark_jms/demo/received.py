"""What a receiver has received so far, by the progress of its query."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery


@dataclass(frozen=True)
class ReceivedBatch:
    """A micro-batch with messages. `consumer` is the query's name in the queue."""

    batch: int
    rows: int
    ms: int
    consumer: str


@dataclass
class Received:
    """All micro-batches of a receiver, over its restarts. A repeated one counts once."""

    batches: dict[int, int] = field(default_factory=dict)  # batch id -> rows
    batch_ms: list[int] = field(default_factory=list)
    batch_rows: list[int] = field(default_factory=list)
    consumer: str = ""

    @property
    def rows(self) -> int:
        return sum(self.batches.values())

    @property
    def pace(self) -> list[tuple[float, int]]:
        """Of each batch: the seconds that it and those before it took, and its messages. Idle time does not count."""
        return list(zip((ms / 1000 for ms in accumulate(self.batch_ms)), self.batch_rows, strict=True))

    def add(self, batch: ReceivedBatch) -> None:
        self.batches[batch.batch] = batch.rows
        self.batch_ms.append(batch.ms)
        self.batch_rows.append(batch.rows)
        self.consumer = batch.consumer


def batches_after(query: StreamingQuery, seen: int) -> Iterator[ReceivedBatch]:
    """The finished micro-batches with messages whose id is above `seen`."""
    for progress in query.recentProgress:
        if progress["batchId"] > seen and progress["numInputRows"]:
            end = progress["sources"][0]["endOffset"]
            consumer = (json.loads(end) if isinstance(end, str) else end)["consumer"]
            yield ReceivedBatch(
                progress["batchId"], progress["numInputRows"], progress["durationMs"]["triggerExecution"], consumer
            )
