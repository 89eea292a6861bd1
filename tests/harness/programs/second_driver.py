"""A second Spark application with the checkpoint of a running query of the queue `orders`, into the same Delta table.

    python second_driver.py ROOT CHECKPOINT TABLE DIRECTORY

It prints the error with which its query ends. Spark's own files go to DIRECTORY.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.harness.processes.sessions import small_session


def main(root: str, checkpoint: str, table: str, directory: str) -> None:
    spark = small_session("second driver", Path(directory))
    stream = spark.readStream.format("jmsq").option("root", root).option("destination", "orders").load()
    writer = stream.writeStream.format("delta").option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime="0 seconds").start(table)
    try:
        query.awaitTermination(120)
    except Exception as error:  # noqa: BLE001 - printed for the test
        print(error)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
