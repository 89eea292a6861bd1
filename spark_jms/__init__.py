"""JMS-grade messaging on Spark and Delta tables.

import spark_jms
spark_jms.apply(root, "conf/jms-module.yaml")      # create and change destinations
with spark_jms.connect(root) as context: ...       # send and receive without Spark
spark.readStream.format("jmsq")...                 # with Spark, nothing has to be registered
spark_jms.browse(spark, root, "orders")            # a DataFrame of what is in a destination now
with spark_jms.admin.connect(root) as admin: ...   # look at them, and administer them; import spark_jms.admin

Importing this package is light: the functions import pyarrow and the rest when they are called.

Features: C10, D2, T17 (docs/FEATURES.md)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_jms.client import Context, DurationLike
    from spark_jms.client.context.pool import ClientPool
    from spark_jms.client.messages.message import ExceptionListener
    from spark_jms.core.destinations.subscriptions import ClientIdPolicy
    from spark_jms.log.destinations.declarations import DeclarationChange
    from spark_jms.settings.connection_factory import ConnectionFactory

__version__ = "0.1.0"
__all__ = ["apply", "browse", "connect", "connect_pool"]
_PACKAGES = ("admin", "aio", "client", "errors", "testing")  # for applications


def __dir__() -> list[str]:
    return [*__all__, *(name for name in _PACKAGES if name in globals()), "__version__"]


def connect(
    root: str | os.PathLike[str] | None = None,
    *,
    housekeeping: bool = True,
    client_id: str | None = None,
    client_id_policy: ClientIdPolicy = "restricted",
    connection_factory: str | ConnectionFactory | None = None,
    server: str | None = None,
    exception_listener: ExceptionListener | None = None,
) -> Context:
    """Open the domain at `root`, or at the environment variable JMSQ_ROOT. Use it in a `with` statement.

    `housekeeping=False` leaves purge and compaction to other processes: for short-lived programs. The `client_id` and
    its policy qualify the names of subscriptions. While a connection with a restricted id is open, another one with
    that id is refused (InvalidClientIDException); any number of connections may have an unrestricted id.
    `connection_factory` is the name of one in the module file, or a ConnectionFactory. `server` is the home server,
    which senders and pinned receivers prefer (None: the environment variable JMSQ_SERVER). `exception_listener` is called
    with the error of a lost store, an ended session or a fenced consumer, without a call of the application, in a thread of the
    connection. Raises DomainError when there is no domain, connection factory or server of that name.
    """
    from spark_jms import client

    return client.connect(
        root,
        housekeeping=housekeeping,
        client_id=client_id,
        client_id_policy=client_id_policy,
        connection_factory=connection_factory,
        server=server,
        exception_listener=exception_listener,
    )


def browse(
    spark: SparkSession, root: str | os.PathLike[str], destination: str, **options: str | int | bool
) -> DataFrame:
    """The messages that are in `destination` of the domain at `root` now, as a DataFrame, which consumes nothing. `options` are
    those of `format("jmsq")` for read, such as `selector="color = 'red'"`, `columns="sequence,text"` or `view="claims"`.

    Works in each kind of session, Spark Connect included, and beside each catalog. Call it again to see what has come since: a
    DataFrame stays as it was first read. With Spark Connect `root` is a path or URL of the server.
    """
    reader = spark.read.format("jmsq").option("root", os.fspath(root)).option("destination", destination)
    return reader.options(**options).load()


def connect_pool(
    root: str | os.PathLike[str] | None = None, *, max_idle: int = 100, idle: DurationLike = "1 min", **arguments: Any
) -> ClientPool:
    """A pool of producers and consumers, for code that would otherwise create them for each use. `arguments` are those
    of `connect`. The pool keeps at most `max_idle` unused ones, each for `idle`. Use it in a `with` statement."""
    from functools import partial

    from spark_jms.client.context.pool import ClientPool

    return ClientPool(partial(connect, root, **arguments), max_idle, idle)


def apply(root: str | os.PathLike[str], module: str | os.PathLike[str] | Mapping[str, Any]) -> list[DeclarationChange]:
    """Create and change the destinations of the domain at `root` as the module file (or a dict of the same shape)
    declares them. Returns one DeclarationChange for each destination.

    Applying the same file again changes nothing. Members may be added while jobs run; only empty members may be removed
    (MemberRemovalError). Destinations that the file does not declare stay as they are.
    """
    from spark_jms import module as modules

    return modules.apply(root, module)
