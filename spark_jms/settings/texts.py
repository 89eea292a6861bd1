"""The names and defaults of WebLogic's texts on tuning and distributed destinations, and the settings that stand for them.

`make docs` writes them into docs/OPTIONS.md. A setting that is not there yet is shown as "not yet", until a table of settings
has it: nothing is to be changed here when it is added.

Features: T18 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spark_jms.settings.table import Setting
from spark_jms.settings.tables import GROUPS

NOT_YET = "not yet"


@dataclass(frozen=True)
class TextName:
    """A name of the texts. `default` is the one that they state, or "". `keys` are the settings that stand for it, as
    GROUP.NAME; where there are none, `instead` tells what does. `differs` explains another default."""

    name: str
    default: str = ""
    keys: tuple[str, ...] = ()
    instead: str = NOT_YET
    differs: str = ""

    @property
    def settings(self) -> list[tuple[str, Setting]]:
        """The group and the declaration of each of `keys` that is there."""
        split = (key.split(".") for key in self.keys)
        found = [(group, GROUPS[group].settings.get(name)) for group, name in split if group in GROUPS]
        return [(group, row) for group, row in found if row is not None]

    @property
    def shown(self) -> str:
        """What stands for it here."""
        here = [f"`{row.name}` of {_PLACES[group]}: {row.shown_default}" for group, row in self.settings]
        return "; ".join([*here, self.differs] if self.differs else here) or self.instead


_PLACES = {
    "module": "a destination or template",
    "server": "a server",
    "factory": "a connection factory",
    "quota": "a quota",
    "jdbc": "a jdbc: URI",
    "environment": "the environment",
}
_CONSUMER = "`Context.consumer(acknowledge=…)`"
_REFUSED = "refused"

DISTRIBUTED = (
    TextName("Load Balancing Enabled", "true", ("factory.loadBalancingEnabled",)),
    TextName("Server Affinity Enabled", "true", ("factory.serverAffinityEnabled",)),
    TextName("Producer Load Balancing Policy", "", ("factory.producerLoadBalancingPolicy",)),
    TextName("Forward Delay", "disabled", ("module.forwardDelay",)),
    TextName("Reset Delivery Count On Forward", "true", ("module.resetDeliveryCountOnForward",)),
    TextName("Forwarding Policy", "", ("module.forwarding",)),
    TextName("StoreEnabled", "", ("module.storeEnabled",)),
    TextName("weight", "", ("module.weights",)),
    TextName("Client ID", "", instead="`connect(client_id=…, client_id_policy=…)`"),
    TextName("Sharable subscription", "", instead="`Context.consumer(sharing=…)`: sharable"),
)
TUNING = (
    TextName("JMS template", "", ("module.template",)),
    TextName("MessagesMaximum", "", ("factory.messagesMaximum",)),
    TextName("weblogic.MaxMessageSize", "10 MB", ("factory.maxMessageSize",)),
    TextName("Prefetch Mode for Synchronous Consumers", "", ("factory.synchronousPrefetchMode",)),
    TextName(
        "weblogic.ThreadPoolSize",
        "5",
        instead=f"{_REFUSED}: each consumer with a listener has a thread of its own, so no listener waits for others",
    ),
    TextName("Messaging Performance Preference", "25", ("module.messagingPerformancePreference",)),
    TextName("Default Compression Threshold", "", ("factory.defaultCompressionThreshold",)),
    TextName("Store Message Compression Enabled", "", ("module.storeMessageCompressionEnabled",)),
    TextName("Paging Message Compression Enabled", "", ("factory.pagingMessageCompressionEnabled",)),
    TextName(
        "Message Compression Options", "", ("module.messageCompressionOptions", "factory.messageCompressionOptions")
    ),
    TextName(
        "Paging Directory",
        "tmp of the server",
        ("factory.pagingDirectory", "environment.JMSQ_PAGING_DIRECTORY"),
        differs="a connection has no server's directory",
    ),
    TextName(
        "Message Buffer Size",
        "a third of the heap, at most 512 MB",
        ("factory.messageBufferSize", "environment.JMSQ_MESSAGE_BUFFER_SIZE"),
        differs="the memory of the process, since there is no heap",
    ),
    TextName("Quota", "", ("module.quota",)),
    TextName("Bytes Maximum", "", ("quota.bytesMaximum", "server.bytesMaximum")),
    TextName("Messages Maximum", "", ("quota.messagesMaximum", "server.messagesMaximum")),
    TextName("Shared", "", ("quota.shared",)),
    TextName("Policy", "", ("quota.policy",)),
    TextName("Blocking Send Policy", "", ("server.blockingSendPolicy",)),
    TextName("Send Timeout", "", ("factory.sendTimeout",), "`Context.producer(send_timeout=…)`: 10 ms"),
    TextName("MessagesLimitOverride", "-1", ("module.messagesLimitOverride",)),
    TextName("SubscriptionMessagesLimit", "-1", instead="`jmsq subscriptions`, `jmsq stat`: -1"),
    TextName("SubscriptionLimitDeletedCount", "", instead="`jmsq subscriptions`, `jmsq stat`"),
    TextName("Flow Control Enabled", "", ("factory.flowControlEnabled",)),
    TextName("Flow Maximum", "", ("factory.flowMaximum",)),
    TextName("Flow Minimum", "", ("factory.flowMinimum",)),
    TextName("Flow Interval", "", ("factory.flowInterval",)),
    TextName("Flow Steps", "", ("factory.flowSteps",)),
    TextName("Bytes Threshold High", "", ("module.bytesThresholdHigh", "server.bytesThresholdHigh")),
    TextName("Bytes Threshold Low", "", ("module.bytesThresholdLow", "server.bytesThresholdLow")),
    TextName("Messages Threshold High", "", ("module.messagesThresholdHigh", "server.messagesThresholdHigh")),
    TextName("Messages Threshold Low", "", ("module.messagesThresholdLow", "server.messagesThresholdLow")),
    TextName("Expiration Policy", "", ("module.expirationPolicy",)),
    TextName("Expiration Logging Policy", "", ("module.expirationLoggingPolicy",)),
    TextName("Scan Expiration Interval", "30 s", ("server.expirationScanInterval", "module.expirationScanInterval")),
    TextName("Error Destination", "", ("module.errorDestination",)),
    TextName("Message Life Cycle Logging", "", ("module.messageLoggingEnabled",)),
    TextName("Default Unit-of-Order", "", ("module.defaultUnitOfOrder",)),
    TextName("Unit-of-Order Routing", "", ("module.unitOfOrderRouting",), "hashing"),
    TextName("sorted destination", "", ("module.destinationKeys",)),
    TextName("One Way Send Mode", "", ("factory.oneWaySendMode",)),
    TextName("One Way Send Window Size", "1", ("factory.oneWaySendWindowSize",)),
    TextName("JTA time-out", "30 s", ("factory.databaseTransactionTimeout",)),
    TextName("transacted session time-out", "1 h", ("factory.transactionTimeout",)),
    TextName(
        "XA Enabled",
        instead=f"{_REFUSED}: no transaction manager enlists a connection; a [transacted session](TRANSACTIONS.md) spans "
        "destinations and servers by itself",
    ),
    TextName(
        "MDB transaction batching",
        "",
        instead="`consumer(listener=…, transaction_batch=…)` of a [transacted session](TRANSACTIONS.md)",
    ),
    TextName("CLIENT_ACKNOWLEDGE", "", instead=f'{_CONSUMER}: "client"'),
    TextName("AUTO_ACKNOWLEDGE", "", instead=f'{_CONSUMER}: "auto"'),
    TextName("DUPS_OK_ACKNOWLEDGE", "", instead=f'{_CONSUMER}: "dups-ok"'),
    TextName("MULTICAST_NO_ACKNOWLEDGE", "", instead=f"{_REFUSED}: messages are read from a log, not broadcast"),
    TextName("XML message selectors", "", instead=f"{_REFUSED}: a selector does not read bodies"),
    TextName("IORetryDelaySeconds", "", ("jdbc.retry_limit_s",)),
    TextName("Production Pause and Resume", "", instead="`jmsq pause`, `jmsq resume`"),
    TextName(
        "weblogic.messaging.DisableTopicMultiSender", "", instead="no counterpart: a sender never waits for subscribers"
    ),
    TextName("local-jndi-name", "", instead="no counterpart: destinations are looked up by their names"),
)
NAMES = (*DISTRIBUTED, *TUNING)


def table() -> Iterator[str]:
    yield "| In the texts | Default there | Here, with its default |"
    yield "|---|---|---|"
    for row in NAMES:
        yield f"| {row.name} | {row.default or '–'} | {row.shown} |"
