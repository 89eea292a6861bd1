"""A plain-Python client under test, without Spark.

    python client_app.py ROOT QUEUE DIRECTORY produce|produce-units|consume NAME

`produce` sends numbered messages, one by one and in bulk, pauses while its directory has a file `pause`, and ends when a
file `stop` appears. `consume` writes each message to received.jsonl before it acknowledges it. At its end a client
writes its number of messages to `done.json`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from spark_jms import connect

UNITS = 5
POLL_S = 0.05


def produce(context: Any, queue: str, directory: Path, name: str, *, units: bool) -> int:
    sent = 0
    bulk = 0

    def message(n: int) -> dict[str, Any]:
        return {"text": f"{name}:{n}", **({"group_id": f"{name}-{n % UNITS}"} if units else {})}

    with context.producer(queue) as producer:
        while not (directory / "stop").exists():
            if (directory / "pause").exists():
                (directory / "paused").touch()
                time.sleep(POLL_S)
                continue
            (directory / "paused").unlink(missing_ok=True)
            bulk = (bulk + 7) % 30
            if bulk:
                producer.send_many([message(n) for n in range(sent, sent + bulk)])
            else:
                producer.send(**message(sent))
            sent += max(bulk, 1)
            (directory / "sent").write_text(str(sent))
            time.sleep(POLL_S)
    return sent


def consume(context: Any, queue: str, directory: Path) -> int:
    received = 0
    with context.consumer(queue) as consumer, open(directory / "received.jsonl", "a", buffering=1) as out:
        while not (directory / "stop").exists():
            message = consumer.receive(timeout=0.2)
            if message is None:
                continue
            row = {
                "key": message.text,
                "unit": message.group_id,
                "member": message.member,
                "sequence": message.sequence,
                "redelivered": message.redelivered,
            }
            out.write(json.dumps(row) + "\n")
            message.acknowledge()
            received += 1
    return received


def main(root: str, queue: str, directory: str, role: str, name: str) -> None:
    path = Path(directory)
    with connect(root) as context:
        if role == "consume":
            count = consume(context, queue, path)
        else:
            count = produce(context, queue, path, name, units=role == "produce-units")
    (path / "done.json").write_text(json.dumps({"count": count}))


if __name__ == "__main__":
    main(*sys.argv[1:])
