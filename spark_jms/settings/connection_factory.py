"""The settings of a connection factory: how the senders and receivers of its connections choose among the members of a
distributed destination, how many messages its consumers claim at a time, whether and how long its senders wait, and
its flow control. The keys have JMS's own names in WebLogic, in camel case.

To add a key, add a line at the end of ConnectionFactory, and run `make options`. Stored ones that lack the key have its default.

Features: D2, D3, T2, T5, T9, T10, T11 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from spark_jms.errors import OptionError
from spark_jms.settings.destination import COMPRESSIONS, DEFAULT_COMPRESSION, SYSTEM_GENERATED, UNIT
from spark_jms.settings.environment import BUFFER_SIZE, DEFAULT_BUFFER, PATH
from spark_jms.settings.table import Setting, Table, setting, settings_of
from spark_jms.settings.types import Choice, Duration, Flag, Maximum, Size, Whole

PER_MEMBER, PER_JVM = "per-member", "per-jvm"
MAX_WINDOW = 2_147_483_647
PRODUCER_POLICIES = {
    PER_MEMBER: "all members",
    PER_JVM: "one member of each server: the one with the lowest id",
}
MAX_MESSAGES_MAXIMUM = 10_000
MAX_FLOW = 2**31 - 1
PREFETCH_ENABLED, PREFETCH_DISABLED, PREFETCH_OF_TOPICS = "enabled", "disabled", "topicSubscriberOnly"
PREFETCH_MODES = {
    PREFETCH_ENABLED: "as for listeners",
    PREFETCH_DISABLED: "one message at a time",
    PREFETCH_OF_TOPICS: "as for listeners on topics, one message at a time on queues",
}
DISABLED, ENABLED, TOPIC_ONLY = "disabled", "enabled", "topicOnly"
ONE_WAY_SEND_MODES = {
    DISABLED: "a send returns when its message is in the table",
    ENABLED: "non-persistent sends may return earlier",
    TOPIC_ONLY: "the same, to topics alone",
}
LOAD_BALANCING = (
    "Whether a sender chooses a member for each message, by the destination's `routing`. With `false`, it chooses at "
    "its first message, and keeps that member until it is down, paused or removed."
)
SERVER_AFFINITY = (
    "Whether senders, and receivers that are pinned, prefer the member on their home server: that of the environment variable "
    "JMSQ_SERVER, `connect(…, server=…)` or the option `server`. Without a home server there is no preference."
)
PRODUCER_POLICY = "Among which members a sender balances. With one member on each server both are the same."


@attrs.frozen
class ConnectionFactory(Table):
    """The keys of one connection factory, under `connectionFactories:` in the module file; or made in Python for one
    connection. Load balancing and affinity do not concern units of order, or senders and receivers that name a server."""

    load_balancing_enabled: bool = setting("loadBalancingEnabled", Flag(), True, LOAD_BALANCING)
    server_affinity_enabled: bool = setting("serverAffinityEnabled", Flag(), True, SERVER_AFFINITY)
    producer_load_balancing_policy: str = setting(
        "producerLoadBalancingPolicy", Choice(PRODUCER_POLICIES, fold=True), PER_MEMBER, PRODUCER_POLICY
    )
    pin_receivers: bool = setting(
        "pinReceivers",
        Flag(),
        False,
        "Whether a client's receivers and browsers of a queue are pinned to one member, as in WebLogic, if `pin` is not "
        "given. `false`: they receive from all members.",
    )
    default_compression_threshold: int | None = setting(
        "defaultCompressionThreshold",
        Size("0"),
        None,
        "Senders compress a body of at least this size with GZIP, and it stays compressed until it is read ([compressed "
        "bodies](MESSAGES.md#compressed-bodies)). `Context.producer(compression_threshold=…)` overrides it.",
        without="never",
    )
    messages_maximum: int = setting(
        "messagesMaximum",
        Maximum(1, MAX_MESSAGES_MAXIMUM),
        10,
        "The pipeline: how many messages a consumer claims at a time, if `prefetch` is not given. No other consumer "
        "gets them until it acknowledges or releases them. For an application that acknowledges N messages at a time, 2 "
        "* N + 1 is a good value: `statistics()` of a consumer computes it. -1: as many as `maxMessageSize` allows.",
    )
    max_message_bytes: int = setting(
        "maxMessageSize",
        Size("1"),
        10_000_000,
        "The largest total size of the messages that a consumer claims at a time; it returns the others at once. It "
        "claims a larger message, or unit of work, alone.",
    )
    synchronous_prefetch_mode: str = setting(
        "synchronousPrefetchMode",
        Choice(PREFETCH_MODES),
        PREFETCH_ENABLED,
        "Whether consumers without a listener also claim `messagesMaximum` messages at a time, if `prefetch` is not given.",
    )
    flow_control_enabled: bool = setting(
        "flowControlEnabled",
        Flag(),
        True,
        "Whether senders slow down while a destination or server is above its [thresholds](LIMITS.md#flow-control). Without "
        "thresholds it costs nothing. One-way sends turn it off.",
    )
    flow_maximum: int = setting(
        "flowMaximum",
        Whole(1, MAX_FLOW, "messages a second"),
        500,
        "The limit, in messages a second, at which a producer or a query's sink starts to slow down.",
    )
    flow_minimum: int = setting(
        "flowMinimum",
        Whole(1, MAX_FLOW, "messages a second"),
        50,
        "The limit below which a producer or sink does not slow down.",
    )
    flow_interval_ms: int = setting(
        "flowInterval",
        Duration(high="365 days", bare="s"),
        60_000,
        "The time in which a sender goes from the maximum to the minimum, geometrically, or back, linearly.",
    )
    flow_steps: int = setting("flowSteps", Whole(1, 1000), 10, "The number of steps in that time.")
    one_way_send_mode: str = setting(
        "oneWaySendMode",
        Choice(ONE_WAY_SEND_MODES),
        DISABLED,
        "Whether producers send non-persistent messages without waiting: [when, and what is lost](CLIENT.md#one-way-sends).",
    )
    one_way_send_window_size: int = setting(
        "oneWaySendWindowSize",
        Whole(1, MAX_WINDOW),
        1,
        "With one-way sends: every n-th send waits until it and those before it are in the table. With 1 each send "
        "waits; 300 is a good start.",
    )
    transaction_timeout_ms: int = setting(
        "transactionTimeout",
        Duration("1 s", high="365 days", bare="s"),
        3_600_000,
        "After so long a transaction of a transacted session is rolled back, where `timeout` is not given.",
    )
    database_transaction_timeout_ms: int = setting(
        "databaseTransactionTimeout",
        Duration("1 s", high="365 days", bare="s"),
        30_000,
        "The same of a session with a [database as last resource](TRANSACTIONS.md#a-database-as-last-resource).",
    )

    message_buffer_bytes: int | None = setting(
        "messageBufferSize",
        BUFFER_SIZE,
        None,
        "So much of the messages that wait in a connection stays in memory; more is paged to files, or read again from the log "
        "([paging](LIMITS.md#paging)). It is not a quota: nothing is refused for it.",
        without=f"JMSQ_MESSAGE_BUFFER_SIZE, else {DEFAULT_BUFFER}",
    )
    paging_directory: str | None = setting(
        "pagingDirectory",
        PATH,
        None,
        "Where the pages are: a directory on a disk of each host, which is created. Its files have no names, and end with their "
        "process.",
        without="JMSQ_PAGING_DIRECTORY, else TMPDIR if it is set, else the host's directory of temporary files on a disk",
    )
    paging_message_compression_enabled: bool = setting(
        "pagingMessageCompressionEnabled",
        Flag(),
        False,
        "Whether pages are compressed, as `messageCompressionOptions` says.",
    )
    message_compression_options: str = setting(
        "messageCompressionOptions", Choice(COMPRESSIONS), DEFAULT_COMPRESSION, "How pages are compressed."
    )
    asynchronous_send_linger_ms: int = setting(
        "asynchronousSendLinger",
        Duration("0 ms", high="60 s"),
        0,
        "So long [asynchronous](CLIENT.md#asynchronous-sends) and one-way sends wait for others, which then share their commit and "
        "their file. A call that waits for them ends the wait.",
    )
    send_timeout_ms: int = setting(
        "sendTimeout",
        Duration(high="365 days"),
        10,
        "So long senders wait for room in a [quota](LIMITS.md#quotas), or while insertion is paused; then they fail. 0: not at "
        "all. `Context.producer(send_timeout=…)` and `jmsq send --send-timeout` override it; requests and replies have it too. "
        "A Spark batch has its option of this name.",
    )
    default_unit_of_order: str | None = setting(
        "defaultUnitOfOrder",
        UNIT,
        None,
        "The unit of order (JMSXGroupID) that a message without one gets from senders of the connection, in place of the "
        f"`defaultUnitOfOrder` of its destination. {SYSTEM_GENERATED}: a name of its own for each client's producer, and for each "
        "task of a Spark batch. Destinations that forward, or handle units of work, ignore it.",
        without="none",
    )

    def __attrs_post_init__(self) -> None:
        if self.flow_minimum > self.flow_maximum:
            raise OptionError(
                f"flowMinimum of a connection factory is {self.flow_minimum}, but must be at most its flowMaximum, "
                f"{self.flow_maximum}"
            )

    def refusal(self, row: Setting, value: object, allowed: str) -> OptionError:
        """The error for a value that does not fit, when the factory is made in Python."""
        return OptionError(f"{row.name} of a connection factory is {value!r}, but must be {allowed}")

    def pipeline(self, *, listener: bool, topic: bool) -> int:
        """How many messages a consumer claims at a time that gives no `prefetch`; NO_LIMIT: any number."""
        prefetches = listener or self.synchronous_prefetch_mode == PREFETCH_ENABLED
        if not prefetches and not (topic and self.synchronous_prefetch_mode == PREFETCH_OF_TOPICS):
            return 1
        return self.messages_maximum

    @property
    def sends_one_way(self) -> bool:
        """Whether non-persistent sends may return before their message is in the table."""
        return self.one_way_send_mode != DISABLED

    @property
    def balances_per_jvm(self) -> bool:
        """Whether a sender uses one member of each server."""
        return self.producer_load_balancing_policy == PER_JVM


FACTORY_KEYS = settings_of(ConnectionFactory)


def to_stored(factory: ConnectionFactory) -> dict[str, Any]:
    return {name: getattr(factory, row.field) for name, row in FACTORY_KEYS.items()}


def from_stored(stored: Mapping[str, Any]) -> ConnectionFactory:
    """Raises KeyError for a key that this version does not know, and OptionError."""
    return ConnectionFactory(**{FACTORY_KEYS[name].field: value for name, value in stored.items()})
