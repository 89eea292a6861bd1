"""JMS-grade messaging on Spark and Delta tables.

import spark_jms
spark_jms.apply(root, "conf/jms-module.yaml")      # create and change destinations
with spark_jms.connect(root) as context: ...       # send and receive without Spark
spark.readStream.format("jmsq")...                 # with Spark, nothing has to be registered
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["apply", "connect"]

if TYPE_CHECKING:
    from spark_jms.client import connect
    from spark_jms.module import apply


def __getattr__(name: str) -> Any:
    """Import the public functions on first use: Spark imports this package in every worker."""
    if name == "connect":
        from spark_jms.client import connect

        return connect
    if name == "apply":
        from spark_jms.module import apply

        return apply
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
