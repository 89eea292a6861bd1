"""The streaming source: a batch has one partition per member, and the offset is the batch.

The reader lives in one process on the driver per query and keeps the claims. Tasks get everything they need in their
partition (tasks.py).

Features: C1, C4, C5, C6, C8, T13, M4 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from spark_jms.core.destinations.pause import CONSUMPTION
from spark_jms.errors import (
    DataLossError,
    DestinationReplacedError,
    MemberUnavailableError,
    OptionError,
    SparkStoppedError,
    TriggerError,
)
from spark_jms.settings.destination import PACED_PREFERENCE
from spark_jms.settings.options import DEFAULT_MAX_DELAY_MS, Options
from spark_jms.spark.options import SparkContextWatch, StopSignal, address_of, identity_of
from spark_jms.spark.tasks import MemberPartition, SmallBatchPartition, TaskReader

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from spark_jms.claims.consumers.subscriber import Subscriber
    from spark_jms.core.records.batch import Batch, Limits
    from spark_jms.core.selector import Selector
    from spark_jms.log.destinations.domain import Domain
    from spark_jms.log.tables.delta_log import DeltaLog
    from spark_jms.store import Store

log = logging.getLogger("spark_jms")
IDLE_WAIT_S = 0.2  # latestOffset waits this long for messages: Spark would call it again at once
_POLL_S = 0.02  # between two looks; a commit of this host ends the wait
TABLE_EVERY_S = 5.0  # the acknowledgement table: views add what waits for it, and each write is a commit
_QUERY = "query-"  # the names of the consumers begin with it
AVAILABLE_NOW_WAIT_S = 10.0  # for record sets that other sessions have opened, and for claims in doubt


def _parsed(selector: str | None) -> Selector | None:
    if selector is None:
        return None
    from spark_jms.core.selector import Selector

    return Selector.parse(selector)


def _load_claims() -> None:
    """The modules that a batch of a plain queue needs: Python loads each module once, whichever thread asks first."""
    import spark_jms.claims.batches.acknowledgement
    import spark_jms.claims.consumers.subscriber
    import spark_jms.claims.upkeep.housekeeping
    import spark_jms.claims.upkeep.usage  # noqa: F401 - loaded for later


class JmsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options) -> None:
        self.options, self._address = options, address_of(options)
        self._targets: dict[int, int] | None = None
        self._subscriber: Subscriber | None = None
        self._told: set[tuple[int, str]] = set()  # of a member: why messages of it are left
        self._unlogged = ""  # the consumer of an initial offset that Spark has not logged yet
        self._signal: StopSignal | None = None  # with onPoison=isolate
        self._context = SparkContextWatch()
        self._bell = threading.Event()  # a commit to the destination's table
        self._claimed_s: float | None = (
            None  # when the last batch was claimed; None: a time without messages came after it
        )
        self._calls = threading.Lock()  # the watch closes the source between two calls of Spark
        self._closing = ExitStack()

    @property
    def _name(self) -> str:
        """The destination's."""
        return self._address.destination

    # -- planning, on the driver ---------------------------------------------------------------------
    def _open(self, batch: Batch) -> Subscriber:
        """Create the subscriber when the first logged offset arrives: it names the query's consumer."""
        if self._subscriber is not None and self._subscriber.consumer != batch.consumer:
            self._end(failed=True)
        if self._subscriber is None:
            self._closing = ExitStack()
            try:
                self._subscriber = self._opened(batch)
            except BaseException:
                self._closing.close()
                raise
            self._context.start(self._stopped_without_us)
            self._closing.callback(self._context.close)
        self._background.check(batch.consumer)
        return self._subscriber

    def _opened(self, batch: Batch) -> Subscriber:
        """`_closing` closes it, and whatever was opened before a failure."""
        from spark_jms.claims.batches.acknowledgement import check_origin
        from spark_jms.claims.batches.batch import ConsumerSettings
        from spark_jms.claims.consumers.subscriber import open_subscriber
        from spark_jms.claims.records.life_cycle import flush_at_close
        from spark_jms.claims.records.members import OPEN_TIMEOUT_S
        from spark_jms.claims.records.subscriptions import SubscriptionRequest, claim_client_id
        from spark_jms.claims.servers.stores import open_stores
        from spark_jms.claims.upkeep.housekeeping import BackgroundThread, Housekeeper
        from spark_jms.claims.upkeep.usage import PUBLISH_EVERY_S, UsagePublisher
        from spark_jms.core.destinations.destination import QUEUE_SUBSCRIPTION
        from spark_jms.log.tables.delta_log import LogWatch

        o, consumer = self.options, batch.consumer
        domain, kept, selector = self._resolved()
        table = domain.log(self._name)
        self._table_path = domain.table_path(self._name)
        store = self._closing.enter_context(open_stores(domain))
        declared = table.snapshot.destination
        check_origin(domain, store, table.snapshot, kept if declared.is_topic else QUEUE_SUBSCRIPTION, batch)
        subscription = self._continued(table, kept, selector)
        isolates = o.on_poison == "isolate"
        settings = ConsumerSettings(
            selector,
            True,
            o.fail_on_data_loss,
            o.in_doubt_timeout_ms,
            server=self._address.server_in(declared) if declared.placement else None,
            isolates_poison=isolates,
        )
        self._warn_of_other_reads(store, subscription, consumer)
        if isolates:
            self._signal = self._closing.enter_context(StopSignal())
        client = claim_client_id(store, identity_of(o), wait_s=OPEN_TIMEOUT_S)
        if client is not None:
            self._closing.callback(client.close)
        request = None
        if declared.is_topic:
            request = SubscriptionRequest(subscription, exclusive=o.subscription_sharing == "exclusive")
        subscriber = open_subscriber(domain, store, self._name, request, consumer, settings, wait_s=OPEN_TIMEOUT_S)
        self._closing.callback(subscriber.close)
        housekeeper = Housekeeper(domain, store, self._name)
        self._closing.callback(housekeeper.close)
        self._closing.callback(flush_at_close, subscriber.flush_life_cycle)
        self._closing.callback(subscriber.flush_outbox)  # write the last acknowledgements to their table
        self._background = BackgroundThread(self._name)
        self._closing.callback(self._background.close)
        self._background.add_consumer(
            consumer,
            subscriber.flush_outbox,
            subscriber.make_room,
            subscriber.flush_life_cycle,
            table_every_s=TABLE_EVERY_S,
        )
        watch = LogWatch()
        self._closing.callback(watch.close)
        watch.add(table, self._bell.set)
        usage = UsagePublisher(domain, store, self._name)
        self._background.add(f"usage of {self._name}", usage.publish, PUBLISH_EVERY_S)
        # A thread of its own: compaction must not delay the acknowledgement table.
        self._housekeeping_thread = BackgroundThread(f"{self._name} housekeeping")
        self._closing.callback(self._housekeeping_thread.close)
        self._housekeeping_thread.add(f"housekeeping of {self._name}", housekeeper.run, every_s=2.0)
        return subscriber

    def _warn_of_other_reads(self, store: Store, subscription: str, consumer: str) -> None:
        """This source is the second one of a query, perhaps: Spark does not tell a source which query it belongs to."""
        from spark_jms.claims.records.members import session_label
        from spark_jms.claims.servers.stores import is_sibling, timed_stores

        begin, own = (session_label(self._name, subscription, name) for name in (_QUERY, consumer))
        labels = sorted(info.label for info in timed_stores(store).sessions().values() if is_sibling(info.label))
        if others := [label for label in labels if label.startswith(begin) and not label.startswith(own)]:
            log.warning(
                "%s is read by another stream of this Spark driver too (%s): each message goes to one of them. If both are "
                "sources of one query, as in a join of the queue with itself, neither gets all messages: send to a topic, and read it "
                "with a subscription for each (docs/OPTIONS.md, two reads in one query)",
                self._name,
                others[0],
            )

    def _resolved(self) -> tuple[Domain, str | None, Selector | None]:
        """The domain, what the subscription is kept as (None: a queue), and the selector."""
        from spark_jms.claims.upkeep.power_loss import open_domain
        from spark_jms.core.destinations.subscriptions import kept_at

        o = self.options
        domain, selector = open_domain(o.root), _parsed(o.selector)
        table = domain.log(self._name)
        declared = table.refresh().destination
        self._address.members(declared)
        if self._address.member_in(declared) is not None:
            raise OptionError(
                f"destination is {self._address}, but a query takes all members on a server: name "
                f"{self._address.server_in(declared)}@{self._name} or {self._name}; a view may name one member"
            )
        identity, name = identity_of(o), o.subscription
        if declared.is_topic:
            name = None if name is None else kept_at(declared, self._address.server_in(declared), identity.kept(name))
        elif o.subscription_sharing != "sharable" or identity.client_id is not None:
            raise OptionError(
                f"options subscriptionSharing and clientId are for a topic's subscription, and {self._name} is not a topic"
            )
        return domain, name, selector

    def _continued(self, table: DeltaLog, name: str | None, selector: Selector | None) -> str:
        """The subscription of a query that continues. One that is missing is a loss."""
        from spark_jms.claims.records.subscriptions import ensure_subscription, find_subscription

        known = find_subscription(table, name, selector)
        if known is None:
            what = (
                f"the subscription {name!r} of topic {self._name} was dropped, with its undelivered messages, or the checkpoint is "
                "of another subscription"
            )
            if self.options.fail_on_data_loss:
                raise DataLossError(
                    f"{what}. Start with a new checkpointLocation, or set failOnDataLoss to false to continue with a new "
                    "subscription at startingPosition."
                )
            log.warning("%s: the query continues with a new one", what)
        return known or ensure_subscription(table, name, self.options.starting_position, selector)

    def initialOffset(self) -> dict[str, Any]:
        """A new query creates its topic subscription; a wrong option or destination fails before Spark logs anything."""
        from spark_jms.claims.records.subscriptions import ensure_subscription
        from spark_jms.core.records.batch import Batch

        domain, name, selector = self._resolved()
        table = domain.log(self._name)
        ensure_subscription(table, name, self.options.starting_position, selector)
        table_id = table.snapshot.table_id
        if self._subscriber is not None:  # the first batch failed and Spark asks again: keep the consumer's identity
            return Batch(self._subscriber.consumer, table=table_id).to_json()
        self._unlogged = f"{_QUERY}{secrets.token_hex(6)}"
        return Batch(self._unlogged, table=table_id).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.max_messages or 2**62)

    def prepareForTriggerAvailableNow(self) -> None:
        from spark_jms.log.destinations.domain import Domain

        snapshot = Domain(self.options.root).log(self._name).refresh()
        self._targets = {m: snapshot.last_sequence(m) for m in snapshot.destination.member_ids}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with self._called():
            return self._latest_offset(start, limit)

    @contextmanager
    def _called(self) -> Iterator[None]:
        """A call of Spark. Raises SparkStoppedError when only the query is left of the Spark session."""
        with self._calls:
            if self._context.is_stopped():
                self._end(failed=False)
                raise SparkStoppedError
            yield

    def _latest_offset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        from spark_jms.core.records.batch import Batch

        if isinstance(limit, ReadAllAvailable):  # the default limit is a ReadMaxRows, so this is Trigger.Once
            raise TriggerError()
        before = Batch.from_json(start)
        if before.consumer == self._unlogged:
            # The first batch only names the consumer. If the query claimed now and died before Spark logged its first
            # offset, it would restart under another name and its claim would have no owner.
            self._unlogged = ""
            threading.Thread(target=_load_claims, name="jmsq imports", daemon=True).start()
            return start
        subscriber = self._open(before)
        if self._targets is not None:
            batch = self._drain(subscriber, before)
        else:
            self._rest(subscriber, before)
            batch = self._wait(subscriber, before)
        self._claimed_s = None if batch is None else time.monotonic()
        return batch.to_json() if batch is not None else start

    def _rest(self, subscriber: Subscriber, before: Batch) -> None:
        """After a batch, so that the next one has more messages (core/records/batch.py, the pace of a query)."""
        claimed_s = self._claimed_s
        if claimed_s is None or not self._is_paced(subscriber, before):
            return
        until_s = claimed_s + self.options.batch_pace_ms / 1000
        while (left_s := until_s - time.monotonic()) > 0 and not self._stops():
            time.sleep(min(left_s, _POLL_S))

    def _is_paced(self, subscriber: Subscriber, before: Batch) -> bool:
        """Nothing else says when a batch is made, and the last one left no messages."""
        o, preference = self.options, subscriber.table.snapshot.destination.messaging_performance_preference
        if o.max_bytes is not None or o.min_messages is not None or o.max_delay_ms != DEFAULT_MAX_DELAY_MS:
            return False
        is_full = o.max_messages is not None and before.count >= o.max_messages
        return preference == PACED_PREFERENCE and not is_full and not subscriber.has_more()

    def limits_for(self, subscriber: Subscriber) -> Limits:
        """Where no minMessagesPerTrigger is given, with the destination's messagingPerformancePreference."""
        from spark_jms.core.records.batch import Limits, query_limits

        o = self.options
        if o.min_messages is None:
            preference = subscriber.table.snapshot.destination.messaging_performance_preference
            return query_limits(preference, o.max_messages, o.max_bytes)
        return Limits(o.max_messages, o.max_bytes, o.min_messages, o.max_delay_ms)

    def _wait(self, subscriber: Subscriber, before: Batch) -> Batch | None:
        """The next batch, or None after a short wait. A commit of this host ends the wait at once; what another host commits, and a
        delay that ends, are seen at the next look."""
        deadline = time.monotonic() + IDLE_WAIT_S
        self._bell.clear()
        batch = subscriber.next_batch(before, self.limits_for(subscriber))
        while batch is None and time.monotonic() < deadline and not self._stops():
            self._bell.wait(_POLL_S)
            self._bell.clear()
            if subscriber.has_news():
                batch = subscriber.next_batch(before, self.limits_for(subscriber))
        return batch

    def _drain(self, subscriber: Subscriber, before: Batch) -> Batch | None:
        """Trigger.AvailableNow: the messages present at the start. What another live consumer has claimed is not waited for; a claim
        in doubt is, and a record set that an administrator has opened, for a bounded time."""
        deadline = time.monotonic() + AVAILABLE_NOW_WAIT_S
        targets, within_ms = self._targets or {}, int(AVAILABLE_NOW_WAIT_S * 1000)
        while True:
            batch = subscriber.next_batch(before, self.limits_for(subscriber), self._targets)
            if batch is not None:
                return batch
            if subscriber.has_more():
                deadline = time.monotonic() + AVAILABLE_NOW_WAIT_S
                continue
            if not subscriber.waits_for(targets, within_ms) and not subscriber.is_unacknowledged(before):
                self._warn_of_what_is_left(subscriber)
                return None
            if self._stops():
                return None
            if time.monotonic() > deadline:
                if subscriber.is_unacknowledged(before):
                    raise MemberUnavailableError(
                        f"{self._name}: the last batch is not acknowledged, because another session has had a record set open "
                        f"for {AVAILABLE_NOW_WAIT_S:.0f} s: start the query again within inDoubtTimeout, or its messages are "
                        "delivered a second time; see `jmsq claims`"
                    )
                self._warn_of_what_is_left(subscriber)
                return None
            time.sleep(_POLL_S)

    def _stops(self) -> bool:
        """Spark is stopping this source."""
        return self._signal is not None and self._signal.arrived

    def _warn_of_what_is_left(self, subscriber: Subscriber) -> None:
        """Trigger.AvailableNow ends without what another consumer has claimed, what is delayed or blocked, and while consumption is
        paused or a server is away: to wait would hold the job for as long. Each reason once."""
        for left in subscriber.left(self._targets or {}):
            if (left.member, left.why) not in self._told:
                self._told.add((left.member, left.why))
                log.warning(
                    "%s: Trigger.AvailableNow leaves %d message(s) of member %d for the next run: %s",
                    self._name,
                    left.count,
                    left.member,
                    left.why,
                )
        for server, why in sorted(subscriber.away().items()):
            log.warning(
                "%s: server %s is away (%s): Trigger.AvailableNow leaves its messages for the next run",
                self._name,
                server,
                why,
            )
        declared = subscriber.table.snapshot.destination
        members = self._address.read_members(declared) or declared.member_ids
        for member in sorted(declared.pauses.members(CONSUMPTION, members)):
            log.warning(
                "%s: consumption of member %d is paused: Trigger.AvailableNow leaves its messages for the next run",
                self._name,
                member,
            )

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The backlog; Spark shows it as `latestOffset` in the query progress. What the selector refuses is counted apart: this
        query never takes it. What the selector takes and a unit of order holds back, behind a refused message, is told too."""
        from spark_jms.claims.batches.units_of_order import SHOWN

        if self._subscriber is None or self._subscriber.closed:
            return None
        backlog, refused = self._subscriber.backlog(), self._subscriber.refused()
        own = {member: max(count - refused.get(member, 0), 0) for member, count in backlog.items()}
        apart: dict[str, Any] = {}
        if self.options.selector:
            apart["refused"] = sum(refused.values())
        if apart and (held := self._subscriber.held_back()):
            behind = [asdict(one) for one in held[:SHOWN]]
            apart["heldBack"] = {"messages": sum(one.messages for one in held), "behind": behind}
        return {"backlog": sum(own.values()), **apart, "members": {str(m): n for m, n in own.items()}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with self._called():
            return self._partitions(start, end)

    def _partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        from spark_jms.core.ordering.sort_order import delivery_order
        from spark_jms.core.records.batch import Batch

        batch = Batch.from_json(end)
        if not batch.claim or end == start:
            return []
        subscriber = self._open(batch)
        withheld = subscriber.resume(batch)
        out: list[MemberPartition] = []
        snapshot = subscriber.table.refresh()
        order = delivery_order(snapshot.destination)
        if snapshot.table_id != subscriber.table_id:
            raise DestinationReplacedError()
        for member, pick in sorted(batch.delivered.items()):
            picks = pick.picks - withheld[member] if member in withheld else pick.picks
            if picks:
                files = [f.hint for f in snapshot.member_files(member).overlapping(picks.first, picks.last)]
                out.append(
                    MemberPartition(
                        self.options.root,
                        self._name,
                        member,
                        self.options.columns,
                        picks,
                        pick.redelivered,
                        files,
                        self.options.fail_on_data_loss,
                        snapshot.table_id,
                        order,
                        snapshot.destination.has_compressed,
                        self._table_path,
                    )
                )
        if len(out) > 1 and sum(part.picks.count for part in out) <= self.options.small_batch_messages:
            return [SmallBatchPartition(out)]
        return list(out)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: the next latestOffset acknowledges, in the write that claims."""

    def stop(self) -> None:
        """Spark calls this when the query ends, and when the driver has died. Only Spark sends the signal: then it has given
        up the batch that it was processing."""
        with self._calls:
            self._end(failed=True)

    def _stopped_without_us(self) -> None:
        with self._calls:
            log.warning("%s: %s", self._name, SparkStoppedError())
            self._end(failed=False)

    def _end(self, *, failed: bool) -> None:
        """`failed`: the sink may have failed the batch that is open."""
        subscriber, self._subscriber = self._subscriber, None
        try:
            if failed and subscriber is not None and subscriber.in_batch and self._signal and self._signal.wait():
                subscriber.note_failure()
        finally:
            self._signal = None
            self._closing.close()

    # -- in a task ------------------------------------------------------------------------------------------------
    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return TaskReader().read(partition)

    def __reduce__(self) -> tuple[type[TaskReader], tuple[()]]:
        """A task gets what reads its partition and nothing else, so that its process loads no planning."""
        return TaskReader, ()
