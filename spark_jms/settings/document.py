"""All tables of settings as people read about them: in docs/OPTIONS.md, in conf/jms-module.yaml, and by `jmsq describe`.

    python -m spark_jms.settings.document        # or: make options

writes docs/OPTIONS.md and the explanation at the top of conf/jms-module.yaml. The text around the tables is in this file.

Features: C14, C16, T18 (docs/FEATURES.md)
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import attrs

from spark_jms.settings.connection_factory import ConnectionFactory
from spark_jms.settings.destination import KEYS, DestinationSettings, DomainSettings, ServerSettings
from spark_jms.settings.environment import Environment
from spark_jms.settings.options import VIEWS, Options
from spark_jms.settings.quota import QuotaSettings
from spark_jms.settings.refused import REFUSED
from spark_jms.settings.store import DaemonSettings, DoorSettings, JdbcOptions, ReplicatedOptions, Thresholds
from spark_jms.settings.table import REQUIRED, Setting, Table, settings_of
from spark_jms.settings.types import ALL, Choice, NumberChoice


@attrs.frozen
class Group:
    """The settings of one or more Tables that are given in one place."""

    name: str
    title: str
    tables: tuple[type[Table], ...]

    @property
    def settings(self) -> Mapping[str, Setting]:
        return {name: row for table in self.tables for name, row in settings_of(table).items()}


GROUPS = {
    group.name: group
    for group in (
        Group("options", 'Options of format("jmsq")', (Options,)),
        Group("module", "Keys of the module file", (DestinationSettings, DomainSettings)),
        Group("server", "Keys of a server, below `servers:` in the module file", (ServerSettings,)),
        Group(
            "factory",
            "Keys of a connection factory, below `connectionFactories:` in the module file",
            (ConnectionFactory,),
        ),
        Group("quota", "Keys of a quota, below `quotas:` in the module file", (QuotaSettings,)),
        Group("environment", "Environment variables", (Environment,)),
        Group("daemon", "Environment variables of a daemon of the replicated store", (DaemonSettings, DoorSettings)),
        Group("thresholds", "Thresholds of a replicated store", (Thresholds,)),
        Group("replicated", "Options of a replicated:// URI", (ReplicatedOptions,)),
        Group("jdbc", "Options of a jdbc: URI", (JdbcOptions,)),
    )
}


# -- settings as `jmsq describe` shows them ----------------------------------------------------------------------------
@dataclass(frozen=True)
class Described:
    """A setting of one destination with its value, or one of all that there are. `default` is None when there is none. `value` is in
    `unit`; `shown` is the value as people write it. `origin` is `module file`, `template NAME` or `default`; both it and the value
    are None in a list of all settings."""

    group: str
    name: str
    default: Any
    unit: str
    range: str
    since: str
    doc: str
    value: Any = None
    shown: str = ""
    origin: str | None = None


def describe(settings: DestinationSettings) -> list[Described]:
    """The settings of one destination."""
    return [_valued(row, settings) for row in KEYS.values()]


def _valued(row: Setting, settings: DestinationSettings) -> Described:
    value = getattr(settings, row.field)
    origin = "default" if value == row.default else "module file"
    if row.name in settings.inherited:
        origin = f"template {settings.template}"
    return replace(_described("module", row), value=value, shown=row.show(value), origin=origin)


def all_settings() -> Iterator[Described]:
    for group in GROUPS.values():
        for row in group.settings.values():
            yield _described(group.name, row)


def _described(group: str, row: Setting) -> Described:
    default = None if row.default is REQUIRED else row.default
    return Described(group, row.name, default, row.type.unit, row.type.range, row.since, row.doc)


# -- the names of WebLogic's texts -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextName:
    """A name of the texts, and the settings that stand for it. `default` is the one
    that the texts state, or "". `keys` are the settings, as GROUP.NAME; where there are none, `instead` tells what does, or why
    nothing does. `differs` explains another default.

    `make options` writes the names into docs/OPTIONS.md.
    """

    name: str
    default: str = ""
    keys: tuple[str, ...] = ()
    instead: str = ""
    differs: str = ""

    @property
    def settings(self) -> list[tuple[str, Setting]]:
        """The group and the declaration of each of `keys`. Raises KeyError for one that is not there."""
        split = (key.split(".") for key in self.keys)
        return [(group, GROUPS[group].settings[name]) for group, name in split]

    @property
    def shown(self) -> str:
        """What stands for it here."""
        here = [f"`{row.name}` of {_place(group, row)}: {row.shown_default}" for group, row in self.settings]
        return "; ".join([*here, self.differs] if self.differs else here) or self.instead


_PLACES = {
    "options": "a Spark write",
    "module": "a destination or template",
    "server": "a server",
    "factory": "a connection factory",
    "quota": "a quota",
    "jdbc": "a jdbc: URI",
    "replicated": "a replicated:// URI",
    "thresholds": "a replicated store",
    "environment": "the environment",
}


def _place(group: str, row: Setting) -> str:
    return "the domain" if group == "module" and row.name in settings_of(DomainSettings) else _PLACES[group]


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
    TextName(
        "Prefetch Mode for Synchronous Consumers",
        "",
        ("factory.synchronousPrefetchMode",),
        differs="off in WebLogic; off, a consumer claims one message at a time, and receives 756 messages a second for 5,645 "
        "([BENCHMARKS](BENCHMARKS.md), pipeline)",
    ),
    TextName(
        "weblogic.ThreadPoolSize",
        "5",
        instead=f"{_REFUSED}: each consumer with a listener has a thread of its own, so no listener waits for others",
    ),
    TextName("Messaging Performance Preference", "25", ("module.messagingPerformancePreference",)),
    TextName("Default Compression Threshold", "", ("factory.defaultCompressionThreshold",)),
    TextName(
        "Store Message Compression Enabled",
        "",
        ("server.storeMessageCompressionEnabled", "module.storeMessageCompressionEnabled"),
    ),
    TextName("Paging Message Compression Enabled", "", ("factory.pagingMessageCompressionEnabled",)),
    TextName(
        "Message Compression Options",
        "",
        ("server.messageCompressionOptions", "module.messageCompressionOptions", "factory.messageCompressionOptions"),
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
    TextName("Send Timeout", "", ("factory.sendTimeout", "options.sendTimeout")),
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
    TextName(
        "Scan Expiration Interval",
        "30 s",
        ("server.expirationScanInterval", "module.expirationScanInterval"),
        differs="a server without one has that of the domain",
    ),
    TextName("Error Destination", "", ("module.errorDestination",)),
    TextName("Message Life Cycle Logging", "", ("module.messageLoggingEnabled",)),
    TextName("Default Unit-of-Order", "", ("module.defaultUnitOfOrder", "factory.defaultUnitOfOrder")),
    TextName("Unit-of-Order Routing", "", ("module.unitOfOrderRouting",)),
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
    TextName("Messages Maximum per Session", "", ("factory.messagesMaximum",)),
    TextName(
        "LLR (Logging Last Resource)",
        "",
        instead="`transacted_session(last_resource=…)`: [a database](TRANSACTIONS.md)",
    ),
    TextName("Connection.start", "", instead="no counterpart: a consumer receives from its creation on"),
)
STORES = (
    TextName("data source", "", instead="the `jdbc:` URI of a store"),
    TextName("SIBOWNER, SIBOWNER0, SIBCLASSMAP, SIBLISTING, SIBXACTS, SIBKEYS, SIBnnn", "", ("jdbc.prefix",)),
    TextName(
        "sib.msgstore.jdbcFailoverOnDBConnectionLoss",
        "true",
        ("jdbc.on_connection_loss",),
        differs="`failover` is true, `retry` is false",
    ),
    TextName("15 minutes of attempts to get the lock", "15 min", ("jdbc.retry_limit_s",)),
    TextName(
        "TCP_KEEPIDLE, tcp_keepalive_time, TCP_KEEPALIVE_INTERVAL, KeepAliveTime",
        "2 h",
        ("jdbc.orphan_limit_s",),
        differs="an engine sets it for its own connections",
    ),
    TextName("Directory (Global Directory)", "", instead="the path of a `replicated://` URI"),
    TextName("RegionSize", "", ("replicated.region_mb",)),
    TextName("LocalIndex", "0", ("replicated.localindex",)),
    TextName(
        "weblogic.store.replicated.MaximumMessageSizePercent",
        "1",
        ("thresholds.MaximumMessageSizePercent",),
        differs="of objects; no message is refused for it: messages are in tables, and a store has positions and claims of a few KB. "
        "`maxMessageSize` of a destination limits messages",
    ),
    TextName("weblogic.store.replicated.SpaceLoggingStartPercent", "70", ("thresholds.SpaceLoggingStartPercent",)),
    TextName("weblogic.store.replicated.SpaceLoggingDeltaPercent", "10", ("thresholds.SpaceLoggingDeltaPercent",)),
    TextName("weblogic.store.replicated.SpaceOverloadYellowPercent", "80", ("thresholds.SpaceOverloadYellowPercent",)),
    TextName("weblogic.store.replicated.SpaceOverloadRedPercent", "90", ("thresholds.SpaceOverloadRedPercent",)),
    TextName("rs_daemons.cfg", "", instead="[the same file](REPLICATED-STORE-REFERENCE.md#rs_daemonscfg)"),
    TextName(
        "startRSDaemon.sh, stopRSDaemon.sh",
        "",
        instead="`start` and `stop` with [the same options](REPLICATED-STORE-REFERENCE.md#options-and-settings-of-a-daemon)",
    ),
    TextName("weblogic.store.Admin (storeadmin)", "", instead="`jmsq store`: [its commands](REPLICATED-STORE.md)"),
)
_LISTED = {row.name for row in (*DISTRIBUTED, *TUNING)}
WITHOUT_COUNTERPART = tuple(
    TextName(one.title, instead=f"{_REFUSED}: {one.reason}") for one in REFUSED if one.title not in _LISTED
)
NAMES = (*DISTRIBUTED, *TUNING, *WITHOUT_COUNTERPART, *STORES)


def table_of_texts() -> Iterator[str]:
    yield "| In the texts | Default there | Here, with its default |"
    yield "|---|---|---|"
    for row in NAMES:
        yield f"| {row.name} | {row.default or '–'} | {row.shown} |"


# -- what `make options` writes -------------------------------------------------------------------------------------------
PAGE = """\
# Settings

<!-- Generated from the tables in spark_jms/settings by `make options`. Change those. -->

`jmsq describe DEST` shows the settings of a destination with their values, `jmsq describe --settings` all settings.

## Options of format("jmsq")

Names are not case-sensitive. An unknown option, a wrong value or a missing one raises an `OptionError` that lists what is
accepted, before anything is read or written. [options.py](../spark_jms/settings/options.py) declares the options.

The column *For* names the uses to which an option applies; *all* are `read`, `readStream`, `write` and `writeStream`. In another
use it raises an `OptionError` too, because ignoring a selector of a write, or the `startingPosition` of a batch read, would hide a
mistake. A temporary view passes all its options to `SELECT`, which is a `read`, and to `INSERT`, which is a `write`. If you need an
option for one of them, create two views.

{options}

With Trigger.AvailableNow, `minMessagesPerTrigger` is ignored: the query takes all messages that were in the table when
it started. Trigger.Once is refused (TriggerError), because its last batch would stay unacknowledged. Use
Trigger.AvailableNow. Together with a source that does not support it, such as `rate`, Spark runs a single batch too, with the same
error: read that source in a separate query. With Trigger.AvailableNow a query waits up to 10 s for members that other consumers hold,
but not for messages that a live consumer has claimed. A warning says how many messages it leaves, and why: held by a consumer, behind
an earlier message of their unit of order, delayed, or paused.

### Two reads in one query

Each message of a queue goes to one consumer, and each `readStream` is a separate consumer, even within one query. So in a join or a
union of a queue with itself, each message goes to one side only. The source warns when another stream of the same Spark driver reads
the queue. The same holds for two reads of one subscription. To see each message on both sides, use a topic, with a subscription for
each read:

```python
from pyspark.sql.functions import expr


def read(subscription):
    stream = spark.readStream.format("jmsq").option("root", "messages").option("destination", "prices")
    return stream.option("subscription", subscription).load()


both = read("left").alias("l").join(read("right").alias("r"), expr("l.JMSCorrelationID = r.JMSMessageID"))
```

If a query needs a batch twice, use it twice in `foreachBatch`.

## Durations and sizes

In text (the module file, options of Spark, URIs, the command line) a duration is a number with `ms`, `s`, `min`, `h` or
`days`: `30 s`, `15min`, `1 day`. A number alone is refused, except 0, and except for a setting whose name
ends in its unit (`retry_limit_s=60`, `RS_HEARTBEAT_MS=200`) or is one of the texts', which has theirs: `flowInterval`, `forwardDelay`,
`expirationScanInterval`, `transactionTimeout` and `databaseTransactionTimeout` are seconds (`flowInterval: 60`). In Python a duration
is such a text, a `timedelta`, or a number of seconds: `receive(timeout=0.5)`,
`send(…, delay="10 s", time_to_live=timedelta(hours=1))`.

Sizes: a number of bytes, or a number with `KB`, `MB`, `GB` (powers of 1000) or `KiB`, `MiB`, `GiB` (powers of 1024).

## startingPosition

| Value | The subscription gets |
|---|---|
| `latest` | messages sent after it was created |
| `earliest` | every message that is still in the table |
| `{{"sequence": 17}}` | messages from sequence 17, in every member |
| `{{"sequence": {{"0": 17, "2": 5}}}}` | the same per member; members not named start at `latest` |
| `{{"time": "2026-01-31T08:00:00Z"}}` | messages sent at that time or later. Times are kept per file, so some earlier \
messages of the first file may come too. A number means milliseconds since 1970 |

A position before the oldest message in the table means the oldest message.

## view

| `view` | Rows |
|---|---|
{views}

## Options of the client

`connect(root, housekeeping=True)`, `Context.producer`, `Context.consumer` and `Context.browser` describe their arguments
in their docstrings; [CLIENT](CLIENT.md) shows them. They mean the same as the options above, in Python's spelling
(`starting_position`, `fail_on_data_loss`); `prefetch` is how many messages a consumer claims at a time, by default
`messagesMaximum` of the [connection factory](#keys-of-a-connection-factory).

## Keys of the module file

[conf/jms-module.yaml](../conf/jms-module.yaml) is an example. An unknown key or a wrong value raises a `ModuleFileError` with
file, line, value and what is allowed. [destination.py](../spark_jms/settings/destination.py) declares the keys.

{module}

`templates:` names sets of these keys, for destinations with the same settings. A destination with `template: NAME` has the template's
values; its own values override them, and `null` gives a key its default. Values for another kind of destination do not concern it:
`messagesLimitOverride` is for topics, `forwardDelay` for distributed queues, `forwarding` and `storeEnabled` for distributed topics.
Applying a changed template changes the destinations of the same file. `jmsq describe` shows which values come from a template.

```yaml
templates:
  careful: {{redeliveryLimit: 3, redeliveryDelay: 5 s, errorDestination: failed}}
destinations:
  failed: {{kind: queue}}
  orders: {{kind: distributed-queue, members: 4, template: careful}}
  audits: {{kind: queue, template: careful, redeliveryLimit: 10}}
  prices: {{kind: topic, template: careful, errorDestination: null}}
```

## Keys of a server

`servers:` of the module file names [servers](DISTRIBUTED.md); `home`, the domain's own store, takes all keys but `store` and `lease`.
[destination.py](../spark_jms/settings/destination.py) declares the keys.

{server}

## Keys of a connection factory

`connectionFactories:` of the module file names sets of these keys. A connection uses a factory by name:
`connect(root, connection_factory="once")`, `jmsq send --connection-factory once` or the sink's option `connectionFactory`. In
Python you may create one where you use it: `ConnectionFactory(load_balancing_enabled=False)`. A changed factory affects connections
that are opened after its `apply`. [DISTRIBUTED](DISTRIBUTED.md#load-balancing) shows their effect.
[connection_factory.py](../spark_jms/settings/connection_factory.py) declares the keys.

{factory}

## Keys of a quota

`quotas:` of the module file names quotas; a destination has at most one, by its key `quota`. [LIMITS](LIMITS.md#quotas) shows their
effect. A changed maximum takes effect with its `apply`. [quota.py](../spark_jms/settings/quota.py) declares the keys.

{quota}

## Environment variables

{environment}

## Environment variables of a daemon

A daemon of the replicated store reads them when it starts; a wrong value raises a `SettingInvalidError`. Give all daemons of
a cluster the same values.

{daemon}

## Thresholds

The process that opens a replicated store (for doors, the daemon) reads them from its environment, as
`store.replicated.SpaceOverloadRedPercent` for all stores or `store.replicated.NAME.SpaceOverloadRedPercent` for one. A
shell cannot export such names; `env` can:

```bash
env store.replicated.orders.SpaceOverloadRedPercent=100 python drain_orders.py
```

{thresholds}

## Options of store URIs

A wrong value raises a `StoreUriError`. [store.py](../spark_jms/settings/store.py) declares the options.

`replicated:///global/directory?store=NAME`; any other option is refused:

{replicated}

`jdbc:sqlite:///path/file.db` and `jdbc:postgresql://user@host:port/db`; any other option goes to libpq:

{jdbc}

## The names of the texts

"The texts" are WebLogic's guides to distributed destinations, tuning and its replicated store, and WebSphere's to data stores.
This table maps their settings to ours, with the defaults that they state. A name that is *refused* has no counterpart: in the
module file, as an option of Spark or as an acknowledge mode it raises an error with the reason.

{texts}
"""

MODULE_HEADER = """\
# A module file declares the destinations of a domain. Apply it, and again after each change:
#
#   jmsq apply --root /data/messages conf/jms-module.yaml
#
# Unknown keys, wrong values and changes that would lose messages are refused with file, line, key and what is allowed,
# before anything changes. Destinations that the file does not name stay as they are.
#
# The keys of a destination. All but kind are optional.
#
{keys}
#
# Durations: a number with ms, s, min, h or days ('500 ms', '30 s', '15 minutes', '1 day').
# Sizes: a number of bytes, or with KB, MB, GB, KiB, MiB, GiB.
#
# Optional keys besides `destinations`:
#
# templates: {{NAME: {{KEY: VALUE, …}}, …}}. Values of these keys, for destinations with template: NAME.
{domain}

"""


def page() -> str:
    """docs/OPTIONS.md."""
    tables = {name: "\n".join(table(group.settings)) for name, group in GROUPS.items()}
    views = "\n".join(f"| `{view}` | {doc} |" for view, doc in VIEWS.items())
    return PAGE.format(views=views, texts="\n".join(table_of_texts()), **tables)


def table(settings: Mapping[str, Setting]) -> Iterator[str]:
    used = any(row.used_in for row in settings.values())
    yield f"| Name |{' For |' * used} Values | Default | Since | Meaning |"
    yield f"|---|{'---|' * used}---|---|---|---|"
    for row in settings.values():
        uses = "all" if row.used_in == ALL else ", ".join(f"`{use.value}`" for use in row.used_in)
        cells = (*([uses] * used), row.type.range, row.shown_default, row.since, meaning(row))
        yield f"| `{row.name}` | {' | '.join(cells)} |"


def meaning(row: Setting) -> str:
    """The documentation, with that of the words to choose from."""
    words: Mapping[Any, str] = row.type.words if isinstance(row.type, Choice | NumberChoice) else {}
    words = {} if words is VIEWS else words
    return " ".join([row.doc, "; ".join(f"`{word}`: {doc}" for word, doc in words.items())]).strip()


def module_header() -> str:
    """The comment at the top of conf/jms-module.yaml."""
    keys, domain = settings_of(DestinationSettings).values(), settings_of(DomainSettings).values()
    return MODULE_HEADER.format(keys="\n".join(_explained(keys)), domain="\n".join(_explained(domain)))


def _explained(rows: Iterable[Setting]) -> Iterator[str]:
    for row in rows:
        default = "" if row.name == "kind" else f" (default {row.shown_default})"
        yield from _wrapped(f"# {row.name}: ", f"{row.type.range}{default}. {row.doc}".replace("`", ""), "#   ")
        if isinstance(row.type, Choice | NumberChoice):
            for word, doc in row.type.words.items():
                yield from _wrapped(f"#     {word:<18} ", doc.replace("`", ""), "#" + " " * 24)


def _wrapped(first: str, text: str, others: str) -> list[str]:
    return textwrap.wrap(text, 120, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)


def with_header(module_file: str) -> str:
    """The module file with a new header: all before its first key is replaced."""
    return module_header() + module_file[module_file.index("destinations:\n") :]


def main(project: Path) -> None:
    (project / "docs" / "OPTIONS.md").write_text(page(), encoding="utf-8")
    module_file = project / "conf" / "jms-module.yaml"
    module_file.write_text(with_header(module_file.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
