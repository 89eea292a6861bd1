"""Files of numbered rows, the stream that sends them to a queue, and the stream from the queue into a Delta table."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_jms.core.destinations.destination import Destination
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.destinations.domain import Domain, create_domain
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.log.sending.send import send

GROUPS = 7
QUEUE = "orders"


def make_queue(root: Path, **declared: Any) -> Domain:
    domain = create_domain(str(root))
    wanted = {"kind": "distributed-queue", "members": 4, **declared}
    apply_destinations(domain, [Destination(QUEUE, **wanted)], lambda *_: True)
    return domain


def send_numbers(domain: Domain, numbers: range, turn: int = 0, *, units: bool = True) -> None:
    """Send in one commit from this process. A message without a unit of order goes to the members in turn."""
    log = domain.log(QUEUE)
    snapshot = log.refresh()
    groups = [f"g{n % GROUPS}" if units else None for n in numbers]
    columns = [pa.array([str(n) for n in numbers]), pa.array(groups, pa.string())]
    writer = MessageWriter(log.storage, snapshot.destination, turn=turn)
    writer.write(pa.RecordBatch.from_arrays(columns, names=["text", "JMSXGroupID"]))
    send(log, writer.close(), snapshot.route_id)


class Feed:
    """A folder that a file stream reads, oldest file first, one file in a batch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.sent = 0
        self.files = 0
        self._modified_ns = time.time_ns() - 3600 * 10**9

    def add(self, files: int, rows: int) -> None:
        for _ in range(files):
            lines = "".join(f"{n}\n" for n in range(self.sent, self.sent + rows))
            staged = self.folder / f".{self.files:06d}.txt"
            staged.write_text(lines)
            self._modified_ns += 10**9
            os.utime(staged, ns=(self._modified_ns, self._modified_ns))
            os.rename(staged, self.folder / f"{self.files:06d}.txt")
            self.files += 1
            self.sent += rows


def producer(root: Path, feed: Feed, checkpoint: Path) -> dict[str, Any]:
    return {
        "from": "text",
        "options": {"path": str(feed.folder), "maxFilesPerTrigger": "1"},
        "select": ["value AS text", f"concat('g', cast(value AS bigint) % {GROUPS}) AS JMSXGroupID"],
        "to": "jmsq",
        "sinkOptions": {"root": str(root), "destination": QUEUE, "checkpointLocation": str(checkpoint)},
        "trigger": "100 milliseconds",
    }


def consumer(root: Path, table: Path, checkpoint: Path, per_batch: int, **options: str) -> dict[str, Any]:
    return {
        "from": "jmsq",
        "options": {"root": str(root), "destination": QUEUE, "maxMessagesPerTrigger": str(per_batch), **options},
        "select": [
            "cast(text AS bigint) AS n",
            "JMSXGroupID AS unit",
            "member",
            "sequence",
            "JMSRedelivered AS redelivered",
            "JMSXDeliveryCount AS deliveries",
        ],
        "to": "delta",
        "sinkOptions": {"path": str(table), "checkpointLocation": str(checkpoint)},
    }
