"""Batch reads: browsing never consumes. The option `view` selects the rows:

messages          unfinished messages of the queue, or of the topic's `subscription`
all               every message still in the table
acknowledgements  which consumer acknowledged which sequences, and when
claims            messages that consumers have claimed
subscriptions     position and backlog of each subscription and member
events            what became of messages: the life-cycle log
usage             what passed through the destination in each minute, and what it held
changes           what happened to messages: spark/changes.py

Features: C1, C13, C16 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_jms.core.messages.columns import spark_schema
from spark_jms.errors import OptionError
from spark_jms.settings.options import Options
from spark_jms.spark.changes import CHANGES, CHANGES_SCHEMA
from spark_jms.spark.options import address_of, browsed_subscription, check_browsing
from spark_jms.spark.tasks import MemberPartition, freeze_loaded, read_partition

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

    from spark_jms.core.destinations.destination import Destination
    from spark_jms.log.destinations.domain import Domain
    from spark_jms.log.tables.delta_log import DeltaLog

_TARGET_PARTITION_BYTES = 128 * 2**20
VIEW_SCHEMAS = {
    "acknowledgements": "destination string, subscription string, member int, consumer string, claim string, epoch bigint, "
    "acknowledged timestamp, messages bigint, first bigint, last bigint, ranges string",
    "claims": "destination string, subscription string, member int, claim string, consumer string, session string, "
    "live boolean, messages bigint, first bigint, last bigint, made timestamp, in_doubt_since timestamp, attempts int, "
    "deaths int, withheld bigint, ranges string",
    "subscriptions": "destination string, subscription string, member int, floor bigint, last_sequence bigint, "
    "backlog bigint, claimed bigint, consumers array<string>, epoch bigint, delayed bigint, expired bigint, "
    "subscription_messages_limit bigint, subscription_limit_deleted_count bigint, durable boolean, away boolean, refused bigint",
    "events": "destination string, subscription string, member int, event string, happened timestamp, consumer string, "
    "claim string, messages bigint, first bigint, last bigint, ranges string, detail string, key string",
    "usage": "destination string, begins timestamp, sent bigint, finished bigint, expired bigint, dropped bigint, "
    "messages_used bigint, bytes_used bigint",
    CHANGES: CHANGES_SCHEMA,
}


def view_schema(options: Options) -> str:
    return VIEW_SCHEMAS.get(options.view) or spark_schema(options.columns)


def check_schema(options: Options, schema: StructType, *, of_table: bool = False) -> None:
    """Raises OptionError for a schema that is not `view_schema`, as only a given one can be, or that of a table that is read with
    other options. Spark does not look, and each task would fail after the messages were claimed."""
    given = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
    if given != view_schema(options):
        if of_table:
            raise OptionError(
                f"a table has the columns that CREATE TABLE gave it, ({given}), but these options read ({view_schema(options)}): "
                "leave the options columns and view out where the table is used, and do not alter its columns"
            )
        choice = (
            ', or choose columns with option("columns", "sequence,text")' if options.view not in VIEW_SCHEMAS else ""
        )
        raise OptionError(
            f"a schema is given, ({given}), but these options read ({view_schema(options)}): leave it out{choice}"
        )


@dataclass
class ViewPartition(InputPartition):
    """Rows that the driver has computed."""

    rows: list[tuple[Any, ...]]


class JmsqReader(DataSourceReader):
    def __init__(self, options: Options) -> None:
        check_browsing(options)
        self.options, self._address = options, address_of(options)

    def partitions(self) -> Sequence[InputPartition]:
        from spark_jms.claims.upkeep import life_cycle_view, views
        from spark_jms.claims.upkeep.power_loss import open_domain
        from spark_jms.claims.upkeep.usage_history import usage_history

        o = self.options
        domain = open_domain(o.root)
        table = domain.log(self._address.destination)
        declared = table.refresh().destination
        only, subscription = self._address.read_members(declared), self._subscription(declared)
        if o.view == "usage":
            return [ViewPartition([views.as_row(row) for row in usage_history(domain, [table.name])])]
        if o.view in VIEW_SCHEMAS:
            read = life_cycle_view.events if o.view == "events" else getattr(views, o.view)
            with views.opened_store(domain) as store:
                rows = read(domain, store, table.name, subscription)
            return [ViewPartition([views.as_row(row) for row in rows if only is None or row.member in only])]
        return self._message_partitions(domain, table, only, subscription)

    def _subscription(self, declared: Destination) -> str | None:
        from spark_jms.core.destinations.subscriptions import kept_at

        kept = browsed_subscription(self.options)
        return None if kept is None else kept_at(declared, self._address.server_in(declared), kept)

    def _message_partitions(
        self, domain: Domain, table: DeltaLog, only: list[int] | None, subscription: str | None
    ) -> list[InputPartition]:
        from spark_jms.claims.messages.scan import Question, scan
        from spark_jms.claims.upkeep import views
        from spark_jms.core.destinations.subscriptions import missed
        from spark_jms.core.messages.ranges import EMPTY, Ranges
        from spark_jms.core.selector import Selector

        o = self.options
        snapshot, states, path = table.snapshot, {}, domain.table_path(table.name)
        if o.view == "messages":
            with views.opened_store(domain) as store:
                states = views.states(domain, store, table.name, subscription, only)
        selector = Selector.parse(o.selector)
        out: list[InputPartition] = []
        for member, files in sorted(snapshot.members.items()):
            if not files.files or not (only is None or member in only):
                continue
            picks = Ranges.of(*((f.first, f.last) for f in files.files))
            state = states.get(member)
            if state is not None:
                picks = picks & state.unfinished(1, snapshot.last_sequence(member))
            not_seen = (
                missed(snapshot.destination, subscription, member, picks.last) if subscription and picks else EMPTY
            )
            if picks and (selector is not None or not_seen):
                question = Question(selector, missed=not_seen)
                picks = scan(table, member, picks, question, table_id=snapshot.table_id).picks
            redelivered = state.redelivered(picks) if state else {}
            for group in _groups([f for f in files.files if picks.between(f.first, f.last)]):
                part = picks.between(group[0].first, group[-1].last)
                out.append(
                    MemberPartition(
                        o.root,
                        table.name,
                        member,
                        o.columns,
                        part,
                        redelivered,
                        [f.hint for f in group],
                        fail_on_data_loss=False,
                        table_id=snapshot.table_id,
                        unpacks=snapshot.destination.has_compressed,
                        table_path=path,
                    )
                )
        return out

    def read(self, partition: InputPartition) -> Iterator[RecordBatch] | Iterator[tuple[Any, ...]]:
        if isinstance(partition, ViewPartition):
            yield from partition.rows
        elif isinstance(partition, MemberPartition):
            yield from read_partition(partition)
        freeze_loaded()


def _groups(files: list[Any]) -> Iterator[list[Any]]:
    """Groups of consecutive files of about 128 MiB: one Spark partition each."""
    group: list[Any] = []
    size = 0
    for file in files:
        group.append(file)
        size += file.bytes
        if size >= _TARGET_PARTITION_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
