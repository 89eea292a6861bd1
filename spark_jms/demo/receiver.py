"""The receiver `a`: a Spark application of its own, so that the demo can kill it. It reports in JSON lines.

    out   {"event": "ready"}, {"event": "batch", …} for each micro-batch, {"event": "stopped"}
    in    the name of a subscription: it receives what waits there and reports {"event": name};
          "go" starts the query, "stop" (or the end of the input: the demo is gone) ends it

Everything it has to remember is in its checkpoint and in the queue: started again after kill -9, it goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import queue
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from spark_jms.demo.queries import SUBSCRIPTIONS, create_output, receive_flights, receive_subscription, session
from spark_jms.demo.received import batches_after

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

_LOOK_S = 0.1


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m spark_jms.demo.receiver", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--name", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--batch", type=int, required=True, help="most messages of a micro-batch")
    parser.add_argument("--master", required=True)
    given = parser.parse_args(arguments)
    # Only our lines go to the demo; the standard output of Spark and its children goes to the log.
    out = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    orders: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin, orders), daemon=True).start()
    spark = session(f"demo receiver {given.name}", given.work / "warehouse" / given.name, given.master)
    create_output(spark, given.work, given.name)
    _tell(out, "ready")
    order = orders.get()
    while order in SUBSCRIPTIONS:
        receive_subscription(spark, given.work, order).awaitTermination()
        _tell(out, order)
        order = orders.get()
    if order == "go":
        query = receive_flights(spark, given.work, given.name, given.batch)
        _follow(query, orders, out)
        query.stop()
    _tell(out, "stopped")
    spark.stop()
    return 0


def _listen(source: TextIO, orders: queue.Queue[str]) -> None:
    for line in source:
        orders.put(line.strip())
    orders.put("stop")


def _follow(query: StreamingQuery, orders: queue.Queue[str], out: TextIO) -> None:
    """Report each micro-batch until the demo stops the receiver. Raises the error that ends the query."""
    seen = -1
    while True:
        for done in batches_after(query, seen):
            seen = done.batch
            _tell(out, "batch", **dataclasses.asdict(done))
        try:
            if orders.get(timeout=_LOOK_S) == "stop":
                return
        except queue.Empty:
            if (error := query.exception()) is not None:
                raise error from None


def _tell(out: TextIO, event: str, **values: object) -> None:
    out.write(json.dumps({"event": event, **values}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
