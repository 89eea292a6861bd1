"""Sending from Spark: tasks write files, and the driver turns them into messages in one commit.

A micro-batch is the transaction (query id, batch id): the log holds its commit once, however often Spark repeats the
batch. A batch write has no such identity, because two writes in one foreachBatch share the query's; only `txnAppId` and
`txnVersion` make it repeatable.

While production is paused, a new batch fails by name before it writes; one that was planned before the pause is committed. While
insertion is paused, or the destination's quota has no room, a batch waits at its commit for `sendTimeout`, at most as long as its
staged files are safe from clean-up, and then fails by name. Spark interrupts a task, but no commit: a query that is stopped
meanwhile ends after the wait. A task must not wait instead, because it would keep a core from the query that makes the room.

Flow control slows a query down by the rules of core/limits/flow_control.py. Spark makes a new writer for each batch, and a new
process may commit it, so the pace of a query stands in a file under the query's id. A commit waits until the batches before it
are paid for, in bounds; its own messages then join the debt, once for each batch, however often Spark repeats its commit.

ROOT/_jmsq/flow/<table id>/<query id>     JSON: the newest batch, the pace, what is armed; none while the query is free

Features: C1, C4, C5, T1, T5, T14 (docs/FEATURES.md)
"""

from __future__ import annotations

import functools
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import attrs
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from spark_jms.claims.upkeep.power_loss import open_domain
from spark_jms.core.destinations.pause import PRODUCTION
from spark_jms.core.destinations.routing import Balancing, balancing_of
from spark_jms.core.limits.flow_control import FREE, UNARMED, Arming, Pace, parameters_of, thresholds_of
from spark_jms.core.transactions.transfer import StagedFile
from spark_jms.errors import DuplicateTransactionError, OptionError, QueryIdError
from spark_jms.log.destinations.domain import Domain, watched_of
from spark_jms.log.destinations.servers import home_server
from spark_jms.log.limits.usage import FLOW
from spark_jms.log.messages.data_files import discard, patience_ms
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.log.sending.send import Sender, TransactionId, send
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import RouteId
from spark_jms.log.tables.storage import NamedFiles, now_ms
from spark_jms.log.upkeep.housekeeping import SenderHousekeeping
from spark_jms.settings.connection_factory import ConnectionFactory
from spark_jms.settings.options import Options
from spark_jms.spark.options import address_of, check_written
from spark_jms.spark.tasks import freeze_loaded

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

log = logging.getLogger("spark_jms")
LONGEST_COMMIT_WAIT_S = 30.0
_SHORTEST_S, _LOOK_AGAIN_S = 0.001, 1.0
open_domains: dict[str, Domain] = {}  # of this process, by root


@dataclass
class StagedMessage(WriterCommitMessage):
    """A task's report to the driver."""

    partition: int
    query_id: str
    routed_by: RouteId
    files: list[StagedFile]
    balancing: Balancing


def _factory(domain: Domain, options: Options) -> ConnectionFactory:
    """The named connection factory, with the options that are given instead of its settings."""
    name = options.connection_factory
    named = domain.connection_factories.get(name) if name else ConnectionFactory()
    own = ("load_balancing_enabled", "server_affinity_enabled", "producer_load_balancing_policy")
    given = {field: getattr(options, field) for field in own if getattr(options, field) is not None}
    return attrs.evolve(named, **given)


def _arrow_schema(schema: StructType) -> pa.Schema:
    import pyarrow as pa

    return pa.schema(_arrow_fields(schema))


def _arrow_fields(struct: StructType) -> list[pa.Field]:
    import pyarrow as pa

    return [pa.field(field.name, _arrow_type(field.dataType)) for field in struct]


def _arrow_type(kind: DataType) -> pa.DataType:
    """The type that the column has in a task's batches, in any time zone. PySpark cannot convert intervals of months: here
    they are Arrow's own, which no message column accepts."""
    import pyarrow as pa
    from pyspark.errors import PySparkTypeError
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StructType

    try:
        return to_arrow_type(kind, timezone="UTC")
    except PySparkTypeError:
        return pa.struct(_arrow_fields(kind)) if isinstance(kind, StructType) else pa.month_day_nano_interval()


class _Writer:
    """Spark creates one on the driver for each batch and another for its commit; a pickled copy runs in each task."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        from spark_jms.core.messages.columns import IN_SQL, check_sendable

        if overwrite:
            raise OptionError('messages are sent, not overwritten: use mode("append") and outputMode("append")')
        self.options, self.address = options, address_of(options)
        check_sendable(_arrow_schema(schema), IN_SQL)
        domain = domain_at(options.root)
        snapshot = domain.log(self.address.destination).verify()
        self.destination, self.route_id = snapshot.destination, snapshot.route_id
        self.factory, self.home = _factory(domain, options), home_server(domain.servers, options.server)
        self.address.members(self.destination)  # a name that fits no member fails before anything is written
        freeze_loaded()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        query_id = context.getLocalProperty("sql.streaming.queryId") or ""
        batch_id = int(context.getLocalProperty("streaming.sql.batchId") or int.from_bytes(os.urandom(4), "big"))
        storage = domain_at(self.options.root).log(self.address.destination).storage
        if len(self.destination.pauses.members(PRODUCTION, self.destination.member_ids)) == self.destination.members:
            self.destination.check_production(self.destination.member_ids, self.route_id.epoch)
        sender = query_id or self.options.txn_app_id or context.getLocalProperty("spark.sql.execution.id") or ""
        balancing = balancing_of(self.factory, self.address.server, self.home, sender)
        routing = balancing.routing(self.destination)
        threshold = self.factory.default_compression_threshold
        writer = MessageWriter(
            storage, self.destination, turn=batch_id + context.partitionId(), routing=routing, threshold=threshold
        )
        try:
            for batch in iterator:
                writer.write(batch)
            staged = writer.close()
        except BaseException:
            writer.abort()
            raise
        freeze_loaded()
        return StagedMessage(context.partitionId(), query_id, self.route_id, staged, balancing)

    def _discard(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete the staged files if it is certain that nothing was committed, that is, if a task's message is missing.

        Spark also aborts after a commit that failed or whose outcome it does not know. Then the log may name the files,
        so they stay, and housekeeping removes them if it does not."""
        if None not in messages:
            return
        storage = domain_at(self.options.root).log(self.address.destination).storage
        for message in messages:
            if isinstance(message, StagedMessage):
                discard(storage, message.files)

    def _keep_pace(self, flow: SinkFlow, staged: Sequence[StagedMessage], batch_id: int) -> None:
        """Wait while flow control keeps the batch back, for half as long as its staged files are safe from clean-up."""
        if thresholds_of(self.destination) or self.destination.servers:
            files = [file for message in staged for file in message.files]
            longest_s = patience_ms(files, self.destination, now_ms()) / 2000
            flow.wait(staged[0].query_id, batch_id, sum(file.rows for file in files), longest_s)

    def _send(
        self,
        messages: Sequence[WriterCommitMessage | None],
        transaction: TransactionId | None,
        *,
        paced: bool = False,
    ) -> None:
        staged = sorted((m for m in messages if isinstance(m, StagedMessage)), key=lambda m: m.partition)
        files = [file for message in staged for file in message.files]
        if not files:
            return
        domain = domain_at(self.options.root)
        log = domain.log(self.address.destination)
        log.verify()  # this process may know a table that was dropped and created again since
        if paced and transaction is not None:
            self._keep_pace(SinkFlow(domain, log, self.factory), staged, transaction.version)
        wait_s = min(patience_ms(files, self.destination, now_ms()), self.options.send_timeout_ms) / 1000
        sent = send(
            log,
            files,
            staged[0].routed_by,
            transaction,
            wait_s=wait_s,
            balancing=staged[0].balancing,
            sender=_sender(staged[0].query_id, transaction),
        )
        if sent.version >= 0:
            _housekeeping(self.options.root).sent(log, sent.version)
        freeze_loaded()


class JmsqStreamWriter(_Writer, DataSourceStreamArrowWriter):
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        query_ids = {message.query_id for message in messages if isinstance(message, StagedMessage)}
        if len(query_ids) > 1 or "" in query_ids:
            raise QueryIdError()
        self._send(messages, TransactionId(f"sink/{next(iter(query_ids), '')}", batchId), paced=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._discard(messages)


class JmsqWriter(_Writer, DataSourceArrowWriter):
    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if (options.txn_app_id is None) != (options.txn_version is None):
            raise DuplicateTransactionError()
        check_written(options, schema.names)
        super().__init__(options, schema, overwrite)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        app_id, version = self.options.txn_app_id, self.options.txn_version
        self._send(messages, TransactionId(f"app/{app_id}", version) if app_id and version is not None else None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._discard(messages)


@dataclass(frozen=True)
class QueryPace:
    """The pace of a query, as its file has it. `batch`: the newest whose messages have joined the debt."""

    batch: int = -1
    pace: Pace = FREE
    armed: Mapping[str, Arming] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        armed = {name: [arming.messages, arming.bytes] for name, arming in self.armed.items()}
        return json.dumps({"v": 1, "batch": self.batch, "pace": self.pace.to_json(), "armed": armed}).encode()

    @staticmethod
    def from_bytes(data: bytes) -> QueryPace:
        """Raises KeyError, ValueError or TypeError."""
        stored = json.loads(data)
        armed = {str(name): Arming(bool(messages), bool(size)) for name, (messages, size) in stored["armed"].items()}
        return QueryPace(int(stored["batch"]), Pace.from_json(stored["pace"]), armed)


@dataclass(frozen=True)
class SinkFlow:
    """Flow control of the queries that send to one destination."""

    domain: Domain
    table: DeltaLog
    factory: ConnectionFactory
    clock_ms: Callable[[], int] = now_ms
    sleep: Callable[[float], object] = time.sleep

    def wait(self, query: str, batch: int, messages: int, longest_s: float) -> float:
        """Before the commit of a batch: wait until the batches before it are paid for, at most `longest_s` and
        LONGEST_COMMIT_WAIT_S. Returns how long, in seconds."""
        watched = watched_of(self.domain, self.table)
        if not self.factory.flow_control_enabled or not any(one.thresholds() for one in watched):
            return 0.0
        files = NamedFiles(self.domain.storage, f"{FLOW}/{self.table.snapshot.table_id}")
        stored = self._read(files, query)
        known, pace, armed = stored or QueryPace(), (stored or QueryPace()).pace, dict((stored or QueryPace()).armed)
        pace = pace.not_after(self.clock_ms())
        most_s, waited_s = min(longest_s, LONGEST_COMMIT_WAIT_S), 0.0
        while True:
            armed = {one.name: one.after(armed.get(one.name, UNARMED)) for one in watched}
            pace = pace.at(self.clock_ms(), parameters_of(self.factory), armed=any(armed.values()))
            left_s = min(pace.wait_ms(pace.due) / 1000, most_s - waited_s, _LOOK_AGAIN_S)
            if left_s < _SHORTEST_S:
                break
            self.sleep(left_s)
            waited_s += left_s
        if known.batch != batch:
            pace = pace.with_debt(messages)
        if pace.limit is not None:
            files.put(query, QueryPace(batch, pace, armed).to_bytes())
        elif stored is not None:
            files.delete(query)
        return waited_s

    def _read(self, files: NamedFiles, query: str) -> QueryPace | None:
        data = files.get(query)
        if data is None:
            return None
        try:
            return QueryPace.from_bytes(data)
        except (KeyError, ValueError, TypeError) as error:
            log.warning("%s is damaged and counts as missing: %r", files.shown(query), error)
            return None


def _sender(query_id: str, transaction: TransactionId | None) -> Sender | None:
    """A repeated batch takes over the reservation of its earlier attempt."""
    if transaction is None:
        return None
    what = (
        f"query {query_id}, batch {transaction.version}" if query_id else f"{transaction.app_id}, {transaction.version}"
    )
    return Sender(what, f"{transaction.app_id}/{transaction.version}")


def domain_at(root: str) -> Domain:
    """Spark makes a new writer for each batch, but plans and commits many in one process: a batch reads what was added to the log
    and to the ledgers of its quotas since the one before it."""
    known = open_domains.get(root)
    if known is None or not known.is_unchanged():
        known = open_domains[root] = open_domain(root)
    return known


@functools.cache
def _housekeeping(root: str) -> SenderHousekeeping:
    """Of this process."""
    return SenderHousekeeping(domain_at(root))
