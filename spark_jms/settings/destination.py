"""The settings of a destination: keys of the module file, stored in the metadata of the destination's table.

To add a key, add a line at the end of DestinationSettings, and run `make options`. Stored tables that lack the key have its
default.

Features: C3, C16 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from spark_jms.errors import ModuleFileError
from spark_jms.settings.fields import (
    DISCARD,
    EXPIRATION_POLICIES,
    MAX_PROMOTED,
    NO_THRESHOLD,
    REDIRECT,
    KeyText,
    LoggedFieldsText,
    PromotedText,
    doubled,
    wrong_pair,
)
from spark_jms.settings.quota import BYTES_MAXIMUM, NO_MAXIMUM, QuotaSettings
from spark_jms.settings.quota import POLICIES as QUOTA_POLICIES
from spark_jms.settings.table import REQUIRED, Setting, Table, setting, settings_of
from spark_jms.settings.types import Choice, Duration, Flag, ListOf, ListOrAll, NumberChoice, Size, Text, Whole

UNLIMITED = -1  # of redeliveries, and of a subscription's messages

MAX_MEMBERS = 1024
MAX_WEIGHT = 1_000_000
ALL_SERVERS = ("all",)
SERVERS = ListOrAll(Text("the name of a server"), "a list of names of servers, or all")
WEIGHTS = ListOf(Whole(0, MAX_WEIGHT), f"a list of whole numbers of 0 to {MAX_WEIGHT:,}, one for each member")
KINDS = {
    "queue": "each message goes to one consumer",
    "distributed-queue": "a queue of `members` parts: more consumers at once, in order within a member",
    "topic": "each message goes to every subscription",
    "distributed-topic": "a topic of `members` parts",
}
POLICIES = {
    "round-robin": "the members take turns",
    "random": "any member",
    "weighted": "by `weights`",
}
FORWARDINGS = {
    "partitioned": "a subscription has positions on all members; each message is on one of them",
    "replicated": "each server has subscriptions of its own, and every one of them gets every message",
}
PERFORMANCE_PREFERENCES = {
    0: "no batches: a client's consumer gets one message at a time, as with messagesMaximum 1; of a query, batches of what "
    "is available, at once",
    25: "batches of what is available; a client's consumer gets them at once, a query at the pace of its `batchPace`",
    50: "a batch that is not full waits briefly: 20 ms from its first message on",
    75: "it waits longer: 100 ms",
    100: "it waits even longer: 500 ms",
}
PACED_PREFERENCE = 25  # with it alone a query keeps its `batchPace`
DEFAULT_COMPRESSION, BEST_COMPRESSION = "GZIP_DEFAULT_COMPRESSION", "GZIP_BEST_COMPRESSION"
BEST_SPEED, LZF = "GZIP_BEST_SPEED", "LZF"
COMPRESSIONS = {
    DEFAULT_COMPRESSION: "GZIP, level 6",
    BEST_COMPRESSION: "GZIP, level 9",
    BEST_SPEED: "GZIP, level 1",
    LZF: "LZ4, because Parquet has no LZF",
}
SYSTEM_GENERATED = ".System-generated"
UNIT = Text(f"the name of a unit of order, or {SYSTEM_GENERATED}", longest=256)
SINGLE_MESSAGE_DELIVERY = "SingleMessageDelivery"
UNIT_OF_WORK_POLICIES = {
    "PassThrough": "a part of a unit of work is a message like any other",
    SINGLE_MESSAGE_DELIVERY: "a complete unit of work is delivered as one, in order",
}
PATH_SERVICE = "path-service"
UNIT_ROUTINGS = {
    "hash": "by a hash of its name alone: while its member is down, its sends fail",
    PATH_SERVICE: "by a hash, but a new unit goes to another member while its own is down, and stays there",
}
DURABILITIES = {
    "process": "a sent message survives the death of any process",
    "power": "it also survives the loss of power: files and log are forced to the disk, and a single send takes 1.4 to 2.4 times "
    "as long",
}


_SLOWER = (
    "unfinished messages than this on a member or server, and its senders slow down ([flow control](LIMITS.md#flow-control)); "
    "-1: never."
)
MESSAGES_HIGH = f"More {_SLOWER}"
MESSAGES_LOW = "Fewer unfinished messages than this, and they may go faster again. It is below the high threshold."
BYTES_HIGH = f"More bytes of {_SLOWER}"
BYTES_LOW = (
    "Fewer bytes of unfinished messages than this, and they may go faster again. It is below the high threshold."
)


@attrs.frozen
class DomainSettings(Table):
    """The keys of the module file beside `destinations`."""

    store: str | None = setting(
        "store",
        Text("file, an absolute path or a URI"),
        None,
        "Where positions and claims are kept: `file` is beside the tables, for one host. The first `apply` of a domain "
        "chooses it; later ones do not change it.",
        without="file",
    )
    expiration_scan_interval_ms: int = setting(
        "expirationScanInterval",
        Duration(high="365 days", bare="s"),
        30_000,
        "The pause between two searches for expired messages in each destination of the domain. 0: no searches; "
        "messages then expire when consumers reach them. A server may have another one. A module file without this key "
        "changes nothing.",
    )


@attrs.frozen
class ServerSettings(Table):
    """The keys of one server, under `servers:` in the module file. `name` is the key above them."""

    name: str
    store: str = setting(
        "store",
        Text("file, an absolute path or a URI"),
        REQUIRED,
        "Where the server keeps positions and claims of its members: `file` is below the root, for one host. The first "
        "declaration of the server chooses it; `apply` cannot change it.",
    )
    lease_ms: int = setting(
        "lease",
        Duration(low="2 s", high="1 h"),
        10_000,
        "How long the store may be silent for all processes that use it before the server is down and senders avoid it. "
        "A server whose address refuses connections, or whose folder does not exist, is down within 2 s.",
    )
    bytes_threshold_high: int = setting("bytesThresholdHigh", Whole(NO_THRESHOLD), NO_THRESHOLD, BYTES_HIGH)
    bytes_threshold_low: int = setting("bytesThresholdLow", Whole(NO_THRESHOLD), NO_THRESHOLD, BYTES_LOW)
    messages_threshold_high: int = setting("messagesThresholdHigh", Whole(NO_THRESHOLD), NO_THRESHOLD, MESSAGES_HIGH)
    messages_threshold_low: int = setting("messagesThresholdLow", Whole(NO_THRESHOLD), NO_THRESHOLD, MESSAGES_LOW)
    messages_maximum: int = setting(
        "messagesMaximum",
        Whole(NO_MAXIMUM),
        NO_MAXIMUM,
        "How many unfinished messages the server may have: a [quota](LIMITS.md#the-quota-of-a-server) that all members "
        "on it share, except those of destinations with a quota of their own. -1: no maximum.",
    )
    bytes_maximum: int = setting(
        "bytesMaximum",
        BYTES_MAXIMUM,
        NO_MAXIMUM,
        "How many [bytes](LIMITS.md#quotas) these messages may have. -1: no maximum.",
    )
    blocking_send_policy: str = setting(
        "blockingSendPolicy", Choice(QUOTA_POLICIES), "FIFO", "Who gets room on the server while senders wait for it."
    )
    expiration_scan_interval_ms: int | None = setting(
        "expirationScanInterval",
        Duration(high="365 days", bare="s"),
        None,
        "The pause between two searches for expired messages whose positions the server has. 0: no searches.",
        without="that of the domain",
    )
    store_message_compression_enabled: bool = setting(
        "storeMessageCompressionEnabled",
        Flag(),
        False,
        "Whether message bodies in the files of the members on the server are compressed by `messageCompressionOptions`, of "
        "destinations that do not have it enabled themselves.",
    )
    message_compression_options: str = setting(
        "messageCompressionOptions", Choice(COMPRESSIONS), DEFAULT_COMPRESSION, "How these bodies are compressed."
    )

    @property
    def compression(self) -> str | None:
        """Of bodies, by default; None: as other columns."""
        return self.message_compression_options if self.store_message_compression_enabled else None

    @property
    def quota(self) -> QuotaSettings:
        """Of the destinations without one."""
        return QuotaSettings(self.messages_maximum, self.bytes_maximum, True, self.blocking_send_policy)

    @property
    def wrong_thresholds(self) -> str | None:
        """What does not fit in them; None: nothing."""
        return _wrong_thresholds(self)


@attrs.frozen
class DestinationSettings(Table):
    """The keys of one destination. `name` is the key above them. `inherited`: the keys whose values are those of its template."""

    name: str
    inherited: frozenset[str] = attrs.field(default=frozenset(), kw_only=True)
    kind: str = setting("kind", Choice(KINDS), REQUIRED, "What the destination is.")
    members: int = setting(
        "members",
        Whole(1, MAX_MEMBERS),
        1,
        "How many parts a distributed destination has. You may raise it while jobs run, and lower it when the members "
        "are empty (`jmsq purge DEST --member M`), but not below the number it was created with.",
    )
    routing: str = setting(
        "routing",
        Choice(POLICIES),
        "round-robin",
        "Which member a message goes to. Messages with a JMSXGroupID (unit of order) go to the member of their group.",
    )
    weights: tuple[int, ...] = setting("weights", WEIGHTS, (), "Shares of the members, not all 0.", without="none")
    max_message_bytes: int = setting(
        "maxMessageSize",
        Size("1"),
        10 * 2**20,
        "The largest message that is accepted: body, properties and text headers together.",
    )
    retention_ms: int = setting(
        "retention",
        Duration(high="36500 days"),
        0,
        "How long finished messages stay readable in SQL, counted from when they were sent.",
    )
    in_doubt_timeout_ms: int = setting(
        "inDoubtTimeout",
        Duration(high="30 days"),
        60_000,
        "How long the unfinished batch of a dead consumer waits for that consumer before others get it; 0: no wait.",
    )
    file_grace_ms: int = setting(
        "fileGrace",
        Duration(high="365 days"),
        3_600_000,
        "How long removed data files stay on disk for jobs that still read them, and for time travel.",
    )
    acknowledgement_retention_ms: int = setting(
        "acknowledgementRetention",
        Duration(high="36500 days"),
        7 * 86_400_000,
        "How long rows of the acknowledgement table stay at least.",
    )
    template: str | None = setting(
        "template",
        Text("the name of a template of the same file"),
        None,
        "The template under `templates:` that gives the values of the keys that the destination does not have itself, but for "
        "those that are for another kind of destination. A key with the value `null` has its default, whatever the template says.",
        without="none",
    )
    durability: str = setting("durability", Choice(DURABILITIES), "process", "What a sent message survives.")
    redelivery_limit: int = setting(
        "redeliveryLimit",
        Whole(UNLIMITED, 1_000_000),
        UNLIMITED,
        "How often a message is delivered again after its first delivery was not acknowledged; -1: without limit. Then it "
        "goes to the error destination.",
    )
    redelivery_delay_ms: int = setting(
        "redeliveryDelay",
        Duration(high="365 days"),
        0,
        "How long a message waits before it is delivered again. `message.reject(delay=…)` sets another time for one message.",
    )
    error_destination: str | None = setting(
        "errorDestination",
        Text("the name of a queue of the same domain"),
        None,
        "The queue for messages that have exceeded the redelivery limit. They stay whole and get the reason as "
        "properties; `jmsq redrive` sends them back. Without an error destination they are discarded.",
        without="none",
    )
    messaging_performance_preference: int = setting(
        "messagingPerformancePreference",
        NumberChoice(PERFORMANCE_PREFERENCES),
        PACED_PREFERENCE,
        "Whether available messages wait for others, so that consumers get fewer, larger batches. An advanced option: "
        "try others first. `minMessagesPerTrigger` of a query overrides it.",
    )
    store_message_compression_enabled: bool = setting(
        "storeMessageCompressionEnabled",
        Flag(),
        False,
        "Whether message bodies in the destination's files are compressed by `messageCompressionOptions`. With `false` "
        "they are compressed as the server of their member says, by default by Snappy, as headers and properties always are. "
        "Existing files stay unchanged until compaction rewrites them.",
    )
    message_compression_options: str = setting(
        "messageCompressionOptions",
        Choice(COMPRESSIONS),
        DEFAULT_COMPRESSION,
        "How bodies are compressed. The best choice depends on the data: `make bench` compares them.",
    )
    destination_keys: tuple[str, ...] = setting(
        "destinationKeys",
        ListOf(KeyText(), f"a list of {KeyText().range}"),
        (),
        "The keys by which each member delivers its messages, instead of their order of arrival: `JMSPriority "
        "descending` for priorities, `JMSMessageID descending` for LIFO. Avoid sorting where you do not need it: except "
        "for FIFO and LIFO, planning a batch takes time and memory for the whole backlog.",
        without="FIFO",
    )
    servers: tuple[str, ...] = setting(
        "servers",
        SERVERS,
        (),
        "The servers that the destination is on: one member on each, which keeps its positions and claims in the server's "
        "store. Servers may be added and removed while jobs run; a member is removed only when it is empty. `home` is the "
        "domain's own store. `all`: those that the domain has, without `home`; the destination follows when servers are added or "
        "removed.",
        without="none: all members are in the domain's own store",
    )
    forwarding: str = setting(
        "forwarding",
        Choice(FORWARDINGS),
        "partitioned",
        "Of a distributed topic on servers: where its subscriptions are. It cannot be changed later. Either way a message is "
        "stored once, and every subscription gets it. `apply` says so when the key is left out, as WebLogic's default is the other.",
    )
    store_enabled: bool = setting(
        "storeEnabled",
        Flag(),
        True,
        "Of a replicated distributed topic: with `false` its subscriptions are not durable, and those on a server that "
        "is down also miss the persistent messages of that time.",
    )
    unit_of_work_handling_policy: str = setting(
        "unitOfWorkHandlingPolicy",
        Choice(UNIT_OF_WORK_POLICIES),
        "PassThrough",
        "The effect of the properties JMS_BEA_UnitOfWork…, see [units of work](MESSAGES.md#units-of-work). Change it "
        "only while the destination is empty. With SingleMessageDelivery, planning a batch reads the properties of all "
        "new messages.",
    )
    incomplete_work_expiration_ms: int | None = setting(
        "incompleteWorkExpirationTime",
        Duration(high="36500 days"),
        None,
        "When the messages of an incomplete unit of work expire, counted from the send of its first message.",
        without="never",
    )
    default_unit_of_order: str | None = setting(
        "defaultUnitOfOrder",
        UNIT,
        None,
        "The unit of order (JMSXGroupID) that a message without one gets when it is sent. One name: all such messages go to one "
        f"member, to one consumer at a time. {SYSTEM_GENERATED}: a name of its own for each client's producer, and for each task "
        "of a Spark batch.",
        without="none",
    )
    promoted_properties: tuple[str, ...] = setting(
        "promotedProperties",
        ListOf(PromotedText(), f"a list of {PromotedText().range}"),
        (),
        "Properties that are also typed columns of the Delta table, under their names, with statistics by which selectors "
        "skip files. They may be added and removed while jobs run; messages sent before are found as well. At most "
        f"{MAX_PROMOTED}.",
        without="none",
    )
    forward_delay_ms: int | None = setting(
        "forwardDelay",
        Duration(high="365 days", bare="s"),
        None,
        "How long a member of a distributed queue with messages and no consumers waits before housekeeping moves the "
        "messages to members with consumers. A queue with this key refuses units of order and units of work.",
        without="not forwarded (WebLogic's -1)",
    )
    reset_delivery_count_on_forward: bool = setting(
        "resetDeliveryCountOnForward",
        Flag(),
        True,
        "Whether the delivery count of a forwarded message restarts. With `false`, which is for distributed queues, it goes on.",
    )
    unit_of_order_routing: str = setting(
        "unitOfOrderRouting",
        Choice(UNIT_ROUTINGS),
        "hash",
        "How the member of a unit of order is found ([path service](DISTRIBUTED.md#the-path-service)). `path-service` costs "
        "nothing while all members are up.",
    )
    messages_limit_override: int = setting(
        "messagesLimitOverride",
        Whole(UNLIMITED),
        UNLIMITED,
        "Of a topic: how many messages each subscription keeps on each member; -1: no limit. A message that arrives at "
        "a full subscription displaces the message that would be delivered next, see [the limit of a "
        "subscription](LIMITS.md#the-limit-of-a-subscription).",
    )
    bytes_threshold_high: int = setting("bytesThresholdHigh", Whole(NO_THRESHOLD), NO_THRESHOLD, BYTES_HIGH)
    bytes_threshold_low: int = setting("bytesThresholdLow", Whole(NO_THRESHOLD), NO_THRESHOLD, BYTES_LOW)
    messages_threshold_high: int = setting("messagesThresholdHigh", Whole(NO_THRESHOLD), NO_THRESHOLD, MESSAGES_HIGH)
    messages_threshold_low: int = setting("messagesThresholdLow", Whole(NO_THRESHOLD), NO_THRESHOLD, MESSAGES_LOW)

    message_logging_enabled: bool = setting(
        "messageLoggingEnabled",
        Flag(),
        False,
        "Whether the destination has a [life-cycle log](MONITORING.md#the-life-cycle-log). Its rows stay for "
        "`acknowledgementRetention`.",
    )
    expiration_policy: str = setting(
        "expirationPolicy",
        Choice(EXPIRATION_POLICIES),
        DISCARD,
        "What happens to messages that expire before they are delivered ([expired messages](MESSAGES.md#expired-messages)).",
    )
    expiration_logging_policy: str = setting(
        "expirationLoggingPolicy",
        LoggedFieldsText(),
        "",
        "What `expirationPolicy: Log` logs of an expired message besides its JMSMessageID: names of header fields and "
        "properties, `%header%` for all header fields, `%properties%` for all properties.",
        without="the JMSMessageID alone",
    )

    quota: str | None = setting(
        "quota",
        Text("the name of a quota"),
        None,
        "The [quota](LIMITS.md#quotas) of the destination. Senders wait for room up to their send time-out. You may "
        "change it while jobs run; waiting senders then fail with a ResourceAllocationException.",
        without="none",
    )

    @property
    def measures_usage(self) -> bool:
        """Processes with its record sets publish what is not finished, for senders that have to know it."""
        return self.quota is not None or max(self.messages_threshold_high, self.bytes_threshold_high) != NO_THRESHOLD

    @property
    def handles_units_of_work(self) -> bool:
        return self.unit_of_work_handling_policy == SINGLE_MESSAGE_DELIVERY

    def refusal(self, row: Setting, value: object, allowed: str) -> ModuleFileError:
        return ModuleFileError(f"destination {self.name}: {row.name} is {value!r}, but must be {allowed}")


KEYS = settings_of(DestinationSettings)
TEMPLATE_KEYS = {name: row for name, row in KEYS.items() if name != "template"}
_INHERITED = "inherited"
# The first tables had these, so a table that lacks one is damaged: with a default in its place, members would disappear.
IN_EVERY_TABLE = frozenset(
    ("kind", "members", "routing", "weights", "maxMessageSize", "retention", "inDoubtTimeout", "fileGrace")
)


def not_for(kind: str) -> frozenset[str]:
    """The keys that a destination of this kind cannot have, except with their defaults. In a template they are for others."""
    found = {"forwardDelay"} if kind != "distributed-queue" else set()
    found |= {"forwarding", "storeEnabled"} if kind != "distributed-topic" else set()
    return frozenset(found if kind.endswith("topic") else found | {"messagesLimitOverride"})


def contradiction(settings: DestinationSettings) -> tuple[str, str] | None:
    """The first setting that does not agree with the others, and why."""
    kind, members, weights = settings.kind, settings.members, list(settings.weights)
    servers = list(settings.servers)
    if wrong := doubled(settings.promoted_properties):
        return "promotedProperties", f"promotedProperties {wrong}"
    if len(set(servers)) < len(servers):
        return (
            "servers",
            f"servers is {servers}, but must name each server once: a destination has one member on a server",
        )
    if "all" in servers and (len(servers) > 1 or not kind.startswith("distributed-") or settings.routing == "weighted"):
        return "servers", (
            f"servers is {', '.join(servers)}, but all stands alone, for a distributed destination that is not weighted: name the "
            "servers"
        )
    if servers and kind.startswith("distributed-") and members != len(servers):
        return "members", (
            f"members is {members}, but must be {len(servers)} or left out: there is one member on each of the servers "
            f"{', '.join(servers)}"
        )
    if len(servers) > 1 and not kind.startswith("distributed-"):
        return (
            "servers",
            f"servers is {servers}, but a {kind} is on one server (a distributed-{kind} may be on several)",
        )
    if members > 1 and not kind.startswith("distributed-"):
        return "members", (
            f"members is {members}, but must be 1, because a {kind} has one member "
            f"(a distributed-{kind} may have up to {MAX_MEMBERS})"
        )
    if settings.messages_limit_override != UNLIMITED and not kind.endswith("topic"):
        return "messagesLimitOverride", (
            f"messagesLimitOverride is {settings.messages_limit_override}, but a {kind} has no subscriptions: it is for a topic"
        )
    if settings.expiration_policy == REDIRECT and settings.error_destination is None:
        return "expirationPolicy", (
            f"expirationPolicy is {REDIRECT}, but there is no errorDestination for expired messages: name a queue of this domain "
            "as errorDestination, or use another policy"
        )
    if wrong := _wrong_thresholds(settings):
        return wrong.split(" ")[0], wrong
    for contradicts in (_contradicts_replication, _contradicts_units_of_work, _contradicts_forwarding):
        if found := contradicts(settings):
            return found
    if settings.routing != "weighted":
        if not weights:
            return None
        return "weights", (
            f"weights is {weights}, but routing is {settings.routing}: weights go with routing: weighted"
        )
    if not weights:
        return "routing", f"weights is missing: routing weighted needs {members} weight(s), one for each member"
    if len(weights) != members or not any(weights):
        return "weights", (
            f"weights is {weights}, but must be a list of {members} weight(s), one for each member, not all 0"
        )
    return None


def _wrong_thresholds(settings: DestinationSettings | ServerSettings) -> str | None:
    return wrong_pair("messages", settings.messages_threshold_high, settings.messages_threshold_low) or wrong_pair(
        "bytes", settings.bytes_threshold_high, settings.bytes_threshold_low
    )


def _contradicts_units_of_work(settings: DestinationSettings) -> tuple[str, str] | None:
    if not settings.handles_units_of_work:
        return None
    if settings.destination_keys:
        why = "destinationKeys is given: units of work are delivered in the order in which they are complete"
    elif settings.default_unit_of_order is not None:
        why = "defaultUnitOfOrder is given: a message has a unit of order or a unit of work"
    elif settings.forwarding == "replicated":
        why = "forwarding is replicated: a server that was down may lack messages of a unit"
    elif settings.unit_of_order_routing == PATH_SERVICE:
        why = f"unitOfOrderRouting is {PATH_SERVICE}: units of work stay with the member of their hash"
    else:
        return None
    return "unitOfWorkHandlingPolicy", (
        f"unitOfWorkHandlingPolicy is {SINGLE_MESSAGE_DELIVERY}, and {why}, so leave one of the two out"
    )


def _contradicts_forwarding(settings: DestinationSettings) -> tuple[str, str] | None:
    if not settings.reset_delivery_count_on_forward and settings.kind != "distributed-queue":
        return "resetDeliveryCountOnForward", (
            f"resetDeliveryCountOnForward is false, but a {settings.kind} has no members that forward messages to each other: it "
            "is for a distributed-queue"
        )
    if settings.forward_delay_ms is None:
        return None
    if settings.kind != "distributed-queue":
        return "forwardDelay", (
            f"forwardDelay is given, but a {settings.kind} has no members that lack consumers: it is for a distributed-queue"
        )
    if settings.default_unit_of_order is not None or settings.handles_units_of_work:
        return "forwardDelay", (
            "forwardDelay is given with defaultUnitOfOrder or unitOfWorkHandlingPolicy, but messages of a unit stay on one "
            "member: leave one of the two out"
        )
    return None


def _contradicts_replication(settings: DestinationSettings) -> tuple[str, str] | None:
    replicated = settings.forwarding == "replicated"
    if replicated and not (settings.kind == "distributed-topic" and settings.servers):
        return "forwarding", (
            "forwarding is replicated, but this is for a distributed-topic with `servers`: without servers every subscription "
            "has all members and gets every message"
        )
    if not settings.store_enabled and not replicated:
        return "storeEnabled", "storeEnabled is false, but this is for a distributed-topic with forwarding: replicated"
    return None


# -- in the table's metadata -------------------------------------------------------------------------------------------
def to_metadata(settings: DestinationSettings) -> dict[str, str]:
    """The stored settings, each under its `stored_name`. None is not stored: it is the default where it is allowed."""
    values = ((row, getattr(settings, row.field)) for row in KEYS.values())
    stored = {row.stored_name: row.type.store(value) for row, value in values if value is not None}
    return {**stored, _INHERITED: json.dumps(sorted(settings.inherited))} if settings.inherited else stored


def from_metadata(stored: Mapping[str, str]) -> dict[str, Any]:
    """The values by field. KeyError when a setting of IN_EVERY_TABLE is missing; any other then has its default."""
    values: dict[str, Any] = {"inherited": frozenset(map(str, json.loads(stored.get(_INHERITED, "[]"))))}
    for row in KEYS.values():
        if row.stored_name in stored or row.name in IN_EVERY_TABLE:
            values[row.field] = row.type.load(stored[row.stored_name])
    return values
