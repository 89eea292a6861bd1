"""Sending from Spark: tasks write files, and the driver turns them into messages in one commit.

A micro-batch is the transaction (query id, batch id): the log holds its commit once, however often Spark repeats the
batch. A batch write has no such identity, because two writes in one foreachBatch share the query's; only `txnAppId` and
`txnVersion` make it repeatable.

While production is paused, a new batch fails by name before it writes; one that was planned before the pause is committed. While
insertion is paused, or the destination's quota has no room, a batch waits at its commit for `sendTimeout`, at most as long as its
staged files are safe from clean-up, and then fails by name. Spark interrupts a task, but no commit: a query that is stopped
meanwhile ends after the wait. A task must not wait instead, because it would keep a core from the query that makes the room.

Flow control slows writers down by the rules of core/limits/flow_control.py. Spark makes a new writer for each batch, and a new
process may commit it, so the pace of a query stands in a file under the query's id, also for the batch writes of its foreachBatch. A
batch joins the debt once, however often Spark repeats its commit, and its commit waits until it is paid for, or for half as long as
its files are safe; then the rest stays as debt. A batch write outside of a query begins free, and pays for itself.

ROOT/_jmsq/flow/<table id>/<query id>     JSON: the newest batch, the pace, what is armed; none while the query is free

Features: C1, C4, C5, T1, T5, T14 (docs/FEATURES.md)
"""

from __future__ import annotations

import functools
import json
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import attrs
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from spark_jms.claims.upkeep.power_loss import open_domain
from spark_jms.core.destinations.pause import PRODUCTION
from spark_jms.core.destinations.routing import Balancing, balancing_of
from spark_jms.core.limits.flow_control import FREE, Arming, Pace, parameters_of
from spark_jms.core.transactions.transfer import StagedFile
from spark_jms.errors import DuplicateTransactionError, OptionError, QueryIdError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.destinations.limits import armed_after, watched_of
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

    from spark_jms.store import Store

log = logging.getLogger("spark_jms")
OPENED_AND_COUNTED_S = 5.0  # the usage, at most
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
            storage,
            self.destination,
            turn=batch_id + context.partitionId(),
            routing=routing,
            threshold=threshold,
            unit=self.factory.default_unit_of_order,
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

    def _keep_pace(self, flow: SinkFlow, query_id: str, batch_id: int | None, files: Sequence[StagedFile]) -> None:
        """Wait while flow control keeps the batch back, for half as long as its staged files are safe from clean-up."""
        longest_s = patience_ms(files, self.destination, now_ms()) / 2000
        flow.wait(query_id, batch_id, sum(file.rows for file in files), longest_s)

    def _send(
        self,
        messages: Sequence[WriterCommitMessage | None],
        transaction: TransactionId | None,
        batch_id: int | None = None,
    ) -> None:
        """`batch_id`: of the query; None: of a batch write."""
        staged = sorted((m for m in messages if isinstance(m, StagedMessage)), key=lambda m: m.partition)
        files = [file for message in staged for file in message.files]
        if not files:
            return
        domain = domain_at(self.options.root)
        log = domain.log(self.address.destination)
        log.verify()  # this process may know a table that was dropped and created again since
        if transaction is None or not transaction.is_in(log.snapshot):
            flow = SinkFlow(domain, log, self.factory, server=self.address.server)
            self._keep_pace(flow, staged[0].query_id, batch_id, files)
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
        self._send(messages, TransactionId(f"sink/{next(iter(query_ids), '')}", batchId), batchId)

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
    """Flow control of the writers that send to one destination, or to its member on a `server`."""

    domain: Domain
    table: DeltaLog
    factory: ConnectionFactory
    clock_ms: Callable[[], int] = now_ms
    sleep: Callable[[float], object] = time.sleep
    server: str | None = None

    def wait(self, query: str, batch: int | None, messages: int, longest_s: float) -> float:
        """Before the commit of a batch: wait until all but the last of its messages are paid for, at most `longest_s`. `query` "": of
        none. `batch` None: it owes with each attempt. Returns how long, in seconds."""
        watched = watched_of(self.domain, self.table, self.server)
        if not self.factory.flow_control_enabled or not any(one.thresholds() for one in watched):
            return 0.0
        files = NamedFiles(self.domain.storage, f"{FLOW}/{self.table.snapshot.table_id}")
        stored = self._read(files, query)
        known, pace, armed = stored or QueryPace(), (stored or QueryPace()).pace, dict((stored or QueryPace()).armed)
        pace = pace.not_after(self.clock_ms())
        ticket, waited_s = pace.due, 0.0
        for attempt in count():
            armed = armed_after(watched, armed)
            pace = pace.at(self.clock_ms(), parameters_of(self.factory), armed=any(armed.values()))
            if attempt == 0 and (batch is None or known.batch != batch):
                ticket, pace = pace.ticket(messages), pace.with_debt(messages)
            left_s = min(pace.wait_ms(ticket) / 1000, longest_s - waited_s, _LOOK_AGAIN_S)
            if left_s < _SHORTEST_S:
                break
            self.sleep(left_s)
            waited_s += left_s
        if not query:
            return waited_s
        if pace.limit is not None:
            files.put(query, QueryPace(known.batch if batch is None else batch, pace, armed).to_bytes())
        elif stored is not None:
            files.delete(query)
        return waited_s

    def _read(self, files: NamedFiles, query: str) -> QueryPace | None:
        data = files.get(query) if query else None
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
        known.quotas.recount = functools.partial(_recount, known)
    return known


def _recount(domain: Domain, destinations: Collection[str]) -> None:
    """A batch that finds no room opens the stores, which no other sink needs."""
    _recount_of(domain)(destinations)


@functools.cache
def _recount_of(domain: Domain) -> Callable[[Collection[str]], None]:
    """Of this process."""
    from spark_jms.claims.upkeep.usage import UsageRecount
    from spark_jms.claims.upkeep.views import opened_store

    @contextmanager
    def stores() -> Iterator[Callable[[str], Store]]:
        with opened_store(domain) as store:
            yield lambda _: store

    return UsageRecount(domain, stores, OPENED_AND_COUNTED_S)


@functools.cache
def _housekeeping(root: str) -> SenderHousekeeping:
    """Of this process."""
    return SenderHousekeeping(domain_at(root))
