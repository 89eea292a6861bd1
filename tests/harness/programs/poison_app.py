"""A query whose sink commits a batch and then loses its driver, or fails: python poison_app.py ROOT WORK

The sink takes each batch once, in a file named by its number. `attempts` has the size of each attempt. In the first one the
driver is killed between the sink's commit and Spark's commit log; the next two fail at the same place.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException

from tests.harness.processes.sessions import small_session

DIES, FAILS = {1}, {2, 3}


def main(root: str, work: Path) -> None:
    spark = small_session("poison", work)
    taken, attempts = work / "taken", work / "attempts"

    def take(frame: Any, batch_id: int) -> None:
        rows = [[row.text, row.JMSRedelivered] for row in frame.select("text", "JMSRedelivered").collect()]
        if not rows:
            return
        with open(attempts, "a") as file:
            file.write(f"{len(rows)}\n")
        if not (taken / f"{batch_id}.json").exists():
            (work / "staged").write_text(json.dumps(rows))
            os.rename(work / "staged", taken / f"{batch_id}.json")
        attempt = len(attempts.read_text().splitlines())
        if attempt in DIES:
            for pid in (spark._jvm.java.lang.ProcessHandle.current().pid(), os.getpid()):
                os.kill(pid, signal.SIGKILL)
        if attempt in FAILS:
            raise ValueError("behind the sink's commit")

    reader = spark.readStream.format("jmsq").option("root", root).option("destination", "orders")
    stream = reader.option("onPoison", "isolate").option("idempotentSink", "true").load()
    writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(work / "checkpoint"))
    for _ in range(10):
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
            return
        except StreamingQueryException as error:
            if "behind the sink's commit" not in str(error):
                raise
    raise AssertionError("the query still fails")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
