"""Environment variables that spark-jms reads. Those of a daemon of the replicated store are in its own table."""

from __future__ import annotations

import attrs

from spark_jms.settings.destination import COMPRESSIONS
from spark_jms.settings.table import Table, setting
from spark_jms.settings.types import Choice, Size, Text, Whole

ROOT_VARIABLE = "JMSQ_ROOT"
SERVER_VARIABLE = "JMSQ_SERVER"
DEBUG_VARIABLE = "JMSQ_DEBUG"
TRACING_VARIABLE = "JMSQ_TRACING"
CACHE_VARIABLE = "JMSQ_CACHE"
PATH = Text("a path")
BUFFER_SIZE = Size("64 KiB", "1024 GiB")
DEFAULT_BUFFER = "a third of the memory that the process may use, at most 512 MB"


@attrs.frozen
class Environment(Table):
    root: str | None = setting(
        ROOT_VARIABLE,
        Text("a directory or an object store's URL"),
        None,
        "The default domain of commands, the client and Spark. Set it before the Spark session starts.",
    )
    server: str | None = setting(
        SERVER_VARIABLE,
        Text("the name of a server"),
        None,
        "The home server of this host: senders and pinned receivers prefer the members on it (server affinity). For a "
        "destination that is not on it the variable has no effect.",
    )
    message_buffer_bytes: int | None = setting(
        "JMSQ_MESSAGE_BUFFER_SIZE",
        BUFFER_SIZE,
        None,
        "Like `messageBufferSize`, if no connection factory sets it: for clients, for `jmsq`, and for each Python "
        "worker of Spark ([paging](LIMITS.md#paging)).",
        without=DEFAULT_BUFFER,
    )
    paging_directory: str | None = setting(
        "JMSQ_PAGING_DIRECTORY",
        PATH,
        None,
        "Like `pagingDirectory`, if no connection factory sets it.",
        without="TMPDIR if it is set, else the host's directory of temporary files on a disk",
    )
    paging_compression: str | None = setting(
        "JMSQ_PAGING_COMPRESSION",
        Choice(COMPRESSIONS),
        None,
        "How pages are compressed if no connection factory enables compression.",
        without="not at all",
    )
    debug: str | None = setting(DEBUG_VARIABLE, Text(), None, "Not empty: `jmsq` prints a traceback with an error.")
    tracing: str | None = setting(
        TRACING_VARIABLE,
        Text("false, or anything else"),
        None,
        "With `false` the client creates no [spans](MONITORING.md#traces) and adds no trace context to messages, even "
        "if the application has set a tracer provider.",
    )
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
    patience: int = setting(
        "JMSQ_PATIENCE",
        Whole(1),
        1,
        "The factor by which the time limits of `spark_jms.testing` are multiplied. On a busy machine a test may need more.",
    )
