"""Reads a backlog with a small message buffer, and prints by how many MB its memory has grown (T7).

paging_app.py ROOT client|job|holder
"""

from __future__ import annotations

import gc
import os
import sys
import time
from pathlib import Path

import pyarrow as pa

from spark_jms import connect
from spark_jms.claims.messages.fetch import fetch
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.ordering.sort_order import delivery_order
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages.paging import PagedRows, process_buffer


def peak_mb() -> float:
    (line,) = (text for text in Path("/proc/self/status").read_text().splitlines() if text.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def begun_mb() -> float:
    """The peak, which begins again."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    return peak_mb()


def client(root: str) -> int:
    """Takes everything."""
    with connect(root, housekeeping=False) as context:
        before, count = begun_mb(), 0
        with context.consumer("urgent", acknowledge="dups-ok") as consumer:
            while consumer.receive(1) is not None:
                count += 1
        print(count, peak_mb() - before, 0, flush=True)
    return 0


def job(root: str) -> int:
    """As a task of Spark that gets the whole backlog of a sorted destination in one batch."""
    table = Domain(root).log("urgent")
    snapshot, buffer = table.refresh(), process_buffer()
    pa.array([0])
    before, count, last = begun_mb(), 0, 9
    picks = Ranges.of((1, snapshot.last_sequence(0)))
    order = delivery_order(snapshot.destination)
    for batch in fetch(table, "urgent", 0, picks, {}, order=order, buffer=lambda: buffer):
        priorities = batch.column("JMSPriority").to_pylist()
        assert [last, *priorities] == sorted([last, *priorities], reverse=True)
        count, last = count + batch.num_rows, priorities[-1]
    print(count, peak_mb() - before, buffer.statistics().paged_messages_total, flush=True)
    return 0


def sender(root: str, messages: int = 120) -> int:
    """One transaction, larger than the buffer."""
    with connect(root, housekeeping=False) as context, context.transacted_session() as session:
        before, producer = begun_mb(), session.producer("sent")
        for _ in range(messages):
            producer.send(body=os.urandom(2**20))
        session.commit()
        print(messages, peak_mb() - before, context.statistics().buffer.paged_messages_total, flush=True)
    return 0


def holder(root: str) -> int:
    """Pages, and waits to be killed."""
    kept = PagedRows(process_buffer())
    for _ in range(3):
        kept.append(pa.record_batch({"body": [os.urandom(2**20)]}))
    print(kept.count, 0, 0, flush=True)
    time.sleep(600)
    return 1


if __name__ == "__main__":
    sys.exit({"client": client, "job": job, "sender": sender, "holder": holder}[sys.argv[2]](sys.argv[1]))
