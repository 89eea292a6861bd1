"""The receiver `b`: a query in the demo's own Spark application."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from spark_jms.demo.queries import create_output, receive_flights
from spark_jms.demo.received import Received, batches_after

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

_LOOK_EVERY_S = 0.2


class QueryReceiver:
    """`check` brings `received` up to date."""

    def __init__(self, name: str, work: Path, batch: int) -> None:
        self.name, self._work, self._batch = name, work, batch
        self.received = Received()
        self._query: StreamingQuery | None = None
        self._preparing: threading.Thread | None = None
        self._seen, self._looked_s = -1, 0.0

    def prepare(self, spark: SparkSession) -> None:
        """Create the table, beside whatever the application does until `go`."""
        self._preparing = threading.Thread(target=create_output, args=(spark, self._work, self.name), daemon=True)
        self._preparing.start()

    def go(self, spark: SparkSession) -> None:
        if self._preparing is not None:
            self._preparing.join()
        self._query = receive_flights(spark, self._work, self.name, self._batch)

    def check(self) -> None:
        """Raises the error that ended the query."""
        if self._query is None or time.monotonic() - self._looked_s < _LOOK_EVERY_S:
            return
        self._looked_s = time.monotonic()
        for done in batches_after(self._query, self._seen):
            self._seen = done.batch
            self.received.add(done)
        if (error := self._query.exception()) is not None:
            raise error

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()
