"""The in-process calls whose commit and planning times are measured: one function each.

Only this file knows the names. Commit: the plain client's `producer.send` (one message, one commit). Planning: the
reader that Spark itself would call, `latestOffset` and `partitions`. Housekeeping: the round that runs beside readers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.errors import CellFailedError

BODY = b"x" * 16
NEVER = 2**62


def apply(root: Path, destinations: Mapping[str, Mapping[str, Any]]) -> None:
    """Creates destinations."""
    import spark_jms

    root.mkdir(parents=True, exist_ok=True)
    spark_jms.apply(str(root), {"destinations": {name: dict(kind) for name, kind in destinations.items()}})


def create(root: Path, store: str) -> None:
    """A domain on this store."""
    from spark_jms.log.destinations.domain import create_domain

    root.mkdir(parents=True, exist_ok=True)
    create_domain(str(root), store)


@contextlib.contextmanager
def idle_senders() -> Iterator[None]:
    """Inside, senders of this process do no housekeeping."""
    with contextlib.ExitStack() as stack:
        for name in ("DUE_VERSIONS", "OVERDUE_VERSIONS"):
            stack.enter_context(patch(f"spark_jms.log.upkeep.housekeeping.{name}", NEVER))
        yield


@contextlib.contextmanager
def committer(root: Path, destination: str, *, housekeeping: bool) -> Iterator[Callable[[], None]]:
    """A call that sends one message, durably, in one commit; without housekeeping, senders do none either."""
    import spark_jms

    with contextlib.ExitStack() as stack:
        if not housekeeping:
            stack.enter_context(idle_senders())
        context = stack.enter_context(spark_jms.connect(str(root), housekeeping=False))
        producer = context.producer(destination)

        def commit() -> None:
            producer.send(body=BODY)

        yield commit


def housekeep(root: Path, destination: str) -> None:
    """One round of a reader's housekeeping: purge, compaction, Delta checkpoint, clean-up when it is due."""
    from spark_jms.claims.upkeep.housekeeping import Housekeeper
    from spark_jms.log.destinations.domain import Domain
    from spark_jms.store import open_store

    domain = Domain(str(root))
    with open_store(domain.store_uri) as store:
        housekeeper = Housekeeper(domain, store, destination)
        try:
            if not housekeeper.run():
                raise CellFailedError(f"somebody else does the housekeeping of {destination}")
        finally:
            housekeeper.close()


def fill(spark: Any, root: Path, destination: str, messages: int, tasks: int) -> None:
    """One batch send of small messages from this many tasks."""
    frame = spark.range(0, messages, 1, tasks).selectExpr("cast(cast(id as string) as binary) as body")
    writer = frame.write.format("jmsq").option("root", str(root)).option("destination", destination)
    writer.mode("append").save()


def delay(root: Path, destination: str, messages: int) -> None:
    """One send of messages that are due tomorrow."""
    from spark_jms import connect

    with connect(root, housekeeping=False) as context:
        context.producer(destination).send_many([{"text": "x", "delay": "1 d"}] * messages)


@contextlib.contextmanager
def planner(root: Path, destination: str, limit: int | None, *, housekeeping: bool) -> Iterator[Callable[[], int]]:
    """A call that plans one batch, of `limit` messages or of everything, and returns the number of its partitions.

    Each call acknowledges the batch before it, as in a query: the offsets go round as Spark sends them. A reader does
    the housekeeping from a thread of its own; without housekeeping that task is taken from it.
    """
    from pyspark.sql.types import StructType

    from pyspark_jmsq import DefaultSource
    from spark_jms.core.records.batch import Batch

    options = {"root": str(root), "destination": destination}
    if limit is not None:
        options["maxMessagesPerTrigger"] = str(limit)
    source = DefaultSource(options)
    reader: Any = source.streamReader(StructType.fromDDL(source.schema()))
    read_limit = reader.getDefaultReadLimit()
    offset = reader.latestOffset(reader.initialOffset(), read_limit)  # the first batch only names the consumer
    if not housekeeping:
        reader._open(Batch.from_json(offset))
        reader._housekeeping_thread.close()

    def plan() -> int:
        nonlocal offset
        end = reader.latestOffset(offset, read_limit)
        count = len(reader.partitions(offset, end))
        if count == 0:
            raise CellFailedError("nothing was there to plan")
        offset = end
        return count

    try:
        yield plan
    finally:
        reader.stop()


def version_and_files(root: Path, destination: str) -> tuple[int, int]:
    """Version and number of active files of the destination's table, found under the root by its name."""
    from deltalake import DeltaTable

    logs = [log.parent for log in root.rglob("_delta_log") if destination in log.parent.relative_to(root).parts]
    if not logs:
        raise FileNotFoundError(f"no Delta table of {destination!r} under the root")
    table = DeltaTable(str(min(logs, key=lambda path: len(path.parts))))
    return table.version(), len(table.file_uris())


@contextlib.contextmanager
def finder(root: Path, destination: str, selector: str, matching: int) -> Iterator[Callable[[], int]]:
    """A call that plans and claims all `matching` messages in one batch and returns how many; the end releases them."""
    import spark_jms
    from spark_jms.claims.batches.batch import ConsumerSettings
    from spark_jms.claims.consumers.subscriber import Subscriber
    from spark_jms.core.records.batch import Batch, Limits
    from spark_jms.core.selector import Selector

    settings = ConsumerSettings(Selector.parse(selector), replayable=False)
    with spark_jms.connect(str(root), housekeeping=False) as context, contextlib.ExitStack() as stack:

        def find() -> int:
            subscriber = Subscriber(context._domain, context._store, destination, "-", "bench", settings)
            stack.callback(subscriber.close)
            batch = subscriber.next_batch(Batch("bench"), Limits(min_messages=matching))
            if batch is None:
                return 0
            picks = {member: part.picks for member, part in batch.members.items()}
            stack.callback(subscriber.release, batch.claim, picks, delivered=False)
            return batch.count

        yield find


# -- the services that are streaming aggregations -----------------------------------------------------------------------
EXPIRATION_EVERY_S = 30.0


@contextlib.contextmanager
def expiration(spark: Any, root: Path, checkpoint: Path, every_s: float) -> Iterator[Any]:
    """The query of expiration."""
    from spark_jms.jobs.expiration import start_expiration
    from spark_jms.jobs.services import query_session

    query = start_expiration(query_session(spark), str(root), str(checkpoint), every_s)
    try:
        yield query
    finally:
        query.stop()


@contextlib.contextmanager
def usage(spark: Any, root: Path, checkpoint: Path) -> Iterator[Any]:
    """The query of usage."""
    from spark_jms.admin.services import USAGE_EVERY_S
    from spark_jms.claims.upkeep.usage_history import UsageSink
    from spark_jms.claims.upkeep.views import opened_store
    from spark_jms.jobs.services import query_session
    from spark_jms.jobs.usage import start_usage
    from spark_jms.log.destinations.domain import Domain

    domain = Domain(str(root))
    with opened_store(domain) as store:
        query = start_usage(query_session(spark), domain, UsageSink(domain, store), str(checkpoint), USAGE_EVERY_S)
        try:
            yield query
        finally:
            query.stop()


@contextlib.contextmanager
def expirations(root: Path) -> Iterator[Callable[[str], int]]:
    """How many messages of a destination have expired."""
    from spark_jms.admin.statistics import collect
    from spark_jms.claims.upkeep.views import opened_store
    from spark_jms.log.destinations.domain import Domain

    domain = Domain(str(root))
    with opened_store(domain) as store:
        yield lambda destination: collect(domain, store, destination).expired


def due_map_bytes(root: Path, destination: str) -> int:
    """What the state has of the destination's largest member, once it has read everything that was sent."""
    from spark_jms.core.changes.due_map import DueMap, due_row
    from spark_jms.log.changes.feed import ChangeFeed
    from spark_jms.log.destinations.domain import Domain

    maps: dict[int, DueMap] = {}
    for change in ChangeFeed(Domain(str(root)), destination):
        row = due_row(change)
        if row is not None:
            maps[change.member] = maps.get(change.member, DueMap()).told(row)
    return max(len(one.to_bytes()) for one in maps.values())


def feed_position(query: Any) -> int:
    """How many messages the batches that are done have read."""
    from spark_jms.core.changes.change import FeedPosition

    ends = [source.endOffset for progress in query.recentProgress for source in progress.sources]
    found = [end for end in ends if end and end != "null"]
    tables = FeedPosition.from_text(found[-1]).tables if found else {}
    return sum(last for table in tables.values() for last in table.sent.values())
