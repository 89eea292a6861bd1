"""A client of the test of moving units: `python unit_moves_app.py ROOT DIRECTORY produce NAME UNITS ROUNDS`, or `consume NAME`.

A producer sends message 0, 1, 2 … of each of its units and writes `done` at its end. A consumer writes a line for each message
that it receives and one before and after each acknowledgement, and ends when a file `stop` appears.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from pathlib import Path

from spark_jms import connect
from spark_jms.client import Context
from spark_jms.errors import ConsumerClosedException, JmsqError, MemberUnavailableError

PREFETCH, ACKNOWLEDGED_TOGETHER = 60, 20


def produce(context: Context, directory: Path, name: str, units: int, rounds: int) -> None:
    producer = context.producer("orders")
    for number in range(rounds):
        messages = [{"text": str(number), "group_id": f"{name}-{unit}"} for unit in range(units)]
        size = max(units // 10, 10)
        for first in range(0, units, size):
            while True:
                try:
                    producer.send_many(messages[first : first + size])  # type: ignore[arg-type]
                    break
                except JmsqError:  # a server is down: nothing was sent
                    time.sleep(0.05)
        (directory / f"{name}.round").write_text(str(number))
    (directory / f"{name}.done").touch()


def consume(context: Context, directory: Path, name: str) -> None:
    with open(directory / f"{name}.jsonl", "a", buffering=1) as out:

        def note(**row: object) -> None:
            out.write(json.dumps({**row, "at": time.monotonic()}) + "\n")

        while not (directory / "stop").exists():
            consumer = context.consumer("orders", prefetch=PREFETCH)
            waiting = 0
            try:
                while not (directory / "stop").exists():
                    message = consumer.receive(0 if waiting else 0.2)
                    if message is not None:
                        note(unit=message.group_id, number=int(message.text or ""), again=message.redelivered)
                        newest, waiting = message, waiting + 1
                    if waiting and (message is None or waiting == ACKNOWLEDGED_TOGETHER):
                        note(acknowledging=True)
                        newest.acknowledge()
                        note(acknowledged=True)
                        waiting = 0
            except (ConsumerClosedException, MemberUnavailableError):
                note(lost=True)  # its server was away: a new consumer gets what is not acknowledged
            finally:
                with suppress(JmsqError):
                    consumer.close()


def main(root: str, directory: str, role: str, name: str, *counts: str) -> None:
    with connect(root) as context:
        if role == "consume":
            consume(context, Path(directory), name)
        else:
            produce(context, Path(directory), name, *map(int, counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
