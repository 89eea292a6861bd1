"""The messages that a transacted session has sent and not committed.

Features: T7, T16 (docs/FEATURES.md)
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence

import pyarrow as pa

from spark_jms.client.shared_send import OutgoingMessages
from spark_jms.core.balancing import Balancing
from spark_jms.log.collected_send import CollectedRows
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.message_buffer import MessageBuffer, PagedRows
from spark_jms.log.transfer import ROW_COLUMNS


class CollectedSends:
    """Of one destination, in the order in which they were sent. What exceeds the connection's message buffer pages. The
    session's lock guards it."""

    def __init__(self, log: DeltaLog, buffer: MessageBuffer) -> None:
        self.log, self._buffer = log, buffer
        self.table_id = log.snapshot.table_id
        self.wait_s = 0.0  # the longest send time-out of the producers
        self._runs: list[tuple[tuple[Balancing, str], int, PagedRows]] = []
        self._token, self._numbers = secrets.token_urlsafe(12), itertools.count()
        self.count = 0

    def add(self, rows: pa.RecordBatch, outgoing: OutgoingMessages) -> Sequence[str]:
        """Returns the ids of the messages."""
        ids = [f"ID:{self._token}-{next(self._numbers)}" for _ in range(rows.num_rows)]
        named = pa.RecordBatch.from_arrays([pa.array(ids, pa.string()), *rows.columns], names=list(ROW_COLUMNS))
        by = outgoing.balancing, outgoing.producer
        if not self._runs or self._runs[-1][0] != by:
            self._runs.append((by, outgoing.turn, PagedRows(self._buffer)))
        self._runs[-1][2].append(named)
        self.wait_s = max(self.wait_s, outgoing.wait_s)
        self.count += rows.num_rows
        return ids

    def rows(self) -> list[CollectedRows]:
        return [CollectedRows(rows, balancing, turn, producer) for (balancing, producer), turn, rows in self._runs]

    def clear(self) -> None:
        runs, self._runs, self.count = self._runs, [], 0
        for _, _, rows in runs:
            rows.clear()
