"""An application that ends its Spark session and not its idle query, and starts the query again.

python -m tests.harness.programs.stopped_session ROOT DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from spark_jms import connect
from spark_jms.testing.domain import wait_until
from tests.harness.processes.sessions import small_session

LIMIT_S = 120.0


def start(root: str, directory: Path) -> Any:
    spark = small_session("stopped", directory)
    stream = spark.readStream.format("jmsq").option("root", root).option("destination", "jobs").load()
    writer = stream.select("text", "JMSXDeliveryCount").writeStream.format("parquet")
    return writer.option("checkpointLocation", str(directory / "ck")).start(str(directory / "out"))


def main(root: str, directory: Path) -> None:
    query = start(root, directory)
    wait_until(lambda: query.lastProgress, LIMIT_S)
    small_session("stopped", directory).stop()
    with connect(root) as context:
        context.producer("jobs").send(text="x")
    wait_until(lambda: not query.isActive, LIMIT_S)
    print("ended", flush=True)
    query = start(root, directory)
    wait_until(lambda: any(p["numInputRows"] for p in query.recentProgress) or not query.isActive, LIMIT_S)
    query.processAllAvailable()
    query.stop()
    print("received", flush=True)
    small_session("stopped", directory).stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
