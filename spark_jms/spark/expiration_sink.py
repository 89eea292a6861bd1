"""The sink of `action` `expire`: rows name messages that are due, and those that are over expire by the policy of their destination.

It runs in tasks, where it opens the domain and its store once a process. It keeps nothing, and the record set decides: a batch that
Spark repeats finds nothing left to do. Errors of a destination fail no task: they travel in the commit messages, and the commit writes
them for `jmsq services`.

Features: T6, M12 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from spark_jms.errors import JmsqError, OptionError
from spark_jms.settings.options import Options
from spark_jms.spark.tasks import freeze_loaded

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_jms.claims.failures.due_expiration import DueExpiration

log = logging.getLogger("spark_jms")
DUE_COLUMNS = ("table", "destination", "member", "ranges")
_opened: dict[str, DueExpiration] = {}  # of this process, by root


@dataclass
class ExpiredMessages(WriterCommitMessage):
    """A task's report to the driver. `looked`: by destination what prevented its expiration, or ""."""

    expired: int
    query_id: str = ""
    looked: dict[str, str] = field(default_factory=dict)


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
        query_id = _query_id()
        if not due:
            return ExpiredMessages(0, query_id)
        expiration = _expiration(self._root)
        done = ExpiredMessages(expiration.expire(due), query_id, dict(expiration.looked))
        freeze_loaded()
        return done

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """What has expired is in the record sets; what prevented the rest is noted. Raises nothing: the next batch notes it again."""
        from spark_jms.claims.failures.due_expiration import ExpirationProblems
        from spark_jms.claims.upkeep.power_loss import open_domain

        looked, query_id = looked_of(messages)
        if not (looked and query_id):
            return
        try:
            ExpirationProblems(open_domain(self._root), query_id).note(looked)
        except (JmsqError, OSError) as error:
            log.warning(
                "what prevents the expiration of messages cannot be shown, it is in the log files of tasks: %s", error
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Does nothing: Spark repeats the batch."""


def looked_of(messages: Sequence[WriterCommitMessage | None]) -> tuple[dict[str, str], str]:
    """Pure. What the tasks of a batch have looked at, with the problems, and the id of their query. Members of one destination may be
    in several tasks."""
    looked, query_id = dict[str, str](), ""
    for one in messages:
        if isinstance(one, ExpiredMessages):
            query_id = one.query_id or query_id
            looked |= {name: text or looked.get(name, "") for name, text in one.looked.items()}
    return looked, query_id


def _query_id() -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    return (context.getLocalProperty("sql.streaming.queryId") or "") if context is not None else ""


def _expiration(root: str) -> DueExpiration:
    from spark_jms.claims.failures.due_expiration import DueExpiration
    from spark_jms.claims.servers.stores import open_stores
    from spark_jms.claims.upkeep.power_loss import open_domain

    if root not in _opened:
        domain = open_domain(root)
        _opened[root] = DueExpiration(domain, open_stores(domain))
    return _opened[root]
