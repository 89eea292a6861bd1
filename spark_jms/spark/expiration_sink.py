"""The sink of `action` `expire`: rows name messages that are due, and those that are over expire by the policy of their destination.

It runs in tasks, where it opens the domain and its store once a process. It keeps nothing, and the record set decides: a batch that
Spark repeats finds nothing left to do.

Features: T6, M12 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from spark_jms.errors import OptionError
from spark_jms.settings.options import Options
from spark_jms.spark.tasks import freeze_loaded

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_jms.claims.failures.due_expiration import DueExpiration

DUE_COLUMNS = ("table", "destination", "member", "ranges")
_opened: dict[str, DueExpiration] = {}  # of this process, by root


@dataclass
class ExpiredMessages(WriterCommitMessage):
    """A task's report to the driver."""

    expired: int


class ExpirationWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        """Raises OptionError."""
        missing = [name for name in DUE_COLUMNS if name not in schema.names]
        if missing or overwrite:
            raise OptionError(
                f"a query with the option action 'expire' writes in append mode the columns {', '.join(DUE_COLUMNS)}"
                + (f", and lacks {', '.join(missing)}" if missing else "")
            )
        self._root = options.root

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ExpiredMessages:
        from spark_jms.claims.failures.due_expiration import DueMessages
        from spark_jms.core.messages.ranges import Ranges

        due = [
            DueMessages(row["table"], row["destination"], row["member"], Ranges.from_json(json.loads(row["ranges"])))
            for batch in iterator
            for row in batch.select(list(DUE_COLUMNS)).to_pylist()
        ]
        done = ExpiredMessages(_expiration(self._root).expire(due) if due else 0)
        freeze_loaded()
        return done

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: what has expired is in the record sets."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: Spark repeats the batch."""


def _expiration(root: str) -> DueExpiration:
    from spark_jms.claims.failures.due_expiration import DueExpiration
    from spark_jms.claims.servers.stores import open_stores
    from spark_jms.claims.upkeep.power_loss import open_domain

    if root not in _opened:
        domain = open_domain(root)
        _opened[root] = DueExpiration(domain, open_stores(domain))
    return _opened[root]
