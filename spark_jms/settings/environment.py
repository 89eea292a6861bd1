"""Environment variables that spark-jms reads. Those of a daemon of the replicated store are in its own table."""

from __future__ import annotations

import attrs

from spark_jms.settings.table import Table, setting
from spark_jms.settings.types import Text

ROOT_VARIABLE = "JMSQ_ROOT"
SERVER_VARIABLE = "JMSQ_SERVER"
DEBUG_VARIABLE = "JMSQ_DEBUG"
CACHE_VARIABLE = "JMSQ_CACHE"
PATH = Text("a path")


@attrs.frozen
class Environment(Table):
    root: str | None = setting(
        ROOT_VARIABLE,
        Text("a directory or an object store's URL"),
        None,
        "The domain, for commands, the client and Spark, where none is given. Set it before the Spark session starts.",
    )
    server: str | None = setting(
        SERVER_VARIABLE,
        Text("the name of a server"),
        None,
        "The home server of this host: senders and pinned receivers prefer the members on it (server affinity). A destination "
        "that is not on it is used as if the variable were not set.",
    )
    debug: str | None = setting(DEBUG_VARIABLE, Text(), None, "Not empty: `jmsq` prints a traceback with an error.")
    cache: str | None = setting(
        CACHE_VARIABLE,
        PATH,
        None,
        "Where set-up keeps Delta's jars and the path of Java.",
        without="`.cache` of a clone, or `~/.cache/spark-jms`",
    )
    repositories: str | None = setting(
        "JMSQ_IVY_REPOSITORIES", Text("URLs"), None, "Maven repositories from which set-up takes Delta's jars."
    )
    ivy_settings: str | None = setting("JMSQ_IVY_SETTINGS", PATH, None, "An ivysettings.xml for the same.")
    directory: str | None = setting(
        "RS_DIRECTORY", PATH, None, "The Global Directory, for `jmsq store` where no `--dir` is given."
    )
