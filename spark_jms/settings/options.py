"""The options of format("jmsq"). To add one, add a line to Options.

Features: C1, C6, C7 (docs/FEATURES.md)
"""

from __future__ import annotations

import attrs

from spark_jms.settings.connection_factory import LOAD_BALANCING, PRODUCER_POLICIES, PRODUCER_POLICY
from spark_jms.settings.environment import ROOT_VARIABLE
from spark_jms.settings.table import REQUIRED, Table, setting, settings_of
from spark_jms.settings.types import ALL, READS, WRITES, Choice, Duration, Flag, ListOf, Text, Use, Whole

VIEWS = {
    "messages": "messages that are not finished: in the queue, or for the topic's `subscription`",
    "all": "every message that is still in the table, finished or not",
    "acknowledgements": "which consumer acknowledged which sequences when (`ranges`: `1-3, 7`), including rows that are not in "
    "their table yet",
    "claims": "the messages that consumers hold",
    "subscriptions": "position, backlog and consumers of each subscription and member",
    "events": "the [life-cycle log](MONITORING.md#the-life-cycle-log) of a destination with `messageLoggingEnabled`, including "
    "rows that are not in its table yet",
    "changes": "[what happened to messages](CHANGES.md): sent, finished, expired, dropped, moved …, a row for each range; the one "
    "view that can be streamed, and of all destinations with `destination` `*`",
    "usage": "the [usage history](LIMITS.md#the-usage-history) of the destination: messages sent and finished in each minute, "
    "and its usage",
}

ON_POISON = {
    "fail": "each restart delivers the same messages",
    "isolate": "each restart delivers a smaller part, until the failing message is alone and moves to the error destination",
}


SEND, EXPIRE = "send", "expire"
ACTIONS = {
    SEND: "send the rows as messages",
    EXPIRE: "look at messages that are due, and expire those that are over by the policy of their destination; a row names `table`, "
    "`destination`, `member` and `ranges`",
}
FAIL, KEEP = "fail", "keep"
ON_UNREADABLE = {
    FAIL: "the query ends",
    KEEP: "the query continues with the others; this one keeps its position, and its news come when it can be read again. A file that "
    "cannot be read has a row `unread`",
}
DEFAULT_PACE_MS, DEFAULT_MAX_DELAY_MS = 250, 900_000

SHARING = {
    "sharable": "its consumers share the messages",
    "exclusive": "one consumer at a time; while it lives, others get a SubscriptionInUseError, and it gets one while there are "
    "others",
}

CLIENT_ID_POLICIES = {
    "restricted": "one streaming query or client at a time; others get an InvalidClientIDException",
    "unrestricted": "any number",
}


@attrs.frozen
class Options(Table):
    """The options of one query or batch. In a use that is not in its `used_in` an option is refused."""

    root: str = setting(
        "root",
        Text("a directory or an object store's URL"),
        REQUIRED,
        "The domain. The environment variable must be set before the Spark session starts.",
        used_in=ALL,
        variable=ROOT_VARIABLE,
    )
    destination: str = setting(
        "destination",
        Text("a name, or server@name"),
        REQUIRED,
        "The name of the queue or topic; `east@orders` is the member of `orders` on the server `east`. With `view` `changes`, `*` "
        "is all destinations.",
        used_in=ALL,
    )
    path: str | None = setting(
        "path", Text(), None, 'Ignored: Spark adds it for `load("…")` and `save("…")`.', used_in=ALL
    )
    subscription: str | None = setting(
        "subscription",
        Text("a name"),
        None,
        "The durable subscription of a topic. Needed to stream from a topic, refused for a queue. A batch read of a topic "
        "without it shows all messages that are still in the table.",
        used_in=READS,
    )
    subscription_sharing: str = setting(
        "subscriptionSharing",
        Choice(SHARING, fold=True),
        "sharable",
        "Who may use the topic's subscription. A restarted query waits up to 15 s for its old instance to end. Refused "
        "for a queue.",
        used_in=(Use.READ_STREAM,),
    )
    client_id: str | None = setting(
        "clientId",
        Text("a name"),
        None,
        "The client id, which with its policy qualifies the name of the subscription.",
        used_in=READS,
    )
    client_id_policy: str = setting(
        "clientIdPolicy",
        Choice(CLIENT_ID_POLICIES, fold=True),
        "restricted",
        "How many connections may have the `clientId`. A restarted query waits up to 15 s for its old instance to end.",
        used_in=READS,
    )
    starting_position: str | None = setting(
        "startingPosition",
        Text("latest, earliest or a JSON object"),
        None,
        "Where a *new* subscription of a topic starts; a known one continues where it was. A queue accepts only "
        "`earliest`. See [startingPosition](#startingposition). With `view` `changes`: `earliest`, which is the default there, "
        "`latest`, or a position of the feed.",
        without="latest",
        used_in=(Use.READ_STREAM,),
    )
    selector: str | None = setting(
        "selector",
        Text("a JMS selector, at most 128 KiB"),
        None,
        "SQL-92 conditions on headers and properties. In a queue, messages that do not match stay for other consumers. "
        "If such a message belongs to a unit of order (`JMSXGroupID`), it holds back the later ones of its unit, even "
        "those that match, until another consumer has finished it or it expires: `jmsq explain` counts them. A topic's "
        "subscription finishes messages that do not match, so it keeps its first selector; another one is an "
        "OptionError (drop the subscription and create it again, or use another).",
        used_in=READS,
    )
    columns: tuple[str, ...] = setting(
        "columns",
        ListOf(Text(), "a list of different message columns"),
        (),
        "Which [message columns](MESSAGES.md), in which order, such as `sequence,text`. Spark cannot prune the columns "
        "of a Python source by itself, and every column costs time. Through a temporary view, `INSERT` has the same "
        "columns.",
        without="all",
        used_in=(*READS, Use.WRITE),
    )
    view: str = setting(
        "view",
        Choice(VIEWS, fold=True),
        "messages",
        "What to show, see [view](#view). An option that the view does not use is refused: `subscription` with `all`, "
        "`selector` and `columns` with the views listed after `all`. A streaming read has the messages, or `changes`.",
        used_in=READS,
    )
    fail_on_data_loss: bool = setting(
        "failOnDataLoss",
        Flag(),
        True,
        "If messages were removed from the table before they were consumed: `true` raises DataLossError, `false` skips "
        "them with a warning. A batch read always skips them.",
        used_in=(Use.READ_STREAM,),
    )
    max_messages: int | None = setting(
        "maxMessagesPerTrigger",
        Whole(1),
        None,
        "The most messages in a micro-batch, shared fairly among members. With `view` `changes`: about so many messages and rows.",
        without="no limit",
        used_in=(Use.READ_STREAM,),
    )
    max_bytes: int | None = setting(
        "maxBytesPerTrigger",
        Whole(1),
        None,
        "The most bytes in a micro-batch, estimated from average message sizes per file; it takes at least one message "
        "per member.",
        without="no limit",
        used_in=(Use.READ_STREAM,),
    )
    min_messages: int | None = setting(
        "minMessagesPerTrigger",
        Whole(1),
        None,
        "Wait until this many messages can be taken …",
        without="as `messagingPerformancePreference` of the destination says: 1",
        used_in=(Use.READ_STREAM,),
    )
    max_delay_ms: int = setting(
        "maxTriggerDelay",
        Duration(),
        DEFAULT_MAX_DELAY_MS,
        "… but not longer than this after the previous batch.",
        used_in=(Use.READ_STREAM,),
    )
    small_batch_messages: int = setting(
        "smallBatchMessages",
        Whole(0),
        100,
        "A micro-batch of at most this many messages is one partition, and so one task, which reads the members one "
        "after the other: that takes less processor time. 0: each member is a partition in every batch, so that tasks "
        "run in parallel. Set it to 0, or below a batch's messages, where the work on one message takes long (a call of "
        "a service, a model): with 100, messages of 50 ms each take 5 s one after the other, and 1.3 s in four tasks.",
        used_in=(Use.READ_STREAM,),
    )
    batch_pace_ms: int = setting(
        "batchPace",
        Duration(high="10 s"),
        DEFAULT_PACE_MS,
        "A busy query takes messages only when this time has passed since it took the last ones. So batches are fewer "
        "and larger, and a message takes less processor time. 0: as soon as its last batch has ended. It has no effect "
        "after a time without messages, on a trigger with a longer interval, while messages are left because of "
        "`maxMessagesPerTrigger`, with Trigger.AvailableNow, and where something else says when a batch is made: "
        "`maxBytesPerTrigger`, `minMessagesPerTrigger`, `maxTriggerDelay`, or a `messagingPerformancePreference` of the "
        "destination other than 25.",
        used_in=(Use.READ_STREAM,),
    )
    in_doubt_timeout_ms: int | None = setting(
        "inDoubtTimeout",
        Duration(),
        None,
        "How long other consumers wait for this query, when it dies, before they take the messages of its unfinished batch.",
        without="that of the destination",
        used_in=(Use.READ_STREAM,),
    )
    on_poison: str = setting(
        "onPoison",
        Choice(ON_POISON, fold=True),
        "fail",
        "What happens to a batch that the sink cannot process, see [poison messages](MESSAGES.md#poison-messages). "
        "`isolate` needs `idempotentSink`.",
        used_in=(Use.READ_STREAM,),
    )
    idempotent_sink: bool = setting(
        "idempotentSink",
        Flag(),
        False,
        "Declares that the query's sink writes a batch once, however often it receives it, even if a repetition has "
        "fewer messages. Delta sinks and the sink `jmsq` do; `foreachBatch` does if it recognises the batch by its "
        "number (Delta: `txnAppId` and `txnVersion`) or writes rows by key (`MERGE` on JMSMessageID).",
        used_in=(Use.READ_STREAM,),
    )
    txn_app_id: str | None = setting(
        "txnAppId",
        Text(),
        None,
        "With `txnVersion`: a batch send that takes effect once, however often it is repeated.",
        used_in=(Use.WRITE,),
    )
    txn_version: int | None = setting(
        "txnVersion",
        Whole(0),
        None,
        "A number that rises with each send of the same `txnAppId`; a send with a lower or equal number sends nothing. "
        "One of the two options without the other is a DuplicateTransactionError.",
        used_in=(Use.WRITE,),
    )
    checkpoint_location: str | None = setting(
        "checkpointLocation",
        Text("a path or URL"),
        None,
        "Spark's own: where a streaming query keeps its state. A path, or `webhdfs://…` into a "
        "[replicated store](REPLICATED-STORE.md#as-sparks-checkpoint). It also identifies a consumer or a sending "
        "stream.",
        used_in=(Use.READ_STREAM, Use.WRITE_STREAM),
    )
    connection_factory: str | None = setting(
        "connectionFactory",
        Text("a name"),
        None,
        "The [connection factory](#keys-of-a-connection-factory) whose load balancing the sink uses. The next three "
        "options override it.",
        without="the defaults of one",
        used_in=WRITES,
    )
    load_balancing_enabled: bool | None = setting(
        "loadBalancingEnabled",
        Flag(),
        None,
        f"{LOAD_BALANCING} A streaming query is one sender, and so is each batch write.",
        without="that of the connection factory",
        used_in=WRITES,
    )
    server_affinity_enabled: bool | None = setting(
        "serverAffinityEnabled",
        Flag(),
        None,
        "Whether the sink prefers the member on its home server.",
        without="that of the connection factory",
        used_in=WRITES,
    )
    producer_load_balancing_policy: str | None = setting(
        "producerLoadBalancingPolicy",
        Choice(PRODUCER_POLICIES, fold=True),
        None,
        PRODUCER_POLICY,
        without="that of the connection factory",
        used_in=WRITES,
    )
    server: str | None = setting(
        "server",
        Text("the name of a server"),
        None,
        "The home server of the sink.",
        without="environment variable JMSQ_SERVER of the driver",
        used_in=WRITES,
    )
    send_timeout_ms: int = setting(
        "sendTimeout",
        Duration(),
        60_000,
        "How long a batch waits at its commit while the destination's quota has no room or insertion is paused. Spark "
        "does not interrupt a commit, so `query.stop()` returns when the wait ends. A batch waits only while its files "
        "are safe from clean-up: nearly half of `fileGrace`.",
        used_in=WRITES,
    )
    for_timers: bool = setting(
        "forTimers",
        Flag(),
        False,
        "With `view` `changes`, for a query that keeps messages in its state until a time: it also gets rows of the kind `done`, "
        "up to which messages are purged, and a batch when it starts, in which timers fire that are due.",
        used_in=(Use.READ_STREAM,),
    )
    on_unreadable: str = setting(
        "onUnreadable",
        Choice(ON_UNREADABLE, fold=True),
        FAIL,
        "With `view` `changes` of all destinations: what happens when one of them cannot be read.",
        used_in=(Use.READ_STREAM,),
    )
    action: str = setting(
        "action",
        Choice(ACTIONS, fold=True),
        SEND,
        "What a streaming write does: [send messages, or expire those that are due](OPERATING.md#services).",
        used_in=(Use.WRITE_STREAM,),
    )


OPTIONS = settings_of(Options)
# What users of other sources write -> what they mean here. Names are folded; every option `kafka.…` means the root.
FOREIGN_NAMES = {
    "subscribe": "destination",
    "subscribepattern": "destination",
    "assign": "destination",
    "topic": "destination",
    "topics": "destination",
    "queue": "destination",
    "startingoffsets": "startingPosition",
    "startingoffsetsbytimestamp": "startingPosition",
    "startingtimestamp": "startingPosition",
    "maxoffsetspertrigger": "maxMessagesPerTrigger",
    "minoffsetspertrigger": "minMessagesPerTrigger",
    "maxfilespertrigger": "maxMessagesPerTrigger",
    "groupidprefix": "subscription",
    "kafka.group.id": "subscription",
    "service.url": "root",
}
FOREIGN_PREFIXES = {"kafka.": "root"}
