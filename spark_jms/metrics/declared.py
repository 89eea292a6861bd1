"""Every metric of a domain: its name, its labels, and how a sample gives its values. Pure.

Names follow Prometheus: base units, `_total` for what only grows, a time as seconds since 1970. Messages are never labels, nor are
consumers, sessions and claims; subscriptions that are not durable come and go, so they are one series.

Features: M5 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_jms.admin.domain_sample import PARTS, ClusterSample, DomainSample
from spark_jms.admin.quota import QuotaRow
from spark_jms.admin.servers import ServerRow
from spark_jms.admin.statistics import DestinationStatistics, HighMarkRow, MemberStatistics
from spark_jms.claims.upkeep.views import SubscriptionRow
from spark_jms.store.contract import StoreInfo

if TYPE_CHECKING:  # its packages are of another extra
    from spark_jms.store.regions.admin.port import DaemonInfo

NOT_DURABLE = "(not durable)"


@dataclass(frozen=True)
class MetricValue:
    """One value, with those of the metric's labels."""

    labels: tuple[str, ...]
    value: float


Values = Callable[[DomainSample], Iterable[MetricValue]]


@dataclass(frozen=True)
class DomainMetric:
    name: str
    help: str
    labels: tuple[str, ...]
    values: Values

    @property
    def is_counter(self) -> bool:
        return self.name.endswith("_total")


# -- how a sample gives values -----------------------------------------------------------------------------------------


def _of_destination(value: Callable[[DestinationStatistics], float | None]) -> Values:
    """None: the destination has no such series."""

    def values(sample: DomainSample) -> Iterator[MetricValue]:
        for one in sample.destinations:
            found = value(one)
            if found is not None:
                yield MetricValue((one.destination,), found)

    return values


def _of_member(value: Callable[[MemberStatistics], float], *, asked_only: bool = False) -> Values:
    """`asked_only`: not of the table alone, so it needs an answer of the member's server."""
    return lambda sample: [
        MetricValue((one.destination, str(member.member)), value(member))
        for one in sample.destinations
        for member in (_asked_members(one) if asked_only else one.members)
    ]


def _asked_members(one: DestinationStatistics) -> list[MemberStatistics]:
    """Those whose servers have answered. Of others it is not known what consumers have finished: all would count as unfinished."""
    away = {row.member for row in one.subscriptions if row.away}
    return [member for member in one.members if member.member not in away]


def _of_subscription(value: Callable[[SubscriptionRow], float], *, durable_only: bool = False) -> Values:
    def values(sample: DomainSample) -> Iterator[MetricValue]:
        sums: Counter[tuple[str, ...]] = Counter()
        for row in (row for one in sample.destinations for row in one.subscriptions):
            if not row.away and (row.durable or not durable_only):  # an away server's counts are not known
                name = row.subscription if row.durable else NOT_DURABLE
                sums[row.destination, name, str(row.member)] += value(row)  # type: ignore[assignment]
        return (MetricValue(labels, total) for labels, total in sums.items())

    return values


def _refused(sample: DomainSample) -> Iterator[MetricValue]:
    sums: Counter[tuple[str, ...]] = Counter()
    for one in sample.destinations:
        durable = {row.subscription: row.durable for row in one.subscriptions}
        for row in one.refusals:
            name = row.subscription if durable.get(row.subscription) else NOT_DURABLE
            sums[row.destination, name, str(row.member), row.rule] += row.messages
    return (MetricValue(labels, total) for labels, total in sums.items())


def _of_quota(value: Callable[[QuotaRow], int]) -> Values:
    """A quota that is shared has no destination. A limit of -1 is none."""
    return lambda sample: [
        MetricValue((row.quota, "" if row.shared else "".join(row.destinations)), found)
        for row in sample.quotas
        if (found := value(row)) >= 0
    ]


def _of_server(value: Callable[[ServerRow], float | None]) -> Values:
    return lambda sample: [
        MetricValue((row.server,), found) for row in sample.servers if (found := value(row)) is not None
    ]


def _of_marked_member(value: Callable[[HighMarkRow], int | None]) -> Values:
    return lambda sample: [
        MetricValue((mark.destination or "", str(mark.member)), found)
        for mark in sample.high_marks
        if mark.member is not None and (found := value(mark)) is not None
    ]


def _subscription_highs(sample: DomainSample) -> Iterator[MetricValue]:
    for mark in sample.high_marks:
        if mark.destination is not None and mark.subscription is not None:
            yield MetricValue((mark.destination, mark.subscription), mark.messages)


def _server_highs(sample: DomainSample) -> Iterator[MetricValue]:
    return (MetricValue((mark.server,), mark.messages) for mark in sample.high_marks if mark.server is not None)


def _of_daemon(value: Callable[[DaemonInfo], float]) -> Values:
    return lambda sample: [MetricValue((str(one.index),), value(one)) for one in _cluster(sample).daemons]


def _of_store(value: Callable[[StoreInfo], float]) -> Values:
    return lambda sample: [] if sample.counts is None else [MetricValue((), value(sample.counts))]


def _cluster(sample: DomainSample) -> ClusterSample:
    return sample.cluster or ClusterSample()


# -- values that are not one field -------------------------------------------------------------------------------------


def _parts_up(sample: DomainSample) -> Iterator[MetricValue]:
    for part in PARTS:
        yield MetricValue((part,), part not in sample.problems)
    if sample.cluster is not None:
        yield MetricValue(("daemons",), not sample.cluster.error)


def _destinations_up(sample: DomainSample) -> Iterator[MetricValue]:
    found = {one.destination: 1 for one in sample.destinations} | dict.fromkeys(sample.unread, 0)
    return (MetricValue((name,), up) for name, up in sorted(found.items()))


def _quotas_up(sample: DomainSample) -> Iterator[MetricValue]:
    found = {row.quota: 1 for row in sample.quotas} | dict.fromkeys(sample.unread_quotas, 0)
    return (MetricValue((name,), up) for name, up in sorted(found.items()))


def _messages(sample: DomainSample) -> Iterator[MetricValue]:
    for one in sample.destinations:
        for member in _asked_members(one):
            yield MetricValue((one.destination, str(member.member), "current"), member.current)
            yield MetricValue((one.destination, str(member.member), "pending"), member.pending)


def _paused(sample: DomainSample) -> Iterator[MetricValue]:
    for one in sample.destinations:
        scopes = {("" if row.member is None else str(row.member), row.operation): None for row in one.paused}
        for member, operation in scopes:  # of a member's own pause and of its server's, one
            yield MetricValue((one.destination, member, operation), 1)


def _failures(sample: DomainSample) -> Iterator[MetricValue]:
    counts: Counter[tuple[str, str]] = Counter()
    for one in sample.destinations:
        for failure in one.failures:
            counts[one.destination, failure.what] += failure.count
    return (MetricValue(labels, count) for labels, count in counts.items())


def _claims(sample: DomainSample) -> Iterator[MetricValue]:
    counts = Counter((claim.destination, "live" if claim.live else "in_doubt") for claim in sample.claims)
    for one in sample.destinations:
        for state in ("live", "in_doubt"):
            yield MetricValue((one.destination, state), counts[one.destination, state])


def _limits(sample: DomainSample) -> Iterator[MetricValue]:
    for one in sample.destinations:
        limits = {row.subscription_messages_limit for row in one.subscriptions if row.subscription_messages_limit >= 0}
        if limits:
            yield MetricValue((one.destination,), max(limits))


def _operations(sample: DomainSample) -> Iterator[MetricValue]:
    if sample.counts is not None:
        yield MetricValue(("create",), sample.counts.create_count)
        yield MetricValue(("read",), sample.counts.read_count)
        yield MetricValue(("update",), sample.counts.update_count)
        yield MetricValue(("delete",), sample.counts.delete_count)


def _service_states(sample: DomainSample) -> Counter[tuple[str, str]]:
    """(service, its state in a process) -> processes."""
    return Counter(
        (str(one["service"]), "silent" if report.silent else "failing" if one["state"] == "failing" else "ok")
        for report in sample.services
        for one in report.services
    )


def _services_up(sample: DomainSample) -> Iterator[MetricValue]:
    states = _service_states(sample)
    return (
        MetricValue((service,), states[service, "ok"] > 0) for service in sorted({service for service, _ in states})
    )


def _service_processes(sample: DomainSample) -> Iterator[MetricValue]:
    states = _service_states(sample)
    for service in sorted({service for service, _ in states}):
        for state in ("ok", "failing", "silent"):
            yield MetricValue((service, state), states[service, state])


def _transactions(sample: DomainSample) -> Iterator[MetricValue]:
    counts = Counter((one.state, "live" if one.owner_lives else "dead") for one in sample.transactions)
    return (MetricValue(labels, count) for labels, count in sorted(counts.items()))


def _oldest_transaction(sample: DomainSample) -> Iterator[MetricValue]:
    made = [one.made for one in sample.transactions if one.made is not None]
    if made:
        yield MetricValue((), min(made).timestamp())


def _regions(sample: DomainSample) -> Iterator[MetricValue]:
    counts = Counter(region.status for region in _cluster(sample).regions)
    return (MetricValue((status,), count) for status, count in sorted(counts.items()))


# -- the metrics -------------------------------------------------------------------------------------------------------

_DESTINATION, _MEMBER = ("destination",), ("destination", "member")
_SUBSCRIPTION = ("destination", "subscription", "member")
_QUOTA, _SERVER, _DAEMON = ("quota", "destination"), ("server",), ("daemon",)

DOMAIN_METRICS = (
    DomainMetric("jmsq_part_up", "1 while this part of the domain can be read.", ("part",), _parts_up),
    DomainMetric("jmsq_destination_up", "1 while the destination can be read.", _DESTINATION, _destinations_up),
    DomainMetric(
        "jmsq_destination_messages",
        "Unfinished messages, summed over subscriptions: pending ones are claimed or wait for a redelivery, the others are current.",
        (*_MEMBER, "state"),
        _messages,
    ),
    DomainMetric(
        "jmsq_destination_claimed_messages",
        "Messages that consumers have claimed, summed over subscriptions.",
        _MEMBER,
        _of_member(lambda member: member.claimed, asked_only=True),
    ),
    DomainMetric(
        "jmsq_destination_consumers",
        "Live consumers of the destination, those without members too.",
        _DESTINATION,
        _of_destination(lambda one: one.consumers),
    ),
    DomainMetric(
        "jmsq_destination_member_consumers",
        "Live consumers that take messages of the member.",
        _MEMBER,
        _of_member(lambda member: member.consumers, asked_only=True),
    ),
    DomainMetric(
        "jmsq_destination_unserviced_messages",
        "Unfinished messages of members and subscriptions without such a consumer.",
        _DESTINATION,
        _of_destination(lambda one: sum(row.backlog for row in one.unserviced)),
    ),
    DomainMetric(
        "jmsq_destination_sent_messages_total",
        "Messages sent to the member since it was made.",
        _MEMBER,
        _of_member(lambda member: member.last_sequence),
    ),
    DomainMetric(
        "jmsq_destination_messages_high",
        "The most unfinished messages at once that the services have seen since the marks were reset.",
        _MEMBER,
        _of_marked_member(lambda mark: mark.messages),
    ),
    DomainMetric(
        "jmsq_destination_pending_messages_high",
        "The same of pending messages.",
        _MEMBER,
        _of_marked_member(lambda mark: mark.pending),
    ),
    DomainMetric(
        "jmsq_destination_bytes_high",
        "The same of the bytes of their files.",
        _MEMBER,
        _of_marked_member(lambda mark: mark.bytes),
    ),
    DomainMetric(
        "jmsq_destination_received_bytes_total",
        "Bytes of the messages that the services have seen arrive since the marks were reset.",
        _MEMBER,
        _of_marked_member(lambda mark: mark.received_bytes),
    ),
    DomainMetric(
        "jmsq_destination_stored_messages",
        "Messages in the table, finished or not.",
        _MEMBER,
        _of_member(lambda member: member.stored_messages),
    ),
    DomainMetric(
        "jmsq_destination_stored_bytes",
        "Bytes of the member's files.",
        _MEMBER,
        _of_member(lambda member: member.bytes),
    ),
    DomainMetric(
        "jmsq_destination_files", "Files of the member in the table.", _MEMBER, _of_member(lambda member: member.files)
    ),
    DomainMetric(
        "jmsq_destination_oldest_message_timestamp_seconds",
        "When the oldest unfinished message was sent, or earlier. Absent without a backlog.",
        _DESTINATION,
        _of_destination(lambda one: one.oldest.timestamp() if one.oldest else None),
    ),
    DomainMetric(
        "jmsq_destination_log_version",
        "The newest version of the table.",
        _DESTINATION,
        _of_destination(lambda one: one.version),
    ),
    DomainMetric(
        "jmsq_destination_versions_since_checkpoint",
        "Log files that a new reader reads one by one.",
        _DESTINATION,
        _of_destination(lambda one: one.versions_since_checkpoint),
    ),
    DomainMetric(
        "jmsq_destination_paused",
        "1 while an administrator has paused the operation; without a member: of the whole destination.",
        (*_MEMBER, "operation"),
        _paused,
    ),
    DomainMetric(
        "jmsq_destination_exceeds_threshold",
        "1 while the destination is above a high threshold, so that flow control slows its senders down. Absent without thresholds.",
        _DESTINATION,
        _of_destination(lambda one: one.exceeds_threshold),
    ),
    DomainMetric(
        "jmsq_destination_background_failures",
        "Failed attempts in a row of background work that fails now.",
        ("destination", "what"),
        _failures,
    ),
    DomainMetric(
        "jmsq_destination_open_transfers",
        "Transfers to other destinations that are not finished.",
        _DESTINATION,
        _of_destination(lambda one: len(one.transfers)),
    ),
    DomainMetric(
        "jmsq_destination_claims",
        "Claims, and those in doubt: their consumer has died.",
        ("destination", "state"),
        _claims,
    ),
    DomainMetric(
        "jmsq_subscription_messages",
        "Unfinished messages of a subscription, its lag; a queue's is called -.",
        _SUBSCRIPTION,
        _of_subscription(lambda row: row.backlog),
    ),
    DomainMetric(
        "jmsq_subscription_claimed_messages",
        "Of these, messages that a consumer has claimed.",
        _SUBSCRIPTION,
        _of_subscription(lambda row: row.claimed),
    ),
    DomainMetric(
        "jmsq_subscription_delayed_messages",
        "Of these, messages that wait for their redelivery.",
        _SUBSCRIPTION,
        _of_subscription(lambda row: row.delayed),
    ),
    DomainMetric(
        "jmsq_subscription_refused_messages",
        "Of these, messages that their error destination refuses for good; what they break is a rule of it.",
        (*_SUBSCRIPTION, "what"),
        _refused,
    ),
    DomainMetric(
        "jmsq_subscription_messages_high",
        "The most unfinished messages of a durable subscription, or a queue, that the services have seen.",
        ("destination", "subscription"),
        _subscription_highs,
    ),
    DomainMetric(
        "jmsq_subscription_consumers",
        "Live consumers of a subscription's member; of a Spark query its driver is one.",
        _SUBSCRIPTION,
        _of_subscription(lambda row: len(row.consumers)),
    ),
    DomainMetric(
        "jmsq_subscription_finished_messages_total",
        "Messages that a durable subscription, or a queue, has finished, or that were sent before it began.",
        _SUBSCRIPTION,
        _of_subscription(lambda row: row.last_sequence - row.backlog, durable_only=True),
    ),
    DomainMetric(
        "jmsq_subscription_expired_messages_total",
        "Messages that expired before a durable subscription, or a queue, had them.",
        _SUBSCRIPTION,
        _of_subscription(lambda row: row.expired, durable_only=True),
    ),
    DomainMetric(
        "jmsq_subscription_limit_deleted_messages_total",
        "Messages of a durable subscription, or a queue, that its limit has deleted.",
        _SUBSCRIPTION,
        _of_subscription(lambda row: row.subscription_limit_deleted_count, durable_only=True),
    ),
    DomainMetric(
        "jmsq_subscription_messages_limit",
        "The limit of each subscription and member, where there is one.",
        _DESTINATION,
        _limits,
    ),
    DomainMetric("jmsq_quota_up", "1 while the quota can be read.", ("quota",), _quotas_up),
    DomainMetric(
        "jmsq_quota_messages_limit",
        "The maximum of messages, where there is one. A quota that is not shared has one for each destination.",
        _QUOTA,
        _of_quota(lambda row: row.messages_maximum),
    ),
    DomainMetric(
        "jmsq_quota_bytes_limit",
        "The maximum of bytes, where there is one.",
        _QUOTA,
        _of_quota(lambda row: row.bytes_maximum),
    ),
    DomainMetric(
        "jmsq_quota_used_messages", "Unfinished messages that count.", _QUOTA, _of_quota(lambda row: row.messages_used)
    ),
    DomainMetric("jmsq_quota_used_bytes", "Bytes of their files.", _QUOTA, _of_quota(lambda row: row.bytes_used)),
    DomainMetric(
        "jmsq_quota_reserved_messages",
        "Messages that senders have reserved room for.",
        _QUOTA,
        _of_quota(lambda row: row.messages_reserved),
    ),
    DomainMetric(
        "jmsq_quota_reserved_bytes",
        "Bytes that senders have reserved room for.",
        _QUOTA,
        _of_quota(lambda row: row.bytes_reserved),
    ),
    DomainMetric("jmsq_quota_waiting_sends", "Sends that wait for room.", _QUOTA, _of_quota(lambda row: row.waiting)),
    DomainMetric(
        "jmsq_service_up",
        "1 while a process runs the service without an error. Absent where no process has run it for a day.",
        ("service",),
        _services_up,
    ),
    DomainMetric(
        "jmsq_service_processes",
        "Processes that run the service, and those among them in which it fails; silent ones were killed, or hang.",
        ("service", "state"),
        _service_processes,
    ),
    DomainMetric(
        "jmsq_transactions",
        "Open transactions by state; those without their owner are completed by another process.",
        ("state", "owner"),
        _transactions,
    ),
    DomainMetric(
        "jmsq_oldest_transaction_timestamp_seconds",
        "When the oldest open transaction was made. Absent without any.",
        (),
        _oldest_transaction,
    ),
    DomainMetric(
        "jmsq_server_up",
        "1 unless the server is stopped, its lease has lapsed, or its store does not answer.",
        _SERVER,
        _of_server(lambda row: row.state == "up" and not row.away),
    ),
    DomainMetric(
        "jmsq_server_messages_high",
        "The most unfinished messages of the server's members that the services have seen.",
        _SERVER,
        _server_highs,
    ),
    DomainMetric(
        "jmsq_server_lease_age_seconds",
        "Since the server's lease was renewed, by the clocks of two hosts.",
        _SERVER,
        _of_server(lambda row: row.lease_age_s),
    ),
    DomainMetric(
        "jmsq_store_sessions",
        "Live sessions of the stores.",
        (),
        lambda sample: [MetricValue((), len(sample.sessions))],
    ),
    DomainMetric(
        "jmsq_store_operations_total",
        "Requests to the domain's store since it was opened, where its kind counts them.",
        ("operation",),
        _operations,
    ),
    DomainMetric(
        "jmsq_store_physical_writes_total",
        "Physical writes of the domain's store since it was opened.",
        (),
        _of_store(lambda counted: counted.physical_write_count),
    ),
    DomainMetric(
        "jmsq_store_objects", "Objects of the domain's store.", (), _of_store(lambda counted: counted.object_count)
    ),
    DomainMetric(
        "jmsq_store_connections",
        "Connections of the domain's store.",
        (),
        _of_store(lambda counted: len(counted.connections)),
    ),
    DomainMetric(
        "jmsq_daemon_up", "1 while the daemon of a replicated store answers.", _DAEMON, _of_daemon(lambda one: one.up)
    ),
    DomainMetric(
        "jmsq_daemon_memory_used_bytes",
        "Memory that the daemon's regions use.",
        _DAEMON,
        _of_daemon(lambda one: one.memory_used_bytes),
    ),
    DomainMetric(
        "jmsq_daemon_memory_limit_bytes",
        "Memory that the daemon may use.",
        _DAEMON,
        _of_daemon(lambda one: one.memory_limit_bytes),
    ),
    DomainMetric(
        "jmsq_daemon_regions", "Regions that the daemon keeps.", _DAEMON, _of_daemon(lambda one: one.regions_total)
    ),
    DomainMetric("jmsq_regions", "Regions of a replicated store by status.", ("status",), _regions),
)
