"""All tables of settings, in the order in which people read about them."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from spark_jms.settings.connection_factory import ConnectionFactory
from spark_jms.settings.destination import DestinationSettings, DomainSettings, ServerSettings
from spark_jms.settings.environment import Environment
from spark_jms.settings.options import Options
from spark_jms.settings.quota import QuotaSettings
from spark_jms.settings.store import DaemonSettings, DoorSettings, JdbcOptions, ReplicatedOptions, Thresholds
from spark_jms.settings.table import Setting, Table, settings_of


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
